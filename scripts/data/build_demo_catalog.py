"""Generate the demo's catalogue from the category cards: category_cards.jsonl -> catalog.jsonl.

One item a line: {"title", "category" (card id), "kind" (main, accessory, look_alike), "price", "currency"};
price and currency are null where the price is unknown. The titles are a marketplace's: invented brands, up to
three attributes, sizes and packs; more accessories than products, each with the product's words and often its
attributes; look-alikes; negated materials ("Faux Leather"). The same cards and seed give the same bytes.
"""

import argparse
import json
import os
import random
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from reward.planner_reward import term_hits
from swift_plugin.cards import DEFAULT_CARDS, Attribute, Card, Price, load_cards, rivals
from swift_plugin.settings import DEMO_CATALOG

DEFAULT_SEED = 20
# Items of one card. An attribute stands in HOLDERS of the MAIN titles: enough for a full top 20, few enough
# (about one in six) that a search for the bare category does not find it by accident.
MAIN, ACCESSORY, LOOK_ALIKE = 160, 215, 20
HOLDERS = (25, 28)
NEGATED = 5  # least number of main titles that deny an attribute, on a card where one can be denied
MOST_ATTRIBUTES = 3
INTERRUPTED = 0.08  # share of main titles with an attribute inside the name: "Running Waterproof Shoes"
WITH_SYNONYM = 0.03  # share of main titles that also hold one of the card's synonyms
ACCESSORY_ATTRIBUTES = (0.35, 0.45, 0.20)  # shares of accessory titles with 0, 1, 2 attributes
PRICE_UNKNOWN = 0.12
OTHER_CURRENCY, OTHER_CURRENCY_SHARE = "EUR", 0.06
SIDE_PRICES = {"accessory": (0.06, 0.3), "look_alike": (0.3, 1.4)}  # times the card's median

BRANDS = (
    "Norvik Althea Brunko Calvora Dexlow Elmira Fenwick Gorvan Halvex Ilmarin Jorvo Keldra Lumora Marvik"
    " Nexalo Orvana Pelmar Quorvi Rendova Solvig Tarkin Ulmeo Varsen Wendra Xaltor Yorvik Zentro Ambrel"
    " Bostari Corvex Dalmio Ersana Farlo Grevik Hanzo Inverra Jalmar Kovanta Lirexa Monteri Nalvo Ostrava"
    " Prilux Ravenko Sundara Tolvane Umbrio Vexley Wintara Zorvane"
).split()
MARKETING = "Premium Classic Upgraded Deluxe Everyday Essential Pro Original Modern Signature".split()
USES = tuple(
    f"for {use}"
    for use in "Home,Everyday Use,Daily Life,Work,Adults,Apartment,Holiday,Birthday,All Seasons".split(",")
)
PACKS = ("2 Pack", "1 Piece", "3 Pcs", "Pack of 2", "2 Pieces", "Single", "Bundle of 3", "New Model")
SIZES = {
    "apparel": ("Size S", "Size M", "Size L", "Size XL", "Plus Size"),
    "footwear": ("Size 6", "Size 7", "Size 8.5", "Size 9", "Size 10", "Size 11"),
    "bags": ("18 L", "24 L", "35 L", "20 Inch", "15.6 Inch"),
    "jewelry_watches": ("18 Inch", "40 mm", "6 mm", "Adult Size"),
    "food": ("250 g", "500 g", "12 oz", "24 Count", "40 Count"),
    "beauty": ("30 ml", "100 ml", "10 Count", "3.4 oz"),
    "health": ("10 Count", "50 Count", "Model B2"),
    "furniture": ("120 cm", "47 Inch", "3 Tier", "60 x 30 Inch"),
    "computers": ("Model M5", "15.6 Inch", "24 Inch", "Gen 3"),
    "electronics": ("Model X2", "Gen 2", "1.8 Inch", "Model A7"),
    "phones": ("6.1 Inch", "Gen 5", "Model P9"),
}
OTHER_SIZES = ("Model K3", "12 Inch", "Type B", "36 Inch", "No. 5 Series", "Series 4")

