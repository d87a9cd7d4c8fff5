"""Is evaluation B better than A, where, and is that real? Paired by record, for the total, every part and rate.

Reads the files of eval_planner.py (prefixes). Both decoding modes are judged where both sides have them. Verdicts:

  better                      the total rose beyond interval and chance, nothing fell, no part can have lost 0.05
  rose, loss not ruled out    the total rose; named parts may have lost 0.05 or more
  mixed                       something rose and something fell: both are named
  worse                       the total or a part fell, nothing rose
  no difference at this size  with the smallest difference that could have been seen

Exit codes: 0 better or no difference, in every mode; 1 worse, mixed, or a rise whose price is not ruled out; 2 files
that cannot be compared (other weights, gates, reward file, dev set, store, encoder, token limit, number of samples or,
for samples, backend, or more than 5 % of the calls failed).
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.eval.comparison import BAD, MIN_COVERAGE, compare
from scripts.eval.evaluation_files import MODES, check_comparable, json_text, load, unknown_stores
from scripts.files import write_atomically

SIDES = ("A", "B")


def asked(evaluation: Mapping[str, Any], mode: str) -> tuple[int, int]:
    """Samples a record and completions in all that one mode was to have.

    A summary of before `completion_coverage` leaves the samples to the record that has most.
    """
    summary, records = evaluation["summary"][mode], evaluation[mode]
    rows = summary["coverage"]["of"] if "coverage" in summary else len(records)
    if "completion_coverage" in summary:
        return summary["completion_coverage"]["of"] // rows, summary["completion_coverage"]["of"]
    samples = max(len(record["samples"]) for record in records)
    return samples, samples * rows


def backends(sides: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What ran each side, in words, where that differs; None where it does not."""
    found = {label: side["summary"].get("backend", "not stated") for label, side in sides.items()}
    return None if len(set(found.values())) == 1 else ", ".join(f"{label} {name}" for label, name in found.items())


def check_sampling(sides: Mapping[str, Mapping[str, Any]], mode: str) -> None:
    """Raises ValueError when the means of two evaluations cannot be held against each other in one decoding mode.

    That is where one drew another number of samples a record: their means spread differently; where another backend
    drew them, which samples from other tokens (SAMPLE_TOP_K); and where one lost more calls than MIN_COVERAGE leaves:
    which calls fail is no chance, so the rest is another dev set.

    Args:
        sides: what `load` returned, by label.
    """
    drawn = {label: asked(side, mode) for label, side in sides.items()}
    if len({samples for samples, _ in drawn.values()}) > 1:
        said = ", ".join(f"{label} has {samples}" for label, (samples, _) in drawn.items())
        raise ValueError(f"samples a record differ: {said}; evaluate again with one --samples for both")
    if mode == "samples" and (differing := backends(sides)):
        raise ValueError(
            f"samples of two backends are two kinds of sampling: {differing}; evaluate again with one --backend, or "
            "one side without --samples to compare the greedy passes"
        )
    for label, (_, of) in drawn.items():
        count = sum(len(record["samples"]) for record in sides[label][mode])
        if count < MIN_COVERAGE * of:
            raise ValueError(
                f"{label} has {count} of {of} completions in the mode {mode}, less than {MIN_COVERAGE:.0%}: calls "
                "failed (`failures` in its summary says why); evaluate again once they succeed"
            )


def compare_evaluations(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The comparison of every mode both evaluations have (what `load` returned); raises ValueError if they differ."""
    sides = dict(zip(SIDES, (a, b), strict=True))
    check_comparable(sides)
    shared = [mode for mode in MODES if mode in a and mode in b]
    if not shared:
        raise ValueError("one evaluation is greedy and the other sampled: evaluate both in one mode")
    for mode in shared:
        check_sampling(sides, mode)
    found = {mode: compare(a[mode], b[mode]) for mode in shared}
    if unknown := unknown_stores(sides):
        for result in found.values():
            result["notes"].append(unknown)
    if "greedy" in found and (differing := backends(sides)):
        note = f"the backends differ ({differing}): rounding in one of them may change a token, and a plan with it"
        found["greedy"]["notes"].append(note)
    return found


def text_of(mode: str, result: Mapping[str, Any]) -> str:
    """The comparison of one mode for people: the verdict's words over a table of every quantity."""
    lines = [f"{mode}, {result['records']} records paired: {result['words']}"]
    lines += [f"  note: {note}" for note in result["notes"]]
    lines.append(f"  {len(result['tested'])} parts and rates tested at once; {result['correction']}")
    width = max(len(name) for name in result["tested"])
    head = f"  {'':{width}}  records      A      B   change  95 % interval     p      p Holm  could see  reading"
    lines.append(head)
    for name, c in [("total", result["total"]), *result["tested"].items()]:
        corrected = "      –" if name == "total" else f"{c['p_holm']:7.4f}"
        state = "" if name == "total" else c["state"]
        lines.append(
            f"  {name:{width}}  {c['records']:7d}  {c['before']:.3f}  {c['after']:.3f}  {c['mean']:+.3f}  "
            f"[{c['low']:+.3f}, {c['high']:+.3f}]  {c['p']:.4f}  {corrected}  {c['detectable']:9.3f}  {state}".rstrip()
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/eval/compare_runs.py runs/demo-seed42/eval/sft runs/demo-seed42/eval/grpo "
        "--json runs/demo-seed42/comparison.json",
    )
    parser.add_argument("a", metavar="A", help="prefix of the evaluation to start from")
    parser.add_argument("b", metavar="B", help="prefix of the one that should be better")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the same figures here")
    args = parser.parse_args(argv)
    try:
        sides = [load(args.a), load(args.b)]
        modes = compare_evaluations(*sides)
    except (OSError, ValueError) as error:
        print(f"no comparison: {error}", file=sys.stderr)
        return 2
    print(f"A {args.a}\nB {args.b}\nB − A, default weights, no gates\n")
    print("\n\n".join(text_of(mode, result) for mode, result in modes.items()))
    if args.json:
        facts = {
            side: {"prefix": prefix, "model": data["summary"]["model"], "adapter": data["summary"]["adapter"]}
            for side, prefix, data in zip(SIDES, (args.a, args.b), sides, strict=True)
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(args.json, json_text({**facts, "modes": modes}))
    return 1 if any(result["verdict"] in BAD for result in modes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
