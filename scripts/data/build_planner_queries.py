"""Generated sessions: the category cards times a matrix (budget, exclusion, attribute, turn, tone, scene).

Without --endpoint the sessions are worded from templates and every turn has its golden record and plan hint by
construction. With --endpoint a model words the same cells; its sessions have no goldens and need votes. Every card is
covered, and cells are balanced; the report counts both. Attributes that a card holds out are never used. The same
cards, wording and --seed give the same bytes. The endpoint's key is read from PLANNER_API_KEY.
"""

import argparse
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from scripts.chat import KEY_VARIABLE
from scripts.data.build_demo_requests import load_unwanted
from scripts.data.build_planner_adversarial import UNWANTED
from scripts.data.demo_requests import Deck, Unwanted
from scripts.data.near_duplicates import normalised
from scripts.data.query_llm import asked_sessions
from scripts.data.query_matrix import WITHOUT_CARD, draw_cells, table
from scripts.data.query_wording import VOICES, QueryShopper, Wording, load_wording, session_row
from scripts.data.sessions import Session, turn_texts, write_report, write_rows
from scripts.data.vote_client import IF_CUT, Cache, EndpointError, VoteClient
from scripts.train.result_file import writable_file
from swift_plugin.cards import DEFAULT_CARDS, Card, load_cards

DEFAULT_SESSIONS = 1200
MOST_TRIES = 60  # draws for one new session: other cards where one has nothing for the cell, other words after


def build(
    cards: Sequence[Card], unwanted: Sequence[Unwanted], wording: Wording, sessions: int, seed: int
) -> list[Session]:
    """`sessions` sessions from templates, cards in turn, voices in turn.

    Raises ValueError naming the cell for which no card and no words give a new session.
    """
    rng = random.Random(f"{seed} queries")
    shoppers = [QueryShopper(rng, cards, unwanted, wording, voice) for voice in range(VOICES)]
    voices, deck = Deck(rng, range(VOICES)), CardDeck(rng, cards)
    said: set[str] = set()
    made: list[Session] = []
    for cell in tqdm(draw_cells(sessions, rng), desc="queries", unit="session", disable=None):
        for _ in range(MOST_TRIES):
            voice = voices.draw()
            card = None if cell.turn in WITHOUT_CARD else deck.draw()
            worded = shoppers[voice].session(cell, card)
            key = " / ".join(normalised(one["text"]) for one in worded[0]) if worded else ""
            if worded and key not in said:
                break
            deck.give_back(card)
        else:
            raise ValueError(f"no new session for {cell} in {MOST_TRIES} draws: add cards or templates")
        said.add(key)
        made.append(session_row(f"query-{len(made) + 1:05d}", cell, voice, card, *worded))
    return made


class CardDeck:
    """Cards in turn, each equally often; a card that could not be used is tried again for the next cell."""

    def __init__(self, rng: random.Random, cards: Sequence[Card]) -> None:
        self._deck, self._waiting = Deck(rng, cards), list[Card]()
        self._back = list[Card]()

    def draw(self) -> Card:
        """The next card."""
        if self._waiting:
            return self._waiting.pop(0)
        self._waiting, self._back = self._back, []
        return self._waiting.pop(0) if self._waiting else self._deck.draw()

    def give_back(self, card: Card | None) -> None:
        """Keep a card that was drawn in vain."""
        if card is not None:
            self._back.append(card)


def report_of(sessions: Sequence[Session], cards: Sequence[Card]) -> dict[str, Any]:
    """Sessions, turns, families, how evenly cards and cells are used."""
    by_card = Counter(one["card"] for one in sessions if one["card"])
    turns = [one for session in sessions for one in session["turns"]]
    used = [by_card[card.id] for card in cards]
    voices = [one["dimensions"]["template"] for one in sessions if "template" in one["dimensions"]]
    return {
        "sessions": len(sessions),
        "turns": len(turns),
        "turns_with_golden": sum(one["golden"] is not None for one in turns),
        "families": dict(sorted(Counter(one["family"] for one in sessions).items())),
        "voices": dict(sorted(Counter(voices).items())),
        "cards": {
            "of": len(cards),
            "covered": sum(count > 0 for count in used),
            "least": min(used),
            "most": max(used),
            "uncovered": [card.id for card in cards if not by_card[card.id]],
        },
        "longest_turn": max(len(text) for one in sessions for text in turn_texts(one)),
        **table([one["dimensions"] for one in sessions]),
    }


