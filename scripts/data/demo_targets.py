"""What a careful API model answers to a request without seeing the index: the SFT target, as compact JSON.

Such a model knows the language and the rules of the plan, not the words of the catalogue. It repeats the category
and varies it by synonyms; which of the variants the index rewards is for GRPO to find out.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from swift_plugin.cards import Attribute, Card

POSTPOSED = ("with ", "for ", "in ", "without ", "of ")
LONGEST_KEYWORD = 4  # words; a longer variant is used only where no shorter one says the same
FEWEST_KEYWORDS, MOST_KEYWORDS = 3, 5
KEYWORD_COUNTS = (3, 4, 4, 5)


@dataclass(frozen=True)
class Exclusion:
    """A hard exclusion as the plan states it: English word, verbatim evidence."""

    word: str
    evidence: str


def described(head: str, *attributes: str) -> str:
    """Attributes and head as one English phrase.

    >>> described("running shoes", "waterproof", "with reflectors")
    'waterproof running shoes with reflectors'
    """
    before = [words for words in attributes if not words.startswith(POSTPOSED)]
    after = [words for words in attributes if words.startswith(POSTPOSED)]
    return " ".join((*before, head, *after))


def keyword_variants(card: Card, attributes: Sequence[Attribute]) -> tuple[list[str], list[str]]:
    """Search terms for what was asked: the main one first, and the further ones in no particular order."""
    asked = [attribute.en for attribute in attributes]
    main = [described(card.anchor, *asked)]
    further = [described(synonym, *asked) for synonym in card.synonyms]
    if len(asked) > 1:
        further += [described(card.anchor, one) for one in asked]
        further += [described(card.synonyms[0], one) for one in asked]
    if asked:
        further += [described(card.anchor, term) for one in attributes for term in other_names(one, card)]
        further += [card.anchor, *card.synonyms[:1]]
    return main, [term for term in dict.fromkeys(further) if term not in main]


def other_names(attribute: Attribute, card: Card) -> list[str]:
    """Further `must_have` terms of an attribute that do not already hold the category's words."""
    if attribute.en.startswith("with "):
        return []  # nobody writes "pockets dress"
    head = card.anchor.split()[-1].rstrip("s")
    return [term for term in attribute.must_have if term != attribute.en and head not in term]


def keywords(rng: random.Random, card: Card, attributes: Sequence[Attribute]) -> list[str]:
    """Three to five search terms (two where a category has a single synonym and nothing more is asked)."""
    main, further = keyword_variants(card, attributes)
    count = rng.choice(KEYWORD_COUNTS)
    rng.shuffle(further)
    further.sort(key=lambda term: len(term.split()) > LONGEST_KEYWORD)  # stable: short ones first, order random
    return main + further[: count - 1]


def plan_json(
    category: str,
    domains: Sequence[str],
    budget_amount: int | None,
    clear_budget: bool,
    terms: Sequence[str],
    exclusions: Sequence[Exclusion],
) -> str:
    """The plan as the assistant writes it: one line, keys in the order of the design, no spaces."""
    plan = {
        "category": category,
        "domains": list(domains),
        "budget_amount": budget_amount,
        "clear_budget": clear_budget,
        "keywords": list(terms),
        "exclude_terms": [{"word": one.word, "evidence": one.evidence} for one in exclusions],
    }
    return json.dumps(plan, ensure_ascii=False, separators=(",", ":"))
