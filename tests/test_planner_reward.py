"""compute_reward, weights and gates: one row a rule of the contract, with its reason."""

import ast
import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reward import planner_reward
from reward.planner_reward import (
    DEFAULT_WEIGHTS,
    DIMENSIONS,
    DOMAINS,
    GATES,
    GOLDEN_KEYS,
    PLAN_KEYS,
    TOP_TITLES,
    ParsedPlan,
    RewardBreakdown,
    check_gates,
    check_weights,
    compute_reward,
    gates_from_env,
    parse_golden,
    parse_plan,
    valid_keywords,
    weights_from_env,
)

TEXT = "想买防水的跑鞋，300元以内，不要皮的"
GOLDEN: dict[str, Any] = {
    "category": "跑鞋",
    "domains": ["footwear"],
    "budget_amount": 300,
    "clear_budget": False,
    "budget_uncertain": False,
    "must_have": ["waterproof"],
    "must_not": ["laces"],
    "category_anchor": "running shoes",
    "exclude_expected": True,
    "status": "agree",
}
PLAN: dict[str, Any] = {
    "category": "跑鞋",
    "domains": ["footwear"],
    "budget_amount": 300,
    "clear_budget": False,
    "keywords": ["waterproof running shoes", "trail sneakers"],
    "exclude_terms": [{"word": "leather", "evidence": "不要皮的"}],
}
GOOD = "Waterproof Running Shoe"
CHITCHAT = {**GOLDEN, "category": None, "domains": None, "must_have": [], "category_anchor": ""}


def golden(**changes: Any) -> dict[str, Any]:
    return {**GOLDEN, **changes}


def plan(**changes: Any) -> dict[str, Any]:
    return {**PLAN, **changes}


def without(record: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in keys}


def score(
    given: Any = PLAN, expected: Any = GOLDEN, titles: Any = (GOOD,), text: str = TEXT, **options: Any
) -> RewardBreakdown:
    return compute_reward(given, expected, text, titles if titles is None else list(titles), **options)


# ------------------------------------------------------------------------------------- the whole of it


def test_a_perfect_plan_scores_exactly_one() -> None:
    assert score() == RewardBreakdown(
        total=1.0, retrieval=1.0, field_score=1.0, format=1.0, econ=1.0,
        category=1.0, domains_f1=1.0, budget=1.0,
        abstained=(), copycat=False, evidence_faked=False, empty_keywords=False, domain_miss=False,
        overcommit=False, exclusion_missed=False,
    )  # fmt: skip


@pytest.mark.parametrize("nothing", [None, ParsedPlan(None, ("bad_json",)), parse_plan("[]")])
def test_no_plan_scores_minus_one_and_every_part_is_none(nothing: Any) -> None:
    for titles in ([], [GOOD], None):
        for gates in ((), GATES):
            result = score(nothing, titles=titles, gates=gates)
            assert result == (-1.0, *[None] * 7, (), *[False] * 6)


def test_an_empty_object_is_a_plan() -> None:
    result = score({})
    assert (result.total, result.retrieval, result.field_score, result.format, result.econ) == (0, 0, 0, 0, 0)
    assert result.empty_keywords and result.exclusion_missed


def test_the_four_dimensions_are_mixed_by_their_weights() -> None:
    result = score(
        plan(category="x", domains=["bags"], keywords=["waterproof running shoes"], tip=1),
        titles=[GOOD, "Sock"],
    )
    assert result.retrieval == pytest.approx(0.6 + 0.4 * 0.5), "hit 0.5 counts in full, purity is 0.5"
    assert result.field_score == pytest.approx(1 / 3), "only the budget is right"
    assert (result.format, result.econ) == (0.9, 0.75)
    assert result.total == pytest.approx(0.45 * 0.8 + 0.30 / 3 + 0.15 * 0.9 + 0.10 * 0.75)


def test_default_weights() -> None:
    assert DEFAULT_WEIGHTS == {"retrieval": 0.45, "field": 0.30, "format": 0.15, "econ": 0.10}
    assert tuple(DEFAULT_WEIGHTS) == DIMENSIONS


@pytest.mark.parametrize(
    ("expected", "titles", "abstained", "total", "reason"),
    [
        (
            GOLDEN,
            None,
            ("retrieval",),
            (0.30 * 2 / 3 + 0.15 + 0.10) / 0.55,
            "retrieval off; the budget is wrong",
        ),
        (
            CHITCHAT,
            None,
            ("retrieval", "econ", "category", "domains_f1"),
            0.15 / 0.45,
            "the budget is the field",
        ),
        (
            {**CHITCHAT, "budget_uncertain": True},
            [GOOD],
            ("retrieval", "field", "econ", "category", "domains_f1", "budget"),
            1.0,
            "format alone",
        ),
    ],
)
def test_weights_are_renormalised_to_what_takes_part(
    expected: Any, titles: Any, abstained: tuple[str, ...], total: float, reason: str
) -> None:
    result = score(plan(budget_amount=250, clear_budget=True), expected, titles)
    assert result.abstained == abstained, reason
    assert result.total == pytest.approx(total), reason


@pytest.mark.parametrize("name", DIMENSIONS)
def test_a_dimension_alone_is_the_total(name: str) -> None:
    weights = {other: float(other == name) for other in DIMENSIONS}
    result = score(
        plan(category="鞋", keywords=["waterproof shoes"], tip=1), titles=[GOOD, "Sock"], weights=weights
    )
    part = result.field_score if name == "field" else getattr(result, name)
    assert 0 < part < 1 and result.total == part


def test_all_that_takes_part_at_weight_zero_is_total_zero() -> None:
    weights = {"retrieval": 0, "field": 0, "format": 0, "econ": 1}
    result = score(expected=golden(must_have=[], category_anchor=""), weights=weights)
    assert result.total == 0.0 and result.format == 1.0


def test_a_weight_of_zero_is_no_abstention() -> None:
    result = score(weights={"retrieval": 0, "field": 1, "format": 0, "econ": 0})
    assert result.abstained == () and result.retrieval == 1.0


def test_review_counts_the_field_with_half_its_weight() -> None:
    given = plan(category="裤", domains=["bags"], budget_amount=1, clear_budget=True)
    assert score(given).total == pytest.approx(0.70)
    assert score(given, golden(status="review")).total == pytest.approx(0.70 / 0.85)
    assert score(given, golden(status="review")).field_score == 0.0, "the part itself stays"
    assert score(given, golden(status="resolved")).total == pytest.approx(0.70), "only review"


# ------------------------------------------------------------------------------------------- retrieval

