"""Asking an OpenAI-compatible endpoint many questions: concurrent, retried, cached on disk, with its cost counted.

Every whole answer is written to the cache as soon as it comes, keyed by the whole request, so a run that is killed goes
on where it stood. One that was cut or is empty is counted, never kept, and asked again by the next run. The key comes
from the environment (PLANNER_API_KEY by default) and never reaches the cache, a log or an error.
"""

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from scripts.chat import Refused, open_client, read_reply, try_once
from swift_plugin.retry import RetryBudgetError, TransientError, with_retries
from swift_plugin.settings import public_url

logger = logging.getLogger(__name__)

CACHE_FILE = "answers.jsonl"
MAX_TOKENS = 512  # of an answer; a model that thinks first is cut here
IF_CUT = f"an answer has {MAX_TOKENS} tokens at most: where the model thinks first, switch its thinking off"
COMPLETE = "stop"  # the only finish_reason of an answer that was not cut


class EndpointError(RuntimeError):
    """The endpoint refuses us or stays down; the message says what was tried and the ways out."""


class Answer(NamedTuple):
    """One answer. `content` may be empty; `finish_reason` other than "stop" means that it was cut or withheld."""

    content: str
    finish_reason: str
    prompt_tokens: int | None  # None: the server does not count
    completion_tokens: int | None

    @property
    def complete(self) -> bool:
        """Whether it is an answer at all: not empty, not cut."""
        return self.finish_reason == COMPLETE and bool(self.content.strip())


@dataclass
class Usage:
    """What the run cost. Tokens of cached answers are not counted again.

    Token sums are None once an answer came without a count: a sum over some would look like a low price.
    """

    asked: int = 0
    cached: int = 0
    empty: int = 0
    cut: int = 0
    retries: int = 0
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    seconds: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, answer: Answer, cached: bool) -> None:
        """Add one answer."""
        with self._lock:
            self.cached += cached
            self.asked += not cached
            self.empty += not answer.content.strip()
            self.cut += bool(answer.content.strip()) and answer.finish_reason != COMPLETE
            if not cached:
                self.prompt_tokens = _sum(self.prompt_tokens, answer.prompt_tokens)
                self.completion_tokens = _sum(self.completion_tokens, answer.completion_tokens)

    def retried(self) -> None:
        """Add one try that failed and is made again."""
        with self._lock:
            self.retries += 1

    def report(self, prompt_price: float | None, completion_price: float | None) -> dict[str, Any]:
        """JSON-ready counts, and the cost where prices (per million tokens) are known."""
        cost = None
        if None not in (prompt_price, completion_price, self.prompt_tokens, self.completion_tokens):
            cost = (self.prompt_tokens * prompt_price + self.completion_tokens * completion_price) / 1e6
        names = ("asked", "cached", "empty", "cut", "retries", "prompt_tokens", "completion_tokens")
        return {**{name: getattr(self, name) for name in names}, "seconds": round(self.seconds, 1), "cost": cost}


def _sum(known: int | None, more: int | None) -> int | None:
    return None if known is None or more is None else known + more


