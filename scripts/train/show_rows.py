"""Print a few rows as the tokens that are trained: what the loss sees is bracketed, and the golden stands below.

    python -m scripts.train.show_rows sft -- <the arguments of swift sft>

The tokens come from ms-swift's own template with the run's arguments. For GRPO a row is its prompt: every token that
the model then writes is trained.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.train.dataset_check import load
from scripts.train.swift_args import parse, split_at_dashes
from scripts.train.swift_template import EncodedRow, RowEncoder

ROWS = 3
TRAINED, CONTEXT = "⟦", "⟧"  # opens and closes a run of trained tokens
BETWEEN = "·"  # between tokens
RULER = "-" * 100


def pick(rows: Sequence[Mapping[str, Any]], count: int) -> list[tuple[int, Mapping[str, Any]]]:
    """`count` rows spread over the set, first and last included, with their line numbers (from 1)."""
    if len(rows) <= count:
        return list(enumerate(rows, start=1))
    places = [round(place * (len(rows) - 1) / max(1, count - 1)) for place in range(count)]
    return [(place + 1, rows[place]) for place in places]


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Each token's text. Tokens that share a character (bytes of one Chinese character) are shown together."""
    shown: list[str] = []
    start = 0
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(list(ids[start:end]))
        if "�" not in text or end == len(ids):
            shown.append(text)
            shown += [""] * (end - start - 1)
            start = end
    return shown


def render(row: EncodedRow, tokenizer: Any, generates: bool) -> str:
    """The row's tokens, decoded one by one; trained runs in brackets."""
    text, inside = "", False
    for piece, trained in zip(pieces(tokenizer, row.ids), row.trained, strict=True):
        if trained != inside:
            text += TRAINED if trained else CONTEXT
            inside = trained
        elif text and piece:
            text += BETWEEN
        text += piece
    text += CONTEXT if inside else ""
    return text + (f"{TRAINED}... the completion ...{CONTEXT}" if generates else "")


def show(command: str, line: Sequence[str], count: int = ROWS) -> str:
    """The text printed before training.

    Args:
        command: sft or rlhf.
        line: the arguments of swift, in order.
        count: rows shown.
    """
    args = parse(command, line)
    dataset = load(args["dataset"][0])
    encoder = RowEncoder(args)
    chosen = pick(dataset.rows, count)
    parts = [f"{len(chosen)} of {len(dataset.rows)} rows of {dataset.path}, {TRAINED}trained{CONTEXT}:"]
    for number, row in chosen:
        encoded = encoder.encode(row)
        trained = "the completion" if command == "rlhf" else f"{sum(encoded.trained)} tokens"
        parts += [
            RULER,
            f"line {number}, id {row.get('id')}: {len(encoded.ids)} tokens, in the loss: {trained}",
            render(encoded, encoder.tokenizer, command == "rlhf"),
            f"golden: {_golden(row)}",
        ]
    return "\n".join([*parts, RULER])


def _golden(row: Mapping[str, Any]) -> str:
    golden = row.get("golden_json")
    return json.dumps(json.loads(golden), ensure_ascii=False) if isinstance(golden, str) else "none"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python -m scripts.train.show_rows sft -- --model runs/demo-seed42/nano --model_type qwen3 "
        "--template qwen3_nothinking --dataset build/demo/sft.jsonl",
    )
    parser.add_argument("command", choices=("rlhf", "sft"), help="swift's command")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"rows to show (default {ROWS})")
    own, line = split_at_dashes(sys.argv[1:] if argv is None else argv)
    options = parser.parse_args(own)
    print(show(options.command, line, options.rows), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