BAD = "Ceramic Mug"
ANCHOR_ONLY = "Road Running Shoes"
RETRIEVAL = [
    # plan's changes, golden's changes, titles, retrieval, reason
    ({}, {}, [GOOD], 1.0, "hit and purity 1"),
    ({}, {}, [BAD], 0.0, "neither"),
    ({}, {}, [], 0.0, "no titles found"),
    ({}, {}, None, None, "retrieval is off for the run"),
    ({}, {"must_have": [], "category_anchor": ""}, [GOOD], None, "the golden record has neither"),
    ({}, {"must_have": [], "category_anchor": None}, [GOOD], None, "a null anchor is none"),
    ({}, {"must_have": [], "category_anchor": " "}, [GOOD], None, "a blank anchor is none"),
    ({"keywords": []}, {"must_have": [], "category_anchor": ""}, [], None, "nor without keywords"),
    ({"keywords": []}, {}, [GOOD], 0.0, "no keywords: 0"),
    ({"keywords": []}, {}, None, 0.0, "no keywords: 0, also when retrieval is off"),
    ({"keywords": ["", " ", "--", "👟"]}, {}, None, 0.0, "keywords without letter or digit do not count"),
    ({"keywords": "running shoes"}, {}, [GOOD], 0.0, "a string is no list of keywords"),
    ({"keywords": ["trail sneakers", 5]}, {}, [GOOD], 1.0, "the strings in a wrong list count"),
    ({}, {}, [GOOD, BAD], 0.6 + 0.2, "hit 1/2 counts in full, purity 1/2"),
    ({}, {}, [GOOD, BAD, BAD], 0.6 * 2 / 3 + 0.4 / 3, "hit 1/3 is two thirds of the target"),
    ({}, {}, [GOOD, BAD, BAD, BAD], 0.6 * 0.5 + 0.4 * 0.25, "hit 1/4, purity 1/4"),
    ({}, {}, [GOOD, GOOD, BAD], 0.6 + 0.4 * 2 / 3, "hit above the target is capped"),
    ({}, {}, [ANCHOR_ONLY], 0.4, "purity alone"),
    ({}, {}, ["Waterproof Jacket"], 0.6, "hit alone"),
    ({}, {"must_have": []}, [ANCHOR_ONLY, BAD], 0.5, "only purity is known"),
    ({}, {"category_anchor": ""}, [GOOD, BAD], 1.0, "only hit is known, scaled likewise"),
    ({}, {"category_anchor": ""}, [GOOD, BAD, BAD, BAD], 0.5, "hit 1/4, scaled"),
    ({}, {"must_have": ["rainproof", "waterproof"]}, [GOOD], 1.0, "some term is enough"),
    ({}, {}, ["Non-Waterproof Running Shoe"], 0.4, "a negated term is no hit"),
    ({}, {}, ["Waterproof Running Shoe Laces"], 0.0, "must_not takes hit and purity"),
    ({}, {"must_not": []}, ["Waterproof Running Shoe Laces"], 1.0, "without must_not it is both"),
    ({}, {}, ["Waterproof Running Shoes, no laces"], 1.0, "a negated must_not does not mark"),
    ({}, {}, [GOOD, "Shoe Laces"], 0.6 + 0.2, "marked titles stay in the share's denominator"),
    ({}, {}, ["Shoe Laces", GOOD], 0.6 + 0.2, "and do not end the count"),
    ({}, {}, [GOOD] * 20 + [BAD] * 20, 1.0, "the first 20 count"),
    ({}, {}, [BAD] * 20 + [GOOD], 0.0, "the 21st does not"),
    ({}, {}, [BAD] * 19 + [GOOD], 0.6 * 0.1 + 0.4 * 0.05, "the 20th does"),
    ({}, {"must_have": []}, ["Shoe"], 1.0, "the head and half of the content Words"),
    ({}, {"must_have": []}, ["Running Watch"], 0.0, "half without the head"),
    ({}, {"must_have": [], "category_anchor": "trail running shoes"}, ["Shoe"], 0.0, "head and a third"),
    (
        {},
        {"must_have": [], "category_anchor": "trail running shoes"},
        ["Trail shoe"],
        1.0,
        "head and two thirds",
    ),
    ({}, {"must_have": [], "category_anchor": "tv"}, ["Smart TV"], 1.0, "an anchor of short Words uses all"),
    ({}, {"must_have": [], "category_anchor": "oled tv"}, ["TV"], 0.0, "a short head is no content Word"),
    ({}, {"must_have": [], "category_anchor": "oled tv"}, ["OLED TVs"], 1.0, "both, plural folded"),
    ({}, {"must_have": [], "category_anchor": "跑鞋"}, ["男士跑鞋"], 1.0, "a Chinese anchor is a pair"),
    ({}, {"must_have": [], "category_anchor": "鞋"}, ["男士跑鞋"], 1.0, "one character in a longer run"),
    ({}, {"must_have": [], "category_anchor": "跑鞋"}, ["跑步鞋"], 0.0, "the pair is not there"),
]


@pytest.mark.parametrize(("given", "expected", "titles", "retrieval", "reason"), RETRIEVAL)
def test_retrieval(given: Any, expected: Any, titles: Any, retrieval: float | None, reason: str) -> None:
    result = score(plan(**given), golden(**expected), titles)
    assert result.retrieval == (None if retrieval is None else pytest.approx(retrieval, abs=1e-12)), reason
    assert ("retrieval" in result.abstained) is (retrieval is None), reason


def test_top_titles() -> None:
    assert TOP_TITLES == 20


COPIES = [
    # sentence, keywords, must_have, anchor, copy, reason
    ("one two three four five", ["one two three"], [], "zebra", True, "three of five: 0.6"),
    ("one two three four five", ["one two"], [], "zebra", False, "two of five"),
    ("one two three four five", ["two", "four one"], [], "zebra", True, "together, in any order"),
    ("one two three four five six seven", ["one two three four"], [], "zebra", False, "four of seven: 0.57"),
    ("waterproof running shoes", ["waterproof running shoes"], ["waterproof"], "running shoes", False,
     "nothing but golden Words: no copy, there is nothing to rephrase"),
    ("cheap waterproof running shoes", ["waterproof running shoes"], ["waterproof"], "running shoes", False,
     "golden Words do not count"),
    ("cheap waterproof running shoes", ["cheap shoes"], ["waterproof"], "running shoes", True,
     "all of the rest"),
    ("Cheap CASES!", ["cheap case"], [], "zebra", True, "Words: without case, plural folded"),
    ("one one one one two three", ["two three"], [], "zebra", True, "distinct Words: two of three"),
    ("one one one one two three", ["one"], [], "zebra", False, "distinct Words: one of three"),
    ("防水跑鞋", ["防水跑鞋"], ["waterproof"], "running shoes", True, "Chinese copied: three pairs of three"),
    ("防水跑鞋", ["防水", "跑鞋"], ["waterproof"], "running shoes", True, "cut in two: two pairs of three"),
    ("防水跑鞋", ["防水"], ["waterproof"], "running shoes", False, "one pair of three"),
    ("防水跑鞋", ["防水跑鞋"], ["防水"], "跑鞋", True, "the golden Words leave one pair, which is held"),
    ("买 鞋", ["买的 跑鞋"], ["waterproof"], "running shoes", True, "single characters in longer runs"),
    ("鞋", ["跑鞋"], ["waterproof"], "跑鞋", False, "a single character of the anchor is a golden Word"),
    ("跑鞋", ["鞋"], ["waterproof"], "running shoes", False, "a pair is not held by one of its characters"),
    ("？！", ["shoes"], ["waterproof"], "running shoes", False, "a sentence without Words"),
    ("想买防水的跑鞋", ["waterproof running shoes"], ["waterproof"], "running shoes", False, "translated"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "keywords", "must_have", "anchor", "copy", "reason"), COPIES)
