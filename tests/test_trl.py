"""The same reward object in TRL's own GRPOTrainer: one real step.

In a process of its own: importing ms-swift's trainers, as other tests do, changes transformers' under TRL's feet.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import ROOT, clean_environment
from small_world import TEXT, build_store, golden, plan

from scripts.train.build_nano_model import build
from swift_plugin.prompts import build_messages

GROUP = 4


def test_one_step_of_trl(tmp_path: Path) -> None:
    build_store(tmp_path / "store")
    environment = {
        **clean_environment(),
        "PLANNER_STORE_DIR": str(tmp_path / "store"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    }
    command = [sys.executable, __file__, str(tmp_path)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def one_step(tmp_path: Path) -> None:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from swift_plugin.grpo_planner_plugin import PlannerReward

    prompt = build_messages(TEXT, [], "short")
    sft_row = {"messages": [*prompt, {"role": "assistant", "content": plan("waterproof running shoes")}]}
    (tmp_path / "sft.jsonl").write_text(json.dumps(sft_row) + "\n", encoding="utf-8")
    build(tmp_path / "sft.jsonl", tmp_path / "nano", seed=1)

    rows: list[dict[str, Any]] = [
        {"prompt": prompt, "golden_json": golden(), "text": TEXT, "id": name, "split": "train"} for name in ("a", "b")
    ]
    reward = PlannerReward(args=SimpleNamespace(output_dir=str(tmp_path / "run")))
    (tmp_path / "run").mkdir()
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(tmp_path / "nano"),
        processing_class=AutoTokenizer.from_pretrained(tmp_path / "nano"),
        reward_funcs=[reward],
        train_dataset=Dataset.from_list(rows),
        args=GRPOConfig(
            output_dir=str(tmp_path / "trl"),
            max_steps=1,
            per_device_train_batch_size=2 * GROUP,
            num_generations=GROUP,
            max_completion_length=16,
            use_cpu=True,
            bf16=False,
            report_to=[],
            logging_steps=1,
        ),
    )
    trainer.train()
    log = next(row for row in trainer.state.log_history if "rewards/PlannerReward/mean" in row)
    traces = [json.loads(line) for line in (tmp_path / "run" / "reward_trace.rank0.jsonl").read_text().splitlines()]
    assert len(traces) == 2 * GROUP
    assert {line["id"] for line in traces} == {"a", "b"}
    assert log["rewards/PlannerReward/mean"] == pytest.approx(
        sum(line["breakdown"]["total"] for line in traces) / len(traces)
    )
    assert math.isfinite(log["grad_norm"])


if __name__ == "__main__":
    one_step(Path(sys.argv[1]))
