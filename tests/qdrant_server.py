"""A test server that speaks the Qdrant REST calls the kit makes, answering from a real qdrant-edge shard.

In a test it is a context manager; `python tests/qdrant_server.py --store FOLDER` runs it as a process that a test
of a whole training run can kill. It prints its URL when it listens.
"""

import argparse
import os
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import qdrant_edge as edge
from faulty_http import FaultyServer, Request

VERSION = "1.15.0"


class QdrantServer(FaultyServer):
    """One collection. Without a shard there is none; `vectors` is what the collection says of its vectors."""

    def __init__(
        self,
        shard: Any | None,
        *,
        vectors: dict[str, Any] | None = None,
        collection: str = "products",
        api_key: str | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(port)
        self.shard = shard
        self.vectors = vectors
        self.collection = collection
        self.api_key = api_key
        self.drop_results = 0  # so many results are left out at the end of every batch

    def __enter__(self) -> "QdrantServer":
        super().__enter__()
        return self

    def answer(self, request: Request) -> tuple[int, Any]:
        if self.api_key is not None and request.headers.get("api-key") != self.api_key:
            said = "Invalid API key or JWT" if "api-key" in request.headers else "Must provide an API key"
            return 401, said
        if request.path == "/":
            return 200, {"title": "qdrant - vector search engine", "version": VERSION, "commit": "test"}
        parts = request.path.strip("/").split("/")
        if parts[0] != "collections" or len(parts) < 2:
            return _error(404, "no such path")
        name = unquote(parts[1])
        if self.shard is None or name != self.collection:
            return _error(404, f"Not found: Collection `{name}` doesn't exist!")
        call = (request.method, *parts[2:])
        if call == ("GET",):
            return _ok(self._info())
        if call == ("GET", "exists"):
            return _ok({"exists": True})
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
            {"points": [{"id": p.id, "version": p.version, "score": p.score, "payload": p.payload} for p in points]}
            for points in answers
        ]
        return _ok(results[: len(results) - self.drop_results])

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


def _ok(result: Any) -> tuple[int, Any]:
    return 200, {"result": result, "status": "ok", "time": 0.0}


def _error(status: int, message: str) -> tuple[int, Any]:
    return status, {"status": {"error": message}, "time": 0.0}


def serve_folder(folder: Path, **options: Any) -> QdrantServer:
    """A server that answers from an embedded store's folder."""
    from swift_plugin.stores import EdgeStore

    size = EdgeStore(folder).describe().vector_size
    shard = edge.EdgeShard.load(str(folder))
    return QdrantServer(shard, vectors={"dense": {"size": size, "distance": "Cosine"}}, **options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True, help="folder of an embedded store")
    parser.add_argument("--port", type=int, default=0, help="0 (default) takes a free one")
    parser.add_argument("--collection", default="products", help="(default: %(default)s)")
    args = parser.parse_args()
    api_key = os.environ.get("QDRANT_API_KEY") or None
    with serve_folder(args.store, collection=args.collection, api_key=api_key, port=args.port) as server:
        print(server.url, flush=True)
        threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
