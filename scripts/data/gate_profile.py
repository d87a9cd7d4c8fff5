"""What a source's sessions look like in numbers, to be read beside the anchors' own."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.data.near_duplicates import normalised
from scripts.data.sessions import Session, turn_texts

COLUMNS = ("sessions", "length_median", "length_p90", "turns_mean", "multi_turn", "budget", "exclusion", "no_category")
SHARES = ("multi_turn", "budget", "exclusion", "no_category")


def profile(sessions: Sequence[Session]) -> dict[str, Any]:
    """Counts and shares of a source.

    `length_*`: letters, digits and characters of the last turn. The last three are shares of the sessions whose last
    turn has a golden (None where none has): a sum, an uncertain sum or a lifted limit; a hard exclusion; a category
    that cannot be known.
    """
    lengths = [len(normalised(turn_texts(session)[-1])) for session in sessions]
    goldens = [one for session in sessions if (one := session["turns"][-1]["golden"]) is not None]

    def share(holds: Sequence[bool]) -> float | None:
        return sum(holds) / len(holds) if holds else None

    return {
        "sessions": len(sessions),
        "length_median": statistics.median(lengths) if lengths else None,
        "length_p90": sorted(lengths)[int(0.9 * (len(lengths) - 1))] if lengths else None,
        "turns_mean": statistics.fmean(len(session["turns"]) for session in sessions) if sessions else None,
        "multi_turn": share([len(session["turns"]) > 1 for session in sessions]),
        "budget": share([_speaks_of_money(one) for one in goldens]),
        "exclusion": share([bool(one["exclude_expected"]) for one in goldens]),
        "no_category": share([one["category"] is None for one in goldens]),
    }


def _speaks_of_money(golden: Mapping[str, Any]) -> bool:
    return bool(golden["budget_amount"] is not None or golden["clear_budget"] or golden.get("budget_uncertain"))


def profile_table(profiles: Mapping[str, Mapping[str, Any]]) -> str:
    """Profiles by name as a text table, one source a line."""
    rows = [["source", *COLUMNS]]
    for name, one in profiles.items():
        rows.append([name, *(_cell(column, one[column]) for column in COLUMNS)])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _cell(column: str, value: float | None) -> str:
    if value is None:
        return "-"
    if column in SHARES:
        return f"{value:.0%}"
    return f"{value:g}" if isinstance(value, int) else f"{value:.1f}"