def request_key(url: str, request: Mapping[str, Any]) -> str:
    """The cache key: sha256 over the endpoint without its credentials and the whole request."""
    text = json.dumps([public_url(url), request], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Cache:
    """Complete answers by key in one append-only JSONL file.

    A last line cut short by a kill is dropped when it is read. Raises OSError, and ValueError naming any other line
    that holds no answer.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / CACHE_FILE
        self._lock = threading.Lock()
        self._answers: dict[str, Answer] = {}
        if self.path.exists():
            self._read()

    def _read(self) -> None:
        lines = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines[:-1], 1):
            try:
                row = json.loads(line)
                key, answer = row["key"], Answer(**row["answer"])
                if not isinstance(key, str) or not isinstance(answer.content, str):
                    raise TypeError("key and content must be texts")
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                remedy = "delete this line, and its question is asked again"
                raise ValueError(f"{self.path}:{number}: no kept answer ({error!r}): {remedy}") from None
            if answer.complete:
                self._answers[key] = answer
        if lines[-1]:  # no line end: the writer was killed in the middle
            logger.warning("%s: the last line is incomplete and is dropped", self.path)
            with self.path.open("rb+") as file:
                file.truncate(self.path.stat().st_size - len(lines[-1]))

    def get(self, key: str) -> Answer | None:
        """The answer kept for `key`, or None."""
        return self._answers.get(key)

    def put(self, key: str, answer: Answer) -> None:
        """Keep a complete answer, on disk before this returns."""
        # ASCII: a model may answer with half a character, which no UTF-8 file can hold.
        line = json.dumps({"key": key, "answer": answer._asdict()}) + "\n"
        with self._lock:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            self._answers[key] = answer


class VoteClient:
    """Asks `model` at `url` (…/v1). `workers` requests at once; `timeout_s` a try; `budget_s` all tries of one."""

    def __init__(
        self,
        url: str,
        model: str,
        cache: Cache,
        *,
        api_key: str | None = None,
        workers: int = 8,
        timeout_s: float = 60.0,
        budget_s: float = 300.0,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        self.url, self.model, self.cache = url.rstrip("/"), model, cache
        self.usage = Usage()
        self._key, self._workers = api_key, workers
        self._timeout_s, self._budget_s, self._max_tokens = timeout_s, budget_s, max_tokens
        self._client: Any = None
        self._stopped = threading.Event()  # one refusal holds for all: nothing more is asked after it

    def request(self, messages: Sequence[Mapping[str, str]], temperature: float) -> dict[str, Any]:
        """The body of one request."""
        return {
            "model": self.model,
            "messages": [dict(message) for message in messages],
            "temperature": temperature,
            "max_tokens": self._max_tokens,
        }

    def ask_all(self, requests: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Answer]]:
        """(position, answer) for every request, in the order in which they come in; equal requests are asked once.

        Raises EndpointError when one stays unanswered after its retries; what has come in by then is kept.
        """
        started = time.monotonic()
        places: dict[str, list[int]] = {}
        for position, request in enumerate(requests):
            places.setdefault(request_key(self.url, request), []).append(position)
        with ThreadPoolExecutor(self._workers) as pool:
            futures = {}
            for key, positions in places.items():
                kept = self.cache.get(key)
                if kept is None:
                    futures[pool.submit(self._ask, key, requests[positions[0]])] = positions
                    continue
                self.usage.count(kept, cached=True)
                for position in positions:
                    yield position, kept
            try:
                for future in as_completed(futures):
                    answer = future.result()
                    self.usage.count(answer, cached=False)
                    for position in futures[future]:
                        yield position, answer
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
                self.usage.seconds += time.monotonic() - started

    def _ask(self, key: str, request: Mapping[str, Any]) -> Answer:
        if self._stopped.is_set():
            raise EndpointError(f"{public_url(self.url)}: not asked, another request was refused")
        attempt = self._attempt(request)
        try:
            answer = with_retries(attempt, budget_s=self._budget_s, timeout_s=self._timeout_s, what="vote")
        except EndpointError:
            self._stopped.set()
            raise
        except RetryBudgetError as error:
            self._stopped.set()
            raise EndpointError(
                f"{public_url(self.url)} gives no answer: {error}. Run the same command again when it does:"
                f" answers so far stand in {self.cache.path}"
            ) from error
        if answer.complete:
            self.cache.put(key, answer)
        return answer

    def _attempt(self, request: Mapping[str, Any]) -> Callable[[float], Answer]:
        client = self._open()

        def attempt(timeout_s: float) -> Answer:
            try:
                reply = read_reply(try_once(client, request, timeout_s))
            except Refused as error:
                # The body is not repeated: some servers quote the key in it.
                raise EndpointError(
                    f"{public_url(self.url)} refuses the request for model {self.model!r} (status {error.status});"
                    " check the URL, the model's name and the key"
                ) from None
            except TransientError:
                self.usage.retried()
                raise
            return Answer(reply.content, str(reply.finish_reason), reply.prompt_tokens, reply.completion_tokens)

        return attempt

    def _open(self) -> Any:
        if self._client is None:
            self._client = open_client(self.url, self._key)
        return self._client
