"""The LLM judge against a real HTTP server: malformed, missing and failed answers, its spread, and resuming."""

import json
from pathlib import Path
from typing import Any

import pytest
from judge_server import JudgeServer, Script
from small_world import golden, reward

from scripts.eval.acceptance_search import Product
from scripts.eval.endpoint import Endpoint
from scripts.eval.llm_judge import (
    RUNS,
    ask_judge,
    compare_judge,
    questions,
    read_score,
    summarise_judge,
)
from scripts.eval.rubric import Case

KEY = "judge-key"


def case(number: int, text: str = "男士跑鞋", title: str = "running shoes", **changes: Any) -> Case:
    record = reward().parse_golden(golden(**changes))
    return Case(f"r{number}", f"{text}{number}", record, (Product(title),), False, None)


def endpoint(server: JudgeServer, **changes: Any) -> Endpoint:
    return Endpoint(server.base_url, "judge", **{"key": None, "timeout_s": 5.0, "retry_budget_s": 5.0, **changes})


def judged(script: Script, cases: list[Case], path: Path, labels: tuple[str, ...] = ("a",)) -> tuple[Any, Any, Any]:
    asked = [one for label in labels for one in questions(label, cases, reward())]
    with JudgeServer(script) as server:
        scores, counts = ask_judge(endpoint(server), asked, reward(), path)
    return scores, counts, server


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ('{"score": 1}', 0.0),
        ('{"score": 5}', 1.0),
        ('```json\n{"score": 3}\n```', 0.5),
        ('<think>five?</think>{"score": 3, "why": "x"}', 0.5),
        ('{"score": 0}', None),
        ('{"score": 6}', None),
        ('{"score": 4.5}', None),
        ('{"score": true}', None),
        ('{"score": "5"}', None),
        ('{"score": null}', None),
        ("{}", None),
        ("5", None),
        ('{"score": 5} {"score": 1}', None),
        ("__import__('os')", None),
        ("", None),
        (None, None),
    ],
)
def test_what_counts_as_a_score(answer: str | None, score: float | None) -> None:
    assert read_score(answer, reward()) == score


def test_each_criterion_is_a_call_of_its_own_and_only_what_a_request_raises_is_asked() -> None:
    cases = [case(1), case(2, "跑鞋"), case(3, exclude_expected=True)]
    names = [one.criterion for one in questions("a", cases, reward())]
    assert names == ["right_product", "audience_respected", "right_product", "right_product", "exclusions_kept"]
    assert questions("a", [case(1, "hi", must_have=[], category_anchor="", category=None)], reward()) == []


def test_the_judge_is_run_three_times_and_its_spread_is_reported(tmp_path: Path) -> None:
    scores, counts, server = judged(
        lambda _, before: json.dumps({"score": 3 + before}), [case(1, "跑鞋"), case(2, "跑鞋")], tmp_path / "c.jsonl"
    )
    summary = summarise_judge(scores, "a")
    assert summary["runs"] == [0.5, 0.75, 1.0] and summary["spread"] == 0.5 and summary["mean"] == 0.75
    assert summary["criteria"] == {"right_product": {"mean": 0.75, "judged": 2}}
    assert counts == {"calls": 2 * RUNS, "asked_once_more": 0, "dropped": {}}
    assert {question["shopper"] for question in server.questions} == {"跑鞋1", "跑鞋2"}


def test_a_malformed_answer_is_asked_once_more(tmp_path: Path) -> None:
    scores, counts, server = judged(
        lambda _, before: '{"score": 5}' if before % 2 else "five", [case(1, "跑鞋")], tmp_path / "c.jsonl"
    )
    assert scores == {("a", "r1", "right_product"): [1.0] * RUNS}
    assert counts == {"calls": 2 * RUNS, "asked_once_more": RUNS, "dropped": {}}


def test_a_criterion_is_dropped_alone_and_counted_never_the_record(tmp_path: Path) -> None:
    def script(asked: dict[str, Any], _: int) -> str:
        return "{}" if "gender" in asked["criterion"] else '{"score": 5}'

    scores, counts, server = judged(script, [case(1)], tmp_path / "c.jsonl")
    assert scores == {("a", "r1", "right_product"): [1.0] * RUNS, ("a", "r1", "audience_respected"): [None] * RUNS}
    assert counts["dropped"] == {"malformed answer": RUNS}
    assert len(server.questions) == RUNS * 3  # asked once more, not for ever
    summary = summarise_judge(scores, "a")
    assert summary["mean"] == 1.0 and summary["scored"] == {"count": 3, "of": 6, "share": 0.5}


