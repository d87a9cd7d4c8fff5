"""The catalogue holds what the demo's goldens can ask for, and the confusions of real catalogues."""

import json
import random
import re
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from reward.planner_reward import TOP_TITLES, compute_reward, term_hits, words
from scripts.data.build_demo_catalog import (
    BRANDS,
    DENIALS,
    MAIN,
    MARKETING,
    OTHER_SIZES,
    PACKS,
    SIZES,
    USES,
    Item,
    catalogue,
    drawn_price,
    items_of,
    main,
    stock_for,
    titled,
    write_items,
)
from scripts.data.demo_cards import DEMO_CARDS, write_demo_cards
from swift_plugin.cards import DEFAULT_CARDS, Attribute, Card, excluded, is_named_by, load_cards, rivals
from swift_plugin.encoders import HashedEncoder

SEED = 20
CARDS = load_cards()[:DEMO_CARDS]  # what the demo's catalogue is made from
BY_ID = {card.id: card for card in CARDS}


@pytest.fixture(scope="module")
def items() -> list[Item]:
    return catalogue(CARDS, SEED)


@pytest.fixture(scope="module")
def titles(items: list[Item]) -> dict[tuple[str, str], list[str]]:
    """(card, kind) -> titles."""
    grouped: dict[tuple[str, str], list[str]] = defaultdict(list)
    for item in items:
        grouped[item.category, item.kind].append(item.title)
    return grouped


def holds(attribute: Attribute, title: str) -> bool:
    return any(term_hits(term, title) for term in attribute.must_have)


def test_the_catalogue_is_large_and_accessories_outnumber_the_products(items: list[Item]) -> None:
    count = {kind: sum(item.kind == kind for item in items) for kind in ("main", "accessory", "look_alike")}
    assert 20_000 <= len(items) <= 30_000
    assert sum(count.values()) == len(items)
    assert count["accessory"] / len(items) > 0.5 > 0.4 > 0.3 < count["main"] / len(items)
    assert count["look_alike"] > 1_000


def test_every_attribute_fills_a_search_and_is_rare_enough_to_be_missed(
    titles: dict[tuple[str, str], list[str]],
) -> None:
    for card in CARDS:
        own = titles[card.id, "main"]
        for attribute in card.attributes:
            share = sum(holds(attribute, title) for title in own)
            assert 25 <= share <= 0.18 * MAIN, (card.id, attribute.en, share)


def test_no_title_claims_two_rivals(titles: dict[tuple[str, str], list[str]]) -> None:
    for card in CARDS:
        opposed = [(one, other) for one, other in combinations(card.attributes, 2) if rivals(one, other)]
        for title in (*titles[card.id, "main"], *titles[card.id, "accessory"]):
            assert not [(a.en, b.en) for a, b in opposed if holds(a, title) and holds(b, title)], title


def test_every_main_title_is_named_by_its_own_card(titles: dict[tuple[str, str], list[str]]) -> None:
    for card in CARDS:
        assert all(is_named_by(card, title) for title in titles[card.id, "main"]), card.id


def test_no_accessory_or_look_alike_is(titles: dict[tuple[str, str], list[str]]) -> None:
    for card in CARDS:
        assert all(excluded(card, title) for title in titles[card.id, "accessory"]), card.id
        assert not any(is_named_by(card, title) for title in titles[card.id, "look_alike"]), card.id


def test_no_main_title_is_named_by_another_card(titles: dict[tuple[str, str], list[str]]) -> None:
    by_word = defaultdict(list)  # the rule wants the head, so only titles that hold it are asked about
    for card in CARDS:
        for title in titles[card.id, "main"]:
            for word in set(words(title)):
                by_word[word].append((card.id, title))
    for card in CARDS:
        others = [title for name, title in by_word[words(card.anchor)[-1]] if name != card.id]
        assert not [title for title in others if is_named_by(card, title)], card.id


