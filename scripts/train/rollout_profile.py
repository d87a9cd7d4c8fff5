"""What prefix caching is worth for the rollouts of this set: time, throughput, hit rate, and the same results or not.

The prompts of a GRPO set are asked as training asks them (the template's tokens, a group of completions a prompt), for
every batch size once with prefix caching off and once on:

- the share of prompt tokens that are the same text (system prompt; a group's prompt), counted without a model;
- seconds, completions and tokens a second, and the hit rate: prompt tokens that were not computed again;
- rewards: every completion is scored in batches of each size, and once more in another order; the same completion of
  the same prompt must get the same reward to the bit (exit code 1 otherwise);
- the share of identical generations for one seed, between off and on and between two runs: observed, not demanded. An
  engine may batch or round differently without being wrong.

On vLLM where it is installed and there is a GPU; else it says so and profiles transformers, which reuses prefixes too
when it is handed their keys and values. The vLLM path has not been run by this repository's tests, which have no GPU.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from scripts.eval.eval_planner import read_rows
from scripts.eval.generate import BACKENDS, MAX_NEW_TOKENS, LocalModel
from scripts.files import write_atomically
from scripts.swift_names import swift_names
from scripts.train.dataset_check import check_prompt_style
from scripts.train.manifest import hardware, package_versions
from scripts.train.prefix_sharing import VLLM_BLOCK, common_prefix, sharing
from scripts.train.result_file import writable_file
from scripts.train.reward_repeats import compare_rewards
from scripts.train.rollout_engines import (
    VLLM,
    Engine,
    Generation,
    Prompt,
    TransformersEngine,
    VllmEngine,
    choose_backend,
    load_transformers,
)
from scripts.train.swift_args import parse
from swift_plugin.encoders import EncoderError
from swift_plugin.rollout_env import RolloutEnv
from swift_plugin.settings import Settings
from swift_plugin.stores import StoreError, check_store

DEFAULT_SEED = 42
WARM_UP = 2  # completions before the clock runs: kernels, allocator


@dataclass(frozen=True)
class Plan:
    """What is asked: `prompts` in order, each `group` times in a row, in batches of every size in `batch_sizes`."""

    prompts: tuple[tuple[int, ...], ...]
    group: int
    batch_sizes: tuple[int, ...]
    repeats: int
    seed: int
    max_new_tokens: int

    @property
    def requests(self) -> list[Prompt]:
        return [prompt for prompt in self.prompts for _ in range(self.group)]


@dataclass(frozen=True)
class Run:
    """One pass over all requests: a batch size, caching on or off, one repeat. `batches` are in order."""

    batch_size: int
    caching: bool
    repeat: int
    batches: tuple[Generation, ...]

    @property
    def seconds(self) -> float:
        return sum(batch.seconds for batch in self.batches)

    @property
    def completions(self) -> list[tuple[int, ...]]:
        return [tokens for batch in self.batches for tokens in batch.tokens]

    @property
    def computed(self) -> int | None:
        counts = [batch.computed for batch in self.batches]
        return None if None in counts else sum(count for count in counts if count is not None)


def measure(engine: Engine, plan: Plan, *, caching: bool) -> list[Run]:
    """Every batch size, `repeats` times each, on one engine; the first batch of all is not timed."""
    requests = plan.requests
    passes = [(size, repeat) for size in plan.batch_sizes for repeat in range(plan.repeats)]
    runs = []
    label = f"caching {'on' if caching else 'off'}"
    with tqdm(total=len(passes) * len(requests), desc=label, unit="completion", file=sys.stderr) as bar:
        engine.start(requests)
        engine.generate(requests[:WARM_UP], plan.seed)
        for size, repeat in passes:
            engine.start(requests)
            batches = []
            for start in range(0, len(requests), size):
                batches.append(engine.generate(requests[start : start + size], plan.seed + start))
                bar.update(len(batches[-1].tokens))
            runs.append(Run(size, caching, repeat, tuple(batches)))
    return runs


def run_transformers(local: LocalModel, plan: Plan) -> list[Run]:
    """Off, then on, with one model in memory."""
    model, pad = load_transformers(local)
    runs = []
    for caching in (False, True):
        engine = TransformersEngine(model, pad, reuse=caching, max_new_tokens=plan.max_new_tokens)
        runs += measure(engine, plan, caching=caching)
    return runs


def run_vllm(local: LocalModel, plan: Plan) -> list[Run]:
    """Off, then on, each in a process of its own: only its end gives all of vLLM's memory back."""
    runs = []
    for caching in (False, True):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            runs += pool.submit(_run_vllm_once, local, plan, caching).result()
    return runs


