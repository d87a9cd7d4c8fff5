"""The faults that reward_map.py plants in a right plan, or in what a shopper is shown, to see which signal notices.

Edit here when the plan gets a field or the rubric a line: a name without a probe shows as a gap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scripts.eval.acceptance_search import BUDGET_CURRENCY, Product

Plan = Mapping[str, Any]
JUDGE, PERSON = "judge", "person"

FOUND = tuple(f"{maker} Waterproof Running Shoes" for maker in ("Nordvik", "Alpra", "Tessin", "Brevik", "Olmo"))


@dataclass(frozen=True)
class Situation:
    """A request with its golden record, a plan without fault, and the titles that its keywords find."""

    text: str
    golden: Mapping[str, Any]
    plan: Plan
    titles: tuple[str, ...] = FOUND


REQUEST = Situation(
    text="想买双男款跑鞋，要防水的，三百块以内，别给我网面的",
    golden={
        "category": "跑鞋",
        "domains": ["footwear"],
        "budget_amount": 300,
        "clear_budget": False,
        "must_have": ["waterproof"],
        "must_not": ["socks"],
        "category_anchor": "running shoes",
        "exclude_expected": True,
        "status": "agree",
    },
    plan={
        "category": "跑鞋",
        "domains": ["footwear"],
        "budget_amount": 300,
        "clear_budget": False,
        "keywords": ["waterproof running shoes", "rainproof trainers"],
        "exclude_terms": [{"word": "mesh", "evidence": "别给我网面的"}],
    },
)
VAGUE_SUM = Situation(
    text=REQUEST.text.replace("三百块以内", "两三百块吧"),
    golden={**REQUEST.golden, "budget_amount": None, "budget_uncertain": True},
    plan=REQUEST.plan,
)
NO_REFUSAL = Situation(  # a wish, and no hard exclusion
    text=REQUEST.text.replace("别给我网面的", "网面的不太喜欢"),
    golden={**REQUEST.golden, "exclude_expected": False},
    plan={**REQUEST.plan, "exclude_terms": []},
)
FRAGMENT = Situation(  # a follow-up whose context is gone
    text="再便宜点的有吗",
    golden={
        "category": None,
        "domains": None,
        "budget_amount": None,
        "clear_budget": False,
        "must_have": [],
        "category_anchor": "",
        "exclude_expected": False,
        "status": "context_missing",
    },
    plan={
        "category": "",
        "domains": ["other"],
        "budget_amount": None,
        "clear_budget": False,
        "keywords": [],
        "exclude_terms": [],
    },
)


@dataclass(frozen=True)
class Probe:
    """One fault of a field of the plan.

    Args:
        key: the plan's field.
        fault: what is wrong, in words.
        change: what the faulty plan says instead.
        titles: what its keywords find, where that changes.
        needs: JUDGE or PERSON where no code can tell; None where the reward is expected to.
    """

    key: str
    fault: str
    change: Mapping[str, Any]
    situation: Situation = REQUEST
    titles: tuple[str, ...] | None = None
    needs: str | None = None


def _keywords(fault: str, keywords: Sequence[str], titles: Sequence[str] = FOUND, needs: str | None = None) -> Probe:
    return Probe("keywords", fault, {"keywords": list(keywords)}, titles=tuple(titles), needs=needs)


def _excluding(
    fault: str, word: str, evidence: str, needs: str | None = None, situation: Situation = REQUEST
) -> Probe:
    change = {"exclude_terms": [{"word": word, "evidence": evidence}]}
    return Probe("exclude_terms", fault, change, situation, needs=needs)


PROBES: tuple[Probe, ...] = (
    Probe("category", "another category", {"category": "台灯"}),
    Probe("category", "invented for a fragment", {"category": "跑鞋"}, FRAGMENT),
    Probe("category", "an audience made up in front of it", {"category": "女士跑鞋"}, needs=JUDGE),
    Probe("domains", "another domain", {"domains": ["pet"]}),
    Probe("domains", "a name that is not on the list", {"domains": ["footwear", "shoes"]}),
    Probe("domains", "guessed for a fragment", {"domains": ["pet"]}, FRAGMENT, needs=PERSON),
    Probe("budget_amount", "another amount", {"budget_amount": 500}),
    Probe("budget_amount", "written as a string", {"budget_amount": "300"}),
    Probe("budget_amount", "a bad reading of a vague sum", {"budget_amount": 2300}, VAGUE_SUM, needs=PERSON),
    Probe("clear_budget", "lifted though it was set", {"clear_budget": True}),
    Probe("clear_budget", "a bad reading beside a vague sum", {"clear_budget": True}, VAGUE_SUM, needs=PERSON),
    _keywords("find other products", ["desk lamp", "reading light"], ["Nordvik Desk Lamp"] * 5),
    _keywords("find accessories", ["running socks", "shoe laces"], ["Alpra Waterproof Running Shoes Socks"] * 5),
    _keywords("none", []),
    _keywords("the sentence copied", [REQUEST.text]),
    _keywords("too long and repeated", ["waterproof waterproof shoes for men running shoes"] * 7),
    _keywords("filler that finds the same", ["waterproof running shoes", "zzxq blorp fnord quux"]),
    _keywords("words in no natural order", ["shoes running waterproof", "trainers rainproof"], needs=JUDGE),
    Probe("exclude_terms", "a stated exclusion dropped", {"exclude_terms": []}),
    _excluding("evidence made up", "mesh", "不要网眼布"),
    _excluding("excludes what is asked", "waterproof", "别给我网面的"),
    _excluding("a wish taken for a refusal", "mesh", "网面的不太喜欢", situation=NO_REFUSAL),
    _excluding("the wrong word", "leather", "别给我网面的", needs=JUDGE),
    _excluding("evidence from another clause", "mesh", "要防水的", needs=JUDGE),
)


# ------------------------------------------------------------------------------------------ the rubric's lines


def _shown(*titles: str, price: float = 200.0) -> tuple[Product, ...]:
    return tuple(Product(title, price=price, currency=BUDGET_CURRENCY) for title in titles)


@dataclass(frozen=True)
class LineProbe:
    """Items on which a line of the rubric has to fail, and where its code is not enough.

    Args:
        line: the line's name.
        shown: the broken list; everything else about it is in order.
        situation: the request it answers.
        limit: what a judge or a person has to add, "" where code decides it all.
    """

    line: str
    shown: tuple[Product, ...] = field(repr=False)
    situation: Situation = REQUEST
    needs: str | None = None
    limit: str = ""


UNWANTED = "mesh"
KEPT = _shown(*(f"{title} for Men" for title in FOUND))
LINE_PROBES: tuple[LineProbe, ...] = (
    LineProbe(
        "right_product",
        _shown(*(["Nordvik Desk Lamp for Men"] * 5)),
        needs=JUDGE,
        limit="titles that hide what they are",
    ),
    LineProbe("budget_kept", _shown(*(f"{title} for Men" for title in FOUND), price=900.0)),
    LineProbe(
        "exclusions_kept",
        _shown(*(f"{title} for Men, Mesh" for title in FOUND)),
        needs=PERSON,
        limit="a refused word that is not in the table of exclusions",
    ),
    LineProbe(
        "audience_respected",
        _shown(*(f"{title} for Women" for title in FOUND)),
        NO_REFUSAL,  # of a turn that refuses something the golden terms alone say whom it is for
        JUDGE,
        "an audience that neither request nor title names",
    ),
    LineProbe("enough_results", KEPT[:2]),
)


# -------------------------------------------------------------------------------------- the training methods


@dataclass(frozen=True)
class Method:
    """Where a method's reward comes from, and what has to be resident to train with it (full fine-tuning)."""

    name: str
    reward: str
    critic: bool
    copies: tuple[str, ...]
    remark: str


METHODS: tuple[Method, ...] = (
    Method("SFT", "none: the answers of the set", False, ("policy",), "run_sft_planner.sh"),
    Method(
        "PPO",
        "a reward model or function, each completion; spread over tokens by the critic",
        True,
        ("policy", "reference", "critic", "reward model"),
        "a reward function saves the last",
    ),
    Method("DPO", "pairs of answers, better and worse", False, ("policy", "reference"), "samples nothing"),
    Method(
        "GRPO",
        "a function, each completion against its group's mean",
        False,
        ("policy", "reference"),
        "run_grpo_planner.sh; beta 0 drops the reference, LoRA gets it by switching the adapter off; vLLM adds its own",
    ),
)
