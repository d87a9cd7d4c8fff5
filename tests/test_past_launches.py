"""A run is of one reward: resuming it under another is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from launch_world import clean_environment

from scripts.train.launch_facts import Findings, Launch
from scripts.train.past_launches import launches
from scripts.train.preflight_arguments import check_arguments
from scripts.train.swift_args import parse
from swift_plugin.reward_loader import load_reward
from swift_plugin.settings import Settings

REWARD = load_reward(Settings.from_env({}).reward_file)


def reward_entry(environ: Mapping[str, str], **changes: Any) -> dict[str, Any]:
    """What a manifest says of the reward."""
    weights, gates = dict(REWARD.weights_from_env(environ)), list(REWARD.gates_from_env(environ))
    return {"file": "elsewhere.py", "sha256": REWARD.sha256, "weights": weights, "gates": gates, **changes}


def write_manifest(folder: Path, reward: Mapping[str, Any] | None, name: str = "planner_manifest.json") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {"kind": "grpo", **({} if reward is None else {"reward": reward})}
    (folder / name).write_text(json.dumps(manifest), encoding="utf-8")


def refusals(run: Path, *more: str, **variables: str) -> list[str]:
    """What preflight refuses of the reward when `run` is resumed at its checkpoint-20."""
    checkpoint = run / "checkpoint-20"
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "trainer_state.json").write_text('{"global_step": 20}')
    environ = {**clean_environment(), **variables}
    line = ["--rlhf_type", "grpo", "--output_dir", str(run), "--resume_from_checkpoint", str(checkpoint), *more]
    found = Findings()
    check_arguments(Launch("grpo", parse("rlhf", line), Settings.from_env(environ), environ), found)
    return [text for text in found.refusals if "another reward" in text]


FIELD, GATES = "PLANNER_REWARD_WEIGHTS", "PLANNER_REWARD_GATES"


@pytest.mark.parametrize(
    ("past", "now", "said"),
    [
        (reward_entry({}), {FIELD: "field=0.40"}, ["field=0.3 ", "field=0.364"]),
        (reward_entry({FIELD: "field=0.40"}), {}, ["field=0.364", "field=0.3 "]),
        (reward_entry({}, sha256="f" * 64), {}, ["sha256 ffffffffffff became", REWARD.sha256[:12]]),
        (reward_entry({GATES: "grounded"}), {}, ["the gates grounded became none"]),
        (reward_entry({}), {}, []),
        (reward_entry({FIELD: "field=0.40"}), {FIELD: "field=0.40"}, []),
        (None, {FIELD: "field=0.40"}, []),  # a manifest that says nothing of the reward
    ],
)
def test_a_run_is_resumed_under_its_own_reward(
    tmp_path: Path, past: dict[str, Any] | None, now: dict[str, str], said: list[str]
) -> None:
    write_manifest(tmp_path / "run", past)
    found = refusals(tmp_path / "run", **now)
    assert len(found) == bool(said)
    for text in found:
        for part in (*said, "PLANNER_SFT_ADAPTER=", "--output_dir", FIELD):
            assert part in text


def test_what_is_no_resumed_run_is_left_alone(tmp_path: Path) -> None:
    assert refusals(tmp_path / "without a manifest", **{FIELD: "field=0.40"}) == []
    write_manifest(tmp_path / "run", reward_entry({}))
    elsewhere = ("--output_dir", str(tmp_path / "new"))
    assert refusals(tmp_path / "run", *elsewhere, **{FIELD: "field=0.40"}) == []  # a log of its own
    assert refusals(tmp_path / "run", **{FIELD: "feild=0.40"}) == []  # refused as a setting


def test_launches_come_in_order_and_a_broken_manifest_is_named(tmp_path: Path) -> None:
    for number, name in (
        (0, "planner_manifest.json"),
        (10, "planner_manifest.10.json"),
        (2, "planner_manifest.2.json"),
    ):
        write_manifest(tmp_path, {"sha256": str(number)}, name)
    assert [manifest["reward"]["sha256"] for manifest in launches(tmp_path)] == ["2", "10", "0"]
    (tmp_path / "planner_manifest.2.json").write_text("{")
    with pytest.raises(ValueError, match="planner_manifest.2.json"):
        launches(tmp_path)
