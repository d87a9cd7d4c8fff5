"""The wording of the demo's requests: template files, their check, and filling one in with small typing noise.

A template is a Chinese sentence with slots ({cat}, {attr}, {n} ...). In exclusions a pair of square brackets marks
the piece that the shopper's words give as evidence; the brackets themselves are never part of the text.
"""

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SLOT = re.compile(r"\{(\w+)\}")
NOISE_SHARE = 0.08  # of the fillings get one typing slip: rare enough that the clean wording is learnt first
OPENER_SHARE, ENDING_SHARE = 0.3, 0.3

# Every section a template file must hold, with the slots that each of its templates must use.
SECTIONS: dict[str, frozenset[str]] = {
    "single": frozenset({"cat"}),
    "attribute": frozenset({"cat", "attr"}),
    "two": frozenset({"cat", "attr", "attr2"}),
    "budget_exact": frozenset({"n"}),
    "budget_range": frozenset({"r"}),
    "budget_vague": frozenset({"v"}),
    "budget_lower": frozenset({"n"}),
    "budget_short": frozenset(),  # {n} or {r}
    "budget_open": frozenset(),
    "exclude_hard": frozenset({"x"}),
    "exclude_soft": frozenset({"x"}),
    "combo_attribute": frozenset({"attr"}),
    "prior": frozenset({"cat"}),
    "prior_talk": frozenset(),
    "prior_budget": frozenset({"n"}),
    "follow_attribute": frozenset({"attr"}),
    "follow_budget": frozenset({"b"}),
    "follow_lifted": frozenset(),
    "switch": frozenset({"cat"}),
    "fragment": frozenset(),
    "fragment_attribute": frozenset({"attr"}),
    "fragment_budget": frozenset({"b"}),
    "fragment_exclude": frozenset({"x"}),
    "chitchat": frozenset(),
    "vague": frozenset(),
}
FILLERS = ("openers", "endings", "joints")
WITH_EVIDENCE = ("exclude_hard", "fragment_exclude")


@dataclass(frozen=True)
class Filled:
    """A filled template: the text without brackets, and the bracketed piece ("" where there is none)."""

    text: str
    evidence: str = ""


@dataclass(frozen=True)
class Templates:
    """One template file: `sections` by name, fillers around and between clauses, and typing slips."""

    sections: Mapping[str, tuple[str, ...]]
    openers: tuple[str, ...]
    endings: tuple[str, ...]
    joints: tuple[str, ...]
    typos: tuple[tuple[str, str], ...]

    def pick(self, rng: random.Random, section: str, **slots: str) -> Filled:
        """A random template of `section`, filled; a slot it names and `slots` lacks is a KeyError."""
        return fill(rng.choice(self.sections[section]), slots, rng, self.typos)

    def finish(self, rng: random.Random, clauses: Sequence[Filled]) -> Filled:
        """The clauses joined in the order given, sometimes with an opener before and an ending after."""
        text = clauses[0].text
        for clause in clauses[1:]:
            text += rng.choice(self.joints) + clause.text
        if rng.random() < OPENER_SHARE:
            text = rng.choice(self.openers) + text
        if rng.random() < ENDING_SHARE:
            text += rng.choice(self.endings)
        return Filled(text.strip(), next((clause.evidence for clause in clauses if clause.evidence), ""))


def fill(
    template: str, slots: Mapping[str, str], rng: random.Random | None = None, typos: Sequence[tuple[str, str]] = ()
) -> Filled:
    """`template` with its slots filled, its evidence cut out, and perhaps one typing slip outside the slots.

    >>> fill("但是[不要{x}]的", {"x": "黑色"})
    Filled(text='但是不要黑色的', evidence='不要黑色')
    """
    if rng is not None and typos and rng.random() < NOISE_SHARE:
        wrong = [(good, bad) for good, bad in typos if good in template]
        if wrong:
            template = template.replace(*rng.choice(wrong), 1)
    text = SLOT.sub(lambda slot: slots[slot.group(1)], template)
    if "[" not in text:
        return Filled(text)
    before, rest = text.split("[", 1)
    evidence, after = rest.split("]", 1)
    return Filled(before + evidence + after, evidence)


def load_templates(path: Path) -> Templates:
    """Read and check a template file.

    Raises FileNotFoundError, or ValueError naming file, section and template.
    """
    with path.open(encoding="utf-8") as file:
        data = json.load(file)
    expected = {*SECTIONS, *FILLERS, "typos"}
    if set(data) != expected:
        odd = sorted(set(data) ^ expected)
        raise ValueError(f"{path}: sections missing or unknown: {', '.join(odd)}")
    for name, needed in SECTIONS.items():
        if not data[name]:
            raise ValueError(f"{path}: section {name} is empty; write at least one template")
        for template in data[name]:
            if not needed <= set(SLOT.findall(template)):
                raise ValueError(f"{path}: {name}: {template!r} lacks a slot of {sorted(needed)}")
            brackets = template.count("[") == template.count("]") == 1
            if brackets != (name in WITH_EVIDENCE):
                raise ValueError(f"{path}: {name}: {template!r} must mark its evidence with [ ] exactly in exclusions")
    return Templates(
        sections={name: tuple(data[name]) for name in SECTIONS},
        openers=tuple(data["openers"]),
        endings=tuple(data["endings"]),
        joints=tuple(data["joints"]),
        typos=tuple((good, bad) for good, bad in data["typos"]),
    )
