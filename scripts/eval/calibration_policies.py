"""Plans to calibrate the reward with: what a careful person writes, the sentence copied, broken, honest with faults.

A policy sees a `Case` (one dev record with its card and what was written for it by hand) and makes a plan. Faults are
drawn from the case's id and the number of the draw alone: the same faults come back in every run, and those of a low
rate are among those of a higher one.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reward.planner_reward import DOMAINS, PLAN_KEYS, RESERVED_DOMAIN
from scripts.data.demo_targets import described
from swift_plugin.cards import Card

UNKNOWN_CATEGORY, UNKNOWN_DOMAINS = "", ("other",)  # as the system prompt asks
INVENTED_AMOUNTS = (100, 200, 300, 500, 1000)

Plan = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One dev record: `golden` is parsed, `card` is that of its anchor (None: nothing to look for).

    `english` is the sentence in the catalogue's language (None: not translated), `exclude_terms` what a careful
    person excludes.
    """

    id: str
    text: str
    golden: Mapping[str, Any]
    card: Card | None
    english: str | None
    exclude_terms: tuple[Mapping[str, str], ...]


def make_cases(
    rows: Sequence[Mapping[str, Any]],
    goldens: Sequence[Mapping[str, Any]],
    cards: Sequence[Card],
    english: Mapping[str, str],
    exclusions: Mapping[str, Sequence[Mapping[str, str]]],
) -> list[Case]:
    """A case a row. ValueError names a record whose anchor has no card, or whose exclusions nobody wrote down."""
    by_anchor = {card.anchor: card for card in cards}
    cases = []
    for row, golden in zip(rows, goldens, strict=True):
        anchor = golden["category_anchor"] or ""
        if anchor and anchor not in by_anchor:
            raise ValueError(f"record {row['id']}: category_anchor {anchor!r} is the anchor of no card; write the card")
        if golden["exclude_expected"] != bool(exclusions.get(row["id"])):
            raise ValueError(
                f"record {row['id']}: exclude_expected is {golden['exclude_expected']}, but the exclusions written by"
                f" hand hold {exclusions.get(row['id'])!r}; add or correct the line"
            )
        written = tuple(exclusions.get(row["id"], ()))
        for item in written:
            if set(item) != {"word", "evidence"} or item["evidence"] not in row["text"]:
                raise ValueError(f"record {row['id']}: exclusion {item!r} needs word, and evidence from the text")
        card = by_anchor[anchor] if anchor else None
        cases.append(Case(row["id"], row["text"], golden, card, english.get(row["id"]), written))
    return cases


# ------------------------------------------------------------------------------------------------ policies


def asked_for(case: Case) -> list[str]:
    """What the shopper asks beyond the category, in English, as the card calls it."""
    wanted = set(case.golden["must_have"])
    if case.card is None:
        return []
    found = [one for one in case.card.attributes if set(one.must_have) <= wanted]
    named = {term for one in found for term in one.must_have}
    # The card's English form may say less than a title does ("for women"): the title's term is what is searched.
    return [one.must_have[0] for one in found] + [term for term in case.golden["must_have"] if term not in named]


def careful_keywords(card: Card, asked: Sequence[str]) -> list[str]:
    """All that is asked with the category's name, and the category's other name: nothing more, nothing twice."""
    return [described(card.anchor, *asked), card.synonyms[0]]


def strong(case: Case) -> Plan:
    """What a careful person writes who read the sentence, the card and the rules."""
    golden = case.golden
    return {
        "category": golden["category"] or UNKNOWN_CATEGORY,
        "domains": list(golden["domains"] or UNKNOWN_DOMAINS),
        "budget_amount": golden["budget_amount"],
        "clear_budget": golden["clear_budget"],
        "keywords": careful_keywords(case.card, asked_for(case)) if case.card else [],
        "exclude_terms": [dict(item) for item in case.exclude_terms],
    }


def copycat(case: Case) -> Plan:
    """The careful plan, but the sentence as it stands for keywords."""
    return {**strong(case), "keywords": [case.text]}


def written(plan: Mapping[str, Any]) -> str:
    """A plan as a completion."""
    return json.dumps(plan, ensure_ascii=False)


