"""The gate's checks that need one row alone: form, personal data, template tone, and card, text and turn together.

Each is a pure function of a session (and what the caller already knows) to findings. A finding says what is wrong and
whether the row is unusable; everything else is reported and kept. `gate_corpus` holds the checks that compare rows.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from scripts.data.near_duplicates import closeness, normalised, pairs
from scripts.data.personal_data import MASK, find_personal_data
from scripts.data.sessions import session_faults, turn_texts
from swift_plugin.cards import Card

FORM, DUPLICATE, LEAK, PERSONAL, TONE, COVERAGE, CONSISTENCY = CHECKS = (
    "form", "duplicate", "leakage", "personal_data", "template_tone", "coverage", "consistency",
)  # fmt: skip

LONGEST_TURN = 160  # characters; nobody types more to a search, and the prompt has to fit
SHORTEST_TURN = 2  # letters, digits and characters
MOST_TURNS = 6
REPEATS = 0.9  # of a turn's character pairs stand in one earlier turn: it adds nothing


class Finding(NamedTuple):
    """What a check says of a row. `unusable`: the row is dropped; else it is reported and kept.

    `kind` names the rule, `reason` the row's own case. `id` is "" where a finding is about the whole set.
    """

    check: str
    kind: str
    id: str
    reason: str
    unusable: bool


class _Findings:
    """Collects the findings of one row under one check."""

    def __init__(self, check: str, session: Mapping[str, Any]) -> None:
        self._check, self._id, self.list = check, str(session["id"]), list[Finding]()

    def keep(self, kind: str, reason: str) -> None:
        self.list.append(Finding(self._check, kind, self._id, reason, unusable=False))

    def drop(self, kind: str, reason: str) -> None:
        self.list.append(Finding(self._check, kind, self._id, reason, unusable=True))


# ------------------------------------------------------------------------------------------------------ form

_ESCAPE = re.compile(r"&(?:[a-z]{2,8}|#\d{2,5}|#x[0-9a-f]{2,4});|<\/?[a-z][a-z0-9]{0,9}(?: [^<>]{0,80})?\/?>", re.I)
_BLANKS = re.compile(r"\s{2,}|[\t\r\n\u200b-\u200f\ufeff]")
_ANSWER = re.compile(
    r"budget_amount|clear_budget|exclude_terms|keywords\W|\"category\"|\"domains\"|home_kitchen|jewelry_watches|"
    r"toys_baby|books_media|为(?:您|你)(?:推荐|找到|搜索)|以下是|作为(?:一个|一名)?(?:AI|人工智能|助手)|搜索词[:：]"
)


def form_findings(session: Any, where: str = "") -> list[Finding]:
    """Schema, length, HTML escapes, blank runs, an answer inside the question.

    `session` may be anything that JSON holds; `where` names a row that has no usable id.
    """
    faults = session_faults(session)
    if faults:
        known = session.get("id") if isinstance(session, dict) else None
        identity = known if isinstance(known, str) and known.isprintable() and known else where
        return [Finding(FORM, "schema", identity, fault, unusable=True) for fault in faults]
    found = _Findings(FORM, session)
    if len(session["turns"]) > MOST_TURNS:
        found.keep("many_turns", f"{len(session['turns'])} turns, more than {MOST_TURNS}")
    for number, text in enumerate(turn_texts(session), 1):
        if len(text) > LONGEST_TURN:
            found.drop("too_long", f"turn {number} has {len(text)} characters, more than {LONGEST_TURN}")
        if not normalised(text):
            found.drop("no_words", f"turn {number} holds no letter or digit: {text!r}")
        elif len(normalised(text)) < SHORTEST_TURN:
            found.keep("very_short", f"turn {number} is {text!r}")
        if escape := _ESCAPE.search(text):
            found.drop("html", f"turn {number} holds {escape.group()!r}")
        if blanks := _BLANKS.search(text):
            found.keep("blank_run", f"turn {number} holds {blanks.group()!r}")
        if answer := _ANSWER.search(text):
            found.drop("answer_inside", f"turn {number} holds {answer.group()!r}, which belongs to an answer")
    return found.list


# ---------------------------------------------------------------------------------------------- personal data


def personal_findings(session: Mapping[str, Any]) -> list[Finding]:
    """Personal data in a turn. The reason names the kind and never quotes it."""
    found = _Findings(PERSONAL, session)
    for number, text in enumerate(turn_texts(session), 1):
        for kind in dict.fromkeys(one.kind for one in find_personal_data(text)):
            found.drop(kind, f"turn {number} holds a {kind.replace('_', ' ')}")
    return found.list


# ---------------------------------------------------------------------------------------------- template tone

_SLOT = re.compile(r"\{\w{0,20}\}|\[\w{0,20}\]|<\w{1,20}>|(?<![A-Za-z])(?:None|null|undefined|nan)(?![A-Za-z])")
_STAMMER = re.compile(r"的的(?!确)|了了|要要|[，,]{2,}|[。]{2,}(?!。)|，。|。，|、，|^[，。、,]")
_WRITTEN = re.compile(
    r"请为我|请帮我推荐一款|符合以下|要求如下|具体(?:要求|需求)|综上|此外，|并且具有|具备.{1,8}功能的|我正在寻找|我希望购买"
)
OPENING_CHARACTERS = 5
OPENING_SHARE = 0.05  # of a source's sessions may begin alike
FEWEST_FOR_SHARES = 100  # sessions; below that a share says nothing


def opening(session: Mapping[str, Any]) -> str:
    """How the session's last turn begins: its first letters and characters."""
    return normalised(turn_texts(session)[-1])[:OPENING_CHARACTERS]


