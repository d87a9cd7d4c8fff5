"""A user's own rows: every row and column that will not do is named, all of them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_build_planner_sft import ROWS, write

from scripts.data.golden_file import named, read_golden, set_row
from scripts.data.sessions import turn
from scripts.data.teacher import NOTHING, answer_of

ROOT = Path(__file__).resolve().parents[1]
GOOD = [set_row(one, "full") for one in named(ROWS)[:3]]
BAD_GOLDEN = json.dumps({"category": "跑鞋"})


def answered(one: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    text = content if content is not None else answer_of(json.loads(one["golden_json"]), NOTHING)
    return {**one, "messages": [*one["messages"], {"role": "assistant", "content": text}]}


def session(**changes: Any) -> dict[str, Any]:
    made = {"id": "s-1", "source": "log", "family": "single", "card": None, "split": None, "dimensions": {}}
    return {**made, "turns": [turn("想买跑鞋")], **changes}


def validate(path: Path, *more: str) -> tuple[int, dict[str, Any]]:
    script = [sys.executable, "scripts/data/validate.py", str(path), "--json", *more]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, env={**os.environ})
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout) if done.stdout else {"problems": [done.stderr]}


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("grpo", GOOD),
        ("sft", [answered(one) for one in GOOD]),
        ("watch", [{**one, "split": "watch"} for one in GOOD]),
        ("dev92", [{**one, "split": "dev92"} for one in GOOD]),
        ("test", [{**one, "split": "test"} for one in GOOD]),
        ("sft-watch", [answered({**one, "split": "watch"}) for one in GOOD]),
        ("sessions", [session(), session(id="s-2", turns=[turn("想买跑鞋"), turn("要防水的")])]),
    ],
)
def test_good_rows_are_fine_as_what_they_are(tmp_path: Path, kind: str, rows: list[dict[str, Any]]) -> None:
    code, verdict = validate(write(tmp_path / "rows.jsonl", rows))
    assert (code, verdict) == (0, {**verdict, "kind": kind, "rows": len(rows), "problems": []})


@pytest.mark.parametrize(
    ("row", "kind", "line"),
    [
        ({**GOOD[0], "text": ""}, "grpo", "column text"),
        ({**GOOD[0], "golden_json": BAD_GOLDEN}, "grpo", "key 'domains' is missing"),
        ({**GOOD[0], "golden_json": json.loads(GOOD[0]["golden_json"])}, "grpo", "column golden_json"),
        ({**GOOD[0], "split": "dev92"}, "grpo", "the split is 'dev92'"),
        ({**GOOD[0], "messages": "想买跑鞋"}, "grpo", "column messages"),
        ({**GOOD[0], "prior_context": ["早先说过"]}, "grpo", "not the prompt that swift_plugin.prompts makes"),
        ({**GOOD[0], "prior_context": "早先说过"}, "grpo", "column prior_context"),
        (answered(GOOD[0], "好的"), "sft", "does not parse as a plan"),
        (GOOD[0], "sft", "last message is not the assistant's"),
        (session(turns=[]), "sessions", "turns must be a list"),
        (session(source="me", split="dev"), "sessions", "source 'me'"),
        (
            session(turns=[{**turn("想买跑鞋"), "golden": GOOD[0]["golden_json"]}]),
            "sessions",
            "golden must be an object",
        ),
    ],
)
def test_what_will_not_do_is_named_with_its_line(tmp_path: Path, row: dict[str, Any], kind: str, line: str) -> None:
    good = {"sessions": session(id="good"), "sft": answered(GOOD[1])}.get(kind, GOOD[1])
    code, verdict = validate(write(tmp_path / "rows.jsonl", [good, row]), "--as", kind)
    assert code == 1 and any(line in one for one in verdict["problems"]), verdict
    assert all(one.startswith(f"{tmp_path}/rows.jsonl:2: ") for one in verdict["problems"]), verdict


def test_half_a_character_anywhere_in_a_set_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**GOOD[0], "id": "r-\ud83d", "split": "dev92"}), encoding="utf-8")
    code, verdict = validate(path, "--as", "grpo")
    assert code == 1 and len(verdict["problems"]) == 2, "beside the row's other problems"
    assert verdict["problems"][0].startswith(f"{path}:1: its JSON holds half a character, '\\ud83d'")


def test_all_problems_are_listed_not_the_first_ones(tmp_path: Path) -> None:
    rows = [{**GOOD[0], "id": f"r-{number}", "golden_json": BAD_GOLDEN} for number in range(12)]
    code, verdict = validate(write(tmp_path / "rows.jsonl", rows))
    assert (code, len(verdict["problems"])) == (1, 12)
    assert {one.split(": ")[0] for one in verdict["problems"]} == {f"{tmp_path}/rows.jsonl:{n}" for n in range(1, 13)}


def test_an_id_that_stands_twice_is_named_with_its_lines(tmp_path: Path) -> None:
    code, verdict = validate(write(tmp_path / "rows.jsonl", [GOOD[0], GOOD[1], GOOD[0]]))
    assert code == 1 and "stands in lines 1, 3" in verdict["problems"][0]


def test_a_prompt_that_is_too_long_is_named(tmp_path: Path) -> None:
    long = {**ROWS[0], "text": "想买防水跑鞋的那种呢" * 60}
    code, verdict = validate(write(tmp_path / "rows.jsonl", [set_row(long, "full")]))
    assert code == 1 and "Qwen tokens, more than 700" in verdict["problems"][0]


@pytest.mark.parametrize("content", ["", "no json\n", "[1]\n"])
def test_a_file_that_cannot_be_read_ends_with_2(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content, encoding="utf-8")
    assert validate(path)[0] == 2


def test_people_read_a_line_a_problem_and_a_verdict(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [GOOD[0], {**GOOD[1], "text": ""}])
    script = [sys.executable, "scripts/data/validate.py", str(path)]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True)
    *problems, verdict = done.stdout.splitlines()
    assert done.returncode == 1 and len(problems) == 1
    assert verdict == f"{path}: 2 rows as grpo: 1 problems in 1"


def test_the_rows_of_the_formats_page_are_valid(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "data-formats.md").read_text(encoding="utf-8")
    raw, golden, sft, grpo = (json.loads(block) for block in re.findall(r"```json\n(.*?)\n```", page, re.S))
    for kind, one in (("sessions", raw), ("sft", sft), ("grpo", grpo)):
        code, verdict = validate(write(tmp_path / f"{kind}.jsonl", [one]), "--prompt-style", "short")
        assert (code, verdict["kind"], verdict["problems"]) == (0, kind, [])
    assert sft["messages"][:-1] == grpo["messages"]
    row = named(read_golden(write(tmp_path / "golden.jsonl", [golden])))[0]
    assert set_row(row, "short")["messages"] == grpo["messages"]
    assert sft["messages"][-1]["content"] == answer_of(row["golden"], row["plan"])


def gate(path: Path) -> tuple[int, str, dict[str, Any]]:
    """The gate's exit code, its errors, and its report."""
    out = path.with_name("gated.jsonl")
    script = [sys.executable, "scripts/data/planner_quality_gate.py", str(path), "--out", str(out)]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    report = out.with_suffix(".report.json")
    return done.returncode, done.stderr, json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}


