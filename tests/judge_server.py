"""A test server for `/v1/chat/completions` in OpenAI's form that answers as a script says; faults as in faulty_http."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from faulty_http import FaultyServer, Request

# (what is asked: shopper, wanted, criterion, items; how often this very question came before) -> text, or a status
Script = Callable[[dict[str, Any], int], str | int]


class JudgeServer(FaultyServer):
    """`questions` holds what was asked, in order of arrival."""

    def __init__(self, script: Script, *, api_key: str | None = None) -> None:
        super().__init__()
        self.script = script
        self.api_key = api_key
        self.questions: list[dict[str, Any]] = []
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __enter__(self) -> "JudgeServer":
        super().__enter__()
        return self

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def answer(self, request: Request) -> tuple[int, Any]:
        if self.api_key is not None and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return 401, {"error": {"message": f"bad key: {request.headers.get('authorization')}"}}
        if (request.method, request.path) != ("POST", "/v1/chat/completions"):
            return 404, {"error": {"message": "no such path"}}
        content = request.body["messages"][-1]["content"]
        with self._lock:
            before = self._asked[content]
            self._asked[content] += 1
            self.questions.append(json.loads(content))
        said = self.script(json.loads(content), before)
        if isinstance(said, int):
            return said, {"error": {"message": "scripted"}}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        return 200, {"id": "c", "object": "chat.completion", "created": 0, "model": "judge", "choices": [choice]} | {
            "usage": usage
        }
