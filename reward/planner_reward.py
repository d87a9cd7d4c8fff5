"""The planner's reward: one model completion and one golden record in, one score with its parts out.

Standard library only, no I/O, and loadable by file path alone, registered in ``sys.modules`` or not, so that
the training box, the evaluation and an online service run the same bytes:

    >>> import importlib.util
    >>> spec = importlib.util.spec_from_file_location("planner_reward", "reward/planner_reward.py")
    >>> module = importlib.util.module_from_spec(spec)
    >>> spec.loader.exec_module(module)
    >>> module.compute_reward(module.parse_plan("no plan"), golden, "想买跑鞋", None).total   # doctest: +SKIP
    -1.0

``parse_plan`` reads a completion, ``compute_reward`` scores it. Only ``weights_from_env`` and
``gates_from_env`` read the environment. Malformed model output gets a score; a malformed golden record,
weight or gate raises ``ValueError``.
"""

# No `from __future__ import annotations` here: postponed annotations are looked up through sys.modules, where
# a module loaded by a bare exec_module does not stand.
import json
import math
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

DOMAINS: tuple[str, ...] = (
    "apparel", "footwear", "bags", "jewelry_watches", "electronics", "computers", "phones", "home_kitchen",
    "furniture", "garden", "beauty", "health", "food", "sports", "toys_baby", "books_media", "auto", "pet",
    "office", "tools", "other", "global",
)  # fmt: skip
RESERVED_DOMAIN = "global"
PLAN_KEYS: tuple[str, ...] = (
    "category", "domains", "budget_amount", "clear_budget", "keywords", "exclude_terms",
)  # fmt: skip
GOLDEN_KEYS: tuple[str, ...] = (
    "category", "domains", "budget_amount", "clear_budget", "must_have", "category_anchor",
    "exclude_expected", "status",
)  # fmt: skip
# `budget_uncertain` has no row of its own in the contract's table (only its value true says something), so a
# record may leave it out; a misspelt one is caught as an unknown key.
GOLDEN_OPTIONAL_KEYS: tuple[str, ...] = ("budget_uncertain", "must_not")
STATUSES: tuple[str, ...] = ("agree", "review", "resolved", "context_missing")
DIMENSIONS: tuple[str, ...] = ("retrieval", "field", "format", "econ")
DEFAULT_WEIGHTS: dict[str, float] = {"retrieval": 0.45, "field": 0.30, "format": 0.15, "econ": 0.10}
GATES: tuple[str, ...] = ("domain", "overcommit", "exclusion", "grounded")
WEIGHTS_VARIABLE = "PLANNER_REWARD_WEIGHTS"
GATES_VARIABLE = "PLANNER_REWARD_GATES"

NO_PLAN_TOTAL = -1.0
TOP_TITLES = 20
MAX_CHARACTERS = 8192
MAX_DEPTH = 16
MAX_INTEGER_DIGITS = 300

# Format charges in tenths: whole numbers keep "exactly 1" and "exactly 0" exact.
_FULL_FORMAT = 10
_ILLEGAL_DOMAIN = 5
_RESERVED_DOMAIN = 5
_BARE_EXCLUSION = 3
_BAD_KEY = 3
_UNKNOWN_KEY = 1
_PARSE_ISSUE = 1


# ---------------------------------------------------------------------------------------------- results


class ParsedPlan(NamedTuple):
    """A completion as read by ``parse_plan``.

    ``plan`` is the JSON object, or None when the text is refused. ``issues`` holds ``fence`` and ``prose``
    for an accepted text (each costs 0.1 of the format score), and one reason for a refused one: ``not_text``,
    ``unclosed_think``, ``too_long``, ``lone_surrogate``, ``no_object``, ``list``, ``prose_brackets``,
    ``prose_think``, ``too_deep``, ``bad_json``, ``bad_number``, ``duplicate_key``, ``second_object``,
    ``second_fence``.
    """

    plan: dict[str, Any] | None
    issues: tuple[str, ...]


class RewardBreakdown(NamedTuple):
    """One completion's score. Scores lie in [0, 1], None where the part abstained or nothing was parsed.

    ``total`` is -1.0 without a plan, else in [0, 1]. ``abstained`` names, in this order, which of retrieval,
    field, format, econ, category, domains_f1 and budget did not take part; it is empty without a plan.

    The flags are False without a plan, and say the same whether or not a gate is on:

    - ``copycat``: the keywords hold at least 0.6 of the sentence's Words that are not golden Words (the
      condition that halves retrieval), also where retrieval abstains.
    - ``evidence_faked``: some exclusion states evidence that does not stand in the text.
    - ``empty_keywords``: no keyword holds a letter or a digit, whatever the golden record asks.
    - ``domain_miss``: golden and plan domains are both known, not empty, and disjoint.
    - ``overcommit``: the golden category abstains and the plan names one (a string that is not blank).
    - ``exclusion_missed``: the golden record expects an exclusion and the plan excludes no word.
    """

    total: float
    retrieval: float | None
    field_score: float | None
    format: float | None
    econ: float | None
    category: float | None
    domains_f1: float | None
    budget: float | None
    abstained: tuple[str, ...]
    copycat: bool
    evidence_faked: bool
    empty_keywords: bool
    domain_miss: bool
    overcommit: bool
    exclusion_missed: bool

    def to_dict(self) -> dict[str, Any]:
        """The same keys for every breakdown, in the order above, ready for ``json.dumps``."""
        return {**self._asdict(), "abstained": list(self.abstained)}