def report_text(report: dict[str, Any]) -> str:
    """The report for people."""
    cards = report["cards"]
    lines = [
        f"{report['sessions']} sessions, {report['turns']} turns, {report['turns_with_golden']} with a golden record",
        f"cards: {cards['covered']} of {cards['of']} covered, {cards['least']} to {cards['most']} sessions each",
        f"cells: {report['cells_filled']} of {report['cells_possible']} filled",
    ]
    groups = {**report["values"], "family": report["families"], "voice": report["voices"]}
    for name, counts in groups.items():
        lines.append(f"{name}: " + ", ".join(f"{value} {count}" for value, count in counts.items()))
    lines.append("pairs of values that make sense: cells, empty ones, least and most sessions in one")
    for name, one in report["pairs"].items():
        lines.append(f"  {name}: {one['cells']} cells, {one['empty']} empty, {one['least']} to {one['most']}")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """0 when the sessions are written and every card is covered, 1 when one is not, 2 for wrong use."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  python scripts/data/build_planner_queries.py --out build/data/queries.jsonl\n"
        "  python scripts/data/build_planner_queries.py --out build/data/queries_llm.jsonl \\\n"
        "    --endpoint http://127.0.0.1:8000/v1 --model qwen-plus",
    )
    parser.add_argument("--cards", type=Path, default=DEFAULT_CARDS, help="category cards (JSONL)")
    parser.add_argument("--sessions", type=int, default=DEFAULT_SESSIONS, help=f"default {DEFAULT_SESSIONS}")
    parser.add_argument("--seed", type=int, default=7, help="seed of all drawing (default 7)")
    parser.add_argument(
        "--out", type=writable_file, required=True, help="file to write; reports go beside it (.report.json)"
    )
    parser.add_argument("--endpoint", metavar="URL", help="OpenAI-compatible endpoint that words the cells instead")
    parser.add_argument("--model", help="its model; needed with --endpoint")
    args = parser.parse_args(argv)
    if args.sessions < 1:
        parser.error("--sessions must be at least 1")
    if bool(args.endpoint) != bool(args.model):
        parser.error("--endpoint and --model go together")
    try:
        cards = load_cards(args.cards)
        sessions = build(cards, load_unwanted(UNWANTED), load_wording(), args.sessions, args.seed)
        report: dict[str, Any] = {}
        if args.endpoint:
            client = VoteClient(
                args.endpoint,
                args.model,
                Cache(args.out.with_suffix(".answers")),
                api_key=os.environ.get(KEY_VARIABLE),
            )
            sessions, report["endpoint"] = asked_sessions(client, sessions, cards)
            if not sessions:
                failed = f"{client.usage.empty} empty, {client.usage.cut} cut"
                raise ValueError(
                    f"{args.model} gave no usable answer ({failed}); {IF_CUT}; whole ones stand in {client.cache.path}"
                )
        report = {**report_of(sessions, cards), **report}
        write_rows(args.out, sessions)
        text = report_text(report) + (json.dumps(report["endpoint"]) + "\n" if args.endpoint else "")
        write_report(args.out.with_suffix(".report.json"), report, text)
    except (OSError, ValueError, EndpointError) as error:
        print(error, file=sys.stderr)
        return 2
    print(text, end="")
    if report["cards"]["uncovered"]:
        print(f"cards without a session: {', '.join(report['cards']['uncovered'])}; ask for more", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
