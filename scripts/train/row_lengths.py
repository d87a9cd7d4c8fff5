"""How many rows are longer than `--max_length`, found out without importing swift wherever an upper bound decides.

ms-swift drops such rows from an SFT set without a word, and cuts the prompts of a GRPO set from the left.
"""

import hashlib
import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.files import write_atomically
from scripts.train.dataset_check import Dataset
from scripts.train.swift_args import CACHE_DIR, SwiftArgs

# ChatML writes <|im_start|>role\n before and <|im_end|>\n after a message and opens the answer: 6 tokens at most.
TOKENS_AROUND_A_MESSAGE = 8
TOKENS_AROUND_A_ROW = 8


class CannotCount(ValueError):
    """The lengths cannot be told here and now; the message says why."""


@dataclass(frozen=True)
class Overlong:
    """Rows longer than `limit` tokens: how many, the longest, and the line of the first one (from 1)."""

    rows: int
    limit: int
    longest: int
    first_line: int | None


def token_limit(args: SwiftArgs) -> int | None:
    """Tokens a row may have: `--max_length`, or the model's positions where the folder is local and they are fewer."""
    config = _model_file(args, "config.json")
    positions = None
    if config is not None:
        positions = json.loads(config.read_text(encoding="utf-8")).get("max_position_embeddings")
    known = [limit for limit in (args["max_length"], positions) if isinstance(limit, int)]
    return min(known) if known else None


def overlong(dataset: Dataset, args: SwiftArgs, *, import_swift: bool = True) -> Overlong | None:
    """The rows of `dataset` above the limit of `args`; None when nothing limits them.

    An upper bound comes first: the bytes of a text bound its tokens (every token of a byte-level BPE is one byte or
    more), then the model's tokenizer without the template. Rows that the bound leaves open are encoded by swift's
    template, once for these bytes of data, tokenizer and template.

    Args:
        import_swift: False raises CannotCount instead of the 15 seconds (or the download) of the exact count.
    """
    limit = token_limit(args)
    if limit is None:
        return None
    keep_answer = args.command == "sft"
    bounds = [_bytes_bound(row, keep_answer) for row in dataset.rows]
    if max(bounds) > limit and _model_file(args, "tokenizer.json") is not None:
        bounds = _token_bounds(dataset.rows, args, keep_answer)
    if max(bounds) <= limit:
        return Overlong(0, limit, max(bounds), None)
    if not import_swift:
        raise CannotCount(f"the tokenizer of {args['model']} is not here, and some rows may exceed {limit} tokens")
    lengths = _exact_lengths(dataset, args)
    above = [line for line, length in enumerate(lengths, start=1) if length > limit]
    return Overlong(len(above), limit, max(lengths), above[0] if above else None)


def _contents(row: dict[str, Any], keep_answer: bool) -> list[str]:
    messages = row["messages"]
    if not keep_answer and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    return [message["content"] for message in messages]


def _bytes_bound(row: dict[str, Any], keep_answer: bool) -> int:
    contents = _contents(row, keep_answer)
    text = sum(len(content.encode("utf-8", errors="replace")) for content in contents)
    return text + TOKENS_AROUND_A_MESSAGE * len(contents) + TOKENS_AROUND_A_ROW


def _token_bounds(rows: Sequence[dict[str, Any]], args: SwiftArgs, keep_answer: bool) -> list[int]:
    from tokenizers import Tokenizer

    file = _model_file(args, "tokenizer.json")
    assert file is not None
    tokenizer = Tokenizer.from_file(str(file))
    per_row = [_contents(row, keep_answer) for row in rows]
    flat = [content for contents in per_row for content in contents]
    lengths = iter([len(encoding.ids) for encoding in tokenizer.encode_batch(flat, add_special_tokens=False)])
    return [
        sum(next(lengths) + TOKENS_AROUND_A_MESSAGE for _ in contents) + TOKENS_AROUND_A_ROW for contents in per_row
    ]


def _exact_lengths(dataset: Dataset, args: SwiftArgs) -> list[int]:
    tokenizer = _model_file(args, "tokenizer.json")
    model = hashlib.sha256(tokenizer.read_bytes()).hexdigest() if tokenizer is not None else str(args["model"])
    parts = [
        dataset.sha256, model, args.command, str(args["template"]), str(args["system"]),
        importlib.metadata.version("ms-swift"),
    ]  # fmt: skip
    key = hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]
    cached = CACHE_DIR / f"row-lengths-{key}.json"
    if cached.is_file():
        return list(json.loads(cached.read_text(encoding="utf-8")))
    from scripts.train.swift_template import RowEncoder

    encoder = RowEncoder(args)
    lengths = [len(encoder.encode(row).ids) for row in dataset.rows]
    write_atomically(cached, json.dumps(lengths))
    return lengths


def _model_file(args: SwiftArgs, name: str) -> Path | None:
    file = Path(str(args["model"])).expanduser() / name
    return file if file.is_file() else None
