"""A test server that speaks the Qdrant REST calls the kit makes, answering from a real qdrant-edge shard.

In a test it is a context manager; `python tests/qdrant_server.py --store FOLDER` runs it as a process that a test
of a whole training run can kill. It prints its URL when it listens.
"""

import argparse
import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import qdrant_edge as edge
from faulty_http import FaultyServer, Request

VERSION = "1.15.0"


class QdrantServer(FaultyServer):
    """One collection. Without a shard there is none until a client makes it, or uploads a snapshot of it.

    `vectors` is what the collection says of its vectors; `folder` is the shard's, which snapshots need. A snapshot is
    a tar of that folder: the form is this server's own, the calls are Qdrant's.
    """

    def __init__(
        self,
        shard: Any | None,
        *,
        vectors: dict[str, Any] | None = None,
        collection: str = "products",
        api_key: str | None = None,
        port: int = 0,
        folder: Path | None = None,
    ) -> None:
        super().__init__(port)
        self.shard = shard
        self.folder = folder
        self.snapshots: dict[str, bytes] = {}
        self._made = [tempfile.TemporaryDirectory(prefix="qdrant-server.")]  # collections clients make; one each
        self._one_writer = threading.Lock()
        self.vectors = vectors
        self.collection = collection
        self.api_key = api_key
        self.latency_s = 0.0  # before every answer
        self.drop_results = 0  # so many results are left out at the end of every batch

    def __enter__(self) -> "QdrantServer":
        super().__enter__()
        return self

    def answer(self, request: Request) -> tuple[int, Any]:
        time.sleep(self.latency_s)
        if self.api_key is not None and request.headers.get("api-key") != self.api_key:
            said = "Invalid API key or JWT" if "api-key" in request.headers else "Must provide an API key"
            return 401, said
        if request.path == "/":
            return 200, {"title": "qdrant - vector search engine", "version": VERSION, "commit": "test"}
        parts = request.path.strip("/").split("/")
        if parts[0] != "collections" or len(parts) < 2:
            return _error(404, "no such path")
        name = unquote(parts[1])
        call = (request.method, *parts[2:])
        here = self.shard is not None and name == self.collection
        if call == ("GET", "exists"):
            return _ok({"exists": here})
        if call == ("PUT",):
            return self._create(name, request.body)
        if call == ("POST", "snapshots", "upload"):
            return self._recover(name, request)
        if not here:
            return _error(404, f"Not found: Collection `{name}` doesn't exist!")
        if call == ("GET",):
            return _ok(self._info())
        if call == ("PUT", "points"):
            return self._upsert(request.body["batch"])
        if call == ("POST", "points"):
            return self._retrieve(request.body)
        if call == ("POST", "points", "scroll"):
            return self._scroll(request.body)
        if call == ("POST", "snapshots"):
            return self._snapshot()
        if call[1:2] == ("snapshots",) and len(call) == 3 and unquote(call[2]) in self.snapshots:
            return self._snapshot_file(request.method, unquote(call[2]))
        if call == ("POST", "points", "count"):
            return _ok({"count": self.shard.count(edge.CountRequest(exact=True))})
        if call == ("POST", "points", "query", "batch"):
            return self._query_batch(request.body["searches"])
        return _error(404, f"the test server does not speak {request.method} {request.path}")

    def _query_batch(self, searches: list[dict[str, Any]]) -> tuple[int, Any]:
        queries = [
            edge.QueryRequest(
                limit=search["limit"],
                # qdrant-client wraps a plain vector
                query=edge.Query.Nearest(search["query"]["nearest"], using=search.get("using")),
                with_payload=edge.PayloadSelector.Include(search["with_payload"]),
                params=edge.SearchParams(exact=True),
            )
            for search in searches
        ]
        try:
            answers = self.shard.query_batch(edge.QueryBatchRequest(queries))
        except Exception as error:  # qdrant-edge raises plain Exception; Qdrant answers it as wrong input
            return _error(400, f"Wrong input: {error}")
        results = [
            {
                "points": [
                    {"id": _plain(p.id), "version": p.version, "score": p.score, "payload": p.payload} for p in points
                ]
            }
            for points in answers
        ]
        return _ok(results[: len(results) - self.drop_results])

    def _create(self, name: str, body: dict[str, Any]) -> tuple[int, Any]:
        if self.shard is not None:
            return _error(409, f"Wrong input: Collection `{name}` already exists!")
        ((vector, params),) = body["vectors"].items()
        self.folder = Path(self._made[-1].name)
        made = {vector: edge.EdgeVectorParams(size=params["size"], distance=edge.Distance.Cosine)}
        self.shard = edge.EdgeShard.create(str(self.folder), edge.EdgeConfig(vectors=made, wal_enabled=False))
        self.collection, self.vectors = name, body["vectors"]
        return _ok(True)

    def _upsert(self, batch: dict[str, Any]) -> tuple[int, Any]:
        ((vector, rows),) = batch["vectors"].items()
        points = [
            edge.Point(point_id, {vector: row}, payload)
            for point_id, row, payload in zip(batch["ids"], rows, batch["payloads"], strict=True)
        ]
        with self._one_writer:
            try:
                self.shard.update(edge.UpdateOperation.upsert_points(points))
            except Exception as error:  # qdrant-edge raises plain Exception; Qdrant answers it as wrong input
                return _error(400, f"Wrong input: {error}")
        return _ok({"operation_id": 0, "status": "completed"})

    def _retrieve(self, body: dict[str, Any]) -> tuple[int, Any]:
        found = self.shard.retrieve(
            body["ids"], with_payload=body["with_payload"], with_vector=bool(body.get("with_vector"))
        )
        return _ok([_record(record) for record in found])

    def _scroll(self, body: dict[str, Any]) -> tuple[int, Any]:
        request = edge.ScrollRequest(
            offset=body.get("offset"), limit=body["limit"], with_payload=body["with_payload"], with_vector=False
        )
        records, offset = self.shard.scroll(request)
        return _ok({"points": [_record(r) for r in records], "next_page_offset": offset and _plain(offset)})

    def _snapshot(self) -> tuple[int, Any]:
        self.shard.flush()
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(self.folder, arcname=".")
        name = f"{self.collection}-{len(self.snapshots) + 1}.snapshot"
        self.snapshots[name] = packed.getvalue()
        checksum = hashlib.sha256(self.snapshots[name]).hexdigest()
        return _ok({"name": name, "size": len(self.snapshots[name]), "checksum": checksum})

    def _snapshot_file(self, method: str, name: str) -> tuple[int, Any]:
        if method == "DELETE":
            del self.snapshots[name]
            return _ok(True)
        return 200, self.snapshots[name]

    def _recover(self, name: str, request: Request) -> tuple[int, Any]:
        boundary = request.headers["content-type"].partition("boundary=")[2].encode()
        data = request.body.split(b"\r\n\r\n", 1)[1].rsplit(b"\r\n--" + boundary, 1)[0]
        asked = {key: values[0] for key, values in parse_qs(request.query).items()}
        if asked["checksum"] != hashlib.sha256(data).hexdigest():
            return _error(400, "Bad request: Snapshot checksum mismatch")
        if asked["priority"] != "snapshot" or asked["wait"] != "true":
            return _error(400, "the test server knows priority=snapshot and wait=true only")
        self._made.append(tempfile.TemporaryDirectory(prefix="qdrant-server."))
        self.folder = Path(self._made[-1].name)
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                archive.extract(member, self.folder)
        self.shard = edge.EdgeShard.load(str(self.folder))
        ((vector, params),) = self.shard_vectors().items()
        self.collection, self.vectors = name, {vector: {"size": params["size"], "distance": "Cosine"}}
        return _ok(True)

    def shard_vectors(self) -> dict[str, Any]:
        """What the engine wrote about the vectors of the collection's folder."""
        assert self.folder is not None
        vectors: dict[str, Any] = json.loads((self.folder / "edge_config.json").read_text())["vectors"]
        return vectors

    def _info(self) -> dict[str, Any]:
        return {
            "status": "green",
            "optimizer_status": "ok",
            "points_count": self.shard.info().points_count,
            "segments_count": 1,
            "payload_schema": {},
            "config": {
                "params": {"vectors": self.vectors, "shard_number": 1, "replication_factor": 1},
                "hnsw_config": {"m": 16, "ef_construct": 100, "full_scan_threshold": 10000},
                "optimizer_config": {"default_segment_number": 0, "flush_interval_sec": 5},
            },
        }


