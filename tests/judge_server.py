"""A chat server that judges as a script says, and keeps what it was asked."""

import json
from collections.abc import Callable
from typing import Any

from chat_server import ChatServer, Reply

# (what is asked: shopper, wanted, criterion, items; how often this very question came before) -> text, or a status
Script = Callable[[dict[str, Any], int], str | int]


class JudgeServer(ChatServer):
    """`questions` holds what was asked, in order of arrival."""

    def __init__(self, script: Script, *, api_key: str | None = None) -> None:
        super().__init__(self._judge, api_key=api_key)
        self.judge = script
        self.questions: list[dict[str, Any]] = []

    def __enter__(self) -> "JudgeServer":
        super().__enter__()
        return self

    def _judge(self, _model: str, content: str, before: int) -> Reply | str:
        question = json.loads(content)
        self.questions.append(question)
        said = self.judge(question, before)
        return Reply(status=said) if isinstance(said, int) else said
