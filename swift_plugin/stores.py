"""Vector stores that answer with titles: Qdrant over HTTP, or the Qdrant engine in process on a folder."""

import json
import logging
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx
import numpy as np
import numpy.typing as npt

from swift_plugin.encoders import Encoder
from swift_plugin.per_process import PerProcess
from swift_plugin.retry import (
    TRANSIENT_STATUS,
    RetryBudgetError,
    TransientError,
    is_loopback,
    quoted,
    whole_answer_hooks,
    with_retries,
)
from swift_plugin.settings import VECTOR_NAME, Settings, public_url

logger = logging.getLogger(__name__)
Vectors = npt.NDArray[np.float32]
Payload = dict[str, Any]
DISTANCES = ("Cosine", "Dot")  # the same order for the encoders' unit vectors
BUILD_DEMO_INDEX = "python scripts/data/build_demo_index.py"


class StoreError(RuntimeError):
    """The store gives no usable answer; the message says what is blocked and the ways out."""


@dataclass(frozen=True)
class StoreInfo:
    """What a store holds, for preflight and manifests.

    `vector_size` is None if the store has no vector named `dense`; `encoder` is the name of the encoder that
    filled it, None where the store does not know; `distance` is the vector's as the engine names it.
    """

    kind: str
    name: str
    points: int
    vector_size: int | None
    encoder: str | None = None
    distance: str | None = None


@dataclass(frozen=True)
class VectorStorage:
    """How an engine keeps the vectors: the defaults keep them in memory as they are.

    `on_disk` reads them from disk as a search needs them. `int8` keeps a copy of a quarter of the size in memory and
    searches that (scalar quantisation); the engines make it when they index, so a small store has none.
    """

    on_disk: bool = False
    int8: bool = False


class Store(Protocol):
    """One list for each row of `vectors`, best first, at most `limit` long: titles, or payloads.

    `search_payloads` gives of each point's payload the title and those of `fields` that it has.
    """

    def describe(self) -> StoreInfo: ...

    def search_batch(self, vectors: Vectors, limit: int) -> list[list[str]]: ...

    def search_payloads(self, vectors: Vectors, limit: int, fields: Sequence[str]) -> list[list[Payload]]: ...

    def close(self) -> None: ...


def make_store(settings: Settings) -> "EdgeStore | QdrantStore":
    """The store the settings ask for; nothing is opened yet."""
    if settings.qdrant_url:
        return QdrantStore(
            settings.qdrant_url,
            settings.collection,
            settings.qdrant_api_key,
            retry_budget_s=settings.retry_budget_s,
            request_timeout_s=settings.request_timeout_s,
        )
    return EdgeStore(settings.store_dir)


def check_store(store: Store, encoder: Encoder) -> StoreInfo:
    """Preflight: the store exists, holds points, has the vector, and its size fits the encoder.

    Raises StoreError (or EncoderError) naming the store and the remedy; returns what the store describes.
    """
    info = store.describe()
    where, build = f"{info.kind} {info.name}", _how_to_build(info.kind)
    if info.points == 0:
        raise StoreError(f"{where} is empty: every search would score 0. {build}")
    if info.vector_size is None:
        raise StoreError(f"{where} has no vector named {VECTOR_NAME!r}. Rebuild it with that named vector. {build}")
    if info.vector_size != encoder.dim:
        raise StoreError(
            f"{where} holds vectors of size {info.vector_size}, the encoder {encoder.name} makes {encoder.dim}:"
            " they do not belong together. Set PLANNER_EMBED_URL or PLANNER_EMBED_MODEL to the encoder that"
            f" filled the store, or rebuild it. {build}"
        )
    check_distance(where, info.distance)
    if info.encoder is not None and _model_name(info.encoder) != _model_name(encoder.name):
        raise StoreError(
            f"{where} was filled by the encoder {info.encoder}, now {encoder.name} is set: their vectors cannot"
            f" be compared. Set that encoder again, or rebuild. {build}"
        )
    return info


