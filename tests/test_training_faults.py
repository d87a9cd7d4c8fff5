"""A store that dies while two ranks train: the run must end, say why, and leave nothing that looks like a result."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from commands import ROOT, World, clean_environment
from safetensors.torch import load_file

BUDGET_S = 5
KILL_AFTER = 2  # training steps scored before the store dies
LIMIT_S = 300  # a hang shows as this


def steps_scored(run_dir: Path) -> int:
    log = run_dir / "planner_steps.jsonl"
    return len(log.read_text(encoding="utf-8").splitlines()) if log.is_file() else 0


def start_training(
    world: World, base: Path, sft: Path, out: Path, *more: str, **variables: str
) -> subprocess.Popen[str]:
    """GRPO on two ranks, one group of 8 split between them at each step."""
    return subprocess.Popen(
        ["bash", "run_grpo_planner.sh", "--max_steps", "500", "--eval_strategy", "no", "--max_length", "256"]
        + ["--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "1"]
        + ["--max_completion_length", "32", "--output_dir", str(out), *more],
        cwd=ROOT,
        env={
            **clean_environment(),
            **world.environment,
            "PLANNER_MODEL": str(base),
            "PLANNER_SFT_ADAPTER": str(sft),
            "PLANNER_TRAIN_DATA": str(world.folder / "grpo.jsonl"),
            "PLANNER_WATCH_DATA": str(world.folder / "watch.jsonl"),
            "NPROC_PER_NODE": "2",
            **variables,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def still_running(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [child for child in processes if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_a_killed_store_ends_the_run_within_its_budget(world: World, base: Path, sft: Path, tmp_path: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "qdrant_server.py"), "--store", str(world.folder / "store")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    out = tmp_path / "run"
    trainer = start_training(
        world, base, sft, out, "--save_steps", "1", QDRANT_URL=url, PLANNER_RETRY_SECONDS=str(BUDGET_S)
    )
    try:
        deadline = time.monotonic() + LIMIT_S
        while steps_scored(out) < KILL_AFTER and trainer.poll() is None and time.monotonic() < deadline:
            time.sleep(0.5)
        assert trainer.poll() is None, trainer.communicate()[0][-3000:]
        children = psutil.Process(trainer.pid).children(recursive=True)
        server.send_signal(signal.SIGKILL)
        printed, _ = trainer.communicate(timeout=LIMIT_S)
    finally:
        server.kill()
        if trainer.poll() is None:
            os.killpg(trainer.pid, signal.SIGKILL)
    assert trainer.returncode not in (0, 2), printed[-3000:]
    last = printed.strip().splitlines()[-1]
    assert "StoreError" in last and url in last, last
    assert not still_running(children)
    # Nobody was scored 0 for the outage: every traced search was answered (the store holds near titles for any text).
    for rank in (0, 1):
        for line in map(json.loads, (out / f"reward_trace.rank{rank}.jsonl").read_text().splitlines()):
            assert not line["search"] or line["titles"], line
    # The last checkpoint is whole: its adapter loads.
    checkpoints = sorted(out.glob("checkpoint-*"), key=lambda path: int(re.sub(r"\D", "", path.name)))
    assert load_file(checkpoints[-1] / "adapter_model.safetensors")
    assert json.loads((checkpoints[-1] / "trainer_state.json").read_text())["global_step"] >= 1


@pytest.mark.slow
def test_a_rank_that_raises_takes_the_other_down(world: World, base: Path, sft: Path, tmp_path: Path) -> None:
    """Rank 1 cannot write its trace: rank 0, which waits for its rows, must not wait for ever."""
    out = tmp_path / "run"
    (out / "reward_trace.rank1.jsonl").mkdir(parents=True)
    trainer = start_training(world, base, sft, out)
    try:
        printed, _ = trainer.communicate(timeout=LIMIT_S)
    finally:
        if trainer.poll() is None:
            os.killpg(trainer.pid, signal.SIGKILL)
    assert trainer.returncode not in (0, 2), printed[-3000:]
    assert "IsADirectoryError" in printed.strip().splitlines()[-1]
    assert steps_scored(out) == 0
