"""A step of 256 completions over HTTP: one request a step against one request a completion, same server, same client.

The server is the tests' small one in a process of its own, not Qdrant: only the ratio says something, and only about
the requests that batching saves. Its catalogue is small and searched exactly, which takes as long a search as the index
of a large one does. `step` compares whole `score()` calls, `search` the store's calls alone; one by one asks for every
completion with a search, known or not, with one client that stays open.

The saving is what a request costs besides its search. On this machine's own loopback, with a server in Python, that is
some 5 ms, and one search with its JSON takes this server about 1 ms: the ratio cannot reach 15 there, and that line is
missed. `by_latency` measures the same with a wait before every answer, as a network or a busy server adds.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench import CHECKOUT, Line, Measured, in_turn, main, ratio
from inputs import Step, environment, forget, real_step, searches_of, store

from swift_plugin.stores import QdrantStore

ITEMS = 2_000
ROUNDS = 5
LATENCIES_MS = (5, 20)


@contextmanager
def served(folder: Path, latency_ms: float = 0.0) -> Iterator[QdrantStore]:
    """A store at the tests' Qdrant server on this folder, as long as the block runs."""
    command = [sys.executable, str(CHECKOUT / "tests" / "qdrant_server.py"), "--store", str(folder)]
    command += ["--latency-ms", str(latency_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise OSError(f"the test server on {folder.name} did not start: {' '.join(command[1:2])}")
        yield QdrantStore(url, "products", retry_budget_s=60.0, request_timeout_s=60.0)
    finally:
        process.terminate()
        process.wait()


def compare(over: QdrantStore, step: Step, rounds: int) -> dict[str, object]:
    """Milliseconds both ways, and how many times faster the batch is."""
    with environment(over) as env:
        step.scored_by(env)
        limit = env.reward.TOP_TITLES
        distinct = env.encoder.encode(searches_of(env))
        every = env.encoder.encode([row["search"] for row in env.last_rows if row["search"]])
        singles = [
            Step((completion,), (golden,), (text,), (record,))
            for completion, golden, text, record in zip(
                step.completions, step.goldens, step.texts, step.ids, strict=True
            )
        ]

        def batch() -> None:
            forget(env)
            step.scored_by(env)

        def one_by_one() -> None:
            for single in singles:
                forget(env)
                single.scored_by(env)

        taken = in_turn(
            rounds,
            {
                "step_batch": batch,
                "step_one_by_one": one_by_one,
                "search_batch": lambda: over.search_batch(distinct, limit),
                "search_one_by_one": lambda: [over.search_batch(row[None], limit) for row in every],
            },
        )
    return {
        "completions": len(step),
        "requests_one_by_one": len(every),
        "distinct_searches": len(distinct),
        **{f"{name}_ms": median(values) for name, values in taken.items()},
        "step_times_faster": ratio(taken["step_one_by_one"], taken["step_batch"]),
        "search_times_faster": ratio(taken["search_one_by_one"], taken["search_batch"]),
    }


def measure(args: argparse.Namespace) -> Measured:
    items, rounds, prompts = (600, 1, 2) if args.quick else (ITEMS, ROUNDS, 32)
    folder = store(args.work, items).path
    figures: dict[str, object] = {"server": "the tests' HTTP server, not Qdrant", "items": items, "rounds": rounds}
    lines = []
    with served(folder) as over:
        for phase in ("early", "late"):
            found = compare(over, real_step(phase, prompts), rounds)
            figures[phase] = found
            name = f"one request a step, times faster than one a completion ({phase} steps, test server)"
            lines.append(Line(name, float(str(found["step_times_faster"])), 15.0, at_least=True))
    by_latency = {}
    for latency in LATENCIES_MS:
        with served(folder, latency) as over:
            by_latency[f"{latency} ms"] = compare(over, real_step("early", prompts), 1)
    return Measured({**figures, "by_latency": by_latency}, lines)


if __name__ == "__main__":
    sys.exit(main("http_batching", __doc__, measure))
