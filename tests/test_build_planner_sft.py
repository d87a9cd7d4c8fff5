"""SFT rows: answers that parse and are rewarded, exclusions counted in and out, a teacher behind an endpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import small_world
from chat_server import ChatServer
from small_world import build_store

from reward.planner_reward import parse_golden, parse_plan
from scripts.data.build_planner_sft import exclusion_fault
from scripts.data.golden_file import last_turns, named, read_golden
from scripts.data.qwen_tokens import MOST_PROMPT_TOKENS, prompt_tokens, text_tokens
from scripts.data.teacher import answer_of, read_hint
from swift_plugin.prompts import build_messages, system_prompt

ROOT = Path(__file__).resolve().parents[1]
TITLES = [f"Maker {n} waterproof running shoes model {n}" for n in range(30)]
TITLES += [f"Maker {n} running shoes model {n}" for n in range(30)]
TITLES += [f"Maker {n} desk lamp type {n}" for n in range(150)]  # more than the pool


def golden(**changes: Any) -> dict[str, Any]:
    return parse_golden(small_world.golden(**changes))


UNKNOWN = {"category": None, "domains": None, "must_have": [], "category_anchor": ""}
HINT = {"keywords": ["waterproof running shoes", "waterproof trainers"], "exclude_terms": []}
MESH = {"word": "mesh", "evidence": "不要网面"}


def row(name: str, text: str, plan: Any = HINT, prior: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    """A golden row; `changes` go to the golden record, but for split and family."""
    outer = {key: changes.pop(key) for key in ("split", "family") if key in changes}
    record = golden(**changes)
    return {
        "id": name,
        "session": name.partition("#")[0],
        "source": "template",
        "family": "attribute",
        "card": "running_shoes",
        "split": "train",
        "text": text,
        "prior_context": list(prior),
        "golden": record,
        "golden_from": {},
        "votes": None,
        "status": record["status"],
        "plan": plan,
        **outer,
    }


ROWS = [
    row("q-1#0", "想买防水的跑鞋"),
    row("q-2#0", "有跑鞋吗", {"keywords": ["running shoes"], "exclude_terms": []}, must_have=[]),
    row("q-2#1", "要防水的，三百以内，不要网面", {**HINT, "exclude_terms": [MESH]}, ("有跑鞋吗",), budget_amount=300,
        exclude_expected=True),
    row("q-3#0", "防水跑鞋，两位师傅说法不一", status="review"),
    row("q-4#0", "防水跑鞋，不要网面", exclude_expected=True),
    row("q-5#0", "防水跑鞋", {**HINT, "keywords": ["desk lamp"]}),
    row("q-6#0", "再便宜点的", None, **UNKNOWN, status="context_missing"),
    row("q-7#0", "防水跑鞋有啥推荐", None),
    row("q-8#0", "防水跑鞋给看看", split="test"),
    row("q-9#0", "防水跑鞋，十五六块，不要网面", {**HINT, "exclude_terms": [{"word": "mesh", "evidence": "别给网面"}]},
        budget_uncertain=True, exclude_expected=True),
]  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_store(tmp_path_factory.mktemp("sft-store") / "store", TITLES)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in rows), encoding="utf-8")
    return path


def command(golden_file: Path, out: Path, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, "scripts/data/build_planner_sft.py", str(golden_file), "--out", str(out), *more]
    return subprocess.run(script, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **env})


@pytest.fixture(scope="module")
def built(store: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("sft")
    done = command(write(folder / "golden.jsonl", ROWS), folder / "sft.jsonl", PLANNER_STORE_DIR=str(store))
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (folder / "sft.jsonl").read_text(encoding="utf-8").splitlines()]
    return rows, json.loads((folder / "sft.report.json").read_text(encoding="utf-8"))


def test_every_row_goes_out_or_is_left_out_with_the_reason(built: tuple[list[dict[str, Any]], dict[str, Any]]) -> None:
    rows, report = built
    assert [one["id"] for one in rows] == ["q-1", "q-2#0", "q-2", "q-6"]  # the last turn has the session's own id
    left = {one["id"]: one["kind"] for one in report["rows_left_out"]}
    assert left == {"q-3": "review", "q-4": "exclusion", "q-5": "reward", "q-7": "no_teacher", "q-9": "exclusion"}
    assert (report["rows_in"], report["rows_out"]) == (9, 4)
    assert report["rows_in"] == report["rows_out"] + sum(report["left_out"].values())


def test_exclusions_are_counted_in_and_out(built: tuple[list[dict[str, Any]], dict[str, Any]]) -> None:
    rows, report = built
    assert report["exclusions"] == {"in": 2, "out": 1, "in_rows_left_out": 1}
    assert json.loads(rows[2]["messages"][-1]["content"])["exclude_terms"] == [MESH]


def test_definite_fields_come_from_the_golden_record(built: tuple[list[dict[str, Any]], dict[str, Any]]) -> None:
    rows, _ = built
    for one in rows:
        plan, issues = parse_plan(one["messages"][-1]["content"])
        record = json.loads(one["golden_json"])
        assert plan is not None and issues == ()
        assert plan["category"] == (record["category"] or "")
        assert plan["domains"] == (record["domains"] or ["other"])
        assert (plan["budget_amount"], plan["clear_budget"]) == (record["budget_amount"], record["clear_budget"])
        assert one["messages"][:-1] == build_messages(one["text"], one["prior_context"], "full")
        assert one["split"] == "train" and parse_golden(one["golden_json"]) == record


@pytest.mark.parametrize(
    ("changes", "hint", "said"),
    [
        ({}, HINT, None),
        ({"exclude_expected": True}, {**HINT, "exclude_terms": [MESH]}, None),
        ({"exclude_expected": True}, HINT, "names none"),
        ({}, {**HINT, "exclude_terms": [MESH]}, "expects no exclusion"),
        ({"exclude_expected": True}, {**HINT, "exclude_terms": [{**MESH, "evidence": "别网面"}]}, "does not stand"),
    ],
)
def test_golden_record_and_teacher_have_to_agree_on_exclusions(
    changes: dict[str, Any], hint: dict[str, Any], said: str | None
) -> None:
    fault = exclusion_fault(golden(**changes), hint, "跑鞋，不要网面")
    assert (fault is None) if said is None else (fault is not None and said in fault)


def test_what_cannot_be_known_is_answered_by_abstaining() -> None:
    plan = json.loads(answer_of(golden(**UNKNOWN, budget_amount=80, status="context_missing"), HINT))
    assert (plan["category"], plan["domains"], plan["keywords"], plan["budget_amount"]) == ("", ["other"], [], 80)


@pytest.mark.parametrize(
    "content",
    ["", "好的", '{"keywords": "shoes", "exclude_terms": []}', '{"keywords": [""], "exclude_terms": []}',
     '{"keywords": ["a"]}', '{"keywords": ["a"], "exclude_terms": [{"word": "mesh"}]}',
     '{"keywords": ["a"], "exclude_terms": ["mesh"]}',
     '{"keywords": ["a"], "exclude_terms": [{"word": "", "evidence": "x"}]}'],
)  # fmt: skip
def test_an_answer_that_is_no_hint_teaches_nothing(content: str) -> None:
    assert read_hint(content) is None


def test_a_model_teaches_the_rows_without_a_plan(store: Path, tmp_path: Path) -> None:
    answer = answer_of(golden(category="靴子"), HINT)  # its category is not used
    rows = [ROWS[0], ROWS[6], ROWS[7], row("q-10#0", "防水跑鞋来一个", None)]

    def script(model: str, text: str, count: int) -> str:
        return "不知道" if "来一个" in text else answer

    with ChatServer(script) as server:
        out = tmp_path / "sft.jsonl"
        done = command(
            write(tmp_path / "golden.jsonl", rows), out, "--endpoint", server.base_url, "--model", "teacher",
            PLANNER_STORE_DIR=str(store),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert sorted(text for _, text in server.asked) == sorted(("防水跑鞋有啥推荐", "防水跑鞋来一个"))
    made = {one["id"]: one for one in map(json.loads, out.read_text(encoding="utf-8").splitlines())}
    assert set(made) == {"q-1", "q-6", "q-7"}
    plan = json.loads(made["q-7"]["messages"][-1]["content"])
    assert (plan["category"], plan["keywords"]) == ("跑鞋", HINT["keywords"])


@pytest.mark.parametrize(
    ("rows", "env", "code", "said"),
    [
        ([ROWS[3]], {}, 1, "no row is left"),
        ([{**ROWS[0], "split": None}], {}, 2, "split is null"),
        ([{"id": "x"}], {}, 2, "golden.jsonl:1"),
        ([{**ROWS[0], "golden": {"category": "跑鞋"}}], {}, 2, "(q-1#0)"),
        ([{**ROWS[0], "split": "Test"}], {}, 2, "golden.jsonl:1 (q-1#0): split 'Test' is none of train, watch"),
        ([*ROWS[:2], ROWS[0]], {}, 2, "golden.jsonl:3 (q-1#0): the id stands in line 1 already"),
        ([ROWS[0]], {"PLANNER_RETRIEVAL": "off"}, 2, "PLANNER_RETRIEVAL"),
        ([ROWS[0]], {"PLANNER_STORE_DIR": "/no/store"}, 2, "/no/store"),
    ],
)
def test_what_cannot_be_used_is_named(
    store: Path, tmp_path: Path, rows: list[dict[str, Any]], env: dict[str, str], code: int, said: str
) -> None:
    variables = {"PLANNER_STORE_DIR": str(store), **env}
    done = command(write(tmp_path / "golden.jsonl", rows), tmp_path / "sft.jsonl", **variables)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr


@pytest.mark.parametrize("where", ["taken", "taken/sft.jsonl", "."])
def test_a_place_that_cannot_be_written_ends_with_2_before_the_work(store: Path, tmp_path: Path, where: str) -> None:
    golden_file = write(tmp_path / "golden.jsonl", ROWS[:1])
    (tmp_path / "taken").mkdir() if where == "taken" else (tmp_path / "taken").write_text("", encoding="utf-8")
    done = command(golden_file, tmp_path / where, PLANNER_STORE_DIR="/no/store")
    assert done.returncode == 2 and "Traceback" not in done.stderr and "/no/store" not in done.stderr
    assert "--out" in done.stderr and str(tmp_path) in done.stderr


def test_last_turns_have_the_ids_of_their_sessions(tmp_path: Path) -> None:
    rows = named(read_golden(write(tmp_path / "golden.jsonl", ROWS[:3])))
    assert [one["id"] for one in rows] == ["q-1", "q-2#0", "q-2"]
    assert [one["id"] for one in last_turns(rows)] == ["q-1", "q-2"]


# --------------------------------------------------------------------------------------------------- tokens


@pytest.mark.parametrize(("text", "count"), [("", 0), ("hello world", 2), ("你好", 1), ("<|im_end|>", 6)])
def test_text_is_counted_as_qwen_counts_it(text: str, count: int) -> None:
    assert text_tokens(text) == count


def test_the_full_prompt_fits_into_700_tokens_with_a_long_conversation() -> None:
    longest = "想买一双防水的跑鞋，三百块以内，别给我网面的，最好轻一点，" * 5
    assert prompt_tokens(build_messages("x", [], "full")) > text_tokens(system_prompt("full"))
    assert len(longest) < 160  # the gate's longest turn
    assert prompt_tokens(build_messages(longest, [], "full")) <= MOST_PROMPT_TOKENS