def check_distance(where: str, distance: str | None) -> None:
    """Raise StoreError unless the engine compares vectors in the order the encoders mean; None: there is no vector."""
    if distance not in (None, *DISTANCES):
        raise StoreError(
            f"{where} compares vectors by {distance}: nearest by that is not nearest in meaning. The encoders make unit"
            f" vectors for {' or '.join(DISTANCES)}; fill a new one with the first."
        )


def _model_name(encoder: str) -> str:
    """BAAI/bge-m3 and a folder's bge-m3 are one model."""
    return encoder.rstrip("/").rsplit("/", 1)[-1].casefold()


def _how_to_build(kind: str) -> str:
    if kind == "qdrant":
        return f"Load the catalogue (vector {VECTOR_NAME!r}, payload title), or correct QDRANT_COLLECTION."
    return f"Build it: {BUILD_DEMO_INDEX}"


def _as_rows(vectors: Vectors) -> list[list[float]]:
    rows: list[list[float]] = np.asarray(vectors, dtype=np.float32).tolist()
    return rows


def _titles(answers: Sequence[Sequence[Payload]]) -> list[list[str]]:
    return [[payload["title"] for payload in payloads] for payloads in answers]


def _payloads(points: Sequence[Any], where: str) -> list[Payload]:
    """Payloads of one answer. A search without a filter always finds its nearest points, however far they are."""
    if not points:
        raise StoreError(
            f"{where} answered a search with nothing: it was emptied or is being rebuilt, and scoring 0 for that would"
            " look like a bad plan. Wait until it is filled, then resume from the last checkpoint."
        )
    return [{**(point.payload or {}), "title": _title(point.payload, point.id, where)} for point in points]


def _title(payload: Mapping[str, Any] | None, point_id: object, where: str) -> str:
    title = (payload or {}).get("title")
    if not isinstance(title, str):
        raise StoreError(
            f"{where}: point {point_id} has no title in its payload (found {title!r:.80}); load the catalogue"
            " with the payload field title"
        )
    return title


