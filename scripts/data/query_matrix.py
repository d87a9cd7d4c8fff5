"""The matrix that generated sessions are drawn from: six dimensions, which cells make sense, and balanced drawing.

A cell names one value of each dimension. Cells are drawn so that every value comes as often as its weight says, and
every pair of values about as often as the two together would by chance: with 1,200 sessions the thousands of cells
cannot all be filled, the pairs can.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from scripts.data.build_demo_requests import shares

# Values with their weights. `budget`: how a sum is said; `turn`: what stands before the last turn.
DIMENSIONS: dict[str, dict[str, float]] = {
    "budget": {"none": 5, "exact": 3, "range": 2, "vague": 2, "lower": 1.5, "open": 1.2, "lifted": 1.5},
    "exclusion": {"none": 4, "hard": 2, "soft": 1},
    "attribute": {"none": 1.5, "one": 2, "two": 1},
    "turn": {"first": 6, "follow_up": 3.5, "long": 2, "switch": 1.5, "fragment": 1, "talk": 0.9},
    "tone": {"plain": 1, "polite": 1, "terse": 1, "chatty": 1},
    "scene": {"none": 1, "gift": 1, "replace": 1, "occasion": 1, "errand": 1, "first_time": 1},
}
WITHOUT_CARD = ("fragment", "talk")  # turns whose category cannot be known
CANDIDATES = 80  # cells looked at for each one drawn
FRAGMENT_BUDGETS = ("none", "exact", "range", "lifted")
TALK_BUDGETS = ("none", "exact")


class Cell(NamedTuple):
    """One value of each dimension."""

    budget: str
    exclusion: str
    attribute: str
    turn: str
    tone: str
    scene: str

    @property
    def parts(self) -> int:
        """How many things are said beside the category: attributes, a budget, an exclusion."""
        return ("none", "one", "two").index(self.attribute) + (self.budget != "none") + (self.exclusion != "none")


def makes_sense(cell: Cell) -> bool:
    """Whether a shopper can say this.

    A later turn has to say something new; a limit can only be lifted after it was set; a fragment says one thing at
    most; talk names no goods; a session opens no scene where it names none.
    """
    if cell.turn in WITHOUT_CARD and cell.scene != "none":
        return False
    if cell.turn == "talk":
        return cell.exclusion == cell.attribute == "none" and cell.budget in TALK_BUDGETS
    if cell.turn == "fragment":
        return (
            cell.budget in FRAGMENT_BUDGETS
            and cell.exclusion != "soft"
            and cell.attribute != "two"
            and cell.parts <= 1
        )
    if cell.budget == "lifted" and cell.turn not in ("follow_up", "long"):
        return False
    if cell.budget == "lifted" and cell.turn == "long":
        return cell.parts >= 2
    return cell.parts >= {"first": 0, "switch": 0, "follow_up": 1, "long": 2}[cell.turn]


def cells() -> list[Cell]:
    """Every cell that makes sense, in a fixed order."""
    return [cell for one in itertools.product(*DIMENSIONS.values()) if makes_sense(cell := Cell(*one))]


def pairs_of(cell: Cell) -> Iterator[tuple[str, str]]:
    """The pairs of values of a cell, each as `dimension=value` texts."""
    return itertools.combinations((f"{name}={value}" for name, value in zip(DIMENSIONS, cell, strict=True)), 2)


def draw_cells(count: int, rng: random.Random) -> list[Cell]:
    """`count` cells, every value and every pair of values in balance, in random order.

    Each time the cell is taken, of CANDIDATES drawn by weight, whose values and pairs are furthest below their share.
    """
    possible = cells()
    totals = {name: sum(values.values()) for name, values in DIMENSIONS.items()}
    share = {f"{name}={v}": w / totals[name] for name, values in DIMENSIONS.items() for v, w in values.items()}
    by_turn = {turn: [cell for cell in possible if cell.turn == turn] for turn in DIMENSIONS["turn"]}
    quotas = shares(count, DIMENSIONS["turn"])
    said: Counter[str] = Counter()
    paired: Counter[tuple[str, str]] = Counter()

    def excess(cell: Cell) -> float:
        values = [f"{name}={value}" for name, value in zip(DIMENSIONS, cell, strict=True)]
        singles = sum(said[value] / share[value] for value in values)
        doubles = sum(paired[pair] / (share[pair[0]] * share[pair[1]]) for pair in pairs_of(cell))
        return 3 * singles + doubles / 5

    order = [turn for turn in DIMENSIONS["turn"] for _ in range(quotas[turn])]
    rng.shuffle(order)
    drawn = []
    for turn in order:
        cell = min(rng.choices(by_turn[turn], k=CANDIDATES), key=excess)
        said.update(f"{name}={value}" for name, value in zip(DIMENSIONS, cell, strict=True))
        paired.update(pairs_of(cell))
        drawn.append(cell)
    return drawn


def table(dimensions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How often each value stands in `dimensions`, and for each pair of dimensions the least and most frequent cell.

    A pair of values that never makes sense (a fragment with two attributes) is not counted as an empty cell.
    """
    possible: Counter[tuple[str, str]] = Counter(pair for cell in cells() for pair in pairs_of(cell))
    found: Counter[tuple[str, str]] = Counter(
        pair for one in dimensions for pair in pairs_of(Cell(*(one[name] for name in DIMENSIONS)))
    )
    crossed: dict[str, dict[str, int]] = {}
    for left, right in itertools.combinations(DIMENSIONS, 2):
        counts = [found[pair] for pair in possible if _names(pair) == (left, right)]
        crossed[f"{left} x {right}"] = {
            "cells": len(counts),
            "empty": sum(count == 0 for count in counts),
            "least": min(counts),
            "most": max(counts),
        }
    return {
        "values": {name: _ordered((one[name] for one in dimensions), DIMENSIONS[name]) for name in DIMENSIONS},
        "pairs": crossed,
        "cells_possible": len(cells()),
        "cells_filled": len({tuple(one[name] for name in DIMENSIONS) for one in dimensions}),
    }


def _names(pair: tuple[str, str]) -> tuple[str, str]:
    return pair[0].partition("=")[0], pair[1].partition("=")[0]


def _ordered(values: Iterable[str], order: Iterable[str]) -> dict[str, int]:
    counts = Counter(values)
    return {value: counts[value] for value in order}
