"""The reward's share of a real GRPO step: what the plugin took of ms-swift's step time, by the run's logs.

Reads logging.jsonl and planner_steps.jsonl of a finished run (the newest `make demo` unless --run names one).
"""

import argparse
import sys
from pathlib import Path
from statistics import median

from bench import CHECKOUT, Line, Measured, main

from scripts.eval.grpo_log import LOG, PLUGIN, read_run


def newest_demo_run() -> Path:
    """The GRPO folder of the newest demo run; raises ValueError where there is none."""
    logs = sorted((CHECKOUT / "runs").glob(f"demo-seed*/grpo/{LOG}"), key=lambda log: log.stat().st_mtime)
    if not logs:
        raise ValueError("no demo run under runs/: run make demo, or name a GRPO run folder with --run")
    return logs[-1].parent


def measure(args: argparse.Namespace) -> Measured:
    folder = args.run or newest_demo_run()
    run = read_run(folder / LOG)
    if run is None:
        raise ValueError(f"{folder / LOG} is no GRPO log: name the run folder with --run")
    steps = [step.metrics for step in run.steps if "step_time" in step.metrics and f"{PLUGIN}ms" in step.metrics]
    if not steps:
        raise ValueError(f"{folder} has no step with both times: planner_steps.jsonl and {LOG} belong together")
    shares = [step[f"{PLUGIN}ms"] / 1000 / step["step_time"] for step in steps]
    reward_s = sum(step[f"{PLUGIN}ms"] for step in steps) / 1000
    steps_s = sum(step["step_time"] for step in steps)
    figures = {
        "run": folder.resolve().parent.name,
        "steps": len(steps),
        "completions_a_step": median(step[f"{PLUGIN}completions"] for step in steps),
        "reward_ms": median(step[f"{PLUGIN}ms"] for step in steps),
        "step_ms": median(1000 * step["step_time"] for step in steps),
        "share_of_all": reward_s / steps_s,
        "share_median": median(shares),
        "share_worst_step": max(shares),
    }
    return Measured(figures, [Line("reward's share of a GRPO step of make demo", reward_s / steps_s, 0.10)])


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", type=Path, help="GRPO run folder (newest runs/demo-seed*/grpo)")


if __name__ == "__main__":
    sys.exit(main("reward_share", __doc__, measure, _options))