def test_copycat(text: str, keywords: Any, must_have: Any, anchor: str, copy: bool, reason: str) -> None:
    expected = golden(must_have=must_have, category_anchor=anchor, must_not=[])
    given = plan(keywords=keywords, exclude_terms=[])
    found = [f"{' '.join(must_have)} {anchor}"]
    result = score(given, expected, found, text=text)
    assert result.copycat is copy, reason
    assert result.retrieval == (0.5 if copy else 1.0), f"{reason}: retrieval is halved"


def test_copycat_is_flagged_where_retrieval_abstains() -> None:
    result = score(plan(keywords=["one two three"]), CHITCHAT, None, text="one two three")
    assert result.copycat and result.retrieval is None


# ------------------------------------------------------------------------------------------------ field

CATEGORY = [
    # golden, plan, score, reason
    ("跑鞋", "跑鞋", 1.0, "equal"),
    ("跑鞋", " 跑 鞋", 1.0, "spaces are no difference"),
    ("T恤", "ｔ恤", 1.0, "NFKC, without case"),
    ("跑鞋", "男士跑鞋", 1.0, "one ends with the other"),
    ("男士跑鞋", "跑鞋", 1.0, "either way"),
    ("男 士 跑 鞋", "跑鞋", 1.0, "lengths without spaces"),
    ("一二三四五六七八跑鞋", "跑鞋", 1.0, "10 characters"),
    ("一二三四五六七八九跑鞋", "跑鞋", 2 / 11, "11 are too many for the ending"),
    ("跑鞋", "一二三四五六七八九跑鞋", 2 / 11, "either way"),
    ("一二三四五六七八九跑鞋", "一二三四五六七八九跑鞋", 1.0, "equal at any length"),
    ("跑鞋", "鞋", 0.5, "one character is too few for the ending"),
    ("鞋", "跑鞋", 0.5, "either way"),
    ("鞋", "鞋", 1.0, "equal at any length"),
    ("跑鞋", "跑步鞋", 2 / 3, "overlap of characters: 2 of 3"),
    ("跑鞋", "鞋跑", 1.0, "a set of characters has no order"),
    ("跑鞋", "手机", 0.0, "nothing shared"),
    ("跑鞋", "跑鞋套", 2 / 3, "a beginning is no ending"),
    ("跑鞋", "", 0.0, "the plan abstains, the golden record does not"),
    ("跑鞋", None, 0.0, "null abstains as well"),
    ("跑鞋", "running shoes", 0.0, "another language"),
    ("running shoes", "Shoe for running", 2 / 3, "Words otherwise"),
    ("running shoes", "running", 0.5, "one Word of two"),
    ("running shoes", "跑鞋", 0.0, "another language"),
    ("T恤", "tee恤衫", 2 / 4, "the golden record is Chinese: characters t, 恤 of t, e, 恤, 衫"),
    ("--", "..", 0.0, "neither has a Word"),
    (None, "跑鞋", None, "an empty golden category abstains"),
    ("", "", None, "so does a blank one"),
    (" ", None, None, "of any kind"),
]


@pytest.mark.parametrize(("expected", "given", "value", "reason"), CATEGORY)
def test_category(expected: Any, given: Any, value: float | None, reason: str) -> None:
    result = score(plan(category=given), golden(category=expected))
    assert result.category == (None if value is None else pytest.approx(value)), reason
    assert ("category" in result.abstained) is (value is None), reason


DOMAIN = [
    (["footwear"], ["footwear"], 1.0, "equal"),
    (["footwear", "sports"], ["sports", "footwear"], 1.0, "a set has no order"),
    (["footwear"], ["footwear", "footwear"], 1.0, "and holds each once"),
    (["footwear", "sports"], ["footwear"], 2 / 3, "precision 1, recall 1/2"),
    (["footwear"], ["footwear", "sports", "bags"], 0.5, "precision 1/3, recall 1"),
    (["footwear"], ["bags"], 0.0, "disjoint"),
    (["footwear"], [], 0.0, "the plan names none"),
    ([], ["footwear"], 0.0, "the golden record names none"),
    ([], [], 1.0, "both empty"),
    (["footwear"], ["footwear", "shoes"], 2 / 3, "an illegal name is a name too many"),
    (["footwear"], ["Footwear"], 0.0, "a closed list is spelled one way"),
    (["footwear"], ["footwear", 5], 0.0, "a non-string element: unequal"),
    ([], [5], 0.0, "unequal to nothing, too"),
    (["footwear"], "footwear", 0.0, "a string is the wrong type"),
    ([], None, 0.0, "so is null"),
    (None, ["footwear"], None, "the golden record abstains"),
    (None, "x", None, "whatever the plan says"),
]


@pytest.mark.parametrize(("expected", "given", "value", "reason"), DOMAIN)
def test_domains_f1(expected: Any, given: Any, value: float | None, reason: str) -> None:
    result = score(plan(domains=given), golden(domains=expected))
    assert result.domains_f1 == (None if value is None else pytest.approx(value)), reason
    assert ("domains_f1" in result.abstained) is (value is None), reason


BUDGET = [
    # golden's amount, clear, uncertain; plan's changes; score; reason
    (300, False, False, {}, 1.0, "both equal"),
    (300, False, False, {"budget_amount": 300.0}, 1.0, "300 and 300.0 are one number"),
    (59.9, False, False, {"budget_amount": 59.9}, 1.0, "a fraction"),
    (300, False, False, {"budget_amount": 300.01}, 0.3, "as said, never near"),
    (300, False, False, {"budget_amount": None}, 0.3, "no amount"),
    (300, True, False, {}, 0.7, "clear_budget unequal"),
    (300, True, False, {"clear_budget": True}, 1.0, "both equal, lifted"),
    (300, True, False, {"budget_amount": 1}, 0.0, "neither"),
    (None, False, False, {"budget_amount": None}, 1.0, "no budget either side"),
    (None, False, False, {"budget_amount": 0}, 0.3, "0 is a number"),
    (0, False, False, {"budget_amount": None}, 0.3, "either way"),
    (1, False, False, {"budget_amount": True}, 0.3, "true is not a number"),
    (0, False, False, {"budget_amount": False}, 0.3, "nor is false"),
    (300, False, False, {"budget_amount": "300"}, 0.3, "never a string"),
    (300, False, False, {"budget_amount": float("nan")}, 0.3, "NaN is not a number"),
    (300, False, False, {"budget_amount": 10**300}, 0.3, "a long integer is compared, not converted"),
    (300, False, False, {"clear_budget": 0}, 0.7, "0 is no false"),
    (300, False, False, {"clear_budget": None}, 0.7, "nor is null"),
    (300, False, True, {}, None, "an uncertain budget abstains"),
]


@pytest.mark.parametrize(("amount", "clear", "uncertain", "given", "value", "reason"), BUDGET)
def test_budget(
    amount: Any, clear: bool, uncertain: bool, given: Any, value: float | None, reason: str
) -> None:
    expected = golden(budget_amount=amount, clear_budget=clear, budget_uncertain=uncertain)
    result = score(plan(**given), expected)
    assert result.budget == (None if value is None else pytest.approx(value)), reason
    assert ("budget" in result.abstained) is (value is None), reason


