"""What one scored request says about the service, with a golden record or without, and the means over many.

Without a golden record a request is scored against what its words alone decide (money and exclusions by rule, nothing
else), by the same reward; its total means little and is not reported. What is read then are the SIGNALS below.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.data.anchor_filter import is_fragment
from scripts.data.golden_rows import UNKNOWN
from scripts.data.golden_rules import rule_fields
from scripts.eval.online_log import Request
from scripts.eval.summary import PARTS, abstains_on_category
from swift_plugin.cards import Card
from swift_plugin.reward_loader import Reward


@dataclass(frozen=True)
class Scored:
    """One request with its plan and breakdown (`to_dict`); both are None where no model answered.

    `golden_known` tells a known golden record from one made by rule; `fragment`: its category cannot be known.
    `grounded` is the share of the keywords' Words that stand in some title found, None without a search.
    """

    request: Request
    golden_known: bool
    fragment: bool
    plan: Mapping[str, Any] | None
    issues: tuple[str, ...]
    search: str | None
    titles: tuple[str, ...] | None
    breakdown: Mapping[str, Any] | None
    grounded: float | None


def rule_golden(request: Request, cards: Sequence[Card]) -> dict[str, Any]:
    """The golden record of a request that nobody judged: money and exclusion by rule, everything else abstains."""
    fragment = is_fragment([*request.prior_context, request.text], cards)
    status = "context_missing" if fragment else "agree"
    return {**UNKNOWN, **rule_fields(request.text), "status": status}


def words_in_titles(keywords: Sequence[str], titles: Sequence[str] | None, reward: Reward) -> float | None:
    """The share of the keywords' distinct Words that stand in some title; None without keywords or titles."""
    asked = {word for keyword in keywords for word in reward.words(keyword)}
    if not asked or not titles:
        return None
    found = {word for title in titles for word in reward.words(title)}
    return len(asked & found) / len(asked)


@dataclass(frozen=True)
class Signal:
    """`value` of a scored request in [0, 1], None where it says nothing. `good`: +1 the more the better, -1, 0 neither.

    `says` ends the sentence "share of the requests ...".
    """

    good: int
    says: str
    value: Callable[[Scored], float | None]


def _parsed(read: Callable[[Scored, Mapping[str, Any]], float | None]) -> Callable[[Scored], float | None]:
    """`read` with the breakdown, for requests whose answer is a plan."""
    return lambda one: None if one.plan is None or one.breakdown is None else read(one, one.breakdown)


def _known(part: str) -> Signal:
    return Signal(+1, f"{part} of the reward, over requests with a known golden record", _known_part(part))


def _known_part(part: str) -> Callable[[Scored], float | None]:
    return lambda one: one.breakdown[part] if one.golden_known and one.breakdown is not None else None


def _excludes(one: Scored) -> bool:
    return one.plan is not None and bool(one.plan.get("exclude_terms"))


def _names_category(one: Scored) -> bool:
    category = one.plan.get("category") if one.plan is not None else None
    return isinstance(category, str) and bool(category.strip())


SIGNALS: dict[str, Signal] = {
    "answered": Signal(+1, "that got an answer", lambda one: float(one.request.completion is not None)),
    "parse": Signal(
        +1, "answered with a plan", lambda one: None if one.breakdown is None else float(one.plan is not None)
    ),
    "format": Signal(
        +1,
        "answered in perfect format",
        lambda one: None if one.breakdown is None else float(one.breakdown["format"] == 1.0),
    ),
    "invented_evidence": Signal(
        -1,
        "with exclusions whose evidence was not said",
        _parsed(lambda one, scores: float(scores["evidence_faked"]) if _excludes(one) else None),
    ),
    "copied_sentence": Signal(
        -1,
        "with keywords that copy the sentence",
        _parsed(lambda one, scores: None if scores["empty_keywords"] else float(scores["copycat"])),
    ),
    "no_keywords": Signal(
        -1,
        "whose plan names a category and no keyword",
        _parsed(lambda one, scores: float(scores["empty_keywords"]) if _names_category(one) else None),
    ),
    "finds_titles": Signal(
        +1,
        "whose search found a title",
        _parsed(lambda one, scores: float(bool(one.titles)) if one.search and one.titles is not None else None),
    ),
    "words_in_titles": Signal(+1, "keywords' Words that stand in a title found", lambda one: one.grounded),
    "over_commitment": Signal(
        -1,
        "that are fragments, yet got a category",
        _parsed(lambda one, scores: float(scores["overcommit"]) if one.fragment else None),
    ),
    "budget": Signal(+1, "budget score, by rule", _parsed(lambda one, scores: scores["budget"])),
    "exclusion_missed": Signal(
        -1,
        "that exclude something, and whose plan does not",
        _parsed(lambda one, scores: float(scores["exclusion_missed"]) if _expects_exclusion(one) else None),
    ),
    "fragments": Signal(0, "that are fragments", lambda one: float(one.fragment)),
    "abstentions": Signal(
        0, "whose plan leaves the category open", _parsed(lambda one, scores: float(abstains_on_category(one.plan)))
    ),
    "reward": _known("total"),
    **{part: _known(part) for part in PARTS if part not in ("format", "budget")},
}


def _expects_exclusion(one: Scored) -> bool:
    return bool(rule_fields(one.request.text)["exclude_expected"])


def values_of(scored: Scored) -> dict[str, float | None]:
    """Every signal of one request."""
    return {name: signal.value(scored) for name, signal in SIGNALS.items()}


def tally(values: Iterable[Mapping[str, float | None]]) -> dict[str, Any]:
    """`{"requests", "signals": {name: {"requests", "mean", "sd"}}}`; mean and population sd None over no request."""
    rows = list(values)
    signals = {}
    for name in SIGNALS:
        known = [value for row in rows if (value := row[name]) is not None]
        mean = math.fsum(known) / len(known) if known else None
        spread = None if mean is None else math.sqrt(math.fsum((v - mean) ** 2 for v in known) / len(known))
        signals[name] = {"requests": len(known), "mean": mean, "sd": spread}
    return {"requests": len(rows), "signals": signals}
