"""Where a catalogue's points go: a Qdrant collection, or an embedded store that is built beside its place.

Both know which points they hold already. That is all a run needs to go on after a kill: no state of its own is kept.
"""

import dataclasses
import fcntl
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from scripts.catalog.catalog_items import Item
from scripts.files import write_atomically
from swift_plugin.encoders import Encoder, Vectors
from swift_plugin.settings import VECTOR_NAME, Settings
from swift_plugin.stores import (
    EdgeStore,
    QdrantStore,
    StoreError,
    StoreInfo,
    VectorStorage,
    check_distance,
    check_replaceable,
    check_store,
    make_store,
    replace_folder,
)


def chosen_store(settings: Settings, folder: Path | None) -> EdgeStore | QdrantStore:
    """The embedded store in `folder` if that is given, else what QDRANT_URL or PLANNER_STORE_DIR name.

    Raises ValueError where nobody named one: the demo's store is not where a catalogue goes by default.
    """
    if folder is not None:
        return EdgeStore(folder.absolute())
    if settings.qdrant_url is None and settings.store_dir == Settings.store_dir:
        raise ValueError("where? Set QDRANT_URL (and QDRANT_COLLECTION), or give --store FOLDER for an embedded store")
    return make_store(settings)


class Target(Protocol):
    """`open` comes first; `finish` verifies nothing but makes the points searchable; `close` loses nothing added."""

    def open(self) -> int:
        """Make or find the place; the number of points it holds already."""

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of `ids` that it holds."""

    @property
    def store(self) -> EdgeStore | QdrantStore:
        """What `open` made or found."""

    def add(self, items: Sequence[Item], vectors: Vectors) -> None:
        """Add one point a row of `vectors`; a point that is there already is replaced by itself."""

    def count(self) -> int:
        """Points held now, counted exactly."""

    def finish(self) -> StoreInfo:
        """Put everything in its place, and describe it as preflight would find it."""

    def close(self) -> None:
        """Release it, also after a failure."""


class EdgeTarget:
    """An embedded store, built in FOLDER.partial and moved to FOLDER when it is complete.

    `source` says what fills it (files, columns, encoder, options). An unfinished store goes on only with the same.
    """

    RUN = "planner_catalog.json"
    FLUSH_POINTS = 4096  # a kill loses what came after the last flush: so many points
    FLUSH_SECONDS = 10.0  # or so long, whichever is sooner; a slow encoder makes few points a second

    def __init__(
        self,
        folder: Path,
        encoder: Encoder,
        storage: VectorStorage,
        source: Mapping[str, Any],
        *,
        replace: bool = False,
    ) -> None:
        self.folder = folder
        self.partial = folder.with_name(folder.name + ".partial")
        self._encoder = encoder
        self._storage = storage
        self._source = dict(source)
        self._replace = replace
        self._lock: IO[str] | None = None
        self._store: EdgeStore | None = None
        self._unflushed, self._flushed_at = 0, time.monotonic()

    def open(self) -> int:
        """Raises ValueError for a folder of something else, StoreError for a store begun or filled otherwise."""
        check_replaceable(self.folder)
        check_replaceable(self.partial)
        self._lock_out_others()
        if self.folder.exists() and any(self.folder.iterdir()) and not self._replace:
            differing = self._differing(self.folder / self.RUN)
            if differing:
                raise StoreError(
                    f"{self.folder} holds a store that was filled with other {', '.join(differing)}. --replace puts"
                    " the new one in its place; several files that belong in one store are given in one command"
                )
        run = self.partial / self.RUN
        if run.exists():
            self._store = EdgeStore(self.partial)
            differing = self._differing(run)
            if not differing:
                return self.count()
            if self.count():
                raise StoreError(
                    f"{self.partial} was begun with different {' and '.join(differing)}. Go on as it was begun, or"
                    " delete that folder to begin anew"
                )
            self._store.close()
        shutil.rmtree(self.partial, ignore_errors=True)  # stopped before the first point
        self._store = EdgeStore.create(
            self.partial, self._encoder.dim, encoder=self._encoder.name, storage=self._storage
        )
        write_atomically(run, json.dumps(self._source, ensure_ascii=False, indent=1) + "\n")
        return 0

    def known(self, ids: Sequence[str]) -> set[str]:
        records = self.store.shard().retrieve(list(ids), with_payload=False, with_vector=False)
        return {str(record.id) for record in records}

    def add(self, items: Sequence[Item], vectors: Vectors) -> None:
        self.store.add(vectors, [item.payload for item in items], [item.id for item in items])
        self._unflushed += len(items)
        if self._unflushed >= self.FLUSH_POINTS or time.monotonic() - self._flushed_at >= self.FLUSH_SECONDS:
            self._flush()

    def count(self) -> int:
        import qdrant_edge as edge

        return int(self.store.shard().count(edge.CountRequest(exact=True)))

    def finish(self) -> StoreInfo:
        store = self.store
        store.finish()
        info = check_store(store, self._encoder)
        store.close()
        self._store = None
        replace_folder(self.partial, self.folder)
        return dataclasses.replace(info, name=str(self.folder))

    def close(self) -> None:
        try:
            if self._store is not None:
                self._flush()
                self._store.close()
                self._store = None  # finish() has closed it otherwise
        finally:
            if self._lock is not None:
                Path(self._lock.name).unlink(missing_ok=True)
                self._lock.close()
                self._lock = None

    def _differing(self, run: Path) -> list[str]:
        """In what a store was filled otherwise than this run would; everything, for one that does not say."""
        begun = json.loads(run.read_text(encoding="utf-8")) if run.exists() else {}
        return sorted(key for key in self._source if begun.get(key) != self._source[key])

    def _lock_out_others(self) -> None:
        """The engine takes no lock of its own; two runs in one folder would spoil it."""
        self.partial.parent.mkdir(parents=True, exist_ok=True)
        lock = self.partial.with_name(self.partial.name + ".lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise StoreError(f"another run is filling {self.folder}: wait for it, or stop it") from None
        self._lock = lock

    @property
    def store(self) -> EdgeStore:
        assert self._store is not None, "open() comes first"
        return self._store

    def _flush(self) -> None:
        self.store.flush()
        self._unflushed, self._flushed_at = 0, time.monotonic()


class QdrantTarget:
    """A collection of a Qdrant server, made if it is missing; points are added to one that exists."""

    def __init__(self, store: QdrantStore, encoder: Encoder, storage: VectorStorage) -> None:
        self.store = store
        self._encoder = encoder
        self._storage = storage

    def open(self) -> int:
        """Raises StoreError for a collection whose vectors do not fit the encoder, or are stored otherwise."""
        name = self.store.collection

        def make(client: Any, timeout_s: int) -> None:
            if not client.collection_exists(name):  # asked in each try: the one before may have made it unheard
                client.create_collection(name, vectors_config=self._vectors(), timeout=timeout_s)

        self.store.call(make)
        info = self.store.call(lambda client, _: client.get_collection(name))
        self._check_storage(info)
        return self.count()

    def known(self, ids: Sequence[str]) -> set[str]:
        records = self.store.call(
            lambda client, t: client.retrieve(
                self.store.collection, list(ids), with_payload=False, with_vectors=False, timeout=t
            )
        )
        return {str(record.id) for record in records}

    def add(self, items: Sequence[Item], vectors: Vectors) -> None:
        from qdrant_client import models

        points = models.Batch(
            ids=[item.id for item in items],
            vectors={VECTOR_NAME: vectors.tolist()},
            payloads=[dict(item.payload) for item in items],
        )
        self.store.call(lambda client, t: client.upsert(self.store.collection, points, wait=True, timeout=t))

    def count(self) -> int:
        counted = self.store.call(lambda client, t: client.count(self.store.collection, exact=True, timeout=t))
        return int(counted.count)

    def finish(self) -> StoreInfo:
        return check_store(self.store, self._encoder)

    def close(self) -> None:
        self.store.close()

    def _vectors(self) -> dict[str, Any]:
        from qdrant_client import models

        quantised = models.ScalarQuantization(
            scalar=models.ScalarQuantizationConfig(type=models.ScalarType.INT8, always_ram=True)
        )
        # on_disk and always_ram, not their successor `memory`: older servers do not know that
        params = models.VectorParams(
            size=self._encoder.dim,
            distance=models.Distance.COSINE,
            on_disk=self._storage.on_disk or None,
            quantization_config=quantised if self._storage.int8 else None,
        )
        return {VECTOR_NAME: params}

    def _check_storage(self, info: Any) -> None:
        """An option that was asked for must be what an existing collection has: it is not changed here."""
        vectors = info.config.params.vectors
        params = vectors.get(VECTOR_NAME) if isinstance(vectors, dict) else None
        if params is None:
            raise StoreError(f"the collection {self.store.collection!r} has no vector named {VECTOR_NAME!r}")
        if params.size != self._encoder.dim:
            raise StoreError(
                f"the collection {self.store.collection!r} is for vectors of size {params.size}, the encoder"
                f" {self._encoder.name} makes {self._encoder.dim}. Set the encoder that fits, or name a new collection"
                " with QDRANT_COLLECTION"
            )
        check_distance(f"the collection {self.store.collection!r}", params.distance.value)
        lacking = []
        if self._storage.on_disk and not (params.on_disk or getattr(params, "memory", None) == "cold"):
            lacking.append("--on-disk")
        if self._storage.int8 and (params.quantization_config or info.config.quantization_config) is None:
            lacking.append("--int8")
        if lacking:
            raise StoreError(
                f"the collection {self.store.collection!r} exists and was made without {' and '.join(lacking)}. Leave"
                " that out, or name a new collection with QDRANT_COLLECTION"
            )
