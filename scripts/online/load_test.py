"""Load a planner server and find lost and crossed answers: each request's greedy answer is known before.

First every distinct prompt of --data is asked alone, one at a time. Then --requests of them are asked --concurrency at
a time. A request is *lost* when no answer came, an empty one, or none at the first try; *crossed* when it got another
prompt's answer instead of its own; *changed* when it got neither. Greedy decoding gives the same answer each time, so
in 32-bit arithmetic nothing changes; in half precision the other requests of a batch may move the last bit, and
--allow-changed lets that pass. Prompts that are answered alike cannot be told apart; the count of distinct answers is
printed.

Exit code 1 when an answer was lost, crossed or changed. The key comes from PLANNER_SERVER_API_KEY.
"""

import argparse
import dataclasses
import hashlib
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from scripts.eval.endpoint import Call, Endpoint, Job, ask_all
from scripts.eval.eval_planner import read_rows
from scripts.eval.evaluation_files import json_text
from scripts.eval.summary import share
from scripts.files import write_atomically
from scripts.online.channels import SERVED_NAME, SERVER_KEY
from swift_plugin.settings import Settings

PERCENTILES = (50, 90, 95, 99)
BINS = 10  # of the printed histogram
BAR = 40  # characters of its longest bar
MOST_SHOWN = 5


