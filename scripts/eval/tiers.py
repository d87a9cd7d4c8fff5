"""Where the reward comes from: tiers of difficulty, with the number of records in each."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from scripts.eval.summary import bootstrap_interval, record_totals

Record = Mapping[str, Any]


def constraints(golden: Mapping[str, Any]) -> int:
    """How many things are asked beyond the category, 0 to 3: attributes, a budget, an exclusion.

    Attributes count once (`must_have` lists spellings of what is asked, not several wishes). A budget counts also
    where its amount is uncertain; a lower bound alone leaves no trace in the golden record and does not count.
    """
    budget = golden["budget_amount"] is not None or golden["budget_uncertain"]
    return bool(golden["must_have"]) + bool(budget) + bool(golden["exclude_expected"])


def turns(record: Record) -> int:
    """Turns of the session up to this one: 1 without earlier ones."""
    return 1 + len(record["prior_context"])


TIERS: dict[str, Callable[[Record], Any]] = {
    "constraints": lambda record: constraints(record["golden"]),
    "turns": turns,
    "family": lambda record: record["family"],
}


def tiers(records: Sequence[Record]) -> dict[str, dict[str, dict[str, Any]]]:
    """`{"constraints": {"0": cell, ...}, "turns": {"1": cell, ...}, "family": {"single": cell, ...}}`.

    A cell holds `records`, `completions`, and `reward` with `mean`, `low`, `high` (None below two records: one record
    has no interval). Read a cell beside its count: most of a dev set's tiers are too small to tell two models apart.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, tier_of in TIERS.items():
        groups: dict[Any, list[Record]] = {}
        for record in records:
            groups.setdefault(tier_of(record), []).append(record)
        found[name] = {str(tier): _cell(groups[tier]) for tier in sorted(groups)}
    return found


def _cell(records: Sequence[Record]) -> dict[str, Any]:
    totals = record_totals(records)
    low, high = bootstrap_interval(totals) if len(totals) > 1 else (None, None)
    return {
        "records": len(records),
        "completions": sum(len(record["samples"]) for record in records),
        "reward": {"mean": float(np.mean(totals)), "low": low, "high": high},
    }
