"""Adversarial sessions: hand-written seeds, expanded over the category cards, with goldens known by construction.

Eight families, each with traps that a planner falls into: accessory flood, usage confusion, numeric specification,
domain drift, brand pollution, cross-lingual, gender and age, retracted constraint. Every turn that asks something gets
a golden and a plan hint (keywords, exclusions with verbatim evidence). Attributes that a card holds out for watch and
test are never used. The same cards, seeds and `--seed` give the same bytes.
"""

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from reward.planner_reward import term_hits
from scripts.data.adversarial_seeds import DEFAULT_SEEDS, FAMILIES, Seed, SeedTurn, load_seeds
from scripts.data.build_demo_requests import load_unwanted, shares
from scripts.data.demo_money import nice_amount, written_amount
from scripts.data.demo_requests import YUAN_PER_DOLLAR, Facts, Unwanted, golden_record
from scripts.data.demo_targets import described, keywords
from scripts.data.demo_templates import SLOT, fill
from scripts.data.near_duplicates import normalised
from scripts.data.sessions import Session, turn, turn_texts, write_report, write_rows
from scripts.train.result_file import writable_file
from swift_plugin.cards import DEFAULT_CARDS, Attribute, Card, load_cards, rivals
from swift_plugin.settings import CHECKOUT

DEFAULT_SESSIONS = 321
UNWANTED = CHECKOUT / "data" / "demo" / "exclusions.jsonl"
RAISED = 1.6  # the larger of two sums, as a multiple of the first
MOST_TRIES = 40  # draws for one new session of a seed
NEIGHBOURS = 6  # of the closest cards one is drawn
FIRST_ATTRIBUTE = frozenset({"attr", "attr_en", "thing_en"})  # slots that say the first attribute
# An excluded word that covers attributes of other names: who asks for titanium does not exclude metal.
COVERS: Mapping[str, frozenset[str]] = {
    "metal": frozenset(
        {"stainless steel", "aluminum", "titanium", "cast iron", "sterling silver", "gold plated", "heavy duty"}
    ),
    "gold": frozenset({"gold plated"}),
    "fabric": frozenset({"cotton", "linen", "canvas", "velvet", "silk", "mesh", "plush", "fleece lined"}),
    "battery": frozenset({"rechargeable", "cordless", "wireless", "long battery life"}),
    "rubber": frozenset({"silicone", "non-slip"}),
}


@dataclass(frozen=True)
class Filling:
    """What one session is made of. `slots` holds the text of every slot that the seed uses."""

    card: Card
    other: Card | None
    attributes: Mapping[str, Attribute]  # by slot: attr, attr2, stated
    sums: Mapping[str, int]  # by slot: n, m
    slots: Mapping[str, str]


def usable_attributes(card: Card) -> list[Attribute]:
    """The attributes that training may know of a card."""
    return [one for one in card.attributes if not one.held_out]


def spoken_names(card: Card) -> list[str]:
    """Names that mean this card alone and stand well before a particle (not 涂嘴的)."""
    return [name for name in card.names if name not in card.ambiguous and not name.endswith("的")]


def neighbours(card: Card, cards: Sequence[Card]) -> list[Card]:
    """Cards that are easily taken for this one: they share a Chinese character or a domain, but no name.

    Closest first: the same last character (跑鞋, 拖鞋), then any shared one, then a shared domain.
    """
    mine = " ".join(card.names)

    def apart(other: Card) -> bool:
        theirs = " ".join(other.names)
        inside = any(name in mine for name in other.names) or any(name in theirs for name in card.names)
        return other.id != card.id and not inside

    near = [one for one in cards if apart(one) and (set(card.zh) & set(one.zh) or set(card.domains) & set(one.domains))]
    return sorted(near, key=lambda one: (card.zh[-1] != one.zh[-1], not set(card.zh) & set(one.zh), one.id))


def strangers(card: Card, cards: Sequence[Card]) -> list[Card]:
    """Cards of other domains."""
    return [one for one in cards if not set(one.domains) & set(card.domains)]


def fitting_exclusions(
    card: Card, asked: Sequence[Attribute], unwanted: Sequence[Unwanted], cards: Sequence[Card]
) -> list[Unwanted]:
    """What a shopper who asks for these attributes of this card may exclude without contradicting himself.

    Nothing that the card is, asks for or holds out, and nothing that is held out itself. Where the cards that share
    a domain vary in such things (a material, a colour), those are taken before what is merely possible.
    """
    near = {attribute.en for one in cards if set(one.domains) & set(card.domains) for attribute in one.attributes}
    barred = [*asked, *(one for one in card.attributes if one.held_out)]
    terms = [card.anchor, *card.synonyms, *(term for one in barred for term in (one.en, *one.must_have))]
    forms = [form for one in barred for form in one.zh] + list(card.names)

    def fits(one: Unwanted) -> bool:
        return (
            not one.held_out
            and bool(one.domains & set(card.domains))
            and not any(mine in form or form in mine for mine in one.zh for form in forms)
            and not any(term_hits(one.en, term) for term in terms)
            and not any(attribute.en in COVERS.get(one.en, ()) for attribute in barred)
        )

    fitting = [one for one in unwanted if fits(one)]
    return [one for one in fitting if one.en in near] or fitting


