"""Print how the budget rules agree with a table of price expressions (JSONL: text, value, lo, hi, currency, qualifier).

An exact row must be read to the value; a fuzzy row (range, approx) may also be contained in the interval read, or
abstained from. Ends with 1 when a row disagrees, 2 when the file cannot be used.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reward.budget import BudgetReading, parse_budget
from scripts.files import json_lines

UNKNOWN_CURRENCY = "unknown(元/$)"  # what a suite writes where 块 may be any currency


def agreement(case: dict[str, Any], reading: BudgetReading) -> str:
    """How a reading agrees with one price case: exact, bound, contains, abstains or WRONG."""
    if case["currency"] not in (None, UNKNOWN_CURRENCY) and reading.currency not in (None, case["currency"]):
        return "WRONG"
    exact = case["qualifier"] in ("exact", "min", "max", "approx", None) and case["value"] is not None
    if case["qualifier"] == "min":
        return "bound" if reading.low == (case["value"] if exact else case["lo"]) and not reading.high else "WRONG"
    if exact:
        if reading.amount != case["value"]:
            return "abstains" if case["qualifier"] == "approx" and reading.uncertain else "WRONG"
        return "bound" if case["qualifier"] == "max" else "exact"
    if case["lo"] is None:
        return "abstains" if reading.uncertain else "WRONG"
    if reading.low is None or reading.high is None:
        return "abstains" if reading.amount is None else "WRONG"
    if (reading.low, reading.high) == (case["lo"], case["hi"]):
        return "exact"
    return "contains" if reading.low <= case["lo"] and reading.high >= case["hi"] else "WRONG"


def cases_table(cases: Sequence[dict[str, Any]]) -> tuple[str, int]:
    """The table of all cases, one a line, and how many rows are wrong."""
    lines, wrong = [], 0
    for case in cases:
        reading = parse_budget(case["text"])
        verdict = agreement(case, reading)
        wrong += verdict == "WRONG"
        expected = case["value"] if case["value"] is not None else f"{case['lo']}..{case['hi']}"
        read = f"amount {reading.amount}, {reading.low}..{reading.high} {reading.currency or ''}"
        lines.append(f"{verdict:9} {case['text']:24} expected {expected} {case['qualifier'] or ''}; read {read}")
    return "\n".join([*lines, f"{len(cases) - wrong} of {len(cases)} rows agree"]), wrong


def main() -> int:
    """The command; see the module."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/data/budget_cases.py price_cases.jsonl",
    )
    parser.add_argument("cases", type=Path, help="JSONL with text, value, lo, hi, currency and qualifier")
    args = parser.parse_args()
    try:
        cases = [case for _, case in json_lines(args.cases)]
        table, wrong = cases_table(cases)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{args.cases}: not a table of price cases ({error!r})", file=sys.stderr)
        return 2
    print(table)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
