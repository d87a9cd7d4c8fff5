"""The retry policy itself: what a try is given, what is slept out, and what becomes of the global random numbers."""

import random
import time

import pytest

from swift_plugin.retry import SHORTEST_TIMEOUT_S, RetryBudgetError, TransientError, with_retries


class Attempts:
    """Fails `failures` times, each after `takes_s` seconds, then answers; keeps the timeouts it was given."""

    def __init__(self, failures: int, takes_s: float = 0.0, retry_after_s: float = 0.0) -> None:
        self.failures, self.takes_s, self.retry_after_s = failures, takes_s, retry_after_s
        self.timeouts: list[float] = []

    def __call__(self, timeout_s: float) -> str:
        self.timeouts.append(timeout_s)
        time.sleep(self.takes_s)
        if len(self.timeouts) <= self.failures:
            raise TransientError("HTTP 503", self.retry_after_s)
        return "answer"


def test_a_try_gets_its_timeout_and_never_more_than_what_is_left() -> None:
    tries = Attempts(1, takes_s=0.5)
    assert with_retries(tries, budget_s=4.0, timeout_s=3.8, what="the store") == "answer"
    first, second = tries.timeouts
    assert first == 3.8
    assert SHORTEST_TIMEOUT_S <= second <= 3.5 < first


def test_a_try_is_never_given_less_than_the_shortest_timeout() -> None:
    tries = Attempts(0)
    with_retries(tries, budget_s=0.0, timeout_s=20.0, what="the store")
    assert tries.timeouts == [SHORTEST_TIMEOUT_S]


@pytest.mark.parametrize(("budget_s", "retry_after_s"), [(0.0, 0.0), (2.0, 60.0)], ids=["no budget", "Retry-After"])
def test_a_wait_that_the_budget_does_not_hold_is_not_begun(budget_s: float, retry_after_s: float) -> None:
    tries = Attempts(9, retry_after_s=retry_after_s)
    started = time.monotonic()
    with pytest.raises(RetryBudgetError, match="HTTP 503 .1 tries in"):
        with_retries(tries, budget_s=budget_s, timeout_s=1.0, what="the store")
    assert time.monotonic() - started < 30.0 and len(tries.timeouts) == 1


def test_a_retry_does_not_move_the_random_numbers_of_training() -> None:
    random.seed(7)
    before = random.getstate()
    with_retries(Attempts(1), budget_s=10.0, timeout_s=1.0, what="the store")
    assert random.getstate() == before


def test_another_error_passes_through_at_once() -> None:
    def broken(_: float) -> str:
        raise ValueError("no JSON")

    with pytest.raises(ValueError, match="no JSON"):
        with_retries(broken, budget_s=10.0, timeout_s=1.0, what="the store")