def jobs(rows: Sequence[Mapping[str, Any]], requests: int) -> list[Job]:
    """`requests` calls over the rows, in turn; `sample` tells the calls of one row apart."""
    return [
        Job(rows[n % len(rows)]["id"], "greedy", n // len(rows), rows[n % len(rows)]["messages"], seed=0)
        for n in range(requests)
    ]


def ask(endpoint: Endpoint, asked: Sequence[Job], label: str) -> tuple[list[Call], float]:
    """The calls in the order of the jobs, and the seconds all of them took."""
    done: dict[tuple[str, str, int], Call] = {}

    def keep(call: Call) -> None:
        done[call.key] = call

    started = time.perf_counter()
    ask_all(endpoint, asked, label=label, keep=keep)
    return [done[job.mode, job.id, job.sample] for job in asked], time.perf_counter() - started


def answers(calls: Sequence[Call]) -> dict[str, str]:
    """The answer of each prompt asked alone, by its id. Raises ValueError when one got none."""
    for call in calls:
        if call.completion is None:
            raise ValueError(f"{call.id} got no answer when it was asked alone: {call.reason}")
    return {call.id: call.completion for call in calls if call.completion is not None}


def judge(alone: Mapping[str, str], calls: Sequence[Call]) -> dict[str, Any]:
    """Lost, crossed and changed requests, JSON-ready.

    Args:
        alone: the answer of each prompt asked alone, by its id.
        calls: the calls under load.
    """
    owners: dict[str, list[str]] = {}
    for identity, answer in alone.items():
        owners.setdefault(answer, []).append(identity)
    found: dict[str, list[dict[str, Any]]] = {"lost": [], "crossed": [], "changed": []}
    for call in calls:
        about = {"id": call.id, "sample": call.sample}
        if call.completion is None or call.tries > 1:
            found["lost"].append({**about, "reason": call.reason or f"answered at try {call.tries}"})
        elif not call.completion.strip() and alone[call.id].strip():
            found["lost"].append({**about, "reason": "an answer without text"})
        elif call.completion != alone[call.id]:
            of = owners.get(call.completion)
            kind = "crossed" if of else "changed"
            found[kind].append({**about, "got": call.completion, "own": alone[call.id], **({"of": of} if of else {})})
    counts = {kind: len(items) for kind, items in found.items()}
    return {
        "requests": len(calls),
        **counts,
        "right": share(len(calls) - sum(counts.values()), len(calls)),
        "distinct_answers": share(len(owners), len(alone)),
        "faults": found,
    }


def distribution(seconds: Sequence[float]) -> dict[str, Any]:
    """Latency in seconds: mean, percentiles, extremes and a histogram; empty where nothing was answered."""
    if not seconds:
        return {}
    counts, edges = np.histogram(seconds, bins=BINS)
    return {
        "mean": float(np.mean(seconds)),
        **{f"p{p}": float(np.percentile(seconds, p)) for p in PERCENTILES},
        "min": float(min(seconds)),
        "max": float(max(seconds)),
        "histogram": [
            {"from": float(low), "to": float(high), "count": int(count)}
            for (low, high), count in zip(pairwise(edges), counts, strict=True)
        ],
    }


def page(result: Mapping[str, Any]) -> str:
    """The result as text: verdict, rates, percentiles and the histogram."""
    found, latency = result["answers"], result["latency_s"]
    lines = [
        f"{found['requests']} requests at concurrency {result['concurrency']}: {found['right']['count']} right, "
        f"{found['lost']} lost, {found['crossed']} crossed, {found['changed']} changed",
        f"distinct answers: {found['distinct_answers']['count']} of {found['distinct_answers']['of']} prompts",
        f"{result['requests_per_second']:.2f} requests a second over {result['seconds']:.1f} s",
    ]
    if latency:
        shown = ("mean", *(f"p{p}" for p in PERCENTILES), "max")
        lines.append("latency s: " + "  ".join(f"{name} {latency[name]:.3f}" for name in shown))
        most = max(part["count"] for part in latency["histogram"])
        for part in latency["histogram"]:
            bar = "#" * round(BAR * part["count"] / most)
            lines.append(f"  {part['from']:8.3f} - {part['to']:8.3f}  {part['count']:4d} {bar}".rstrip())
    for kind, items in found["faults"].items():
        lines += [f"{kind}: {one}" for one in items[:MOST_SHOWN]]
    return "\n".join(lines)


def check_messages(row: Mapping[str, Any]) -> None:
    """Raises ValueError, with the row's id, when its prompt cannot be asked."""
    messages = row["messages"]
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise ValueError(f"{row['id']!r} has no list of messages: make the set with scripts/data/")


def run(args: argparse.Namespace) -> int:
    settings = Settings.from_env()
    asked = read_rows(args.data)
    for row in asked:
        check_messages(row)
    by_prompt = {str(row["messages"]): row for row in asked}
    rows = list(by_prompt.values())[: args.requests]
    many = Endpoint.from_settings(args.url, args.model, settings, key_variable=SERVER_KEY, concurrency=args.concurrency)
    many = dataclasses.replace(many, retry_budget_s=many.timeout_s)  # a second try is a lost answer already
    single = dataclasses.replace(many, concurrency=1)
    answers(ask(single, jobs(rows, 1), "first")[0])  # a server that is down is not waited for prompt by prompt
    before, _ = ask(single, jobs(rows, len(rows)), "alone")
    alone = answers(before)
    if len(set(alone.values())) < 2:
        raise ValueError(f"all {len(rows)} prompts get the same answer: crossing would not show; take other --data")
    calls, seconds = ask(many, jobs(rows, args.requests), "loaded")
    result = {
        "endpoint": many.public_url,
        "model": args.model,
        "data_sha256": hashlib.sha256(args.data.read_bytes()).hexdigest(),
        "concurrency": args.concurrency,
        "seconds": seconds,
        "requests_per_second": len(calls) / seconds,
        "answers": judge(alone, calls),
        "latency_s": distribution([call.latency_s for call in calls if call.latency_s is not None]),
        "latency_alone_s": distribution([call.latency_s for call in before if call.latency_s is not None]),
    }
    if args.out:
        write_atomically(args.out, json_text(result))
    print(page(result))
    found = result["answers"]
    return 1 if found["lost"] or found["crossed"] or (found["changed"] and not args.allow_changed) else 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/online/load_test.py --url http://127.0.0.1:8010/v1 "
        "--data build/demo/dev92.jsonl --out runs/load.json",
    )
    parser.add_argument("--url", required=True, help="base URL of the server, with /v1")
    parser.add_argument("--model", default=SERVED_NAME, help=f"the model's name there (default {SERVED_NAME})")
    parser.add_argument("--data", type=Path, required=True, help="prompt set (dev92.jsonl)")
    parser.add_argument("--requests", type=int, default=200, help="requests under load (default 200)")
    parser.add_argument("--concurrency", type=int, default=8, help="requests at a time (default 8)")
    parser.add_argument("--allow-changed", action="store_true", help="changed answers are not bad (half precision)")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    if args.requests < 2:
        parser.error(f"--requests {args.requests}: use 2 or more")
    try:
        return run(args)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
