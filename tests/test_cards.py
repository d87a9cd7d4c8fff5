"""The cards file keeps the rules of swift_plugin/cards.py; the loader names card and key of every breach."""

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward.planner_reward import DOMAINS, RESERVED_DOMAIN
from swift_plugin.cards import (
    DEFAULT_CARDS,
    ONE_OF,
    Card,
    excluded,
    faults_between,
    faults_of,
    is_named_by,
    load_cards,
    parse_card,
    rivals,
)

CARDS = load_cards()
BY_ID = {card.id: card for card in CARDS}


def raw_cards() -> list[dict[str, Any]]:
    return [json.loads(line) for line in DEFAULT_CARDS.read_text(encoding="utf-8").splitlines()]


def raw_card(name: str = "running_shoes") -> dict[str, Any]:
    return next(raw for raw in raw_cards() if raw["id"] == name)


# ------------------------------------------------------------------------------------ the cards as they are


def test_there_are_enough_cards_and_every_usable_domain_has_three() -> None:
    assert len(CARDS) >= 60
    count = Counter(domain for card in CARDS for domain in card.domains)
    usable = set(DOMAINS) - {RESERVED_DOMAIN, "other"}
    assert set(count) == usable
    assert min(count.values()) >= 3, count


def test_some_cards_stand_in_two_domains() -> None:
    assert sum(len(card.domains) > 1 for card in CARDS) >= 8


def test_the_vocabulary_is_shared_so_that_a_small_model_can_compose() -> None:
    uses = Counter(attribute.en for card in CARDS for attribute in card.attributes)
    assert 90 <= len(uses) <= 250
    assert min(uses.values()) >= 2, [name for name, count in uses.items() if count < 2]


def test_some_names_are_shared_by_two_cards() -> None:
    assert {"书包", "键盘", "笔记本"} <= {name for card in CARDS for name in card.ambiguous}


def test_every_group_of_rivals_is_about_attributes_that_exist() -> None:
    known = {attribute.en for card in CARDS for attribute in card.attributes}
    assert not {name for group in ONE_OF for name in group} - known


@pytest.mark.parametrize(
    ("card", "title", "named", "reason"),
    [
        ("running_shoes", "Waterproof Running Shoes, Size 9", True, "the thing itself"),
        ("running_shoes", "Women's Running Waterproof Shoe", True, "words apart, singular"),
        ("running_shoes", "Waterproof Running Shoe Insoles", False, "accessory"),
        ("running_shoes", "Running Socks", False, "look-alike without the head"),
        ("running_shoes", "Dress Shoes", False, "look-alike with the head"),
        ("computer_mouse", "Toy Mouse", False, "the cat's mouse"),
        ("computer_mouse", "Wireless Computer Mouse", True, "the thing itself"),
        ("smart_watch", "Leather Wrist Watch", False, "the other watch"),
        ("wrist_watch", "GPS Smart Watch", False, "and back"),
        ("computer_monitor", "4K Baby Monitor", False, "the nursery's monitor"),
        ("baby_monitor", "Curved Computer Monitor", False, "and back"),
        ("blood_pressure_monitor", "Computer Monitor", False, "one of three words"),
        ("computer_keyboard", "Foldable Piano Keyboard", False, "the musician's keyboard"),
        ("piano_keyboard", "Backlit Computer Keyboard", False, "and back"),
        ("baby_stroller", "Mesh Pet Stroller", False, "the dog's stroller"),
        ("pet_stroller", "Aluminum Baby Stroller", False, "and back"),
        ("car_seat", "Leather Car Seat Covers", False, "a cover is an accessory of another card"),
        ("medical_mask", "Herbal Sheet Mask", False, "beauty, not health"),
        ("school_bag", "Lightweight Sleeping Bag", False, "one word in two domains"),
        ("green_tea", "Ceramic Tea Set", False, "the pot, not the leaves"),
        ("yoga_mat", "Car Floor Mats", False, "the car's mats"),
        ("mixed_nuts", "Stainless Steel Hex Nuts", False, "nuts of the workshop"),
        ("laptop", "Laptop Bag", False, "what it is carried in"),
    ],
)
def test_a_title_names_the_thing_only_if_it_is_one(card: str, title: str, named: bool, reason: str) -> None:
    assert is_named_by(BY_ID[card], title) is named, reason


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.id)
def test_accessories_and_look_alikes_are_told_from_the_thing(card: Card) -> None:
    assert is_named_by(card, card.anchor)
    assert all(excluded(card, phrase) for phrase in card.accessories)
    assert not any(is_named_by(card, phrase) for phrase in (*card.accessories, *card.look_alikes))


def test_rivals_are_symmetric_and_nothing_is_its_own_opposite_by_accident() -> None:
    pool = {attribute.en: attribute for card in CARDS for attribute in card.attributes}
    assert rivals(pool["leather"], pool["cotton"]) and rivals(pool["cotton"], pool["leather"])
    assert not rivals(pool["leather"], pool["waterproof"])


