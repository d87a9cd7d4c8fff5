"""Merging an adapter: the plans stay the same or there are no merged weights."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import World, run

from scripts.online.merge_adapter import compare, merged_manifest, same_plan
from tests.launch_world import write_adapter

PLAN = '{"category": "跑鞋", "budget_amount": 300}'


@pytest.mark.parametrize(
    ("before", "after", "same", "reason"),
    [
        (PLAN, PLAN, True, "the same text"),
        (PLAN, '{"budget_amount":300,"category":"跑鞋"}', True, "another order, other spaces"),
        (PLAN, f"```json\n{PLAN}\n```", True, "a fence changes no plan"),
        (PLAN, '{"category": "跑鞋", "budget_amount": 301}', False, "another amount"),
        (PLAN, '{"category": "跑鞋", "budget_amount": "300"}', False, "a string"),
        ('{"clear_budget": true}', '{"clear_budget": 1}', False, "1 is not true"),
        (PLAN, "no plan", False, "a plan lost"),
        ("no plan", PLAN, False, "a plan found"),
        ("no plan", "no plan", True, "neither is a plan, and the model says the same"),
        ("no plan", "no  plan", False, "neither is a plan, but the model says something else"),
    ],
)
def test_same_plan(before: str, after: str, same: bool, reason: str) -> None:
    assert same_plan(before, after) is same, reason


def test_a_comparison_counts_and_names_what_differs() -> None:
    found = compare(["a", "b", "c"], [PLAN, PLAN, "x"], [PLAN, PLAN.replace("300", "1"), "x"])
    assert (found["same_plan"]["count"], found["same_text"]["count"], found["parsed_before"]["count"]) == (2, 2, 2)
    assert [one["id"] for one in found["different"]] == ["b"]


def test_the_manifest_of_the_run_comes_along(tmp_path: Path) -> None:
    adapter = tmp_path / "run" / "checkpoint-4"
    adapter.mkdir(parents=True)
    assert merged_manifest(adapter, {"torch_dtype": "float32"}) == {"merged": {"torch_dtype": "float32"}}
    (tmp_path / "run" / "planner_manifest.json").write_text('{"kind": "grpo"}', encoding="utf-8")
    assert merged_manifest(adapter, {"model": "m"}) == {"kind": "grpo", "merged": {"model": "m"}}


def merge(model: Path, adapter: Path, data: Path, out: Path, *more: str, code: int = 0) -> str:
    return run(
        [sys.executable, "scripts/online/merge_adapter.py", "--model", str(model), "--adapter", str(adapter)]
        + ["--data", str(data), "--out", str(out), *more],
        {},
        code=code,
    )


def test_wrong_use_ends_before_a_model_is_loaded(tmp_path: Path) -> None:
    data = tmp_path / "dev.jsonl"
    row = {"id": "1", "messages": [], "text": "", "family": "", "split": "dev92", "golden_json": "{}"}
    data.write_text(json.dumps(row) + "\n", encoding="utf-8")
    hollow = write_adapter(tmp_path / "adapter")  # a configuration without weights
    assert "adapter_model.safetensors" in merge(tmp_path, hollow, data, tmp_path / "out", code=2)
    assert "never overwritten" in merge(tmp_path, hollow, data, tmp_path, code=2)
    printed = merge(tmp_path, hollow, data, tmp_path / "none", "--check-only", code=2)
    assert "config.json" in printed and "Traceback" not in printed


def stronger(adapter: Path, out: Path, factor: float) -> Path:
    """The adapter with its change of the model multiplied."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(adapter, out)
    weights = load_file(out / "adapter_model.safetensors")
    save_file(
        {name: value * factor if ".lora_B." in name else value for name, value in weights.items()},
        out / "adapter_model.safetensors",
        metadata={"format": "pt"},
    )
    return out


@pytest.mark.slow
def test_merged_weights_say_the_same_and_other_weights_are_found(
    world: World, base: Path, sft: Path, tmp_path: Path
) -> None:
    adapter = stronger(sft, tmp_path / "run" / "best", 64.0)  # four steps alone might change no plan
    shutil.copy(sft.parent / "planner_manifest.json", tmp_path / "run")
    data, out = tmp_path / "dev.jsonl", tmp_path / "merged"
    rows = [{**row, "messages": row["messages"][:-1]} for row in world.rows("learnt.jsonl")]  # without the answer
    data.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    printed = merge(base, adapter, data, out)
    assert "same greedy plans before and after: 16/16" in printed
    manifest: dict[str, Any] = json.loads((out / "planner_manifest.json").read_text(encoding="utf-8"))
    assert (manifest["kind"], manifest["merged"]["same_plan"]["count"]) == ("sft", 16)
    assert (out / "model.safetensors").is_file() and not (out / "adapter_config.json").exists()
    assert not list(tmp_path.glob(".*.partial"))

    # Weights without the adapter are what a merge that silently did nothing would have written.
    unmerged = tmp_path / "unmerged"
    shutil.copytree(base, unmerged)
    printed = merge(base, adapter, data, unmerged, "--check-only", code=1)
    different = json.loads((tmp_path / "unmerged.check.json").read_text(encoding="utf-8"))["different"]
    assert different and f"{len(different)} plans differ" in printed
    assert (unmerged / "config.json").is_file(), "--check-only removes nothing"