def may_take(seed: Seed, card: Card) -> bool:
    """Whether the seed makes sense for the card: domain, and the attribute that its words state."""
    if seed.domains and not seed.domains & set(card.domains):
        return False
    stated = seed.attribute is None or any(one.en == seed.attribute for one in usable_attributes(card))
    return stated and bool(spoken_names(card)) and len(usable_attributes(card)) >= 2


def draw(
    seed: Seed, card: Card, cards: Sequence[Card], unwanted: Sequence[Unwanted], rng: random.Random
) -> Filling | None:
    """A filling of the seed for the card; None where the card has nothing for one of its slots."""
    used = seed.slots
    attributes: dict[str, Attribute] = {}
    first, *rest = rng.sample(usable_attributes(card), len(usable_attributes(card)))
    if used & FIRST_ATTRIBUTE:
        attributes["attr"] = first
    if "attr2" in used:
        second = next((one for one in rest if not rivals(first, one)), None)
        if second is None:
            return None
        attributes["attr2"] = second
    if seed.attribute:
        attributes["stated"] = next(one for one in usable_attributes(card) if one.en == seed.attribute)
    other = None
    if used & {"other", "other_anchor"}:
        pool = strangers(card, cards) if seed.far else neighbours(card, cards)[:NEIGHBOURS]
        pool = [one for one in pool if spoken_names(one)]
        if not pool:
            return None
        other = rng.choice(pool)
    n = nice_amount(rng.uniform(card.price.q1, card.price.q3 * 1.3) * YUAN_PER_DOLLAR)
    sums = {"n": n, "m": nice_amount(n * RAISED)}
    slots = {
        "cat": rng.choice(spoken_names(card)),
        "anchor": card.anchor,
        "d": str(n),
        **{name: written_amount(rng, amount) for name, amount in sums.items()},
    }
    for name, one in attributes.items():
        slots[name] = rng.choice(one.zh).removesuffix("的")
    if "attr" in attributes:
        slots["attr_en"] = attributes["attr"].en
        slots["thing_en"] = described(card.anchor, attributes["attr"].en)
    if other:
        slots |= {"other": rng.choice(spoken_names(other)), "other_anchor": other.anchor}
    if used & {"x", "x_en"}:
        fitting = fitting_exclusions(card, list(attributes.values()), unwanted, cards)
        if not fitting:
            return None
        thing = rng.choice(fitting)
        slots |= {"x": rng.choice(thing.zh).removesuffix("的"), "x_en": thing.en}
    return Filling(card, other, attributes, sums, slots)


def asked_for(seed: Seed, upto: int, filling: Filling) -> tuple[Card, tuple[Attribute, ...]]:
    """What is wanted after turn `upto` (from 0): the card, and the attributes asked of it and not taken back."""
    about = seed.turns[upto].about
    held: dict[str, Attribute] = {}
    for at, one in enumerate(seed.turns[: upto + 1]):
        if one.about != about:
            continue
        for slot in one.slots & (FIRST_ATTRIBUTE | {"attr2"}):
            name = "attr" if slot in FIRST_ATTRIBUTE else slot
            held[name] = filling.attributes[name]
        if seed.attribute and at == len(seed.turns) - 1:
            held["stated"] = filling.attributes["stated"]
        for slot in one.drops:
            held.pop(slot, None)
    card = filling.card if about == "cat" else filling.other
    assert card is not None  # `draw` gives every seed that speaks of another card one
    return card, tuple(held[name] for name in ("attr", "attr2", "stated") if name in held)


def build_turn(seed: Seed, at: int, filling: Filling, rng: random.Random) -> dict[str, Any]:
    """Turn `at` (from 0) of a session: text, golden, plan hint."""
    spec: SeedTurn = seed.turns[at]
    filled = fill(spec.text, filling.slots)
    if not spec.golden:
        return turn(filled.text)
    card, attributes = asked_for(seed, at, filling)
    facts = Facts(
        card=card,
        attributes=attributes,
        budget_amount=filling.sums[spec.budget] if spec.budget else None,
        clear_budget=spec.clear,
    )
    golden = {**golden_record(facts), "exclude_expected": spec.exclude is not None}
    exclusions = []
    if spec.exclude is not None:
        word = SLOT.sub(lambda slot: filling.slots[slot.group(1)], spec.exclude)
        exclusions.append({"word": word, "evidence": filled.evidence})
    return turn(filled.text, golden, {"keywords": keywords(rng, card, attributes), "exclude_terms": exclusions})


