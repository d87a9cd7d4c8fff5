"""Is B better than A, where, and is that real: a paired comparison of two evaluations, as pure functions.

Everything is paired by record, since two models differ less on one record than two records differ from each other.
`TESTED` quantities stand beside the total: the parts of the reward, over the records in which a part took part on
both sides, and the rates that the total hides. With so many at once, one in three comparisons of a model with itself
would show something off zero at 95 %; so two thresholds are used, and both are shown:

- the interval: the 95 % bootstrap of the mean change, one quantity at a time;
- the correction: Holm's step-down over the p-values of a paired sign-flip test (each record's change is as likely in
  either direction when nothing changed), family-wise level 5 %. Unlike a bootstrap it stays honest on ten records.

The total has moved as `PairedChange.moved` says. Below FEWEST_RECORDS no p can be that small.

Five verdicts. *better*: the total rose, nothing fell, and a loss of TRADE_OFF is ruled out for every part. *rose, loss
not ruled out*: the total rose, but some part may have lost TRADE_OFF or more. *mixed*: something rose and something
fell. *worse*: the total or a part fell and nothing rose. *no difference at this size*: none of these.

Smallest difference that could have been seen: with half-width h of the 95 % interval, a two-sided test at 5 % has a
power of 80 % at h · (z(0.975) + z(0.80)) / z(0.975) = 1.43 h, z being the quantile of the normal distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from scripts.eval.summary import (
    LEVEL,
    PARTS,
    ROUNDING,
    PairedChange,
    Record,
    both_known,
    holm,
    paired_change,
    part_values,
    rates,
    record_totals,
)

RATES = (
    "parse_rate",
    "format_rate",
    "keywords_where_needed",
    "exclusions_where_expected",
    "correct_abstentions_of_those_that_should",
    "earlier_category_kept",
)
TESTED = (*PARTS, *RATES)
POWER = 0.80
TRADE_OFF = 0.05  # a loss of this size is what nobody wants to buy a better total with
# By the rule of three (3/n): over fewer records not even an unbroken row of successes rules a loss of TRADE_OFF out. A
# rate counted over fewer is named when it falls, and alone does not hold a verdict back.
ENOUGH_RECORDS = round(3 / TRADE_OFF)
# Of the records, and of the completions: what remains of an evaluation with more failed calls is another dev set.
MIN_COVERAGE = 0.95
FEWEST_RECORDS = 6  # the smallest p of n records that all changed alike is 2 / 2^n: 0.0625 for five

BETTER, WORSE, MIXED = "better", "worse", "mixed"
UNPROVEN, NO_DIFFERENCE = "rose, loss not ruled out", "no difference at this size"
VERDICTS = (BETTER, UNPROVEN, NO_DIFFERENCE, MIXED, WORSE)
BAD = frozenset({WORSE, MIXED, UNPROVEN})


@dataclass(frozen=True)
class Change(PairedChange):
    """Change of one quantity from A to B over `records` records: means before and after, of the same records.

    `p_holm` is `p` corrected for all quantities tested beside it (for the total: p itself). `detectable`: see the
    module.
    """

    name: str
    records: int
    before: float
    after: float
    p_holm: float

    @property
    def detectable(self) -> float:
        return detectable_difference((self.high - self.low) / 2)

    @property
    def state(self) -> str:
        """Where the change stands, the first that holds.

        rose, fell: beyond the correction. fell alone: TRADE_OFF or more, off zero by its own interval only. fell
        unclear: TRADE_OFF or more, by an interval that holds zero. loss possible: the interval reaches a loss of
        TRADE_OFF. safe: it does not.
        """
        if self.p_holm < LEVEL:
            return "rose" if self.mean > 0 else "fell"
        if self.mean <= -TRADE_OFF + ROUNDING:
            return "fell alone" if self.high < 0 else "fell unclear"
        return "loss possible" if self.low <= -TRADE_OFF + ROUNDING else "safe"

    @property
    def holds_back(self) -> bool:
        """Whether a loss that is only possible keeps the verdict from being *better*."""
        return self.state == "loss possible" and (self.name in PARTS or self.records >= ENOUGH_RECORDS)


def detectable_difference(half_width: float) -> float:
    """The smallest true change a 95 % interval of this half-width shows off zero in 80 % of comparisons."""
    quantile = NormalDist().inv_cdf
    return half_width * (quantile(1 - LEVEL / 2) + quantile(POWER)) / quantile(1 - LEVEL / 2)


def quantity_values(records: Sequence[Record]) -> dict[str, list[float | None]]:
    """Every tested quantity of each record: the mean of a part, the share of a rate; None where it took no part."""
    alone = [rates([record]) for record in records]
    shares = {name: [one[name]["share"] for one in alone] for name in RATES}
    return {**{part: part_values(records, part) for part in PARTS}, **shares}


def pair(before: Sequence[Record], after: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """The records both sides have, in A's order.

    Raises ValueError when fewer than MIN_COVERAGE of either side are left (calls to an endpoint may have failed).
    """
    ids_b = {record["id"]: record for record in after}
    common = [(record, ids_b[record["id"]]) for record in before if record["id"] in ids_b]
    if len(common) < MIN_COVERAGE * max(len(before), len(after)):
        raise ValueError(
            f"only {len(common)} records stand in both files ({len(before)} and {len(after)}): "
            "evaluate both on one set, and failed calls again"
        )
    return [a for a, _ in common], [b for _, b in common]


def changes(before: Sequence[Record], after: Sequence[Record]) -> tuple[Change, list[Change]]:
    """The change of the total, and of every tested quantity that took part somewhere on both sides.

    Args:
        before, after: the same records in the same order, as `pair` gives them.
    """
    pairs = {"total": list(zip(record_totals(before), record_totals(after), strict=True))}
    values, values_after = quantity_values(before), quantity_values(after)
    for name in TESTED:
        if known := both_known(values[name], values_after[name]):
            pairs[name] = known
    paired = {name: paired_change([y - x for x, y in known]) for name, known in pairs.items()}
    corrected = holm({name: one.p for name, one in paired.items() if name != "total"})
    found = []
    for name, known in pairs.items():
        one, (was, now) = paired[name], (float(np.mean(side)) for side in zip(*known, strict=True))
        p_holm = corrected.get(name, one.p)
        found.append(Change(**vars(one), name=name, records=len(known), before=was, after=now, p_holm=p_holm))
    return found[0], found[1:]


def verdict_of(total: Change, tested: Sequence[Change]) -> str:
    """One of VERDICTS. The total is judged by its interval and its p; the module says how the rest is.

    Where the total rose, a fall of TRADE_OFF counts as soon as its own interval is off zero: to miss what a better
    total was bought with costs more than a false alarm. Where it did not rise, only falls beyond the correction count.
    """
    states = {change.state for change in tested}
    if total.moved > 0:
        if states & {"fell", "fell alone"}:
            return MIXED
        if "fell unclear" in states or any(change.holds_back for change in tested):
            return UNPROVEN
        return BETTER
    if total.moved < 0:
        return MIXED if "rose" in states else WORSE
    if "fell" in states:
        return MIXED if "rose" in states else WORSE
    return NO_DIFFERENCE


def compare(before: Sequence[Record], after: Sequence[Record]) -> dict[str, Any]:
    """The comparison of one decoding mode, ready for JSON: verdict, words, total and every tested quantity.

    `rose`, `fell` and `possible` are the names that the words speak of: what changed (`fell` also holds every fall of
    TRADE_OFF that this set cannot tell from no change), and where a loss of TRADE_OFF is not ruled out.
    """
    a, b = pair(before, after)
    total, tested = changes(a, b)
    word = verdict_of(total, tested)
    fell = [c for c in tested if c.state.startswith("fell")]
    return {
        "verdict": word,
        "words": words(word, total, tested),
        "total": as_dict(total),
        "tested": {change.name: as_dict(change) for change in tested},
        "rose": [c.name for c in tested if c.state == "rose"],
        "fell": [c.name for c in fell],
        "possible": [c.name for c in tested if c.state == "loss possible"],
        "records": len(a),
        "left_out": len(before) + len(after) - 2 * len(a),
        "correction": f"Holm over {len(tested)} quantities, family-wise {LEVEL:.0%}; intervals are uncorrected",
        "notes": notes(a, b, tested, len(before) + len(after) - 2 * len(a)),
    }


def as_dict(change: Change) -> dict[str, Any]:
    return {**{k: v for k, v in vars(change).items() if k != "name"}, "detectable": change.detectable} | {
        "state": change.state
    }


def _bounds(change: Change) -> str:
    return f"[{change.low:+.3f}, {change.high:+.3f}]"


def _fall(change: Change) -> str:
    doubt = {
        "fell": "",
        "fell alone": ", off zero alone, not after the correction",
        "fell unclear": ", which this set cannot tell from no change",
    }[change.state]
    return f"{change.name} fell by {-change.mean:.3f} {_bounds(change)}{doubt}"


def words(word: str, total: Change, tested: Sequence[Change]) -> str:
    """The verdict as sentences: what rose, what fell, what is not ruled out, and what could have been seen."""
    moved = {1: "rose", -1: "fell", 0: "did not move beyond its interval:"}[total.moved]
    if not total.moved and (total.low > 0 or total.high < 0):
        moved = f"cannot be told from chance (sign-flip p {total.p:.2f}):"
    sentences = [f"{word}: the total {moved} {total.mean:+.4f} [{total.low:+.4f}, {total.high:+.4f}]"]
    if rose := [f"{c.name} rose by {c.mean:.3f} {_bounds(c)}" for c in tested if c.state == "rose"]:
        sentences.append("; ".join(rose))
    if fell := [_fall(c) for c in sorted(tested, key=lambda c: c.mean) if c.state.startswith("fell")]:
        sentences.append("; ".join(fell))
    if possible := [f"{c.name} {_bounds(c)}" for c in tested if c.state == "loss possible"]:
        sentences.append(f"a loss of {TRADE_OFF} or more is not ruled out in " + ", ".join(possible))
    if total.records < FEWEST_RECORDS:
        sentences.append(
            f"{total.records} records are too few to judge: {FEWEST_RECORDS} are the fewest that can show a change"
        )
    elif word == NO_DIFFERENCE:
        sentences.append(
            f"a change of the total of {total.detectable:.3f} or more would have been seen with {POWER:.0%} probability"
        )
    return ". ".join(sentences) + "."


def notes(before: Sequence[Record], after: Sequence[Record], tested: Sequence[Change], left_out: int) -> list[str]:
    """What a reader must know beside the figures: lost pairs, failed records, records with fewer samples."""
    said = []
    one_sided = sum(
        (any(s["plan"] is not None for s in a["samples"]) != any(s["plan"] is not None for s in b["samples"]))
        for a, b in zip(before, after, strict=True)
    )
    rate = next(c for c in tested if c.name == "parse_rate")
    if rate.before != rate.after or one_sided:
        said.append(
            f"the parse rate went from {rate.before:.3f} to {rate.after:.3f}: an unparsable completion has no parts, "
            f"so parts are compared without it ({one_sided} records parse on one side only); parse_rate is "
            "tested itself"
        )
    if left_out:
        said.append(f"{left_out} records stand in one file only (failed calls) and are left out")
    samples = max(len(record["samples"]) for record in (*before, *after))
    for label, side in (("A", before), ("B", after)):
        if lost := samples * len(side) - sum(len(record["samples"]) for record in side):
            said.append(
                f"{label} lacks {lost} of {samples * len(side)} completions (failed calls): the means of their records "
                "stand on fewer samples"
            )
    return said
