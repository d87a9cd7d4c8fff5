"""Category cards: what the demo's catalogue and requests are made of.

One card is one line of `data/category_cards.jsonl`:

    id           snake_case, unique
    zh           the category as a plan writes it, 2-10 characters, unique
    aliases      what shoppers also say; a name that two cards share is listed in `ambiguous` of both
    anchor       the category in the catalogue's language, head last ("running shoes")
    domains      one or more of the reward's DOMAINS
    synonyms     what a careful model may search for without knowing the index
    attributes   {zh, en, must_have, held_out}: Chinese forms (each reads well before 的), the English form,
                 the terms of which one stands in a title that has it; the two held out are never trained on
    must_not     terms of accessories and look-alikes that never stand in a title of the thing itself
    accessories  titles' phrases that hold the category's words and are something else
    look_alikes  phrases that are near in words only
    price        {currency, q1, median, q3} of the thing itself

An attribute is the same on every card: `en` fixes `zh` and `must_have`.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reward.planner_reward import DOMAINS, RESERVED_DOMAIN, compute_reward, term_hits, words
from swift_plugin.settings import CHECKOUT

DEFAULT_CARDS = CHECKOUT / "data" / "category_cards.jsonl"
HELD_OUT_PER_CARD = 2
TRAINED_ELSEWHERE = 2  # cards on which an attribute held out here is trained: a small model has to compose
ZH_CHARACTERS = (2, 10)
COUNTS = {  # least and most entries of each list
    "aliases": (3, 5),
    "domains": (1, 3),
    "synonyms": (2, 3),
    "attributes": (6, 8),
    "accessories": (2, 4),
    "look_alikes": (1, 3),
    "must_not": (1, 12),
}
ANCHOR_WORDS = (1, 3)
FORMS = (1, 3)  # Chinese forms, and title terms, of one attribute

# Of each group one title or one shopper has at most one.
ONE_OF: tuple[frozenset[str], ...] = (
    frozenset({"for men", "for women", "for kids", "for seniors", "for newborns"}),
    frozenset({"for cats", "for small dogs"}),
    frozenset({"black", "white", "pink", "blue"}),
    frozenset({"large", "mini"}),
    frozenset({"wired", "wireless"}),
    frozenset({"wired", "bluetooth"}),
    frozenset({"disposable", "washable"}),
    frozenset({"disposable", "reusable"}),
    frozenset({"heavy duty", "lightweight"}),
    frozenset(
        "aluminum bamboo canvas ceramic cotton glass leather linen mesh plastic plush rubber silicone silk"
        " titanium velvet wooden".split()
    )
    | {"cast iron", "gold plated", "stainless steel", "sterling silver"},
)


@dataclass(frozen=True)
class Attribute:
    """Something a shopper asks for beyond the category."""

    zh: tuple[str, ...]
    en: str
    must_have: tuple[str, ...]
    held_out: bool


@dataclass(frozen=True)
class Price:
    """Quartiles of the thing's own prices, in `currency` (ISO 4217)."""

    currency: str
    q1: float
    median: float
    q3: float


@dataclass(frozen=True)
class Card:
    """One category; the keys are described at the top of this module."""

    id: str
    zh: str
    aliases: tuple[str, ...]
    ambiguous: tuple[str, ...]
    anchor: str
    domains: tuple[str, ...]
    synonyms: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    must_not: tuple[str, ...]
    accessories: tuple[str, ...]
    look_alikes: tuple[str, ...]
    price: Price

    @property
    def names(self) -> tuple[str, ...]:
        """Everything the category is called in Chinese, `zh` first."""
        return (self.zh, *self.aliases)


def rivals(one: Attribute, other: Attribute) -> bool:
    """Whether nothing is both, and nobody asks for both at once (leather and plastic)."""
    return any({one.en, other.en} <= group for group in ONE_OF)


def excluded(card: Card, title: str) -> bool:
    """Whether a `must_not` term marks the title as an accessory or a look-alike."""
    return any(term_hits(term, title) for term in card.must_not)


def is_named_by(card: Card, title: str) -> bool:
    """Whether the reward counts the title as pure for this card: it holds the anchor, nothing excludes it.

    Asked of the reward itself (a search that found this one title, nothing asked beyond the category), so
    that cards and reward cannot drift apart.
    """
    if words(card.anchor)[-1] not in words(title):
        return False  # the rule's first half and nearly always the answer, found faster
    golden = {
        "category": None,
        "domains": None,
        "budget_amount": None,
        "clear_budget": False,
        "must_have": [],
        "must_not": list(card.must_not),
        "category_anchor": card.anchor,
        "exclude_expected": False,
        "status": "agree",
    }
    return compute_reward({"keywords": [card.anchor]}, golden, "", [title]).retrieval == 1.0


