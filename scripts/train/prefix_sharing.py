"""How much of a batch's prompts is the same text: token counts, without a model.

A rollout batch repeats the system prompt in every prompt and every prompt once for each completion of its group. An
engine that keeps the keys and values of what it has read (vLLM's prefix caching) computes each distinct prefix once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

VLLM_BLOCK = 16  # tokens: vLLM reuses whole blocks only


@dataclass(frozen=True)
class Sharing:
    """Prompt tokens of a batch, and how many of them are left to compute with a perfect prefix cache."""

    tokens: int
    computed: int

    @property
    def share(self) -> float:
        """Share of the tokens that need not be computed again, from 0 to 1."""
        return 1 - self.computed / self.tokens


def common_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """Length of the longest prefix that all prompts have in common.

    >>> common_prefix([[1, 2, 3], [1, 2, 4, 5]])
    2
    """
    first, last = min(prompts), max(prompts)  # in dictionary order all others lie between these two
    return _same(first, last)


def _same(one: Sequence[int], other: Sequence[int]) -> int:
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))


def sharing(prompts: Sequence[Sequence[int]], copies: int = 1, block: int = 1) -> Sharing:
    """What a cache of `block` tokens a block can save on these prompts, each asked `copies` times.

    The last token of a prompt is always computed: its output is the first token's distribution. The prompts are taken
    in the order that saves most (one that is another's beginning before it).

    Args:
        prompts: token ids of each prompt; none is empty.
        copies: completions a prompt.
        block: only whole blocks of so many tokens are reused.

    >>> sharing([[1, 2, 3], [1, 2, 4]])
    Sharing(tokens=6, computed=4)
    >>> sharing([[1, 2, 3]], copies=4)
    Sharing(tokens=12, computed=6)
    """
    if not prompts or not all(prompts):
        raise ValueError("there is a prompt without tokens: check the set and its template")
    ordered = sorted(list(prompt) for prompt in prompts)
    computed = len(ordered[0])
    for before, prompt in zip(ordered, ordered[1:], strict=False):
        # In this order no earlier prompt has more in common with this one than its neighbour.
        computed += len(prompt) - _reused(min(_same(before, prompt), len(prompt) - 1), block)
    for prompt in ordered:
        computed += (copies - 1) * (len(prompt) - _reused(len(prompt) - 1, block))
    return Sharing(copies * sum(map(len, ordered)), computed)


def _reused(tokens: int, block: int) -> int:
    return tokens // block * block
