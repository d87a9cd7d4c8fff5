"""A test server for `/v1/chat/completions` in OpenAI's form; its answers come from a script, by the last message."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

from faulty_http import FaultyServer, Request


@dataclass(frozen=True)
class Reply:
    """One answer: `content` as the assistant's text, or, with `status`, an error; `stall_s` waits first."""

    content: str | None = None
    finish_reason: str = "length"
    status: int = 200
    stall_s: float = 0.0


class ChatServer(FaultyServer):
    """`script(model, user text, n)` gives the reply of the n-th request (from 0) with this text to this model.

    The key must be `api_key` where that is given; the refusal of a wrong one quotes it, as some servers do.
    `asked` counts requests by (model, user text). Faults of the base class (`fail`) come before the script.
    """

    def __init__(self, script: Callable[[str, str, int], Reply | str], *, api_key: str | None = None) -> None:
        super().__init__()
        self.script = script
        self.api_key = api_key
        self.asked: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def __enter__(self) -> "ChatServer":
        super().__enter__()
        return self

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def answer(self, request: Request) -> tuple[int, Any]:
        given = request.headers.get("authorization", "")
        if self.api_key is not None and given != f"Bearer {self.api_key}":
            return 401, {"error": {"message": f"incorrect key: {given}"}}
        if (request.method, request.path) != ("POST", "/v1/chat/completions"):
            return 404, {"error": {"message": "no such path"}}
        model, text = request.body["model"], request.body["messages"][-1]["content"]
        with self._lock:
            count = self.asked[model, text]
            self.asked[model, text] += 1
        reply = self.script(model, text, count)
        if isinstance(reply, str):
            reply = Reply(reply, finish_reason="stop")
        if reply.stall_s:
            self._stopping.wait(reply.stall_s)
        if reply.status != 200:
            return reply.status, {"error": {"message": "scripted failure"}}
        return 200, completion(model, reply)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        class JsonHandler(super()._handler()):  # type: ignore[misc]
            def end_headers(self) -> None:
                self.send_header("Content-Type", "application/json")  # without it the client reads plain text
                super().end_headers()

        return JsonHandler


def completion(model: str, reply: Reply) -> Mapping[str, Any]:
    """An answer of the interface, with 100 tokens of prompt and one token a character."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": reply.content},
                "finish_reason": reply.finish_reason,
            }
        ],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": len(reply.content or ""),
            "total_tokens": 100 + len(reply.content or ""),
        },
    }
