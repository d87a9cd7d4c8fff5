"""Choosing the online model: real endpoints over HTTP, real scores, coverage, ties and their break in words."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, Reply
from commands import run
from small_world import build_store, golden, plan

from scripts.eval.evaluation_files import load
from scripts.eval.generate import MAX_NEW_TOKENS
from scripts.eval.select_planner_model import Candidate, choose, cost, read_candidates, table_text
from scripts.eval.summary import PARTS, share
from swift_plugin.prompts import build_messages

RECORDS = 20
GOOD = plan("waterproof running shoes", "waterproof trainers")
ABSTAINING = plan(category="", domains=["other"])
COPYING = plan("desk lamp", "wireless desk lamp", category="台灯", domains=["home_kitchen"])
UNKNOWN = golden(category=None, domains=None, must_have=[], category_anchor="")


def rows() -> list[dict[str, Any]]:
    """20 records, the last five of which should abstain."""
    made = []
    for number in range(RECORDS):
        text = f"第{number}位想买一双防水的跑鞋"
        expected = UNKNOWN if number >= RECORDS - 5 else golden()
        made.append(
            {
                "id": f"dev-{number:02d}",
                "messages": build_messages(text, (), "short"),
                "text": text,
                "family": "attribute",
                "split": "dev92",
                "golden_json": expected,
            }
        )
    return made


def script(model: str, text: str, count: int) -> Reply | str:
    """careful abstains, eager never does, poor finds nothing, flaky fails twice of 20 (at its first call alone)."""
    number = int("".join(character for character in text if character.isdigit()))
    if model == "poor":
        return COPYING
    if model == "flaky" and number < 2 and count == 0:
        return Reply(status=400)
    if model == "dead":
        return Reply(status=404)
    return ABSTAINING if model == "careful" and number >= RECORDS - 5 else GOOD


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One choice among five models; then the same command again; then with --retry-failures."""
    folder = tmp_path_factory.mktemp("select")
    store = build_store(folder / "store")
    data = folder / "dev.jsonl"
    data.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows()), encoding="utf-8")
    with ChatServer(script, api_key="sk-very-secret-8") as server:
        listed = [
            {"name": name, "base_url": server.base_url, "model": name, "key_env": "SOME_KEY", "price_in": 2}
            for name in ("eager", "careful", "flaky", "dead")
        ]
        listed[0]["price_out"] = 10
        (folder / "candidates.json").write_text(json.dumps(listed), encoding="utf-8")
        command = [sys.executable, "scripts/eval/select_planner_model.py", "--data", str(data)]
        command += ["--out", str(folder / "out"), "--candidates", str(folder / "candidates.json")]
        command += ["--candidate", f"poor={server.base_url}#poor"]
        environment = {"PLANNER_STORE_DIR": str(store), "SOME_KEY": "sk-very-secret-8"}
        environment["PLANNER_API_KEY"] = "sk-very-secret-8"
        printed, results, asked = [], [], []
        for more in ([], [], ["--retry-failures"]):
            printed.append(run([*command, *more], environment))
            results.append(json.loads((folder / "out" / "planner_model_eval.json").read_text(encoding="utf-8")))
            asked.append(sum(server.asked.values()))
    return {"out": folder / "out", "printed": printed, "results": results, "asked": asked}


def by_name(result: dict[str, Any]) -> dict[str, Any]:
    return {row["name"]: row for row in result["candidates"]}


def test_tied_models_are_told_apart_by_over_commitment(chosen: dict[str, Any]) -> None:
    result = chosen["results"][0]
    assert result["choice"] == "careful" and result["tied"] == ["careful", "eager"]
    assert result["ranked"] == ["careful", "eager", "poor"]
    assert "are tied" in result["words"] and "over-commitment, 0/5 against 5/5 of eager" in result["words"]
    assert result["words"] in chosen["printed"][0]


def test_low_coverage_is_shown_and_not_ranked(chosen: dict[str, Any]) -> None:
    result = chosen["results"][0]
    flaky = by_name(result)["flaky"]
    assert flaky["coverage"] == {"count": 18, "of": 20, "share": 0.9}
    assert {failure["id"] for failure in flaky["failures"]} == {"dev-00", "dev-01"}
    assert result["not_ranked"]["flaky"] == "coverage 18/20 is below 95%"
    dead = by_name(result)["dead"]
    assert (dead["coverage"]["count"], dead["reward"], len(dead["failures"])) == (0, None, 20)
    assert "| dead | 0/20 | – |" in chosen["printed"][0]


def test_both_abstention_denominators_and_cost(chosen: dict[str, Any]) -> None:
    table = by_name(chosen["results"][0])
    assert table["careful"]["abstentions_of_all_records"] == {"count": 5, "of": 20, "share": 0.25}
    assert table["careful"]["correct_abstentions_of_those_that_should"] == {"count": 5, "of": 5, "share": 1.0}
    assert table["eager"]["over_commitment"] == {"count": 5, "of": 5, "share": 1.0}
    assert table["eager"]["cost"] == pytest.approx((20 * 100 * 2 + 20 * len(GOOD) * 10) / 1e6)
    assert table["careful"]["cost"] is None  # half a price is no price
    assert table["eager"]["latency_s"]["median"] > 0


