"""Adversarial seeds: requests written by hand, each with a trap, that the builder expands over the category cards.

One seed is one line of `data/adversarial_seeds.jsonl`:

    id, family   `family` is one of FAMILIES
    trap         what is hard about it, for people
    turns        oldest first; each {text} and, where needed, about, clear, drops, budget, exclude, golden
    domains      only cards of one of these domains (default: all)
    attribute    the English form of an attribute that the last turn states in its own words (only cards that have it)
    far          true: the other category shares no domain with the card

Texts hold slots: {cat} {other} names of the card and of a neighbouring one; {anchor} {attr} {attr2} {attr_en} what is
asked for, {thing_en} anchor and attribute in one English phrase; {n} {m} a sum and a larger one in shoppers' writing,
{d} the first in digits; {x} {x_en} something to exclude. Square brackets mark the words that are the evidence of an
exclusion.

A turn's `about` is `cat` or `other`; `clear` true lifts an earlier limit; `drops` lists attribute slots that no longer
count; `budget` is the slot whose sum this turn sets (default: n where the text has {n} or {d}); `exclude` is the
English word that the evidence excludes; `golden` false marks talk that nothing is asked in.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reward.planner_reward import DOMAINS
from scripts.data.demo_templates import SLOT
from scripts.files import json_lines
from swift_plugin.settings import CHECKOUT

DEFAULT_SEEDS = CHECKOUT / "data" / "adversarial_seeds.jsonl"
FAMILIES = (
    "accessory_flood",
    "usage_confusion",
    "numeric_specification",
    "domain_drift",
    "brand_pollution",
    "cross_lingual",
    "gender_age",
    "retracted_constraint",
)
FEWEST_SEEDS = 6  # a family: with fewer, test could not have wordings of its own
SLOTS = frozenset("cat other other_anchor anchor thing_en attr attr2 attr_en n m d x x_en".split())
NAMES = frozenset({"cat", "anchor", "thing_en", "other"})
SEED_KEYS = {"id", "family", "trap", "turns", "domains", "attribute", "far"}
TURN_KEYS = {"text", "about", "clear", "drops", "budget", "exclude", "golden"}


@dataclass(frozen=True)
class SeedTurn:
    """One turn of a seed; the keys are described at the top of this module."""

    text: str
    about: str = "cat"
    clear: bool = False
    drops: tuple[str, ...] = ()
    budget: str | None = None
    exclude: str | None = None
    golden: bool = True

    @property
    def slots(self) -> frozenset[str]:
        """The slots of the text and of the excluded word."""
        return frozenset(SLOT.findall(self.text + (self.exclude or "")))


@dataclass(frozen=True)
class Seed:
    """One seed; the keys are described at the top of this module."""

    id: str
    family: str
    trap: str
    turns: tuple[SeedTurn, ...]
    domains: frozenset[str] = frozenset()
    attribute: str | None = None
    far: bool = False

    @property
    def slots(self) -> frozenset[str]:
        """The slots of all turns."""
        return frozenset().union(*(one.slots for one in self.turns))


def load_seeds(path: Path = DEFAULT_SEEDS) -> tuple[Seed, ...]:
    """Read and check the seeds. Raises FileNotFoundError, or ValueError naming the line and every fault."""
    seeds: list[Seed] = []
    faults: list[str] = []
    for number, raw in json_lines(path):
        where = f"{path.name}:{number}"
        try:
            seed = _seed(raw)
        except (ValueError, KeyError, TypeError) as error:
            faults.append(f"{where}: no seed: {error}")
            continue
        faults += [f"{where} ({seed.id}): {fault}" for fault in _faults(seed)]
        seeds.append(seed)
    for name, count in Counter(seed.id for seed in seeds).items():
        if count > 1:
            faults.append(f"{path.name}: the id {name} stands {count} times")
    for family in FAMILIES:
        count = sum(seed.family == family for seed in seeds)
        if count < FEWEST_SEEDS:
            faults.append(f"{path.name}: family {family} has {count} seeds, needs {FEWEST_SEEDS}")
    if faults:
        raise ValueError("\n".join(faults))
    return tuple(seeds)


def _seed(raw: dict[str, Any]) -> Seed:
    if unknown := set(raw) - SEED_KEYS:
        raise ValueError(f"unknown keys {', '.join(sorted(unknown))}")
    turns = []
    for one in raw["turns"]:
        if unknown := set(one) - TURN_KEYS:
            raise ValueError(f"unknown turn keys {', '.join(sorted(unknown))}")
        budget = one["budget"] if "budget" in one else "n" if {"n", "d"} & set(SLOT.findall(one["text"])) else None
        turns.append(SeedTurn(**{**one, "drops": tuple(one.get("drops", ())), "budget": budget}))
    return Seed(**{**raw, "turns": tuple(turns), "domains": frozenset(raw.get("domains", ()))})


def _faults(seed: Seed) -> list[str]:
    faults = []
    if seed.family not in FAMILIES:
        faults.append(f"family {seed.family!r} is none of {', '.join(FAMILIES)}")
    if not seed.trap.strip():
        faults.append("trap must say what is hard")
    if unknown := seed.domains - set(DOMAINS):
        faults.append(f"unknown domains {', '.join(sorted(unknown))}")
    if unknown := seed.slots - SLOTS:
        faults.append(f"unknown slots {', '.join(sorted(unknown))}")
    if not NAMES & seed.turns[0].slots:
        faults.append("the first turn must name what is wanted by {cat}, {anchor} or {other}")
    if not seed.turns[-1].golden:
        faults.append("the last turn is the one that is asked, so it needs a golden")
    for number, one in enumerate(seed.turns, 1):
        brackets = one.text.count("[") == one.text.count("]") == 1
        if brackets != (one.exclude is not None):
            faults.append(f"turn {number}: an excluded word and one pair of brackets belong together")
        if one.about not in ("cat", "other"):
            faults.append(f"turn {number}: about {one.about!r} is neither cat nor other")
        if one.budget not in (None, "n", "m"):
            faults.append(f"turn {number}: budget {one.budget!r} is neither n, m nor null")
        if one.clear and one.budget:
            faults.append(f"turn {number}: lifts the limit and sets one")
    return faults
