"""Golden fields by rule: hard and soft exclusions, proven domains, fragments."""

import pytest

from reward.planner_reward import DOMAINS, RESERVED_DOMAIN
from scripts.data.golden_rules import (
    DOMAIN_EVIDENCE,
    differing,
    expects_exclusion,
    is_fragment,
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
]
FRAGMENTS = [
    ("换一个", (), True, "points back at nothing"),
    ("刚才那款有大号吗", (), True, "points back at nothing"),
    ("刚才那款有大号吗", ("想买跑鞋",), False, "the context is there"),
    ("那款跑鞋有大号吗", (), False, "names its goods"),
    ("那个，想买台灯", (), False, "那个 as an opener"),
    ("有没有这个价的台灯", (), False, "points at a price"),
]


@pytest.mark.parametrize(("text", "expected", "why"), EXCLUSIONS)
def test_hard_and_soft_exclusions(text: str, expected: bool, why: str) -> None:
    assert expects_exclusion(text) is expected, why


@pytest.mark.parametrize(("text", "prior", "expected", "why"), FRAGMENTS)
def test_fragments(text: str, prior: tuple[str, ...], expected: bool, why: str) -> None:
    assert is_fragment(text, prior) is expected, why


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
