"""The guard's questions: read, asked, and scored by exact match after a normalisation that is stated here.

A line of data/guard_items.jsonl holds `id`, `kind` (general or code), `question` and `answers`, any of which is right.
None has to do with planning or shopping: what they measure is what training on plans may cost.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.eval.summary import share
from scripts.files import json_lines
from swift_plugin.settings import CHECKOUT

DEFAULT_ITEMS = CHECKOUT / "data" / "guard_items.jsonl"
COUNTS = {"general": 20, "code": 10}
SYSTEM = "Answer with the answer alone: a word, a name or a number. No sentence, no explanation."
_THINK = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_EDGES = " \t\r\n.,;:!?'\"`*_()[]，。；：！？、“”‘’《》「」（）"


@dataclass(frozen=True)
class Item:
    id: str
    kind: str
    question: str
    answers: tuple[str, ...]

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt, as chat messages without an answer."""
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": self.question}]


def read_items(path: Path) -> list[Item]:
    """The items; ValueError names the line that is none, or a kind that has not COUNTS of them."""
    items = []
    for number, row in json_lines(path):
        strings = isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("id", "kind", "question"))
        answers = row.get("answers") if strings else None
        if not _answers(answers):
            raise ValueError(f"{path.name}:{number}: id, kind and question are strings, answers a list of strings")
        items.append(Item(row["id"], row["kind"], row["question"], tuple(answers)))
    counted = Counter(item.kind for item in items)
    if counted != COUNTS:
        raise ValueError(f"{path.name} holds {dict(counted)} items, wanted {COUNTS}")
    if len({item.id for item in items}) < len(items):
        raise ValueError(f"{path.name} holds an id twice")
    return items


def _answers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) and normalise(one) for one in value)


def normalise(text: str) -> str:
    """NFKC, lower case, one space for white space; without a closed think block in front, the commas of grouped digits
    and punctuation, quotes and Markdown marks at either end.

    >>> normalise("**Paris.**"), normalise("1,024"), normalise("<think>hm</think>\\n 东京。")
    ('paris', '1024', '东京')
    """
    folded = unicodedata.normalize("NFKC", _THINK.sub("", text)).casefold()
    bare = unicodedata.normalize("NFKC", folded)  # folding may leave a letter in pieces
    return _GROUPED.sub("", " ".join(bare.split())).strip(_EDGES)


def is_right(item: Item, answer: str) -> bool:
    """Whether the answer, normalised, equals one of the item's."""
    return normalise(answer) in {normalise(one) for one in item.answers}


def score(items: Sequence[Item], answers: Sequence[str]) -> dict[str, Any]:
    """`{"all", "general", "code"}` as counted shares, and `answers`: by id the answer and whether it is right."""
    judged = {
        item.id: {"answer": answer, "right": is_right(item, answer)}
        for item, answer in zip(items, answers, strict=True)
    }
    kinds = {
        kind: share(sum(judged[i.id]["right"] for i in items if i.kind == kind), count)
        for kind, count in COUNTS.items()
    }
    return {"all": share(sum(one["right"] for one in judged.values()), len(items)), **kinds, "answers": judged}


def points_lost(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """Points (of 100) of all items lost from one score to another; below 0 where it rose."""
    return 100 * (before["all"]["count"] - after["all"]["count"]) / before["all"]["of"]


def flipped(before: Mapping[str, Any], after: Mapping[str, Any], now: bool) -> list[str]:
    """The items that became right (`now` True) or wrong (False)."""
    return [
        name
        for name, one in after["answers"].items()
        if one["right"] is now and before["answers"][name]["right"] is not now
    ]
