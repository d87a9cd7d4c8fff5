"""Do two encoders find the same? Pure functions from vectors and titles of the same texts to figures and a verdict."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from swift_plugin.encoders import Vectors

# Acceptance lines: B may stand in for A only if each holds.
MEAN_COSINE = 0.999
MEAN_OVERLAP = 0.95
TOP1_SHARE = 0.99
WORST = 10  # texts shown


@dataclass(frozen=True)
class Compared:
    """One text under both encoders; `tau` is None where fewer than two titles are common."""

    text: str
    cosine: float
    overlap: float
    tau: float | None
    same_first: bool
    first_a: str | None
    first_b: str | None


def cosines(a: Vectors, b: Vectors) -> npt.NDArray[np.float64]:
    """(n,) cosines of the rows of two (n, dim) arrays of unit rows; 0 where one of the two is a zero row."""
    products: npt.NDArray[np.float64] = np.einsum("ij,ij->i", a, b, dtype=np.float64)
    return products


def overlap(a: Sequence[str], b: Sequence[str]) -> float:
    """Share of the longer list's titles that stand in the other one too; a title that stands twice counts twice.

    >>> overlap(["x", "y", "y", "z"], ["y", "x", "w", "y"])
    0.75
    """
    longer = max(len(a), len(b))
    return sum((Counter(a) & Counter(b)).values()) / longer if longer else 1.0


def kendall_tau(a: Sequence[str], b: Sequence[str]) -> float | None:
    """Kendall's tau between the orders in which two lists hold their common titles; None for fewer than two.

    >>> kendall_tau(["x", "y", "z"], ["z", "y", "x"])
    -1.0
    """
    from scipy.stats import kendalltau

    ranks_a, ranks_b = _ranks(a), _ranks(b)
    common = [title for title in ranks_a if title in ranks_b]
    if len(common) < 2:
        return None
    return float(kendalltau([ranks_a[title] for title in common], [ranks_b[title] for title in common]).statistic)


def _ranks(titles: Sequence[str]) -> dict[tuple[str, int], int]:
    """The place of each title; the second item of the same title is a title of its own."""
    seen: Counter[str] = Counter()
    ranks = {}
    for place, title in enumerate(titles):
        ranks[title, seen[title]] = place
        seen[title] += 1
    return ranks


def compare(
    texts: Sequence[str], a: Vectors, b: Vectors, titles_a: Sequence[Sequence[str]], titles_b: Sequence[Sequence[str]]
) -> list[Compared]:
    """One `Compared` a text, from its two vectors and the titles found with each, best first."""
    return [
        Compared(
            text=text,
            cosine=float(cosine),
            overlap=overlap(found_a, found_b),
            tau=kendall_tau(found_a, found_b),
            same_first=found_a[:1] == found_b[:1],
            first_a=found_a[0] if found_a else None,
            first_b=found_b[0] if found_b else None,
        )
        for text, cosine, found_a, found_b in zip(texts, cosines(a, b), titles_a, titles_b, strict=True)
    ]


def figures(compared: Sequence[Compared]) -> dict[str, Any]:
    """What all texts say together. Raises ValueError without any."""
    if not compared:
        raise ValueError("no texts were compared")
    values = np.array([one.cosine for one in compared])
    shares = np.array([one.overlap for one in compared])
    taus = [one.tau for one in compared if one.tau is not None]
    same = sum(one.same_first for one in compared)
    return {
        "texts": len(compared),
        "cosine": {"min": float(values.min()), "p1": float(np.percentile(values, 1)), "mean": float(values.mean())},
        "overlap": {"min": float(shares.min()), "mean": float(shares.mean())},
        "top1": {"count": same, "of": len(compared), "share": same / len(compared)},
        "kendall_tau": {"mean": float(np.mean(taus)) if taus else None, "texts": len(taus)},
    }


def acceptance(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The acceptance lines with the value reached; the verdict is that of all of them."""
    lines = (
        ("mean cosine", found["cosine"]["mean"], MEAN_COSINE),
        ("mean overlap", found["overlap"]["mean"], MEAN_OVERLAP),
        ("top-1 agreement", found["top1"]["share"], TOP1_SHARE),
    )
    return [{"name": name, "value": value, "at_least": line, "passed": value >= line} for name, value, line in lines]


def worst(compared: Sequence[Compared], count: int = WORST) -> list[Compared]:
    """The texts that differ most: by overlap, then by the first title, then by cosine. Texts that agree are none."""
    differing = [one for one in compared if one.overlap < 1.0 or not one.same_first or one.cosine < MEAN_COSINE]
    return sorted(differing, key=lambda one: (one.overlap, one.same_first, one.cosine))[:count]
