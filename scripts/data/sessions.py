"""Sessions: the row format between the data stages, its check, and reading and writing it as JSONL.

    id          unique in its file
    source      one of SOURCES: who worded it
    family      what kind of request the last turn is
    card        id of the category card it was made from, or null
    split       train, watch, dev92, test; null until the gate has assigned it
    dimensions  what the row varies (budget, exclusion, turn, ...), values are text, numbers or true and false
    turns       {text, golden, plan}, oldest first; `golden` (DESIGN section 4) and `plan` may be null.
                `plan` holds keywords and exclude_terms {word, evidence} where whoever made the row knows them

The last turn is the one whose plan is asked; any turn with a golden may become a training row.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from reward.planner_reward import parse_golden
from scripts.chat import check_text
from scripts.files import json_lines, write_atomically
from swift_plugin.rollout_env import SPLITS

Session = dict[str, Any]

SOURCES = ("handwritten", "log", "template", "llm")
ANCHOR_SOURCES = ("handwritten", "log")  # worded by people: they are reported on, and nothing is trained on them
SESSION_KEYS = ("id", "source", "family", "card", "split", "dimensions", "turns")
TURN_KEYS = ("text", "golden", "plan")
PLAN_HINT_KEYS = ("keywords", "exclude_terms")


def turn(text: str, golden: Mapping[str, Any] | None = None, plan: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """One turn of a session."""
    return {"text": text, "golden": None if golden is None else dict(golden), "plan": None if plan is None else plan}


def turn_texts(session: Mapping[str, Any]) -> list[str]:
    """What the shopper said, oldest first."""
    return [one["text"] for one in session["turns"]]


def is_anchor(session: Mapping[str, Any]) -> bool:
    """Whether a person worded the session."""
    return session["source"] in ANCHOR_SOURCES


def session_faults(raw: Any) -> list[str]:
    """Everything that keeps `raw` from being a session, one line each; empty for a good one. Never raises."""
    if not isinstance(raw, dict):
        return [f"expected an object, found {type(raw).__name__}"]
    faults = [f"key {key!r} is missing" for key in SESSION_KEYS if key not in raw]
    faults += [f"key {key!r} is unknown" for key in raw if key not in SESSION_KEYS]
    if faults:
        return faults
    for key in ("id", "family"):
        if not isinstance(raw[key], str) or not raw[key].strip():
            faults.append(f"key {key!r} must be text, found {raw[key]!r}")
    if raw["source"] not in SOURCES:
        faults.append(f"source {raw['source']!r} is none of {', '.join(SOURCES)}")
    if raw["card"] is not None and not isinstance(raw["card"], str):
        faults.append(f"card must be a card's id or null, found {raw['card']!r}")
    if raw["split"] is not None and raw["split"] not in SPLITS:
        faults.append(f"split {raw['split']!r} is none of {', '.join(SPLITS)}, nor null")
    if not isinstance(raw["dimensions"], dict):
        faults.append(f"dimensions must be an object, found {raw['dimensions']!r}")
    if not isinstance(raw["turns"], list) or not raw["turns"]:
        return [*faults, "turns must be a list of at least one turn"]
    for number, one in enumerate(raw["turns"], 1):
        faults += [f"turn {number}: {fault}" for fault in _turn_faults(one)]
    return faults + half_characters({**raw, "turns": None})


def half_characters(part: Any) -> list[str]:
    """The fault of a part of a row that no UTF-8 file can hold: JSON may escape half a character alone."""
    try:
        check_text(json.dumps(part, ensure_ascii=False))
    except ValueError as error:
        return [f"its JSON holds {error}"]
    except RecursionError:
        return ["it is nested too deeply"]
    return []


def _turn_faults(one: Any) -> list[str]:
    if not isinstance(one, dict) or set(one) != set(TURN_KEYS):
        return [f"must be an object with the keys {', '.join(TURN_KEYS)}"]
    if not isinstance(one["text"], str) or not one["text"].strip():
        return [f"text must not be empty, found {one['text']!r}"]
    faults = half_characters(one)
    if isinstance(one["golden"], str):
        faults.append("golden must be an object or null; as a JSON string it stands in a set, as golden_json")
    elif one["golden"] is not None:
        try:
            parse_golden(one["golden"])
        except ValueError as error:
            faults.append(str(error))
    if one["plan"] is not None:
        faults += _plan_faults(one["plan"], one["text"])
    return faults


def _plan_faults(plan: Any, text: str) -> list[str]:
    if not isinstance(plan, dict) or set(plan) != set(PLAN_HINT_KEYS):
        return [f"plan must be an object with the keys {', '.join(PLAN_HINT_KEYS)}"]
    if not isinstance(plan["keywords"], list) or not all(isinstance(word, str) and word for word in plan["keywords"]):
        return [f"plan: keywords must be a list of texts, found {plan['keywords']!r}"]
    if not isinstance(plan["exclude_terms"], list):
        return [f"plan: exclude_terms must be a list, found {plan['exclude_terms']!r}"]
    faults = []
    for term in plan["exclude_terms"]:
        if (
            not isinstance(term, dict)
            or set(term) != {"word", "evidence"}
            or not all(isinstance(value, str) and value.strip() for value in term.values())
        ):
            faults.append(f"plan: an exclusion is {{word, evidence}}, both text, found {term!r}")
        elif term["evidence"] not in text:
            faults.append(f"plan: evidence {term['evidence']!r} does not stand in the turn")
    return faults


def read_sessions(path: Path) -> list[Session]:
    """The sessions of a file. Raises FileNotFoundError, or ValueError naming the line and everything wrong with it."""
    sessions: list[Session] = []
    seen: set[str] = set()
    for number, raw in json_lines(path):
        where = f"{path.name}:{number} ({raw.get('id') if isinstance(raw, dict) else None})"
        faults = session_faults(raw)
        if faults:
            raise ValueError(f"{where}: " + "; ".join(faults))
        if raw["id"] in seen:
            raise ValueError(f"{where}: the id stands twice in the file")
        seen.add(raw["id"])
        sessions.append(raw)
    return sessions


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines, a row each, so that a reader never sees half a file."""
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def check_report(report: Path, out: Path) -> None:
    """Raises ValueError where a report, its text and the rows in `out` would overwrite each other."""
    if len({path.resolve() for path in (report, report.with_suffix(".txt"), out)}) < 3:
        raise ValueError(
            f"the report {report}, its text {report.with_suffix('.txt')} and the rows {out} must be three files:"
            " name the report as another .json"
        )


def write_report(path: Path, report: Mapping[str, Any], text: str) -> None:
    """Write a report twice: JSON at `path`, and `text` for people beside it with the suffix .txt."""
    write_atomically(path, json.dumps(report, ensure_ascii=False, indent=1) + "\n")
    write_atomically(path.with_suffix(".txt"), text)