@pytest.mark.parametrize(
    ("key", "expected", "category", "domains_f1", "budget"),
    [
        ("category", {}, 0.0, 1.0, 1.0),
        ("domains", {}, 1.0, 0.0, 1.0),
        ("domains", {"domains": []}, 1.0, 0.0, 1.0),
        ("budget_amount", {}, 1.0, 1.0, 0.3),
        ("budget_amount", {"budget_amount": None}, 1.0, 1.0, 0.3),
        ("clear_budget", {}, 1.0, 1.0, 0.7),
    ],
)
def test_a_missing_key_is_unequal(
    key: str, expected: Any, category: float, domains_f1: float, budget: float
) -> None:
    given = {**PLAN, "domains": expected.get("domains", PLAN["domains"])}
    result = score(without(given, key), golden(**expected))
    assert (result.category, result.domains_f1, result.budget) == pytest.approx(
        (category, domains_f1, budget)
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [("category", 5), ("category", ["跑鞋"]), ("domains", {"footwear": 1}), ("budget_amount", [300])],
)
def test_a_wrong_typed_key_is_unequal(key: str, value: Any) -> None:
    part = {"category": "category", "domains": "domains_f1", "budget_amount": "budget"}[key]
    right = 0.3 if key == "budget_amount" else 0.0
    assert getattr(score(plan(**{key: value})), part) == right


def test_field_is_the_mean_of_the_parts_that_take_part() -> None:
    given = plan(category="鞋", domains=["footwear", "bags"], budget_amount=1)
    assert score(given).field_score == pytest.approx((0.5 + 2 / 3 + 0.3) / 3)
    assert score(given, golden(category=None)).field_score == pytest.approx((2 / 3 + 0.3) / 2)
    assert score(given, golden(domains=None)).field_score == pytest.approx((0.5 + 0.3) / 2)
    assert score(given, golden(budget_uncertain=True)).field_score == pytest.approx((0.5 + 2 / 3) / 2)
    nothing = golden(category=None, domains=None, budget_uncertain=True)
    assert score(given, nothing).field_score is None


EVIDENCE = [
    # text, exclude_terms, faked, reason
    (TEXT, [{"word": "leather", "evidence": "不要皮的"}], False, "verbatim"),
    (TEXT, [{"word": "leather", "evidence": "不要 皮的"}], False, "spaces are no difference"),
    ("不 要 皮", [{"word": "leather", "evidence": "不要皮"}], False, "on either side"),
    ("no LEATHER", [{"word": "leather", "evidence": "No leather"}], False, "nor is case"),
    ("３００元", [{"word": "x", "evidence": "300元"}], False, "NFKC"),
    (TEXT, [{"word": "leather", "evidence": "不喜欢皮"}], True, "made up"),
    (
        TEXT,
        [{"word": "a", "evidence": "不要皮的"}, {"word": "b", "evidence": "不要红"}],
        True,
        "one is enough",
    ),
    (TEXT, [{"evidence": "不要红"}], True, "made up is made up without a word, too"),
    (TEXT, [{"word": "leather"}], False, "no evidence is not made up"),
    (TEXT, [{"word": "leather", "evidence": " "}], False, "blank evidence counts as absent"),
    (TEXT, [{"word": "leather", "evidence": 5}], False, "so does what is no string"),
    (TEXT, [], False, "no exclusion"),
    (TEXT, "不要红", False, "no list"),
    (TEXT, ["不要红"], False, "a non-object is only a wrong type"),
]


@pytest.mark.parametrize(("text", "exclusions", "faked", "reason"), EVIDENCE)
def test_made_up_evidence(text: str, exclusions: Any, faked: bool, reason: str) -> None:
    result = score(plan(exclude_terms=exclusions), text=text)
    assert result.evidence_faked is faked, reason
    assert result.field_score == (0.0 if faked else 1.0), reason
    assert (result.category, result.domains_f1, result.budget) == (1, 1, 1), "the parts stay what they are"


def test_made_up_evidence_does_not_make_an_abstaining_field_take_part() -> None:
    nothing = golden(category=None, domains=None, budget_uncertain=True)
    result = score(plan(exclude_terms=[{"word": "a", "evidence": "没说过"}]), nothing)
    assert result.evidence_faked and result.field_score is None and "field" in result.abstained


# ----------------------------------------------------------------------------------------------- format

WORD, EVIDENCED = {"word": "leather"}, {"word": "leather", "evidence": "不要皮的"}
FORMAT = [
    # plan, score, reason
    (PLAN, 1.0, "nothing to charge"),
    (plan(domains=["shoes"]), 0.5, "an illegal domain"),
    (plan(domains=["shoes", "hats"]), 0.5, "charged once"),
    (plan(domains=["Footwear"]), 0.5, "the closed list is spelled one way"),
    (plan(domains=["other"]), 1.0, "other is legal"),
    (plan(domains=["global"]), 0.5, "global is reserved, and not also illegal"),
    (plan(domains=["global", "shoes"]), 0.0, "both"),
    (plan(domains=[]), 1.0, "no domain is no violation"),
    (plan(exclude_terms=[]), 1.0, "no exclusion is none"),
    (plan(exclude_terms=[EVIDENCED, EVIDENCED]), 1.0, "whole exclusions"),
    (plan(exclude_terms=[WORD]), 0.7, "an exclusion without evidence"),
    (plan(exclude_terms=[{"evidence": "不要皮的"}]), 0.7, "without word"),
    (plan(exclude_terms=[{"term": "leather", "evidence": "不要皮的"}]), 0.7, "the key is word"),
    (plan(exclude_terms=[{}]), 0.7, "without both, charged once"),
    (plan(exclude_terms=[WORD, WORD, EVIDENCED]), 0.7, "two of them, charged once"),
    (plan(exclude_terms=[{"word": " ", "evidence": "不要皮的"}]), 0.7, "a blank word counts as absent"),
    (plan(exclude_terms=[{"word": "leather", "evidence": "\n"}]), 0.7, "blank evidence as well"),
    (plan(exclude_terms=[{"word": 5, "evidence": "不要皮的"}]), 0.7, "a non-string word counts as absent"),
    (plan(exclude_terms=[{**EVIDENCED, "note": 1}]), 1.0, "further keys of an exclusion are free"),
    (plan(exclude_terms=["leather"]), 0.7, "a non-object exclusion is only a wrong type"),
    (plan(exclude_terms=["leather", WORD]), 0.4, "a wrong type beside one without evidence"),
    (plan(exclude_terms={}), 0.7, "no list"),
    (plan(category=5), 0.7, "category: string or null"),
    (plan(category=None), 1.0, "null abstains"),
    (plan(category=""), 1.0, "so does nothing"),
    (plan(category="a very long category, not Chinese"), 1.0, "its length is no type"),
    (plan(domains=None), 0.7, "domains: a list"),
    (plan(domains="footwear"), 0.7, "no string"),
    (plan(domains="shoes"), 0.7, "a wrong type is no illegal domain"),
    (plan(domains=["footwear", 5]), 0.7, "a non-string element is a wrong type of its key"),
    (plan(domains=["shoes", 5]), 0.2, "beside an illegal one"),
    (plan(domains=["footwear", ["bags"]]), 0.7, "a list in the list"),
    (plan(budget_amount="300"), 0.7, "budget_amount: never a string"),
    (plan(budget_amount=True), 0.7, "true is not a number"),
    (plan(budget_amount=None), 1.0, "null is fine"),
    (plan(budget_amount=59.9), 1.0, "a fraction is fine"),
    (plan(budget_amount=math.inf), 0.7, "JSON has no infinity"),
    (plan(clear_budget=0), 0.7, "clear_budget: true or false"),
    (plan(clear_budget=None), 0.7, "not null"),
    (plan(clear_budget=True), 1.0, "true is"),
    (plan(keywords=None), 0.7, "keywords: a list"),
    (plan(keywords="shoes"), 0.7, "no string"),
    (plan(keywords=["shoes", None]), 0.7, "of strings"),
    (plan(keywords=[]), 1.0, "their number is econ's business"),
    (plan(category=5, domains=None), 0.4, "two keys"),
    (plan(category=5, domains=None, keywords=None), 0.1, "three keys"),
    (plan(category=5, domains=None, keywords=None, clear_budget=None), 0.0, "never below 0"),
    (plan(domains=[5, "global"]), 0.2, "wrong type and global"),
    (plan(tip=1), 0.9, "an unknown key"),
    (plan(tip=1, note=None), 0.8, "each"),
    ({**PLAN, **{f"k{i}": i for i in range(10)}}, 0.0, "ten unknown keys"),
    ({**PLAN, **{f"k{i}": i for i in range(11)}}, 0.0, "never below 0"),
    (ParsedPlan(PLAN, ("fence",)), 0.9, "a parse issue"),
    (ParsedPlan(PLAN, ("fence", "prose")), 0.8, "each"),
    (ParsedPlan(PLAN, ()), 1.0, "none"),
]


