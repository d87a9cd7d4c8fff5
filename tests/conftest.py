"""Fixtures that cost minutes and are therefore made once: the nano world and a LoRA adapter trained a few steps.

`make test` shares the test files out to two processes; what costs minutes is made by the first that asks for it, in a
folder both see. Files that use the nano world start first: they are the longest chain.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import World, run
from filelock import FileLock

from scripts.demo.world import STORE, data_stages

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes with two threads each would fight for two cores


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def uses_the_world(item: pytest.Item) -> bool:
        return "world" in getattr(item, "fixturenames", ()) and not hasattr(getattr(item, "module", None), "world")

    first = {item.path for item in items if uses_the_world(item)}
    items.sort(key=lambda item: item.path not in first)  # stable


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of this test run, filled by `make` in the process that asks first."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # each process has a folder of its own below the run's
    done = root / f"{name}.done"
    with FileLock(root / f"{name}.lock"):
        if not done.exists():
            make(root / name)
            done.touch()
    return root / name


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Catalogue, index, request sets and the untrained nano model."""
    folder = made_once(tmp_path_factory, "world", make_world)
    return World(folder, world_environment(folder))


def world_environment(folder: Path) -> dict[str, str]:
    return {
        "PLANNER_PROMPT": "short",
        "PLANNER_STORE_DIR": str(folder / STORE.name),
        "PLANNER_MODEL": str(folder / "nano"),
    }


def make_world(folder: Path) -> None:
    folder.mkdir()
    environment = {name: value for name, value in world_environment(folder).items() if name != "PLANNER_MODEL"}
    for stage in data_stages(folder, sft_rows=600, grpo_rows=64):
        run(list(stage.command), {**environment, **stage.env})
    nano = ["scripts/train/build_nano_model.py", "--sft", f"{folder}/sft.jsonl", "--out", f"{folder}/nano"]
    run([sys.executable, *nano], environment)
    # Two watch prompts are enough to see the evaluation pass.
    watch = (folder / "watch.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:2]
    (folder / "watch.jsonl").write_text("".join(watch), encoding="utf-8")
    dev = (folder / "dev92.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:6]
    (folder / "dev.jsonl").write_text("".join(dev), encoding="utf-8")


@pytest.fixture(scope="session")
def base(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The nano model after it learned 16 requests by heart: its rollouts on them parse, search and differ in reward."""

    def train(out: Path) -> None:
        rows = [row for row in world.rows("sft.jsonl") if json.loads(row["golden_json"])["must_have"]][:16]
        learnt = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (world.folder / "learnt.jsonl").write_text(learnt, encoding="utf-8")
        run(
            ["bash", "run_sft_planner.sh", "--tuner_type", "full", "--learning_rate", "2e-3", "--max_steps", "150"]
            + ["--max_length", "256", "--save_only_model", "true", "--output_dir", str(out)],
            {**world.environment, "PLANNER_SFT_DATA": str(world.folder / "learnt.jsonl")},
        )

    return made_once(tmp_path_factory, "base", train) / "last-checkpoint"


@pytest.fixture(scope="session")
def sft(world: World, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter on it after a few SFT steps, made by the launcher."""

    def train(out: Path) -> None:
        run(
            ["bash", "run_sft_planner.sh", "--max_steps", "4", "--learning_rate", "1e-3", "--save_strategy", "steps"]
            + ["--save_steps", "4", "--max_length", "256", "--output_dir", str(out)],
            {
                **world.environment,
                "PLANNER_MODEL": str(base),
                "PLANNER_SFT_DATA": str(world.folder / "learnt.jsonl"),
            },
        )

    return made_once(tmp_path_factory, "sft", train) / "checkpoint-4"
