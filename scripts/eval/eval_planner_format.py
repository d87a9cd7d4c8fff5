"""Judge the format of an evaluation: the share of completions with format exactly 1, against the acceptance line 98 %.

Reads the files of eval_planner.py. The parse rate stands apart from the format rate; violations are counted by kind;
each field part is observed only where it is judged: a record whose golden abstains is not wrong. The greedy pass
decides; samples, where there are any, are shown beside it. Exit 1 below the line.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scripts.eval.evaluation_files import MODES, json_text, load
from scripts.eval.format_violations import violations
from scripts.eval.summary import share
from scripts.files import write_atomically

ACCEPTANCE = 0.98
EXAMPLES = 3
FIELD_PARTS = ("category", "domains_f1", "budget")

Record = Mapping[str, Any]


def format_report(records: Sequence[Record]) -> dict[str, Any]:
    """Format rate, parse rate, violations by kind and field observations of one decoding mode.

    `violations[kind]` = `{"count", "of", "share", "ids"}` over all completions, most frequent first; one completion may
    stand in several kinds, and `ids` names up to 3 records. `fields[part]`: `{"right", "judged", "share", "mean",
    "abstained", "unparsed"}`; right is a full score, `share` and `mean` are over the judged completions, which with
    the abstained and the unparsed ones make up all.
    """
    samples = [(record, sample) for record in records for sample in record["samples"]]
    counts: Counter[str] = Counter()
    ids: dict[str, list[str]] = {}
    for record, sample in samples:
        for kind in violations(sample["plan"], sample["issues"]):
            counts[kind] += 1
            if record["id"] not in ids.setdefault(kind, []):
                ids[kind].append(record["id"])
    exact = sum(sample["breakdown"]["format"] == 1.0 for _, sample in samples)
    return {
        "format_rate": share(exact, len(samples)),
        "parse_rate": share(sum(sample["plan"] is not None for _, sample in samples), len(samples)),
        "violations": {
            kind: {**share(count, len(samples)), "ids": ids[kind][:EXAMPLES]} for kind, count in counts.most_common()
        },
        "fields": {part: _field(part, [sample for _, sample in samples]) for part in FIELD_PARTS},
    }


def _field(part: str, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    parsed = [sample for sample in samples if sample["plan"] is not None]
    scores = [score for sample in parsed if (score := sample["breakdown"][part]) is not None]
    right = sum(score == 1.0 for score in scores)
    return {
        "right": right,
        "judged": len(scores),
        "share": right / len(scores) if scores else None,
        "mean": float(np.mean(scores)) if scores else None,
        "abstained": len(parsed) - len(scores),
        "unparsed": len(samples) - len(parsed),
    }


def accepted(report: Mapping[str, Any]) -> bool:
    return report["format_rate"]["share"] >= ACCEPTANCE


def text_of(mode: str, report: Mapping[str, Any]) -> str:
    """The report of one decoding mode for people."""
    rate, parse = report["format_rate"], report["parse_rate"]
    lines = [
        f"{mode}: format {rate['count']}/{rate['of']} = {rate['share']:.2%} (line {ACCEPTANCE:.0%})  "
        f"parse {parse['count']}/{parse['of']} = {parse['share']:.2%}"
    ]
    lines += [
        f"  {kind}: {item['count']} ({', '.join(item['ids'])}{', …' if item['count'] > len(item['ids']) else ''})"
        for kind, item in report["violations"].items()
    ] or ["  no violation"]
    for part, seen in report["fields"].items():
        mean = "–" if seen["mean"] is None else f"{seen['mean']:.3f}"
        lines.append(
            f"  {part}: right {seen['right']} of {seen['judged']} judged, mean {mean}; "
            f"{seen['abstained']} abstain, {seen['unparsed']} unparsed"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/eval/eval_planner_format.py runs/eval/sft",
    )
    parser.add_argument("prefix", help="evaluation: PREFIX of PREFIX.summary.json")
    parser.add_argument("--json", type=Path, help="file for the same numbers (default PREFIX.format.json)")
    args = parser.parse_args()
    try:
        evaluation = load(args.prefix)
    except (OSError, ValueError) as error:
        print(f"no format report: {error}", file=sys.stderr)
        return 2
    reports = {mode: format_report(evaluation[mode]) for mode in MODES if mode in evaluation}
    for mode, report in reports.items():
        print(text_of(mode, report))
    verdict = accepted(reports["greedy"])
    print(f"greedy format rate is {'at or above' if verdict else 'BELOW'} {ACCEPTANCE:.0%}")
    summary = evaluation["summary"]
    result = {
        "evaluation": args.prefix,
        "records_sha256": {mode: summary[mode]["records_sha256"] for mode in reports},
        "acceptance": ACCEPTANCE,
        "accepted": verdict,
        **reports,
    }
    write_atomically(args.json or Path(f"{args.prefix}.format.json"), json_text(result))
    return 0 if verdict else 1


if __name__ == "__main__":
    sys.exit(main())
