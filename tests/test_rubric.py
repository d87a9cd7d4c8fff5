"""The rubric's lines on requests and results written by hand: what passes, what fails, what is not judged and why."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import golden, reward

from scripts.eval.acceptance_search import Product, Rates
from scripts.eval.rubric import (
    AUDIENCES,
    ENOUGH,
    LINES,
    Case,
    Judging,
    audience,
    compare,
    is_for_others,
    judge,
    summarise,
    unwanted_word,
)

JUDGING = Judging(reward(), Rates({"USD": 0.125}))  # a dollar is eight yuan
HITS = reward().term_hits
SHOE = "Nordvik waterproof running shoes"
NOTHING_ASKED = {"category": None, "domains": None, "must_have": [], "category_anchor": ""}


def case(
    *titles: str, text: str = "跑鞋", price: float | None = None, currency: str | None = "USD", **changes: Any
) -> Case:
    own = {key: changes.pop(key) for key in ("unwanted", "exclusion_stated") if key in changes}
    record = reward().parse_golden(golden(**changes))
    shown = tuple(Product(title, None, price, None if price is None else currency) for title in titles)
    return Case("a", text, record, shown, **{"unwanted": None, "exclusion_stated": False, **own})


def finding(name: str, one: Case, judging: Judging = JUDGING) -> Any:
    return judge(one, judging).findings[name]


@pytest.mark.parametrize(
    ("titles", "changes", "passed", "reason"),
    [
        ([SHOE] * 5, {}, True, "the thing, with what is asked"),
        ([SHOE] * 2 + ["Alpra running shoes"] * 3, {}, True, "two in five have what is asked: 0.6 * 0.8 + 0.4"),
        ([SHOE] + ["Alpra running shoes"] * 4, {}, False, "one in five have what is asked: 0.6 * 0.4 + 0.4"),
        (["waterproof desk lamp"] * 5, {}, False, "what is asked, on another thing"),
        (["faux waterproof running shoes"] * 5, {}, False, "a negated hit is no hit, as in the reward"),
        (["waterproof running shoes laces"] * 5, {"must_not": ["laces"]}, False, "an accessory"),
        ([], {}, False, "nothing shown is not the right product"),
        ([SHOE], NOTHING_ASKED, None, "no product asked"),
        (["Alpra running shoes"] * 5, {"must_have": []}, True, "the category alone was asked"),
    ],
)
def test_right_product(titles: list[str], changes: dict[str, Any], passed: bool | None, reason: str) -> None:
    assert finding("right_product", case(*titles, **changes)).passed is passed, reason


@pytest.mark.parametrize(
    ("price", "currency", "changes", "passed", "note"),
    [
        (12.5, "USD", {"budget_amount": 100}, True, "1 of 1"),
        (12.6, "USD", {"budget_amount": 100}, False, "1 of 1"),
        (100, "CNY", {"budget_amount": 100}, True, "1 of 1"),
        (100.01, "CNY", {"budget_amount": 100}, False, "1 of 1"),
        (None, None, {"budget_amount": 100}, None, "no price known"),
        (9999, "EUR", {"budget_amount": 100}, None, "no price in the budget's currency"),
        (9999, None, {"budget_amount": 100}, None, "no price in the budget's currency"),
        (9999, "USD", {}, None, "no budget asked"),
        (9999, "USD", {"budget_amount": None, "budget_uncertain": True}, None, "budget uncertain"),
    ],
)
def test_budget(price: float | None, currency: str | None, changes: dict[str, Any], passed: Any, note: str) -> None:
    found = finding("budget_kept", case(SHOE, price=price, currency=currency, **changes))
    assert found.passed is passed and note in found.note


@pytest.mark.parametrize(
    ("price", "currency", "passed", "note"),
    [
        (30, "USD", True, "1 of 1"),
        (50.5, "USD", False, "1 of 1"),
        (400, "CNY", True, "1 of 1"),
        (401, "CNY", False, "1 of 1"),
        (10, "EUR", None, "no price in the budget's currency"),
    ],
)
def test_a_dollar_budget(price: float, currency: str, passed: Any, note: str) -> None:
    one = case(SHOE, text="想买双跑鞋，50美元以内", price=price, currency=currency, budget_amount=50)
    found = finding("budget_kept", one)
    assert found.passed is passed and note in found.note


def test_without_a_rate_yuan_do_not_compare_with_a_dollar_budget() -> None:
    one = case(SHOE, text="50美元以内", price=9999, currency="CNY", budget_amount=50)
    assert finding("budget_kept", one, Judging(reward(), Rates())).note == "no price in the budget's currency"


def test_without_a_rate_dollars_do_not_compare_with_yuan() -> None:
    one = case(SHOE, price=9999, budget_amount=100)
    assert finding("budget_kept", one, Judging(reward(), Rates())).note == "no price in the budget's currency"


def test_an_unknown_price_beside_known_ones_neither_keeps_nor_breaks_the_budget() -> None:
    one = case(SHOE, SHOE, price=10, budget_amount=100)
    mixed = Case(one.id, one.text, one.golden, (*one.shown, Product("x", None, None, None)), False, None)
    assert finding("budget_kept", mixed).value == 1.0 and finding("budget_kept", mixed).note.startswith("2 of 3")


@pytest.mark.parametrize(
    ("titles", "changes", "passed", "reason"),
    [
        ([SHOE], {"exclude_expected": True, "unwanted": "mesh"}, True, "not shown"),
        ([SHOE, "mesh shoes"], {"exclude_expected": True, "unwanted": "mesh"}, False, "shown once"),
        (["mesh-free shoes"], {"exclude_expected": True, "unwanted": "mesh"}, True, "the title itself denies it"),
        ([SHOE], {"exclude_expected": True, "exclusion_stated": True}, True, "word unknown, but the plan filters"),
        ([SHOE], {"exclude_expected": True}, False, "word unknown, and the plan filters nothing"),
        (["mesh shoes"], {}, None, "nothing refused"),
        ([], {"exclude_expected": True, "unwanted": "mesh"}, None, "nothing shown"),
    ],
)
def test_exclusions(titles: list[str], changes: dict[str, Any], passed: bool | None, reason: str) -> None:
    assert finding("exclusions_kept", case(*titles, **changes)).passed is passed, reason


@pytest.mark.parametrize(
    ("text", "title", "passed", "reason"),
    [
        ("男士跑鞋", "Women's Running Shoes", False, "another gender"),
        ("男士跑鞋", "Men's Running Shoes", True, "asked for"),
        ("男士跑鞋", "Running Shoes for Men and Women", True, "for both"),
        ("男士跑鞋", "Unisex Running Shoes", True, "for all"),
        ("男士跑鞋", "Running Shoes", True, "says nothing"),
        ("男士跑鞋", "Menthol Womenswear Shoes", True, "no whole Words"),
        ("女款跑鞋", "Boys Running Shoes", False, "boys are not for women"),
        ("男士跑鞋", "Kids Running Shoes", False, "a man is no child"),
        ("儿童跑鞋", "Running Shoes for Adults", False, "a child is no adult"),
        ("儿童跑鞋", "Kids' Running Shoes for Boys and Girls", True, "asked for"),
        ("儿童跑鞋", "Women's Running Shoes", False, "women are adults"),
        ("老人用的跑鞋", "Toddler Running Shoes", False, "the old are adults"),
        ("给儿子买跑鞋", "Girls Running Shoes", False, "a son is a boy"),
        ("送女朋友的跑鞋", "Men's Running Shoes", False, "a present for a woman"),
        ("妈妈推荐的跑鞋", "Men's Running Shoes", None, "recommended by her, for anybody"),
        ("男女同款跑鞋", "Women's Running Shoes", None, "for both"),
        ("跑鞋", "Women's Running Shoes", None, "nobody named"),
        ("men's running shoes", "Women's Running Shoes", False, "an English request"),
        ("朋友要的跑鞋", "Kids Running Shoes", None, "a friend is no 小朋友"),
    ],
)
def test_audience(text: str, title: str, passed: bool | None, reason: str) -> None:
    judged = judge(case(title, text=text), JUDGING)
    assert judged.findings["audience_respected"].passed is passed, reason
    assert judged.p0 == (("audience_respected",) if passed is False else ()), reason


def test_one_item_for_others_among_ten_is_a_p0() -> None:
    judged = judge(case(*["Men's running shoes"] * 9, "Women's running shoes", text="男士跑鞋"), JUDGING)
    assert judged.p0 == ("audience_respected",)
    assert judged.findings["audience_respected"].wrong == ("Women's running shoes",)


def test_the_golden_terms_name_the_audience_of_an_earlier_turn() -> None:
    assert judge(case("Women's shoes", text="黑色的", must_have=["men"]), JUDGING).p0


def test_a_refused_audience_is_not_the_one_wanted() -> None:
    one = case("Men's running shoes", text="跑鞋，女款的免了", exclude_expected=True, unwanted="women")
    assert not judge(one, JUDGING).p0


@pytest.mark.parametrize("axis", AUDIENCES)
def test_every_term_of_one_group_is_found_and_is_wrong_for_the_other(axis: str) -> None:
    first, second = AUDIENCES[axis]
    for mine, other in ((first, second), (second, first)):
        for term in set(AUDIENCES[axis][mine]) - set(AUDIENCES[axis][other]):
            if other not in audience([term], HITS).values() and mine == audience([term], HITS).get(axis):
                assert is_for_others(term, {axis: other}, HITS), term
            else:
                assert any(HITS(rival, term) for rival in AUDIENCES[axis][other]), term  # 爸 in 爸妈: both


@pytest.mark.parametrize(("count", "passed"), [(0, False), (ENOUGH - 1, False), (ENOUGH, True), (ENOUGH + 1, True)])
def test_enough(count: int, passed: bool) -> None:
    found = finding("enough_results", case(*[SHOE] * count))
    assert found.passed is passed and found.value == min(1.0, count / ENOUGH)


TABLE = [(("带灯", "发光"), "led"), (("塑料",), "plastic"), (("皮的",), "leather"), (("牛皮的",), "cowhide")]


@pytest.mark.parametrize(
    ("text", "changes", "word", "reason"),
    [
        ("帐篷，塑料的免了", {}, "plastic", "one row"),
        ("帐篷，塑料和发光的免了", {}, None, "two rows: nobody can tell"),
        ("要发光的，塑料的免了", {"must_have": ["led", "backlit"]}, "plastic", "what is asked is not refused"),
        ("牛皮的免了", {}, "cowhide", "the longer form holds the shorter"),
        ("绿的免了", {}, None, "no row"),
        ("塑料的", {"exclude_expected": False}, None, "nothing refused"),
    ],
)
def test_the_word_that_is_refused(text: str, changes: dict[str, Any], word: str | None, reason: str) -> None:
    record = json.loads(golden(**{"exclude_expected": True, "must_have": [], **changes}))
    assert unwanted_word(text, record, TABLE, HITS) == word, reason


def test_abstentions_are_counted_by_reason_and_enter_no_mean() -> None:
    good, idle = case(*[SHOE] * 5), case(**NOTHING_ASKED)
    women = case(*["Women's waterproof running shoes"] * 5, text="男士跑鞋")
    summary = summarise([judge(one, JUDGING) for one in (good, idle, women)])
    assert (summary["requests"], summary["judged"], summary["nothing_to_judge"]) == (3, 2, 1)
    assert summary["score"]["mean"] == pytest.approx((1 + 2 / 3) / 2) and summary["score"]["sd"] == pytest.approx(1 / 6)
    assert (summary["passes"], summary["p0_failures"]) == (1, ["a"])
    line = summary["lines"]["audience_respected"]
    assert line == {"mean": 0.0, "judged": 1, "failed": 1, "not_judged": {"no audience asked": 2}}


def test_a_summary_of_nothing_judged_has_no_mean() -> None:
    summary = summarise([judge(case(**NOTHING_ASKED), JUDGING)])
    assert summary["score"] == {"mean": None, "sd": None, "low": None, "high": None} and summary["passes"] == 0


def test_the_comparison_is_paired_and_says_which_is_worse() -> None:
    good = [judge(case(*[SHOE] * 5), JUDGING)] * 40
    bad = [judge(case(*["desk lamp"] * 5), JUDGING)] * 20 + good[:20]
    assert compare(good, bad)["verdict"] == "worse" and compare(bad, good)["verdict"] == "better"
    assert compare(good, good)["verdict"] == "no difference"
    assert compare(bad[:4], good[:4])["verdict"] == "no difference", "four alike: by chance in one of eight"
    idle = [judge(case(**NOTHING_ASKED), JUDGING)]
    assert compare(idle, idle)["requests"] == 0


@settings(deadline=None)  # a busy machine is no fault of the rubric
@given(
    st.lists(st.sampled_from([SHOE, "Women's shoes", "desk lamp", "Kids' boots", "跑鞋", ""]), max_size=10),
    st.sampled_from(["男士跑鞋", "跑鞋", "儿童", ""]),
    st.sampled_from([None, 0, 5, 1e9]),
    st.booleans(),
)
def test_values_lie_in_the_unit_interval_and_agree_with_the_verdict(
    titles: list[str], text: str, price: float | None, refuses: bool
) -> None:
    judged = judge(case(*titles, text=text, price=price, budget_amount=50, exclude_expected=refuses), JUDGING)
    assert list(judged.findings) == [line.name for line in LINES]
    for found in judged.findings.values():
        assert (found.value is None) == (found.passed is None) and found.note
        assert found.value is None or 0 <= found.value <= 1
    assert judged.score is None or 0 <= judged.score <= 1
