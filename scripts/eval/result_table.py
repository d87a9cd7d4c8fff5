"""The demo's last word: one table for several evaluated models on one dev set, and the difference of two of them.

Reads the files of eval_planner.py. The verdict line compares --after with --before by record; every part that fell is
named in words, so that a total that rose cannot hide it. Exit 1 when the reward did not rise beyond chance, 2 for
files that cannot be compared: another set, store or token limit, other samples a record, a record that one side lacks.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.eval.compare_runs import check_sampling
from scripts.eval.comparison import changes
from scripts.eval.evaluation_files import MODES, check_comparable, json_text, load, unknown_stores
from scripts.eval.summary import PARTS, check_paired
from scripts.files import write_atomically

HEADER = ("model", "decoding", "reward [95 %]", *PARTS, "format rate", "keywords where needed")
HEADER += ("exclusions stated", "correct abstentions")
ABSTENTIONS = "correct_abstentions_of_those_that_should"
# What the reward's total may hide.
SHARES = ("format_rate", "keywords_where_needed", "exclusions_where_expected", ABSTENTIONS)
SHARE_FALL = 0.05  # a share that lost more than a twentieth of itself is named
NUMBERS = ("mean", "low", "high", "p")  # of a change, in the JSON
FALL = 0.01  # a part that lost more than this is named; below it a dev set of 92 shows rounding


def row(label: str, mode: str, summary: Mapping[str, Any]) -> list[str]:
    reward = summary["reward"]
    cells = [label, mode, f"{reward['mean']:.4f} [{reward['low']:.4f}, {reward['high']:.4f}]"]
    for part in PARTS:
        value = summary["parts"][part]
        cells.append("–" if value["mean"] is None else f"{value['mean']:.3f} ({value['completions']})")
    needed = summary["keywords_where_needed"]
    excluded = summary["exclusions_where_expected"]
    cells += [f"{summary['format_rate']['share']:.3f}", f"{needed['count']}/{needed['of']}"]
    abstained = summary[ABSTENTIONS]
    cells += [f"{excluded['count']}/{excluded['of']}", f"{abstained['count']}/{abstained['of']}"]
    return cells


def table(evaluations: Mapping[str, Mapping[str, Any]]) -> str:
    """A Markdown table: means with the number of completions that took part in brackets."""
    rows = [list(HEADER), ["---"] * len(HEADER)]
    for label, item in evaluations.items():
        rows += [row(label, mode, item["summary"][mode]) for mode in MODES if mode in item["summary"]]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def share_fall(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """A share that fell, in words; None where it did not, or where one side has nothing to count."""
    if before["share"] is None or after["share"] is None or after["share"] >= before["share"] * (1 - SHARE_FALL):
        return None
    of = "" if before["of"] == after["of"] else f" of {before['of']}"
    return f"{name.replace('_', ' ')} fell from {before['count']}{of} to {after['count']} of {after['of']}"


def verdict(before: Mapping[str, Any], after: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """Difference after − before in one decoding mode, its interval, and the parts that fell, in words.

    Raises ValueError when the two do not hold the same records.
    """
    check_paired(before[mode], after[mode])
    total, tested = changes(before[mode], after[mode])
    parts = [change for change in tested if change.name in PARTS]
    sides = before["summary"][mode], after["summary"][mode]
    fell = [words for name in SHARES if (words := share_fall(name, *(side[name] for side in sides)))]
    fell += [
        f"{change.name} fell by {-change.mean:.3f} [{change.low:+.3f}, {change.high:+.3f}]"
        + ("" if change.high < 0 else ", which this set cannot tell from no change")
        for change in parts
        if change.mean < -FALL
    ]
    return {
        "difference": {name: getattr(total, name) for name in NUMBERS},
        "parts": {change.name: {name: getattr(change, name) for name in (*NUMBERS, "records")} for change in parts},
        "fell": fell,
        "rose": total.moved > 0,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/eval/result_table.py untrained=runs/eval/untrained sft=runs/eval/sft "
        "grpo=runs/eval/grpo --before sft --after grpo --json runs/eval/result.json",
    )
    parser.add_argument("evaluations", nargs="+", metavar="LABEL=PREFIX", help="evaluations in the order of the rows")
    parser.add_argument("--before", required=True, help="label to compare with")
    parser.add_argument("--after", required=True, help="label that should be better")
    parser.add_argument("--json", type=Path, required=True, help="file for the same numbers")
    args = parser.parse_args(argv)
    prefixes = dict(item.split("=", 1) for item in args.evaluations if "=" in item)
    if len(prefixes) != len(args.evaluations) or not {args.before, args.after} <= prefixes.keys():
        parser.error("give each evaluation once as LABEL=PREFIX, --before and --after among the labels")
    try:
        evaluations = {label: load(prefix) for label, prefix in prefixes.items()}
        check_comparable(evaluations)
        pair = {label: evaluations[label] for label in (args.before, args.after)}
        verdicts = {}
        for mode in MODES:
            if all(mode in side for side in pair.values()):
                check_sampling(pair, mode)
                verdicts[mode] = verdict(evaluations[args.before], evaluations[args.after], mode)
    except (OSError, ValueError) as error:
        print(f"no table: {error}", file=sys.stderr)
        return 2
    text = table(evaluations)
    print("default weights, no gates; n of completions in brackets\n")
    print(text + "\n")
    if unknown := unknown_stores(evaluations):
        print(f"note: {unknown}\n")
    for mode, result in verdicts.items():
        difference = result["difference"]
        print(
            f"{args.after} − {args.before}, {mode}: {difference['mean']:+.4f} "
            f"[{difference['low']:+.4f}, {difference['high']:+.4f}] (paired by record, 95 % bootstrap), "
            f"sign-flip p {difference['p']:.4f}" + ("" if result["rose"] else ": no rise beyond chance")
        )
        kept = f"no part fell by more than {FALL}, no share by more than {SHARE_FALL:.0%}"
        print("  " + ("; ".join(result["fell"]) if result["fell"] else kept))
    args.json.parent.mkdir(parents=True, exist_ok=True)
    summaries = {label: item["summary"] for label, item in evaluations.items()}
    write_atomically(args.json, json_text({"table": text, "summaries": summaries, "verdicts": verdicts}))
    return 0 if all(result["rose"] for result in verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
