"""Score a planner on a dev set with the reward's default weights: one greedy pass and, with --samples, n samples.

Writes OUT.greedy.jsonl and OUT.samples.jsonl (a line a record: completions, plans, breakdowns, titles found) and
OUT.summary.json, which holds the sha256 of both. Existing files are never overwritten.
"""

import argparse
import hashlib
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from scripts.eval.generate import LocalModel, generate
from scripts.eval.summary import summarise
from swift_plugin.prompts import system_prompt
from swift_plugin.rollout_env import RolloutEnv
from swift_plugin.settings import PROMPT_STYLES, Settings
from swift_plugin.stores import check_store

DEFAULT_SEED = 42
SAMPLE_KEYS = ("completion", "plan", "issues", "search", "titles", "breakdown")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a prompt set; raises ValueError naming line and column when one lacks what evaluation needs."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number} is no JSON ({error})") from None
        missing = [name for name in ("id", "messages", "text", "family", "split", "golden_json") if name not in row]
        if missing:
            raise ValueError(f"{path}:{number}: no column {', '.join(missing)}; make the set with scripts/data/")
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} is empty")
    return rows


def prompt_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """The prompt style the rows were rendered with; for a text of one's own, its sha256."""
    systems = {row["messages"][0]["content"] for row in rows}
    for style in PROMPT_STYLES:
        if systems == {system_prompt(style)}:
            return style
    return "sha256:" + hashlib.sha256("\n".join(sorted(systems)).encode()).hexdigest()


def score_records(
    env: RolloutEnv, rows: Sequence[Mapping[str, Any]], completions: Sequence[Sequence[str]]
) -> list[dict[str, Any]]:
    """One record a row with its scored samples; every completion of a row is judged by the row's golden."""
    flat = [(row, text) for row, texts in zip(rows, completions, strict=True) for text in texts]
    env.score(
        [text for _, text in flat],
        [row["golden_json"] for row, _ in flat],
        [row["text"] for row, _ in flat],
        ids=[row["id"] for row, _ in flat],
        splits=[row["split"] for row, _ in flat],
        step=None,
    )
    scored = iter(env.last_rows)
    return [
        {
            "id": row["id"],
            "family": row["family"],
            "text": row["text"],
            "golden": env.reward.parse_golden(row["golden_json"], where=row["id"]),
            "samples": [{key: line[key] for key in SAMPLE_KEYS} for line in islice(scored, len(texts))],
        }
        for row, texts in zip(rows, completions, strict=True)
    ]


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader never sees half of it."""
    scratch = path.with_name(path.name + ".partial")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)


def jsonl(records: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=True, allow_nan=False) + "\n" for record in records)


def print_summary(label: str, summary: Mapping[str, Any]) -> None:
    reward = summary["reward"]
    print(
        f"{label}: reward {reward['mean']:.4f} [{reward['low']:.4f}, {reward['high']:.4f}]  "
        f"format {summary['format_rate']['share']:.3f}  parse {summary['parse_rate']['share']:.3f}  "
        f"{summary['records']} records, {summary['completions']} completions"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/eval/eval_planner.py --model build/demo/nano --data build/demo/dev92.jsonl "
        "--samples 8 --out runs/eval/untrained",
    )
    parser.add_argument("--model", required=True, help="model folder or hub name")
    parser.add_argument("--adapter", help="LoRA adapter folder on top of it")
    parser.add_argument("--data", type=Path, required=True, help="prompt set with golden_json (dev92.jsonl)")
    parser.add_argument("--samples", type=int, default=0, help="samples a record beside the greedy pass (default 0)")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help=f"sampling seed (default {DEFAULT_SEED})")
    parser.add_argument("--out", type=Path, required=True, help="prefix of the files to write")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if args.samples < 0:
        parser.error(f"--samples {args.samples}: use 0 (greedy only) or more")
    summary_file = Path(f"{args.out}.summary.json")
    for file in (summary_file, Path(f"{args.out}.greedy.jsonl"), Path(f"{args.out}.samples.jsonl")):
        if file.exists():
            print(f"{file} exists and is never overwritten; choose another --out or move it", file=sys.stderr)
            return 2
    args.out.parent.mkdir(parents=True, exist_ok=True)
    settings = Settings.from_env()
    rows = read_rows(args.data)
    print("scored with the default weights and no gates, whatever PLANNER_REWARD_WEIGHTS and PLANNER_REWARD_GATES say")
    env = RolloutEnv.from_settings(settings, environ={})  # no weights, no gates: the defaults
    store = check_store(env.store, env.encoder) if env.store is not None and env.encoder is not None else None
    if store is None:
        print("PLANNER_RETRIEVAL=off: retrieval takes no part, and the summary says so")
    engine = LocalModel(args.model, args.adapter).load()
    summary: dict[str, Any] = {
        "model": args.model,
        "adapter": args.adapter,
        "data": str(args.data),
        "data_sha256": hashlib.sha256(args.data.read_bytes()).hexdigest(),
        "reward_sha256": env.reward.sha256,
        "weights": env.weights,
        "gates": list(env.gates),
        # What was searched: two evaluations on different stores are not comparable.
        "store": None if store is None else {"points": store.points, "vector_size": store.vector_size},
        "encoder": None if env.encoder is None else env.encoder.name,
        "prompt": prompt_of(rows),
        "seed": args.seed,
    }
    for mode, samples in (("greedy", 0), ("samples", args.samples)):
        if mode == "samples" and samples == 0:
            continue
        completions = generate(
            engine, [row["messages"] for row in rows], samples=samples, seed=args.seed, label=f"{args.out.name} {mode}"
        )
        records = score_records(env, rows, completions)
        text = jsonl(records)
        write_atomically(Path(f"{args.out}.{mode}.jsonl"), text)
        summary[mode] = {**summarise(records), "records_sha256": hashlib.sha256(text.encode()).hexdigest()}
        print_summary(f"{args.out.name} {mode}", summary[mode])
    write_atomically(summary_file, json.dumps(summary, ensure_ascii=False, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
