"""What a training or watch set must hold before a model is loaded for it; every problem names file, line and column."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.files import values_by_line
from swift_plugin.prompts import system_prompt
from swift_plugin.reward_loader import Reward
from swift_plugin.settings import PROMPT_STYLES

MOST_SHOWN = 5  # problems of one file that are listed; the rest are counted
REWARD_COLUMNS = ("golden_json", "text", "id", "split")  # what the plugin reads, besides messages
SFT_COLUMNS = ("split",)
SFT_PURPOSES = ("sft", "sft watch")
REVIEW_SPLIT = "train"  # the only split that may hold records a person has yet to review


class DatasetError(ValueError):
    """A dataset argument that names no readable local file."""


@dataclass(frozen=True)
class Dataset:
    """One JSONL set.

    Attributes:
        path: the file.
        lines: the line each row stands in; blank lines hold none.
        rows: its rows, in order.
        sha256: of the file's bytes.
        taken: how many rows swift draws from it, by `file#500`; None takes all.
    """

    path: Path
    lines: tuple[int, ...]
    rows: tuple[dict[str, Any], ...]
    sha256: str
    taken: int | None = None

    @property
    def drawn(self) -> int:
        """Rows that swift trains on."""
        return len(self.rows) if self.taken is None else self.taken

    def facts(self) -> dict[str, Any]:
        """For the manifest: path, sha256, the file's row count, how many of them swift takes, and the file's rows by
        split and by golden status."""
        statuses = Counter(
            str(golden.get("status")) for row in self.rows if isinstance(golden := _loose_golden(row), dict)
        )
        return {
            "path": str(self.path),
            "sha256": self.sha256,
            "rows": len(self.rows),
            "taken": self.drawn,
            "splits": dict(Counter(str(row.get("split")) for row in self.rows)),
            "statuses": dict(statuses),
        }


def _loose_golden(row: dict[str, Any]) -> Any:
    golden = row.get("golden_json")
    try:
        return json.loads(golden) if isinstance(golden, str) else None
    except ValueError:
        return None  # counted only; the check proper names the row


def local_path(argument: str) -> Path:
    """The file that a `--dataset` argument names; swift's `file#500` takes 500 rows of it.

    Raises DatasetError for anything else, a hub id for one: its goldens could not be checked before training.
    """
    path = Path(argument)
    if not path.exists() and "#" in argument:
        path = Path(argument.rpartition("#")[0])
    if not path.is_file():
        raise DatasetError(
            f"the dataset {argument} is no file here: make it with the scripts under scripts/data, or name a local "
            ".jsonl file (a hub id cannot be checked before training)"
        )
    return path


def load(argument: str) -> Dataset:
    """Read a JSONL set; raises DatasetError naming the line that is no JSON object, or an empty file."""
    path = local_path(argument)
    data = path.read_bytes()
    try:
        rows: dict[int, Any] = dict(values_by_line(data, path.name))
    except ValueError as error:
        raise DatasetError(f"{error}: the set needs one JSON object a line") from None
    for number, row in rows.items():
        if not isinstance(row, dict):
            raise DatasetError(f"{path}:{number} is no JSON object but {type(row).__name__}")
    if not rows:
        raise DatasetError(f"{path} is empty: make it again with the scripts under scripts/data")
    limit = argument.rpartition("#")[2] if str(path) != argument else ""
    if limit and not limit.isdigit():
        raise DatasetError(f"{argument}: after # stands how many rows to take, as {path}#500")
    sha256 = hashlib.sha256(data).hexdigest()
    return Dataset(path, tuple(rows), tuple(rows.values()), sha256, int(limit) if limit else None)


def problems(dataset: Dataset, purpose: str, reward: Reward, style: str) -> list[str]:
    """Everything that forbids training on (or watching) `dataset`, at most MOST_SHOWN + 1 lines.

    Args:
        purpose: train or watch (GRPO: a golden record in each row), sft or sft watch (an answer in each row).
        reward: its `parse_golden` and `parse_plan` judge goldens and answers.
        style: the prompt style of PLANNER_PROMPT, which the rows must have been rendered with.
    """
    other_prompts = _other_prompts(style)
    found: list[str] = []
    for number, row in zip(dataset.lines, dataset.rows, strict=True):
        found += [f"{dataset.path}:{number}: {text}" for text in _row_problems(row, purpose, reward, other_prompts)]
    counts = Counter(str(row.get("id")) for row in dataset.rows)
    repeated = sorted(name for name, count in counts.items() if count > 1)
    if repeated and purpose not in SFT_PURPOSES:
        found.append(
            f"{dataset.path}: column id: {len(repeated)} ids stand in several rows, as {repeated[0]}: a group of"
            " completions is told by its id, so each row needs its own"
        )
    if len(found) > MOST_SHOWN:
        return [*found[:MOST_SHOWN], f"{dataset.path}: {len(found) - MOST_SHOWN} more problems"]
    return found


def _row_problems(row: dict[str, Any], purpose: str, reward: Reward, other_prompts: Mapping[str, str]) -> list[str]:
    needed = SFT_COLUMNS if purpose in SFT_PURPOSES else REWARD_COLUMNS
    missing = [name for name in needed if not isinstance(row.get(name), str) or not row[name].strip()]
    if missing:
        return [
            f"the column {name} is missing or not a non-empty string ({_shown(row.get(name))}): make the set again "
            "with the scripts under scripts/data"
            for name in missing
        ]
    return [
        text
        for text in (
            _message_problem(row, purpose, reward),
            _prompt_problem(row, other_prompts),
            _split_problem(row, purpose),
            _golden_problem(row, reward) if "golden_json" in row else None,
        )
        if text is not None
    ]


def _message_problem(row: dict[str, Any], purpose: str, reward: Reward) -> str | None:
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages or not all(_is_message(message) for message in messages):
        return "the column messages must be a list of {role, content}"
    if purpose in SFT_PURPOSES:
        if messages[-1]["role"] != "assistant":
            return "the last message is not the assistant's: nothing would be learnt from this row"
        parsed = reward.parse_plan(messages[-1]["content"])
        if parsed.plan is None or parsed.issues:
            return f"the answer does not parse as a plan ({', '.join(parsed.issues)}): it would be learnt as it stands"
        return None
    prompt = messages[:-1] if messages[-1]["role"] == "assistant" else messages  # GRPO drops a last answer
    if not prompt or prompt[-1]["role"] != "user":
        return "the prompt does not end with a user message"
    if row["text"] not in prompt[-1]["content"]:
        return "the column text is not part of the last user message: quoted evidence would be judged by other words"
    return None


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))


def _other_prompts(style: str) -> dict[str, str]:
    """System prompt -> style, of all styles but this one."""
    return {system_prompt(other): other for other in PROMPT_STYLES if other != style}


def _prompt_problem(row: dict[str, Any], other_prompts: Mapping[str, str]) -> str | None:
    system = system_text(row)
    if system not in other_prompts:
        return None
    other = other_prompts[system]
    return f"the row was rendered with the {other} prompt: set PLANNER_PROMPT={other}, or make the set again"


def _split_problem(row: dict[str, Any], purpose: str) -> str | None:
    wanted = "watch" if purpose.endswith("watch") else "train"
    if row["split"] == wanted:
        return None
    why = {
        "dev92": "dev92 is reported and never used to train or to choose",
        "test": "test is read once a release",
        "watch": "watch chooses the checkpoint and nothing else",
        "train": "a checkpoint chosen on training rows is chosen by memory",
    }.get(row["split"], "the splits are train, watch, dev92 and test")
    return f"the split is {row['split']!r}, where only {wanted!r} may stand: {why}"


def _golden_problem(row: dict[str, Any], reward: Reward) -> str | None:
    golden = row["golden_json"]
    if not isinstance(golden, str):
        return f"golden_json is {type(golden).__name__}, but must be a JSON string (nested columns break the schema)"
    try:
        record = reward.parse_golden(golden)
    except ValueError as error:
        return f"{error}"
    if record["status"] == "review" and row.get("split") != REVIEW_SPLIT:
        return f"a record under review stands in the split {row.get('split')!r}; only {REVIEW_SPLIT} may hold one"
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def check_prompt_style(path: Path, rows: Sequence[Mapping[str, Any]], style: str) -> None:
    """Raise ValueError if a row carries the prompt of another style than `style`, that of PLANNER_PROMPT."""
    others = _other_prompts(style)
    for number, row in enumerate(rows, start=1):
        other = others.get(system_text(row))
        if other:
            raise ValueError(
                f"{path}: row {number} carries the {other} prompt, but PLANNER_PROMPT is {style}: set"
                f" PLANNER_PROMPT={other}, or name a set made with --prompt-style {style}"
            )


def system_text(row: Mapping[str, Any]) -> str:
    """The row's system message, "" where it has none (or no messages at all)."""
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages or not _is_message(messages[0]):
        return ""
    return str(messages[0]["content"]) if messages[0]["role"] == "system" else ""
