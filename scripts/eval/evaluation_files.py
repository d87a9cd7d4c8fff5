"""The files of one evaluation: written once, read back only if they are the files their summary speaks of.

An evaluation is PREFIX.summary.json beside PREFIX.greedy.jsonl and, with samples, PREFIX.samples.jsonl. A line of
those is a record: `id`, `family`, `text`, `prior_context`, `context_rendered`, `golden` (a dict) and `samples`, a list
of `{"completion", "plan", "issues", "search", "titles", "breakdown"}`; a greedy file holds one sample a record. The
summary holds the sha256 of each.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MODES = ("greedy", "samples")
COMPARED = ("reward_sha256", "data_sha256", "weights", "gates", "store", "encoder", "max_new_tokens")
STORE_TITLES = "store_titles"  # a digest; a summary of before it was written down has none


def summary_path(prefix: str | Path) -> Path:
    return Path(f"{prefix}.summary.json")


def records_path(prefix: str | Path, mode: str) -> Path:
    """The record file of one decoding mode (one of MODES)."""
    return Path(f"{prefix}.{mode}.jsonl")


def load(prefix: str | Path) -> dict[str, Any]:
    """Summary and records of one evaluation: `{"summary": {...}, "greedy": [records], "samples": [records]}`.

    A mode that was not run has no key. Records written before the context was kept count as without one.
    Raises FileNotFoundError naming the file that is gone, and ValueError for a record file that is not the one its
    summary was made from, or a summary that is no JSON object.
    """
    summary = read_json(summary_path(prefix))
    if not isinstance(summary, dict):
        raise ValueError(f"{summary_path(prefix)} holds no JSON object; evaluate again")
    data: dict[str, Any] = {"summary": summary}
    for mode in MODES:
        if mode in summary:
            file = records_path(prefix, mode)
            text = file.read_bytes()
            if hashlib.sha256(text).hexdigest() != summary[mode]["records_sha256"]:
                raise ValueError(f"{file} is not the file its summary was made from; evaluate again")
            records = [json.loads(line) for line in text.decode("utf-8").split("\n") if line]
            data[mode] = [{"prior_context": [], "context_rendered": False, **record} for record in records]
    if len(data) == 1:
        raise ValueError(f"{summary_path(prefix)} speaks of no records ({' or '.join(MODES)}); evaluate again")
    return data


def read_json(path: Path) -> Any:
    """The JSON value in a file; ValueError names the file that holds none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error})") from None


def check_comparable(evaluations: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises ValueError when two evaluations differ in one of COMPARED, or one does not say.

    That is when they were scored by another reward file, on another set, by other weights or with another search, or
    their completions were cut elsewhere: a plan that is cut short does not parse, whoever wrote it.

    Args:
        evaluations: what `load` returned, by label.
    """
    for key in COMPARED:
        lacking = [label for label, item in evaluations.items() if key not in item["summary"]]
        if lacking:
            raise ValueError(f"{', '.join(lacking)}: the summary says nothing of {key}; evaluate again")
        values = {label: json.dumps(item["summary"][key], sort_keys=True) for label, item in evaluations.items()}
        if len(set(values.values())) > 1:
            raise ValueError(f"these evaluations differ in {key}: {values}; evaluate them again under one {key}")
    summaries = {label: item["summary"] for label, item in evaluations.items()}
    digests = {label: made[STORE_TITLES] for label, made in summaries.items() if made.get(STORE_TITLES)}
    if len(set(digests.values())) > 1:
        raise ValueError(
            f"these evaluations searched stores of one size that hold other titles: {digests}; evaluate them again on "
            "one store"
        )


def unknown_stores(evaluations: Mapping[str, Mapping[str, Any]]) -> str | None:
    """A note on the evaluations whose summary tells their store by its size alone; None where there is none.

    Args:
        evaluations: what `load` returned, by label.
    """
    summaries = {label: item["summary"] for label, item in evaluations.items()}
    unknown = [label for label, made in summaries.items() if made.get("store") and not made.get(STORE_TITLES)]
    if not unknown:
        return None
    return (
        f"the summary of {', '.join(unknown)} is older than {STORE_TITLES}: that the stores hold the same titles is "
        "not known, only that their sizes agree"
    )


def jsonl(records: Sequence[Mapping[str, Any]]) -> str:
    """Strict JSON in ASCII, a line a record: a lone surrogate from a model is an escape, NaN raises ValueError."""
    return "".join(json.dumps(record, ensure_ascii=True, allow_nan=False) + "\n" for record in records)


def json_text(value: Any) -> str:
    """A JSON file for machines that people may open: indented, ends in a newline, NaN raises ValueError."""
    text = json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    # UTF-8 has no lone surrogates, and a model may write them; Python's escape of one is JSON's.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
