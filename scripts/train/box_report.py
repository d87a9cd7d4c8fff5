"""The record of box_check.sh: what each check did, what this machine could not do, and one JSON file of all.

    python -m scripts.train.box_report add --dir runs/box-1 --name memory_sft --code 0 --seconds 80 -- python ...
    python -m scripts.train.box_report finish --dir runs/box-1

Meant for box_check.sh, which runs the commands. `add` reads the check's log (NAME.log) and result (NAME.json) in --dir.
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.files import write_atomically
from scripts.train.swift_args import CHECKOUT, split_at_dashes

FINE, BAD, CANNOT, BROKEN = "fine", "bad", "cannot", "broken"
REPORT = "box_check.json"
FORMAT = 1
BY_CODE = {0: FINE, 1: BAD, 2: CANNOT}  # the exit codes of every script of this kit
TIME_OUT = 124  # coreutils' timeout
SUPERVISOR = "planner: "  # lines of supervise.py's own


def state_of(code: int) -> str:
    """What an exit code says: fine, bad verdict, cannot be done here; anything else is a check that broke."""
    return BY_CODE.get(code, BROKEN)


def last_words(log: str) -> str:
    """The last line that the check itself printed."""
    lines = [line.strip() for line in log.replace("\r", "\n").split("\n")]
    return next((line for line in reversed(lines) if line and not line.startswith(SUPERVISOR)), "")


def entry(
    name: str,
    command: Sequence[str],
    *,
    code: int | None,
    seconds: float,
    said: str,
    result: Any = None,
    damaged: str = "",
) -> dict[str, Any]:
    """One check of the report. `code` None: the machine lacks what `said` names, and nothing was run.

    `damaged` says what is wrong with its result file: whatever its exit code, such a check broke.
    """
    state = CANNOT if code is None else state_of(code)
    if damaged:
        state, said = BROKEN, f"{damaged}; last line: {said}"
    if code == TIME_OUT:
        said = f"not done after {seconds:.0f} s; last line: {said}"
    return {
        "name": name,
        "state": state,
        "said": said,
        "exit_code": code,
        "seconds": round(seconds, 1),
        "command": shlex.join(command),
        "result": result,
    }


def verdict(entries: Iterable[Mapping[str, Any]]) -> int:
    """Exit code of the whole: 1 if a check is bad or broke, else 2 if one could not be done here, else 0.

    >>> verdict([{"state": "fine"}, {"state": "cannot"}])
    2
    """
    states = {item["state"] for item in entries}
    if states & {BAD, BROKEN}:
        return 1
    return 2 if CANNOT in states or not states else 0


def add(folder: Path, name: str, command: Sequence[str], code: int, seconds: float) -> None:
    """Record a check that was run, with its result file where it left one."""
    log = folder / f"{name}.log"
    said = last_words(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else ""
    result_file = folder / f"{name}.json"
    result, damaged = None, ""
    if result_file.is_file():
        try:
            result = json.loads(result_file.read_text(encoding="utf-8"))
        except ValueError as error:  # half written: the disk is full, or the check was killed
            damaged = f"{result_file.name} is no JSON ({error})"
    made = entry(name, command, code=code, seconds=seconds, said=said, result=result, damaged=damaged)
    _record(folder, made)


def _record(folder: Path, made: Mapping[str, Any]) -> None:
    # One file a check, in the order in which they were made: a broken-off run keeps what was done.
    number = len(list(folder.glob("*.check")))
    write_atomically(folder / f"{number:02d}-{made['name']}.check", json.dumps(made, ensure_ascii=False))


def finish(folder: Path) -> int:
    """Write the report, print its page, and return the exit code."""
    from scripts.train.manifest import git_state, hardware, package_versions  # a second, which `add` need not wait

    entries = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.check"))]
    code = verdict(entries)
    report = {
        "format": FORMAT,
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "exit_code": code,
        "checks": entries,
        "hardware": hardware(),
        "packages": package_versions(),
        "git": git_state(CHECKOUT),
    }
    path = folder / REPORT
    write_atomically(path, json.dumps(report, ensure_ascii=False, indent=2) + "\n")
    for item in entries:
        said = "" if item["state"] == FINE else f"  {item['said']}"
        print(f"{item['state']:<7} {item['name']:<16}{item['seconds']:>8.0f} s{said}")
    print(f"report: {path}")
    return code


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python -m scripts.train.box_report finish --dir runs/box-check-20260101-120000\n"
        "what follows -- is the check's command (add, skip)\n"
        "exit code of finish: 0 all fine, 1 a check is bad or broke, 2 one could not be done on this machine",
    )
    parser.add_argument("what", choices=("add", "skip", "finish"))
    parser.add_argument("--dir", type=Path, required=True, help="folder of the report")
    parser.add_argument("--name", default="", help="the check (add, skip)")
    parser.add_argument("--code", type=int, default=0, help="its exit code (add)")
    parser.add_argument("--seconds", type=float, default=0.0, help="how long it took (add)")
    parser.add_argument("--reason", default="", help="what the machine lacks (skip)")
    own, command = split_at_dashes(sys.argv[1:] if argv is None else argv)
    options = parser.parse_args(own)
    if not options.dir.is_dir():
        parser.error(f"--dir {options.dir} is no folder")
    if options.what == "finish":
        return finish(options.dir)
    if options.what == "skip":
        _record(options.dir, entry(options.name, command, code=None, seconds=0.0, said=options.reason))
    else:
        add(options.dir, options.name, command, options.code, options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