# How a title denies an attribute. The reward must not take any of them for the attribute.
MATERIALS_IMITATED = "leather silk velvet linen wooden bamboo pearl".split()
MATERIALS_LEFT_OUT = "leather plastic silicone rubber cotton glass".split()
FEATURES_DENIED = (
    "waterproof foldable adjustable washable rechargeable magnetic organic disposable reflective".split()
)
DENIALS: dict[str, tuple[str, ...]] = {
    **{name: (f"Faux {name.title()}", f"Imitation {name.title()}") for name in MATERIALS_IMITATED},
    **{name: (f"{name.title()}-Free",) for name in MATERIALS_LEFT_OUT},
    "leather": ("Faux Leather", "Vegan Leather", "Leather-Free"),
    **{name: (f"Non-{name.title()}",) for name in FEATURES_DENIED},
    "waterproof": ("Non-Waterproof", "Not Waterproof"),
}

UPPER = {"usb-c": "USB-C", "led": "LED", "gps": "GPS", "uv": "UV", "4k": "4K"}
POSSESSIVE = {
    "men": "Men's",
    "women": "Women's",
    "ladies": "Ladies'",
    "kids": "Kids'",
    "children": "Children's",
}
LOWER = {"for", "with", "and", "of", "to"}


@dataclass(frozen=True)
class Item:
    """One line of the catalogue."""

    title: str
    category: str
    kind: str
    price: float | None
    currency: str | None


@dataclass(frozen=True)
class Stock:
    """The words around the name in a card's titles: none claims an attribute or trips must_not."""

    marketing: tuple[str, ...]
    uses: tuple[str, ...]
    details: tuple[str, ...]


