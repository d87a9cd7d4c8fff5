"""`make demo`: catalogue -> nano model -> SFT -> GRPO -> evaluation on dev92 -> table, verdict and report.

Every stage is a command that can be run alone; it is printed before it runs. Finished stages are kept: after Ctrl-C or
a failure the same command goes on where it stopped.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from scripts.demo.stages import StageFailed, run_stage, stage_seconds
from scripts.demo.world import (
    DATA_STAMPS,
    DEMO_SEED,
    LAST,
    RUNS,
    SFT_EPOCHS,
    SeedRun,
    begin,
    calibration_stage,
    data_stages,
)


def run_seed(run: SeedRun, longer: bool) -> int:
    """All stages of one seed; returns the table's code (1: GRPO did not rise above SFT beyond chance)."""
    run_stage(run.nano_stage(), run.stamps)
    run_stage(run.sft_stage(), run.stamps)
    run_stage(run.grpo_stage(), run.stamps)
    models: dict[str, Path] = {"untrained": run.nano, "sft": run.sft / LAST, "grpo": run.grpo / "best"}
    if longer:
        run_stage(run.longer_stage(stage_seconds("grpo", run.stamps), stage_seconds("sft", run.stamps)), run.stamps)
        models["sft-longer"] = run.longer / LAST
    for label, model in models.items():
        run_stage(run.eval_stage(label, model), run.stamps)
    code = run_stage(run.table_stage(list(models)), run.stamps)
    run_stage(run.log_stage(), run.stamps)
    run_stage(run.compare_stage(), run.stamps)
    run_stage(calibration_stage(), DATA_STAMPS)  # a finding about the reward, whatever this run did
    run_stage(run.report_stage(), run.stamps)
    return code


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/demo/run_demo.py --seed 42",
    )
    parser.add_argument("--seed", type=int, default=DEMO_SEED, help=f"training seed (default {DEMO_SEED})")
    parser.add_argument(
        "--longer", action="store_true", help="also train SFT longer by the time GRPO took, as a row of its own"
    )
    parser.add_argument(
        "--epochs", type=float, default=SFT_EPOCHS, help=f"SFT epochs (default {SFT_EPOCHS}; fewer for a quick look)"
    )
    args = parser.parse_args()
    begin()
    started = time.monotonic()
    try:
        for stage in data_stages():
            run_stage(stage, DATA_STAMPS)
        run = SeedRun(args.seed, RUNS / f"demo-seed{args.seed}", sft_epochs=args.epochs)
        code = run_seed(run, args.longer)
    except (StageFailed, FileNotFoundError) as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 2
    print(f"demo: {(time.monotonic() - started) / 60:.1f} minutes; files in {run.root}")
    comparison = json.loads((run.root / "comparison.json").read_text(encoding="utf-8"))
    for mode, result in comparison["modes"].items():
        print(f"demo: GRPO against SFT, {mode}: {result['words']}")
    print(f"demo: all of it in one page: {run.root / 'report.html'}")
    if code == 1:
        print("demo: GRPO did not rise above SFT beyond chance in every decoding mode; the table says where")
    return code


if __name__ == "__main__":
    sys.exit(main())
