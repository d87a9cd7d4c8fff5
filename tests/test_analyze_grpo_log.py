"""The command on real logs of this kit (trimmed to the metrics that are read) and on built ones."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT
from grpo_runs import ARGUMENTS, rows, write_jsonl, write_run

from scripts.eval.analyze_grpo_log import main, text_of

REAL = Path(__file__).parent / "data" / "grpo_logs"


def analyse(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    code = main([*map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_command_on_a_real_collapse(tmp_path: Path) -> None:
    """Learning rate 1.2e-3 on the nano model: parse failures jump at step 7, category and domains fall."""
    shutil.copytree(REAL / "collapsed", tmp_path / "run")
    command = [sys.executable, "scripts/eval/analyze_grpo_log.py", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "BAD collapse: from step 7 on 6.9% of the completions do not parse" in done.stdout
    assert "19 steps of 80" in done.stdout and "verdict: bad" in done.stdout
    assert (tmp_path / "run" / "grpo_curves.png").read_bytes().startswith(b"\x89PNG")
    facts = json.loads((tmp_path / "run" / "grpo_log.json").read_text(encoding="utf-8"))
    assert {"steps", "segments", "lines", "diagnoses", "verdict"} <= facts.keys()
    assert not list((tmp_path / "run").glob("*.partial"))


def test_a_real_rise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, facts = analyse(capsys, REAL / "rising" / "logging.jsonl", "--out", tmp_path)
    assert facts["trained"] == 80 and len(facts["steps"]) == 80  # the history in the last row is not read again
    assert facts["lines"][0]["status"] == "ok"
    assert [part["steps"] for part in facts["segments"]["reward"]["segments"]] == [16] * 5
    assert facts["segments"]["reward"]["trend"]["direction"] == "rises"
    assert facts["best_checkpoint"] == {
        "step": 80, "reward": pytest.approx(0.67998), "checkpoint": None, "evaluations": 4, "tied_with": []
    }  # fmt: skip
    assert "collapse" not in {item["name"] for item in facts["diagnoses"]}
    assert code == (0 if facts["verdict"]["status"] == "fine" else 1)


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fine = write_run(tmp_path / "fine", rows(30))
    assert analyse(capsys, fine)[0] == 0
    short = write_run(tmp_path / "short", rows(5))
    code, facts = analyse(capsys, short)
    assert (code, facts["verdict"]["status"]) == (1, "undecided")
    empty = tmp_path / "empty"
    write_jsonl(empty / "logging.jsonl", [{"train_runtime": 1.0, "global_step/max_steps": "0/0"}])
    code, facts = analyse(capsys, empty)
    assert (code, facts["verdict"]["status"]) == (1, "no step trained")
    assert "only a final summary" in facts["verdict"]["because"][0]
    assert not (empty / "grpo_curves.png").exists()
    for wrong in ([str(tmp_path / "gone")], [str(fine), "--kl-band", "0.1"], [str(fine), "--kl-band", "0.2,0.1"]):
        try:
            assert main(wrong) == 2
        except SystemExit as error:
            assert error.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_run_of_two_rewards_is_undecided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Flat at 0.60, resumed under other weights and flat at 0.70: no rise, whatever the trend says."""
    evaluations = [
        {"eval_reward": reward, "global_step/max_steps": f"{at}/60"} for at, reward in ((20, 0.6), (40, 0.7))
    ]
    write_run(tmp_path, rows(60, reward=lambda t: 0.6 if t < 0.5 else 0.7) + evaluations)
    code, facts = analyse(capsys, tmp_path)
    assert (code, facts["best_checkpoint"]["step"]) == (0, 40)
    for name, resumed, field in (
        ("planner_manifest.1.json", None, 0.3),
        ("planner_manifest.json", "checkpoint-30", 0.4),
    ):
        reward = {"sha256": "a", "weights": {"field": field}, "gates": []}
        manifest = {"kind": "grpo", "arguments": {"resume_from_checkpoint": resumed}, "reward": reward}
        (tmp_path / name).write_text(json.dumps(manifest), encoding="utf-8")
    code, facts = analyse(capsys, tmp_path)
    assert (code, facts["verdict"]["status"]) == (1, "undecided")
    assert facts["best_checkpoint"] is None and "checkpoint: not known, the training reward changed" in text_of(facts)
    assert "changed at step 31: the weights field=0.3 became field=0.4" in facts["verdict"]["because"][0]
    assert facts["lines"][0]["status"] == "unknown" and "by evaluation" in facts["lines"][0]["remedy"]
    not_judged = {item["name"] for item in facts["not_judged"]}
    assert {"collapse", "one dimension bought with another", "reward rising, held-out evaluation not"} <= not_judged


def test_an_empty_run_names_its_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = {"kind": "grpo", "arguments": {**ARGUMENTS, "per_device_train_batch_size": 12}}
    (tmp_path / "planner_manifest.json").write_text(json.dumps(manifest))
    code, facts = analyse(capsys, tmp_path)
    assert (code, facts["verdict"]["status"]) == (1, "no step trained")
    assert "batch arithmetic" in facts["verdict"]["because"]


def test_several_runs_make_one_table_and_the_worst_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "runs" / "a", rows(30))
    write_run(tmp_path / "runs" / "b" / "v0-20260101-000000", rows(30, reward=0.5))
    write_jsonl(tmp_path / "runs" / "sft" / "logging.jsonl", [{"loss": 2.0, "global_step/max_steps": "1/10"}])
    (tmp_path / "runs" / "eval").mkdir()
    folders = sorted(str(folder) for folder in (tmp_path / "runs").iterdir())
    assert main([*folders, folders[0]]) == 1  # a run given twice is one run
    shown = capsys.readouterr()
    lines = [line for line in shown.out.splitlines() if line.startswith("|")]
    assert len(lines) == 4 and "fine" in lines[2] and "bad: reward rises" in lines[3]
    assert "sft" in shown.err and "left out" in shown.err
    code, whole = analyse(capsys, tmp_path / "runs", "--out", tmp_path / "out")
    assert (code, whole["verdict"]["status"], len(whole["runs"])) == (1, "bad", 2)
    assert len(list((tmp_path / "out").rglob("grpo_log.json"))) == 2


def test_only_other_trainings_are_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(tmp_path / "logging.jsonl", [{"loss": 2.0, "global_step/max_steps": "1/10"}])
    assert main([str(tmp_path)]) == 2
    assert "no GRPO run" in capsys.readouterr().err
