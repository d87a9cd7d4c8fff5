"""What a store holds, in a few lines that a copy of it can be compared with: count, ids, and sampled points whole.

All ids are read, so a missing or foreign point shows. Of SAMPLE points, chosen by the hash of their ids and therefore
the same ones in a copy, payload and vector are compared bit for bit.
"""

import hashlib
import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from tqdm import tqdm

from swift_plugin.settings import VECTOR_NAME
from swift_plugin.stores import EdgeStore, QdrantStore, StoreError

SAMPLE = 64
PAGE = 4096  # ids read together
PointId = int | str


class Points(Protocol):
    """A store read point by point."""

    def pages(self, size: int = PAGE) -> Iterator[list[PointId]]:
        """All ids, a page at a time."""

    def fetch(self, ids: Sequence[PointId]) -> list[tuple[PointId, Mapping[str, Any], Any]]:
        """Id, payload and vector of these points, in any order."""


class EdgePoints:
    def __init__(self, store: EdgeStore) -> None:
        self._store = store

    def pages(self, size: int = PAGE) -> Iterator[list[PointId]]:
        import qdrant_edge as edge

        offset = None
        while True:
            request = edge.ScrollRequest(offset=offset, limit=size, with_payload=False, with_vector=False)
            records, offset = self._store.shard().scroll(request)
            yield [_plain(record.id) for record in records]
            if offset is None:
                return

    def fetch(self, ids: Sequence[PointId]) -> list[tuple[PointId, Mapping[str, Any], Any]]:
        records = self._store.shard().retrieve(list(ids), with_payload=True, with_vector=True)
        return [_whole(record) for record in records]


class QdrantPoints:
    def __init__(self, store: QdrantStore) -> None:
        self._store = store

    def pages(self, size: int = PAGE) -> Iterator[list[PointId]]:
        offset = None
        while True:
            records, offset = self._store.call(
                lambda client, t, offset=offset: client.scroll(
                    self._store.collection,
                    limit=size,
                    offset=offset,
                    with_payload=False,
                    with_vectors=False,
                    timeout=t,
                )
            )
            yield [_plain(record.id) for record in records]
            if offset is None:
                return

    def fetch(self, ids: Sequence[PointId]) -> list[tuple[PointId, Mapping[str, Any], Any]]:
        records = self._store.call(
            lambda client, t: client.retrieve(
                self._store.collection, list(ids), with_payload=True, with_vectors=[VECTOR_NAME], timeout=t
            )
        )
        return [_whole(record) for record in records]


def points_of(store: EdgeStore | QdrantStore) -> Points:
    """The store read point by point."""
    return EdgePoints(store) if isinstance(store, EdgeStore) else QdrantPoints(store)


@dataclass(frozen=True)
class Survey:
    """`ids` is a checksum over all ids, in any order; `sample` maps an id to the checksum of its payload and vector."""

    points: int
    ids: str
    sample: Mapping[str, str]


def survey(points: Points, total: int | None = None) -> Survey:
    """Read all ids and SAMPLE whole points; `total` is for the progress bar.

    Memory does not grow with the store. 1,380,000 ids are 337 pages.
    """
    count, added = 0, 0
    smallest: list[tuple[int, str, PointId]] = []  # a heap of negated hashes: the largest of the kept ones is on top
    with tqdm(total=total, unit="id", unit_scale=True, desc="survey") as bar:
        for page in points.pages():
            for point_id in page:
                number = int.from_bytes(hashlib.sha256(str(point_id).encode()).digest()[:16], "big")
                added = (added + number) % (1 << 128)
                if len(smallest) < SAMPLE:
                    heapq.heappush(smallest, (-number, str(point_id), point_id))
                elif -number > smallest[0][0]:
                    heapq.heapreplace(smallest, (-number, str(point_id), point_id))
            count += len(page)
            bar.update(len(page))
    sampled = points.fetch([point_id for _, _, point_id in smallest])
    sample = {str(point_id): _checksum(payload, vector) for point_id, payload, vector in sampled}
    return Survey(count, f"{added:032x}", dict(sorted(sample.items())))


def differences(before: Survey, after: Survey) -> list[str]:
    """What a copy has otherwise than the store it was made from; empty if nothing."""
    found = []
    if before.points != after.points:
        found.append(f"{after.points} points instead of {before.points}")
    elif before.ids != after.ids:
        found.append(f"{after.points} points as before, but other ones: the ids differ")
    lost = [point_id for point_id in before.sample if point_id not in after.sample]
    if lost and not found:
        found.append(f"the sampled point {lost[0]} cannot be read")
    changed = [
        point_id for point_id in before.sample if after.sample.get(point_id, "") not in ("", before.sample[point_id])
    ]
    if changed:
        found.append(
            f"{len(changed)} of {len(before.sample)} sampled points have another payload or vector, as {changed[0]}"
        )
    return found


def _whole(record: Any) -> tuple[PointId, Mapping[str, Any], Any]:
    """Id, payload and vector; raises StoreError for a point that has no such vector, which Qdrant allows."""
    vector = record.vector if isinstance(record.vector, Mapping) else {}
    if VECTOR_NAME not in vector:
        raise StoreError(f"point {record.id} has no vector named {VECTOR_NAME!r}: index it again, or delete it")
    return _plain(record.id), record.payload or {}, vector[VECTOR_NAME]


def _plain(point_id: Any) -> PointId:
    """The engine in process gives uuid.UUID, the server a string."""
    return point_id if isinstance(point_id, int) else str(point_id)


def _checksum(payload: Mapping[str, Any], vector: Any) -> str:
    """Of the payload's JSON and the vector's float32 bytes: both survive a move bit for bit."""
    text = json.dumps(payload, ensure_ascii=False, sort_keys=True)
    numbers = np.asarray(vector, dtype="<f4").tobytes()
    return hashlib.sha256(text.encode("utf-8", "surrogatepass") + b"\0" + numbers).hexdigest()