def stock_for(card: Card) -> Stock:
    """The fillers that say nothing the card's golden records could ask for or refuse."""
    terms = [*card.must_not, *(term for attribute in card.attributes for term in attribute.must_have)]

    def silent(texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(text for text in texts if not any(term_hits(term, text) for term in terms))

    return Stock(silent(MARKETING), silent(USES), silent((*SIZES.get(card.domains[0], OTHER_SIZES), *PACKS)))


def titled(phrase: str) -> str:
    """A phrase as titles write it.

    >>> titled("usb-c cable for t-shirt")
    'USB-C Cable for T-Shirt'
    """

    def one(word: str) -> str:
        parts = word.split("-")
        return UPPER.get(word) or (word if word in LOWER else "-".join(p[:1].upper() + p[1:] for p in parts))

    return " ".join(map(one, phrase.split()))


def written(rng: random.Random, attribute: Attribute) -> tuple[str, str]:
    """(before, after): the attribute as it stands before the name or after it; one of the two is empty."""
    term = attribute.must_have[0] if rng.random() < 0.75 else rng.choice(attribute.must_have)
    if attribute.en.startswith("with "):
        return "", f"with {titled(term)}"
    if attribute.en.startswith("for "):
        if term in POSSESSIVE and rng.random() < 0.5:
            return POSSESSIVE[term], ""
        return "", f"for {titled(term)}"
    return (titled(term), "") if rng.random() < 0.9 else ("", f"- {titled(term)}")


def composed(rng: random.Random, name: str, said: Sequence[tuple[str, str]], stock: Stock) -> str:
    """A title around `name`, in one of the orders of a marketplace."""
    before = [text for text, _ in said if text]
    after = [text for _, text in said if text]
    brand = rng.choice(BRANDS)
    if stock.marketing and rng.random() < 0.2:
        before.insert(rng.randint(0, len(before)), rng.choice(stock.marketing))
    if stock.uses and not after and rng.random() < 0.3:
        after.append(rng.choice(stock.uses))
    title = " ".join([*before, name, *after])
    order = rng.random()
    title = f"{brand} {title}" if order < 0.85 else f"{title} by {brand}" if order < 0.95 else title
    return f"{title}, {rng.choice(stock.details)}" if rng.random() < 0.7 else title


def holders(rng: random.Random, card: Card) -> list[list[Attribute]]:
    """Each main title's attributes: each attribute stands in HOLDERS titles, rivals never in one."""
    slots: list[list[Attribute]] = [[] for _ in range(MAIN)]
    for attribute in rng.sample(card.attributes, len(card.attributes)):
        open_slots = [
            slot
            for slot in slots
            if len(slot) < MOST_ATTRIBUTES and not any(rivals(attribute, other) for other in slot)
        ]
        for slot in rng.sample(open_slots, rng.randint(*HOLDERS)):
            slot.append(attribute)
    return slots


def main_titles(rng: random.Random, card: Card, stock: Stock) -> Iterator[str]:
    """Titles of the thing itself; NEGATED of them deny an attribute."""
    slots = holders(rng, card)
    forms = [form for attribute in card.attributes for form in DENIALS.get(attribute.en, ())]
    denials = forms + rng.choices(forms, k=max(0, NEGATED - len(forms))) if forms else []
    for slot in slots:
        said = [written(rng, attribute) for attribute in slot]
        if denials and not slot:
            said.append((denials.pop(), ""))
        rng.shuffle(said)
        first, *rest = titled(card.anchor).split()
        if rest and said and said[0][0] and rng.random() < INTERRUPTED:
            rest.insert(0, said.pop(0)[0])
        name = " ".join((first, *rest))
        if rng.random() < WITH_SYNONYM:
            name += f" / {titled(rng.choice(card.synonyms))}"
        yield composed(rng, name, said, stock)


def side_titles(
    rng: random.Random, card: Card, phrases: Sequence[str], count: int, stock: Stock
) -> Iterator[str]:
    """Titles of accessories or look-alikes: their phrase with up to two of the card's attributes."""
    for index in range(count):
        attributes = rng.sample(card.attributes, rng.choices((0, 1, 2), ACCESSORY_ATTRIBUTES)[0])
        if len(attributes) == 2 and rivals(*attributes):
            attributes.pop()
        said = [written(rng, attribute) for attribute in attributes]
        yield composed(rng, titled(phrases[index % len(phrases)]), said, stock)


def drawn_price(rng: random.Random, price: Price) -> float:
    """A price whose quartiles are the card's."""
    marks = (0.55 * price.q1, price.q1, price.median, price.q3, 1.6 * price.q3)
    place = rng.random() * 4
    lower = bisect_right((1, 2, 3), place)
    return marks[lower] + (place - lower) * (marks[lower + 1] - marks[lower])


def items_of(card: Card, seed: int, anchors: frozenset[str] = frozenset()) -> Iterator[Item]:
    """All items of one card, from its own source of chance.

    A look-alike whose phrase is in `anchors` (wrist watch beside smart watch) is left to its own card.
    """
    rng = random.Random(f"{seed} {card.id}")
    stock = stock_for(card)
    near = [phrase for phrase in card.look_alikes if phrase not in anchors]
    kinds = (
        ("main", main_titles(rng, card, stock)),
        ("accessory", side_titles(rng, card, card.accessories, ACCESSORY, stock)),
        ("look_alike", side_titles(rng, card, near, LOOK_ALIKE if near else 0, stock)),
    )
    for kind, titles in kinds:
        for title in titles:
            if rng.random() < PRICE_UNKNOWN:
                yield Item(title, card.id, kind, None, None)
                continue
            amount = drawn_price(rng, card.price)
            if kind in SIDE_PRICES:
                amount = card.price.median * rng.uniform(*SIDE_PRICES[kind])
            currency = OTHER_CURRENCY if rng.random() < OTHER_CURRENCY_SHARE else card.price.currency
            yield Item(title, card.id, kind, max(1, round(amount)) - 0.01, currency)


def catalogue(cards: Sequence[Card], seed: int) -> list[Item]:
    """The items of all cards, shuffled."""
    anchors = frozenset(card.anchor for card in cards)
    bar = tqdm(cards, desc="catalogue", unit="card")
    items = [item for card in bar for item in items_of(card, seed, anchors)]
    random.Random(seed).shuffle(items)
    return items


def write_items(items: Sequence[Item], path: Path) -> None:
    """Write the catalogue beside its place and put it there when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with part.open("w", encoding="utf-8") as out:
            for item in items:
                out.write(json.dumps(item.__dict__, ensure_ascii=False) + "\n")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def summary(items: Sequence[Item], path: Path, seed: int) -> dict[str, Any]:
    """What was written, for the log."""
    return {
        "catalog": str(path),
        "seed": seed,
        "items": len(items),
        "cards": len({item.category for item in items}),
        **Counter(item.kind for item in items),
        "without_price": sum(item.price is None for item in items),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python scripts/data/build_demo_catalog.py --seed 20 --out build/demo/catalog.jsonl",
    )
    parser.add_argument(
        "--cards", type=Path, default=DEFAULT_CARDS, help="category cards (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=DEMO_CATALOG, help="catalogue to write (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=DEFAULT_SEED, help="source of chance (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    try:
        items = catalogue(load_cards(args.cards), args.seed)
        write_items(items, args.out)
    except (OSError, ValueError) as error:
        print(f"build_demo_catalog: {error}", file=sys.stderr)
        return 2
    print(json.dumps(summary(items, args.out, args.seed), ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