def _record(record: Any) -> dict[str, Any]:
    return {"id": _plain(record.id), "payload": record.payload, "vector": record.vector}


def _plain(point_id: Any) -> int | str:
    return point_id if isinstance(point_id, int) else str(point_id)


def _ok(result: Any) -> tuple[int, Any]:
    return 200, {"result": result, "status": "ok", "time": 0.0}


def _error(status: int, message: str) -> tuple[int, Any]:
    return status, {"status": {"error": message}, "time": 0.0}


def serve_folder(folder: Path, **options: Any) -> QdrantServer:
    """A server that answers from an embedded store's folder."""
    from swift_plugin.stores import EdgeStore

    size = EdgeStore(folder).describe().vector_size
    shard = edge.EdgeShard.load(str(folder))
    return QdrantServer(shard, vectors={"dense": {"size": size, "distance": "Cosine"}}, folder=folder, **options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True, help="folder of an embedded store")
    parser.add_argument("--port", type=int, default=0, help="0 (default) takes a free one")
    parser.add_argument("--collection", default="products", help="(default: %(default)s)")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="wait before every answer (default: none)")
    args = parser.parse_args()
    api_key = os.environ.get("QDRANT_API_KEY") or None
    with serve_folder(args.store, collection=args.collection, api_key=api_key, port=args.port) as server:
        server.latency_s = args.latency_ms / 1000
        print(server.url, flush=True)
        threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