def build_session(seed: Seed, filling: Filling, identity: str, rng: random.Random) -> Session:
    """The session that a seed and a filling make; its card is the one that the last turn asks for."""
    turns = [build_turn(seed, at, filling, rng) for at in range(len(seed.turns))]
    last = seed.turns[-1]
    budget = "lifted" if last.clear else "exact" if last.budget else "none"
    return {
        "id": identity,
        "source": "template",
        "family": seed.family,
        "card": asked_for(seed, len(turns) - 1, filling)[0].id,
        "split": None,
        "dimensions": {
            "seed": seed.id,
            "budget": budget,
            "exclusion": "hard" if last.exclude else "none",
            "attribute": bool(turns[-1]["golden"]["must_have"]),
            "turn": "follow_up" if len(turns) > 1 else "first",
        },
        "turns": turns,
    }


def build(
    cards: Sequence[Card], seeds: Sequence[Seed], unwanted: Sequence[Unwanted], sessions: int, seed: int
) -> list[Session]:
    """`sessions` sessions, shared evenly among the families, the seeds of a family and the cards.

    Raises ValueError naming the family whose seeds are exhausted.
    """
    rng = random.Random(f"{seed} adversarial")
    uses: Counter[str] = Counter()
    said: set[str] = set()
    made: list[Session] = []
    for family, count in tqdm(shares(sessions, dict.fromkeys(FAMILIES, 1)).items(), unit="family", disable=None):
        mine = [one for one in seeds if one.family == family]
        wanted, exhausted = count, set[str]()
        while wanted:
            left = [one for one in mine if one.id not in exhausted]
            if not left:
                raise ValueError(f"{family}: {count - wanted} sessions and no new one to be had; write more seeds")
            for spec in left[:wanted]:
                session = _new_session(spec, cards, unwanted, rng, uses, said)
                if session is None:
                    exhausted.add(spec.id)
                    continue
                uses[session["card"]] += 1
                said.add(_key(session))
                made.append({**session, "id": f"adv-{len(made) + 1:04d}"})
                wanted -= 1
    return made


def _key(session: Session) -> str:
    return " / ".join(normalised(text) for text in turn_texts(session))


def _new_session(
    spec: Seed,
    cards: Sequence[Card],
    unwanted: Sequence[Unwanted],
    rng: random.Random,
    uses: Mapping[str, int],
    said: set[str],
) -> Session | None:
    """A session of the seed that nobody has said yet, for one of the least used cards; None where there is none."""
    order = [card for card in cards if may_take(spec, card)]
    rng.shuffle(order)
    order.sort(key=lambda card: uses[card.id])
    for card in (order * MOST_TRIES)[:MOST_TRIES]:
        filling = draw(spec, card, cards, unwanted, rng)
        if filling is not None:
            session = build_session(spec, filling, "new", rng)
            if _key(session) not in said:
                return session
    return None


def report_of(sessions: Sequence[Session], cards: Sequence[Card]) -> dict[str, Any]:
    """Sessions, turns with a golden, families, seeds, and how evenly the cards are used."""
    by_card = Counter(one["card"] for one in sessions)
    goldens = [one["golden"] for session in sessions for one in session["turns"] if one["golden"]]
    return {
        "sessions": len(sessions),
        "turns_with_golden": len(goldens),
        "families": dict(sorted(Counter(one["family"] for one in sessions).items())),
        "seeds": dict(sorted(Counter(one["dimensions"]["seed"] for one in sessions).items())),
        "cards": {"covered": len(by_card), "of": len(cards), "most": max(by_card.values())},
        "budget_given": sum(one["budget_amount"] is not None for one in goldens),
        "budget_lifted": sum(one["clear_budget"] for one in goldens),
        "exclusions": sum(one["exclude_expected"] for one in goldens),
        "beyond_category": sum(bool(one["must_have"]) for one in goldens),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/data/build_planner_adversarial.py --out build/data/adversarial.jsonl",
    )
    parser.add_argument("--cards", type=Path, default=DEFAULT_CARDS, help="category cards (JSONL)")
    parser.add_argument("--seeds", type=Path, default=DEFAULT_SEEDS, help="hand-written seeds (JSONL)")
    parser.add_argument("--sessions", type=int, default=DEFAULT_SESSIONS, help=f"default {DEFAULT_SESSIONS}")
    parser.add_argument("--seed", type=int, default=7, help="seed of all drawing (default 7)")
    parser.add_argument(
        "--out", type=writable_file, required=True, help="file to write; reports go beside it (.report.json)"
    )
    args = parser.parse_args()
    if args.sessions < len(FAMILIES):
        print(f"--sessions must be at least {len(FAMILIES)}, one a family", file=sys.stderr)
        return 2
    try:
        cards = load_cards(args.cards)
        sessions = build(cards, load_seeds(args.seeds), load_unwanted(UNWANTED), args.sessions, args.seed)
        write_rows(args.out, sessions)
        report = report_of(sessions, cards)
        text = json.dumps(report, ensure_ascii=False, indent=1) + "\n"
        write_report(args.out.with_suffix(".report.json"), report, text)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