def test_nothing_is_asked_twice_and_failures_only_when_told(chosen: dict[str, Any]) -> None:
    assert chosen["asked"] == [100, 100, 122]  # the two of flaky, the twenty of dead
    again = chosen["results"][1]
    assert again == chosen["results"][0]
    flaky = by_name(chosen["results"][2])["flaky"]
    assert flaky["coverage"]["share"] == 1.0 and flaky["failures"] == []
    assert flaky["failed_calls_ever"] == 2  # a second try hides nothing


def test_each_candidate_leaves_an_evaluation_and_no_key(chosen: dict[str, Any]) -> None:
    made = load(chosen["out"] / "careful")
    assert len(made["greedy"]) == RECORDS and made["summary"]["max_new_tokens"] == MAX_NEW_TOKENS
    written = "".join(file.read_text(encoding="utf-8") for file in chosen["out"].iterdir())
    assert "sk-very-secret-8" not in written + "".join(chosen["printed"])


def row(name: str, mean: float, half: float, **changes: Any) -> dict[str, Any]:
    made = {
        "name": name,
        "model": name,
        "coverage": share(92, 92),
        "reward": {"mean": mean, "low": mean - half, "high": mean + half},
        "parts": {part: {"mean": 0.5, "completions": 9} for part in PARTS},
        "latency_s": {"median": 2.0, "p95": 3.0},
        "tokens": {"prompt": 1, "completion": 1},
        "cost": None,
        "over_commitment": share(5, 36),
        "abstentions_of_all_records": share(9, 92),
        "correct_abstentions_of_those_that_should": share(8, 36),
    }
    return {**made, **changes}


def faster(seconds: float) -> dict[str, Any]:
    return {"latency_s": {"median": seconds, "p95": seconds}}


@pytest.mark.parametrize(
    ("table", "choice", "tied", "said"),
    [
        ([row("a", 0.9, 0.01), row("b", 0.8, 0.01)], "a", [], "no other interval reaches"),
        ([row("a", 0.9, 0.05), row("b", 0.8, 0.05)], "a", ["a", "b"], "name alone"),  # intervals that touch overlap
        ([row("a", 0.9, 0.1), row("b", 0.8, 0.1, **faster(1.0))], "b", ["b", "a"], "latency, median 1.00 s against 2"),
        (
            [row("a", 0.9, 0.1, **faster(1.0)), row("b", 0.8, 0.1, over_commitment=share(4, 36))],
            "b",
            ["b", "a"],
            "over-commitment, 4/36 against 5/36",
        ),
        (  # b reaches the leader, c reaches b only: c is not tied with the leader
            [row("a", 0.9, 0.05), row("b", 0.85, 0.05), row("c", 0.78, 0.05, **faster(0.1))],
            "a",
            ["a", "b"],
            "are tied",
        ),
        ([row("a", 0.9, 0.01, coverage=share(87, 92)), row("b", 0.1, 0.01)], "b", [], "a is not ranked"),
        ([row("a", 0.9, 0.01, coverage=share(19, 20))], "a", [], "a is best"),  # 95 % itself is enough
        ([row("a", 0.9, 0.01, coverage=share(0, 92))], None, [], "No candidate is ranked"),
    ],
)
def test_the_choice(table: list[dict[str, Any]], choice: str | None, tied: list[str], said: str) -> None:
    made = choose(table)
    assert (made["choice"], made["tied"]) == (choice, tied)
    assert said in made["words"]
    assert table_text(table).count("\n") == len(table) + 1


def test_a_cost_is_whole_or_unknown() -> None:
    candidate = Candidate("a", "http://h/v1", "m", price_in=1.0, price_out=3.0)
    assert cost(candidate, {"prompt": 1_000_000, "completion": 2_000_000}) == 7.0
    assert cost(candidate, {"prompt": 1, "completion": None}) is None
    assert cost(Candidate("a", "http://h/v1", "m", price_in=1.0), {"prompt": 1, "completion": 1}) is None


@pytest.mark.parametrize(
    ("given", "listed", "message"),
    [
        ([], None, "no candidates"),
        (["a=http://h/v1"], None, "not NAME=URL#MODEL"),
        (["../a=http://h/v1#m"], None, "it names a file"),
        (["a=http://h/v1#m", "a=http://h/v1#n"], None, "stands twice"),
        ([], {"name": "a"}, "no JSON list"),
        ([], [{"name": "a", "model": "m"}], "needs name, base_url, model"),
        ([], [{"name": "a", "base_url": "http://h", "model": "m", "key": "sk"}], "unknown key key"),
        ([], [{"name": "a", "base_url": "http://h", "model": "m", "price_in": "2"}], "price_in is '2'"),
    ],
)
def test_wrong_candidates_are_named(given: list[str], listed: Any, message: str, tmp_path: Path) -> None:
    file = None
    if listed is not None:
        file = tmp_path / "candidates.json"
        file.write_text(json.dumps(listed), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_candidates(given, file)


def test_a_models_name_may_hold_a_slash_and_the_url_a_port() -> None:
    (candidate,) = read_candidates(["a=http://127.0.0.1:8000/v1#Qwen/Qwen3-4B"], None)
    assert (candidate.base_url, candidate.model) == ("http://127.0.0.1:8000/v1", "Qwen/Qwen3-4B")
