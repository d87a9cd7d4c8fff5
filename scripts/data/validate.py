"""Check a file of your own rows and name every row and column that will not do.

Takes sessions (what the gate reads), SFT rows (an answer in each row) and prompt sets (GRPO, watch, dev92, test). What
a file is, is seen from its rows, or said by --as. Nothing is changed.

Exit codes: 0 every row will do; 1 the text lists every problem; 2 the file cannot be read.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.data.qwen_tokens import MOST_PROMPT_TOKENS, VocabularyMissing, prompt_tokens
from scripts.data.sessions import half_characters, session_faults
from scripts.train.dataset_check import Dataset, DatasetError, load, problems
from swift_plugin.prompts import build_messages
from swift_plugin.reward_loader import Reward, load_reward
from swift_plugin.settings import PROMPT_STYLES, Settings

# What a file can be, with the purpose it is checked for and the split its rows must have.
KINDS: Mapping[str, tuple[str, str]] = {
    "sft": ("sft", "train"),
    "sft-watch": ("sft watch", "watch"),
    "grpo": ("train", "train"),
    "watch": ("watch", "watch"),
    "dev92": ("watch", "dev92"),
    "test": ("watch", "test"),
}
SESSIONS = "sessions"


def kind_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the rows are, by the first of them; a split that no set has counts as a GRPO set, which is then named."""
    first = rows[0]
    if "turns" in first:
        return SESSIONS
    messages = first.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    answered = isinstance(last, dict) and last.get("role") == "assistant"
    found = {split: kind for kind, (_, split) in KINDS.items() if kind.startswith("sft") == answered}
    return found.get(str(first.get("split")), "sft" if answered else "grpo")


def session_problems(path: Path, rows: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Every fault of every session, and ids that stand twice. `rows` by line: blank lines hold none."""
    found = [f"{path}:{line}: {fault}" for line, row in rows.items() for fault in session_faults(row)]
    return found + _repeated(path, rows)


def set_problems(path: Path, rows: Mapping[int, dict[str, Any]], kind: str, reward: Reward, style: str) -> list[str]:
    """Every problem of every row of a set, and ids that stand twice. `rows` by line: blank lines hold none."""
    purpose, split = KINDS[kind]
    checked = "watch" if purpose.endswith("watch") else "train"
    found: list[str] = []
    for line, row in rows.items():
        if row.get("split") == split:
            # One check serves watch, dev92 and test: what differs is the split's name, which is right here.
            row = {**row, "split": checked}
        texts = problems(Dataset(path, (line,), (row,), ""), purpose, reward, style)
        found += [f"{path}:{line}: {text}" for text in half_characters(row)]
        found += texts or [f"{path}:{line}: {text}" for text in _prompt_problems(row, style)]
    return found + _repeated(path, rows)


def _prompt_problems(row: Mapping[str, Any], style: str) -> list[str]:
    """What is wrong with the prompt of a row that is sound in itself."""
    messages = row["messages"]
    prompt = messages[:-1] if messages[-1]["role"] == "assistant" else messages
    texts = []
    if "prior_context" in row and isinstance(row.get("text"), str):
        earlier = row["prior_context"]
        if not isinstance(earlier, list) or not all(isinstance(one, str) for one in earlier):
            return ["the column prior_context must be a list of texts, the shopper's earlier turns"]
        if prompt != build_messages(row["text"], earlier, style):
            texts.append(
                "the column messages is not the prompt that swift_plugin.prompts makes of text and prior_context:"
                " SFT, GRPO and serving would see different prompts"
            )
    try:
        tokens = prompt_tokens(prompt)
    except VocabularyMissing:
        return texts  # main says so once
    if tokens > MOST_PROMPT_TOKENS:
        texts.append(f"the column messages: the prompt has {tokens} Qwen tokens, more than {MOST_PROMPT_TOKENS}")
    return texts


def _repeated(path: Path, rows: Mapping[int, Mapping[str, Any]]) -> list[str]:
    lines: dict[str, list[int]] = {}
    for line, row in rows.items():
        if isinstance(row.get("id"), str):
            lines.setdefault(row["id"], []).append(line)
    return [
        f"{path}:{found[-1]}: the column id: {name!r} stands in lines {', '.join(map(str, found))}"
        for name, found in lines.items()
        if len(found) > 1
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/data/validate.py my_rows.jsonl\n"
        "  python scripts/data/validate.py my_rows.jsonl --as grpo --prompt-style short",
    )
    parser.add_argument("file", type=Path, help="your rows (JSONL)")
    parser.add_argument("--as", dest="kind", choices=(SESSIONS, *KINDS), help="what the file is (default: as it looks)")
    parser.add_argument("--prompt-style", choices=PROMPT_STYLES, help="system prompt (default: PLANNER_PROMPT)")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    args = parser.parse_args(argv)
    try:
        settings = Settings.from_env()
        loaded = load(str(args.file))
        rows = dict(zip(loaded.lines, loaded.rows, strict=True))
        kind = args.kind or kind_of(loaded.rows)
        style = args.prompt_style or settings.prompt
        reward = load_reward(settings.reward_file)
    except (OSError, ValueError, DatasetError) as error:
        print(error, file=sys.stderr)
        return 2
    if kind == SESSIONS:
        found = session_problems(args.file, rows)
    else:
        found = set_problems(args.file, rows, kind, reward, style)
    if args.json:
        verdict = {"file": str(args.file), "kind": kind, "rows": len(rows), "problems": found}
        print(json.dumps(verdict, ensure_ascii=False))
    else:
        print(*found, sep="\n", end="\n" if found else "")
        bad = len(Counter(text.split(": ", 1)[0] for text in found))
        print(f"{args.file}: {len(rows)} rows as {kind}: " + (f"{len(found)} problems in {bad}" if found else "fine"))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
