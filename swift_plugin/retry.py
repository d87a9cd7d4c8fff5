"""The one retry policy for everything that answers over a network, and the rule for loopback proxies."""

import ipaddress
import logging
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from swift_plugin.settings import MASK

logger = logging.getLogger(__name__)

FIRST_DELAY_S = 0.25  # doubled after each try
LONGEST_DELAY_S = 8.0
SHORTEST_TIMEOUT_S = 1.0  # qdrant-client takes whole seconds only
TRANSIENT_STATUS = frozenset({408, 429, *range(500, 600)})  # 501 and the like cost one budget, then raise too

T = TypeVar("T")
# Not the global generator: a retry must not move the random numbers that training draws.
_jitter = random.SystemRandom()


class TransientError(Exception):
    """Raised by one try for a failure that time may cure; `retry_after_s` is what the server asked for."""

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class RetryBudgetError(Exception):
    """The budget is spent: the last failure, the number of tries and the seconds they took."""

    def __init__(self, last: str, tries: int, elapsed_s: float, budget_s: float) -> None:
        super().__init__(f"{last} ({tries} tries in {elapsed_s:.1f} s, budget {budget_s:g} s)")


def with_retries(attempt: Callable[[float], T], *, budget_s: float, timeout_s: float, what: str) -> T:
    """Call `attempt(timeout in seconds)` until it returns, backing off after each TransientError.

    Delays double from FIRST_DELAY_S with jitter. No try is started after `budget_s` seconds, and a try is
    never given longer than what is left (but at least SHORTEST_TIMEOUT_S). A budget of 0 is one try. Raises
    RetryBudgetError when the budget is spent; every other exception of `attempt` passes through at once.
    """
    started = time.monotonic()
    tries = 0
    while True:
        left = budget_s - (time.monotonic() - started)
        tries += 1
        try:
            return attempt(min(timeout_s, max(SHORTEST_TIMEOUT_S, left)))
        except TransientError as error:
            elapsed = time.monotonic() - started
            delay = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(tries - 1, 16))
            delay = max(delay * _jitter.uniform(0.5, 1.0), error.retry_after_s)
            if elapsed + delay >= budget_s:
                raise RetryBudgetError(str(error), tries, elapsed, budget_s) from error
            logger.warning("%s: %s; try %d follows in %.2f s", what, error, tries + 1, delay)
            time.sleep(delay)


def whole_answer_hooks() -> dict[str, list[Callable[[Any], None]]]:
    """`event_hooks` for an httpx client that apply a request's read timeout to its whole answer.

    httpx itself applies it to every piece that arrives, so an answer that trickles in would outlast any budget.
    """

    def begin(request: httpx.Request) -> None:
        request.extensions["began"] = time.monotonic()

    def limit(response: httpx.Response) -> None:
        asked = response.request.extensions
        seconds = asked["timeout"]["read"]
        if seconds is not None:
            response.stream = _WholeAnswer(response.stream, asked["began"] + seconds)

    return {"request": [begin], "response": [limit]}


class _WholeAnswer(httpx.SyncByteStream):
    """The body of an answer, which must have arrived by `deadline` (by time.monotonic)."""

    def __init__(self, stream: Any, deadline: float) -> None:
        self._stream = stream
        self._deadline = deadline

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            if time.monotonic() > self._deadline:
                raise httpx.ReadTimeout("the answer had begun, but was not complete in time")
            yield part

    def close(self) -> None:
        self._stream.close()


def quoted(answer: str, key: str | None) -> str:
    """The first 200 characters of a server's answer, for an error: some servers quote the key they refuse.

    >>> quoted("no such key: k-1", "k-1")
    'no such key: ***'
    """
    return (answer.replace(key, MASK) if key else answer)[:200]  # masked first: a cut key would not be found


def is_loopback(url: str) -> bool:
    """Whether the URL's host is this machine: such traffic must not go through HTTP_PROXY.

    >>> is_loopback("http://127.0.0.1:6333"), is_loopback("http://[::1]:6333"), is_loopback("http://qdrant:6333")
    (True, True, False)
    """
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
