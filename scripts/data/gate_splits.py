"""Which split a session goes to: decided by its content and its id, never by chance, so that a rerun moves nothing.

Anchors go to dev92 whole. Of every other family a share is held out for test and watch. Sessions that share a
`wording` (a seed, a template; named in their dimensions) are held out together, so that what test asks was worded by
nothing that training saw.
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.data.sessions import Session, is_anchor

HELD_OUT = 0.10  # of each family's sessions, at least; whole wordings
WATCH_ROWS = 32
WORDING_DIMENSIONS = ("seed", "template")  # the first one a session has says who worded it


def wording(session: Mapping[str, Any]) -> str:
    """What the session was worded from; a session without such a dimension stands for itself."""
    for name in WORDING_DIMENSIONS:
        if name in session["dimensions"]:
            return f"{name}:{session['dimensions'][name]}"
    return f"id:{session['id']}"


def _order(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _may_be_held_out(session: Mapping[str, Any]) -> bool:
    return all(one["golden"] is None or one["golden"]["status"] != "review" for one in session["turns"])


def held_out(sessions: Sequence[Session]) -> set[str]:
    """The ids held out for test and watch: of each family, whole wordings until its share is reached, never all."""
    families: dict[str, dict[str, list[Session]]] = defaultdict(lambda: defaultdict(list))
    for session in sessions:
        families[session["family"]][wording(session)].append(session)
    chosen: set[str] = set()
    for wordings in families.values():
        wanted = HELD_OUT * sum(map(len, wordings.values()))
        fit = [name for name, rows in wordings.items() if all(map(_may_be_held_out, rows))]
        taken = 0
        for name in sorted(fit, key=_order)[: len(wordings) - 1]:
            if taken >= wanted:
                break
            chosen |= {row["id"] for row in wordings[name]}
            taken += len(wordings[name])
    return chosen


def assign_splits(sessions: Sequence[Session]) -> list[Session]:
    """The sessions with their splits, in the order given.

    Watch takes its rows evenly from the families' held-out sessions, at most half of a family's; the rest is test,
    so that every family with two held-out sessions keeps a share in test.
    """
    others = [session for session in sessions if not is_anchor(session)]
    chosen = held_out(others)
    pools: dict[str, list[str]] = defaultdict(list)
    for session in sorted(others, key=lambda one: _order(one["id"])):
        if session["id"] in chosen:
            pools[session["family"]].append(session["id"])
    watch: set[str] = set()
    for place in range(max(map(len, pools.values()), default=0)):
        for family in sorted(pools):
            if len(watch) < WATCH_ROWS and place < len(pools[family]) // 2:
                watch.add(pools[family][place])

    def split(session: Session) -> str:
        if is_anchor(session):
            return "dev92"
        if session["id"] in watch:
            return "watch"
        return "test" if session["id"] in chosen else "train"

    return [{**session, "split": split(session)} for session in sessions]
