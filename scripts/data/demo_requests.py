"""The demo's shoppers: families of requests whose golden record is known by construction.

A request is drawn as facts first (which card, which attributes, what budget, what exclusion) and worded second;
the golden record and the SFT target are both read off the facts, never off the words. The shopper's budget in an
earlier turn is not repeated in the plan: a plan states what this turn changes.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from reward.planner_reward import term_hits
from scripts.data.demo_money import nice_amount, written_amount, written_range, written_vague
from scripts.data.demo_targets import Exclusion, keywords, plan_json
from scripts.data.demo_templates import Filled, Templates
from swift_plugin.cards import Attribute, Card, rivals

YUAN_PER_DOLLAR = 7  # cards price in dollars, shoppers speak of yuan; only the size of the sum matters here
JUST_BELOW_SHARE = 0.1  # of the sums are a shop's 99 or 299 rather than round
DOMAIN_WHEN_UNKNOWN = "other"
CATEGORY_WHEN_UNKNOWN = ""  # as the full prompt asks; null would abstain as well

T = TypeVar("T")


@dataclass(frozen=True)
class Unwanted:
    """One thing that shoppers exclude: its Chinese forms, its English word, the domains where it makes sense."""

    zh: tuple[str, ...]
    en: str
    domains: frozenset[str]
    held_out: bool


@dataclass(frozen=True)
class Facts:
    """What a request means. `card` None: the category cannot be known."""

    card: Card | None = None
    attributes: tuple[Attribute, ...] = ()
    budget_amount: int | None = None
    budget_uncertain: bool = False
    clear_budget: bool = False
    unwanted: Unwanted | None = None
    status: str = "agree"


@dataclass(frozen=True)
class Request:
    """A worded request with its facts. `prior_context` holds the earlier turns, oldest first."""

    family: str
    text: str
    facts: Facts
    evidence: str = ""
    prior_context: tuple[str, ...] = ()


def golden_record(facts: Facts) -> dict[str, Any]:
    """The golden record of DESIGN section 4; where only the category is asked, the anchor alone judges the search."""
    card = facts.card
    return {
        "category": card.zh if card else None,
        "domains": list(card.domains) if card else None,
        "budget_amount": facts.budget_amount,
        "clear_budget": facts.clear_budget,
        "budget_uncertain": facts.budget_uncertain,
        "must_have": list(dict.fromkeys(term for one in facts.attributes for term in one.must_have)) if card else [],
        "must_not": list(card.must_not) if card else [],
        "category_anchor": card.anchor if card else "",
        "exclude_expected": facts.unwanted is not None,
        "status": facts.status,
    }


def target_plan(rng: random.Random, request: Request) -> str:
    """The assistant's turn for `request` (see demo_targets)."""
    facts = request.facts
    card = facts.card
    return plan_json(
        category=card.zh if card else CATEGORY_WHEN_UNKNOWN,
        domains=card.domains if card else (DOMAIN_WHEN_UNKNOWN,),
        budget_amount=facts.budget_amount,
        clear_budget=facts.clear_budget,
        terms=keywords(rng, card, facts.attributes) if card else (),
        exclusions=[Exclusion(facts.unwanted.en, request.evidence)] if facts.unwanted else (),
    )


class Deck(Generic[T]):
    """Draws without replacement and reshuffles when empty, so that everything is seen about equally often."""

    def __init__(self, rng: random.Random, items: Sequence[T]) -> None:
        if not items:
            raise ValueError("nothing to draw from: the cards or exclusions of this split are empty")
        self._rng, self._items, self._left = rng, tuple(items), list[T]()

    def draw(self) -> T:
        if not self._left:
            self._left = list(self._items)
            self._rng.shuffle(self._left)
        return self._left.pop()


