"""`make smoke`: 50 GRPO steps through the launchers, to show that the pipeline works. Its rewards are no result.

Checks what can be wrong without anyone noticing: groups of the asked size, finite loss and gradient at every step, and
a first measurement on the watch split before the first update.
"""

import argparse
import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from scripts.demo.stages import StageFailed, run_stage
from scripts.demo.world import DATA_STAMPS, DEMO_SEED, RUNS, SeedRun, begin, data_stages

STEPS = 50
SFT_EPOCHS = 0.5  # enough that some completions parse
GROUP = 8


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def check(run: SeedRun, steps: int) -> list[str]:
    """What is wrong with the finished run, in words; empty when nothing is."""
    problems = []
    log = [row for row in rows(run.grpo / "logging.jsonl") if "loss" in row and "grad_norm" in row]
    if len(log) != steps:
        problems.append(f"{len(log)} of {steps} steps have loss and grad_norm in {run.grpo / 'logging.jsonl'}")
    broken = [
        row["global_step/max_steps"]
        for row in log
        if not (math.isfinite(float(row["loss"])) and math.isfinite(float(row["grad_norm"])))
    ]
    if broken:
        problems.append(f"loss or gradient is not finite at {', '.join(broken)}")
    traces = rows(run.grpo / "reward_trace.rank0.jsonl")
    groups = Counter((line["step"], line["id"]) for line in traces if line["split"] == "train")
    wrong = {key: size for key, size in groups.items() if size % GROUP}
    if wrong or not groups:
        problems.append(f"groups are not of {GROUP} completions: {dict(list(wrong.items())[:3]) or 'no train trace'}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/demo/smoke.py --steps 50",
    )
    parser.add_argument("--steps", type=int, default=STEPS, help=f"GRPO steps (default {STEPS})")
    args = parser.parse_args()
    begin("the smoke run uses")
    run = SeedRun(DEMO_SEED, RUNS / "smoke", sft_epochs=SFT_EPOCHS, grpo_steps=args.steps)
    try:
        for stage in data_stages():
            run_stage(stage, DATA_STAMPS)
        for stage in (run.nano_stage(), run.sft_stage()):
            run_stage(stage, run.stamps)
        run_stage(run.grpo_stage("--eval_on_start", "true"), run.stamps)
    except (StageFailed, FileNotFoundError) as failure:
        print(f"smoke: {failure}", file=sys.stderr)
        return 2
    before = [line["breakdown"]["total"] for line in rows(run.grpo / "reward_trace.rank0.jsonl") if line["step"] == 0
              and line["split"] == "watch"]  # fmt: skip
    problems = check(run, args.steps)
    if not before:
        problems.append("no watch completion was scored before the first update")
    else:
        mean = sum(before) / len(before)
        print(f"smoke: reward on watch before the first update {mean:.4f} ({len(before)} completions)")
    for problem in problems:
        print(f"smoke: {problem}", file=sys.stderr)
    if not problems:
        print(f"smoke: the pipeline works ({args.steps} steps, groups of {GROUP}, finite loss and gradient). "
              "This is no result: so few steps after so little SFT show nothing about quality.")  # fmt: skip
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