@pytest.mark.parametrize(("given", "value", "reason"), FORMAT)
def test_format(given: Any, value: float, reason: str) -> None:
    assert score(given).format == value, reason


@pytest.mark.parametrize("key", PLAN_KEYS)
def test_each_key_is_required(key: str) -> None:
    assert score(without(PLAN, key)).format == 0.7


def test_domains_are_twenty_and_two() -> None:
    assert len(set(DOMAINS)) == 22 and DOMAINS[-2:] == ("other", "global")
    for name in DOMAINS[:-1]:
        assert score(plan(domains=[name])).format == 1.0, name


def test_the_parser_s_issues_reach_the_format() -> None:
    text = json.dumps(PLAN, ensure_ascii=False)
    assert score(parse_plan(text)).format == 1.0
    assert score(parse_plan(f"Sure:\n```json\n{text}\n```")).format == 0.8


# ------------------------------------------------------------------------------------------------- econ

ECON = [
    # keywords, score, reason
    ([], 0.0, "no keywords"),
    (["", "?"], 0.0, "none that counts"),
    (["one"], 0.75, "one keyword is a step outside 2-6"),
    (["one", "two"], 1.0, "two"),
    (["one", "two", "", "!"], 1.0, "only those that count are counted"),
    (["one", "two", "three", "four", "five", "six"], 1.0, "six"),
    (["one", "two", "three", "four", "five", "six", "seven"], 0.75, "seven"),
    (list("abcdefgh"), 0.5, "eight"),
    (list("abcdefghi"), 0.25, "nine"),
    (list("abcdefghij"), 0.0, "ten"),
    (list("abcdefghijk"), 0.0, "never below 0"),
    (["one two three four", "five"], 1.0, "four Words are not over four"),
    (["one two three four six", "five"], 0.75, "half of the keywords over 4 Words"),
    (["one two three four six", "seven eight nine ten eleven"], 0.5, "all of them"),
    (["a b c d e", "x"], 0.75, "short Words are Words"),
    (["one-two-three-four-six", "five"], 0.75, "punctuation ends a Word"),
    (["防水透气轻便跑鞋", "红包"], 1.0, "8 characters are not over 8"),
    (["防水透气轻便的跑鞋", "红包"], 0.75, "9 are"),
    (["防 水 透 气 轻 便 跑 鞋", "红包"], 1.0, "spaces do not count"),
    (["nike 防水跑鞋", "红包"], 1.0, "mixed: characters, 8 without the space"),
    (["nikes 防水跑鞋", "红包"], 0.75, "mixed: 9"),
    (["abcdefghijkl", "x"], 1.0, "characters are for Chinese only"),
    (["one two", "one three"], 1 - 0.6 * 0.5, "overlap 1/4, doubled"),
    (["one", "one"], 1 - 0.6, "overlap 1/2, doubled: in full"),
    (["one", "One!", "ones"], 1 - 0.6, "Words without case, plural folded; overlap 2/3 is capped"),
    (["one two", "three four", "one five", "six"], 1 - 0.6 * 2 / 7, "over all keywords: 6 of 7"),
    (["跑鞋男", "跑鞋女"], 1 - 0.6 * 0.5, "pairs: 跑鞋 鞋男 鞋女"),
    (["one two three four five", "one"], 0.75 * (1 - 0.6 * 2 / 6), "long and overlapping: a product"),
    (["one one"], 0.75 * 0.4, "one keyword that repeats itself"),
]


@pytest.mark.parametrize(("keywords", "value", "reason"), ECON)
def test_econ(keywords: Any, value: float, reason: str) -> None:
    result = score(plan(keywords=keywords))
    assert result.econ == pytest.approx(value, abs=1e-12), reason
    assert result.empty_keywords is (not valid_keywords(plan(keywords=keywords)))


@pytest.mark.parametrize(
    ("must_have", "anchor", "abstains"),
    [([], "", True), ([], None, True), ([], "  ", True), (["waterproof"], "", False), ([], "shoes", False)],
)
@pytest.mark.parametrize("keywords", [[], ["one", "two"]])
@pytest.mark.parametrize("titles", [None, [], [GOOD]])
def test_econ_abstains_exactly_without_must_have_and_anchor(
    must_have: Any, anchor: Any, abstains: bool, keywords: Any, titles: Any
) -> None:
    result = score(plan(keywords=keywords), golden(must_have=must_have, category_anchor=anchor), titles)
    assert (result.econ is None) is ("econ" in result.abstained) is abstains


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (plan(keywords=["Shoe", "", " ", "16", "👟", "鞋", "-_-"]), ["Shoe", "16", "鞋"]),
        (plan(keywords=[" two words "]), [" two words "]),
        (plan(keywords=["a", 5, None, ["b"], {"c": 1}]), ["a"]),
        (plan(keywords="shoes"), []),
        (plan(keywords={"shoes": 1}), []),
        ({}, []),
        (None, []),
        (ParsedPlan(None, ("list",)), []),
        (ParsedPlan(PLAN, ()), PLAN["keywords"]),
    ],
)
def test_valid_keywords(given: Any, expected: list[str]) -> None:
    assert valid_keywords(given) == expected


# ------------------------------------------------------------------------------------------------ gates

DOMAIN_GATE = [
    # golden's domains, plan's, miss, reason
    (["footwear"], ["bags"], True, "known, not empty, disjoint"),
    (["footwear"], ["bags", "footwear"], False, "one shared"),
    (["footwear"], [], False, "the plan names none"),
    ([], ["bags"], False, "the golden record names none"),
    (None, ["bags"], False, "the golden record does not know"),
    (["footwear"], None, False, "the plan's are not known"),
    (["footwear"], ["bags", 5], False, "nor are they with a wrong type"),
    (["footwear"], ["shoes"], True, "an illegal name is a name"),
]