# --------------------------------------------------------------------------------------------- broken cards

UNREADABLE = [
    ("anchor missing", lambda raw: raw.pop("anchor"), "anchor"),
    ("unknown key", lambda raw: raw.update(colour="red"), "colour"),
    ("domains as text", lambda raw: raw.update(domains="footwear"), "domains"),
    ("empty zh", lambda raw: raw.update(zh=" "), "zh"),
    ("an anchor without a Word", lambda raw: raw.update(anchor="!"), "anchor"),
    ("a term without a Word", lambda raw: raw["must_not"].append("-"), "must_not"),
    ("space around a term", lambda raw: raw["must_not"].append(" lace"), "must_not"),
    ("an alias twice", lambda raw: raw["aliases"].append(raw["aliases"][0]), "aliases"),
    ("held_out as 1", lambda raw: raw["attributes"][0].update(held_out=1), "held_out"),
    ("an attribute as text", lambda raw: raw["attributes"].append("waterproof"), "attributes"),
    ("a price as text", lambda raw: raw["price"].update(q1="45"), "q1"),
    ("a price of true", lambda raw: raw["price"].update(q1=True), "q1"),
    ("a negative price", lambda raw: raw["price"].update(q1=-1), "q1"),
    ("a price without end", lambda raw: raw["price"].update(q3=float("inf")), "q3"),
    ("price missing a quartile", lambda raw: raw["price"].pop("median"), "median"),
]


@pytest.mark.parametrize(("reason", "spoil", "key"), UNREADABLE, ids=[row[0] for row in UNREADABLE])
def test_an_unreadable_card_is_refused_by_card_and_key(reason: str, spoil: Any, key: str) -> None:
    raw = raw_card()
    spoil(raw)
    with pytest.raises(ValueError) as refusal:
        parse_card(raw, "cards.jsonl:7")
    assert "running_shoes" in str(refusal.value) and repr(key) in str(refusal.value)


def test_a_card_without_id_is_named_by_its_line() -> None:
    with pytest.raises(ValueError, match=r"cards\.jsonl:7, key 'id'"):
        parse_card({}, "cards.jsonl:7")


def first_attribute(**changes: Any) -> Any:
    return lambda raw: raw["attributes"][0].update(changes)


WRONG = [
    ("zh of one character", lambda raw: raw.update(zh="鞋"), "zh", "characters"),
    ("zh of eleven", lambda raw: raw.update(zh="鞋" * 11), "zh", "characters"),
    ("two aliases", lambda raw: raw.update(aliases=["跑步鞋", "慢跑鞋"]), "aliases", "entries"),
    ("five attributes", lambda raw: raw.update(attributes=raw["attributes"][:5]), "attributes", "entries"),
    ("a long anchor", lambda raw: raw.update(anchor="very light running shoes"), "anchor", "Words"),
    ("the reserved domain", lambda raw: raw.update(domains=["global"]), "domains", "global"),
    ("an invented domain", lambda raw: raw.update(domains=["shoes"]), "domains", "shoes"),
    ("a foreign name as ambiguous", lambda raw: raw.update(ambiguous=["靴子"]), "ambiguous", "neither"),
    ("falling quartiles", lambda raw: raw["price"].update(q1=500), "price", "rise"),
    (
        "three held out",
        lambda raw: [attribute.update(held_out=True) for attribute in raw["attributes"][:3]],
        "attributes",
        "exactly 2",
    ),
    (
        "an attribute twice",
        lambda raw: raw["attributes"].__setitem__(1, raw["attributes"][0]),
        "attributes",
        "stands 2 times",
    ),
    ("no form", first_attribute(zh=[]), "attributes", "0 zh"),
    ("four terms", first_attribute(must_have=["a1", "b2", "c3", "d4"]), "attributes", "4 must_have"),
    (
        "the category's own word",
        first_attribute(must_have=["running shoe"]),
        "attributes",
        "beyond the anchor",
    ),
    ("half of the category", first_attribute(must_have=["shoes"]), "attributes", "beyond the anchor"),
    ("a form in the own name", first_attribute(zh=["跑步"]), "attributes", "own names"),
    (
        "a synonym that says an attribute",
        lambda raw: raw.update(synonyms=["jogging shoes", "waterproof sneakers"]),
        "synonyms",
        "already says",
    ),
    ("must_not hits the anchor", lambda raw: raw["must_not"].append("shoe"), "must_not", "own"),
    ("must_not hits an attribute", lambda raw: raw["must_not"].append("waterproof"), "must_not", "own"),
    ("must_not hits a synonym", lambda raw: raw["must_not"].append("sneaker"), "must_not", "own"),
    (
        "an accessory nobody confuses",
        lambda raw: raw["accessories"].__setitem__(0, "shoelaces"),
        "accessories",
        "no word of the anchor",
    ),
    (
        "an accessory nothing excludes",
        lambda raw: raw["accessories"].__setitem__(0, "trees for running shoes"),
        "accessories",
        "no must_not",
    ),
    (
        "a look-alike that is the thing",
        lambda raw: raw.update(look_alikes=["walking shoes"]),
        "look_alikes",
        "must_not term",
    ),
]