WRONG_TYPES: Plan = {
    "category": 7,
    "domains": "footwear",
    "budget_amount": "三百元",
    "clear_budget": "no",
    "keywords": [],
    "exclude_terms": {},
}


def broken(cases: Sequence[Case]) -> list[str]:
    """A completion a case, in thirds: cut off in the middle, another record's plan, wrong types without keywords.

    The other record asks for another category, where there is one.
    """
    completions = []
    for number, case in enumerate(cases):
        if number % 3 == 0:
            whole = written(strong(case))
            completions.append(whole[: len(whole) // 2])
        elif number % 3 == 1:
            turn = [*cases[number + 1 :], *cases[:number]]
            other = next((c for c in turn if c.golden["category"] != case.golden["category"]), case)
            completions.append(written(strong(other)))
        else:
            completions.append(written(WRONG_TYPES))
    return completions


# -------------------------------------------------------------------------------------------------- faults

Fault = Callable[[Case, Plan, random.Random, Sequence[Card]], Any]


def _category(case: Case, plan: Plan, rng: random.Random, cards: Sequence[Card]) -> Any:
    """Another category, or none where there is one; an invented one where none can be known."""
    other = rng.choice([card.zh for card in cards if card.zh != plan["category"]])
    return other if not plan["category"] else rng.choice([other, UNKNOWN_CATEGORY])


def _domains(case: Case, plan: Plan, rng: random.Random, cards: Sequence[Card]) -> Any:
    """Another domain instead, or one too many."""
    other = rng.choice([name for name in DOMAINS if name != RESERVED_DOMAIN and name not in plan["domains"]])
    return rng.choice([[other], [*plan["domains"], other]])


def _budget(case: Case, plan: Plan, rng: random.Random, cards: Sequence[Card]) -> Any:
    """Missed, ten times too much, or a string; invented where none is said."""
    amount = plan["budget_amount"]
    if amount is None:
        return rng.choice(INVENTED_AMOUNTS)
    return rng.choice([None, amount * 10, str(amount)])


def _clear(case: Case, plan: Plan, rng: random.Random, cards: Sequence[Card]) -> Any:
    return not plan["clear_budget"]


def _keywords(case: Case, plan: Plan, rng: random.Random, cards: Sequence[Card]) -> Any:
    """The category without what is asked, one of two wishes lost, another category's words, or none at all."""
    if case.card is None:
        return careful_keywords(rng.choice(list(cards)), ())
    asked = asked_for(case)
    other = rng.choice([card for card in cards if card is not case.card])
    kept = asked[: len(asked) - 1]
    return rng.choice(
        [
            [case.card.anchor],
            careful_keywords(case.card, kept) if asked else [case.card.synonyms[0]],
            careful_keywords(other, asked),
            [],
        ]
    )


def _exclusions(case: Case, plan: Plan, rng: random.Random, cards: Sequence[Card]) -> Any:
    """Missed, or stated on words that nobody said; an invented one, on said or made-up words, where none is due."""
    if plan["exclude_terms"]:
        reworded = [{"word": one["word"], "evidence": f"不想要{one['word']}"} for one in plan["exclude_terms"]]
        return rng.choice([[], reworded])
    word = rng.choice(["plastic", "black", "used"])
    return [{"word": word, "evidence": rng.choice([case.text[-6:], f"不想要{word}"])}]


FAULTS: dict[str, Fault] = {
    "category": _category,
    "domains": _domains,
    "budget_amount": _budget,
    "clear_budget": _clear,
    "keywords": _keywords,
    "exclude_terms": _exclusions,
}
assert tuple(FAULTS) == PLAN_KEYS


def with_faults(case: Case, cards: Sequence[Card], rate: float, draw: int) -> Plan:
    """The careful plan with each of its six fields wrong with probability `rate`, independently.

    Raises ValueError for a rate outside [0, 1].
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"fault rate {rate}: a probability is expected")
    plan = strong(case)
    for key, fault in FAULTS.items():
        rng = random.Random(f"{case.id} {draw} {key}")
        if rng.random() < rate:
            plan[key] = fault(case, plan, rng, cards)
    return plan
