"""Thousands of steps of scoring in one process: memory, search cache, file handles and the trace on disk over time.

    python benchmarks/long_run.py                 2,000 steps of 64 completions: some 5 minutes
    python benchmarks/long_run.py --steps 10000   the full count: some 20 minutes, 0.2 GB of disk under --work

Completions are a real run's, with words of the catalogue added so that searches stay new: the cache is full long before
the middle. What is judged is the last third against the second one, when everything that is bounded has filled up.
"""

import argparse
import random
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from bench import Line, Measured, main
from inputs import Step, encoder, real_step, reward, store, titles, with_keywords
from tqdm import tqdm

from swift_plugin.rollout_env import CACHE_SIZE, RolloutEnv
from swift_plugin.trace import PART_BYTES, TraceWriter, open_trace, trace_files, trace_path

STEPS = 2_000
PROMPTS = 8  # of 8 completions: the launcher's own step
ITEMS = 2_000  # a small catalogue: what is watched does not depend on it
SAMPLES = 60
SEED = 7
QUICK_STEPS, QUICK_PART, QUICK_CACHE = 24, 256 << 10, 200
MORE = 0.02  # of memory that the last third may have over the second: the allocator is not still


def steps_of(count: int, step: Step, vocabulary: list[str]) -> Any:
    """`count` variants of a step; half of the completions get two words of the catalogue as a further keyword."""
    chance = random.Random(SEED)
    for _ in range(count):
        yield step.with_completions(
            with_keywords(completion, " ".join(chance.sample(vocabulary, 2))) if chance.random() < 0.5 else completion
            for completion in step.completions
        )


def sample(env: RolloutEnv, process: psutil.Process, folder: Path) -> dict[str, float]:
    """Memory, cache, handles and disk now."""
    files = [file for parts in trace_files(folder).values() for file in parts]
    return {
        "memory_mb": process.memory_info().rss / 1e6,
        "cached_searches": len(env._cache),
        "handles": process.num_fds(),
        "trace_mb": sum(file.stat().st_size for file in files) / 1e6,
        "trace_files": len(files),
    }


def measure(args: argparse.Namespace) -> Measured:
    steps = QUICK_STEPS if args.quick else args.steps
    cache, part = (QUICK_CACHE, QUICK_PART) if args.quick else (CACHE_SIZE, PART_BYTES)
    made, over, process = reward(), store(args.work, 600 if args.quick else ITEMS), psutil.Process()
    vocabulary = sorted({word for title in titles(600) for word in made.words(title)})
    taken: list[float] = []
    samples: list[dict[str, float]] = []
    with TemporaryDirectory(prefix="long-run.", dir=args.work) as folder:
        trace = TraceWriter(trace_path(folder, 0), part)
        env = RolloutEnv(made, encoder(), over, weights=made.DEFAULT_WEIGHTS, gates=(), trace=trace, cache_size=cache)
        every = max(1, steps // SAMPLES)
        phases = [real_step(phase, PROMPTS) for phase in ("early", "late")]
        variants = zip(*(steps_of(steps, phase, vocabulary) for phase in phases), strict=True)
        for number, (early, late) in enumerate(tqdm(variants, total=steps, desc="steps", unit="step")):
            started = time.perf_counter()
            (early if number % 2 else late).scored_by(env, number)
            taken.append((time.perf_counter() - started) * 1000)
            if number % every == every - 1:
                samples.append({"step": number + 1, **sample(env, process, Path(folder))})
        env.close()
        files = trace_files(folder)[0]
        written = lines_of(files)
    third = len(samples) // 3
    second, last = samples[third : 2 * third], samples[2 * third :]
    grown = median(s["memory_mb"] for s in last) / median(s["memory_mb"] for s in second) - 1
    completions = steps * PROMPTS * 8
    figures = {
        "steps": steps,
        "completions": completions,
        "step_ms": median(taken),
        "slowest_step_ms": max(taken),
        "cache_bound": cache,
        "memory_mb_second_third": median(s["memory_mb"] for s in second),
        "memory_mb_last_third": median(s["memory_mb"] for s in last),
        "trace_files": len(files),
        "trace_lines": written,
        "samples": samples,
    }
    return Measured(
        figures,
        [
            Line("memory of the last third over the second, share", grown, MORE),
            Line("searches kept, share of the bound", max(s["cached_searches"] for s in samples) / cache, 1.0),
            Line("file handles at the end over those at a third", last[-1]["handles"] - second[0]["handles"], 0),
            Line("trace lines read back, share of completions", written / completions, 1.0, at_least=True),
        ],
        [] if steps >= 10_000 else [f"{steps} steps; --steps 10000 is the full count"],
    )


def lines_of(files: list[Path]) -> int:
    """Lines in all files of a rank's trace, compressed or not."""
    count = 0
    for file in files:
        with open_trace(file) as lines:
            count += sum(1 for _ in lines)
    return count


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of 64 completions (default: %(default)s)")


if __name__ == "__main__":
    sys.exit(main("long_run", __doc__, measure, _options))
