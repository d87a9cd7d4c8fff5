"""Run every benchmark, one after the other, and put the figures of all result files into benchmarks/README.md.

About twenty minutes on 2 cores, most of it building stores, which are kept under build/bench. Nothing else should run
on the machine meanwhile. --full also runs the catalogue's full size and 10,000 steps: an hour more, 20 GB of memory,
12 GB of disk. --table writes the README's table from the results that are there, and runs nothing.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench import RESULTS

from scripts.files import write_atomically

HERE = Path(__file__).parent
README = HERE / "README.md"
BEGIN, END = "<!-- figures: written by run_all.py -->\n", "<!-- end of figures -->\n"
BENCHMARKS = (
    "scoring_step", "http_batching", "repeated_searches", "reward_share", "start_up", "store_latency", "long_run",
    "embedded_store", "growth",
)  # fmt: skip
FULL = {"long_run": ["--steps", "10000"], "embedded_store": ["--catalogue"]}
ORDER = ("embedded_store_catalogue",)  # results beside those of BENCHMARKS


def results(folder: Path) -> list[dict[str, Any]]:
    """The result files that are there, in the order of the benchmarks."""
    files = [folder / f"{name}.json" for name in (*BENCHMARKS, *ORDER)]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]


def table(found: list[dict[str, Any]]) -> str:
    """The lines of all results as a Markdown table; of a result without a line its figures."""
    rows = ["| benchmark | what | measured | line | |", "|---|---|---|---|---|"]
    for result in found:
        name = f"[`{result['benchmark']}`](results/{result['benchmark']}.json)"
        for line in result["lines"]:
            verdict = "holds" if line["holds"] else "**missed**"
            rows.append(f"| {name} | {line['name']} | {line['measured']:g} | {line['line']} | {verdict} |")
        if not result["lines"]:
            figures = ", ".join(f"{key} {value:.4g}" for key, value in result["figures"].items())
            rows.append(f"| {name} | no line is stated: {figures} | | | |")
    return "\n".join(rows) + "\n"


def with_table(readme: str, found: list[dict[str, Any]]) -> str:
    """The README with the table between its two marks replaced."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after and END not in rest:
        raise ValueError(f"{README.name} has lost its marks {BEGIN.strip()} and {END.strip()}")
    return f"{before}{BEGIN}{table(found)}{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python benchmarks/run_all.py",
    )
    parser.add_argument("--full", action="store_true", help="also the full sizes")
    parser.add_argument("--table", action="store_true", help="write the README's table only")
    args = parser.parse_args()
    codes: dict[str, int] = {}
    for name in () if args.table else BENCHMARKS:
        runs = [[], FULL[name]] if args.full and name in FULL else [[]]
        for options in runs:
            print(f"--- {' '.join([name, *options])}", flush=True)
            started = time.perf_counter()
            code = subprocess.run([sys.executable, str(HERE / f"{name}.py"), *options], check=False).returncode
            codes[" ".join([name, *options])] = code
            print(f"--- {time.perf_counter() - started:.0f} s", flush=True)
    write_atomically(README, with_table(README.read_text(encoding="utf-8"), results(RESULTS)))
    for name, code in codes.items():
        if code:
            print(f"{name} ended with {code}", file=sys.stderr)
    return max(codes.values(), default=0)


if __name__ == "__main__":
    sys.exit(main())