@pytest.mark.parametrize(("expected", "given", "miss", "reason"), DOMAIN_GATE)
def test_gate_domain(expected: Any, given: Any, miss: bool, reason: str) -> None:
    arguments = (plan(domains=given), golden(domains=expected))
    plain, gated = score(*arguments), score(*arguments, gates=("domain",))
    assert plain.domain_miss is gated.domain_miss is miss, reason
    assert plain.retrieval == 1.0
    if miss:
        assert (gated.field_score, gated.retrieval) == (0.0, 0.0), reason
        assert (gated.category, gated.budget) == (1.0, 1.0), "the parts stay what they are"
        off = score(*arguments, titles=None, gates=("domain",))
        assert off.retrieval is None and off.field_score == 0.0, "retrieval is 0 only where it takes part"
    else:
        assert gated == plain, reason


OVERCOMMIT = [
    # golden's category, plan's changes, missing keys, category with the gate, flag, reason
    (None, {"category": "跑鞋"}, (), 0.0, True, "an invented category"),
    ("", {"category": "跑鞋"}, (), 0.0, True, "an empty golden category abstains as null does"),
    (None, {"category": None}, (), 1.0, False, "the plan abstains too"),
    (None, {"category": ""}, (), 1.0, False, "by nothing"),
    (None, {"category": " "}, (), 1.0, False, "or a blank"),
    (None, {}, ("category",), 0.0, False, "a missing key is no abstention, and no invention"),
    (None, {"category": 5}, (), 0.0, False, "nor is a wrong type; format charges it in the open"),
    ("跑鞋", {"category": None}, (), 0.0, False, "the golden category is known: as without the gate"),
    ("跑鞋", {"category": "手机"}, (), 0.0, False, "a wrong category is no overcommitment"),
    ("跑鞋", {}, (), 1.0, False, "nor is the right one"),
]


@pytest.mark.parametrize(("expected", "given", "missing", "category", "flag", "reason"), OVERCOMMIT)
def test_gate_overcommit(
    expected: Any, given: Any, missing: Any, category: float, flag: bool, reason: str
) -> None:
    arguments = (without(plan(**given), *missing), golden(category=expected))
    plain, gated = score(*arguments), score(*arguments, gates=("overcommit",))
    assert plain.overcommit is gated.overcommit is flag, reason
    assert gated.category == category and "category" not in gated.abstained, reason
    assert gated.field_score == pytest.approx((category + 2) / 3), reason
    if not expected:
        assert plain.category is None and plain.field_score == 1.0, "without the gate it abstains"


EXCLUSION = [
    # expected, exclude_terms (... is missing), part, missed, reason
    (True, [EVIDENCED], 1.0, False, "expected and stated"),
    (True, [], 0.0, True, "expected and missing"),
    (False, [], 1.0, False, "neither"),
    (False, [EVIDENCED], 0.0, False, "not expected"),
    (True, [WORD], 1.0, False, "without evidence it still excludes"),
    (True, [{"evidence": "不要皮的"}], 0.0, True, "without a word it excludes nothing"),
    (False, [{"word": " "}], 1.0, False, "nor does a blank one"),
    (True, [{"word": "waterproof", "evidence": "不要皮的"}], 0.0, False, "hits must_have"),
    (True, [{"word": "shoe", "evidence": "不要皮的"}], 0.0, False, "hits the anchor"),
    (True, [EVIDENCED, {"word": "running", "evidence": "不要皮的"}], 0.0, False, "one that hits is enough"),
    (True, [{"word": "run", "evidence": "不要皮的"}], 1.0, False, "a hit is a whole Word"),
    (True, ..., 0.0, True, "a missing key counts as unequal"),
    (False, ..., 0.0, False, "also where nothing was expected"),
    (False, "none", 0.0, False, "and so does a wrong type"),
    (True, [EVIDENCED, "x"], 0.0, False, "of an element, too"),
]


@pytest.mark.parametrize(("expected", "exclusions", "part", "missed", "reason"), EXCLUSION)
def test_gate_exclusion(expected: bool, exclusions: Any, part: float, missed: bool, reason: str) -> None:
    given = without(PLAN, "exclude_terms") if exclusions is ... else plan(exclude_terms=exclusions)
    arguments = (given, golden(exclude_expected=expected))
    plain, gated = score(*arguments), score(*arguments, gates=("exclusion",))
    assert plain.exclusion_missed is gated.exclusion_missed is missed, reason
    assert plain.field_score == 1.0
    assert gated.field_score == pytest.approx((3 + part) / 4), reason


def test_gate_exclusion_takes_part_alone() -> None:
    nothing = golden(category=None, domains=None, budget_uncertain=True)
    result = score(expected=nothing, gates=("exclusion",))
    assert result.field_score == 1.0 and "field" not in result.abstained


def test_gate_exclusion_leaves_a_negated_golden_term_alone() -> None:
    expected = golden(must_have=["faux leather"], category_anchor="")
    assert score(expected=expected, gates=("exclusion",)).field_score == 1.0, (
        "leather does not hit faux leather"
    )


GROUNDED = [
    # keywords, titles, halved, reason
    (["one two three four five"], ["waterproof running shoes one two three"], False, "3 of 5 stand: 0.6"),
    (["one two three four five"], ["waterproof running shoes one two"], True, "2 of 5"),
    (["one two", "three four five"], ["running shoes one", "waterproof two shoes", "three"], False,
     "in some title"),
    (["one two", "one six", "one seven"], ["waterproof running shoes one two"], True, "distinct: 2 of 4"),
    (["tv of", "one", "two"], ["waterproof running shoes one two"], True,
     "a keyword of short Words uses all: 2 of 4"),
    (["one of", "two"], ["waterproof running shoes one two"], False, "short Words are left out: 2 of 2"),
    (["ones", "TWO"], ["waterproof running shoes one two"], False, "Words: without case, plural folded"),
    (["跑鞋"], ["waterproof running shoes"], True, "another language stands in no title"),
    (["鞋"], ["waterproof running shoes 跑鞋"], False, "a single character in a longer run"),
    (["one"], ["waterproof running shoes"] * 20 + ["one"], True, "the first 20 titles"),
]  # fmt: skip


@pytest.mark.parametrize(("keywords", "titles", "halved", "reason"), GROUNDED)
def test_gate_grounded(keywords: Any, titles: Any, halved: bool, reason: str) -> None:
    given = plan(keywords=keywords)
    plain, gated = score(given, titles=titles), score(given, titles=titles, gates=("grounded",))
    assert plain.retrieval is not None and plain.retrieval > 0
    assert gated.retrieval == (plain.retrieval / 2 if halved else plain.retrieval), reason


def test_gate_grounded_halves_once_more_than_the_copy() -> None:
    given = plan(keywords=["one two"])
    expected = golden(must_have=[])
    assert score(given, expected, ["running shoe"], text="one two").retrieval == 0.5
    assert score(given, expected, ["running shoe"], text="one two", gates=("grounded",)).retrieval == 0.25


def test_gate_grounded_without_titles_or_keywords() -> None:
    for titles, retrieval in (([], 0.0), (None, None)):
        assert score(titles=titles, gates=("grounded",)).retrieval == retrieval
    assert score(plan(keywords=[]), titles=None, gates=("grounded",)).retrieval == 0.0


def test_gates_do_not_touch_a_good_plan() -> None:
    fitting = [GOOD, "Trail Sneaker"]
    assert score(titles=fitting, gates=GATES).total == score(titles=fitting).total


