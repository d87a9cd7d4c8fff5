"""Golden fields by rule: budgets, hard and soft exclusions, proven domains."""

import pytest

from reward.planner_reward import DOMAINS, RESERVED_DOMAIN
from scripts.data.golden_rules import (
    DOMAIN_EVIDENCE,
    differing,
    expects_exclusion,
    rule_fields,
    with_proven_domains,
)

EXCLUSIONS = [
    ("想买跑鞋，不要黑色的", True, "hard"),
    ("别给我网面的", True, "hard"),
    ("塑料的就算了", True, "hard, behind the thing"),
    ("除了红色都行", True, "hard"),
    ("大红的不要", True, "hard at the end of the turn"),
    ("怎么退货", False, "退货 alone excludes nothing"),
    ("不太喜欢塑料", False, "a dislike is a wish"),
    ("尽量别太厚", False, "soft"),
    ("最好不是塑料", False, "soft"),
    ("尽量别黑色，但绝对不要塑料", True, "a soft and a hard one"),
    ("要不要带伞", False, "a question"),
    ("不要超过三百", False, "speaks of money"),
    ("低于500的不要", False, "speaks of money"),
    ("不要太贵的", False, "speaks of money"),
    ("特别好看的", False, "别 inside a word"),
    ("有没有别的颜色", False, "asks for another"),
    ("单独包装和防水缺一不可", False, "asks for both"),
    ("想买跑鞋", False, "nothing excluded"),
    ("没有就算了", False, "gives up"),
    ("有防水的跑鞋吗，没货就算了", False, "gives up"),
    ("没有口袋的就算了", True, "excludes what has no pockets"),
    ("防水那条去掉吧", False, "a wish taken back"),
    ("防水这个要求就取消吧", False, "a wish taken back"),
    ("把防水的去掉", True, "excludes goods"),
    ("第二条去掉吧", True, "excludes goods"),
    ("不超过299块钱/绝对不要带磁铁", True, "a price, then what is excluded"),
    ("不超过299元、不要塑料", True, "the same behind another mark"),
    ("500以上不要带磁铁的", True, "the same without a mark"),
    ("超过300的不要给我看", False, "refuses a price"),
    ("500以上的就不要了", False, "refuses a price"),
]


@pytest.mark.parametrize(("text", "expected", "why"), EXCLUSIONS)
def test_hard_and_soft_exclusions(text: str, expected: bool, why: str) -> None:
    assert expects_exclusion(text) is expected, why


def test_a_proven_domain_is_added_and_none_is_removed() -> None:
    assert with_proven_domains(["sports"], "想买瑜伽垫和跑鞋") == ["sports", "footwear"]
    assert with_proven_domains(["apparel", "sports"], "随便看看") == ["apparel", "sports"]


@pytest.mark.parametrize("text", ["书包架", "键盘膜", "行李箱", "手表带"])
def test_an_accessory_proves_only_what_it_is(text: str) -> None:
    expected = ["bags"] if text == "行李箱" else []
    assert with_proven_domains([], text) == expected


def test_every_domain_that_can_be_proven_is_legal_and_all_are_covered() -> None:
    assert {domain for domain, _ in DOMAIN_EVIDENCE} == set(DOMAINS) - {RESERVED_DOMAIN, "other"}


def test_rule_fields_of_a_turn() -> None:
    assert rule_fields("三百以内，不要黑色") == {
        "budget_amount": 300,
        "clear_budget": False,
        "budget_uncertain": False,
        "exclude_expected": True,
    }


def test_an_uncertain_budget_is_compared_by_its_uncertainty_only() -> None:
    keys = ("budget_amount", "clear_budget", "budget_uncertain")
    sure = {"budget_amount": 300, "clear_budget": False, "budget_uncertain": False}
    unsure = {**sure, "budget_uncertain": True}
    assert differing(unsure, {**unsure, "budget_amount": 1}, keys) == []
    assert differing(sure, {**sure, "budget_amount": 400}, keys) == ["budget_amount"]
    assert differing(sure, {**sure, "budget_uncertain": True}, keys) == ["budget_uncertain"]
