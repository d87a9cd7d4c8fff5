"""Which split a session goes to: decided by its content and its id, never by chance, so that a rerun moves nothing.

Anchors go to dev92 whole. Of the others a share is held out for test and watch. Sessions that share a `wording` (a
seed, a template; named in their dimensions) are held out together, in whatever families it words, so that what test
asks was worded by nothing that training saw.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.data.sessions import Session, is_anchor

HELD_OUT = 0.10  # of the sessions of families that share wordings, at least; whole wordings
WATCH_ROWS = 32
WORDING_DIMENSIONS = ("seed", "template")  # the first one a session has says who worded it
DRAFT = "draft"  # the dimension of a reworded session: the id of the one it says in other words


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
    """The ids held out for test and watch: whole wordings, in all families that they word, but never all of a family.

    A wording is taken while the families that it words hold out too little together, or one of them nothing. Those
    that word many families come first: a wording that leaves out one would want a second one beside it.
    """
    wordings: dict[str, list[Session]] = defaultdict(list)
    for session in sessions:
        wordings[wording(session)].append(session)
    words = {name: {one["family"] for one in rows} for name, rows in wordings.items()}
    total = Counter(one["family"] for one in sessions)
    in_training = Counter(family for families in words.values() for family in families)  # wordings by family
    held: Counter[str] = Counter()
    chosen: set[str] = set()
    for name in sorted(wordings, key=lambda one: (-len(words[one]), _order(one))):
        rows, families = wordings[name], words[name]
        reached = sum(held[one] for one in families) >= HELD_OUT * sum(total[one] for one in families)
        if reached and all(held[one] for one in families):
            continue
        if all(map(_may_be_held_out, rows)) and all(in_training[one] > 1 for one in families):
            chosen |= {row["id"] for row in rows}
            held.update(row["family"] for row in rows)
            in_training.subtract(families)
    return chosen


def assign_splits(sessions: Sequence[Session]) -> list[Session]:
    """The sessions with their splits, in the order given.

    Watch takes its rows evenly from the families' held-out sessions, at most half of a family's; the rest is test,
    so that every family with two held-out sessions keeps a share in test. A draft and its rewording stay together.
    """
    others = [session for session in sessions if not is_anchor(session)]
    chosen = held_out(others)
    requests: dict[tuple[str, str], set[str]] = defaultdict(set)
    for session in others:
        if session["id"] in chosen:
            requests[session["family"], str(session["dimensions"].get(DRAFT, session["id"]))].add(session["id"])
    pools: dict[str, list[set[str]]] = defaultdict(list)
    for family, request in sorted(requests, key=lambda one: _order(one[1])):
        pools[family].append(requests[family, request])
    watch: set[str] = set()
    for place in range(max(map(len, pools.values()), default=0)):
        for family in sorted(pools):
            if place < len(pools[family]) // 2 and len(watch) + len(pools[family][place]) <= WATCH_ROWS:
                watch |= pools[family][place]

    def split(session: Session) -> str:
        if is_anchor(session):
            return "dev92"
        if session["id"] in watch:
            return "watch"
        return "test" if session["id"] in chosen else "train"

    return [{**session, "split": split(session)} for session in sessions]