_NO_PLAN = RewardBreakdown(
    NO_PLAN_TOTAL, None, None, None, None, None, None, None, (), False, False, False, False, False, False
)


# ---------------------------------------------------------------------------------------------- parsing


class _Refused(ValueError):
    """The completion holds no plan; the message is the reason noted in ``ParsedPlan.issues``."""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Refused("duplicate_key")
    return members


def _bounded_int(digits: str) -> int:
    # Judged on the text: int() itself refuses some thousands of digits, and float() overflows after 308.
    if len(digits.lstrip("-")) > MAX_INTEGER_DIGITS:
        raise _Refused("bad_number")
    return int(digits)


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _Refused("bad_number")
    return value


def _no_constant(name: str) -> Any:
    raise _Refused("bad_number")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_int=_bounded_int,
    parse_float=_finite_float,
    parse_constant=_no_constant,
)
_JSON_SPACE = " \t\n\r"
_THINK, _END_THINK = "<think>", "</think>"
_SURROGATE = re.compile("[\ud800-\udfff]")
_BRACKETS = re.compile(r"[{}\[\]]")
# A string, ended or not, or one bracket. No branch can fail once a quote is read: the scan never goes back.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.?)*"?|[{}\[\]]', re.DOTALL)
_OPENING_FENCE = re.compile(r"`{3,}[ \t]*[A-Za-z0-9_+#.-]*")
_CLOSING_FENCE = re.compile(r"`{3,}")


def parse_plan(text: str) -> ParsedPlan:
    """Read one completion as one plan: strict JSON, nothing repaired, in time linear in the length.

    Never raises: what is no plan comes back as ``ParsedPlan(None, (reason,))``.

    >>> parse_plan('```json\\n{"category": "跑鞋"}\\n```')
    ParsedPlan(plan={'category': '跑鞋'}, issues=('fence',))
    >>> parse_plan("[1, 2]")
    ParsedPlan(plan=None, issues=('list',))
    """
    if not isinstance(text, str):  # "no input may raise" holds for a completion that never arrived, too
        return ParsedPlan(None, ("not_text",))
    try:
        return _read_plan(text)
    except _Refused as refusal:
        return ParsedPlan(None, (str(refusal),))


def _read_plan(text: str) -> ParsedPlan:
    body = _after_think(text)
    if len(body) > MAX_CHARACTERS:
        raise _Refused("too_long")
    if _SURROGATE.search(body):
        raise _Refused("lone_surrogate")
    first = _BRACKETS.search(body)
    if first is None:
        raise _Refused("no_object")
    if first.group() != "{":
        raise _Refused("list" if first.group() == "[" else "prose_brackets")
    start = first.start()
    _check_depth(body, start)
    try:
        plan, end = _DECODER.raw_decode(body, start)
    except json.JSONDecodeError:
        raise _Refused("bad_json") from None
    if _holds_surrogate(plan):  # an escape such as \ud800 that no second half follows
        raise _Refused("lone_surrogate")
    return ParsedPlan(plan, _surroundings(body[:start], body[end:]))


def _after_think(text: str) -> str:
    lead = text.lstrip(_JSON_SPACE)
    if not lead.startswith(_THINK):
        return text  # white space counts in the length, so it stays
    end = lead.find(_END_THINK, len(_THINK))
    if end < 0:
        raise _Refused("unclosed_think")
    return lead[end + len(_END_THINK) :]


def _check_depth(body: str, start: int) -> None:
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(body, start):
        mark = token.group()
        if mark in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                raise _Refused("too_deep")
        elif mark in "}]":
            depth -= 1


def _holds_surrogate(value: Any) -> bool:
    if isinstance(value, str):
        return _SURROGATE.search(value) is not None
    if isinstance(value, dict):
        return any(_holds_surrogate(key) or _holds_surrogate(member) for key, member in value.items())
    return isinstance(value, list) and any(map(_holds_surrogate, value))


def _surroundings(before: str, after: str) -> tuple[str, ...]:
    """Issues of what stands around the object; refuses what is neither one fence nor prose."""
    if _BRACKETS.search(after):
        raise _Refused("second_object" if "{" in after else "prose_brackets")
    if _THINK in before or _THINK in after:
        raise _Refused("prose_think")
    before_rest, opened = _OPENING_FENCE.subn("", before)
    after_rest, closed = _CLOSING_FENCE.subn("", after)
    # "One fence" is at most one mark on either side; a closing mark alone is noted as the fence it ends.
    if opened > 1 or closed > 1:
        raise _Refused("second_fence")
    # Only JSON's own white space goes unremarked; a byte order mark or a wide space is prose.
    prose = (before_rest + after_rest).strip(_JSON_SPACE)
    return (("fence",) if opened or closed else ()) + (("prose",) if prose else ())


