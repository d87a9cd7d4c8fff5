"""Dynamic batching for one encoder: texts of waiting requests are encoded together, in the order they came.

While one batch runs, requests gather; the next batch takes what is there, up to its size. So a lone request waits for
nobody, and under load every batch is full. The encoder runs in one thread and needs no lock of its own.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple

import numpy as np

from swift_plugin.encoders import Vectors

logger = logging.getLogger(__name__)

# Texts to rows of vectors and, of each text, the tokens that were encoded.
Encode = Callable[[Sequence[str]], tuple[Vectors, Sequence[int]]]


class Encoded(NamedTuple):
    """What one request gets: (n, dim) float32 unit rows in the order of its texts, and their tokens together."""

    rows: Vectors
    tokens: int


class TooManyTexts(ValueError):
    """One request holds more texts than the queue ever takes."""


class QueueFull(RuntimeError):
    """The texts waiting leave no room for this request now."""


class Stopping(RuntimeError):
    """The server is going down and takes no more texts."""


class EncodingFailed(RuntimeError):
    """The encoder raised; the message is its own."""


@dataclass(eq=False)  # two requests of the same texts are two
class _Request:
    texts: list[str]
    future: "Future[Encoded]" = field(default_factory=Future)
    rows: list[Vectors] = field(default_factory=list)
    tokens: int = 0
    taken: int = 0  # texts that have gone into a batch


class Batcher:
    """Runs `encode` over batches of at most `batch` texts; at most `capacity` texts wait. Use as a context manager.

    `failure` is the message of the last batch if that failed, else None.
    """

    def __init__(self, encode: Encode, *, batch: int, capacity: int) -> None:
        self.capacity = capacity
        self.failure: str | None = None
        self._encode = encode
        self._batch = batch
        self._queue: deque[_Request] = deque()
        self._waiting = 0
        self._stopping = False
        self._changed = threading.Condition()
        # A daemon: an encoder that hangs in its GPU must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="encoder", daemon=True)

    def __enter__(self) -> "Batcher":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def waiting(self) -> int:
        """Texts that wait for a batch; those being encoded are not among them."""
        return self._waiting

    def submit(self, texts: Sequence[str]) -> "Future[Encoded]":
        """A future of the rows; cancel it to give the request up. Raises TooManyTexts, QueueFull or Stopping."""
        if len(texts) > self.capacity:
            raise TooManyTexts(f"{len(texts)} texts in one request, the queue holds {self.capacity}: send fewer")
        request = _Request(list(texts))
        request.future.add_done_callback(lambda _: self._drop(request))
        with self._changed:
            if self._stopping:
                raise Stopping("the server is going down")
            if self._waiting + len(texts) > self.capacity:
                raise QueueFull(f"{self._waiting} texts are waiting, the queue holds {self.capacity}: try again")
            self._queue.append(request)
            self._waiting += len(texts)
            self._changed.notify()
        return request.future

    def close(self, timeout_s: float = 10.0) -> None:
        """Take nothing more, finish what waits, and end the thread; wait for that at most `timeout_s` seconds."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _drop(self, request: _Request) -> None:
        """Free the room of what still waits of a request that is done: given up, or failed with an earlier batch."""
        with self._changed:
            left = len(request.texts) - request.taken
            if left and request in self._queue:
                self._queue.remove(request)
                self._waiting -= left

    def _run(self) -> None:
        while True:
            with self._changed:
                pieces = self._take()
                while not pieces:
                    if self._stopping:
                        return
                    self._changed.wait()
                    pieces = self._take()
            self._serve(pieces)

    def _take(self) -> list[tuple[_Request, list[str]]]:
        """The next batch: of each request at the head of the queue, the texts that are its turn."""
        pieces: list[tuple[_Request, list[str]]] = []
        room = self._batch
        while self._queue and room:
            request = self._queue[0]
            left = len(request.texts) - request.taken
            if request.future.done():  # given up by its client, or failed with an earlier batch
                self._queue.popleft()
                self._waiting -= left
                continue
            count = min(room, left)
            pieces.append((request, request.texts[request.taken : request.taken + count]))
            request.taken += count
            self._waiting -= count
            room -= count
            if count == left:
                self._queue.popleft()
        return pieces

    def _serve(self, pieces: Sequence[tuple[_Request, list[str]]]) -> None:
        """Encode one batch and give each request its part."""
        try:
            rows, tokens = self._encode([text for _, texts in pieces for text in texts])
        except Exception as error:  # whatever it is, it belongs to the requests that caused it, not to this thread
            logger.exception("a batch of %d texts failed", sum(len(texts) for _, texts in pieces))
            self.failure = f"{type(error).__name__}: {error}"
            for request, _ in pieces:
                if request.future.set_running_or_notify_cancel():
                    request.future.set_exception(EncodingFailed(self.failure))
            return
        self.failure = None
        start = 0
        for request, texts in pieces:
            end = start + len(texts)
            request.rows.append(rows[start:end])
            request.tokens += sum(tokens[start:end])
            start = end
            if request.taken == len(request.texts) and request.future.set_running_or_notify_cancel():
                request.future.set_result(Encoded(np.concatenate(request.rows), request.tokens))
