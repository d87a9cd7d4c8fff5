"""What an evaluation says: pure functions from scored records to a summary, with bootstrap intervals.

A record is one line of an evaluation file: `id`, `family`, `golden` (a dict) and `samples`, a list of
`{"completion", "plan", "issues", "breakdown", "titles"}`. Greedy files hold one sample a record.
Intervals are percentile bootstraps over records (not over samples: eight samples of one prompt are not eight prompts).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

BOOTSTRAP_RESAMPLES = 10_000
BOOTSTRAP_SEED = 20_000
INTERVAL = 95
PARTS = ("retrieval", "field_score", "format", "econ", "category", "domains_f1", "budget")

Record = Mapping[str, Any]


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % percentile interval of the mean of `values` (one value a record), reproducible by a fixed seed."""
    if not values:
        raise ValueError("no values: an interval needs at least one record")
    data = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(BOOTSTRAP_SEED).integers(0, len(data), size=(BOOTSTRAP_RESAMPLES, len(data)))
    tail = (100 - INTERVAL) / 2
    low, high = np.percentile(data[draws].mean(axis=1), [tail, 100 - tail])
    return float(low), float(high)


def record_totals(records: Sequence[Record]) -> list[float]:
    """The mean total of each record's samples."""
    return [float(np.mean([sample["breakdown"]["total"] for sample in record["samples"]])) for record in records]


def part_values(records: Sequence[Record], part: str) -> list[float | None]:
    """The mean of `part` over the samples in which it took part, for each record; None where it never did."""
    means: list[float | None] = []
    for record in records:
        values = [s["breakdown"][part] for s in record["samples"] if s["breakdown"][part] is not None]
        means.append(float(np.mean(values)) if values else None)
    return means


def needs_keywords(golden: Mapping[str, Any]) -> bool:
    """Whether retrieval is judged: the golden names something to look for."""
    return any(term.strip() for term in [*golden["must_have"], golden["category_anchor"] or ""])  # null: no anchor


def abstains_on_category(plan: Mapping[str, Any] | None) -> bool:
    """Whether the plan says that the category cannot be known: null or blank. A missing key says nothing."""
    if plan is None or "category" not in plan:
        return False
    category = plan["category"]
    return category is None or (isinstance(category, str) and not category.strip())


def summarise(records: Sequence[Record]) -> dict[str, Any]:
    """Reward with its interval, every part with its count, and the rates of one evaluation file.

    `parts[name]` = {"mean", "completions"}: the mean over the completions in which the part took part, and their
    number; an unparsable completion has no parts, so read a part beside `parse_rate`.
    """
    samples = [sample for record in records for sample in record["samples"]]
    totals = record_totals(records)
    parts: dict[str, dict[str, float | int | None]] = {}
    for part in PARTS:
        values = [s["breakdown"][part] for s in samples if s["breakdown"][part] is not None]
        parts[part] = {"mean": float(np.mean(values)) if values else None, "completions": len(values)}
    needed = [s for record in records if needs_keywords(record["golden"]) for s in record["samples"]]
    given = [s for s in needed if s["plan"] is not None and not s["breakdown"]["empty_keywords"]]
    should_abstain = [s for record in records if abstains_on_category(record["golden"]) for s in record["samples"]]
    abstained = [s for s in samples if abstains_on_category(s["plan"])]
    correct = [s for s in should_abstain if abstains_on_category(s["plan"])]
    expected = [s for record in records if record["golden"]["exclude_expected"] for s in record["samples"]]
    hidden = ("exclusion_missed", "evidence_faked")  # an exclusion on made-up evidence is none
    stated = [s for s in expected if s["plan"] is not None and not any(s["breakdown"][flag] for flag in hidden)]
    low, high = bootstrap_interval(totals)
    return {
        "records": len(records),
        "completions": len(samples),
        "reward": {"mean": float(np.mean(totals)), "low": low, "high": high, "interval_percent": INTERVAL},
        "parts": parts,
        "parse_rate": _share(sum(s["plan"] is not None for s in samples), len(samples)),
        "format_rate": _share(sum(s["breakdown"]["format"] == 1.0 for s in samples), len(samples)),
        "keywords_where_needed": _share(len(given), len(needed)),
        "exclusions_where_expected": _share(len(stated), len(expected)),
        "abstentions_of_all_records": _share(len(abstained), len(samples)),
        "correct_abstentions_of_those_that_should": _share(len(correct), len(should_abstain)),
    }


def _share(count: int, of: int) -> dict[str, float | int | None]:
    return {"count": count, "of": of, "share": count / of if of else None}


def paired_difference(a: Sequence[Record], b: Sequence[Record]) -> dict[str, float]:
    """Mean of (b − a) over the same records with its bootstrap interval.

    Raises ValueError when the two files do not hold the same ids in the same order: then nothing is paired.
    """
    ids_a, ids_b = [r["id"] for r in a], [r["id"] for r in b]
    if ids_a != ids_b:
        raise ValueError(f"the files hold different records ({len(ids_a)} and {len(ids_b)}): evaluate both on one set")
    differences = [y - x for x, y in zip(record_totals(a), record_totals(b), strict=True)]
    low, high = bootstrap_interval(differences)
    return {"mean": float(np.mean(differences)), "low": low, "high": high}