def _run_vllm_once(local: LocalModel, plan: Plan, caching: bool) -> list[Run]:
    longest = max(map(len, plan.prompts))
    engine = VllmEngine(local, reuse=caching, max_new_tokens=plan.max_new_tokens, longest_prompt=longest)
    return measure(engine, plan, caching=caching)


def identical(one: Sequence[tuple[int, ...]], other: Sequence[tuple[int, ...]]) -> float:
    """Share of places where both hold the same tokens."""
    return sum(left == right for left, right in zip(one, other, strict=True)) / len(one)


def shared_tokens(plan: Plan) -> dict[str, Any]:
    """What is common in the prompts, in tokens; shares are of all prompt tokens, block size as vLLM's beside it."""
    lengths = [len(prompt) for prompt in plan.prompts]
    prefix = common_prefix(plan.prompts)
    made: dict[str, Any] = {
        "prompts": len(lengths),
        "tokens_a_prompt": {"min": min(lengths), "mean": statistics.fmean(lengths), "max": max(lengths)},
        "common_prefix_tokens": prefix,
        "common_prefix_share": prefix * len(lengths) / sum(lengths),
    }
    for name, copies, block in (
        ("prompts_share", 1, 1),
        ("groups_share", plan.group, 1),
        (f"groups_share_in_blocks_of_{VLLM_BLOCK}", plan.group, VLLM_BLOCK),
    ):
        made[name] = sharing(plan.prompts, copies, block).share
    return made


def speed_rows(runs: Sequence[Run], plan: Plan) -> list[dict[str, Any]]:
    """One row for each batch size and setting: the fastest of its repeats, JSON-ready."""
    prompt_tokens = sum(map(len, plan.requests))
    rows = []
    for size in plan.batch_sizes:
        for caching in (False, True):
            mine = [run for run in runs if (run.batch_size, run.caching) == (size, caching)]
            best = min(mine, key=lambda run: run.seconds)
            written = sum(map(len, best.completions))
            rows.append(
                {
                    "batch_size": size,
                    "prefix_caching": caching,
                    "seconds": [run.seconds for run in mine],
                    "completions": len(best.completions),
                    "tokens_written": written,
                    "completions_per_s": len(best.completions) / best.seconds,
                    "tokens_written_per_s": written / best.seconds,
                    "prompt_tokens": prompt_tokens,
                    "hit_rate": None if best.computed is None else 1 - best.computed / prompt_tokens,
                    "identical_when_repeated": (
                        identical(mine[0].completions, mine[1].completions) if len(mine) > 1 else None
                    ),
                }
            )
    return rows


def comparisons(runs: Sequence[Run], plan: Plan) -> list[dict[str, Any]]:
    """Off against on, for each batch size."""
    made = []
    for size in plan.batch_sizes:
        of = {caching: [r for r in runs if (r.batch_size, r.caching) == (size, caching)] for caching in (False, True)}
        fastest = {caching: min(run.seconds for run in of[caching]) for caching in of}
        made.append(
            {
                "batch_size": size,
                "times_faster": fastest[False] / fastest[True],
                "identical_off_and_on": identical(of[False][0].completions, of[True][0].completions),
            }
        )
    return made


def text(made: dict[str, Any]) -> Iterator[str]:
    """The page for people."""
    shared = made["shared_prefix"]
    yield f"{made['model']} on {made['backend']}" + (f" ({made['note']})" if made["note"] else "")
    yield (
        f"prompts: {shared['prompts']} of {shared['tokens_a_prompt']['mean']:.0f} tokens in the mean; the first "
        f"{shared['common_prefix_tokens']} are common to all ({shared['common_prefix_share']:.1%} of the tokens)"
    )
    in_blocks = shared[f"groups_share_in_blocks_of_{VLLM_BLOCK}"]
    yield (
        f"a perfect prefix cache computes {1 - shared['groups_share']:.1%} of the tokens of {made['group']} "
        f"completions a prompt ({1 - in_blocks:.1%} in vLLM's blocks of {VLLM_BLOCK})"
    )
    yield ""
    yield "batch  caching   seconds  completions/s  tokens written/s  hit rate  identical when repeated"
    for row in made["runs"]:
        again, hits = row["identical_when_repeated"], row["hit_rate"]
        yield (
            f"{row['batch_size']:>5}  {'on' if row['prefix_caching'] else 'off':<7} {min(row['seconds']):>9.2f}"
            f"  {row['completions_per_s']:>13.1f}  {row['tokens_written_per_s']:>16.0f}"
            f"  {'–' if hits is None else f'{hits:.1%}':>8}  {'–' if again is None else f'{again:.1%}':>8}"
        )
    for row in made["comparisons"]:
        yield (
            f"batch {row['batch_size']}: caching is {row['times_faster']:.2f} times as fast; "
            f"{row['identical_off_and_on']:.1%} of the completions are the same for the same seed (observed)"
        )
    rewards = made["rewards"]
    verdict = "all equal to the bit" if not rewards["unequal"] else f"{rewards['unequal']} DIFFER"
    yield f"rewards: {rewards['compared']} completions were scored more than once, {verdict}"


