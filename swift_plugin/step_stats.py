"""What one scored step says about itself: the numbers of the plugin's log line, from rows that any rank can send.

Everything here can be recomputed from `reward_trace.rank*.jsonl` (the rows are a projection of its lines).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TIED_SIGMA = 1e-6  # below this a group gives no gradient: its rewards differ by rounding only


@dataclass(frozen=True)
class ScoredRow:
    """One completion as the log line needs it: `group` names the prompt it was sampled from."""

    group: str
    total: float
    parsed: bool
    empty_keywords: bool
    search: str | None

    @classmethod
    def from_trace(cls, line: Mapping[str, Any]) -> "ScoredRow":
        """The row of one line of `reward_trace.rank*.jsonl`."""
        breakdown = line["breakdown"]
        parsed = line["plan"] is not None
        return cls(line["id"], breakdown["total"], parsed, breakdown["empty_keywords"], line["search"])


@dataclass(frozen=True)
class StepStats:
    """Means over completions, σ over groups.

    `sigma` is the mean over groups of the population standard deviation (ddof 0) of `total` within the group;
    ms-swift's own `reward_std` uses ddof 1 and is larger by sqrt(n/(n-1)) for groups of n.
    `tied` is the share of groups whose σ is 0, `searches` the mean count of distinct searches in a group.
    """

    completions: int
    groups: int
    mean: float
    sigma: float
    tied: float
    parse_failures: float
    empty_keywords: float
    searches: float


def step_stats(rows: Sequence[ScoredRow]) -> StepStats:
    """Summarise the rows of all ranks of one step.

    >>> rows = [ScoredRow("a", 1.0, True, False, "x"), ScoredRow("a", 0.0, True, True, None)]
    >>> step_stats(rows).sigma
    0.5

    Raises ValueError for an empty step: there is nothing to take a mean of.
    """
    if not rows:
        raise ValueError("a step without completions has no statistics; the trainer passed an empty batch")
    groups: dict[str, list[ScoredRow]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    sigmas = np.array([np.std([row.total for row in group]) for group in groups.values()])
    searches = [len({row.search for row in group if row.search}) for group in groups.values()]
    return StepStats(
        completions=len(rows),
        groups=len(groups),
        mean=float(np.mean([row.total for row in rows])),
        sigma=float(sigmas.mean()),
        tied=float((sigmas < TIED_SIGMA).mean()),
        parse_failures=float(np.mean([not row.parsed for row in rows])),
        empty_keywords=float(np.mean([row.empty_keywords for row in rows])),
        searches=float(np.mean(searches)),
    )
