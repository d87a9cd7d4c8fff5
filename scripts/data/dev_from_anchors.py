"""The dev92 records, read off the anchors: the last turn of every anchor that has a golden and passes the filter."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reward.planner_reward import parse_golden
from scripts.data.anchor_filter import keep
from scripts.data.prompt_rows import prompt_row
from scripts.data.sessions import read_sessions, turn_texts
from swift_plugin.cards import Card

DEV_SPLIT = "dev92"


def load_dev(path: Path, cards: Sequence[Card], style: str) -> list[dict[str, Any]]:
    """The dev92 rows of an anchors file: prompt, text, earlier turns, family, split and golden.

    What `anchor_filter` would drop from a log is left out here too. A golden leaves out `must_not`: what passes for
    the thing in the catalogue stands on its card alone. A ValueError names the file, the line and the anchor.
    """
    by_anchor = {card.anchor: card for card in cards}
    kept, _ = keep(read_sessions(path))
    rows = []
    for session in kept:
        where = f"{path.name} ({session['id']})"
        *earlier, text = turn_texts(session)
        if session["turns"][-1]["golden"] is None:
            raise ValueError(f"{where}: the last turn has no golden, so the anchor cannot be judged: write one")
        golden = parse_golden(session["turns"][-1]["golden"], where)
        if golden["category_anchor"]:
            if golden["category_anchor"] not in by_anchor:
                raise ValueError(f"{where}: category_anchor {golden['category_anchor']!r} is the anchor of no card")
            golden["must_not"] = list(by_anchor[golden["category_anchor"]].must_not)
        rows.append(
            prompt_row(
                session["id"], text, earlier, family=session["family"], split=DEV_SPLIT, golden=golden, style=style
            )
        )
    return rows