@pytest.mark.parametrize(
    ("content", "said", "reason"),
    [
        (json.dumps(session(), ensure_ascii=False).encode("gbk"), "rows.jsonl:1: no UTF-8", "another code page"),
        (f"{json.dumps(session())}\n{{".encode(), "rows.jsonl:2: no JSON", "a torn line"),
    ],
)
def test_validate_and_the_gate_refuse_the_same_files(tmp_path: Path, content: bytes, said: str, reason: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    code, verdict = validate(path)
    assert code == 2 and said in verdict["problems"][0], reason
    code, errors, _ = gate(path)
    assert code == 2 and said in errors, reason


BAD = session(id="bad", turns=[{**turn("想买个台灯"), "golden": GOOD[0]["golden_json"]}])


@pytest.mark.parametrize(
    ("rows", "fine", "reason"),
    [
        ([session(), "", session(id="s-2", turns=[turn("想买个台灯")]), ""], True, "blank lines hold no row"),
        ([session(), "", BAD], False, "a golden as a string"),
        ([session(), "", session(id="bad", turns=[turn("想买\ud83d")])], False, "half a character in a text"),
        ([session(), "", session(id="b\ud83d")], False, "half a character in the id, which the report names"),
    ],
)
def test_validate_and_the_gate_agree_on_the_form_of_rows(
    tmp_path: Path, rows: list[Any], fine: bool, reason: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row) if row else ''}\n" for row in rows), encoding="utf-8")
    code, verdict = validate(path)
    assert (code == 0) == fine, reason
    assert all(one.startswith(f"{path}:3: ") for one in verdict["problems"]), "the line of the file, blank ones counted"
    _, _, report = gate(path)
    assert (report["findings"]["form"].get("schema", 0) == 0) == fine, reason
