"""What an evaluation says: pure functions from scored records to a summary, with bootstrap intervals.

A record is one line of an evaluation file, as scripts/eval/evaluation_files.py describes it.
Intervals are percentile bootstraps over records (not over samples: eight samples of one prompt are not eight prompts).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BOOTSTRAP_RESAMPLES = 10_000
BOOTSTRAP_SEED = 20_000
INTERVAL = 95
LEVEL = 0.05  # of a test
FLIPS, FLIP_SEED = 10_000, 20_001
ROUNDING = 1e-9  # a fall of 0.05 computed as 0.0499999 is one
GOOD_REWARD = 0.8  # about what the bare category word gets: a completion below it missed something that was asked
UNSTEADY_GAP = 0.1  # how far the mean of a record's samples lies below its best before that is called unsteady
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


def sign_flip_p(differences: Sequence[float]) -> float:
    """Two-sided p-value of the mean of paired differences: how often random signs give one as far from zero.

    Monte Carlo over FLIPS draws by a fixed seed, so never below 1 / (FLIPS + 1). All zero: 1.
    """
    data = np.asarray([d for d in differences if d != 0], dtype=np.float64)
    if not len(data):
        return 1.0
    signs = np.random.default_rng(FLIP_SEED).integers(0, 2, size=(FLIPS, len(data)), dtype=np.int8) * 2 - 1
    reached = np.abs(signs @ data) >= abs(data.sum()) - ROUNDING
    return float((1 + reached.sum()) / (1 + FLIPS))


@dataclass(frozen=True)
class PairedChange:
    """The mean of paired differences, its 95 % bootstrap interval, and the p of the sign-flip test."""

    mean: float
    low: float
    high: float
    p: float

    @property
    def moved(self) -> int:
        """1 or -1 where the change is beyond chance by the interval and by p, else 0.

        On few records the bootstrap alone finds a change in a quarter of the comparisons in which there is none.
        """
        if self.p >= LEVEL:
            return 0
        return (self.low > 0) - (self.high < 0)


def paired_change(differences: Sequence[float]) -> PairedChange:
    """What `differences`, one a record, say of the change between the two sides; ValueError where there are none."""
    low, high = bootstrap_interval(differences)
    return PairedChange(float(np.mean(differences)), low, high, sign_flip_p(differences))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's adjusted p-values: below 5 % means beyond a family-wise level of 5 %.

    >>> holm({"a": 0.01, "b": 0.04})
    {'a': 0.02, 'b': 0.04}
    """
    adjusted: dict[str, float] = {}
    highest = 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        highest = max(highest, min(1.0, p * (len(p_values) - rank)))
        adjusted[name] = highest
    return {name: adjusted[name] for name in p_values}


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


def both_known(before: Sequence[float | None], after: Sequence[float | None]) -> list[tuple[float, float]]:
    """The pairs of values that both sides have, in order: what a change can be taken of."""
    return [(x, y) for x, y in zip(before, after, strict=True) if x is not None and y is not None]


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
    low, high = bootstrap_interval(totals)
    return {
        "records": len(records),
        "completions": len(samples),
        "reward": {"mean": float(np.mean(totals)), "low": low, "high": high, "interval_percent": INTERVAL},
        "parts": parts,
        **rates(records),
    }


