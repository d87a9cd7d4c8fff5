"""Human rulings on single golden records: by row id, with the reason, bound to the row as the person saw it.

A ruling stands in RULINGS. `sha256` is `row_sha256` of the row it was made for; when the row's words or its context
have changed since, the build stops and names it, because nobody has judged the new words. A ruled row's status is
`resolved`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reward.planner_reward import GOLDEN_KEYS, GOLDEN_OPTIONAL_KEYS, parse_golden

RULED_KEYS = tuple(key for key in (*GOLDEN_KEYS, *GOLDEN_OPTIONAL_KEYS) if key != "status")


@dataclass(frozen=True)
class Ruling:
    """One ruling: `fields` replace those of the golden record."""

    id: str
    sha256: str
    reason: str
    fields: Mapping[str, Any]


RULINGS: tuple[Ruling, ...] = ()


def row_sha256(text: str, prior_context: Sequence[str]) -> str:
    """What a ruling is bound to: the row's words and its earlier turns."""
    return hashlib.sha256(json.dumps([text, list(prior_context)], ensure_ascii=False).encode()).hexdigest()


def by_id(rulings: Sequence[Ruling]) -> dict[str, Ruling]:
    """The rulings by row id. Raises ValueError for two on one row, one without a reason, or one of unknown fields."""
    found: dict[str, Ruling] = {}
    for ruling in rulings:
        if ruling.id in found:
            raise ValueError(f"ruling {ruling.id}: there are two of them; keep one")
        if not ruling.reason.strip():
            raise ValueError(f"ruling {ruling.id}: the reason is empty; say why")
        unknown = sorted(set(ruling.fields) - set(RULED_KEYS))
        if unknown or not ruling.fields:
            known = ", ".join(RULED_KEYS)
            raise ValueError(f"ruling {ruling.id}: fields {unknown} cannot be ruled; use some of {known}")
        found[ruling.id] = ruling
    return found


def ruled(golden: Mapping[str, Any] | None, ruling: Ruling, text: str, prior_context: Sequence[str]) -> dict[str, Any]:
    """The golden record after `ruling`, checked.

    Raises ValueError when the row is not the one that was ruled on, or the result is no golden record.
    """
    now = row_sha256(text, prior_context)
    if now != ruling.sha256:
        raise ValueError(
            f"ruling {ruling.id}: the row has changed since (sha256 {now}, ruled on {ruling.sha256});"
            f" read it again ({text!r}) and renew or remove the ruling"
        )
    return parse_golden({**(golden or {}), **ruling.fields, "status": "resolved"}, f"ruling {ruling.id}")
