"""Has the service moved against its baseline? Signal by signal, from means, spreads and counts alone.

A signal drifted when its mean moved by LEAST_DRIFT or more and that is beyond chance: a two-sided z-test of the
difference with the variance pooled over both sides, Holm over the signals, family-wise level 5 %. Requests count as
independent; a shopper who asks ten times makes the test a little too sure.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

from scripts.eval.comparison import LEVEL, ROUNDING, TRADE_OFF
from scripts.eval.online_signals import SIGNALS
from scripts.eval.summary import holm

LEAST_DRIFT = TRADE_OFF
LEAST_REQUESTS = 30  # on either side: below, the normal distribution is no stand-in
WORSE, BETTER, MOVED, STEADY, TOO_FEW = "worse", "better", "moved", "steady", "too few"


@dataclass(frozen=True)
class Drift:
    """One signal against the baseline. `change` and `p_holm` are None where there are too few requests to judge."""

    name: str
    state: str
    before: float | None
    before_requests: int
    now: float | None
    now_requests: int
    change: float | None
    p_holm: float | None


def difference_p(before: Mapping[str, Any], now: Mapping[str, Any]) -> float:
    """Two-sided p-value of a difference of two means, from `{"requests", "mean", "sd"}` of each side.

    >>> difference_p({"requests": 100, "mean": 0.9, "sd": 0.3}, {"requests": 100, "mean": 0.9, "sd": 0.3})
    1.0
    """
    n, m = before["requests"], now["requests"]
    change = now["mean"] - before["mean"]
    if change == 0:
        return 1.0
    within = n * before["sd"] ** 2 + m * now["sd"] ** 2
    variance = (within + n * m / (n + m) * change**2) / (n + m)  # of both sides thrown together
    z = abs(change) / math.sqrt(variance * (1 / n + 1 / m))
    return 2 * (1 - NormalDist().cdf(z))


def drifts(baseline: Mapping[str, Any], current: Mapping[str, Any]) -> list[Drift]:
    """Every signal of two tallies (`online_signals.tally`), in the order of SIGNALS."""
    sides = {name: (baseline["signals"][name], current["signals"][name]) for name in SIGNALS}
    judged = {
        name: difference_p(before, now)
        for name, (before, now) in sides.items()
        if min(before["requests"], now["requests"]) >= LEAST_REQUESTS
    }
    corrected = holm(judged)
    found = []
    for name, (before, now) in sides.items():
        p = corrected.get(name)
        change = None if p is None else now["mean"] - before["mean"]
        found.append(
            Drift(
                name,
                _state(name, change, p),
                before["mean"],
                before["requests"],
                now["mean"],
                now["requests"],
                change,
                p,
            )
        )
    return found


def _state(name: str, change: float | None, p: float | None) -> str:
    if change is None or p is None:
        return TOO_FEW
    if p >= LEVEL or abs(change) < LEAST_DRIFT - ROUNDING:
        return STEADY
    good = SIGNALS[name].good
    if good == 0:
        return MOVED
    return BETTER if change * good > 0 else WORSE


def as_dict(drift: Drift) -> dict[str, Any]:
    return asdict(drift)
