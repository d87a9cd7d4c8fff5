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

# A hard word that stands inside another word, or says something else there; beside it what it does exclude.
INSIDE_A_WORD = [
    ("想买个不沾锅", "不沾牛肉"),
    ("不沾水的鞋套", "不沾酒"),
    ("平底锅要不沾的", "死活不沾塑料"),
    ("不沾油的围裙", "糖一概不沾"),
    ("passport 护照夹", "皮的pass"),
    ("compass 指南针", "红色pass掉"),
    ("iPod nano 保护套", "no leather"),
    ("piano 琴凳", "跑鞋，No black"),
    ("casino 筹码", "need keyboard, no RGB lights"),
    ("香水 no 5", "no plastic"),
    ("no need to buy the big one", "no need of that, no plastic"),
    ("no more than 500", "no more than 500, no plastic"),
    ("剔牙线", "荧光色的剔掉"),
    ("晶莹剔透的手镯", "红色的剔除"),
    ("剔骨刀", "把带钻的剔出去"),
    ("送给挑剔的人", "塑料的全剔了"),
    ("除了跑鞋还要袜子", "除了跑鞋都行"),
    ("除了大小合适，还要防水", "除了塑料的都行，还要防水"),
    ("除了跑步也能日常穿", "除了黑色，其他也可以"),
    ("除了好看，平时也要耐穿", "除了塑料的，玻璃的也不要"),
    ("除了收纳之外再带个盖子", "除了含酒精的还有哪些"),
    ("不收费的地图", "二手的不收"),
    ("不要钱的赠品", "不要钱包"),
    ("不要求防水", "不要防水的"),
    ("能不能带个盒子", "不能带盒子"),
    ("可不可以有图案", "不可以有图案"),
    ("这个尺码行不行？", "羊毛的不行"),
    ("买不买无所谓", "不买塑料的"),
    ("不买就没了，快推荐", "不买带线的"),
    ("非买不可", "非常怕扎，羊毛不行"),
    ("没有它不行", "塑料的都不行"),
    ("别买错型号", "别买塑料的"),
    ("带人脸识别加密码的锁", "送人的，别加糖"),
    ("不排除买大的", "排除塑料的"),
    ("无法拒绝的礼物", "拒绝塑料"),
    ("不考虑品牌，好用就行", "不考虑塑料"),
    ("能去掉异味的除臭剂", "去掉有味道的"),
    ("过滤掉杂质的净水器", "过滤掉塑料的"),
    ("避免了磨脚的鞋", "网面的免了"),
    ("绝对不亏的耳机", "绝对不要塑料"),
    ("不吃力的开瓶器", "不吃辣"),
    ("不准时的闹钟换一个", "不准有塑料"),
    ("冷得受不了，要厚被子", "觉得受不了羊毛"),
    ("用不着太大的", "塑料的用不着"),
    ("五百打住吧", "塑料的打住吧"),
    ("忌廉蛋糕粉", "忌花生"),
    ("没什么顾忌", "忌口花生"),
    ("不入味的锅换一个", "塑料的不入"),
    ("不接受反驳的情侣装", "不接受塑料"),
    ("晚两天到不要紧", "牛仔裤，不要紧身的"),
    ("旧一点不要紧的", "不要紧身衣"),
    ("不要紧，慢慢挑", "不要紧急灯"),
    ("不要超过500", "手机壳不要超薄的"),
    ("不要超出预算", "不要超短的裙子"),
    ("不要超两百五", "不要超大的"),
    ("五百，价格不要超", "不要超市的"),
    ("能不要就不要", "手表要智能不要机械的"),
    ("能不要塑料就不要塑料", "要多功能不要单一功能的"),
    ("尽可能不要黑色", "节能不要耗电大的"),
    ("不要太贵", "我不要太阳能的"),
    ("不要太厚的被子", "不要太空棉的"),
    ("请勿打扰门牌", "塑料勿扰"),
    ("手机勿扰模式怎么开", "网面的勿推"),
    ("除湿机外壳都有什么颜色", "除黑色外都行"),
    ("除螨仪外加一个滤网", "除塑料以外的材质都可以"),
    ("除跑鞋外还要袜子", "除红色之外，其他颜色也可以"),
    ("不带盖也行", "不带拉链"),
    ("带不带灯都可以", "包要不带logo的"),
    ("做工毫不含糊", "不含酒精"),
    ("最好不含酒精", "不含糖的，最好是粉色"),
    ("除此之外都好", "除黑色外其他都好"),
    ("除去污渍外都没变化", "除粉色外都不错"),
    ("这个价不含税吗", "不含酒精的爽肤水"),
]


@pytest.mark.parametrize(("said", "excludes"), INSIDE_A_WORD)
def test_a_hard_word_inside_another_word_excludes_nothing(said: str, excludes: str) -> None:
    assert (expects_exclusion(said), expects_exclusion(excludes)) == (False, True)


@pytest.mark.parametrize(("text", "expected", "why"), EXCLUSIONS)
def test_hard_and_soft_exclusions(text: str, expected: bool, why: str) -> None:
    assert expects_exclusion(text) is expected, why


def test_a_proven_domain_is_added_and_none_is_removed() -> None:
    assert with_proven_domains(["sports"], "想买瑜伽垫和跑鞋") == ["sports", "footwear"]
    assert with_proven_domains(["apparel", "sports"], "随便看看") == ["apparel", "sports"]


@pytest.mark.parametrize(
    ("text", "proven"),
    [
        ("想买条项链，口红和香水就不要了", ["jewelry_watches"]),
        ("想买条项链，口红、香水都不要", ["jewelry_watches"]),
        ("除了跑鞋都行", []),
        ("跑鞋不要太重的", ["footwear"]),  # a wish about the thing itself
        ("跑鞋，不要黑色的", ["footwear"]),
    ],
)
def test_what_is_refused_proves_no_domain(text: str, proven: list[str]) -> None:
    assert with_proven_domains([], text) == proven


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
