"""Requests a minute, by model: a token bucket for each normalised name, shared by every thread of the process."""

import math
import os
import threading
import time
from collections.abc import Callable, Mapping

from scripts.online.channels import normalised_model

VARIABLE = "PLANNER_RATE_LIMITS"
BURST_SHARE = 0.1  # of a minute's requests may start at once


class TokenBucket:
    """At most `per_minute` requests start in any 60 seconds; a tenth of them (one at least) may start at once.

    Times are seconds of `clock`. Threads that wait get their turns in the order in which they asked.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        if per_minute < 1:
            raise ValueError(f"{per_minute} requests a minute: give 1 or more")
        self.burst = max(1, math.floor(per_minute * BURST_SHARE))
        # A full bucket and what flows in during the same minute may not be more than the limit together.
        self._per_second = (per_minute - self.burst + 1) / 60
        self._tokens = float(self.burst)
        self._clock = clock
        self._filled = clock()
        self._lock = threading.Lock()

    def reserve(self, longest_wait_s: float) -> float | None:
        """Take the next turn and say in how many seconds it comes; None, and no turn taken, if that is too long."""
        with self._lock:
            now = self._clock()
            self._tokens = min(float(self.burst), self._tokens + (now - self._filled) * self._per_second)
            self._filled = now
            wait = max(0.0, (1.0 - self._tokens) / self._per_second)
            if wait > longest_wait_s:
                return None
            self._tokens -= 1.0
            return wait


class RateLimits:
    """The buckets of some models; a model without a limit never waits.

    >>> limits = RateLimits({"qwen-flash": 1})
    >>> limits.take("dashscope/qwen-flash", 0.0), limits.take("qwen-flash", 0.0), limits.take("planner", 0.0)
    (True, False, True)
    """

    def __init__(self, per_minute: Mapping[str, int], clock: Callable[[], float] = time.monotonic) -> None:
        self._buckets = {normalised_model(name): TokenBucket(limit, clock) for name, limit in per_minute.items()}

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> "RateLimits":
        """The limits that PLANNER_RATE_LIMITS names, as `qwen-flash=60,planner=600`. Raises ValueError."""
        return cls(read_limits(environ.get(VARIABLE, "")))

    def take(self, model: str, longest_wait_s: float) -> bool:
        """Wait for a turn of this model and take it; False, at once, if it comes later than `longest_wait_s`."""
        bucket = self._buckets.get(normalised_model(model))
        if bucket is None:
            return True
        wait = bucket.reserve(longest_wait_s)
        if wait is None:
            return False
        if wait:
            time.sleep(wait)
        return True


def read_limits(text: str) -> dict[str, int]:
    """Requests a minute by normalised model name. Raises ValueError naming the entry and the remedy.

    >>> read_limits("dashscope/qwen-flash=60, planner=600")
    {'qwen-flash': 60, 'planner': 600}
    """
    limits: dict[str, int] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        name, _, value = entry.partition("=")
        model, number = normalised_model(name), value.strip()
        if not model or not (number.isascii() and number.isdigit() and int(number) >= 1):
            raise ValueError(f"{VARIABLE}: {entry!r} is no limit; give MODEL=REQUESTS_A_MINUTE, as qwen-flash=60")
        if model in limits:
            raise ValueError(f"{VARIABLE}: {entry!r} limits {model!r} again: names count without a prefix")
        limits[model] = int(number)
    return limits
