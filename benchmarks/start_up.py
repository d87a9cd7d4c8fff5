"""What a start costs: `DRY_RUN=1 bash run_grpo_planner.sh` with its preflight, and the import of planner_reward.py.

The launch is judged on a set of 2,000 rows with the full prompt, a small catalogue and a nano model with a real
tokenizer. The first launch may also read ms-swift's options and count tokens by its template (both are kept under
build/cache, by version and by the data's hash); it is reported and not judged.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from bench import CHECKOUT, Line, Measured, in_turn, main
from inputs import import_test_servers

ROWS = 2_000
ROUNDS = 5
IMPORTS = 21
FILE = CHECKOUT / "reward" / "planner_reward.py"
# Timed inside a fresh interpreter, the way the product loads the file: by path.
IMPORT = """
import importlib.util, sys, time
started = time.perf_counter()
spec = importlib.util.spec_from_file_location("planner_reward", sys.argv[1])
spec.loader.exec_module(importlib.util.module_from_spec(spec))
print((time.perf_counter() - started) * 1000)
"""


def import_ms(times: int, *, compiled: bool) -> float:
    """Median milliseconds of loading the reward file, from its byte code or from its source alone."""
    taken = []
    for _ in range(times + 1):
        options = [] if compiled else ["-B", "-X", f"pycache_prefix={os.devnull}/none"]
        command = [sys.executable, *options, "-c", IMPORT, str(FILE)]
        taken.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    return median(taken[1:])


def launch_ms(folder: Path, rows: int, rounds: int) -> dict[str, float]:
    """The first and the median later launch, and the preflight of one by itself."""
    import_test_servers()
    from tests.launch_world import LaunchWorld, build_world, row, write_rows

    folder.mkdir(parents=True, exist_ok=True)
    world = LaunchWorld(folder) if (folder / "adapter").exists() else build_world(folder)  # the adapter is made last
    write_rows(world.train, [row(number) for number in range(rows)])

    def launch() -> None:
        done = world.run("run_grpo_planner.sh", DRY_RUN="1", PLANNER_ALLOW_OVERLONG="1")
        if done.returncode != 0:
            raise ValueError(f"the launcher refused the benchmark's own world: {done.stderr[-500:]}")

    started = time.perf_counter()
    launch()
    first = (time.perf_counter() - started) * 1000
    python = [sys.executable, "-c", "import scripts.train.preflight"]
    taken = in_turn(rounds, {"launch": launch, "imports": lambda: subprocess.run(python, check=True, cwd=CHECKOUT)})
    return {"first_ms": first, "launch_ms": median(taken["launch"]), "imports_ms": median(taken["imports"])}


def measure(args: argparse.Namespace) -> Measured:
    rows, rounds, imports = (16, 1, 3) if args.quick else (ROWS, ROUNDS, IMPORTS)
    imported = import_ms(imports, compiled=True)
    launched = launch_ms(args.work / "launch", rows, rounds)
    figures = {
        "import_ms": imported,
        "import_from_source_ms": import_ms(imports, compiled=False),
        "rows": rows,
        **launched,
    }
    return Measured(
        figures,
        [
            Line("import of planner_reward.py, ms", imported, 50.0),
            Line("dry launch with preflight, seconds", launched["launch_ms"] / 1000, 5.0),
        ],
    )


if __name__ == "__main__":
    sys.exit(main("start_up", __doc__, measure))
