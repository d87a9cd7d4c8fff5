"""How close two requests are by their characters: what the builder drops from training, and the test checks.

Two texts count as near-duplicates when they are equal after normalisation, share most of their character pairs
(Jaccard), or when one text contains most of the other's pairs (containment).
"""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

JACCARD_LIMIT = 0.5
CONTAINMENT_LIMIT = 0.6


@dataclass(frozen=True)
class Closeness:
    """`jaccard`: shared pairs / all pairs. `containment`: shared pairs / pairs of the first text. Both in [0, 1]."""

    jaccard: float
    containment: float

    @property
    def near_duplicate(self) -> bool:
        return self.jaccard >= JACCARD_LIMIT or self.containment >= CONTAINMENT_LIMIT


def normalised(text: str) -> str:
    """NFKC, without case, letters and digits only: what is left when typing habits are taken away."""
    return "".join(char for char in unicodedata.normalize("NFKC", text).casefold() if char.isalnum())


def pairs(text: str) -> frozenset[str]:
    """The pairs of neighbouring characters of a text after normalisation; a single character stands for itself."""
    plain = normalised(text)
    return frozenset(plain[at : at + 2] for at in range(len(plain) - 1)) or frozenset({plain})


def closeness(first: frozenset[str], second: frozenset[str]) -> Closeness:
    """How close two sets of `pairs` are.

    >>> closeness(pairs("想买跑鞋"), pairs("想买 跑鞋！"))
    Closeness(jaccard=1.0, containment=1.0)
    """
    shared = len(first & second)
    return Closeness(shared / len(first | second), shared / len(first))


class HeldTexts:
    """Texts that must not come back in training, found by their character pairs."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._held = [(text, pairs(text)) for text in texts]
        self._holders: dict[str, list[int]] = {}
        for index, (_, held) in enumerate(self._held):
            for pair in held:
                self._holders.setdefault(pair, []).append(index)

    def closest(self, turns: Iterable[str]) -> tuple[str, Closeness]:
        """The held text closest to any of `turns` (near-duplicates first, then by Jaccard), and how close it is.

        ("", Closeness(0, 0)) where no held text shares a pair with a turn.
        """
        best = ("", Closeness(0.0, 0.0))
        for turn in turns:
            turn_pairs = pairs(turn)
            candidates = {index for pair in turn_pairs for index in self._holders.get(pair, ())}
            for text, held in (self._held[index] for index in sorted(candidates)):
                best = max(best, (text, closeness(held, turn_pairs)), key=_rank)
        return best

    def near_duplicate(self, turns: Iterable[str]) -> bool:
        """Whether one of `turns` is a near-duplicate of a held text."""
        return self.closest(turns)[1].near_duplicate


def _rank(found: tuple[str, Closeness]) -> tuple[bool, float, float]:
    return (found[1].near_duplicate, found[1].jaccard, found[1].containment)