@dataclass
class Shopper:
    """Words requests of every family from one template file.

    Args:
        rng: the only source of chance.
        held_out_share: share of the requests that ask for held-out attributes and exclusions; 0 for training.
    """

    rng: random.Random
    cards: Sequence[Card]
    unwanted: Sequence[Unwanted]
    templates: Templates
    held_out_share: float
    _decks: dict[str, Deck[Any]] = field(init=False)
    _families: Mapping[str, Callable[[], Request]] = field(init=False)

    def __post_init__(self) -> None:
        self._decks = {"card": Deck(self.rng, self.cards)}
        pairs = [(card, one) for card in self.cards for one in card.attributes]
        for held_out in (False, True) if self.held_out_share else (False,):
            self._decks[f"attribute {held_out}"] = Deck(
                self.rng, [pair for pair in pairs if pair[1].held_out == held_out]
            )
        self._families = {name: getattr(self, f"_{name}") for name in FAMILIES}

    def request(self, family: str) -> Request:
        """One request of `family` (a name in FAMILIES)."""
        return self._families[family]()

    # What is asked for

    def _held_out(self) -> bool:
        return self.rng.random() < self.held_out_share

    def _single_facts(self) -> Facts:
        return Facts(card=self._decks["card"].draw())

    def _attribute_facts(self, count: int = 1) -> Facts:
        card, first = self._decks[f"attribute {self._held_out()}"].draw()
        allowed = [one for one in card.attributes if self.held_out_share or not one.held_out]
        others = [one for one in allowed if one is not first and not rivals(one, first)]
        return Facts(card=card, attributes=(first, *self.rng.sample(others, count - 1)))

    def _some_facts(self) -> Facts:
        return self._attribute_facts() if self.rng.random() < 0.65 else self._single_facts()

    def _with(self, facts: Facts, **changes: Any) -> Facts:
        return Facts(**{**facts.__dict__, **changes})

    def _pick_unwanted(self, facts: Facts) -> Unwanted:
        """Something to exclude that does not contradict what is asked for."""
        card = facts.card
        asked = [card.anchor, *card.synonyms] if card else []
        asked += [term for one in facts.attributes for term in (one.en, *one.must_have)]
        forms = [form for one in facts.attributes for form in one.zh]
        if card and not self.held_out_share:  # training does not even exclude what the card holds out
            forms += [form for one in card.attributes if one.held_out for form in one.zh]
            asked += [one.en for one in card.attributes if one.held_out]

        def fits(one: Unwanted) -> bool:
            if card and not one.domains & set(card.domains):
                return False
            if any(mine in form or form in mine for mine in one.zh for form in forms):
                return False
            return not any(term_hits(one.en, term) for term in asked)

        fitting = [one for one in self.unwanted if fits(one)]
        preferred = [one for one in fitting if one.held_out == self._held_out()]
        return self.rng.choice(preferred or [one for one in fitting if self.held_out_share or not one.held_out])

    def _amount(self, facts: Facts) -> int:
        price = facts.card.price if facts.card else None
        dollars = self.rng.uniform(price.q1, price.q3 * 1.3) if price else self.rng.choice((8, 20, 45, 90, 200))
        amount = nice_amount(dollars * YUAN_PER_DOLLAR)
        return amount - 1 if self.rng.random() < JUST_BELOW_SHARE else amount

    # How it is worded

    def _name(self, card: Card) -> str:
        names = [name for name in (card.zh, *card.names) if name not in card.ambiguous]
        return self.rng.choice(names)

    def _slots(self, facts: Facts) -> dict[str, str]:
        slots = {"cat": self._name(facts.card)} if facts.card else {}
        for name, attribute in zip(("attr", "attr2"), facts.attributes, strict=False):
            slots[name] = self.rng.choice(attribute.zh).removesuffix("的")
        return slots

    def _ask(self, facts: Facts) -> Filled:
        section = ("single", "attribute", "two")[len(facts.attributes)]
        return self._fill(section, **self._slots(facts))

    def _fill(self, section: str, **slots: str) -> Filled:
        return self.templates.pick(self.rng, section, **slots)

    def _written(self, amount: int) -> str:
        return written_amount(self.rng, amount)

    def _range(self, high: int) -> str:
        return written_range(self.rng, nice_amount(high * self.rng.choice((0.5, 0.6, 0.7))), high)

    def _short_budget(self, amount: int) -> str:
        return self._fill("budget_short", n=self._written(amount), r=self._range(amount)).text

    def _request(
        self, family: str, facts: Facts, *clauses: Filled, ordered: bool = False, prior: Sequence[str] = ()
    ) -> Request:
        order = list(clauses)
        if not ordered and self.rng.random() < 0.4:
            self.rng.shuffle(order)
        done = self.templates.finish(self.rng, order)
        return Request(family, done.text, facts, done.evidence, tuple(prior))

    # Families: category, attributes, budgets

    def _single(self) -> Request:
        facts = self._single_facts()
        return self._request("single", facts, self._ask(facts))

    def _attribute(self) -> Request:
        facts = self._attribute_facts()
        return self._request("attribute", facts, self._ask(facts))

    def _two_attributes(self) -> Request:
        facts = self._attribute_facts(2)
        return self._request("two_attributes", facts, self._ask(facts))

    def _budget(self, family: str, facts: Facts, clause: Filled) -> Request:
        return self._request(family, facts, self._ask(facts), clause)

    def _budget_exact(self) -> Request:
        facts = self._some_facts()
        amount = self._amount(facts)
        clause = self._fill("budget_exact", n=self._written(amount))
        return self._budget("budget_exact", self._with(facts, budget_amount=amount), clause)

    def _budget_range(self) -> Request:
        facts = self._some_facts()
        high = self._amount(facts)
        clause = self._fill("budget_range", r=self._range(high))
        return self._budget("budget_range", self._with(facts, budget_amount=high), clause)

    def _budget_colloquial(self) -> Request:
        facts = self._some_facts()
        clause = self._fill("budget_vague", v=written_vague(self.rng, self._amount(facts)))
        return self._budget("budget_colloquial", self._with(facts, budget_uncertain=True), clause)

    def _budget_lower_bound(self) -> Request:
        facts = self._some_facts()
        clause = self._fill("budget_lower", n=self._written(self._amount(facts)))
        return self._budget("budget_lower_bound", facts, clause)

    def _budget_open(self) -> Request:
        facts = self._some_facts()
        return self._budget("budget_open", facts, self._fill("budget_open"))

    def _budget_lifted(self) -> Request:
        facts = self._with(self._some_facts(), clear_budget=True)
        prior = [self._fill("prior_budget", n=self._written(self._amount(facts))).text]
        clauses = [self._fill("follow_lifted")]
        if facts.attributes and self.rng.random() < 0.5:
            clauses.append(self._fill("follow_attribute", **self._slots(facts)))
            prior.insert(0, self._fill("prior", **self._slots(facts)).text)
        else:
            prior.insert(0, self._ask(facts).text)
        if self.rng.random() < 0.3:
            prior = ["，".join(prior)]
        return self._request("budget_lifted", facts, *clauses, prior=prior)

    # Exclusions

    def _exclusion_hard(self) -> Request:
        facts = self._some_facts()
        unwanted = self._pick_unwanted(facts)
        clause = self._fill("exclude_hard", x=self.rng.choice(unwanted.zh))
        return self._request("exclusion_hard", self._with(facts, unwanted=unwanted), self._ask(facts), clause)

    def _exclusion_soft(self) -> Request:
        facts = self._some_facts()
        clause = self._fill("exclude_soft", x=self.rng.choice(self._pick_unwanted(facts).zh))
        return self._request("exclusion_soft", facts, self._ask(facts), clause)

    def _combo(self) -> Request:
        """Two or three of attribute, budget and exclusion as clauses of their own, in any order."""
        facts = self._attribute_facts()
        slots = self._slots(facts)
        clauses = [self._ask(self._with(facts, attributes=())), self._fill("combo_attribute", **slots)]
        if self.rng.random() < 0.65:
            amount = self._amount(facts)
            facts = self._with(facts, budget_amount=amount)
            clauses.append(self._fill("budget_exact", n=self._written(amount)))
        if self.rng.random() < 0.5:
            facts = self._with(facts, unwanted=self._pick_unwanted(facts))
            assert facts.unwanted is not None
            clauses.append(self._fill("exclude_hard", x=self.rng.choice(facts.unwanted.zh)))
        return self._request("combo", facts, *clauses)

    # Several turns

    def _talk(self, turns: list[str]) -> list[str]:
        if self.rng.random() < 0.25:
            turns.insert(self.rng.randint(0, len(turns)), self._fill("prior_talk").text)
        return turns

    def _multi_turn(self) -> Request:
        """The category stands in an earlier turn; this turn adds an attribute, a budget or an exclusion."""
        kind = self.rng.choice(("attribute", "attribute", "budget", "exclusion"))
        facts = self._attribute_facts() if kind == "attribute" else self._some_facts()
        if kind == "attribute":
            prior = self._fill("prior", **self._slots(facts)).text
            clause = self._fill("follow_attribute", **self._slots(facts))
        elif kind == "budget":
            prior = self._ask(facts).text
            facts = self._with(facts, budget_amount=self._amount(facts))
            clause = self._fill("follow_budget", b=self._short_budget(facts.budget_amount or 0))
        else:
            prior = self._ask(facts).text
            facts = self._with(facts, unwanted=self._pick_unwanted(facts))
            assert facts.unwanted is not None
            clause = self._fill("fragment_exclude", x=self.rng.choice(facts.unwanted.zh))
        return self._request("multi_turn", facts, clause, prior=self._talk([prior]))

    def _switch(self) -> Request:
        """This turn drops the earlier category for another one; what was asked of the old one is gone."""
        facts, dropped = self._some_facts(), self._some_facts()
        while facts.card is dropped.card:
            dropped = self._some_facts()
        clauses = [self._fill("switch", **self._slots(facts))]
        if facts.attributes:
            clauses.append(self._fill("combo_attribute", **self._slots(facts)))
        return self._request("switch", facts, *clauses, ordered=True, prior=self._talk([self._ask(dropped).text]))

    def _follow_up_no_context(self) -> Request:
        """A fragment whose category only the missing context would tell."""
        kind = self.rng.choice(("bare", "bare", "attribute", "attribute", "budget", "exclude", "lifted"))
        facts = Facts(status="context_missing")
        if kind == "bare":
            clause = self._fill("fragment")
        elif kind == "attribute":
            clause = self._fill("fragment_attribute", attr=self._slots(self._attribute_facts())["attr"])
        elif kind == "budget":
            facts = self._with(facts, budget_amount=self._amount(self._single_facts()))
            clause = self._fill("fragment_budget", b=self._short_budget(facts.budget_amount or 0))
        elif kind == "exclude":
            facts = self._with(facts, unwanted=self._pick_unwanted(facts))
            assert facts.unwanted is not None
            clause = self._fill("fragment_exclude", x=self.rng.choice(facts.unwanted.zh))
        else:
            facts = self._with(facts, clear_budget=True)
            clause = self._fill("follow_lifted")
        return self._request("follow_up_no_context", facts, clause)

    # Nothing to search for

    def _chitchat(self) -> Request:
        return self._request("chitchat", Facts(), self._fill("chitchat"))

    def _vague(self) -> Request:
        """A wish to buy that names no category, sometimes with a budget."""
        facts, clauses = Facts(), [self._fill("vague")]
        if self.rng.random() < 0.35:
            facts = Facts(budget_amount=self._amount(facts))
            clauses.append(self._fill("budget_exact", n=self._written(facts.budget_amount or 0)))
        return self._request("vague", facts, *clauses)


# Families, with their share of the SFT rows and of the GRPO prompts (in the latter fewer requests that leave the
# search words unjudged: groups of equal reward teach nothing).
FAMILIES: dict[str, tuple[float, float]] = {
    "single": (8, 6),
    "attribute": (20, 26),
    "two_attributes": (7, 9),
    "budget_exact": (9, 10),
    "budget_range": (4, 4),
    "budget_colloquial": (5, 5),
    "budget_lower_bound": (3, 3),
    "budget_open": (2, 2),
    "budget_lifted": (4, 4),
    "exclusion_hard": (10, 10),
    "exclusion_soft": (4, 4),
    "multi_turn": (8, 8),
    "switch": (3, 3),
    "combo": (6, 7),
    "follow_up_no_context": (8, 4),
    "chitchat": (3, 1),
    "vague": (4, 1),
}
