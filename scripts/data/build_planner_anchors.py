"""Real user messages to anchors: a log in JSONL or CSV goes in, sessions that may be kept come out.

Personal data are masked first, before any other step and before anything is written. Then greetings and near-copies
are dropped, and follow-ups whose subject the log does not hold are marked (family `follow_up_no_context`, dimension
`turn: fragment`). Goldens are for `build_planner_golden.py`; anchors go to dev whole and are never trained on.
The report counts what was masked and dropped; it quotes no message.
"""

import argparse
import csv
import io
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from scripts.chat import check_text
from scripts.data.anchor_filter import is_fragment, keep
from scripts.data.personal_data import mask_personal_data
from scripts.data.sessions import Session, turn, turn_texts, write_report, write_rows
from scripts.files import json_lines, utf8_text
from scripts.train.result_file import writable_file
from swift_plugin.cards import DEFAULT_CARDS, Card, load_cards

FRAGMENT_FAMILY = "follow_up_no_context"
LOG_FAMILY = "log"
CSV_FIELD_CHARACTERS = 1_000_000  # above csv's own limit, below anything a person types


@dataclass(frozen=True)
class Columns:
    """Which columns of the log hold what. Without `session` each message is a session; without `role` all count."""

    text: str
    session: str | None = None
    role: str | None = None
    user: str = "user"


def log_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows of a .csv log (with a header), or of a JSONL log, each with its line. ValueError names the line."""
    if path.suffix.lower() == ".csv":
        csv.field_size_limit(CSV_FIELD_CHARACTERS)
        # strict: an inch mark or a quote left open would glue the rows after it into one text.
        reader, done = csv.DictReader(io.StringIO(utf8_text(path), newline=""), strict=True), 0
        try:
            for row in reader:
                yield reader.line_num, row
                done = reader.line_num
        except csv.Error as error:
            lines = f"{done + 1} to {reader.reader.line_num}"  # its own number is that of the last whole row
            raise ValueError(
                f"{path.name}:{done + 1}: no CSV in lines {lines} ({error}): a quote is left open, or not doubled"
            ) from None
        return
    for number, row in json_lines(path):
        if not isinstance(row, dict):
            raise ValueError(f"{path.name}:{number}: expected an object a line, found {type(row).__name__}")
        yield number, row


def _value(row: Mapping[str, Any], column: str, where: str) -> str:
    if column not in row:
        raise ValueError(f"{where}: no column {column!r}; the columns are {', '.join(map(str, row))}")
    value = row[column]
    if value is None:
        return ""
    if isinstance(value, (dict, list)):
        raise ValueError(f"{where}: column {column!r} holds a {type(value).__name__}, not text")
    try:
        check_text(str(value))
    except ValueError as error:
        raise ValueError(f"{where}: column {column!r} holds {error}") from None
    return str(value)


def masked_sessions(path: Path, columns: Columns) -> tuple[list[Session], Counter[str]]:
    """The log's sessions in order of their first message, all texts masked, and how often each kind was masked.

    Messages keep the order of the log. Ids are numbered anew: a log's own session ids can be personal.
    """
    by_session: dict[str, list[str]] = {}
    masked: Counter[str] = Counter()
    for number, row in tqdm(log_rows(path), desc="reading", unit="message", disable=None):
        where = f"{path.name}:{number}"
        if columns.role and _value(row, columns.role, where) != columns.user:
            continue
        text, kinds = mask_personal_data(" ".join(_value(row, columns.text, where).split()))
        masked.update(kinds)
        key = _value(row, columns.session, where) if columns.session else str(number)
        if columns.session and not key.strip():
            raise ValueError(f"{where}: column {columns.session!r} is empty, so the message belongs to no session")
        if text:
            by_session.setdefault(key, []).append(text)
    sessions = [
        {
            "id": f"log-{number:05d}",
            "source": "log",
            "family": LOG_FAMILY,
            "card": None,
            "split": None,
            "dimensions": {"turn": "follow_up" if len(texts) > 1 else "first"},
            "turns": [turn(text) for text in texts],
        }
        for number, texts in enumerate(by_session.values(), 1)
    ]
    return sessions, masked


def marked(session: Session, cards: Sequence[Card]) -> Session:
    """The session with its turn kind read anew; a fragment without its context says so."""
    texts = turn_texts(session)
    if is_fragment(texts, cards):
        return {**session, "family": FRAGMENT_FAMILY, "dimensions": {**session["dimensions"], "turn": "fragment"}}
    kind = "follow_up" if len(texts) > 1 else "first"
    return {**session, "dimensions": {**session["dimensions"], "turn": kind}}


def anchors_from_log(
    path: Path, columns: Columns, cards: Sequence[Card]
) -> tuple[list[Session], list[dict[str, str]], dict[str, Any]]:
    """Anchors, what was dropped (id, reason), and the report. Raises ValueError where the log holds no message."""
    sessions, masked = masked_sessions(path, columns)
    if not sessions:
        raise ValueError(f"{path.name} holds no message: check --text-column, --role-column and --user-value")
    kept, dropped = keep(sessions)
    anchors = [marked(session, cards) for session in kept]
    report = {
        "log": path.name,
        "sessions": len(sessions),
        "anchors": len(anchors),
        "dropped": dict(Counter(one["reason"].split(" of ")[0] for one in dropped)),
        "masked": dict(sorted(masked.items())),
        "fragments": sum(one["family"] == FRAGMENT_FAMILY for one in anchors),
        "turns": dict(sorted(Counter(len(one["turns"]) for one in anchors).items())),
    }
    return anchors, dropped, report


def report_text(report: Mapping[str, Any], dropped: Sequence[Mapping[str, str]]) -> str:
    """The report for people; messages are not quoted."""
    lines = [f"{report['log']}: {report['sessions']} sessions, {report['anchors']} anchors"]
    for key in ("dropped", "masked", "turns"):
        counts = ", ".join(f"{name}: {count}" for name, count in report[key].items()) or "none"
        lines.append(f"{key}: {counts}")
    lines.append(f"follow-up fragments without context: {report['fragments']}")
    lines += [f"  {one['id']} dropped: {one['reason']}" for one in dropped]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=(
            "example:\n  python scripts/data/build_planner_anchors.py chat.csv --text-column content "
            "--session-column session_id --role-column role --user-value user --out build/data/anchors.jsonl"
        ),
    )
    parser.add_argument("log", type=Path, help="the log: .csv with a header, or JSONL")
    parser.add_argument("--text-column", required=True, help="column of the message")
    parser.add_argument("--session-column", help="column of the session; without it each message is a session")
    parser.add_argument("--role-column", help="column that tells who wrote; without it every row is a shopper's")
    parser.add_argument("--user-value", default="user", help="what the role column says of a shopper (default user)")
    parser.add_argument("--cards", type=Path, default=DEFAULT_CARDS, help="category cards (JSONL)")
    parser.add_argument(
        "--out", type=writable_file, required=True, help="file to write; reports go beside it (.report.json)"
    )
    args = parser.parse_args()
    columns = Columns(args.text_column, args.session_column, args.role_column, args.user_value)
    try:
        anchors, dropped, report = anchors_from_log(args.log, columns, load_cards(args.cards))
        write_rows(args.out, anchors)
        text = report_text(report, dropped)
        write_report(args.out.with_suffix(".report.json"), {**report, "dropped_sessions": dropped}, text)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
