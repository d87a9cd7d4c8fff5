"""A launch in small: request sets, store, model folder and adapter, and how to call the launchers on them."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift_plugin.prompts import build_messages
from tests.small_world import TEXT, build_store, golden, plan

CHECKOUT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
# Variables of the shell that runs the tests and would change what a launch is judged by.
SHELL_VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "TRAIN_GPUS", "ROLLOUT_GPUS", "DRY_RUN", "NPROC_PER_NODE", "NNODES", "NODE_RANK",
    "MASTER_PORT", "OMP_NUM_THREADS", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy",
)  # fmt: skip


def clean_environment() -> dict[str, str]:
    """This process's environment without anything that a launch reads."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PLANNER_", "QDRANT_")) and name not in SHELL_VARIABLES
    }


def row(number: int = 1, *, split: str = "train", answer: str | None = None, **changes: Any) -> dict[str, Any]:
    """One record of a set; with `answer` an SFT row."""
    messages = build_messages(TEXT, [], "full")
    if answer is not None:
        messages.append({"role": "assistant", "content": answer})
    made = {
        "id": f"{split}-{number}",
        "messages": messages,
        "text": TEXT,
        "family": "plain",
        "split": split,
        "golden_json": golden(),
    }
    return {**made, **changes}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in rows), encoding="utf-8")
    return path


@dataclass(frozen=True)
class LaunchWorld:
    """A folder with everything a launch reads; `variables` point the launchers at it."""

    folder: Path

    @property
    def sft(self) -> Path:
        return self.folder / "sft.jsonl"

    @property
    def train(self) -> Path:
        return self.folder / "grpo.jsonl"

    @property
    def watch(self) -> Path:
        return self.folder / "watch.jsonl"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def adapter(self) -> Path:
        return self.folder / "adapter"

    @property
    def variables(self) -> dict[str, str]:
        return {
            "PLANNER_MODEL": str(self.model),
            "PLANNER_SFT_ADAPTER": str(self.adapter),
            "PLANNER_SFT_DATA": str(self.sft),
            "PLANNER_TRAIN_DATA": str(self.train),
            "PLANNER_WATCH_DATA": str(self.watch),
            "PLANNER_STORE_DIR": str(self.folder / "store"),
        }

    def run(self, script: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """`bash script arguments`, with `variables` on top of this world's (None-like '' counts as unset)."""
        return subprocess.run(
            ["bash", str(CHECKOUT / script), *arguments],
            env=self.environment(variables), capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {**clean_environment(), "PLANNER_PYTHON": PYTHON, **self.variables, **variables}


def write_adapter(folder: Path, **changes: Any) -> Path:
    """A LoRA adapter as far as preflight reads it."""
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": 16, "lora_alpha": 32, "lora_dropout": 0.0, **changes}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def build_world(folder: Path) -> LaunchWorld:
    """Sets of 16 rows, a store of 160 titles, a nano model with a real tokenizer, an adapter of rank 16."""
    from scripts.train.build_nano_model import build

    world = LaunchWorld(folder)
    write_rows(world.sft, [row(n, answer=plan("waterproof running shoes")) for n in range(16)])
    write_rows(world.train, [row(n) for n in range(16)])
    write_rows(world.watch, [row(n, split="watch") for n in range(16)])
    build_store(folder / "store")
    build(world.sft, world.model, seed=1)
    config = world.model / "config.json"  # the nano model is made for the short prompt; these rows hold the full one
    sizes = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**sizes, "max_position_embeddings": 2048}), encoding="utf-8")
    write_adapter(world.adapter)
    return world