# ------------------------------------------------------------------------------------------------ Words

# Letters of Chinese, Japanese and Korean text, as NFKC leaves them (half-width forms are gone by then).
_CJK = (
    "\u1100-\u11ff\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c\u3041-\u3096\u309d-\u309f\u30a1-\u30fa"
    "\u30fc-\u30ff\u3105-\u312f\u3131-\u318e\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97c"
    "\uac00-\ud7a3\ud7b0-\ud7fb\uf900-\ufaff\U0001aff0-\U0001affe\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_CJK_RUN = re.compile(f"([{_CJK}]+)")
_RUN = re.compile(r"[^\W_]+")
_ENDS_IN_SIBILANT_E = ("se", "xe", "ze", "che", "she", "oe")

_IRREGULAR = {
    "men": "man", "women": "woman", "gentlemen": "gentleman", "firemen": "fireman", "policemen": "policeman",
    "fishermen": "fisherman", "salesmen": "salesman", "snowmen": "snowman", "sportsmen": "sportsman",
    "children": "child", "grandchildren": "grandchild", "schoolchildren": "schoolchild",
    "feet": "foot", "teeth": "tooth", "geese": "goose", "mice": "mouse", "lice": "louse", "oxen": "ox",
    "knives": "knife", "penknives": "penknife", "lives": "life", "wives": "wife", "housewives": "housewife",
    "shelves": "shelf", "bookshelves": "bookshelf", "elves": "elf", "selves": "self", "wolves": "wolf",
    "calves": "calf", "halves": "half", "leaves": "leaf", "loaves": "loaf", "thieves": "thief",
    "scarves": "scarf", "dwarves": "dwarf", "hooves": "hoof", "wharves": "wharf",
    "cacti": "cactus", "fungi": "fungus", "quizzes": "quiz",
    # A singular that itself ends in -as or -ens loses its s below; its plural has to follow it there.
    "lenses": "lens", "gases": "gas", "canvases": "canvas", "atlases": "atlas",
}  # fmt: skip


@lru_cache(maxsize=16384)
def _fold_plural(word: str) -> str:
    """One spelling for singular and plural; a key for comparing, not always English (shoes, shoe -> sho)."""
    word = _IRREGULAR.get(word, word)
    if word.endswith("s") and len(word) > 1 and word[-2] not in "sui":
        word = word[:-1]
    if word.endswith("ie"):
        return word[:-2] + "y"
    return word[:-1] if word.endswith(_ENDS_IN_SIBILANT_E) else word


def _normal(text: str) -> str:
    """NFKC, without case."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _squeezed(text: str) -> str:
    """NFKC, without case and spaces: for categories, evidence and the length of Chinese keywords."""
    return "".join(_normal(text).split())


class _Reading(NamedTuple):
    """A text prepared once for every term that is looked up in it."""

    normal: str
    runs: str  # folded runs, one space between, before and after them
    words: tuple[str, ...]
    held: frozenset[str]  # for look-up: the Words, and each single character of Chinese runs


def _pieces(run: str) -> list[str]:
    """The run cut where Chinese, Japanese or Korean text begins or ends."""
    return [piece for piece in _CJK_RUN.split(run) if piece]


def _pairs(run: str) -> tuple[str, ...]:
    if not _CJK_RUN.match(run):
        return (run,)
    return tuple(first + second for first, second in pairwise(run)) or (run,)


@lru_cache(maxsize=4096)
def _read(text: str) -> _Reading:
    normal = _normal(text)
    runs = _RUN.findall(normal)
    if not normal.isascii():
        runs = [piece for run in runs for piece in _pieces(run)]
    runs = list(map(_fold_plural, runs))  # which leaves Chinese, Japanese and Korean runs as they are
    chinese = [] if normal.isascii() else [run for run in runs if _CJK_RUN.match(run)]
    found = [word for run in runs for word in _pairs(run)] if chinese else runs
    return _Reading(normal, f" {' '.join(runs)} ", tuple(found), frozenset(found).union(*chinese))


def words(text: str) -> tuple[str, ...]:
    """The Words of a text in order: runs of letters and digits, NFKC, without case, plurals folded; character
    pairs in Chinese, Japanese and Korean runs.

    >>> words("5G手机 16-inch Watches")
    ('5g', '手机', '16', 'inch', 'watch')
    """
    return _read(text).words


def content_words(text: str) -> tuple[str, ...]:
    """The Words that are not just one or two ASCII letters (after folding); all Words where no other is left.

    >>> content_words("men's TV stand"), content_words("TV")
    (('man', 'stand'), ('tv',))
    """
    every = words(text)
    return tuple(w for w in every if not (len(w) <= 2 and w.isascii() and w.isalpha())) or every


# ----------------------------------------------------------------------------------------------- a hit

_NEGATING_WORDS = frozenset(
    map(_fold_plural, "no non not without faux fake vegan imitation artificial synthetic".split())
)
_NEGATING_CHARACTERS = ("无", "非", "免", "人造", "仿", "假", "不含")
_FREE, _SHIPPING = "free", "shipping"
_LONGEST_NEGATION = 12  # characters looked at beside a term: a longer run is no negation


def term_hits(word: str, text: str) -> bool:
    """Whether the term ``word`` stands in ``text``, in at least one place where no negation is beside it.

    The one definition of a hit, for titles, exclusions and domain evidence. A term whose letters and digits
    are all ASCII matches consecutive whole Words; any other term matches as a substring, where white space
    between its parts (and between Chinese and other script) may differ. A term without a letter or a digit
    never hits. A negation inside the term is part of it; one outside still counts (no artificial flavors).

    >>> term_hits("16-inch", "Laptop 16 Inches"), term_hits("watch", "bird watching")
    (True, False)
    >>> term_hits("leather", "Faux-Leather Belt"), term_hits("non-stick", "Non-Stick Pan")
    (False, True)
    """
    return False in _occurrences(word, text)


@lru_cache(maxsize=4096)
def _compile_term(word: str) -> tuple[str, re.Pattern[str] | None]:
    """(Words to find among the runs, None) for an ASCII term; ("", pattern) else; ("", None) if empty."""
    normal = _normal(word)
    runs = _RUN.findall(normal)
    if all(map(str.isascii, runs)):  # curly apostrophes and the like are no letters and do not count here
        return (_read(word).runs if runs else ""), None
    pieces = [piece for chunk in normal.split() for piece in _pieces(chunk)]
    return "", re.compile(r"\s*".join(map(re.escape, pieces)))


def _occurrences(word: str, text: str) -> list[bool]:
    """One item for each place where the term stands, overlapping ones too: whether it is negated there."""
    needle, pattern = _compile_term(word)
    reading = _read(text)
    negated: list[bool] = []
    if needle:
        runs = reading.runs
        at = runs.find(needle)
        while at >= 0:
            before = runs[runs.rfind(" ", 0, at) + 1 : at]
            after = at + len(needle)
            free = runs.startswith(f"{_FREE} ", after)
            shipped = runs.startswith(f"{_FREE} {_SHIPPING} ", after)
            negated.append(_negates(before) or (free and not shipped))
            at = runs.find(needle, at + 1)
    elif pattern is not None:
        normal = reading.normal
        match = pattern.search(normal)
        while match:
            after_run, end = _run_after(normal, match.end())
            free = after_run == _FREE
            shipped = free and _run_after(normal, end)[0] == _SHIPPING
            negated.append(_negates(_run_before(normal, match.start())) or (free and not shipped))
            match = pattern.search(normal, match.start() + 1)
    return negated


def _negates(run_before: str) -> bool:
    return run_before in _NEGATING_WORDS or run_before.endswith(_NEGATING_CHARACTERS)


def _run_before(normal: str, end: int) -> str:
    """The run that ends before ``end``, over spaces and punctuation; only the tail of a long one."""
    while end > 0 and not normal[end - 1].isalnum():
        end -= 1
    tail = _RUN.findall(normal[max(0, end - _LONGEST_NEGATION) : end])
    return _fold_plural(_pieces(tail[-1])[-1]) if tail else ""


def _run_after(normal: str, start: int) -> tuple[str, int]:
    """The run that begins after ``start``, over spaces and punctuation, and where it ends; or its head."""
    while start < len(normal) and not normal[start].isalnum():
        start += 1
    head = _RUN.match(normal[start : start + _LONGEST_NEGATION])
    piece = _pieces(head.group())[0] if head else ""
    return _fold_plural(piece), start + len(piece)


# ------------------------------------------------------------------------------------- the golden record


def parse_golden(golden: Mapping[str, Any] | str, where: str = "") -> dict[str, Any]:
    """The golden record, validated, as a new dict with all keys: the optional ones filled in.

    ``golden`` is a dict or its JSON string; ``where`` (a row, a file and line) opens every error message.
    Every key of ``GOLDEN_KEYS`` is required. Raises ``ValueError`` that names the key and its value.

    >>> parse_golden('{"category": "跑鞋"}', where="row 3")
    Traceback (most recent call last):
    ...
    ValueError: row 3: golden_json: key 'domains' is missing: list of names from DOMAINS but 'global', or null
    """
    place = f"{where}: golden_json" if where else "golden_json"
    if isinstance(golden, str):
        try:
            loaded = _DECODER.decode(golden)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{place}: no strict JSON ({error}): {_shown(golden)}") from error
    else:
        loaded = golden
    if not isinstance(loaded, Mapping):
        raise ValueError(f"{place}: a JSON object is expected, got {_shown(loaded)}")
    record = {"must_not": [], "budget_uncertain": False, **loaded}
    for key in record:
        if key not in _GOLDEN_RULES:
            raise ValueError(f"{place}: unknown key {key!r}: the keys are {', '.join(_GOLDEN_RULES)}")
    for key, (holds, rule) in _GOLDEN_RULES.items():
        if key not in record:
            raise ValueError(f"{place}: key {key!r} is missing: {rule}")
        if not holds(record[key]):
            raise ValueError(f"{place}: key {key!r} is {_shown(record[key])}: {rule}")
    for owner in ("category", "category_anchor"):
        for term in record["must_have"]:
            places = _occurrences(term, record[owner] or "")
            if places and all(places):
                raise ValueError(
                    f"{place}: key 'must_have' holds {term!r}, which its own {owner} "
                    f"{record[owner]!r} negates, so it can never hit: write the whole phrase"
                )
    return record


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_terms(value: Any) -> bool:
    return _is_strings(value) and all(words(term) for term in value)


_IS_BOOL: Callable[[Any], bool] = lambda value: isinstance(value, bool)  # noqa: E731
_GOLDEN_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "category": (lambda v: v is None or isinstance(v, str), "string or null"),
    "domains": (
        lambda v: v is None or (_is_strings(v) and all(d in DOMAINS and d != RESERVED_DOMAIN for d in v)),
        f"list of names from DOMAINS but {RESERVED_DOMAIN!r}, or null",
    ),
    "budget_amount": (lambda v: v is None or _is_number(v), "finite number or null"),
    "clear_budget": (_IS_BOOL, "true or false"),
    "must_have": (_is_terms, "list of strings, each with a letter or a digit"),
    "category_anchor": (
        lambda v: v is None or (isinstance(v, str) and (not v.strip() or bool(words(v)))),
        "string with a letter or a digit, or empty or null",
    ),
    "exclude_expected": (_IS_BOOL, "true or false"),
    "status": (lambda v: isinstance(v, str) and v in STATUSES, f"one of {', '.join(STATUSES)}"),
    "budget_uncertain": (_IS_BOOL, "true or false"),
    "must_not": (_is_terms, "list of strings, each with a letter or a digit"),
}


# ---------------------------------------------------------------------------------------------- the plan


class _View(NamedTuple):
    """A plan by what can be compared; None stands for a key that is missing or of the wrong type."""

    category: str | None  # blank abstains
    domains: frozenset[str] | None
    amount_known: bool
    amount: float | None
    clear_budget: bool | None
    keywords: tuple[str, ...]  # those that count
    exclusions: tuple[tuple[str, str], ...]  # (word, evidence), "" where absent; objects only
    exclusions_known: bool
    format_tenths: int


_PLAN_RULES: dict[str, Callable[[Any], bool]] = {
    "category": lambda v: v is None or isinstance(v, str),
    "domains": _is_strings,
    "budget_amount": lambda v: v is None or _is_number(v),
    "clear_budget": _IS_BOOL,
    "keywords": _is_strings,
    "exclude_terms": lambda v: isinstance(v, list) and all(isinstance(item, dict) for item in v),
}


def valid_keywords(plan: Mapping[str, Any] | ParsedPlan | None) -> list[str]:
    """The plan's keywords that count, unchanged and in order: the strings that hold a letter or a digit.

    A list that also holds other things is charged by the format score; its strings count all the same, so
    that the search made and the keywords scored are the same.
    """
    members, _ = _members(plan)
    found = members.get("keywords") if members is not None else None
    if not isinstance(found, list):
        return []
    return [word for word in found if isinstance(word, str) and words(word)]


def _members(plan: Mapping[str, Any] | ParsedPlan | None) -> tuple[Mapping[str, Any] | None, int]:
    """The plan's object, or None, and its number of parse issues."""
    if plan is None:
        return None, 0
    if isinstance(plan, tuple) and hasattr(plan, "issues"):
        # By shape, not by class: this file may be loaded twice, by path and by package, with a class each.
        return plan.plan, len(plan.issues)
    if isinstance(plan, Mapping):
        return plan, 0
    raise TypeError(f"plan: a dict, a ParsedPlan or None is expected, got {_shown(plan)}")


def _string(value: Any) -> str:
    return value if isinstance(value, str) and value.strip() else ""


def _view(plan: Mapping[str, Any], issues: int) -> _View:
    right = {key: key in plan and holds(plan[key]) for key, holds in _PLAN_RULES.items()}
    domains = plan.get("domains")
    # Judged element by element even in a list of the wrong type, so that mending the type never costs.
    named = {d for d in domains if isinstance(d, str)} if isinstance(domains, list) else set()
    raw = plan.get("exclude_terms")  # unknown keys are charged at the plan's own level, not inside these
    exclusions = tuple(
        (_string(item.get("word")), _string(item.get("evidence")))
        for item in (raw if isinstance(raw, list) else ())
        if isinstance(item, dict)
    )
    charge = (
        _ILLEGAL_DOMAIN * any(name not in DOMAINS for name in named)
        + _RESERVED_DOMAIN * (RESERVED_DOMAIN in named)
        + _BARE_EXCLUSION * any(not (word and evidence) for word, evidence in exclusions)
        + _BAD_KEY * sum(not ok for ok in right.values())
        + _UNKNOWN_KEY * sum(key not in right for key in plan)
        + _PARSE_ISSUE * issues
    )
    return _View(
        category=(plan["category"] or "") if right["category"] else None,
        domains=frozenset(named) if right["domains"] else None,
        amount_known=right["budget_amount"],
        amount=plan["budget_amount"] if right["budget_amount"] else None,
        clear_budget=plan["clear_budget"] if right["clear_budget"] else None,
        keywords=tuple(valid_keywords(plan)),
        exclusions=exclusions,
        exclusions_known=right["exclude_terms"],
        format_tenths=max(0, _FULL_FORMAT - charge),
    )


# --------------------------------------------------------------------------------------------- retrieval

HIT_TARGET = 0.5  # a share of hits from which on hit counts in full
HIT_SHARE = 0.6
PURITY_SHARE = 0.4
COPY_SHARE = 0.6
COPY_FACTOR = 0.5
GROUNDED_SHARE = 0.6
GROUNDED_FACTOR = 0.5


def _held(phrases: Iterable[str]) -> frozenset[str]:
    return frozenset().union(*(_read(phrase).held for phrase in phrases))


def _copies(keywords: Sequence[str], golden: Mapping[str, Any], text: str) -> bool:
    # Distinct Words: saying a Word twice neither hides a copy nor makes one.
    asked = _held([*golden["must_have"], golden["category_anchor"] or ""])
    rest = set(words(text)) - asked
    return len(rest) > 0 and len(rest & _held(keywords)) / len(rest) >= COPY_SHARE


def _grounded(keywords: Sequence[str], titles: Sequence[str]) -> bool:
    # Distinct Words here, too: a Word repeated in every keyword does not ground the others.
    asked = {word for keyword in keywords for word in content_words(keyword)}
    return len(asked & _held(titles)) / len(asked) >= GROUNDED_SHARE


def _found_share(golden: Mapping[str, Any], titles: Sequence[str]) -> float:
    """Hit and purity of the titles found (one at least), put together; in [0, 1]."""
    wanted, anchor = golden["must_have"], words(golden["category_anchor"] or "")
    content = content_words(golden["category_anchor"] or "")
    hits = pure = 0
    for title in titles:
        if any(term_hits(term, title) for term in golden["must_not"]):
            continue
        hits += any(term_hits(term, title) for term in wanted)
        if anchor:
            held = _read(title).held
            pure += anchor[-1] in held and 2 * sum(word in held for word in content) >= len(content)
    hit = min(1.0, hits / len(titles) / HIT_TARGET)
    purity = pure / len(titles)
    if wanted and anchor:
        return math.fsum((HIT_SHARE * hit, PURITY_SHARE * purity))
    return hit if wanted else purity


# -------------------------------------------------------------------------------------------------- field

REVIEW_FACTOR = 0.5
AMOUNT_SHARE = 0.7
CLEAR_SHARE = 0.3
SUFFIX_LENGTHS = range(2, 11)  # characters


def _category_score(expected: str, given: str) -> float:
    """1 for equal or one the end of the other, else Jaccard overlap; ``expected`` is not blank."""
    left, right = _squeezed(expected), _squeezed(given)
    if left == right:
        return 1.0
    if len(left) in SUFFIX_LENGTHS and len(right) in SUFFIX_LENGTHS:
        if left.endswith(right) or right.endswith(left):
            return 1.0
    # The golden category's script decides which overlap is taken: it says what was to be written.
    chinese = _CJK_RUN.search(left) is not None
    one, other = (set(left), set(right)) if chinese else (set(words(expected)), set(words(given)))
    union = one | other
    return len(one & other) / len(union) if union else 0.0


def _domains_f1(expected: frozenset[str], given: frozenset[str]) -> float:
    both = len(expected) + len(given)
    return 2 * len(expected & given) / both if both else 1.0


def _budget_score(golden: Mapping[str, Any], plan: _View) -> float:
    same_amount = plan.amount_known and plan.amount == golden["budget_amount"]
    same_clear = plan.clear_budget is golden["clear_budget"]  # None is neither
    return math.fsum((AMOUNT_SHARE * same_amount, CLEAR_SHARE * same_clear))


def _exclusion_score(golden: Mapping[str, Any], plan: _View) -> float:
    """The part that the `exclusion` gate adds. An exclusion excludes something when it has a word."""
    excluded = [word for word, _ in plan.exclusions if word]
    wanted = [*golden["must_have"], golden["category_anchor"] or ""]
    if not plan.exclusions_known or bool(excluded) != golden["exclude_expected"]:
        return 0.0
    return 0.0 if any(term_hits(word, term) for word in excluded for term in wanted) else 1.0


def _evidence_faked(plan: _View, text: str) -> bool:
    said = _squeezed(text)
    return any(_squeezed(evidence) not in said for _, evidence in plan.exclusions)


# --------------------------------------------------------------------------------------------------- econ

KEYWORD_COUNTS = (2, 6)
COUNT_STEP = 0.25
LONG_WORDS = 4
LONG_CHARACTERS = 8
LONG_SHARE = 0.5
OVERLAP_SHARE = 0.6
OVERLAP_SLOPE = 2


def _is_long(keyword: str) -> bool:
    squeezed = _squeezed(keyword)
    if _CJK_RUN.search(squeezed):
        return len(squeezed) > LONG_CHARACTERS
    return len(words(keyword)) > LONG_WORDS


def _econ_score(keywords: Sequence[str]) -> float:
    """Thrift of the search: the number of keywords, their length, and how much they repeat; 0 for none."""
    if not keywords:
        return 0.0
    fewest, most = KEYWORD_COUNTS
    outside = max(fewest - len(keywords), len(keywords) - most, 0)
    long = sum(map(_is_long, keywords)) / len(keywords)
    every = [word for keyword in keywords for word in words(keyword)]
    overlap = 1 - len(set(every)) / len(every)
    count_factor = max(0.0, 1 - COUNT_STEP * outside)
    return count_factor * (1 - LONG_SHARE * long) * (1 - OVERLAP_SHARE * min(1.0, OVERLAP_SLOPE * overlap))


# ------------------------------------------------------------------------------------- weights and gates


def check_weights(weights: Mapping[str, float]) -> dict[str, float]:
    """All four weights, summing to 1: the named ones replace defaults, the rest stay.

    Raises ``ValueError`` for an unknown name, a value that is no finite number >= 0, or four zeros.

    >>> check_weights({"retrieval": 1, "field": 1, "format": 1, "econ": 1})
    {'retrieval': 0.25, 'field': 0.25, 'format': 0.25, 'econ': 0.25}
    """
    for name, weight in weights.items():
        if name not in DIMENSIONS:
            raise ValueError(f"reward weight {name!r} is unknown: the names are {', '.join(DIMENSIONS)}")
        if not _is_number(weight) or not 0 <= weight <= sys.float_info.max:
            raise ValueError(f"reward weight {name}={_shown(weight)}: a finite number of 0 or more is expected")
    mixed = {name: float(weights.get(name, DEFAULT_WEIGHTS[name])) for name in DIMENSIONS}
    largest = max(mixed.values())
    if largest == 0:
        raise ValueError("reward weights are all zero: give at least one dimension a weight above 0")
    # Scaled by a power of two first, which is exact, so that not even huge weights overflow their sum.
    scaled = {name: math.ldexp(weight, -math.frexp(largest)[1]) for name, weight in mixed.items()}
    total = math.fsum(scaled.values())
    return {name: weight / total for name, weight in scaled.items()}


def weights_from_env(environ: Mapping[str, str] = os.environ) -> dict[str, float]:
    """The weights of ``PLANNER_REWARD_WEIGHTS``: ``field=0.40,econ=0.05`` or a JSON object; blank is unset.

    Raises ``ValueError`` that names the variable and its value.

    >>> weights_from_env({"PLANNER_REWARD_WEIGHTS": "retrieval=0.55"})["field"]
    0.2727272727272727
    """
    text = environ.get(WEIGHTS_VARIABLE, "").strip()
    try:
        return check_weights(_named_weights(text) if text else {})
    except ValueError as error:
        raise ValueError(
            f'{WEIGHTS_VARIABLE}={_shown(text)}: {error}. Write it like field=0.40 or {{"field": 0.40}}'
        ) from error


def _named_weights(text: str) -> dict[str, float]:
    if text.startswith("{"):
        loaded: dict[str, float] = _DECODER.decode(text)
        return loaded
    named: dict[str, float] = {}
    for item in text.split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise ValueError(f"{item.strip()!r} is not name=number")
        if name in named:
            raise ValueError(f"{name!r} stands twice")
        try:
            if "_" in value:  # float() takes Python's digit grouping: 1_0 would silently be 10
                raise ValueError
            named[name] = float(value)
        except ValueError:
            raise ValueError(f"{name}={value!r}: a number is expected") from None
    return named


def check_gates(gates: Iterable[str]) -> tuple[str, ...]:
    """The gates named, each once, in the order of ``GATES``. Raises ``ValueError`` for an unknown name."""
    if isinstance(gates, str):
        raise ValueError(f"gates={gates!r}: a tuple of names is expected, not one string")
    named = list(gates)
    for name in named:
        if name not in GATES:
            raise ValueError(f"reward gate {name!r} is unknown: the names are {', '.join(GATES)}")
    return tuple(gate for gate in GATES if gate in named)


def gates_from_env(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The gates of ``PLANNER_REWARD_GATES``, a comma list; blank is none. Raises ``ValueError``.

    >>> gates_from_env({"PLANNER_REWARD_GATES": "grounded, domain"})
    ('domain', 'grounded')
    """
    text = environ.get(GATES_VARIABLE, "").strip()
    try:
        return check_gates([name.strip() for name in text.split(",")] if text else [])
    except ValueError as error:
        raise ValueError(f"{GATES_VARIABLE}={_shown(text)}: {error}") from error


# -------------------------------------------------------------------------------------------- the reward


def _mean(scores: Iterable[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return math.fsum(known) / len(known) if known else None


def _top(titles: Iterable[str] | None) -> list[str] | None:
    if titles is None:
        return None
    if isinstance(titles, str):
        raise TypeError(f"titles: a list of strings or None is expected, got one string {_shown(titles)}")
    top = list(titles)[:TOP_TITLES]
    for place, title in enumerate(top):
        if not isinstance(title, str):
            raise TypeError(f"titles[{place}]: a string is expected, got {_shown(title)}")
    return top


def compute_reward(
    plan: Mapping[str, Any] | ParsedPlan | None,
    golden: Mapping[str, Any] | str,
    text: str,
    titles: Sequence[str] | None,
    *,
    weights: Mapping[str, float] = DEFAULT_WEIGHTS,
    gates: Iterable[str] = (),
) -> RewardBreakdown:
    """Score one plan against one golden record.

    ``plan``: what ``parse_plan`` gave (its issues cost format), or a bare dict, or None. ``golden``: a dict
    or its JSON string. ``text``: the shopper's words of this turn. ``titles``: the titles found for the
    plan's keywords, best first, of which the first 20 count; None when retrieval is off for the whole run.

    Pure, and the same to the bit in every process. Raises ``ValueError`` for a broken golden record, weights
    or gates and ``TypeError`` for a wrong argument, whatever the plan is.
    """
    record = parse_golden(golden)
    share = check_weights(weights)
    active = check_gates(gates)
    top = _top(titles)
    if not isinstance(text, str):
        raise TypeError(f"text: the shopper's words are expected as a string, got {_shown(text)}")
    members, issues = _members(plan)
    if members is None:
        return _NO_PLAN
    view = _view(members, issues)
    searched = bool(record["must_have"]) or bool(words(record["category_anchor"] or ""))
    copycat = _copies(view.keywords, record, text)
    faked = _evidence_faked(view, text)
    expected_domains = None if record["domains"] is None else frozenset(record["domains"])
    domain_miss = bool(expected_domains and view.domains and expected_domains.isdisjoint(view.domains))
    off_domain = "domain" in active and domain_miss

    retrieval: float | None = None
    if searched and not view.keywords:
        retrieval = 0.0
    elif searched and top is not None:
        retrieval = _found_share(record, top) if top and not off_domain else 0.0
        if copycat:
            retrieval *= COPY_FACTOR
        if top and "grounded" in active and not _grounded(view.keywords, top):
            retrieval *= GROUNDED_FACTOR

    category: float | None = None
    invented = view.category is not None and _squeezed(view.category) != ""
    if _squeezed(record["category"] or ""):
        category = 0.0 if view.category is None else _category_score(record["category"], view.category)
    elif "overcommit" in active:
        category = 0.0 if invented or view.category is None else 1.0
    domains_f1: float | None = None
    if expected_domains is not None:
        domains_f1 = 0.0 if view.domains is None else _domains_f1(expected_domains, view.domains)
    budget = None if record["budget_uncertain"] else _budget_score(record, view)
    exclusion = _exclusion_score(record, view) if "exclusion" in active else None
    field = _mean((category, domains_f1, budget, exclusion))
    if field is not None and (faked or off_domain):
        field = 0.0

    scores: dict[str, float | None] = {
        "retrieval": retrieval,
        "field": field,
        "format": view.format_tenths / _FULL_FORMAT,
        "econ": _econ_score(view.keywords) if searched else None,
    }
    if record["status"] == "review":
        share["field"] *= REVIEW_FACTOR
    weight = math.fsum(share[name] for name, score in scores.items() if score is not None)
    gained = math.fsum(share[name] * score for name, score in scores.items() if score is not None)
    parts = {**scores, "category": category, "domains_f1": domains_f1, "budget": budget}
    return RewardBreakdown(
        total=gained / weight if weight > 0 else 0.0,
        retrieval=retrieval,
        field_score=field,
        format=scores["format"],
        econ=scores["econ"],
        category=category,
        domains_f1=domains_f1,
        budget=budget,
        abstained=tuple(name for name, score in parts.items() if score is None),
        copycat=copycat,
        evidence_faked=faked,
        empty_keywords=not view.keywords,
        domain_miss=domain_miss,
        overcommit=invented and not _squeezed(record["category"] or ""),
        exclusion_missed=record["exclude_expected"] and not any(word for word, _ in view.exclusions),
    )
