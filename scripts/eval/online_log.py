"""The log of a planner in service: one JSON line a request, and the golden records that are known for some of them.

    {"time": "2026-03-02T09:12:03+08:00", "id": "r-1", "text": "要防水的", "prior_context": ["想买双跑鞋"],
     "completion": "{\\"category\\": ...}", "titles": ["Nordvik Waterproof Running Shoes", ...]}

`completion` is the model's answer as it came, null when no model answered: an outage is counted and never scored.
`titles` are what the search for the plan's keywords found, best first, before any filter; a log has them in every row
with keywords, or in none (then they are searched again). A row's day is that of `time` as written. Other keys are not
read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from scripts.files import json_lines

REQUIRED = ("time", "id", "text", "prior_context", "completion")
TITLES = "titles"


@dataclass(frozen=True)
class Request:
    """One line of the log. `day` is YYYY-MM-DD; `titles` None where the line has none."""

    id: str
    day: str
    text: str
    prior_context: tuple[str, ...]
    completion: str | None
    titles: tuple[str, ...] | None

    @property
    def said(self) -> tuple[str, tuple[str, ...]]:
        """What a golden record is known by: this turn's words and the turns before it."""
        return self.text, self.prior_context


def read_log(path: Path) -> tuple[list[Request], bool]:
    """The requests in the log's order, and whether the log holds titles.

    Raises ValueError naming file, line and key for a line that is no request, an id that comes twice, an empty log.
    """
    requests: list[Request] = []
    lines: dict[str, int] = {}
    with_titles = False
    for number, row in json_lines(path):
        request = _request(row, f"{path.name}:{number}")
        if request.id in lines:
            raise ValueError(f"{path.name}:{number}: id {request.id!r} stands in line {lines[request.id]} already")
        lines[request.id] = number
        with_titles = with_titles or TITLES in row
        requests.append(request)
    if not requests:
        raise ValueError(f"{path} holds no request")
    return requests, with_titles


def _request(row: Any, where: str) -> Request:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: a JSON object is expected, one request a line")
    missing = [key for key in REQUIRED if key not in row]
    if missing:
        raise ValueError(f"{where}: no {', '.join(missing)}; a line needs {', '.join(REQUIRED)}")
    for key in ("id", "text", "time"):
        if not isinstance(row[key], str):
            raise ValueError(f"{where}: {key} is {row[key]!r}, wanted a string")
    if row["completion"] is not None and not isinstance(row["completion"], str):
        raise ValueError(f"{where}: completion is {type(row['completion']).__name__}, wanted the answer's text or null")
    titles = row.get(TITLES)
    if titles is not None and not _strings(titles):
        raise ValueError(f"{where}: titles is no list of strings; leave it out for a request without a search")
    if not _strings(row["prior_context"]):
        raise ValueError(f"{where}: prior_context is no list of strings; [] stands for none")
    return Request(
        id=row["id"],
        day=_day(row["time"], where),
        text=row["text"],
        prior_context=tuple(row["prior_context"]),
        completion=row["completion"],
        titles=None if titles is None else tuple(titles),
    )


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _day(time: str, where: str) -> str:
    try:  # Python 3.10 reads no Z
        return datetime.fromisoformat(time[:-1] + "+00:00" if time.endswith("Z") else time).date().isoformat()
    except ValueError:
        raise ValueError(f"{where}: time {time!r} is no ISO 8601 time, as 2026-03-02T09:12:03+08:00") from None


def read_goldens(path: Path) -> Mapping[tuple[str, tuple[str, ...]], str]:
    """`golden_json` of every row of a prompt set, by what was said (`Request.said`).

    Raises ValueError for a row without text or golden, and for one saying that has two different goldens.
    """
    goldens: dict[tuple[str, tuple[str, ...]], str] = {}
    for number, row in json_lines(path):
        where = f"{path.name}:{number}"
        if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("text", "golden_json")):
            raise ValueError(f"{where}: text and golden_json are expected as strings; make the set with scripts/data/")
        prior = row.get("prior_context", [])
        if not _strings(prior):
            raise ValueError(f"{where}: prior_context is no list of strings")
        said = (row["text"], tuple(prior))
        if goldens.setdefault(said, row["golden_json"]) != row["golden_json"]:
            raise ValueError(f"{where}: {row['text']!r} has another golden record in an earlier row; keep one")
    return goldens
