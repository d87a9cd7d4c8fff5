"""Rules that correct a plan without training: from the words said and the cards alone, never from the golden record.

Each takes a plan and gives a plan. What a rule mends and what it breaks is measured by `should_i_train.py`, on
completions that were scored already; the keywords stay as they are, so the titles found stay valid.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.data.anchor_filter import is_fragment
from scripts.data.golden_rules import budget_fields
from swift_plugin.cards import Card
from swift_plugin.reward_loader import Reward

Plan = Mapping[str, Any]
NOTHING_KNOWN: dict[str, Any] = {
    "category": None,
    "domains": None,
    "budget_amount": None,
    "clear_budget": False,
    "budget_uncertain": True,
    "must_have": [],
    "category_anchor": "",
    "exclude_expected": False,
    "status": "agree",
}


@dataclass(frozen=True)
class Said:
    """What a rule may look at: this turn's words, the turns before it, the cards, and the reward's own comparisons."""

    text: str
    prior_context: Sequence[str]
    cards: Sequence[Card]
    reward: Reward


@dataclass(frozen=True)
class Rule:
    """`error` is the class of scripts/eval/error_classes.py that it is for."""

    error: str
    says: str
    correct: Callable[[Plan, Said], Plan]


def named_card(text: str, cards: Sequence[Card]) -> Card | None:
    """The one card that the text names; None where it names none or several.

    A name inside a longer name that also stands there does not count, nor does one that the card calls ambiguous.
    """
    found = [(name, card) for card in cards for name in card.names if name in text and name not in card.ambiguous]
    outer = [(n, card) for n, card in found if not any(n != other and n in other for other, _ in found)]
    ids = {card.id for _, card in outer}
    return outer[0][1] if len(ids) == 1 else None


def _category_by_name(plan: Plan, said: Said) -> Plan:
    card = named_card(said.text, said.cards)
    return plan if card is None else {**plan, "category": card.zh}


def _domains_by_card(plan: Plan, said: Said) -> Plan:
    category = plan.get("category")
    card = named_card(said.text, said.cards) or named_card(category if isinstance(category, str) else "", said.cards)
    return plan if card is None else {**plan, "domains": list(card.domains)}


def _budget_by_rule(plan: Plan, said: Said) -> Plan:
    fields = budget_fields(said.text)
    if fields["budget_uncertain"]:
        return plan
    return {**plan, "budget_amount": fields["budget_amount"], "clear_budget": fields["clear_budget"]}


def _said_evidence_only(plan: Plan, said: Said) -> Plan:
    exclusions = plan.get("exclude_terms")
    if not isinstance(exclusions, list):
        return plan
    return {**plan, "exclude_terms": [one for one in exclusions if not _made_up(one, plan, said)]}


def _made_up(exclusion: Any, plan: Plan, said: Said) -> bool:
    """Whether the reward calls this exclusion's evidence made up."""
    alone = {**plan, "exclude_terms": [exclusion]}
    scores = said.reward.compute_reward(
        alone, NOTHING_KNOWN, said.text, None, weights=said.reward.DEFAULT_WEIGHTS, gates=()
    )
    return bool(scores.to_dict()["evidence_faked"])


def _fragment_abstains(plan: Plan, said: Said) -> Plan:
    fragment = is_fragment([*said.prior_context, said.text], said.cards)
    return {**plan, "category": None} if fragment else plan


RULES: dict[str, Rule] = {
    "category by name": Rule("category", "the turn names one card: take its category", _category_by_name),
    "domains by card": Rule(
        "domain", "the turn, else the plan's category, names one card: take its domains", _domains_by_card
    ),
    "budget by rule": Rule("budget", "read the money with reward/budget.py, unless it is uncertain", _budget_by_rule),
    "said evidence only": Rule(
        "invented_evidence", "drop every exclusion whose evidence was not said", _said_evidence_only
    ),
    "fragments abstain": Rule(
        "over_commitment", "the turn is a fragment without its context: leave the category open", _fragment_abstains
    ),
}
