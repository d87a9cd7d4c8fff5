"""Gates that the reward does not have: what each would do to a plan, for the calibration's report to measure.

Each makes the field score 0 on top of the gates that are on, which is what made-up evidence does already. The reward
itself is not changed by this file.
"""

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from reward.planner_reward import REVIEW_FACTOR, words
from scripts.eval.calibration_policies import Case

EVIDENCE_SHARE = 0.8  # the longest evidence a careful person quoted on dev92 is 0.73 of its sentence
SAME_EVIDENCE = 0.5  # overlap of Words from which on two pieces of a sentence are the same evidence
MOST_DOMAINS = 3  # as many as a card may have
FIELD = "field"


@dataclass(frozen=True)
class Candidate:
    """`acts(case, plan)`: whether the field of this (parsed) plan becomes 0."""

    name: str
    rule: str
    acts: Callable[[Case, Mapping[str, Any]], bool]


def _excluded(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    raw = plan.get("exclude_terms")
    return [one for one in raw if isinstance(one, Mapping)] if isinstance(raw, list) else []


def _squeezed(text: str) -> str:
    return "".join(ch for ch in unicodedata.normalize("NFKC", text).casefold() if ch.isalnum())


def quotes_nearly_everything(case: Case, plan: Mapping[str, Any]) -> bool:
    """Whether some evidence holds at least EVIDENCE_SHARE of the sentence's letters and digits."""
    quoted = [one["evidence"] for one in _excluded(plan) if isinstance(one.get("evidence"), str)]
    return any(len(_squeezed(one)) >= EVIDENCE_SHARE * len(_squeezed(case.text)) for one in quoted)


def quotes_something_else(case: Case, plan: Mapping[str, Any]) -> bool:
    """Whether some evidence is none of those written by hand (Jaccard overlap of Words); where there are none, always.

    The golden record holds no evidence today: what a careful person quoted stands in for it.
    """
    expected = [set(words(one["evidence"])) for one in case.exclude_terms]
    quoted = [set(words(one["evidence"])) for one in _excluded(plan) if isinstance(one.get("evidence"), str)]
    return any(
        not any(len(given & known) >= SAME_EVIDENCE * len(given | known) for known in expected) for given in quoted
    )


def misses_exclusion(case: Case, plan: Mapping[str, Any]) -> bool:
    """Whether an exclusion is expected and the plan excludes no word."""
    stated = [one["word"] for one in _excluded(plan) if isinstance(one.get("word"), str) and one["word"].strip()]
    return bool(case.golden["exclude_expected"]) and not stated


def names_no_or_many_domains(case: Case, plan: Mapping[str, Any]) -> bool:
    """Whether the domains are known and the plan names none, or more than MOST_DOMAINS."""
    named = plan.get("domains")
    return bool(case.golden["domains"]) and not (isinstance(named, list) and 1 <= len(named) <= MOST_DOMAINS)


CANDIDATES: tuple[Candidate, ...] = (
    Candidate(
        "evidence_span",
        f"evidence that holds {EVIDENCE_SHARE} or more of the sentence counts as made up: field 0",
        quotes_nearly_everything,
    ),
    Candidate(
        "golden_evidence",
        "the golden record holds the words that exclude, and evidence that is not these counts as made up: field 0",
        quotes_something_else,
    ),
    Candidate(
        "missed_exclusion",
        "an expected exclusion that is not stated costs what a made-up one costs: field 0",
        misses_exclusion,
    ),
    Candidate(
        "domain_count",
        f"no domain, or more than {MOST_DOMAINS}, where the domains are known: field 0",
        names_no_or_many_domains,
    ),
)


def total_without_field(breakdown: Mapping[str, Any], status: str, weights: Mapping[str, float]) -> float:
    """The total of a scored plan if its field score were 0; a plan that does not parse keeps its total."""
    scores = {**{name: breakdown[name] for name in weights if name != FIELD}, FIELD: breakdown["field_score"]}
    shares = {**weights, FIELD: weights[FIELD] * (REVIEW_FACTOR if status == "review" else 1)}
    known = {name: score for name, score in scores.items() if score is not None}
    weight = sum(shares[name] for name in known)
    if weight == 0:
        return float(breakdown["total"])
    return sum(shares[name] * score for name, score in known.items() if name != FIELD) / weight