def test_accessories_hold_the_products_words_and_attributes(titles: dict[tuple[str, str], list[str]]) -> None:
    for card in CARDS:
        side = titles[card.id, "accessory"]
        assert all(set(words(card.anchor)) & set(words(title)) for title in side)
        assert (
            sum(any(holds(attribute, title) for attribute in card.attributes) for title in side)
            > len(side) / 2
        )


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in DENIALS.items() for text in texts]
)
def test_a_denied_attribute_is_no_hit_and_stands_in_the_catalogue(
    name: str, text: str, items: list[Item]
) -> None:
    attribute = next(one for card in CARDS for one in card.attributes if one.en == name)
    assert not holds(attribute, f"Norvik {text} Sofa")
    assert any(text in item.title and item.kind == "main" for item in items)


def test_no_filler_claims_an_attribute() -> None:
    fillers = [
        *BRANDS,
        *MARKETING,
        *USES,
        *PACKS,
        *OTHER_SIZES,
        *(size for sizes in SIZES.values() for size in sizes),
    ]
    attributes = {attribute.en: attribute for card in CARDS for attribute in card.attributes}.values()
    said = [(filler, one.en) for filler in fillers for one in attributes if holds(one, filler)]
    assert said == []
    assert len(set(BRANDS)) == len(BRANDS) >= 40


def test_fillers_that_a_card_would_be_judged_by_are_left_out() -> None:
    card = BY_ID["running_shoes"]
    asked = replace(card.attributes[0], must_have=("everyday",))
    stock = stock_for(replace(card, must_not=("pack", "size 9"), attributes=(asked,)))
    whole = stock_for(card)
    assert {"2 Pack", "Pack of 2", "Size 9"} == set(whole.details) - set(stock.details)
    assert set(whole.uses) - set(stock.uses) == {"for Everyday Use"}
    assert set(whole.marketing) - set(stock.marketing) == {"Everyday"}


def test_an_attribute_is_never_denied_by_what_stands_beside_it(items: list[Item]) -> None:
    denials = {text for texts in DENIALS.values() for text in texts}
    negation = re.compile(
        r"\b(?:faux|imitation|vegan|not|without)\b|\bnon(?!-(?:slip|stick)\b)|-free\b", re.IGNORECASE
    )
    for item in items:
        left = item.title
        for text in denials:
            left = left.replace(text, "")
        left = re.sub("(Sugar|Fragrance) Free", "", left)
        assert not negation.search(left), item.title


def test_prices_follow_the_quartiles_and_some_are_unknown(items: list[Item]) -> None:
    unknown = sum(item.price is None for item in items) / len(items)
    assert 0.08 < unknown < 0.16
    assert all((item.price is None) == (item.currency is None) for item in items)
    assert all(item.price > 0 for item in items if item.price is not None)
    assert {item.currency for item in items} == {"USD", "EUR", None}
    prices = defaultdict(list)
    for item in items:
        if item.price is not None:
            prices[item.category, item.kind].append(item.price)
    for card in CARDS:
        assert card.price.q1 < statistics.median(prices[card.id, "main"]) < card.price.q3, card.id
        assert statistics.median(prices[card.id, "accessory"]) < card.price.q1, card.id


def test_the_price_of_the_thing_has_the_cards_quartiles() -> None:
    price = BY_ID["running_shoes"].price
    rng = random.Random(1)
    quartiles = statistics.quantiles((drawn_price(rng, price) for _ in range(4_000)), n=4)
    assert quartiles == pytest.approx([price.q1, price.median, price.q3], rel=0.05)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(
    items: list[Item], tmp_path: Path
) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    write_items(items, first)
    write_demo_cards(DEFAULT_CARDS, tmp_path / "cards.jsonl")
    assert main(["--cards", str(tmp_path / "cards.jsonl"), "--seed", str(SEED), "--out", str(again)]) == 0
    assert first.read_bytes() == again.read_bytes()
    assert not set(items_of(CARDS[0], SEED)) & set(items_of(CARDS[0], SEED + 1))
    assert {frozenset(json.loads(line)) for line in first.read_text(encoding="utf-8").splitlines()} == {
        frozenset({"title", "category", "kind", "price", "currency"})
    }


