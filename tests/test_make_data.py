"""`make data` from end to end, and what it says when it cannot run."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.data.build_grpo_dataset import FILES
from scripts.data.make_data import ANCHORS, DEFAULT_CARDS, FEWEST_ROWS, stages
from scripts.train.dataset_check import load, problems
from swift_plugin.reward_loader import load_reward
from swift_plugin.settings import CHECKOUT, Settings


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, "scripts/data/make_data.py", *arguments]
    return subprocess.run(script, cwd=CHECKOUT, capture_output=True, text=True)


@pytest.fixture
def out() -> Iterator[Path]:
    folder = CHECKOUT / "build" / "test-data"  # inside the checkout, where stages are recognised
    shutil.rmtree(folder, ignore_errors=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_every_stage_reads_what_an_earlier_one_made_or_the_repository_holds(out: Path) -> None:
    made = {out / "stages" / "index.json"}  # the runner's stamp
    for stage in stages(out, DEFAULT_CARDS, 1200, "full"):
        for path in stage.inputs:
            assert path in made or path.exists(), (stage.name, path)
        assert (CHECKOUT / stage.command[1]).is_file()
        made |= set(stage.outputs)
    assert {out / name for name in (*FILES.values(), "sft.jsonl")} <= made and ANCHORS.is_file()


def test_a_folder_outside_the_checkout_is_refused(tmp_path: Path) -> None:
    done = command("--out", str(tmp_path))
    assert done.returncode == 2 and "must lie inside" in done.stderr


@pytest.mark.slow
def test_the_whole_chain_gives_sets_to_train_on_and_goes_on_after_a_stop(out: Path) -> None:
    done = command("--out", str(out))
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads((out / "data.report.json").read_text(encoding="utf-8"))
    assert report["golden_rows"] >= FEWEST_ROWS
    assert report["cards"]["uncovered"] == [] and report["prompts"]["dev92.jsonl"] == 92
    assert report["exclusions"]["in"] == report["exclusions"]["out"] + report["exclusions"]["in_rows_left_out"]
    reward = load_reward(Settings().reward_file)
    for name, purpose in (("sft", "sft"), ("grpo", "train"), ("watch", "watch")):
        assert problems(load(str(out / f"{name}.jsonl")), purpose, reward, "full") == []
    prompts = {one["id"]: one["messages"] for one in load(str(out / "grpo.jsonl")).rows}
    for one in load(str(out / "sft.jsonl")).rows:
        assert one["messages"][:-1] == prompts[one["id"]]
    (out / "sft.jsonl").unlink()
    again = command("--out", str(out))
    assert again.returncode == 0
    assert again.stdout.count("done before") == 7 and "== sft: " + sys.executable in again.stdout
