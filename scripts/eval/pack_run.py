"""Pack a run into one checksummed archive, or check one: log, traces, evaluations, manifest and adapter.

What an evaluation or a manifest refers to (record files, dev and training sets, reward file) is packed with it, found
by its sha256. Evaluations that stand outside the run folder are named by --evaluation. Full weights are left out
unless --weights asks for them; the archive says so. The same files give the same archive, byte for byte.

Exit codes: 0 whole; 1 something is missing or changed (the archive is written all the same, and says what); 2 wrong
use, or a file that changes while it is packed.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.eval.evaluation_files import MODES, records_path, summary_path
from scripts.eval.run_archive import Selection, check_archive, gather, select, write_archive
from swift_plugin.settings import Settings


def add_evaluations(selection: Selection, prefixes: Sequence[Path]) -> None:
    """Add the files of evaluations from outside the run; raises ValueError for one that is gone or named twice."""
    for prefix in prefixes:
        if not summary_path(prefix).is_file():
            raise ValueError(f"{summary_path(prefix)} does not exist; give the prefix of eval_planner.py's --out")
        for file in (summary_path(prefix), *(records_path(prefix, mode) for mode in MODES)):
            name = f"evaluations/{file.name}"
            if name in selection.files:
                raise ValueError(f"two evaluations are called {prefix.name}; rename one")
            if file.is_file():
                selection.files[name] = file


def pack(run: Path, out: Path, evaluations: Sequence[Path], weights: bool) -> int:
    selection = select(run, weights)
    add_evaluations(selection, evaluations)
    if not selection.files:
        raise ValueError(f"{run} holds no log, evaluation, manifest or adapter")
    sums, missing = gather(selection, Settings.from_env().reward_file)
    scratch = out.with_name(out.name + ".partial")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_archive(scratch, run.resolve().name, selection, sums, missing)
        os.replace(scratch, out)
    finally:
        scratch.unlink(missing_ok=True)
    print(f"{out}: {len(sums)} files, {out.stat().st_size / 2**20:.1f} MiB")
    report(missing, selection.left_out)
    return 1 if missing else 0


def report(problems: Sequence[str], left_out: Sequence[str]) -> None:
    for item in left_out:
        print(f"  left out: {item}")
    for problem in problems:
        print(f"  MISSING OR CHANGED: {problem}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/eval/pack_run.py runs/demo-seed42 --out runs/demo-seed42.tar.gz\n"
        "  python scripts/eval/pack_run.py --check runs/demo-seed42.tar.gz",
    )
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("--out", type=Path, metavar="FILE.tar.gz", help="archive to write (outside RUN)")
    parser.add_argument(
        "--evaluation", type=Path, action="append", default=[], metavar="PREFIX", help="evaluation outside RUN; repeat"
    )
    parser.add_argument("--weights", action="store_true", help="pack full model weights too (small models)")
    parser.add_argument("--check", type=Path, metavar="FILE.tar.gz", help="check an archive instead")
    args = parser.parse_args(argv)
    if (args.check is None) == (args.run is None) or (args.check is None) != (args.out is not None):
        parser.error("give either RUN and --out FILE.tar.gz, or --check FILE.tar.gz")
    try:
        if args.check:
            problems, left_out = check_archive(args.check)
            report(problems, left_out)
            print(f"{args.check}: " + (f"{len(problems)} problem(s)" if problems else "whole and unchanged"))
            return 1 if problems else 0
        if not args.run.is_dir():
            raise ValueError(f"{args.run} is no folder")
        if args.out.resolve().is_relative_to(args.run.resolve()):
            raise ValueError(f"{args.out} lies inside {args.run}: the archive would hold itself")
        return pack(args.run, args.out, args.evaluation, args.weights)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
