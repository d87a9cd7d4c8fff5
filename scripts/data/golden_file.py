"""Golden rows (build_planner_golden.py writes them) as rows of a training or evaluation set.

    id, session      `session#turn`; family, card, source, split of the session
    text             this turn's words; prior_context: the earlier turns, oldest first
    golden           the golden record; golden_from: who decided it; status
    plan             {keywords, exclude_terms} where the maker of the row knows them, else null
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reward.planner_reward import parse_golden
from scripts.data.prompt_rows import prompt_row
from scripts.files import json_lines
from swift_plugin.rollout_env import SPLITS

GoldenRow = dict[str, Any]
Record = dict[str, Any]

KEYS = ("id", "session", "family", "card", "split", "text", "prior_context", "golden", "status", "plan")
REVIEW = "review"


def read_golden(path: Path) -> list[GoldenRow]:
    """The rows of a file. Raises FileNotFoundError, or ValueError naming the line, the row and the key.

    An id that stands twice is an error too: what belongs to a row (plan, score, difficulty) is found by its id.
    """
    rows: list[GoldenRow] = []
    lines: dict[str, int] = {}
    for number, row in json_lines(path):
        missing = [key for key in KEYS if key not in row] if isinstance(row, dict) else list(KEYS)
        if missing:
            raise ValueError(f"{path.name}:{number}: no row of build_planner_golden.py, lacks {', '.join(missing)}")
        if row["split"] is None:
            raise ValueError(f"{path.name}:{number} ({row['id']}): split is null; run planner_quality_gate.py first")
        if row["split"] not in SPLITS:
            raise ValueError(
                f"{path.name}:{number} ({row['id']}): split {row['split']!r} is none of {', '.join(SPLITS)}: correct it"
            )
        first = lines.setdefault(str(row["id"]), number)
        if first != number:
            raise ValueError(
                f"{path.name}:{number} ({row['id']}): the id stands in line {first} already: keep one of them, or"
                " give the rows of each source ids of their own"
            )
        row["golden"] = parse_golden(row["golden"], f"{path.name}:{number} ({row['id']})")
        rows.append(row)
    if not rows:
        raise ValueError(f"{path.name} holds no row: build it with build_planner_golden.py")
    return rows


def named(rows: Sequence[GoldenRow]) -> list[GoldenRow]:
    """The rows with the ids they have in sets: a session's last turn has the session's own id.

    That turn is the one whose plan is asked. Earlier turns keep `session#turn`.
    """
    last = {row["session"]: row["id"] for row in sorted(rows, key=_turn)}
    return [{**row, "id": row["session"]} if last[row["session"]] == row["id"] else row for row in rows]


def _turn(row: Mapping[str, Any]) -> int:
    number = str(row["id"]).rpartition("#")[2]
    if not number.isdigit():
        raise ValueError(f"golden row {row['id']!r}: an id is session#turn, as query-00001#0")
    return int(number)


def last_turns(rows: Iterable[GoldenRow]) -> list[GoldenRow]:
    """Of named rows those of the sessions' last turns."""
    return [row for row in rows if row["id"] == row["session"]]


def set_row(row: GoldenRow, style: str) -> Record:
    """The row as a line of a set, without an answer; golden record as a JSON string beside the prompt."""
    about = {key: row[key] for key in ("family", "split", "golden")}
    return prompt_row(row["id"], row["text"], row["prior_context"], style=style, **about)
