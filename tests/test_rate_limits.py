"""The token bucket: never more than its limit in any minute, turns in order, one bucket for a model's names."""

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.online.channels import normalised_model
from scripts.online.rate_limits import RateLimits, TokenBucket, read_limits


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("name", "normal"),
    [
        ("qwen-flash", "qwen-flash"),
        ("dashscope/qwen-flash", "qwen-flash"),
        ("DashScope/Qwen-Flash ", "qwen-flash"),
        ("openrouter/qwen/qwen-flash", "qwen-flash"),
        ("qwen-flash-2", "qwen-flash-2"),
    ],
)
def test_a_models_name_counts_without_prefix_and_case(name: str, normal: str) -> None:
    assert normalised_model(name) == normal


@given(
    limit=st.integers(1, 120),
    gaps=st.lists(st.floats(0, 30, allow_nan=False), min_size=1, max_size=200),
    patience=st.sampled_from([0.0, 1.0, 1e9]),
)
def test_no_minute_starts_more_than_the_limit(limit: int, gaps: list[float], patience: float) -> None:
    clock = Clock()
    bucket = TokenBucket(limit, clock)
    starts = []
    for gap in gaps:
        clock.now += gap
        wait = bucket.reserve(patience)
        if wait is not None:
            assert wait <= patience
            starts.append(clock.now + wait)
    assert starts == sorted(starts), "turns come in the order of asking"
    for first, later in zip(starts, itertools.islice(starts, limit, None), strict=False):
        assert later - first > 60 - 1e-6, "one more than the limit within a minute"


def test_a_refused_turn_costs_nothing_and_the_bucket_fills_again() -> None:
    clock = Clock()
    bucket = TokenBucket(60, clock)
    assert [bucket.reserve(0.0) for _ in range(7)] == [0.0] * 6 + [None], "a tenth of the minute at once"
    assert [bucket.reserve(0.0) for _ in range(99)] == [None] * 99
    clock.now += 60
    assert [bucket.reserve(0.0) for _ in range(7)] == [0.0] * 6 + [None], "full, and no fuller"


def test_threads_never_share_a_turn() -> None:
    bucket = TokenBucket(1200, Clock())  # 120 at once, and the clock stands
    taken = []

    def take() -> None:
        taken.extend(bucket.reserve(0.0) for _ in range(100))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), taken.count(0.0), taken.count(None)) == (800, 120, 680)


def test_prefixed_and_plain_names_share_one_bucket_and_others_are_free() -> None:
    limits = RateLimits({"dashscope/x": 1}, Clock())
    assert [limits.take(name, 0.0) for name in ("x", "dashscope/x", "X", "y", "y")] == [True, False, False, True, True]


@pytest.mark.parametrize("text", ["x", "x=", "=5", "x=0", "x=-1", "x=1.5", "x=60,dashscope/X=30", "x=60;y=1"])
def test_a_wrong_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="PLANNER_RATE_LIMITS"):
        read_limits(text)


def test_limits_are_read() -> None:
    assert read_limits("") == {} and read_limits(" dashscope/X=60 , y=1,") == {"x": 60, "y": 1}