def rates(records: Sequence[Record]) -> dict[str, dict[str, float | int | None]]:
    """The counted shares of some records' completions: parse and format, keywords, exclusions, abstentions."""
    samples = [sample for record in records for sample in record["samples"]]
    needed = [s for record in records if needs_keywords(record["golden"]) for s in record["samples"]]
    given = [s for s in needed if s["plan"] is not None and not s["breakdown"]["empty_keywords"]]
    should_abstain = [s for record in records if abstains_on_category(record["golden"]) for s in record["samples"]]
    abstained = [s for s in samples if abstains_on_category(s["plan"])]
    correct = [s for s in should_abstain if abstains_on_category(s["plan"])]
    expected = [s for record in records if record["golden"]["exclude_expected"] for s in record["samples"]]
    hidden = ("exclusion_missed", "evidence_faked")  # an exclusion on made-up evidence is none
    stated = [s for s in expected if s["plan"] is not None and not any(s["breakdown"][flag] for flag in hidden)]
    return {
        "parse_rate": share(sum(s["plan"] is not None for s in samples), len(samples)),
        "format_rate": share(sum(s["breakdown"]["format"] == 1.0 for s in samples), len(samples)),
        "keywords_where_needed": share(len(given), len(needed)),
        "exclusions_where_expected": share(len(stated), len(expected)),
        "abstentions_of_all_records": share(len(abstained), len(samples)),
        "correct_abstentions_of_those_that_should": share(len(correct), len(should_abstain)),
        "earlier_category_kept": earlier_category_kept(records),
    }


def earlier_category_kept(records: Sequence[Record]) -> dict[str, float | int | None]:
    """Of completions that saw an earlier turn and whose golden category only it can tell: how many plans name it.

    Only it can tell: the category does not stand in this turn's words. Where the context was rendered into the prompt,
    keeping its category is right and abstaining is not; `abstentions_of_all_records` alone would call both drift.
    """
    asked = [
        (record, sample)
        for record in records
        if record.get("context_rendered")
        and (record["golden"]["category"] or "").strip()
        and record["golden"]["category"] not in record["text"]
        for sample in record["samples"]
    ]
    return share(sum(sample["breakdown"]["category"] == 1.0 for _, sample in asked), len(asked))


def spread(records: Sequence[Record]) -> dict[str, Any]:
    """Mean and best of a record's k samples, and what they say together: is the model unable, or unsteady?

    A record is *unable* when its best sample stays below GOOD_REWARD, and *unsteady* when the best reaches it and the
    mean lies UNSTEADY_GAP or more below. `k` is the most samples a record has; `short` counts records with fewer,
    which a failed call leaves behind.
    """
    k = max(len(record["samples"]) for record in records)
    means = record_totals(records)
    best = [max(sample["breakdown"]["total"] for sample in record["samples"]) for record in records]
    unable = sum(top < GOOD_REWARD for top in best)
    unsteady = sum(top >= GOOD_REWARD and top - mean >= UNSTEADY_GAP for top, mean in zip(best, means, strict=True))
    cause = "unable more often than unsteady" if unable > unsteady else "unsteady more often than unable"
    if unable == unsteady:
        cause = "unable as often as unsteady" if unable else "neither unable nor unsteady"
    low, high = bootstrap_interval(best)
    return {
        "k": k,
        "short": sum(len(record["samples"]) < k for record in records),
        "mean_of_k": float(np.mean(means)),
        "best_of_k": {"mean": float(np.mean(best)), "low": low, "high": high},
        "unable": share(unable, len(records)),
        "unsteady": share(unsteady, len(records)),
        "reading": f"{cause}: best of {k} below {GOOD_REWARD} on {unable} of {len(records)} records, and on {unsteady} "
        f"it gets there while the mean lies {UNSTEADY_GAP} or more below",
    }


def share(count: int, of: int) -> dict[str, float | int | None]:
    """A count with its denominator, which is never left to guess; the share is None where there is nothing to count."""
    return {"count": count, "of": of, "share": count / of if of else None}


def check_paired(a: Sequence[Record], b: Sequence[Record]) -> None:
    """Raises ValueError when two files do not hold the same ids in the same order: then nothing is paired."""
    ids_a, ids_b = [r["id"] for r in a], [r["id"] for r in b]
    if ids_a != ids_b:
        raise ValueError(f"the files hold different records ({len(ids_a)} and {len(ids_b)}): evaluate both on one set")


def paired_difference(a: Sequence[Record], b: Sequence[Record]) -> PairedChange:
    """The change from a to b of the records' mean totals. Raises ValueError as `check_paired` does."""
    check_paired(a, b)
    return paired_change([y - x for x, y in zip(record_totals(a), record_totals(b), strict=True)])
