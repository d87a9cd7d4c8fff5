"""Merge a LoRA adapter into its model (`swift export`) and prove that the plans stay the same.

Every record of --data is answered greedily by model and adapter, and again by the merged weights. OUT is there only if
all plans agree; exit code 1 otherwise. OUT.check.json says what was compared. The run's planner_manifest.json goes
along with the weights, with an entry `merged` on what they were made from.
"""

import argparse
import gc
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reward.planner_reward import parse_plan
from scripts.eval.eval_planner import read_rows
from scripts.eval.evaluation_files import json_text
from scripts.eval.generate import MAX_NEW_TOKENS, LocalModel, generate
from scripts.eval.summary import share
from scripts.files import write_atomically
from scripts.swift_names import swift_names
from scripts.train.manifest import MANIFEST

MOST_SHOWN = 5  # differing records that are printed; all of them stand in the check file
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")


def same_plan(before: str, after: str) -> bool:
    """Whether two completions say the same plan; of texts that are no plans, whether they are the same text.

    >>> same_plan('{"category": "跑鞋"}', '{"category":"跑鞋"}'), same_plan("no plan", "no  plan")
    (True, False)
    """
    plans = [parse_plan(text).plan for text in (before, after)]
    if plans[0] is None or plans[1] is None:
        return before == after
    # As JSON, because 1 == True == 1.0 in Python.
    return json.dumps(plans[0], sort_keys=True) == json.dumps(plans[1], sort_keys=True)


def compare(ids: Sequence[str], before: Sequence[str], after: Sequence[str]) -> dict[str, Any]:
    """Counts of same plans and same texts, of plans at all, and every record that differs, JSON-ready."""
    rows = list(zip(ids, before, after, strict=True))
    differing = [{"id": one, "before": x, "after": y} for one, x, y in rows if not same_plan(x, y)]
    return {
        "same_plan": share(len(rows) - len(differing), len(rows)),
        "same_text": share(sum(x == y for _, x, y in rows), len(rows)),
        "parsed_before": share(sum(parse_plan(x).plan is not None for _, x, _ in rows), len(rows)),
        "different": differing,
    }


def adapter_sha256(adapter: Path) -> str:
    """The sha256 of an adapter's weights. Raises FileNotFoundError for a folder that is no adapter."""
    for name in WEIGHTS:
        if (adapter / name).is_file():
            return hashlib.sha256((adapter / name).read_bytes()).hexdigest()
    raise FileNotFoundError(f"{adapter} holds no {WEIGHTS[0]}: name the folder of a LoRA adapter")


def greedy(model: LocalModel, prompts: Sequence[list[dict[str, str]]], label: str) -> tuple[list[str], str]:
    """One greedy completion a prompt, and the type of the weights they came from. The model is freed again."""
    engine = model.load()
    completions = generate(engine, prompts, samples=0, seed=0, label=label)
    dtype = str(engine.model_info.torch_dtype).removeprefix("torch.")
    del engine
    gc.collect()
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return [texts[0] for texts in completions], dtype


def merge(model: str, adapter: str, dtype: str, out: Path) -> None:
    """Write the merged weights and the tokenizer to `out`, by ms-swift's own export."""
    from swift.pipelines import export_main

    kind, template = swift_names(model, adapter)
    line = ["--model", model, "--adapters", adapter, "--template", template, "--torch_dtype", dtype]
    line += ["--model_type", kind] if kind else []
    export_main([*line, "--merge_lora", "true", "--output_dir", str(out)])


def merged_manifest(adapter: Path, merged: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of the adapter's run with the facts of the merge; those alone where the run left no manifest."""
    for folder in (adapter, adapter.parent):
        if (folder / MANIFEST).is_file():
            return {**json.loads((folder / MANIFEST).read_text(encoding="utf-8")), "merged": dict(merged)}
    return {"merged": dict(merged)}


def run(args: argparse.Namespace) -> int:
    check_file = Path(f"{args.out}.check.json")
    if args.out.exists() and not args.check_only:
        raise ValueError(f"{args.out} exists and is never overwritten; choose another --out, or give --check-only")
    if args.check_only and not (args.out / "config.json").is_file():
        raise ValueError(f"{args.out} holds no config.json: --check-only judges weights that were merged before")
    rows = read_rows(args.data)
    about = {
        "model": args.model,
        "adapter": str(args.adapter),
        "adapter_sha256": adapter_sha256(args.adapter),
        "data": str(args.data),
        "data_sha256": hashlib.sha256(args.data.read_bytes()).hexdigest(),
        "max_new_tokens": MAX_NEW_TOKENS,
    }
    prompts = [row["messages"] for row in rows]
    before, dtype = greedy(LocalModel(args.model, str(args.adapter)), prompts, "adapter")
    scratch = args.out if args.check_only else args.out.with_name(f".{args.out.name}.partial")
    if not args.check_only:
        shutil.rmtree(scratch, ignore_errors=True)  # of a merge that was killed
        merge(args.model, str(args.adapter), dtype, scratch)
    after, _ = greedy(LocalModel(str(scratch)), prompts, "merged")
    found = {**about, "torch_dtype": dtype, **compare([row["id"] for row in rows], before, after)}
    write_atomically(check_file, json_text(found))
    same = found["same_plan"]
    print(f"same greedy plans before and after: {same['count']}/{same['of']} (same text {found['same_text']['count']})")
    print(f"parsed before: {found['parsed_before']['count']}/{same['of']}; check: {check_file}")
    for one in found["different"][:MOST_SHOWN]:
        print(f"  {one['id']}\n    before {one['before']}\n    after  {one['after']}")
    if found["different"]:
        if not args.check_only:
            shutil.rmtree(scratch)
        print(f"{len(found['different'])} plans differ: serve the adapter itself, or merge in a wider torch_dtype")
        return 1
    if not args.check_only:
        facts = {name: value for name, value in found.items() if name != "different"}
        write_atomically(scratch / MANIFEST, json_text(merged_manifest(args.adapter, facts)))
        os.replace(scratch, args.out)
        print(f"merged: PLANNER_MODEL={args.out} bash run_planner_server.sh")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/online/merge_adapter.py --model Qwen/Qwen3-4B-Instruct-2507 \\\n"
        "    --adapter runs/grpo-NAME/best --data build/data/dev92.jsonl --out runs/merged",
    )
    parser.add_argument("--model", required=True, help="model folder or hub name the adapter was trained on")
    parser.add_argument("--adapter", type=Path, required=True, help="LoRA adapter folder")
    parser.add_argument("--data", type=Path, required=True, help="prompt set to compare on (dev92.jsonl)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the merged model")
    parser.add_argument("--check-only", action="store_true", help="compare with the weights already in --out")
    args = parser.parse_args(argv)
    try:
        return run(args)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