def load_cards(path: str | Path = DEFAULT_CARDS) -> tuple[Card, ...]:
    """The cards of a JSONL file, checked one by one and against each other.

    Raises FileNotFoundError, or ValueError with one line for each fault, naming the card and the key.
    """
    cards = []
    with Path(path).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                raw = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{where} is not JSON: {error}") from None
            cards.append(parse_card(raw, where))
    if not cards:
        raise ValueError(
            f"{path} holds no card: write one JSON object a line, keys as in swift_plugin/cards.py"
        )
    faults = [*(fault for card in cards for fault in faults_of(card)), *faults_between(cards)]
    if faults:
        raise ValueError(f"{path}: {len(faults)} fault(s)\n" + "\n".join(faults))
    return tuple(cards)


# --------------------------------------------------------------------------------------------- reading


class _Fields:
    """The typed values of one JSON object; every complaint names the card (or line) and the key."""

    def __init__(self, raw: Any, where: str, keys: Sequence[str]) -> None:
        if not isinstance(raw, dict):
            raise ValueError(f"{where}: expected an object, found {type(raw).__name__}")
        self.where = f"card {raw['id']!r}" if isinstance(raw.get("id"), str) else where
        for key in keys:
            if key not in raw:
                self.refuse(key, "is missing")
        for key in raw:
            if key not in keys:
                self.refuse(key, f"is unknown; the keys are {', '.join(keys)}")
        self._raw: Mapping[str, Any] = raw

    def refuse(self, key: str, complaint: str) -> None:
        raise ValueError(f"{self.where}, key {key!r}: {complaint}")

    def text(self, key: str) -> str:
        return self._checked(key, self._raw[key])

    def texts(self, key: str) -> tuple[str, ...]:
        values = tuple(self._checked(key, value) for value in self.items(key))
        if len(set(values)) != len(values):
            self.refuse(key, f"holds a text twice: {values}")
        return values

    def _checked(self, key: str, value: Any) -> str:
        if not isinstance(value, str) or not words(value) or value != value.strip():
            self.refuse(key, f"expected text with a letter or digit, no space around it; found {value!r}")
        return str(value)

    def items(self, key: str) -> list[Any]:
        value = self._raw[key]
        if not isinstance(value, list):
            self.refuse(key, f"must be a list, found {value!r}")
        return list(value)

    def flag(self, key: str) -> bool:
        value = self._raw[key]
        if not isinstance(value, bool):
            self.refuse(key, f"must be true or false, found {value!r}")
        return bool(value)

    def positive(self, key: str) -> float:
        value = self._raw[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            self.refuse(key, f"must be a positive number, found {value!r}")
        return float(value)

    def inner(self, key: str) -> Any:
        return self._raw[key]


def parse_card(raw: Any, where: str) -> Card:
    """A card from its JSON object. Raises ValueError naming the card (or `where`) and the key."""
    fields = _Fields(raw, where, tuple(Card.__dataclass_fields__))
    name = fields.where
    attributes = []
    for index, item in enumerate(fields.items("attributes")):
        part = _Fields(item, f"{name}, key 'attributes'[{index}]", tuple(Attribute.__dataclass_fields__))
        attributes.append(
            Attribute(part.texts("zh"), part.text("en"), part.texts("must_have"), part.flag("held_out"))
        )
    money = _Fields(fields.inner("price"), f"{name}, key 'price'", tuple(Price.__dataclass_fields__))
    price = Price(money.text("currency"), *(money.positive(key) for key in ("q1", "median", "q3")))
    return Card(
        id=fields.text("id"),
        zh=fields.text("zh"),
        anchor=fields.text("anchor"),
        attributes=tuple(attributes),
        price=price,
        **{
            key: fields.texts(key)
            for key in (
                "aliases",
                "ambiguous",
                "domains",
                "synonyms",
                "must_not",
                "accessories",
                "look_alikes",
            )
        },
    )


# -------------------------------------------------------------------------------------------- checking


def faults_of(card: Card) -> list[str]:
    """What is wrong with one card by itself, one line each."""
    return [f"card {card.id!r}, key {key!r}: {complaint}" for key, complaint in _faults_of(card)]


def _faults_of(card: Card) -> Iterator[tuple[str, str]]:
    if not ZH_CHARACTERS[0] <= len(card.zh) <= ZH_CHARACTERS[1]:
        yield "zh", f"{card.zh!r} has {len(card.zh)} characters; a plan's category has {ZH_CHARACTERS}"
    for key, (least, most) in COUNTS.items():
        count = len(getattr(card, key))
        if not least <= count <= most:
            yield key, f"has {count} entries, not {least} to {most}"
    if not ANCHOR_WORDS[0] <= len(words(card.anchor)) <= ANCHOR_WORDS[1]:
        yield "anchor", f"{card.anchor!r} has {len(words(card.anchor))} Words, not {ANCHOR_WORDS}"
    for domain in card.domains:
        if domain not in DOMAINS or domain == RESERVED_DOMAIN:
            yield "domains", f"{domain!r} is not one of the reward's domains"
    for name in card.ambiguous:
        if name not in card.names:
            yield "ambiguous", f"{name!r} is neither the card's zh nor one of its aliases"
    if not card.price.q1 < card.price.median < card.price.q3:
        yield "price", f"quartiles must rise: {card.price.q1}, {card.price.median}, {card.price.q3}"
    yield from _attribute_faults(card)
    yield from _confusion_faults(card)


def _attribute_faults(card: Card) -> Iterator[tuple[str, str]]:
    held_out = [attribute.en for attribute in card.attributes if attribute.held_out]
    if len(held_out) != HELD_OUT_PER_CARD:
        yield "attributes", f"holds out {held_out}, not exactly {HELD_OUT_PER_CARD}"
    for name, count in Counter(attribute.en for attribute in card.attributes).items():
        if count > 1:
            yield "attributes", f"{name!r} stands {count} times"
    for attribute in card.attributes:
        for key in ("zh", "must_have"):
            if not FORMS[0] <= len(getattr(attribute, key)) <= FORMS[1]:
                yield "attributes", f"{attribute.en!r} has {len(getattr(attribute, key))} {key}, not {FORMS}"
        for term in attribute.must_have:
            if set(words(term)) <= set(words(card.anchor)):
                yield "attributes", f"must_have {term!r} asks for nothing beyond the anchor {card.anchor!r}"
            if not (term_hits(term, f"{term} {card.anchor}") and term_hits(term, f"{card.anchor} {term}")):
                yield "attributes", f"must_have {term!r} is negated beside its own anchor {card.anchor!r}"
        for synonym in card.synonyms:
            if any(term_hits(term, synonym) for term in attribute.must_have):
                yield "synonyms", f"{synonym!r} already says {attribute.en!r}"
        for form in attribute.zh:
            if any(form in name for name in card.names):
                yield "attributes", f"{form!r} ({attribute.en}) already stands in one of the card's own names"


def _confusion_faults(card: Card) -> Iterator[tuple[str, str]]:
    own = [card.anchor, *card.synonyms, *(t for a in card.attributes for t in (a.en, *a.must_have))]
    for text in own:
        for term in card.must_not:
            if term_hits(term, text):
                yield "must_not", f"{term!r} hits the card's own {text!r}"
    for phrase in card.accessories:
        if not set(words(phrase)) & set(words(card.anchor)):
            yield "accessories", f"{phrase!r} holds no word of the anchor {card.anchor!r}"
        if not excluded(card, phrase):
            yield "accessories", f"no must_not term hits {phrase!r}"
    for phrase in card.look_alikes:
        if is_named_by(card, phrase):
            yield "look_alikes", f"{phrase!r} holds the anchor: add a must_not term that hits it"


def faults_between(cards: Sequence[Card]) -> list[str]:
    """What is wrong between the cards, one line each."""
    return [f"card {name!r}, key {key!r}: {complaint}" for name, key, complaint in _faults_between(cards)]


def _faults_between(cards: Sequence[Card]) -> Iterator[tuple[str, str, str]]:
    for key in ("id", "zh", "anchor"):
        count = Counter(getattr(card, key) for card in cards)
        for card in cards:
            if count[getattr(card, key)] > 1:
                yield card.id, key, f"{getattr(card, key)!r} stands on {count[getattr(card, key)]} cards"
    claimed = Counter(name for card in cards for name in card.names)
    for card in cards:
        for name in card.names:
            if (claimed[name] > 1) != (name in card.ambiguous):
                shared = f"{name!r} is claimed by {claimed[name]} card(s)"
                yield card.id, "ambiguous", f"{shared}; it lists exactly the names shared with other cards"
    yield from _vocabulary_faults(cards)
    yield from _overlap_faults(cards)


def _overlap_faults(cards: Sequence[Card]) -> Iterator[tuple[str, str, str]]:
    """What titles of one card may say that the reward would take for another card's thing."""
    said = defaultdict(list)  # by Word, since nearly no pair shares the head
    for card in cards:
        terms = [term for attribute in card.attributes for term in attribute.must_have]
        for text in (card.anchor, *(f"{card.anchor} {extra}" for extra in (*card.synonyms, *terms))):
            for word in set(words(text)):
                said[word].append((card.id, text))
    for card in cards:
        for near, text in said[words(card.anchor)[-1]]:
            if near != card.id and is_named_by(card, text):
                yield card.id, "must_not", f"{text!r} ({near}) passes for {card.anchor!r}: exclude it"


def _vocabulary_faults(cards: Sequence[Card]) -> Iterator[tuple[str, str, str]]:
    first: dict[str, tuple[str, Attribute]] = {}
    meaning: dict[str, str] = {}
    trained: defaultdict[str, int] = defaultdict(int)
    for card in cards:
        for attribute in card.attributes:
            trained[attribute.en] += not attribute.held_out
            where, known = first.setdefault(attribute.en, (card.id, attribute))
            if (known.zh, known.must_have) != (attribute.zh, attribute.must_have):
                yield card.id, "attributes", f"{attribute.en!r} has other zh or must_have than on {where!r}"
            for form in attribute.zh:
                if meaning.setdefault(form, attribute.en) != attribute.en:
                    yield card.id, "attributes", f"{form!r} means {meaning[form]!r} and {attribute.en!r}"
    for card in cards:
        for attribute in card.attributes:
            if attribute.held_out and trained[attribute.en] < TRAINED_ELSEWHERE:
                yield (
                    card.id,
                    "attributes",
                    f"held-out {attribute.en!r} is trained on {trained[attribute.en]} cards",
                )
