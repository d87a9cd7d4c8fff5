"""A step of 256 completions over HTTP: one request a step against one request a completion, same server, same client.

The server is the tests' small one in a process of its own, not Qdrant: only the ratio says something, and only about
the requests that batching saves. Its catalogue is small and searched exactly, which takes as long a search as the index
of a large one does. `step` compares whole `score()` calls, `search` the store's calls alone; one by one asks for every
completion with a search, known or not, with one client that stays open.

The saving is what a request costs besides its search, so the ratio is one of the server's as much as of the client's.
On the box that the kit comes from, 256 searches took 5.57 s one by one and 0.30 s as a batch: 22 ms a request. The line
is measured with a wait of 20 ms before every answer, which makes this server as slow. `by_wait` has the same without a
wait, on this machine's loopback, where a request costs some 5 ms and a search with its JSON about 1 ms, so that no
batching could save much more; and with 5 ms.
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
ROUNDS = 3
WAIT_MS = 20  # before every answer, where the line is measured
OTHER_WAITS_MS = (0, 5)


@contextmanager
def served(folder: Path, wait_ms: float) -> Iterator[QdrantStore]:
    """A store at the tests' Qdrant server on this folder, as long as the block runs."""
    command = [sys.executable, str(CHECKOUT / "tests" / "qdrant_server.py"), "--store", str(folder)]
    command += ["--latency-ms", str(wait_ms)]
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
    server = f"the tests' HTTP server, not Qdrant; {WAIT_MS} ms before every answer"
    figures: dict[str, object] = {"server": server, "items": items, "rounds": rounds}
    lines = []
    with served(folder, WAIT_MS) as over:
        for phase in ("early", "late"):
            found = compare(over, real_step(phase, prompts), rounds)
            figures[phase] = found
            name = f"one request a step, times faster than one a completion ({phase} steps, test server, {WAIT_MS} ms)"
            lines.append(Line(name, float(str(found["step_times_faster"])), 15.0, at_least=True))
    by_wait: dict[str, object] = {}
    for wait in OTHER_WAITS_MS:
        with served(folder, wait) as over:
            found = {phase: compare(over, real_step(phase, prompts), rounds) for phase in ("early", "late")}
            by_wait[f"{wait} ms"] = found
    return Measured({**figures, "by_wait": by_wait}, lines)


if __name__ == "__main__":
    sys.exit(main("http_batching", __doc__, measure))
