"""Votes: prompts that differ, answers that count, and the majority."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward.planner_reward import DOMAINS, RESERVED_DOMAIN
from scripts.data.golden_votes import (
    VARIANTS,
    Verdict,
    Vote,
    disagreements,
    majority,
    read_vote,
    same_category,
    vote_messages,
)
from scripts.data.vote_client import Answer, Usage

SHOES = Vote("跑鞋", ("footwear",), ("waterproof",), "running shoes")


def answer(**changes: object) -> str:
    return json.dumps(
        {"category": "跑鞋", "domains": ["footwear"], "must_have": ["waterproof"], "anchor": "running shoes", **changes}
    )


def test_the_three_variants_differ_in_temperature_list_and_order() -> None:
    assert [variant.temperature for variant in VARIANTS] == [0.0, 0.3, 0.6]
    systems = [vote_messages(variant, ["想买跑鞋"])[0]["content"] for variant in VARIANTS]
    assert len(set(systems)) == 3
    assert len({variant.reasons_first for variant in VARIANTS}) == 2
    for system in systems:
        assert all(domain in system for domain in DOMAINS if domain != RESERVED_DOMAIN)
        assert RESERVED_DOMAIN not in system


def test_a_vote_sees_the_whole_session() -> None:
    user = vote_messages(VARIANTS[0], ["想买跑鞋", "要防水的"])[1]["content"]
    assert "想买跑鞋" in user and "要防水的" in user


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("跑鞋", "no object"),
        (answer()[:-5], "cut"),
        (answer(extra=1), "unknown key"),
        (answer(category=3), "category of the wrong type"),
        (answer(domains=["shoes"]), "unknown domain"),
        (answer(domains=["global"]), "reserved domain"),
        (answer(domains="footwear"), "domains as text"),
        (answer(domains=[["footwear"]]), "a list inside"),
        (answer(domains=[""]), "a blank domain"),
        (answer(must_have="waterproof"), "must_have as text"),
        (answer(anchor=["running shoes"]), "anchor as a list"),
        (answer(category="running shoes"), "category in the catalogue's language"),
        (answer(category="-"), "category without a word"),
        (answer(must_have=["防水"]), "must_have in the shopper's language"),
        (answer(must_have=["waterproof", "16寸"]), "one of two in the shopper's language"),
        (answer(must_have=["водонепроницаемый"]), "must_have in a third language"),
        (answer(anchor="跑鞋"), "anchor in the shopper's language"),
    ],
)
def test_what_is_no_vote(text: str, why: str) -> None:
    assert read_vote(text) is None, why


def test_reasons_before_the_object_are_read_over() -> None:
    assert read_vote("用户要跑鞋，防水。\n" + answer()) == SHOES
    assert read_vote(answer(category="", domains=[], anchor=None)) == Vote(None, None, ("waterproof",), "")


@pytest.mark.parametrize(
    ("said", "read", "why"),
    [
        ({"anchor": "-"}, SHOES._replace(anchor=""), "an anchor without words abstains"),
        ({"must_have": ["-", " ", "waterproof"]}, SHOES, "a term without words says nothing"),
        ({"category": "T恤"}, SHOES._replace(category="T恤"), "a Chinese name may hold Latin letters"),
        ({"must_have": ["5G", "café"]}, SHOES._replace(must_have=("5G", "café")), "as titles write it"),
    ],
)
def test_what_a_vote_is_read_as(said: dict[str, object], read: Vote, why: str) -> None:
    assert read_vote(answer(**said)) == read, why


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("跑鞋", "男士跑鞋", True),
        ("5g 手机", "5G手机", True),  # case and spaces are habits
        ("跑鞋", "拖鞋", False),
        ("手机", "手机壳", False),  # the thing and its accessory
        ("鞋", "跑鞋", False),  # one character is no category
        (None, None, True),
        (None, "跑鞋", False),
        ("", None, True),
    ],
)
def test_categories_agree_by_their_head(first: str | None, second: str | None, same: bool) -> None:
    assert same_category(first, second) is same and same_category(second, first) is same


@pytest.mark.parametrize(
    ("names", "status", "category", "why"),
    [
        (["手机", "手机壳", "手机壳"], "agree", "手机壳", "two say the same, the third names another thing"),
        (["手机壳", "手机", "手机"], "agree", "手机", "the other way round"),
        (["手机", "手机壳", "手机支架"], "review", "手机", "three things that begin alike"),
        (["男士跑鞋", "女士跑鞋", "跑鞋"], "agree", "跑鞋", "each a kind of the third"),
        (["男士跑鞋", "女士跑鞋", "拖鞋"], "review", "男士跑鞋", "nobody named what the two kinds share"),
    ],
)
def test_votes_on_the_category(names: list[str], status: str, category: str, why: str) -> None:
    verdict = majority([SHOES._replace(category=name) for name in names])
    assert verdict.vote is not None and (verdict.status, verdict.vote.category) == (status, category), why
    assert verdict.category_carried is (status == "agree"), why


def test_the_broader_name_wins() -> None:
    verdict = majority([SHOES._replace(category="男士跑鞋"), SHOES, SHOES._replace(category="拖鞋")])
    assert verdict.status == "agree" and verdict.vote is not None and verdict.vote.category == "跑鞋"
    assert "category" not in verdict.agreed and "domains" in verdict.agreed


@pytest.mark.parametrize("votes", [[], [None, None, None], [SHOES, None, None]])
def test_fewer_than_two_votes_give_no_golden(votes: list[Vote | None]) -> None:
    assert majority(votes) == Verdict(None, None)


@pytest.mark.parametrize(
    "other", [SHOES._replace(category="拖鞋"), SHOES._replace(domains=("sports",)), SHOES._replace(anchor="slippers")]
)
def test_one_to_one_is_for_review(other: Vote) -> None:
    verdict = majority([SHOES, None, other])
    assert verdict.status == "review" and verdict.vote is not None


def test_two_of_three_carry() -> None:
    verdict = majority([SHOES, SHOES, Vote("手机", ("phones",), (), "phone")])
    assert (verdict.status, verdict.vote, verdict.agreed) == ("agree", SHOES, ())


def test_domains_count_as_a_whole_set() -> None:
    sets = [("footwear",), ("footwear", "sports"), ("sports",)]
    assert majority([SHOES._replace(domains=one) for one in sets]).status == "review"


def test_must_have_needs_two_votes_a_word_and_folds_plurals() -> None:
    lists = [("wide", "leather shoes"), ("Wide",), ("leather shoe", "red")]
    verdict = majority([SHOES._replace(must_have=one) for one in lists])
    assert verdict.vote is not None and verdict.vote.must_have == ("wide", "leather shoes")


def test_an_audit_names_the_fields_that_differ() -> None:
    golden = {"category": "跑鞋", "domains": ["footwear"], "must_have": ["waterproof", "water resistant"]}
    golden["category_anchor"] = "running shoes"
    assert disagreements(golden, SHOES) == []
    assert disagreements(golden, Vote("拖鞋", ("sports",), (), "slippers")) == [
        "category",
        "domains",
        "must_have",
        "anchor",
    ]


VOTE = st.builds(
    Vote,
    st.sampled_from([None, "跑鞋", "男士跑鞋", "拖鞋"]),
    st.sampled_from([None, ("footwear",), ("sports",)]),
    st.sampled_from([(), ("wide",), ("wide", "red")]),
    st.sampled_from(["", "running shoes", "slippers"]),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.none(), VOTE), max_size=3))
def test_a_failed_vote_is_never_an_opinion(votes: list[Vote | None]) -> None:
    assert majority(votes) == majority([vote for vote in votes if vote is not None])


def test_an_answer_without_token_counts_has_no_price() -> None:
    usage = Usage()
    usage.count(Answer("{}", "stop", 100, 10), cached=False)
    assert usage.report(1.0, 2.0)["cost"] == pytest.approx(120 / 1e6)
    usage.count(Answer("{}", "stop", None, None), cached=True)  # a cached one costs nothing
    assert usage.report(1.0, 2.0)["cost"] is not None
    usage.count(Answer("{}", "stop", None, 10), cached=False)
    said = usage.report(1.0, 2.0)
    assert said["prompt_tokens"] is None and said["completion_tokens"] == 20 and said["cost"] is None
