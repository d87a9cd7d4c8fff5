"""`make demo-seeds`: the demo for three training seeds, each beside SFT trained longer by the time GRPO took.

Prints every seed's table, then the gain of every seed and the median, which is the one that counts. Exit 1 when the
median gain is below the line or the median seed's gain is not beyond chance.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

from scripts.demo.stages import CHECKOUT, StageFailed, run_stage
from scripts.demo.world import DATA_STAMPS, PYTHON, RUNS, begin, data_stages

SEEDS = (42, 43, 44)
GAIN_LINE = 0.03  # GRPO − SFT on dev92 that the demo is meant to show
FORMAT_LINE = 0.98  # SFT's share of completions with format exactly 1


def run_one(seed: int, jobs: int) -> int:
    """The demo of one seed, to the terminal or, side by side with others, to a file; returns its exit code."""
    command = [PYTHON, "scripts/demo/run_demo.py", "--seed", str(seed), "--longer"]
    print(f"==== seed {seed}", flush=True)
    if jobs == 1:
        return subprocess.call(command, cwd=CHECKOUT)
    log_file = RUNS / f"demo-seed{seed}.log"
    RUNS.mkdir(exist_ok=True)
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    with log_file.open("wb") as log:
        code = subprocess.call(
            command, cwd=CHECKOUT, env={**os.environ, "OMP_NUM_THREADS": threads}, stdout=log, stderr=subprocess.STDOUT
        )
    print(f"==== seed {seed} ended with {code}; its output is in {log_file}", flush=True)
    return code


def judged(results: Mapping[int, Mapping[str, Any]]) -> tuple[str, bool]:
    """Every seed's table and gain with the medians, and whether the lines hold.

    Args:
        results: the result.json of each seed.
    """
    good, said = True, []
    for seed, result in results.items():
        said.append(f"\nseed {seed}\n{result['table']}")
    for mode in ("greedy", "samples"):
        verdicts = {seed: result["verdicts"][mode] for seed, result in results.items()}
        gains = {seed: verdict["difference"] for seed, verdict in verdicts.items()}
        formats = median(result["summaries"]["sft"][mode]["format_rate"]["share"] for result in results.values())
        middle = sorted(gains, key=lambda seed: gains[seed]["mean"])[(len(gains) - 1) // 2]
        good = good and gains[middle]["mean"] >= GAIN_LINE and verdicts[middle]["rose"]
        if mode == "greedy":  # what a service would answer; samples at temperature 1 are shown beside it
            good = good and formats >= FORMAT_LINE
        said.append(f"\n{mode}: SFT format rate, median {formats:.3f} (line for greedy: {FORMAT_LINE}); GRPO − SFT:")
        for name, gain in [*((f"seed {seed}", gain) for seed, gain in gains.items()), ("median", gains[middle])]:
            said.append(f"  {name}: {gain['mean']:+.4f} [{gain['low']:+.4f}, {gain['high']:+.4f}]")
        said[-1] += f" (line {GAIN_LINE:+.2f})"
    return "\n".join(said), good


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/demo/run_seeds.py --seeds 42 43 44",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="training seeds (default 42 43 44)")
    parser.add_argument(
        "--jobs", type=int, default=1, help="seeds side by side, sharing the cores, output to files (default 1)"
    )
    args = parser.parse_args()
    begin()
    # The world is shared: made once here, so that seeds side by side only read it.
    try:
        for stage in data_stages():
            run_stage(stage, DATA_STAMPS)
    except StageFailed as failure:
        print(f"demo-seeds: {failure}", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(args.jobs) as pool:
        codes = list(pool.map(lambda seed: run_one(seed, args.jobs), args.seeds))
    failed = {seed: code for seed, code in zip(args.seeds, codes, strict=True) if code not in (0, 1)}
    if failed:
        print(f"demo-seeds: exit codes by seed {failed}; run the same command to go on", file=sys.stderr)
        return 2
    results = {
        seed: json.loads((RUNS / f"demo-seed{seed}" / "result.json").read_text(encoding="utf-8")) for seed in args.seeds
    }
    text, good = judged(results)
    print(text)
    print("demo-seeds: " + ("the lines hold" if good else "a line does not hold; the numbers above say which"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
