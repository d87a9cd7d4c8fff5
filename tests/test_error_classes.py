"""Error classes and tiers, on completions scored by the real reward: what counts, of how many, and what is shown."""

import json
from typing import Any

import pytest
from small_world import TEXT, golden, plan

from reward import planner_reward as reward
from scripts.eval.error_classes import ERROR_CLASSES, error_classes
from scripts.eval.tiers import constraints, tiers, turns

FOUND = ["Nordvik waterproof running shoes"]
UNKNOWN = golden(category=None, domains=None, must_have=[], category_anchor="")


def sample(completion: str, expected: str, titles: list[str], text: str = TEXT) -> dict[str, Any]:
    parsed = reward.parse_plan(completion)
    breakdown = reward.compute_reward(parsed, expected, text, titles).to_dict()
    return {
        "completion": completion,
        "plan": parsed.plan,
        "issues": list(parsed.issues),
        "titles": titles,
        "breakdown": breakdown,
    }


def record(
    *completions: str, name: str = "a", expected: str = "", titles: list[str] | None = None, **more: Any
) -> dict[str, Any]:
    wanted = expected or golden()
    found = FOUND if titles is None else titles
    return {
        "id": name,
        "family": "attribute",
        "text": TEXT,
        "prior_context": [],
        "golden": reward.parse_golden(wanted),
        "samples": [sample(completion, wanted, found) for completion in completions],
        **more,
    }


GOOD = plan("waterproof running shoes", "waterproof trainers")
COPY = plan(TEXT, "running shoes")


@pytest.mark.parametrize(
    ("name", "one", "reason"),
    [
        ("parse", record("no plan"), "nothing to read"),
        ("category", record(plan("waterproof shoes", category="连衣裙")), "another category"),
        ("domain", record(plan("waterproof shoes", domains=["footwear", "sports"])), "one domain too many"),
        ("budget", record(plan("waterproof shoes", budget_amount=200)), "an amount nobody named"),
        ("no_keywords", record(plan()), "a search without words"),
        ("keywords_find_nothing", record(GOOD, titles=["Alpra yoga mat"]), "titles, but none that was asked for"),
        ("keywords_find_nothing", record(GOOD, titles=[]), "no title at all"),
        ("copied_sentence", record(COPY), "the sentence as a keyword"),
        (
            "invented_evidence",
            record(plan("waterproof shoes", exclude_terms=[{"word": "皮", "evidence": "不要皮的"}])),
            "evidence that was not said",
        ),
        ("over_commitment", record(GOOD, expected=UNKNOWN), "a category that cannot be known"),
    ],
)
def test_each_class_catches_its_fault_and_a_good_plan_is_in_none(
    name: str, one: dict[str, Any], reason: str
) -> None:
    found = error_classes([one, record(GOOD, name="good")])
    assert found[name]["count"] == 1, reason
    (example,) = found[name]["examples"]
    assert (example["id"], example["completion"]) == ("a", one["samples"][0]["completion"])
    clean = error_classes([record(GOOD)])
    assert {kind: clean[kind]["count"] for kind in clean} == dict.fromkeys(ERROR_CLASSES, 0)


def test_denominators_hold_only_where_the_error_can_happen() -> None:
    records = [record(GOOD, "no plan"), record(plan(category=""), name="b", expected=UNKNOWN)]
    found = error_classes(records)
    assert found["parse"]["of"] == 3
    assert found["category"]["of"] == 1  # one did not parse, one has no category to get wrong
    assert found["no_keywords"]["of"] == 1  # nothing is to be searched in the second record
    assert found["no_keywords"]["count"] == 0
    assert (found["over_commitment"]["count"], found["over_commitment"]["of"]) == (0, 1)
    assert found["invented_evidence"] == {"count": 0, "of": 0, "share": None, "examples": []}


def test_examples_are_three_records_worst_first() -> None:
    wrong = [
        record(plan("waterproof shoes", category="连衣裙", domains=["apparel"][: number % 2]), "x", name=str(number))
        for number in range(6)
    ]
    found = error_classes(wrong)["category"]
    totals = [example["total"] for example in found["examples"]]
    assert found["count"] == 6 and len(totals) == 3 and totals == sorted(totals)
    assert len({example["id"] for example in found["examples"]}) == 3
    assert found["examples"][0]["golden"] == {"category": "跑鞋"}
    assert found["examples"][0]["given"] == {"category": "连衣裙"}
    assert len(error_classes([record("x", "y", "z")])["parse"]["examples"]) == 1  # one record is one example


@pytest.mark.parametrize(
    ("changes", "count", "reason"),
    [
        ({}, 1, "an attribute"),
        ({"must_have": []}, 0, "the category alone"),
        ({"must_have": ["wide", "broad"]}, 1, "two spellings are one wish"),
        ({"budget_amount": 0}, 2, "an amount of 0 is an amount"),
        ({"budget_uncertain": True}, 2, "an uncertain amount is a budget"),
        ({"clear_budget": True}, 1, "lifting a limit constrains nothing"),
        ({"budget_amount": 200, "exclude_expected": True}, 3, "all of them"),
    ],
)
def test_constraints(changes: dict[str, Any], count: int, reason: str) -> None:
    assert constraints(reward.parse_golden(golden(**changes))) == count, reason


def test_tiers_count_their_records() -> None:
    records = [
        record(GOOD, GOOD, name="a"),
        record(GOOD, "x", name="b", prior_context=["想买鞋", "嗯"], family="multi_turn"),
        record("x", "x", name="c", expected=golden(budget_amount=100)),
    ]
    found = tiers(records)
    assert {tier: cell["records"] for tier, cell in found["constraints"].items()} == {"1": 2, "2": 1}
    assert {tier: cell["records"] for tier, cell in found["turns"].items()} == {"1": 2, "3": 1}
    assert found["family"]["multi_turn"]["completions"] == 2
    assert found["constraints"]["2"]["reward"] == {"mean": -1.0, "low": None, "high": None}
    cell = found["turns"]["1"]["reward"]
    assert cell["low"] == -1.0 and cell["low"] < cell["mean"] < cell["high"]
    assert turns(records[1]) == 3
    json.dumps(found, allow_nan=False)
