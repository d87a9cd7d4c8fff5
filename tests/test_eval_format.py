"""The format report: kinds that add up to the reward's own charge, and denominators without the rows that abstain."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import run
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import TEXT, golden, plan

from reward import planner_reward as reward
from scripts.eval.eval_planner_format import format_report
from scripts.eval.evaluation_files import jsonl
from scripts.eval.format_violations import violations

FULL: dict[str, Any] = json.loads(plan("running shoes"))


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in FULL.items() if name != key}


@pytest.mark.parametrize(
    ("made", "kinds", "reason"),
    [
        (FULL, [], "a full plan"),
        (without("keywords"), ["missing: keywords"], "a key left out"),
        ({**FULL, "budget_amount": "200"}, ["type: budget_amount"], "the base model's fault: a budget as a string"),
        ({**FULL, "budget_amount": True}, ["type: budget_amount"], "true is not a number"),
        ({**FULL, "domains": ["shoes"]}, ["illegal domain"], "a domain of its own making"),
        ({**FULL, "domains": ["global"]}, ["reserved domain"], "reserved, and not also illegal"),
        ({**FULL, "domains": ["shoes", 3]}, ["type: domains", "illegal domain"], "each element is judged"),
        ({**FULL, "note": 1, "why": 2}, ["unknown key"], "named once"),
        ({**FULL, "exclude_terms": [{"word": "皮", "evidence": " "}]}, ["bare exclusion"], "blank is absent"),
        ({**FULL, "exclude_terms": ["皮"]}, ["type: exclude_terms"], "a wrong type only"),
        ({**FULL, "category": None}, [], "abstaining is no violation"),
    ],
)
def test_kinds(made: dict[str, Any], kinds: list[str], reason: str) -> None:
    assert violations(made, []) == kinds, reason


def test_a_refused_text_is_one_kind_and_a_fence_another() -> None:
    for text, kinds in (
        ("没有计划", ["no plan: no_object"]),
        (f"```json\n{plan('shoes')}\n```", ["parse: fence"]),
        (plan("shoes") + plan("shoes"), ["no plan: second_object"]),
    ):
        parsed = reward.parse_plan(text)
        assert violations(parsed.plan, parsed.issues) == kinds


CHARGES = {
    "illegal domain": reward._ILLEGAL_DOMAIN,
    "reserved domain": reward._RESERVED_DOMAIN,
    "bare exclusion": reward._BARE_EXCLUSION,
}
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(0, 3), st.sampled_from(["", " ", "跑鞋", "footwear", "global"]),
    st.lists(st.one_of(st.sampled_from(["footwear", "global", "shoes", ""]), st.none(), st.integers(0, 1)), max_size=3),
    st.lists(st.dictionaries(st.sampled_from(["word", "evidence"]), st.sampled_from(["皮", " ", ""])), max_size=2),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from([*reward.PLAN_KEYS, "note", "term"]), VALUES), st.booleans())
def test_the_kinds_add_up_to_the_rewards_own_charge(made: dict[str, Any], fenced: bool) -> None:
    issues = ("fence",) if fenced else ()
    charge = 0
    for kind in violations(made, issues):
        if kind == "unknown key":
            charge += reward._UNKNOWN_KEY * sum(key not in reward.PLAN_KEYS for key in made)
        elif kind.startswith("parse: "):
            charge += reward._PARSE_ISSUE
        else:
            charge += CHARGES.get(kind, reward._BAD_KEY)
    score = reward.compute_reward(reward.ParsedPlan(made, issues), golden(), TEXT, None).format
    assert score == max(0, 10 - charge) / 10


def record(name: str, completion: str, expected: str) -> dict[str, Any]:
    parsed = reward.parse_plan(completion)
    breakdown = reward.compute_reward(parsed, expected, TEXT, []).to_dict()
    sample = {"completion": completion, "plan": parsed.plan, "issues": list(parsed.issues), "titles": []}
    return {"id": name, "golden": json.loads(expected), "samples": [{**sample, "search": "", "breakdown": breakdown}]}


def test_rows_that_abstain_are_not_wrong() -> None:
    unknown = golden(category=None, domains=None, must_have=[], category_anchor="")
    report = format_report(
        [
            record("a", plan("shoes"), golden()),
            record("b", plan("shoes", category="连衣裙", domains=["apparel"]), golden()),
            record("c", plan("shoes", category="连衣裙"), unknown),
            record("d", "no plan", golden()),
            record("e", plan("shoes", budget_amount="200"), golden(budget_amount=200)),
        ]
    )
    assert report["fields"]["category"] == {
        "right": 2,
        "judged": 3,
        "share": pytest.approx(2 / 3),
        "mean": pytest.approx(2 / 3),
        "abstained": 1,
        "unparsed": 1,
    }
    assert (report["fields"]["budget"]["right"], report["fields"]["budget"]["judged"]) == (3, 4)
    assert report["format_rate"] == {"count": 3, "of": 5, "share": 0.6}
    assert report["parse_rate"] == {"count": 4, "of": 5, "share": 0.8}
    assert report["violations"] == {
        "no plan: no_object": {"count": 1, "of": 5, "share": 0.2, "ids": ["d"]},
        "type: budget_amount": {"count": 1, "of": 5, "share": 0.2, "ids": ["e"]},
    }


def write_evaluation(prefix: Path, records: list[dict[str, Any]]) -> None:
    text = jsonl(records)
    Path(f"{prefix}.greedy.jsonl").write_text(text, encoding="utf-8")
    digest = hashlib.sha256(text.encode()).hexdigest()
    summary = json.dumps({"greedy": {"records_sha256": digest}})
    Path(f"{prefix}.summary.json").write_text(summary, encoding="utf-8")


@pytest.mark.parametrize(
    ("good", "code", "reason"), [(49, 0, "49 of 50 is the line itself"), (48, 1, "48 of 50 is below it")]
)
def test_the_acceptance_line(good: int, code: int, reason: str, tmp_path: Path) -> None:
    bad = plan("shoes", budget_amount="200")
    completions = [plan("shoes")] * good + [bad] * (50 - good)
    records = [record(str(number), text, golden()) for number, text in enumerate(completions)]
    write_evaluation(tmp_path / "e", records)
    run([sys.executable, "scripts/eval/eval_planner_format.py", str(tmp_path / "e")], {}, code=code)
    result = json.loads((tmp_path / "e.format.json").read_text(encoding="utf-8"))
    assert result["accepted"] is (code == 0), reason
    assert result["greedy"]["violations"]["type: budget_amount"]["count"] == 50 - good


def test_an_evaluation_that_is_gone_or_changed_is_no_report(tmp_path: Path) -> None:
    command = [sys.executable, "scripts/eval/eval_planner_format.py", str(tmp_path / "e")]
    assert "no format report" in run(command, {}, code=2)
    write_evaluation(tmp_path / "e", [record("a", plan("shoes"), golden())])
    (tmp_path / "e.greedy.jsonl").write_text("{}\n", encoding="utf-8")
    assert "evaluate again" in run(command, {}, code=2)
