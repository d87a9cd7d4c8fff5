"""A test server for `/v1/embeddings` in OpenAI's form, answering with the hashed encoder's vectors."""

import random
from collections.abc import Callable
from typing import Any

from faulty_http import FaultyServer, Request
from small_world import encoder


class EmbeddingsServer(FaultyServer):
    """Items come back shuffled; `change` may spoil the answer before it is sent."""

    def __init__(self, *, api_key: str | None = None, change: Callable[[dict[str, Any]], Any] | None = None) -> None:
        super().__init__()
        self.api_key = api_key
        self.change = change
        self._encoder = encoder()
        self._shuffle = random.Random(7)

    def __enter__(self) -> "EmbeddingsServer":
        super().__enter__()
        return self

    def answer(self, request: Request) -> tuple[int, Any]:
        if self.api_key is not None and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return 401, {"error": {"message": f"bad key: {request.headers.get('authorization')}"}}
        if (request.method, request.path) != ("POST", "/v1/embeddings"):
            return 404, {"error": {"message": "no such path"}}
        rows = self._encoder.encode(request.body["input"]) * 3.0  # not normalised: that is the client's work
        items = [{"object": "embedding", "index": i, "embedding": row.tolist()} for i, row in enumerate(rows)]
        self._shuffle.shuffle(items)
        answer = {"object": "list", "model": request.body["model"], "data": items}
        return 200, (self.change(answer) or answer) if self.change else answer
