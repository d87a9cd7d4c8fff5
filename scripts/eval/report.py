"""One HTML file that opens from disk without a network: table, curves, dimensions, comparison, exploits and samples.

RUN is a run folder (its eval/*.summary.json and its GRPO logs are read) or LABEL=PREFIX of an evaluation. The samples
are there to be read: sort by reward, by the change between two evaluations, filter by family and flag, search the text.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from scripts.eval.evaluation_files import read_json
from scripts.eval.report_data import (
    ALL_FLAGS,
    Gathered,
    comparisons,
    embedded_json,
    gather,
    incomparable,
    pairs_to_compare,
    samples,
)
from scripts.eval.report_pages import (
    comparison_section,
    curves_section,
    dimension_section,
    exploit_section,
    result_section,
)
from scripts.files import write_atomically

TEMPLATE = Path(__file__).with_name("report_template.html")


def render(
    found: Gathered, asked: Sequence[Sequence[str]], calibration: Mapping[str, Any] | None, title: str
) -> str:
    """The whole page. Raises ValueError for a pair in `asked` that names no evaluation."""
    from plotly.offline import get_plotlyjs

    pairs = pairs_to_compare(list(found.evaluations), asked)
    none = "<p>No evaluation given.</p>"
    curves = "".join(curves_section(name, run, found.log_verdicts.get(name)) for name, run in found.runs.items())
    data = {"samples": list(samples(found)), "flags": list(ALL_FLAGS), "pairs": pairs}
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(title),
        plotly=f"<script>{get_plotlyjs()}</script>" if curves else "",
        result=result_section(found, incomparable(found)) if found.evaluations else none,
        comparison=comparison_section(comparisons(found, pairs)) if found.evaluations else none,
        dimensions=dimension_section(found) if found.evaluations else none,
        curves=curves or "<p>No GRPO log given.</p>",
        exploits=exploit_section(calibration),
        data=embedded_json(data),
    )


def title_of(named: Sequence[str]) -> str:
    """The runs' folder names and the evaluations' labels."""
    return "Planner report: " + ", ".join(
        item.partition("=")[0] if "=" in item else Path(item).resolve().name for item in named
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/eval/report.py runs/demo-seed42 --out runs/demo-seed42/report.html",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folder, or LABEL=PREFIX of an evaluation")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.html", help="file to write")
    parser.add_argument(
        "--compare", nargs=2, action="append", default=[], metavar=("A", "B"),
        help="labels to compare; repeat (default: sft and grpo of each run, else the last two)",
    )  # fmt: skip
    parser.add_argument("--calibration", type=Path, metavar="FILE", help="JSON of calibrate_reward.py")
    args = parser.parse_args(argv)
    try:
        calibration = read_json(args.calibration) if args.calibration else None
        if calibration is not None and not (isinstance(calibration, dict) and "exploits" in calibration):
            raise ValueError(f"{args.calibration} holds no exploits; give the --out of calibrate_reward.py")
        page = render(gather(args.runs), args.compare, calibration, title_of(args.runs))
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(args.out, page)
    except (OSError, ValueError) as error:
        print(f"no report: {error}", file=sys.stderr)
        return 2
    print(f"{args.out}: {args.out.stat().st_size / 2**20:.1f} MiB, opens from disk")
    return 0


if __name__ == "__main__":
    sys.exit(main())