def tone_findings(session: Mapping[str, Any], opening_share: float = 0.0) -> list[Finding]:
    """Traces of the template or the model that worded the row.

    Args:
        opening_share: how many of its source's sessions begin as this one does, in [0, 1].
    """
    found = _Findings(TONE, session)
    for number, text in enumerate(turn_texts(session), 1):
        if slot := _SLOT.search(MASK.sub("", text)):
            found.drop("open_slot", f"turn {number} holds {slot.group()!r}, which nothing was filled in for")
        if stammer := _STAMMER.search(text):
            found.keep("stammer", f"turn {number} holds {stammer.group()!r}")
        if written := _WRITTEN.search(text):
            found.keep("written_register", f"turn {number} says {written.group()!r}, which shoppers do not type")
    if opening_share > OPENING_SHARE:
        found.keep("common_opening", f"{opening_share:.0%} of its source begin with {opening(session)!r}")
    return found.list


# ------------------------------------------------------------------------------------ card, text and turn agree

_NUMBER = re.compile(r"[0-9０-９零一二两三四五六七八九十百千万]")


def speaks_of(card: Card, text: str) -> bool:
    """Whether a text says one of the card's names, its anchor or a synonym (ASCII without case)."""
    plain = text.casefold()
    return any(name.casefold() in plain for name in (*card.names, card.anchor, *card.synonyms))


def consistency_findings(session: Mapping[str, Any], cards: Mapping[str, Card]) -> list[Finding]:
    """Whether card, text, golden and turns of a session say the same. `cards` by id."""
    found = _Findings(CONSISTENCY, session)
    card = cards.get(session["card"]) if session["card"] else None
    if session["card"] and card is None:
        found.drop("unknown_card", f"card {session['card']!r} is not in the cards")
    texts = turn_texts(session)
    for number in range(2, len(texts) + 1):
        earlier = [at for at in range(1, number) if _repeats(texts[number - 1], texts[at - 1])]
        if earlier:
            found.drop("only_repeats", f"turn {number} says nothing that turn {earlier[0]} has not said")
    for number, one in enumerate(session["turns"], 1):
        if one["golden"] is not None:
            _golden_against_text(found, session, number, card)
    return found.list


def _repeats(later: str, earlier: str) -> bool:
    return closeness(pairs(later), pairs(earlier)).containment >= REPEATS


def _golden_against_text(found: _Findings, session: Mapping[str, Any], number: int, card: Card | None) -> None:
    """Whether the golden of turn `number` fits the card and the words so far."""
    this = session["turns"][number - 1]
    golden, said = this["golden"], turn_texts(session)[:number]
    last = number == len(session["turns"])
    if card and last and golden["category"] is not None:
        if golden["category"] != card.zh:
            found.drop("other_card", f"golden category {golden['category']!r}, but the card is {card.zh!r}")
        elif not any(speaks_of(card, text) for text in said):
            # A golden made from the card is only true of a text that names it; a voted one may know another word.
            note = found.drop if session["source"] == "template" else found.keep
            note("silent_on_card", f"no turn says a name of {card.zh!r}")
    if golden["budget_amount"] is not None and not _NUMBER.search(this["text"]):
        found.drop("no_sum", f"golden budget {golden['budget_amount']}, but turn {number} holds no number")
    if golden["status"] == "context_missing" and number > 1:
        found.keep("context_present", f"turn {number} is marked context_missing and has turns before it")
    if this["plan"] is not None and golden["exclude_expected"] != bool(this["plan"]["exclude_terms"]):
        found.drop("exclusion_lost", f"turn {number}: golden and plan disagree on whether something is excluded")


# Every check of one row that needs nothing but the row and the cards; the gate runs them in this order.
ROW_CHECKS: tuple[Callable[[Mapping[str, Any], Mapping[str, Card]], list[Finding]], ...] = (
    lambda session, cards: form_findings(session),
    lambda session, cards: personal_findings(session),
    consistency_findings,
)