# --------------------------------------------------------------------------- weights and gates as given

WEIGHTS = [
    # variable, the mix before normalising, reason
    ("field=0.40", (0.45, 0.40, 0.15, 0.10), "a named one replaces its default, the rest stay"),
    ('{"field": 0.40}', (0.45, 0.40, 0.15, 0.10), "a JSON object says the same"),
    (" field = 0.40 , econ=0 ", (0.45, 0.40, 0.15, 0), "spacing is free"),
    ("retrieval=1,field=1,format=1,econ=1", (1, 1, 1, 1), "all four"),
    ('{"retrieval": 0, "field": 2, "format": 0, "econ": 0}', (0, 2, 0, 0), "one alone"),
    ("field=4e-1", (0.45, 0.40, 0.15, 0.10), "any way to write a number"),
    ("", (0.45, 0.30, 0.15, 0.10), "blank is unset"),
    ("  ", (0.45, 0.30, 0.15, 0.10), "blank is unset"),
    ("{}", (0.45, 0.30, 0.15, 0.10), "nothing named"),
    ("econ=1e308,field=1e308,format=1e308", (0, 1, 1, 1), "huge ones do not overflow their sum"),
]


@pytest.mark.parametrize(("variable", "mix", "reason"), WEIGHTS)
def test_weights_from_env(variable: str, mix: tuple[float, ...], reason: str) -> None:
    weights = weights_from_env({"PLANNER_REWARD_WEIGHTS": variable})
    assert tuple(weights) == DIMENSIONS
    assert list(weights.values()) == pytest.approx([part / sum(mix) for part in mix]), reason


@pytest.mark.parametrize(
    ("variable", "says", "reason"),
    [
        ("feild=0.4", "feild", "an unknown name"),
        ("field_score=0.4", "field_score", "the breakdown's name is not the dimension's"),
        ("Field=0.4", "Field", "names have one spelling"),
        ("field=-0.1", "-0.1", "negative"),
        ("field=nan", "nan", "not a number"),
        ("field=inf", "inf", "not finite"),
        ("field=1e999", "inf", "overflows"),
        ("field=much", "much", "no number"),
        ("field=1_0", "1_0", "Python's digit grouping is no number of a shell variable"),
        ("field=", "field", "no number"),
        ("field", "field", "no ="),
        ("field=0.4,", "name=number", "an empty item"),
        ("field=0.4;econ=0.1", "0.4;econ", "items are parted by commas"),
        ("field=0.4,field=0.5", "twice", "named twice"),
        ("retrieval=0,field=0,format=0,econ=0", "zero", "all zero"),
        ('{"feild": 0.4}', "feild", "an unknown name in JSON"),
        ('{"field": -1}', "-1", "negative in JSON"),
        ('{"field": "0.4"}', "0.4", "a string is no number"),
        ('{"field": true}', "True", "true is no number"),
        ('{"field": null}', "None", "nor is null"),
        ('{"field": NaN}', "bad_number", "NaN"),
        ('{"field": 1e999}', "bad_number", "overflow"),
        ('{"field": 1, "field": 2}', "duplicate_key", "named twice in JSON"),
        ('{"field": 0.4', "field", "broken JSON"),
        ("[0.4]", "0.4", "a list"),
    ],
)
def test_wrong_weights_stop_the_run(variable: str, says: str, reason: str) -> None:
    with pytest.raises(ValueError, match="PLANNER_REWARD_WEIGHTS") as caught:
        weights_from_env({"PLANNER_REWARD_WEIGHTS": variable})
    assert says in str(caught.value), reason


def test_unset_variables_are_the_defaults() -> None:
    assert weights_from_env({}) == check_weights({}) == check_weights(DEFAULT_WEIGHTS) == DEFAULT_WEIGHTS
    assert gates_from_env({}) == ()


@pytest.mark.parametrize(
    "weights",
    [
        {"field": -0.1}, {"field": 10**400}, {"field": math.nan}, {"field": math.inf}, {"field": "1"}, {"field": True},
        {"total": 1},
        dict.fromkeys(DIMENSIONS, 0),
    ],
)  # fmt: skip
def test_compute_reward_refuses_wrong_weights(weights: Any) -> None:
    with pytest.raises(ValueError, match="weight"):
        score(weights=weights)
    with pytest.raises(ValueError, match="weight"):
        score(None, weights=weights)


def test_the_largest_float_is_a_weight() -> None:
    """The bound is what a float can hold, itself included; equal weights of that size are still a quarter each."""
    huge = sys.float_info.max
    assert check_weights(dict.fromkeys(DIMENSIONS, huge)) == dict.fromkeys(DIMENSIONS, 0.25)


def test_compute_reward_takes_named_weights_as_the_variable_does() -> None:
    given = plan(category="手机", keywords=["one"])
    assert score(given, weights={"field": 0.4}) == score(
        given, weights=weights_from_env({"PLANNER_REWARD_WEIGHTS": "field=0.4"})
    )


@pytest.mark.parametrize(
    ("variable", "gates"),
    [
        ("domain", ("domain",)),
        (" grounded , domain ", ("domain", "grounded")),
        ("domain,domain", ("domain",)),
        ("", ()),
        (" ", ()),
        (",".join(GATES), GATES),
    ],
)
def test_gates_from_env(variable: str, gates: tuple[str, ...]) -> None:
    assert gates_from_env({"PLANNER_REWARD_GATES": variable}) == gates


@pytest.mark.parametrize("variable", ["domains", "Domain", "domain,", "domain grounded", "all", "1"])
def test_wrong_gates_stop_the_run(variable: str) -> None:
    with pytest.raises(ValueError, match="PLANNER_REWARD_GATES.*domain, overcommit, exclusion, grounded"):
        gates_from_env({"PLANNER_REWARD_GATES": variable})


@pytest.mark.parametrize("gates", ["domain", ("domian",), [None]])
def test_compute_reward_refuses_wrong_gates(gates: Any) -> None:
    with pytest.raises(ValueError, match="gate"):
        score(gates=gates)
    assert check_gates(iter(["grounded", "domain"])) == ("domain", "grounded")


# ---------------------------------------------------------------------------------------- golden records


def test_golden_as_dict_or_json_string() -> None:
    text = json.dumps(GOLDEN, ensure_ascii=False)
    assert parse_golden(text) == parse_golden(GOLDEN) == parse_golden(parse_golden(text)) == GOLDEN
    assert score(expected=text) == score()
    assert parse_golden(GOLDEN) is not GOLDEN


def test_optional_golden_keys_are_filled_in() -> None:
    short = without(GOLDEN, "must_not", "budget_uncertain")
    assert parse_golden(short) == {**GOLDEN, "must_not": [], "budget_uncertain": False}


@pytest.mark.parametrize("key", GOLDEN_KEYS)
def test_each_golden_key_is_required(key: str) -> None:
    with pytest.raises(ValueError, match=f"grpo.jsonl:7.*{key!r} is missing"):
        parse_golden(without(GOLDEN, key), where="grpo.jsonl:7")