class EdgeStore:
    """A qdrant-edge folder. Several processes may read it at once; `create`, `add`, `finish` build it.

    Up to EXACT_UP_TO points nothing is indexed and every search is exact: the same catalogue gives the same
    titles in every build, ties in the order the points were added. Above that the HNSW index answers.
    """

    EXACT_UP_TO = 50_000
    MANIFEST = "planner_store.json"
    _BATCH = 256  # queries planned together

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._shard = PerProcess(self._load)
        self._added = 0

    @classmethod
    def create(
        cls, path: str | Path, dim: int, *, encoder: str, storage: VectorStorage = VectorStorage()
    ) -> "EdgeStore":
        """An empty store for vectors of size `dim` at `path`, which must not exist yet or be empty."""
        import qdrant_edge as edge

        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise StoreError(f"{folder} is not empty: build into a new folder")
        params = edge.EdgeVectorParams(
            size=dim, distance=edge.Distance.Cosine, memory=edge.Memory.Cold if storage.on_disk else None
        )
        quantised = edge.ScalarQuantizationConfig(type=edge.ScalarType.Int8, memory=edge.Memory.Pinned)
        config = edge.EdgeConfig(
            vectors={VECTOR_NAME: params},
            quantization_config=quantised if storage.int8 else None,
            wal_enabled=False,  # the log's lock would keep a second process from reading
            optimizers=edge.EdgeOptimizersConfig(default_segment_number=1),
        )
        shard = edge.EdgeShard.create(str(folder), config)
        (folder / cls.MANIFEST).write_text(json.dumps({"encoder": encoder}) + "\n", encoding="utf-8")
        store = cls(folder)
        store._shard = PerProcess(lambda: shard)
        return store

    def add(
        self, vectors: Vectors, payloads: Sequence[Mapping[str, Any]], ids: Sequence[int | str] | None = None
    ) -> None:
        """Append one point a row; each payload needs a `title`.

        `ids` (whole numbers or UUIDs) replace the points that have them already; without, they count from 0.
        """
        import qdrant_edge as edge

        shard = self._shard.get()
        named = range(self._added, self._added + len(payloads)) if ids is None else ids
        for point_id, vector, payload in zip(named, _as_rows(vectors), payloads, strict=True):
            _title(payload, point_id, str(self.path))
            point = edge.Point(point_id, {VECTOR_NAME: vector}, dict(payload))
            # One by one: within one update the engine stores points in hash order, and ties would then differ
            # from build to build.
            with self._filling():
                shard.update(edge.UpdateOperation.upsert_points([point]))
            self._added += 1

    def flush(self) -> None:
        """Write what was added to disk."""
        with self._filling():
            self._shard.get().flush()

    def finish(self) -> None:
        """Index if the store is large, write everything out and close."""
        shard = self._shard.get()
        with self._filling():
            if shard.info().points_count > self.EXACT_UP_TO:
                shard.optimize()
        self.flush()
        self.close()
        self._shard = PerProcess(self._load)

    def shard(self) -> Any:
        """The engine's shard, opened by this process at the first call; raises StoreError if it cannot be."""
        return self._shard.get()

    def describe(self) -> StoreInfo:
        """Size and origin of the store; raises StoreError if the folder is missing or cannot be read."""
        points = int(self._shard.get().info().points_count)
        vector = self._read_json("edge_config.json").get("vectors", {}).get(VECTOR_NAME)
        size, distance = (None, None) if vector is None else (int(vector["size"]), str(vector["distance"]))
        made_here = (self.path / self.MANIFEST).exists()  # a store from elsewhere does not name its encoder
        encoder = self._read_json(self.MANIFEST).get("encoder") if made_here else None
        return StoreInfo("edge", str(self.path), points, size, encoder, distance)

    def search_batch(self, vectors: Vectors, limit: int) -> list[list[str]]:
        """Titles for each row of `vectors` (n, dim), best first."""
        return _titles(self.search_payloads(vectors, limit, ()))

    def search_payloads(self, vectors: Vectors, limit: int, fields: Sequence[str]) -> list[list[Payload]]:
        """Title and `fields` of the points found for each row of `vectors` (n, dim), best first."""
        import qdrant_edge as edge

        shard = self._shard.get()
        params = edge.SearchParams(exact=shard.info().points_count <= self.EXACT_UP_TO)
        requests = [
            edge.QueryRequest(
                limit=limit,
                query=edge.Query.Nearest(vector, using=VECTOR_NAME),
                with_payload=edge.PayloadSelector.Include(["title", *fields]),
                params=params,
            )
            for vector in _as_rows(vectors)
        ]
        results: list[list[Payload]] = []
        for start in range(0, len(requests), self._BATCH):
            try:
                answers = shard.query_batch(edge.QueryBatchRequest(requests[start : start + self._BATCH]))
            except Exception as error:  # qdrant-edge raises plain Exception for everything
                raise StoreError(f"the embedded store {self.path} cannot answer: {error}") from error
            results += [_payloads(points, str(self.path)) for points in answers]
        return results

    def close(self) -> None:
        """Release the folder's files; the next call opens it again."""
        shard = self._shard.take()
        if shard is not None:
            shard.close()

    @contextmanager
    def _filling(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # qdrant-edge raises plain Exception for everything
            raise StoreError(
                f"the embedded store {self.path} cannot be filled: {error}. Is the disk full, or does something else"
                " write to the folder?"
            ) from error

    def _load(self) -> Any:
        import qdrant_edge as edge

        if not (self.path / "edge_config.json").is_file():
            raise StoreError(
                f"no embedded store at {self.path}. Ways out: build it with {BUILD_DEMO_INDEX}, set"
                " PLANNER_STORE_DIR to its folder, or set QDRANT_URL"
            )
        try:
            return edge.EdgeShard.load(str(self.path))
        except Exception as error:  # qdrant-edge raises plain Exception for everything
            raise StoreError(
                f"the embedded store {self.path} cannot be opened: {error}. Rebuild it: {BUILD_DEMO_INDEX}"
            ) from error

    def _read_json(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads((self.path / name).read_text(encoding="utf-8"))
        except ValueError as error:
            raise StoreError(f"{self.path / name} is damaged. Rebuild it: {BUILD_DEMO_INDEX}") from error
        if not isinstance(value, dict):
            raise StoreError(f"{self.path / name} is damaged. Rebuild it: {BUILD_DEMO_INDEX}")
        return value


class QdrantStore:
    """A collection of a Qdrant server, over REST by qdrant-client. One client a process, made lazily."""

    PORT = 6333  # what qdrant-client takes for a URL without a port, https included
    _BATCH = 256  # queries a request: about 5 MB of JSON at 1,024 dimensions, under Qdrant's limit of 32 MB

    def __init__(
        self,
        url: str,
        collection: str,
        api_key: str | None = None,
        *,
        retry_budget_s: float,
        request_timeout_s: float,
    ) -> None:
        self.url = url
        self.collection = collection
        self._api_key = api_key
        self._budget_s = retry_budget_s
        self._timeout_s = request_timeout_s
        self._client = PerProcess(self._make_client)

    def describe(self) -> StoreInfo:
        """Points (exact) and vector size of the collection; raises StoreError if it is missing."""
        info = self.call(lambda client, _: client.get_collection(self.collection))
        count = self.call(lambda client, t: client.count(self.collection, exact=True, timeout=t))
        vectors = info.config.params.vectors
        vector = vectors.get(VECTOR_NAME) if isinstance(vectors, dict) else None
        size, distance = (None, None) if vector is None else (vector.size, vector.distance.value)
        return StoreInfo("qdrant", self._where(), count.count, size, distance=distance)

    def search_batch(self, vectors: Vectors, limit: int) -> list[list[str]]:
        """Titles for each row of `vectors` (n, dim), best first; raises StoreError after the retry budget."""
        return _titles(self.search_payloads(vectors, limit, ()))

    def search_payloads(self, vectors: Vectors, limit: int, fields: Sequence[str]) -> list[list[Payload]]:
        """Title and `fields` of the points found for each row of `vectors` (n, dim), best first; raises as above."""
        from qdrant_client import models

        requests = [
            models.QueryRequest(
                query=models.NearestQuery(nearest=vector),
                using=VECTOR_NAME,
                limit=limit,
                with_payload=["title", *fields],
            )
            for vector in _as_rows(vectors)
        ]
        results: list[list[Payload]] = []
        for start in range(0, len(requests), self._BATCH):
            batch = requests[start : start + self._BATCH]
            answers = self.call(lambda client, t, batch=batch: _query_batch(client, self.collection, batch, t))
            if len(answers) != len(batch):
                raise StoreError(
                    f"Qdrant {self._where()} answered {len(answers)} results for {len(batch)} queries: titles and"
                    " plans no longer belong together. Does something in between change the traffic?"
                )
            results += [_payloads(answer.points, self._where()) for answer in answers]
        return results

    def close(self) -> None:
        """Close this process's client; the next call makes a new one."""
        client = self._client.take()
        if client is not None:
            client.close()

    def call(self, request: Any) -> Any:
        """`request(client, timeout in whole seconds)` under the retry policy; failures become StoreErrors."""
        try:
            return with_retries(
                lambda timeout_s: self._attempt(lambda: request(self._client.get(), int(timeout_s))),
                budget_s=self._budget_s,
                timeout_s=self._timeout_s,
                what=f"Qdrant at {self._where()}",
            )
        except RetryBudgetError as error:
            raise StoreError(
                f"Qdrant {self._where()} does not answer: {error}. The run stops, because a completion without"
                " its search cannot be scored. Ways out: start Qdrant or correct QDRANT_URL; raise"
                " PLANNER_RETRY_SECONDS or PLANNER_REQUEST_SECONDS; resume from the last checkpoint."
            ) from error

    def call_once(self, request: Any, timeout_s: float) -> Any:
        """`request(client)` once, waiting up to `timeout_s`: for what must not be begun twice, such as a snapshot."""
        client = self._make_client(timeout_s)
        try:
            return self._attempt(lambda: request(client))
        except TransientError as error:
            raise StoreError(f"Qdrant {self._where()} did not finish the request: {error}") from error
        finally:
            client.close()

    def http_client(self, timeout_s: float) -> httpx.Client:
        """A plain client with this server's address and key, for files that qdrant-client would hold in memory.

        It asks for the files as they are: compressed on the way, they would not be what their checksum is of.
        """
        key = {"api-key": self._api_key} if self._api_key else {}
        return httpx.Client(
            base_url=self._full_url(),
            headers={"Accept-Encoding": "identity", **key},
            timeout=timeout_s,
            trust_env=not is_loopback(self.url),
        )

    def _attempt(self, request: Any) -> Any:
        """One try: what time may cure becomes a TransientError, everything else a StoreError."""
        from qdrant_client.common.client_exceptions import QdrantException, ResourceExhaustedResponse
        from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

        try:
            return request()
        except ResourceExhaustedResponse as error:  # 429 with Retry-After
            raise TransientError(f"HTTP 429: {error}", error.retry_after_s) from error
        except QdrantException as error:  # 429 with a Retry-After that is a date
            raise TransientError(f"HTTP 429: {error}") from error
        except UnexpectedResponse as error:
            if error.status_code in TRANSIENT_STATUS:
                raise TransientError(f"HTTP {error.status_code}: {self._said(error)}") from error
            raise StoreError(self._refusal(error)) from error
        except ResponseHandlingException as error:
            if isinstance(error.source, httpx.TransportError):
                raise TransientError(f"{type(error.source).__name__}: {error.source}") from error
            raise StoreError(self._stranger(error.source)) from error
        except (ValueError, AssertionError) as error:  # no JSON; JSON without a result
            raise StoreError(self._stranger(error)) from error

    def _stranger(self, error: Exception) -> str:
        return f"{self._where()} does not answer like Qdrant: {str(error)[:200]}. Check QDRANT_URL."

    def _refusal(self, error: Any) -> str:
        ways = {
            401: "Set QDRANT_API_KEY.",
            403: "Check QDRANT_API_KEY: it is wrong or may not read this collection.",
            404: f"The collection is missing. {_how_to_build('qdrant')}",
        }
        way = ways.get(error.status_code, f"Has it a vector named {VECTOR_NAME!r} of the encoder's size?")
        said = f"HTTP {error.status_code} {self._said(error)}"
        return f"Qdrant {self._where()} refused the request: {said}. {way}"

    def _said(self, error: Any) -> str:
        return quoted(error.content.decode("utf-8", "replace"), self._api_key)

    def _where(self) -> str:
        return f"{public_url(self._full_url())}, collection {self.collection!r}"

    def _full_url(self) -> str:
        parts = urlsplit(self.url)
        return self.url if parts.port else parts._replace(netloc=f"{parts.netloc}:{self.PORT}").geturl()

    def _make_client(self, timeout_s: float | None = None) -> Any:
        from qdrant_client import QdrantClient

        with warnings.catch_warnings():
            # A key over plain http is the user's decision within one machine or private network.
            warnings.filterwarnings("ignore", message="Api key is used with an insecure connection")
            return QdrantClient(
                url=self.url,
                api_key=self._api_key,
                timeout=max(1, int(timeout_s or min(self._timeout_s, self._budget_s))),
                # The check, in a thread of its own, ignores trust_env and would send the key to a proxy.
                check_compatibility=False,
                trust_env=not is_loopback(self.url),
                event_hooks=whole_answer_hooks(),
            )


def check_replaceable(folder: Path) -> None:
    """Raise ValueError if `folder` holds something that is no vector store: it must not be replaced by one."""
    if folder.exists() and any(folder.iterdir()) and not (folder / "edge_config.json").exists():
        raise ValueError(f"{folder} is not empty and holds no vector store: choose another --store")


def _query_batch(client: Any, collection: str, requests: Sequence[Any], timeout_s: int) -> Sequence[Any]:
    """What `client.query_batch_points` sends and answers, without the copy of every number that it makes first.

    That copy, for models that would embed texts themselves, takes longer than all else the client does.
    """
    from qdrant_client import models

    answer = client.http.search_api.query_batch_points(
        collection_name=collection,
        query_request_batch=models.QueryRequestBatch(searches=list(requests)),
        timeout=timeout_s,
    )
    assert answer.result is not None, "a batch of queries without a result"
    results: Sequence[Any] = answer.result
    return results


def replace_folder(new: Path, final: Path) -> None:
    """Put the finished folder `new` in the place of `final`; readers of the old one keep its files."""
    old = final.with_name(final.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    new.rename(final)
    shutil.rmtree(old, ignore_errors=True)
