"""What training on plans costs elsewhere: 20 general and 10 code-reading questions, before and after each checkpoint.

--model (with --adapter, if training began from one) is the model before; --after names checkpoints: adapter folders on
--model, full model folders, or, with --endpoint, names of models served there. Each question is answered once,
greedily, and scored by exact match after the normalisation of scripts/eval/guard_items.py. With 30 questions one answer
is 3.3 points: the guard sees damage, not a change of two or three points.

Exit codes: 0 fine; 1 some checkpoint fell by more than 5 points; 2 wrong use or environment, or a model that starts
below 20 %: from there a fall says nothing, and no fall says nothing either.
"""

import argparse
import gc
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.eval.endpoint import Call, Endpoint, Job, ask_all
from scripts.eval.evaluation_files import json_text
from scripts.eval.generate import BACKENDS, LocalModel, generate
from scripts.eval.guard_items import DEFAULT_ITEMS, Item, flipped, points_lost, read_items, score
from scripts.files import write_atomically
from swift_plugin.settings import Settings

LEAST_START = 0.20
MOST_LOST = 5.0  # points
ANSWER_TOKENS = 32
SEED = 42  # of a greedy pass: nothing depends on it

Answers = Callable[[str], list[str]]  # of a model or checkpoint, by the name the user gave


class TooWeak(ValueError):
    """The model before training is right too rarely to be judged."""


def local_answers(items: Sequence[Item], model: str, adapter: str | None, backend: str) -> Answers:
    """Answers of `model` with `adapter`, or of a checkpoint folder: an adapter on `model`, or a model of its own."""

    def answers(name: str) -> list[str]:
        chosen = LocalModel(model, adapter, backend) if name == model else _checkpoint(name, model, backend)
        engine = chosen.load()
        prompts = [item.messages for item in items]
        try:
            found = generate(
                engine, prompts, samples=0, seed=SEED, label=Path(name).name, max_new_tokens=ANSWER_TOKENS
            )
        finally:
            del engine  # its memory is needed for the next one
            gc.collect()
        return [texts[0] for texts in found]

    return answers


def _checkpoint(name: str, model: str, backend: str) -> LocalModel:
    folder = Path(name)
    if (folder / "adapter_config.json").is_file():
        return LocalModel(model, name, backend)
    if (folder / "config.json").is_file():
        return LocalModel(name, None, backend)
    raise FileNotFoundError(f"--after {name}: neither adapter_config.json nor config.json; name a checkpoint folder")


def endpoint_answers(items: Sequence[Item], url: str, settings: Settings) -> Answers:
    """Answers of a model by its name at the endpoint. A failed call raises ValueError: an outage is no wrong answer."""

    def answers(name: str) -> list[str]:
        calls: dict[str, Call] = {}
        endpoint = Endpoint.from_settings(url, name, settings)
        wanted = [Job(item.id, "greedy", 0, item.messages, SEED) for item in items]
        ask_all(endpoint, wanted, label=name, keep=lambda call: calls.update({call.id: call}))
        failed = [call for call in calls.values() if call.completion is None]
        if failed:
            raise ValueError(f"{name}: {len(failed)} of {len(items)} calls failed ({failed[0].reason}): ask again")
        return [str(calls[item.id].completion) for item in items]

    return answers


def judge(items: Sequence[Item], before: str, after: Sequence[str], answers: Answers) -> dict[str, Any]:
    """Scores of the model before and of every checkpoint, with the points each lost and whether that is a warning.

    Raises TooWeak when the model before is right in less than LEAST_START of the items; then no checkpoint is asked.
    """
    start = score(items, answers(before))
    if start["all"]["count"] < LEAST_START * start["all"]["of"]:
        raise TooWeak(
            f"{before} starts with {start['all']['count']} of {start['all']['of']} right, below {LEAST_START:.0%}: "
            "nothing can be lost from there, so this guard cannot judge it. Guard a model that answers questions"
        )
    return {"model": before, "before": start, "checkpoints": [_compared(items, start, name, answers) for name in after]}


def _compared(items: Sequence[Item], start: Mapping[str, Any], name: str, answers: Answers) -> dict[str, Any]:
    scored = score(items, answers(name))
    lost = points_lost(start, scored)
    return {
        "checkpoint": name,
        "score": scored,
        "points_lost": lost,
        "warning": lost > MOST_LOST,
        "became_wrong": flipped(start, scored, False),
        "became_right": flipped(start, scored, True),
    }


def _counts(scored: Mapping[str, Any]) -> str:
    return ", ".join(f"{kind} {scored[kind]['count']}/{scored[kind]['of']}" for kind in ("all", "general", "code"))


def text_of(result: Mapping[str, Any]) -> str:
    lines = [f"before  {result['model']}: {_counts(result['before'])}"]
    for one in result["checkpoints"]:
        lines.append(f"after   {one['checkpoint']}: {_counts(one['score'])}, {-one['points_lost']:+.1f} points")
        if one["became_wrong"] or one["became_right"]:
            wrong, right = ", ".join(one["became_wrong"]) or "none", ", ".join(one["became_right"]) or "none"
            lines.append(f"        became wrong: {wrong}; became right: {right}")
        if one["warning"]:
            fall = f"fell by {one['points_lost']:.1f} points, more than {MOST_LOST:g}"
            lines.append(f"WARNING {one['checkpoint']} {fall}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  python scripts/eval/regression_guard.py --model Qwen/Qwen3-4B-Instruct-2507 "
        "--after runs/grpo-1/checkpoint-* --out runs/grpo-1/guard.json\n"
        "  python scripts/eval/regression_guard.py --endpoint http://127.0.0.1:8000/v1 --model base --after planner "
        "--out runs/guard.json",
    )
    parser.add_argument("--model", required=True, help="the model before: folder or hub id; with --endpoint its name")
    parser.add_argument("--adapter", help="adapter of the model before, as the SFT adapter that GRPO began from")
    parser.add_argument("--after", nargs="*", default=[], metavar="CHECKPOINT", help="what to compare with it")
    parser.add_argument("--backend", choices=BACKENDS, default=BACKENDS[0], help="what runs it (default %(default)s)")
    parser.add_argument("--endpoint", metavar="URL", help="OpenAI-compatible API (key in PLANNER_API_KEY)")
    parser.add_argument("--items", type=Path, default=DEFAULT_ITEMS, help="the questions (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for scores and answers")
    args = parser.parse_args()
    if args.endpoint and args.adapter:
        parser.error("--adapter is for local models: with --endpoint name the served adapter as --model")
    try:
        items = read_items(args.items)
        settings = Settings.from_env()
        if args.endpoint:
            answers = endpoint_answers(items, args.endpoint, settings)
        else:
            answers = local_answers(items, args.model, args.adapter, args.backend)
        result = judge(items, args.model, args.after, answers)
    except (OSError, ValueError) as error:
        print(f"no verdict: {error}", file=sys.stderr)
        return 2
    result["items_sha256"] = hashlib.sha256(args.items.read_bytes()).hexdigest()
    write_atomically(args.out, json_text(result))
    print(text_of(result))
    return 1 if any(one["warning"] for one in result["checkpoints"]) else 0


if __name__ == "__main__":
    sys.exit(main())