BROKEN = [
    # key, value, reason
    ("category", 5, "string or null"),
    ("domains", "footwear", "a list"),
    ("domains", ["shoes"], "legal names"),
    ("domains", ["global"], "global is reserved"),
    ("domains", [None], "names"),
    ("budget_amount", "300", "a number"),
    ("budget_amount", True, "true is none"),
    ("budget_amount", math.nan, "a finite one"),
    ("clear_budget", None, "true or false"),
    ("clear_budget", 0, "true or false"),
    ("budget_uncertain", "no", "true or false"),
    ("must_have", "waterproof", "a list"),
    ("must_have", None, "a list"),
    ("must_have", [5], "of strings"),
    ("must_have", ["waterproof", " "], "none blank: it could never hit"),
    ("must_not", ["!"], "none without a letter or a digit"),
    ("must_not", None, "a list"),
    ("category_anchor", 5, "a string"),
    ("category_anchor", "--", "with a letter or a digit"),
    ("exclude_expected", "yes", "true or false"),
    ("status", "open", "one of four"),
    ("status", None, "one of four"),
    ("status", ["agree"], "one of four"),
    ("split", "train", "an unknown key"),
    ("must_hve", [], "a misspelt key"),
]


@pytest.mark.parametrize(("key", "value", "reason"), BROKEN)
def test_a_broken_golden_record_names_row_key_and_value(key: str, value: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=f"row 3: golden_json: .*{key!r}") as caught:
        parse_golden(golden(**{key: value}), where="row 3")
    assert reason != "" and (repr(value) in str(caught.value) or "unknown key" in str(caught.value))
    with pytest.raises(ValueError, match="golden_json"):
        score(expected=golden(**{key: value}))
    with pytest.raises(ValueError, match="golden_json"):
        score(None, expected=golden(**{key: value}))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "5", "null", '{"a": 1, "a": 2}', '{"a": NaN}', "{} {}", "[" * 99_999]
)
def test_a_golden_record_that_does_not_parse_names_the_row(text: str) -> None:
    with pytest.raises(ValueError, match="row 3: golden_json: ") as caught:
        parse_golden(text, where="row 3")
    assert len(str(caught.value)) < 400, "a long value is shortened"


def test_an_error_shows_at_most_120_characters_of_a_value() -> None:
    for length, shown in ((4, "'xxxx'"), (118, f"'{'x' * 118}'"), (119, f"'{'x' * 116}...")):
        with pytest.raises(ValueError, match="status") as caught:
            parse_golden(golden(status="x" * length))
        assert f" is {shown}: one of" in str(caught.value)


@pytest.mark.parametrize(
    ("must_have", "anchor", "category", "broken"),
    [
        (["flowers"], "artificial flowers", "花", True),
        (["artificial flowers"], "artificial flowers", "花", False),
        (["花"], "flowers", "人造花", True),
        (["flowers"], "flowers", "花", False),
        (["leather"], "faux leather and leather bags", "包", False),
        (["silk"], "artificial flowers", None, False),
    ],
)
def test_must_have_is_never_negated_by_its_own_category(
    must_have: Any, anchor: str, category: Any, broken: bool
) -> None:
    record = golden(must_have=must_have, category_anchor=anchor, category=category)
    if broken:
        with pytest.raises(ValueError, match="must_have"):
            parse_golden(record)
    else:
        assert parse_golden(record)["must_have"] == must_have


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("{}", GOLDEN, TEXT, []), "plan"),
        (([], GOLDEN, TEXT, []), "plan"),
        (((), GOLDEN, TEXT, []), "plan"),
        ((PLAN, GOLDEN, None, []), "text"),
        ((PLAN, GOLDEN, TEXT, "Shoe"), "titles"),
        ((PLAN, GOLDEN, TEXT, ["Shoe", None]), r"titles\[1\]"),
    ],
)
def test_a_wrong_argument_is_an_error_that_names_it(arguments: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        compute_reward(*arguments)


# ------------------------------------------------------------------------------------ results and loading


def test_to_dict_has_the_same_keys_always_and_is_json() -> None:
    full, empty = score().to_dict(), score(None).to_dict()
    assert list(full) == list(empty) == list(RewardBreakdown._fields)
    assert json.loads(json.dumps(full)) == full and json.loads(json.dumps(empty)) == empty
    assert score(titles=None).to_dict()["abstained"] == ["retrieval"]


def test_a_breakdown_is_frozen() -> None:
    with pytest.raises(AttributeError):
        score().total = 2.0  # type: ignore[misc]


def test_abstained_names_stand_in_one_order() -> None:
    nothing = {**CHITCHAT, "budget_uncertain": True}
    assert score(expected=nothing).abstained == (
        "retrieval",
        "field",
        "econ",
        "category",
        "domains_f1",
        "budget",
    )


def test_the_arguments_have_names_and_the_mix_has_only_a_name() -> None:
    named = compute_reward(plan=PLAN, golden=GOLDEN, text=TEXT, titles=[GOOD], weights={}, gates=())
    assert named == score()
    with pytest.raises(TypeError, match="positional"):
        compute_reward(PLAN, GOLDEN, TEXT, [GOOD], DEFAULT_WEIGHTS)  # type: ignore[misc]


def test_arguments_are_left_as_they_were() -> None:
    given, expected, titles = json.dumps(PLAN), json.dumps(GOLDEN), [GOOD] * 30
    one, other = json.loads(given), json.loads(expected)
    compute_reward(one, other, TEXT, titles, gates=GATES)
    assert (json.dumps(one), json.dumps(other), len(titles)) == (given, expected, 30)


FILE = Path(planner_reward.__file__)
BARE = f"""
import importlib.util, sys, time
begin = time.process_time()
spec = importlib.util.spec_from_file_location("loaded_by_path", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
took = time.process_time() - begin
assert "loaded_by_path" not in sys.modules
golden = {json.dumps(GOLDEN)!r}
plan = module.parse_plan({json.dumps(PLAN)!r})
print(module.compute_reward(plan, golden, {TEXT!r}, [{GOOD!r}]).total)
print(module.compute_reward(None, golden, "", []).total)
print(took)
"""


def run_bare(*flags: str) -> list[str]:
    command = [sys.executable, *flags, "-c", BARE, str(FILE)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_loads_by_path_in_a_bare_interpreter() -> None:
    assert run_bare("-I", "-S")[:2] == ["1.0", "-1.0"]


def test_loads_quickly() -> None:
    # Processor time, the best of three: the contract is on the file, not on what else the machine is doing.
    assert min(float(run_bare("-I", "-S")[2]) for _ in range(3)) < 0.05


def test_a_plan_parsed_by_another_copy_of_the_file_is_a_plan() -> None:
    spec = importlib.util.spec_from_file_location("another_copy", FILE)
    assert spec is not None and spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    assert score(copy.parse_plan(f"Here: {json.dumps(PLAN)}")).format == 0.9


def test_imports_the_standard_library_only() -> None:
    tree = ast.parse(FILE.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= set(sys.stdlib_module_names)
    assert "__future__" not in names, "postponed annotations break a bare exec_module"


def test_scoring_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_REWARD_WEIGHTS", "broken")
    monkeypatch.setenv("PLANNER_REWARD_GATES", "broken")
    assert score().total == 1.0
    with pytest.raises(ValueError, match="PLANNER_REWARD_WEIGHTS"):
        weights_from_env()
    with pytest.raises(ValueError, match="PLANNER_REWARD_GATES"):
        gates_from_env()
