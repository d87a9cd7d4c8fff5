"""Token counts of the Qwen vocabulary, offline: the wheel `dashscope` ships it as qwen.tiktoken."""

import base64
import importlib.util
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

REMEDY = "Qwen tokens cannot be counted: pip install dashscope tiktoken (the extra dev has both)"
MOST_PROMPT_TOKENS = 700  # of a whole prompt, roles included
# How the vocabulary splits text, and its first special tokens, as Qwen's own tokenizer has them.
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


class VocabularyMissing(RuntimeError):
    """The Qwen vocabulary is not installed; the message says how to get it."""


def vocabulary_file() -> Path:
    """Where the vocabulary lies. Raises VocabularyMissing; `dashscope` is looked up, never imported."""
    spec = importlib.util.find_spec("dashscope")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [file for folder in folders if (file := Path(folder) / "resources" / "qwen.tiktoken").is_file()]
    if not files:
        raise VocabularyMissing(REMEDY)
    return files[0]


@lru_cache(maxsize=1)
def _encoding() -> Any:
    try:
        import tiktoken
    except ImportError:
        raise VocabularyMissing(REMEDY) from None
    lines = (line.split() for line in vocabulary_file().read_bytes().splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    special = {name: len(ranks) + at for at, name in enumerate(_SPECIAL)}
    return tiktoken.Encoding("qwen", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens=special)


def text_tokens(text: str) -> int:
    """Tokens of a text; special tokens in it are taken as plain characters."""
    return len(_encoding().encode(text, disallowed_special=()))


def prompt_tokens(messages: Sequence[Mapping[str, str]]) -> int:
    """Tokens of a chat prompt up to where the assistant begins, with the ChatML roles around each message.

    `messages`: {role, content}; a last answer is left out.
    """
    prompt = messages[:-1] if messages and messages[-1]["role"] == "assistant" else messages
    framed = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in prompt)
    # A shopper may write <|im_end|>; counting it as one token is exact enough for a limit.
    return len(_encoding().encode(framed + "<|im_start|>assistant\n", allowed_special="all"))


def token_report(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and maximum of the prompts' tokens and, where the rows have answers, of the answers'.

    Raises VocabularyMissing.
    """
    prompts = [prompt_tokens(row["messages"]) for row in rows]
    last = [row["messages"][-1] for row in rows]
    answers = [text_tokens(one["content"]) for one in last if one["role"] == "assistant"]

    def spread(counts: Sequence[int]) -> dict[str, Any] | None:
        return {"mean": round(sum(counts) / len(counts), 1), "most": max(counts)} if counts else None

    over = sum(count > MOST_PROMPT_TOKENS for count in prompts)
    return {"prompt": spread(prompts), "answer": spread(answers), "over_limit": over, "limit": MOST_PROMPT_TOKENS}
