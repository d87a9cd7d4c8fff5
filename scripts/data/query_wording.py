"""Wording one session of the matrix: facts from a card and a cell, words from a voice.

A voice is one eighth of the templates, so that the gate can hold out whole voices: no clause of a held-out session
was seen in training in the same words. Tone and scene are said around the clauses and vary within every voice.
Golden records and plan hints are read off the facts, never off the words.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scripts.data.build_planner_adversarial import fitting_exclusions, spoken_names, usable_attributes
from scripts.data.demo_money import written_vague
from scripts.data.demo_requests import Facts, Shopper, Unwanted, golden_record
from scripts.data.demo_targets import keywords
from scripts.data.demo_templates import SECTIONS, Filled, Templates, load_templates
from scripts.data.query_matrix import DIMENSIONS, Cell
from scripts.data.sessions import Session, turn
from swift_plugin.cards import Attribute, Card, rivals
from swift_plugin.settings import CHECKOUT

TEMPLATES = CHECKOUT / "data" / "demo" / "templates_train.json"
WORDING = CHECKOUT / "data" / "query_wording.json"
VOICES = 8
ATTRIBUTES = {"none": 0, "one": 1, "two": 2}
COMBINED = 0.35  # of the first turns with one attribute say it in a clause of its own
OPENED_FIRST, OPENED_LATER, ENDED = 0.8, 0.25, 0.6  # shares of the turns with an opener or an ending of their tone
TERSE_DRAWS = 3  # of which the shortest is said


@dataclass(frozen=True)
class Tone:
    """What stands before, after and between the clauses."""

    openers: tuple[str, ...]
    endings: tuple[str, ...]
    joints: tuple[str, ...]


@dataclass(frozen=True)
class Wording:
    """All words of the generated sessions: a `Templates` for each voice, tones, scenes with a clause for each voice."""

    voices: tuple[Templates, ...]
    tones: Mapping[str, Tone]
    scenes: Mapping[str, tuple[str, ...]]


def load_wording(templates: Path = TEMPLATES, wording: Path = WORDING) -> Wording:
    """Read and check both files. Raises FileNotFoundError, or ValueError naming the file and the section."""
    base = load_templates(templates)
    data = json.loads(wording.read_text(encoding="utf-8"))
    for name in ("tone", "scene"):
        if set(data[f"{name}s"]) != set(DIMENSIONS[name]):
            found = ", ".join(data[f"{name}s"])
            raise ValueError(f"{wording}: {name}s must be {', '.join(DIMENSIONS[name])}, found {found}")
    if unknown := set(data["sections"]) - set(SECTIONS):
        raise ValueError(f"{wording}: unknown sections {', '.join(sorted(unknown))}")
    sections = {name: (*texts, *data["sections"].get(name, ())) for name, texts in base.sections.items()}
    for name, texts in sections.items():
        if len(texts) < VOICES:
            raise ValueError(f"{wording}: section {name} has {len(texts)} templates, needs {VOICES}, one a voice")
    voices = tuple(
        replace(base, sections={name: texts[voice::VOICES] for name, texts in sections.items()})
        for voice in range(VOICES)
    )
    tones = {
        name: Tone(tuple(one["openers"]), tuple(one["endings"]), tuple(one["joints"]))
        for name, one in data["tones"].items()
    }
    return Wording(voices, tones, {name: tuple(texts) for name, texts in data["scenes"].items()})


@dataclass
class Said:
    """One turn before it is worded: its facts (what holds after it) and its clauses."""

    facts: Facts
    clauses: list[Filled] = field(default_factory=list)


class QueryShopper(Shopper):
    """Words sessions of the matrix. One for each voice; all share one source of chance.

    Args:
        voice: which of the wording's voices, from 0.
    """

    def __init__(
        self, rng: random.Random, cards: Sequence[Card], unwanted: Sequence[Unwanted], wording: Wording, voice: int
    ) -> None:
        super().__init__(rng, cards, unwanted, wording.voices[voice], held_out_share=0.0)
        self._wording, self._voice = wording, voice
        self._tone = wording.tones["plain"]
        self._terse = False

    def session(self, cell: Cell, card: Card | None) -> tuple[list[dict[str, Any]], str] | None:
        """The turns and the family of a session; None where the card has nothing for the cell.

        `card`: what is asked for in the last turn; None exactly for the turns without a card.
        """
        self._tone, self._terse = self._wording.tones[cell.tone], cell.tone == "terse"
        if cell.turn == "talk":
            said, family = self._say_talk(cell)
        elif card is None:
            said, family = [self._say_fragment(cell)], "follow_up_no_context"
        else:
            drawn = self._facts_of(cell, card)
            if drawn is None:
                return None
            say = {"first": self._say_first, "switch": self._say_switch}.get(cell.turn, self._say_talkback)
            said = say(cell, drawn)
            family = family_of(cell)
        scene = self.rng.choice(self._wording.scenes[cell.scene][self._voice :: VOICES] or ("",))
        return [self._worded(one, at == 0, scene if at == 0 else "") for at, one in enumerate(said)], family

    # Facts

    def _facts_of(self, cell: Cell, card: Card) -> Facts | None:
        usable = usable_attributes(card)
        count = ATTRIBUTES[cell.attribute]
        attributes: list[Attribute] = []
        for one in self.rng.sample(usable, len(usable)):
            if len(attributes) < count and not any(rivals(one, other) for other in attributes):
                attributes.append(one)
        if len(attributes) < count or not spoken_names(card):
            return None
        unwanted = None
        if cell.exclusion != "none":
            fitting = fitting_exclusions(card, attributes, self.unwanted, self.cards)
            if not fitting:
                return None
            unwanted = self.rng.choice(fitting)
        return Facts(card=card, attributes=tuple(attributes), unwanted=unwanted)

    # Turns

    def _say_first(self, cell: Cell, facts: Facts) -> list[Said]:
        one = Said(Facts(card=facts.card, attributes=facts.attributes))
        if cell.attribute == "one" and self.rng.random() < COMBINED:
            one.clauses = [self._ask(Facts(card=facts.card)), self._fill("combo_attribute", **self._slots(facts))]
        else:
            one.clauses = [self._ask(one.facts)]
        self._add_budget(one, cell.budget)
        self._add_exclusion(one, cell.exclusion, facts.unwanted)
        return [one]

    def _say_switch(self, cell: Cell, facts: Facts) -> list[Said]:
        dropped = self._some_facts()
        while dropped.card is facts.card:
            dropped = self._some_facts()
        last = Said(Facts(card=facts.card, attributes=facts.attributes))
        last.clauses = [self._fill("switch", **self._slots(facts))]
        last.clauses += [self._fill("combo_attribute", attr=self._form(one)) for one in facts.attributes]
        self._add_budget(last, cell.budget)
        self._add_exclusion(last, cell.exclusion, facts.unwanted)
        return [Said(dropped, [self._ask(dropped)]), last]

    def _say_talkback(self, cell: Cell, facts: Facts) -> list[Said]:
        """Two turns (`follow_up`) or three (`long`): the category first, every other part in one of the turns."""
        turns = 2 if cell.turn == "follow_up" else 3
        parts: list[Any] = [*facts.attributes]
        parts += ["exclusion"] if cell.exclusion != "none" else []
        parts += ["budget"] if cell.budget not in ("none", "lifted") else []
        self.rng.shuffle(parts)
        if cell.budget == "lifted":
            parts.append("budget")  # the last part goes to the last turn: a limit stands in the first
        places = [self.rng.randrange(turns) for _ in parts]
        for place in range(1, turns):  # the last parts fill the later turns, so that each says something new
            places[-(turns - place)] = place
        said: list[Said] = []
        held: list[Attribute] = []
        for place in range(turns):
            mine = [part for part, at in zip(parts, places, strict=True) if at == place]
            new = [part for part in mine if isinstance(part, Attribute)]
            held += new
            one = Said(Facts(card=facts.card, attributes=tuple(held)))
            if place == 0:
                one.clauses = [self._ask(one.facts)]
                if cell.budget == "lifted":
                    self._set_amount(one, "prior_budget")
            else:
                sections = ["follow_attribute"] + ["combo_attribute"] * len(new)
                one.clauses = [
                    self._fill(name, attr=self._form(attribute))
                    for name, attribute in zip(sections, new, strict=False)
                ]
            if "budget" in mine:
                self._add_budget(one, cell.budget)
            if "exclusion" in mine:
                self._add_exclusion(one, cell.exclusion, facts.unwanted)
            said.append(one)
        return said

    def _say_fragment(self, cell: Cell) -> Said:
        one = Said(Facts(status="context_missing"))
        if cell.attribute == "one":
            _, attribute = self._decks["attribute False"].draw()
            one.clauses = [self._fill("fragment_attribute", attr=self._form(attribute))]
        elif cell.budget != "none":
            self._add_budget(one, cell.budget, section="fragment_budget")
        elif cell.exclusion == "hard":
            unwanted = self._pick_unwanted(one.facts)
            one.facts = replace(one.facts, unwanted=unwanted)
            one.clauses = [self._fill("fragment_exclude", x=self._thing(unwanted))]
        else:
            one.clauses = [self._fill("fragment")]
        return one

    def _say_talk(self, cell: Cell) -> tuple[list[Said], str]:
        family = "vague" if cell.budget != "none" or self.rng.random() < 0.4 else "chitchat"
        one = Said(Facts(), [self._fill(family)])
        self._add_budget(one, cell.budget)
        return [one], family

    # Parts of a turn

    def _form(self, attribute: Attribute) -> str:
        return self.rng.choice(attribute.zh).removesuffix("的")

    def _thing(self, unwanted: Unwanted) -> str:
        """A form that stands well before a particle: 黑色 rather than 黑的."""
        return self.rng.choice([form for form in unwanted.zh if not form.endswith("的")] or unwanted.zh)

    def _set_amount(self, one: Said, section: str) -> None:
        amount = self._amount(one.facts)
        one.facts = replace(one.facts, budget_amount=amount)
        one.clauses.append(self._fill(section, n=self._written(amount), b=self._written(amount)))

    def _add_budget(self, one: Said, form: str, section: str = "follow_budget") -> None:
        """Add the budget clause. `section` is what a turn says that has nothing else to say."""
        alone = not one.clauses
        if form == "exact":
            self._set_amount(one, section if alone else "budget_exact")
        elif form == "range":
            high = self._amount(one.facts)
            one.facts = replace(one.facts, budget_amount=high)
            written = self._range(high)
            one.clauses.append(self._fill(section if alone else "budget_range", b=written, r=written))
        elif form == "vague":
            one.facts = replace(one.facts, budget_uncertain=True)
            one.clauses.append(self._fill("budget_vague", v=self._vague(self._amount(one.facts))))
        elif form == "lower":
            one.clauses.append(self._fill("budget_lower", n=self._written(self._amount(one.facts))))
        elif form == "open":
            one.clauses.append(self._fill("budget_open"))
        elif form == "lifted":
            one.facts = replace(one.facts, clear_budget=True)
            one.clauses.append(self._fill("follow_lifted"))

    def _add_exclusion(self, one: Said, kind: str, unwanted: Unwanted | None) -> None:
        if kind == "none" or unwanted is None:
            return
        if kind == "hard":
            one.facts = replace(one.facts, unwanted=unwanted)
        one.clauses.append(self._fill(f"exclude_{kind}", x=self._thing(unwanted)))

    def _vague(self, near: float) -> str:
        return written_vague(self.rng, near)

    def _name(self, card: Card) -> str:
        return self.rng.choice(spoken_names(card))

    def _fill(self, section: str, **slots: str) -> Filled:
        draws = [super(QueryShopper, self)._fill(section, **slots) for _ in range(TERSE_DRAWS if self._terse else 1)]
        return min(draws, key=lambda one: len(one.text))

    def _worded(self, one: Said, first: bool, scene: str) -> dict[str, Any]:
        """The turn: text, golden, plan hint. The scene, and mostly the opener, stand in the first turn."""
        opened = self.rng.random() < (OPENED_FIRST if first else OPENED_LATER)
        text = (self.rng.choice(self._tone.openers) if opened else "") + scene + one.clauses[0].text
        for clause in one.clauses[1:]:
            text += self.rng.choice(self._tone.joints) + clause.text
        if self.rng.random() < ENDED:
            text += self.rng.choice(self._tone.endings)
        text = text.strip()
        evidence = next((clause.evidence for clause in one.clauses if clause.evidence), "")
        card, unwanted = one.facts.card, one.facts.unwanted
        hint = {
            "keywords": keywords(self.rng, card, one.facts.attributes) if card else [],
            "exclude_terms": [{"word": unwanted.en, "evidence": evidence}] if unwanted else [],
        }
        return turn(text, golden_record(one.facts), hint)


def family_of(cell: Cell) -> str:
    """The family of a session that names goods, by the names of demo_requests.FAMILIES."""
    if cell.turn == "switch":
        return "switch"
    if cell.turn != "first":
        return "budget_lifted" if cell.budget == "lifted" else "multi_turn"
    if cell.exclusion == "hard":
        return "combo" if cell.budget not in ("none", "open") else "exclusion_hard"
    if cell.exclusion == "soft":
        return "exclusion_soft"
    budgets = {"exact": "exact", "range": "range", "vague": "colloquial", "lower": "lower_bound", "open": "open"}
    if cell.budget != "none":
        return f"budget_{budgets[cell.budget]}"
    return {"none": "single", "one": "attribute", "two": "two_attributes"}[cell.attribute]


def session_row(
    identity: str, cell: Cell, voice: int, card: Card | None, turns: list[dict[str, Any]], family: str
) -> Session:
    """The session as a row between the data stages."""
    return {
        "id": identity,
        "source": "template",
        "family": family,
        "card": card.id if card else None,
        "split": None,
        "dimensions": {"template": f"voice-{voice}", **cell._asdict()},
        "turns": turns,
    }