def test_an_error_that_passes_is_retried_and_one_that_stays_drops_the_criterion(tmp_path: Path) -> None:
    scores, counts, _ = judged(
        lambda _, before: '{"score": 5}' if before else 500, [case(1, "跑鞋")], tmp_path / "a.jsonl"
    )
    assert scores["a", "r1", "right_product"] == [1.0] * RUNS and counts["dropped"] == {}
    asked = questions("a", [case(1, "跑鞋")], reward())
    with JudgeServer(lambda *_: 500) as server:
        scores, counts = ask_judge(endpoint(server, retry_budget_s=0.0), asked, reward(), tmp_path / "b.jsonl")
    assert scores["a", "r1", "right_product"] == [None] * RUNS
    assert sum(counts["dropped"].values()) == RUNS and "500" in next(iter(counts["dropped"]))


def test_the_key_goes_into_the_header_and_nowhere_else(tmp_path: Path) -> None:
    asked = questions("a", [case(1, "跑鞋")], reward())
    with JudgeServer(lambda *_: '{"score": 5}', api_key=KEY) as server:
        scores, _ = ask_judge(endpoint(server, key=KEY), asked, reward(), tmp_path / "a.jsonl")
        assert scores["a", "r1", "right_product"] == [1.0] * RUNS
        scores, counts = ask_judge(endpoint(server, key="wrong-key"), asked, reward(), tmp_path / "b.jsonl")
    assert scores["a", "r1", "right_product"] == [None] * RUNS and "key" in next(iter(counts["dropped"]))
    written = "".join(path.read_text(encoding="utf-8") for path in tmp_path.iterdir())
    assert KEY not in written and "wrong-key" not in written


def test_a_stopped_judging_goes_on_and_other_prompts_are_refused(tmp_path: Path) -> None:
    path, asked = tmp_path / "c.jsonl", questions("a", [case(1, "跑鞋"), case(2, "跑鞋")], reward())
    with JudgeServer(lambda *_: '{"score": 4}') as server:
        whole = ask_judge(endpoint(server), asked, reward(), path)
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[:4]) + '{"id": "half', encoding="utf-8")  # the header and three calls
        server.questions.clear()
        assert ask_judge(endpoint(server), asked, reward(), path) == whole
        assert len(server.questions) == 2 * RUNS - 3
        with pytest.raises(ValueError, match="choose another output"):
            ask_judge(endpoint(server), asked[:1], reward(), path)


def scores_of(records: int = 20, **runs: list[float]) -> Any:
    """So many records a label, all scored alike in a run."""
    return {(label, f"r{i}", "right_product"): list(values) for label, values in runs.items() for i in range(records)}


@pytest.mark.parametrize(
    ("a", "b", "verdict", "reason"),
    [
        ([0.5, 0.5, 0.5], [0.75, 0.75, 0.75], "better", "a steady judge sees every difference"),
        ([0.75, 0.75, 0.75], [0.5, 0.5, 0.5], "worse", "in either direction"),
        ([0.5, 0.5, 0.5], [0.5, 0.75, 1.0], "no difference", "0.25 apart, but the judge itself moves by 0.5"),
        ([0.25, 0.5, 0.75], [0.75, 0.75, 0.75], "no difference", "the first model's spread counts as well"),
        ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5], "no difference", "the same"),
    ],
)
def test_a_difference_within_the_spread_is_none(a: list[float], b: list[float], verdict: str, reason: str) -> None:
    assert compare_judge(scores_of(a=a, b=b), "a", "b")["verdict"] == verdict, reason


def test_a_difference_that_hangs_on_a_few_records_is_none() -> None:
    scores = scores_of(a=[0.5] * 3, b=[0.5] * 3)
    scores["b", "r0", "right_product"] = [1.0] * 3
    assert compare_judge(scores, "a", "b")["verdict"] == "no difference"


def test_a_difference_that_chance_makes_on_so_few_records_is_none() -> None:
    """Five that all changed alike: by chance in one of sixteen, and their bootstrap interval has no width at all."""
    assert compare_judge(scores_of(5, a=[0.5] * 3, b=[0.75] * 3), "a", "b")["verdict"] == "no difference"
    assert compare_judge(scores_of(6, a=[0.5] * 3, b=[0.75] * 3), "a", "b")["verdict"] == "better"


def test_a_judge_that_seldom_answers_gives_no_verdict() -> None:
    scores: Any = scores_of(a=[0.0] * 3, b=[1.0] * 3)
    scores["b", "r0", "right_product"] = [None] * 3
    assert compare_judge(scores, "a", "b")["verdict"] == "better"  # 95 % are scored
    scores["b", "r1", "right_product"] = [1.0, None, 1.0]
    assert compare_judge(scores, "a", "b")["verdict"] == "no verdict"
