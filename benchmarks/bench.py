"""What the benchmarks share: ratios of calls timed in one run, the lines they have to hold, and the result file.

A benchmark is a script with one function, `measure(args) -> Measured`; `main` gives it its options, times the whole,
prints the figures and writes them to `benchmarks/results/NAME.json`, with the conditions they were taken under.
"""

import argparse
import datetime
import gc
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from scripts.files import write_atomically
from swift_plugin.encoders import EncoderError
from swift_plugin.reward_loader import reward_sha256
from swift_plugin.settings import CHECKOUT, Settings
from swift_plugin.stores import StoreError

RESULTS = CHECKOUT / "benchmarks" / "results"
WORK = CHECKOUT / "build" / "bench"  # stores and worlds that the benchmarks build once
PACKAGES = ("numpy", "qdrant-client", "qdrant-edge-py", "httpx")


@dataclass(frozen=True)
class Line:
    """One line that a figure has to hold: `measured` is at most `limit`, or at least."""

    name: str
    measured: float
    limit: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, with the verdict."""
        line = f"{'>=' if self.at_least else '<='} {self.limit:g}"
        return {"name": self.name, "measured": rounded(self.measured), "line": line, "holds": self.holds}


@dataclass(frozen=True)
class Measured:
    """What one benchmark found: figures (JSON-ready, units in their names) and the lines among them."""

    figures: Mapping[str, Any]
    lines: Sequence[Line] = ()
    notes: Sequence[str] = field(default=())


def rounded(value: Any) -> Any:
    """Floats to four significant digits, also inside lists and dicts: more would be noise."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {str(key): rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


def in_turn(
    rounds: int, calls: Mapping[str, Callable[[], Any]], clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Milliseconds of each call, `rounds` times in turn after one unrecorded round.

    In turn, so that a change of the machine's speed meets all of them and their ratios stand. `time.thread_time` as the
    clock counts this thread's own CPU time: for what waits for nothing, it leaves out what else the machine does.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            gc.collect()
            started = clock()
            call()
            if number:
                taken[name].append((clock() - started) * 1000)
    return taken


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Median of the ratios of each round: both figures of a round were taken in the same second or two."""
    return median(a / b for a, b in zip(above, below, strict=True))


def conditions() -> dict[str, Any]:
    """The machine and the code; compare figures of two result files only where these agree."""
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "niceness": os.nice(0),
        "load_average_before": rounded(os.getloadavg()[0]),
        "packages": packages,
        "reward_sha256": reward_sha256(Settings().reward_file),
    }


def main(
    name: str,
    doc: str,
    measure: Callable[[argparse.Namespace], Measured],
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> int:
    """Run one benchmark as a command; 1 when a line does not hold at full size, 2 for a wrong environment."""
    parser = argparse.ArgumentParser(
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"example:\n  python benchmarks/{name}.py",
    )
    parser.add_argument("--quick", action="store_true", help="smallest size: shows that it works, judges nothing")
    parser.add_argument("--out", type=Path, help=f"(benchmarks/results/{name}.json; --quick: build/bench/quick)")
    parser.add_argument("--work", type=Path, default=WORK, help="where stores are built and kept (build/bench)")
    parser.set_defaults(result=name)  # an option may choose another
    add_options(parser)
    args = parser.parse_args()
    args.out = args.out or (args.work / "quick" if args.quick else RESULTS) / f"{args.result}.json"
    surroundings = conditions()
    started = time.perf_counter()
    try:
        found = measure(args)
    except (OSError, ValueError, StoreError, EncoderError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    result = {
        "benchmark": args.result,
        "quick": args.quick,
        "made": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes"),
        "took_s": rounded(time.perf_counter() - started),
        "conditions": surroundings,
        "lines": [line.to_dict() for line in found.lines],
        "figures": rounded(found.figures),
        "notes": list(found.notes),
    }
    write_atomically(args.out, json.dumps(result, ensure_ascii=False, indent=1) + "\n")
    print(json.dumps(result["figures"], ensure_ascii=False))
    for line in result["lines"]:
        verdict = "not judged" if args.quick else "holds" if line["holds"] else "MISSED"
        print(f"{line['name']}: {line['measured']:g} ({line['line']}) {verdict}")
    return 1 if not args.quick and not all(line.holds for line in found.lines) else 0