def profile(options: argparse.Namespace) -> dict[str, Any]:
    """All of it, JSON-ready."""
    settings = Settings.from_env()
    rows = read_rows(options.data)
    if len(rows) < options.prompts:
        raise ValueError(f"{options.data} has {len(rows)} rows, fewer than --prompts {options.prompts}: lower it")
    rows = rows[: options.prompts]
    check_prompt_style(options.data, rows, settings.prompt)
    probe = RolloutEnv.from_settings(settings, environ={})
    try:
        if probe.store is not None and probe.encoder is not None:
            check_store(probe.store, probe.encoder)  # before minutes of generation
    finally:
        probe.close()
    backend, note = choose_backend(options.backend)
    if note:
        print(note, file=sys.stderr)
    local = LocalModel(options.model, options.adapter, backend)

    from scripts.train.swift_template import RowEncoder

    kind, template = swift_names(options.model, options.adapter)
    line = ["--model", options.model, "--template", template, *(["--model_type", kind] if kind else [])]
    encoder = RowEncoder(parse("rlhf", line))
    plan = Plan(
        prompts=tuple(encoder.encode(row).ids for row in rows),
        group=options.group,
        batch_sizes=tuple(options.batch_size),
        repeats=options.repeats,
        seed=options.seed,
        max_new_tokens=options.max_new_tokens,
    )
    runs = (run_vllm if backend == VLLM else run_transformers)(local, plan)
    asked = [row for row in rows for _ in range(plan.group)]
    decoded = [
        [encoder.tokenizer.decode(list(tokens), skip_special_tokens=True) for tokens in run.completions] for run in runs
    ]
    scored = [(run.batch_size, list(zip(asked, texts, strict=True))) for run, texts in zip(runs, decoded, strict=True)]
    return {
        "model": options.model,
        "adapter": options.adapter,
        "data": str(options.data),
        "backend": backend,
        "note": note,
        "group": plan.group,
        "seed": plan.seed,
        "max_new_tokens": plan.max_new_tokens,
        "shared_prefix": shared_tokens(plan),
        "runs": speed_rows(runs, plan),
        "comparisons": comparisons(runs, plan),
        "rewards": compare_rewards(settings, scored, plan.seed),
        "packages": package_versions(),
        "hardware": hardware(),
    }


def _sizes(given: str) -> list[int]:
    return [int(part) for part in given.split(",")]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  PLANNER_PROMPT=short python scripts/train/rollout_profile.py --model "
        "runs/demo-seed42/sft/last-checkpoint \\\n    --data build/demo/grpo.jsonl --prompts 8 --batch-size 8,64 "
        "--max-new-tokens 96 --json rollout_profile.json\n"
        "exit code: 0 equal rewards, 1 the same completion got two rewards, 2 wrong use or environment",
    )
    parser.add_argument("--model", required=True, help="model folder or hub name")
    parser.add_argument("--adapter", help="LoRA adapter folder on top of it")
    parser.add_argument("--data", type=Path, required=True, help="GRPO set; its first rows are asked")
    parser.add_argument("--backend", choices=("auto", *BACKENDS), default="auto", help="auto: vLLM where it can run")
    parser.add_argument("--prompts", type=int, default=32, help="prompts (32)")
    parser.add_argument("--group", type=int, default=8, help="completions a prompt (8)")
    parser.add_argument("--batch-size", type=_sizes, default=[64, 256], help="completions at once (64,256)")
    parser.add_argument("--repeats", type=int, default=2, help="passes of every kind; the fastest counts (2)")
    parser.add_argument("--max-new-tokens", type=int, default=MAX_NEW_TOKENS, help=f"({MAX_NEW_TOKENS})")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help=f"sampling seed ({DEFAULT_SEED})")
    parser.add_argument("--json", type=writable_file, metavar="FILE", help="write everything to FILE as well")
    options = parser.parse_args(argv)
    counts = (options.prompts, options.group, options.repeats, options.max_new_tokens, *options.batch_size)
    if min(counts) < 1:
        parser.error("prompts, group, batch sizes, repeats and new tokens must be 1 or more")
    try:
        made = profile(options)
    except (OSError, ValueError, StoreError, EncoderError) as error:
        print(f"rollout_profile: {error}", file=sys.stderr)
        return 2
    if options.json is not None:
        write_atomically(options.json, json.dumps(made, ensure_ascii=False, indent=2) + "\n")
    print("\n".join(text(made)))
    return 1 if made["rewards"]["unequal"] else 0


if __name__ == "__main__":
    sys.exit(main())