def test_another_card_changes_no_items_but_its_own() -> None:
    few = catalogue(CARDS[:3], SEED)
    more = catalogue(CARDS[:4], SEED)
    added = {item for item in more if item.category == CARDS[3].id}
    assert set(more) - added == set(few) and added


def test_a_look_alike_that_is_sold_by_its_own_card_is_left_to_it() -> None:
    card = BY_ID["smart_watch"]
    assert "wrist watch" in card.look_alikes
    alone = {item.title for item in items_of(card, SEED) if item.kind == "look_alike"}
    beside = {
        item.title for item in items_of(card, SEED, frozenset({"wrist watch"})) if item.kind == "look_alike"
    }
    assert any("Wrist Watch" in title for title in alone)
    assert beside and not any("Wrist Watch" in title for title in beside)


def test_a_failed_write_leaves_the_old_catalogue(items: list[Item], tmp_path: Path) -> None:
    path = tmp_path / "catalog.jsonl"
    write_items(items[:2], path)
    before = path.read_bytes()
    unwritable = replace(items[0], title=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        write_items([items[1], unwritable], path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", '{"id": "shoes"}\n'], ids=["empty", "a card without its keys"])
def test_broken_cards_stop_the_command_with_2(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cards, out = tmp_path / "cards.jsonl", tmp_path / "catalog.jsonl"
    cards.write_text(text, encoding="utf-8")
    assert main(["--cards", str(cards), "--out", str(out)]) == 2
    assert "build_demo_catalog:" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("phrase", "title"),
    [
        ("usb-c", "USB-C"),
        ("non-slip mat for yoga", "Non-Slip Mat for Yoga"),
        ("4k led monitor", "4K LED Monitor"),
        ("quick-dry", "Quick-Dry"),
    ],
)
def test_phrases_are_written_as_titles_write_them(phrase: str, title: str) -> None:
    assert titled(phrase) == title


# ---------------------------------------------------------------------------------------- can it be searched?


def retrieval(card: Card, attribute: Attribute, found: list[str]) -> float:
    golden = {
        "category": card.zh,
        "domains": list(card.domains),
        "budget_amount": None,
        "clear_budget": False,
        "must_have": list(attribute.must_have),
        "must_not": list(card.must_not),
        "category_anchor": card.anchor,
        "exclude_expected": False,
        "status": "agree",
    }
    score = compute_reward({"keywords": ["x"]}, golden, "", found).retrieval
    assert score is not None
    return score


def test_asking_for_the_attribute_beats_the_bare_category_and_is_not_trivial(items: list[Item]) -> None:
    encoder = HashedEncoder(words)
    vectors = encoder.encode([item.title for item in items])
    asked = [(card, next(one for one in card.attributes if one.held_out)) for card in CARDS]

    def mean(query: Callable[[Card, Attribute], str]) -> float:
        closeness = vectors @ encoder.encode([query(card, one) for card, one in asked]).T
        best = np.argpartition(-closeness, TOP_TITLES, axis=0)[:TOP_TITLES].T
        found = [[items[index].title for index in row] for row in best]
        return statistics.fmean(retrieval(*pair, titles) for pair, titles in zip(asked, found, strict=True))

    bare = mean(lambda card, one: card.anchor)
    good = mean(lambda card, one: f"{one.must_have[0]} {card.anchor} {one.must_have[0]} {card.synonyms[0]}")
    accessory = mean(lambda card, one: f"{one.must_have[0]} {card.accessories[0]}")
    synonyms = mean(lambda card, one: " ".join(card.synonyms))
    assert good - bare >= 0.3, "a good plan has to be worth the words"
    assert 0.7 <= good <= 0.95, "findable by words, and not for nothing"
    assert bare <= 0.45, "the bare category must not hit the attribute by accident"
    assert synonyms < bare, "titles seldom use the synonyms"
    assert accessory < good - 0.3, "a search for the accessory finds accessories"
