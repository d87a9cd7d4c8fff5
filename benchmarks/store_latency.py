"""A slow and failing store: throughput and retries under 0 to 500 ms of latency with 5 % failures, and the rewards.

The store is the tests' HTTP server, not Qdrant. Latency is drawn evenly up to the stated one; a failure is a 503, a
reset connection or an answer cut in half. Every run scores the same steps with no search known before; its rewards have
to be those of the run without latency and faults, to the bit.
"""

import argparse
import logging
import random
import sys
import time
from typing import Any

from bench import Line, Measured, main
from inputs import Step, environment, forget, import_test_servers, real_step, store, with_keywords

from swift_plugin.stores import QdrantStore

ITEMS = 2_000
PROMPTS = 2  # of 8 completions a step: small steps make many requests, and so many failures
STEPS = 60
LATENCIES_MS = (0, 100, 250, 500)
FAILURES = 0.05
SEED = 7
SPARE = 4  # faults prepared for each request: retries draw too


def steps_of(count: int) -> list[Step]:
    """Steps whose searches are all different."""
    step = real_step("early", PROMPTS)
    return [
        step.with_completions(with_keywords(c, f"no {number} {at}") for at, c in enumerate(step.completions))
        for number in range(count)
    ]


def faults(count: int, latency_ms: float, failures: float) -> list[Any]:
    """What the next `count` requests meet, the same for the same arguments."""
    from faulty_http import Fault

    chance = random.Random(SEED)
    made = []
    for _ in range(count):
        stall = chance.uniform(0, latency_ms) / 1000
        kind = chance.choice(("status", "reset", "cut")) if chance.random() < failures else ""
        made.append(
            Fault(stall_s=stall, status=503 if kind == "status" else None, reset=kind == "reset", cut=kind == "cut")
        )
    return made


def run(server: Any, steps: list[Step], latency_ms: float, failures: float) -> tuple[dict[str, float], list[float]]:
    """Score all steps against the server; figures, and the totals of all completions."""
    server.faults.clear()
    server.requests.clear()
    server.fail(*faults(SPARE * len(steps), latency_ms, failures))
    over = QdrantStore(server.url, "products", retry_budget_s=60.0, request_timeout_s=20.0)
    totals: list[float] = []
    with environment(over, traced=False) as env:
        started = time.perf_counter()
        for number, step in enumerate(steps):
            forget(env)
            totals += [item.total for item in step.scored_by(env, number)]
        seconds = time.perf_counter() - started
    figures = {
        "latency_ms": latency_ms,
        "failures": failures,
        "requests": len(server.requests),
        "retries": len(server.requests) - len(steps),
        "seconds": seconds,
        "completions_a_second": len(totals) / seconds,
    }
    return figures, totals


def measure(args: argparse.Namespace) -> Measured:
    import_test_servers()
    from qdrant_server import serve_folder

    logging.getLogger("swift_plugin.retry").setLevel(logging.ERROR)  # retries are counted, not told one by one
    steps = steps_of(3 if args.quick else STEPS)
    latencies = (20,) if args.quick else LATENCIES_MS
    failures = 0.5 if args.quick else FAILURES
    with serve_folder(store(args.work, 600 if args.quick else ITEMS).path) as server:
        run(server, steps[:1], 0, 0.0)  # the first call loads what is loaded lazily
        clean, expected = run(server, steps, 0, 0.0)
        runs = [run(server, steps, latency, failures) for latency in latencies]
    different = sum(a != b for _, totals in runs for a, b in zip(totals, expected, strict=True))
    return Measured(
        {
            "server": "the tests' HTTP server, not Qdrant",
            "steps": len(steps),
            "completions": len(expected),
            "without_faults": clean,
            "with_faults": [figures for figures, _ in runs],
            "retries": sum(figures["retries"] for figures, _ in runs),
            "rewards_that_differ": different,
        },
        [Line("rewards that differ from those of the run without faults", different, 0)],
    )


if __name__ == "__main__":
    sys.exit(main("store_latency", __doc__, measure))
