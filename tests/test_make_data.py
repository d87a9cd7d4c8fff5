"""`make data` from end to end, and what it says when it cannot run."""

import json
import os
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


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A checkout whose code may be changed, and its fingerprints."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("data", "reward", "scripts", "swift_plugin"):
        shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder, fingerprints(folder)


def fingerprints(checkout: Path) -> dict[str, str]:
    """Of the stages of `make data` and of the demo's data; what one makes for the next is an empty file here."""
    program = """
import json
from scripts.data.make_data import DEFAULT_CARDS, DEFAULT_OUT, stages
from scripts.demo.stages import fingerprint
from scripts.demo.world import data_stages
made = {one.name: one for one in stages(DEFAULT_OUT, DEFAULT_CARDS, 12, "full")}
made |= {f"demo {one.name}": one for one in data_stages()}
for path in (path for one in made.values() for path in one.inputs if not path.exists()):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
print(json.dumps({name: fingerprint(one) for name, one in made.items()}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    loaded: dict[str, str] = json.loads(done.stdout)
    return loaded


SETS = {"sft", "grpo", "demo sft-set", "demo grpo-set"}
INDEX = {"index", "demo index"}
CATALOGUES = {"catalogue", "demo catalogue"}
SESSIONS = {"queries", "adversarial", "gate", "golden", "demo requests", "demo golden-sft", "demo golden-grpo"}


@pytest.mark.parametrize(
    ("changed", "again", "kept", "reason"),
    [
        ("swift_plugin/prompts.py", SETS, INDEX | CATALOGUES | {"gate"}, "the prompts stand in the sets"),
        ("swift_plugin/cards.py", SESSIONS | CATALOGUES | {"grpo", "demo cards"}, INDEX, "cards are read by it"),
        ("swift_plugin/rollout_env.py", SESSIONS | SETS, INDEX | CATALOGUES, "the splits' names stand in it"),
        ("swift_plugin/encoders.py", INDEX, CATALOGUES, "it makes the vectors"),
        ("scripts/files.py", SESSIONS | SETS, INDEX, "it reads and writes the rows"),
        ("scripts/chat.py", SESSIONS, INDEX | CATALOGUES, "imported by a module that a stage imports"),
        ("reward/planner_reward.py", SESSIONS | SETS | INDEX | CATALOGUES, set(), "its words and hits are used in all"),
        ("reward/budget.py", {"golden", "demo golden-sft"}, {"queries", "sft"}, "the rule of the golden budget"),
        ("data/prompts", SETS, INDEX, "no code, and listed by the stage"),
        ("scripts/data/validate.py", set(), SESSIONS | SETS | INDEX | CATALOGUES, "no stage imports it"),
    ],
)
def test_a_stage_runs_again_when_the_code_it_imports_has_changed(
    copied: tuple[Path, dict[str, str]], changed: str, again: set[str], kept: set[str], reason: str
) -> None:
    checkout, before = copied
    file = checkout / changed
    file = next(file.glob("*.txt")) if file.is_dir() else file
    bytes_before = file.read_bytes()
    file.write_bytes(bytes_before + b"\n")
    try:
        after = fingerprints(checkout)
    finally:
        file.write_bytes(bytes_before)
    moved = {name for name in before if after[name] != before[name]}
    assert again <= moved and not kept & moved, (reason, again - moved, kept & moved)


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