@pytest.mark.parametrize(("reason", "spoil", "key", "words"), WRONG, ids=[row[0] for row in WRONG])
def test_a_wrong_card_is_found_by_card_and_key(reason: str, spoil: Any, key: str, words: str) -> None:
    raw = raw_card()
    assert faults_of(parse_card(raw, "")) == []
    spoil(raw)
    faults = faults_of(parse_card(raw, ""))
    assert any(f"card 'running_shoes', key '{key}'" in fault and words in fault for fault in faults), faults


def test_a_term_negated_by_its_own_category_is_found() -> None:
    raw = raw_card()
    raw.update(anchor="artificial flowers")
    faults = faults_of(parse_card(raw, ""))
    assert not any("negated" in fault for fault in faults), (
        "flowers that are not real may still be waterproof"
    )
    raw.update(anchor="free weights")
    assert any("negated" in fault for fault in faults_of(parse_card(raw, ""))), "waterproof free weights"


def spoiled(changes: dict[str, Any], name: str = "running_shoes") -> list[Card]:
    """All cards, with changes to one: key -> value, or "attribute" -> changes to its first attribute."""
    raws = raw_cards()
    raw = next(raw for raw in raws if raw["id"] == name)
    raw["attributes"][0].update(changes.pop("attribute", {}))
    raw.update(changes)
    return [parse_card(raw, "") for raw in raws]


@pytest.mark.parametrize(
    ("changes", "card", "key", "words", "reason"),
    [
        ({"id": "hoodie"}, "hoodie", "id", "2 cards", "ids are the catalogue's categories"),
        ({"zh": "卫衣"}, "running_shoes", "zh", "2 cards", "two categories a plan could not tell apart"),
        ({"anchor": "hoodie"}, "running_shoes", "anchor", "2 cards", "titles of one would be right for both"),
        (
            {"aliases": ["跑步鞋", "慢跑鞋", "登山鞋"]},
            "hiking_boots",
            "ambiguous",
            "2 card",
            "a shared name not listed",
        ),
        (
            {"ambiguous": ["慢跑鞋"]},
            "running_shoes",
            "ambiguous",
            "1 card",
            "listed, but nobody else claims it",
        ),
        (
            {"attribute": {"must_have": ["water resistant"]}},
            "hiking_boots",
            "attributes",
            "other zh or must_have",
            "one attribute, two meanings",
        ),
        ({"attribute": {"zh": ["透气"]}}, "running_shoes", "attributes", "means", "one form, two attributes"),
        (
            {"attribute": {"en": "glowing", "held_out": True}},
            "running_shoes",
            "attributes",
            "trained on 0",
            "held out and trained nowhere",
        ),
        (
            {"anchor": "running boots"},
            "running_shoes",
            "must_not",
            "passes for",
            "hiking boots share the head and half the words",
        ),
    ],
)
def test_a_breach_between_cards_is_found(
    changes: dict[str, Any], card: str, key: str, words: str, reason: str
) -> None:
    faults = faults_between(spoiled(copy.deepcopy(changes)))
    assert any(f"card '{card}', key '{key}'" in fault and words in fault for fault in faults), (
        reason,
        faults,
    )


def test_the_loader_reports_every_fault_at_once(tmp_path: Path) -> None:
    raws = raw_cards()
    raws[0]["domains"] = ["global"]
    raws[1]["price"]["q1"] = 900
    path = tmp_path / "cards.jsonl"
    path.write_text("\n".join(json.dumps(raw) for raw in raws) + "\n\n", encoding="utf-8")
    with pytest.raises(ValueError) as refusal:
        load_cards(path)
    assert raws[0]["id"] in str(refusal.value) and raws[1]["id"] in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "holds no card"), ("\n{not json}\n", r":2 is not JSON"), ("[]\n", "expected an object")],
)
def test_a_file_of_no_cards_is_refused_by_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "cards.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        load_cards(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)  # the machine's load is not what is tested
@given(key=st.sampled_from(sorted(raw_card())), value=JSON)
def test_any_value_in_any_key_gives_a_card_or_a_value_error(key: str, value: Any) -> None:
    try:
        card = parse_card({**raw_card(), key: value}, "line 1")
    except ValueError as error:
        assert key in str(error)
    else:
        faults_of(card)
        faults_between([card, CARDS[0]])
