"""Run folders built by hand for the tests of the log analysis."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Metric = Callable[[float], float] | float  # a value, or a function of the run's progress from 0 to 1
HEALTHY: dict[str, Metric] = {
    "loss": 0.0, "grad_norm": 0.5, "learning_rate": 2e-5, "reward": lambda t: 0.6 + 0.2 * t, "reward_std": 0.12,
    "frac_reward_zero_std": 0.1, "completions/mean_length": 40.0, "completions/clipped_ratio": 0.0,
    "entropy/mean": lambda t: 0.5 - 0.1 * t, "rewards/PlannerRetrieval/mean": lambda t: 0.5 + 0.1 * t,
    "rewards/PlannerDomainsF1/mean": 0.8, "rewards/PlannerEcon/mean": lambda t: 0.7 + 0.2 * t,
    "rewards/PlannerFormat/mean": 0.999,
}  # fmt: skip
NOISE = 0.02  # relative, on every metric: a real step is never on the line
PLUGIN_LINE = {"completions": 64, "groups": 8, "sigma": 0.1, "tied": 0.1, "parse_failures": 0.01}
ARGUMENTS = {
    "rlhf_type": "grpo", "beta": 0.0, "learning_rate": 2e-5, "tuner_type": "lora", "adapters": ["sft"],
    "ref_adapters": [], "num_generations": 8, "per_device_train_batch_size": 64, "max_completion_length": 256,
}  # fmt: skip


def rows(steps: int = 60, **metrics: Metric) -> list[dict[str, Any]]:
    """Train rows 1..steps of a healthy run with `metrics` replaced; a slash in a name is written as two underscores."""
    random = np.random.default_rng(7)
    wanted = {**HEALTHY, **{name.replace("__", "/"): metric for name, metric in metrics.items()}}
    found = []
    for step in range(1, steps + 1):
        row: dict[str, Any] = {}
        for name, metric in wanted.items():
            value = metric((step - 1) / max(1, steps - 1)) if callable(metric) else metric
            row[name] = value * (1 + NOISE * random.normal()) if name != "learning_rate" else value
        found.append({**row, "global_step/max_steps": f"{step}/{steps}"})
    return found


def write_jsonl(file: Path, lines: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def write_run(
    folder: Path,
    lines: list[dict[str, Any]],
    arguments: Mapping[str, Any] | None = ARGUMENTS,
    plugin: Callable[[int], Mapping[str, Any]] | None = None,
) -> Path:
    """A run folder: logging.jsonl, args.json, and with `plugin` (changes to a step's line) planner_steps.jsonl."""
    write_jsonl(folder / "logging.jsonl", lines)
    if arguments is not None:
        (folder / "args.json").write_text(json.dumps(dict(arguments)), encoding="utf-8")
    if plugin is not None:
        steps = sum("reward" in line for line in lines)
        made = [{"step": step, "split": "train", **PLUGIN_LINE, **plugin(step)} for step in range(steps)]
        write_jsonl(folder / "planner_steps.jsonl", made)
    return folder


def trace_line(step: int, split: str, record: str, total: float, exact: bool = True) -> dict[str, Any]:
    """A line of reward_trace.rank0.jsonl, without what the analysis does not read."""
    breakdown = {"total": total, "format": 1.0 if exact else 0.9, "empty_keywords": False}
    return {"step": step, "split": split, "id": record, "plan": {}, "search": "x", "breakdown": breakdown}
