"""Statistics of groups of rewards, as GRPO uses them: the last axis of an array is one group.

A batch of ``n`` completions that a trainer lays out group by group is brought into this form by
``rewards.reshape(-1, num_generations)``. Everything here is a pure function over numpy arrays (float64).
"""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

SIGMA_EPS = 1e-8


def _groups(rewards: ArrayLike) -> NDArray[np.float64]:
    groups = np.asarray(rewards, dtype=np.float64)
    if groups.ndim == 0 or groups.shape[-1] == 0:
        raise ValueError(f"rewards of shape {groups.shape}: the last axis is a group of at least one reward")
    bad = np.argwhere(~np.isfinite(groups))
    if bad.size:
        place = tuple(int(i) for i in bad[0])
        raise ValueError(f"rewards{list(place)} is {groups[place]}: each completion needs a finite score")
    return groups


def _equal(groups: NDArray[np.float64]) -> NDArray[np.bool_]:
    # Not by sigma == 0: the mean of equal rewards is rounded, and sigma with it.
    return np.asarray(groups.max(axis=-1) == groups.min(axis=-1))


def group_advantages(
    rewards: ArrayLike, *, scale: bool = True, eps: float = SIGMA_EPS
) -> NDArray[np.float64]:
    """Group-relative advantages: (reward - mean of its group) / (sigma of its group + eps).

    ``rewards``: shape (..., group). Returns the same shape; a group of equal rewards gets exact zeros.
    ``scale=False`` leaves the division out (the mean-only variant of Dr. GRPO, arXiv 2503.20783).

    Sigma is the population's (divided by n), so that [1, 0, 0, 1] gives [1, -1, -1, 1]; the formula of
    DeepSeekMath (arXiv 2402.03300) leaves the divisor open. TRL and ms-swift divide by n - 1 and use eps
    1e-4: in a group of n their advantages are smaller by the factor sqrt((n - 1) / n), 0.94 for 8.

    Raises ``ValueError`` for a reward that is not finite, a group without rewards, or a negative eps.

    >>> group_advantages([1, 0, 0, 1]).round(6).tolist()
    [1.0, -1.0, -1.0, 1.0]
    >>> group_advantages([[3, 1], [5, 5]], scale=False).tolist()
    [[1.0, -1.0], [0.0, 0.0]]
    """
    if not eps >= 0:
        raise ValueError(f"eps={eps!r}: 0 or more is expected")
    groups = _groups(rewards)
    deviations = groups - groups.mean(axis=-1, keepdims=True)
    centred: NDArray[np.float64] = np.where(_equal(groups)[..., np.newaxis], 0.0, deviations)
    if not scale:
        return centred
    sigma = np.sqrt(np.mean(np.square(centred), axis=-1, keepdims=True))
    return np.asarray(np.divide(centred, sigma + eps, out=np.zeros_like(centred), where=sigma > 0))


def reinforce_marks(advantages: ArrayLike) -> NDArray[np.bool_]:
    """Which completions are reinforced: those whose advantage is above 0, same shape.

    >>> reinforce_marks([1.0, 0.0, -1.0]).tolist()
    [True, False, False]
    """
    return np.asarray(advantages, dtype=np.float64) > 0


def zero_sigma_share(rewards: ArrayLike) -> float:
    """Share, in [0, 1], of groups whose rewards are all equal, and which therefore teach nothing.

    ``rewards``: shape (..., group). Raises ``ValueError`` without any group.

    >>> zero_sigma_share([[1, 1, 1], [0, 1, 0]])
    0.5
    """
    equal = _equal(_groups(rewards))
    if equal.size == 0:
        raise ValueError("no groups: a share needs at least one")
    return float(equal.mean())


def compose_rewards(parts: ArrayLike, weights: ArrayLike) -> NDArray[np.float64]:
    """Weighted mean of reward parts over those that take part; total weight 0 gives 0.

    ``parts``: shape (..., k), None or NaN where a part abstains. ``weights``: shape (k,), finite, >= 0.
    Returns shape (...). Unlike a plain ``nansum``, an abstention is no zero: the weights are renormalised.
    Raises ``ValueError`` for other weights or shapes, or an infinite part.

    >>> compose_rewards([[1.0, 0.5], [None, 0.5], [None, None]], [3, 1]).tolist()
    [0.875, 0.5, 0.0]
    """
    scores = np.asarray(parts, dtype=np.float64)
    shares = np.asarray(weights, dtype=np.float64)
    if shares.ndim != 1 or scores.ndim == 0 or scores.shape[-1] != shares.shape[0]:
        raise ValueError(f"parts {scores.shape} and weights {shares.shape}: (..., k) and (k,) are expected")
    if not np.all(np.isfinite(shares)) or np.any(shares < 0):
        raise ValueError(f"weights {shares.tolist()}: finite numbers of 0 or more are expected")
    if np.any(np.isinf(scores)):
        raise ValueError("parts hold an infinite score")
    takes_part = ~np.isnan(scores)
    gained = np.where(takes_part, scores, 0.0) @ shares
    total = takes_part @ shares
    return np.divide(gained, total, out=np.zeros_like(total), where=total > 0)


def exact_match(completions: Sequence[str], references: Sequence[str]) -> NDArray[np.float64]:
    """1.0 where a completion is its reference but for white space around it, else 0.0; shape (n,).

    Raises ``ValueError`` when the lengths differ.

    >>> exact_match(["42", " 42\\n", "x"], ["42", "42", "42"]).tolist()
    [1.0, 1.0, 0.0]
    """
    pairs = zip(completions, references, strict=True)
    return np.array([done.strip() == wanted.strip() for done, wanted in pairs], dtype=np.float64)


def pattern_match(completions: Sequence[str], pattern: str | re.Pattern[str]) -> NDArray[np.float64]:
    """1.0 where the pattern matches the whole completion but for white space around it, else 0.0; shape (n,).

    >>> pattern_match(["7 USD", "about 7 USD"], r"[0-9]+ USD").tolist()
    [1.0, 0.0]
    """
    compiled = re.compile(pattern)
    found = [compiled.fullmatch(completion.strip()) is not None for completion in completions]
    return np.array(found, dtype=np.float64)
