"""What a shopper says about money in one turn, by rule: no model, no I/O, standard library only.

``parse_budget`` is the golden record's authority for ``budget_amount``, ``clear_budget`` and ``budget_uncertain``.
Numbers are found first, judged second: a number is money when a unit of money, a bound (以内, 至少), a budget word
(预算, 价位) or a clause of its own says so, and no measure follows. ``scripts/data/budget_cases.py`` prints how the
rules agree with a table of price expressions.
"""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

from reward.budget_words import (
    ALONE_BEFORE,
    APPROXIMATE_AFTER,
    BUDGET_AFTER,
    BUDGET_WORD,
    CLAUSE_END,
    CLAUSE_TAIL,
    CLEAR,
    COUNTED,
    CURRENCIES,
    CURRENCY_AFTER,
    CURRENCY_BEFORE,
    DIMENSION,
    FREE_SHIPPING,
    FUZZY_AFTER,
    JUST_UNDER,
    LIFTED_SUM,
    LOT,
    MAX_AFTER,
    MAX_BEFORE,
    MIN_AFTER,
    MIN_BEFORE,
    MODEL_BEFORE,
    NOT_BELOW,
    PIECES,
    PLACE,
    REFUSED,
    REVISED,
    SAID_BEFORE,
    SMALL_CHANGE,
    TENTHS_ALONE,
    TILES,
    TOGETHER,
    WATTS,
    WHOLE_CENTS,
)
from reward.numerals import START, Numeral, normalise, read_numeral, step

DEFAULT_CURRENCY = "CNY"  # of a sum said without one
NEAR = 14  # characters before and after a sum that are looked at; what judges a sum stands beside it
LEAST_BARE = 10  # a smaller number without a unit of money is a count
LEAST_BARE_RANGE = 50
MOST_IN_A_LOT = 20  # 十块五个 is a lot, 五百块两双 a price
MOST_PIECES = 200
LARGEST_SIZE = 50  # 42欧 is a European size, 80欧 a price
LONGEST_RUN = 64  # numeral characters in a row beyond which a run is junk
LARGEST_SUM = 10**18  # what is beyond it is a joke or a slip (一亿亿), never a sum
MOST_CANDIDATES = 32  # more sums than this in one turn is a price list: nobody's budget
_EITHER = re.compile(r"(?:、|或者?)")
_RANGE = re.compile(r"(?:到|至|-{1,2}|~{1,2}|—{1,2}|–|―|、|或者?)")
_NUMERAL_RUN = re.compile(r"[\d,.零一二两三四五六七八九十百千万亿几数点]+")
_CLOSED_YEARS = (1900, 2100)


class Candidate(NamedTuple):
    """One sum found. ``kind``: exact, approx, max, min, range or vague; an end that is not known is None."""

    text: str
    kind: str
    low: float | int | None
    high: float | int | None
    currency: str


class BudgetReading(NamedTuple):
    """What one turn says about money.

    ``amount``: the sum the shopper would pay at most, as said, in ``currency``: the sum itself, the upper end of a
    bound or range; None without one, for a lower bound alone, and when ``uncertain``. ``low``, ``high``: the ends
    as far as they are said, both equal for an exact sum, None where open (左右 says no end). ``uncertain``: money
    is named but not one amount (十五六块, or two sums that contradict each other). ``clear``: an earlier limit is
    lifted. ``candidates``: every sum that was taken for money, in the order said, withdrawn ones included.
    """

    amount: float | int | None
    low: float | int | None
    high: float | int | None
    currency: str | None
    uncertain: bool
    clear: bool
    candidates: tuple[Candidate, ...]


class _Sum(NamedTuple):
    start: int
    end: int
    low: Decimal
    high: Decimal
    top: int
    vague: bool
    currency: str | None
    money: bool  # a unit of money or a sign was written
    numeral: Numeral


def parse_budget(text: str) -> BudgetReading:
    """Read one turn. Never raises for a string; the time is linear in its length.

    >>> parse_budget("想买双跑鞋，三百块以内")[:3], parse_budget("800以上")[:3], parse_budget("两三百的").uncertain
    ((300, None, 300), (None, 800, None), True)
    """
    plain = normalise(text)
    found = [(one, _kind(plain, one)) for one in _joined(plain, _sums(plain))]
    kept = [(one, kind) for one, kind in found if kind is not None]
    candidates = tuple(_candidate(plain, one, kind) for one, kind in kept)
    clear = CLEAR.search(plain) is not None
    said = []
    for (one, _), candidate in zip(kept, candidates, strict=True):
        if _withdrawn(plain, one):
            clear = True
        else:
            said.append((one, candidate))
    if len(said) > MOST_CANDIDATES:
        return BudgetReading(None, None, None, None, True, clear, candidates)
    low, high, amount, uncertain, currency = _combined(plain, said)
    if clear and said:
        amount, uncertain = None, True  # 贵点也行 beside a sum: whether the sum still binds, nobody can tell
    return BudgetReading(amount, low, high, currency, uncertain, clear, candidates)


# ------------------------------------------------------------------------------------------------ finding sums


def _sums(text: str) -> list[_Sum]:
    """Every number with what belongs to it: currency before and after, 多 and 来, small change."""
    whole = WHOLE_CENTS.fullmatch(text)
    if whole:
        return _cents(whole)
    sums: list[_Sum] = []
    place = START.search(text)
    while place and len(sums) <= 4 * MOST_CANDIDATES:
        one = _sum_at(text, place.start())
        if one is None:
            run = _NUMERAL_RUN.match(text, place.start())
            next_start = run.end() if run and run.end() - run.start() > LONGEST_RUN else place.start() + 1
        else:
            if one.high < LARGEST_SUM:
                sums.append(one)
            next_start = one.end
        place = START.search(text, next_start)
    return sums


def _cents(whole: "re.Match[str]") -> list[_Sum]:
    """The sum that a text of nothing but 分 states; none where its numeral is no number (零百分)."""
    if whole["half"]:
        value = Decimal("1.5")
    else:
        numeral = read_numeral(whole.string, 0, COUNTED)
        if numeral is None:
            return []
        value = numeral.low / 100
    return [_Sum(0, whole.end(), value, value, 1, False, None, True, Numeral(whole.end(), value, value))]


def _sum_at(text: str, start: int) -> _Sum | None:
    numeral = read_numeral(text, start, COUNTED)
    if numeral is None:
        return None
    before = text[max(0, start - NEAR) : start]
    sign = CURRENCY_BEFORE.search(before)
    currency = _currency(sign.group()) if sign else None
    low, high, end, vague = numeral.low, numeral.high, numeral.end, numeral.low != numeral.high
    fuzzy = FUZZY_AFTER.match(text, end)
    if fuzzy:
        high, vague, end = high + step(high), True, fuzzy.end()
    tenths = TENTHS_ALONE.match(text, end)
    unit = CURRENCY_AFTER.match(text, end)
    if unit and unit.group().strip() == "個" and not sign:
        unit = None
    if unit:
        end = unit.end()
        currency = _currency(unit.group()) or currency
        change, change_end = _change(text, end, unit.group())
        low, high, end = low + change, high + change, change_end
        more = CURRENCY_AFTER.match(text, end)
        if more and _currency(more.group()):
            currency, end = _currency(more.group()), more.end()
        fuzzy = FUZZY_AFTER.match(text, end)
        if fuzzy and not vague and fuzzy.group() != "来":
            high, vague, end = high + step(high), True, fuzzy.end()
    elif tenths and not numeral.unit_alone:
        low, high, end = low / 10, high / 10, tenths.end()
    elif numeral.unit_alone and not vague:
        return None
    if numeral.unit_alone and re.match("[机级档]", text[end : end + 1]):
        vague, high = True, high * 10
    if JUST_UNDER.search(before[: sign.start()] if sign else before):
        low, vague = Decimal(0), True
    start_of_sum = start - (len(sign.group()) if sign else 0)
    return _Sum(start_of_sum, end, low, high, numeral.top, vague, currency, bool(unit or sign or tenths), numeral)


def _change(text: str, start: int, unit: str) -> tuple[Decimal, int]:
    """角 and 分 after a unit: (value in units, end). A lone digit counts only after 块 or 元 (五块六)."""
    found = SMALL_CHANGE.match(text, start)
    if not found or (found["lone"] and unit[-1:] not in "块元蚊個"):
        return Decimal(0), start
    if found["half"]:
        return Decimal("0.5"), found.end()
    value = Decimal(0)
    for group, size in (("tenths", 10), ("hundredths", 100), ("cents", 100), ("after_zero", 100), ("lone", 10)):
        digit = found[group]
        if digit:
            numeral = read_numeral(digit, 0, COUNTED)
            value += (numeral.low if numeral else Decimal(0)) / size
    return value, found.end()


def _currency(written: str) -> str | None:
    """The ISO code of a currency's name or sign; None for 块, 元 and the like, which every currency shares."""
    name = re.sub(r"[\s.:]|[整正]$", "", written).lower()
    for code, names in CURRENCIES.items():
        if name in names or name.removesuffix("钱") in names:
            return code
    return None


def _joined(text: str, sums: Sequence[_Sum]) -> list[_Sum]:
    """Ranges put together: 200到300, 一到两千 (the lower end takes over the unit). A chain of three is no range."""
    joined: list[_Sum] = []
    position = 0
    while position < len(sums):
        chain = [sums[position]]
        while position + len(chain) < len(sums):
            link = _RANGE.match(text, chain[-1].end)
            follower = sums[position + len(chain)]
            if not link or link.end() != follower.start:
                break
            chain.append(follower)
        position += len(chain)
        if len(chain) == 1:
            joined.append(chain[0])
        elif len(chain) == 2:
            first, second = chain
            either = _EITHER.match(text, first.end) is not None
            if either and text[first.end] == "、" and (first.high >= 10 or first.money):
                joined += chain  # 300、500 are two sums, 2、3百 is a span
            else:
                joined.append(_range(first, second, either))
    return joined


def _range(first: _Sum, second: _Sum, either: bool) -> _Sum:
    low = first.low
    if not first.money or second.top >= 10_000 > first.top:
        scaled = low * second.top
        # 一到两千 and 七千到九千亿 take the unit over, 8500到3万 does not: the lower end must stay the lower one.
        if first.top < second.top and scaled < second.low:
            low = scaled
    low, high = sorted((low, second.high))
    return first._replace(
        end=second.end,
        low=low,
        high=high,
        top=max(first.top, second.top),
        vague=first.vague or second.vague or either,
        currency=second.currency or first.currency,
        money=first.money or second.money,
        numeral=second.numeral,
    )


# ------------------------------------------------------------------------------------------------ judging them


def _before(text: str, one: _Sum) -> str:
    """The end of the clause before the sum."""
    return CLAUSE_END.split(text[max(0, one.start - NEAR) : one.start])[-1]


def _after(text: str, one: _Sum) -> str:
    """The beginning of the clause after the sum."""
    clause = CLAUSE_END.split(text[one.end : one.end + NEAR])[0]
    if clause.startswith(" ") and not any(word.match(clause) for word in (MAX_AFTER, MIN_AFTER, APPROXIMATE_AFTER)):
        return ""  # a space ends a clause too, but may stand before 以内
    return clause[:1] + clause[1:].split(" ")[0]


def _kind(text: str, one: _Sum) -> str | None:
    """exact, approx, max, min, range or vague; None when the number is no money."""
    before, after = _before(text, one), _after(text, one)
    is_range = one.low != one.high and not one.vague
    bound = _bound(before, after, text[one.end : one.end + NEAR])
    if PLACE.search(before) or not _is_money(text, one, before, after, bound, is_range):
        return None
    if one.vague:
        return "vague"
    if is_range:
        return "range"
    if bound:
        return bound
    return "approx" if APPROXIMATE_AFTER.match(after) or re.search(r"(?:大?约|大概|差不多)$", before) else "exact"


def _bound(before: str, after: str, beyond: str) -> str | None:
    """min or max when a word beside the sum says so; 低于500的免谈 turns it round."""
    refused = REFUSED.search(beyond) is not None
    if NOT_BELOW.search(before):
        return "min"
    if MAX_BEFORE.search(before):
        below = re.search(r"(?:低|小|少)于\W?$|不到$|不足$", before) is not None
        return "min" if below and refused else "max"
    if MIN_BEFORE.search(before):
        over = re.search(r"超|[大多]于|高[于过]", before) is not None
        return "max" if over and refused else "min"
    if MAX_AFTER.match(after):
        below = re.match(r"\W?(?:以下|之下|往下|向下|不到|不足)", after) is not None
        return "min" if below and refused else "max"
    if MIN_AFTER.match(after):
        above = re.match(r"\W?(?:以上|之上|往上|向上)", after) is not None
        return "max" if above and refused else "min"
    return None


def _is_money(text: str, one: _Sum, before: str, after: str, bound: str | None, is_range: bool) -> bool:
    unit_end = text[: one.end][-1:]
    if one.money:
        lot = one.high < MOST_IN_A_LOT and LOT.match(after) is not None
        pieces = TILES.match(after) or one.high < MOST_PIECES and PIECES.match(after)
        size = unit_end == "欧" and one.high <= LARGEST_SIZE and not bound and not BUDGET_WORD.search(before)
        together = text[one.start : one.end] == "一块" and TOGETHER.match(after)
        return not size and (unit_end != "块" or not (lot or pieces or together))
    if MODEL_BEFORE.search(before) or COUNTED.match(text, one.end) or DIMENSION.search(before):
        return False
    if one.numeral.letter and not _letter_is_money(text, one, before, bound, is_range):
        return False
    spoken = not one.numeral.arabic and one.high >= 100  # 两三百, 一千五: hardly anything else is said so
    if bound or BUDGET_WORD.search(before) or BUDGET_AFTER.match(after):
        return one.high >= LEAST_BARE
    if is_range:
        sizes = one.high < 48 or _CLOSED_YEARS[0] < one.low < one.high < _CLOSED_YEARS[1] and one.numeral.arabic
        return spoken or (one.high >= LEAST_BARE_RANGE and not sizes)
    if APPROXIMATE_AFTER.match(after):
        return one.high >= LEAST_BARE
    if one.numeral.arabic and re.search(r"\d\.\d?9$", text[one.start : one.end]):
        return one.high >= LEAST_BARE or FREE_SHIPPING.match(after) is not None  # 59.9, 9.9包邮: a shop's price
    tail = CLAUSE_TAIL.match(after.strip())
    alone = tail is not None and tail.end() == len(after.strip()) and ALONE_BEFORE.search(before) is not None
    if spoken:
        return one.vague or tail is not None
    return alone and one.high >= LEAST_BARE


def _letter_is_money(text: str, one: _Sum, before: str, bound: str | None, is_range: bool) -> bool:
    """Whether k or w behind a number is thousands of money, and not 4k pixels or 65W of power."""
    said = BUDGET_WORD.search(before) is not None or BUDGET_AFTER.match(text[one.end : one.end + NEAR]) is not None
    if one.numeral.letter in "wW":
        return said or (one.numeral.letter == "w" and not WATTS.search(text[max(0, one.start - 40) : one.end + 40]))
    pixels = one.high in (2000, 4000, 8000) and re.search(
        r"屏|显示|电视|投影|分辨率|高清|画质|视频|摄|镜头|[Hh][Zz]", text[max(0, one.start - 40) : one.end + 40]
    )
    maybe_pixels = one.high in (2000, 4000, 8000) and bound is None and not is_range  # nobody asks for 1-2k pixels
    return said or bound == "max" or not (pixels or maybe_pixels)


def _withdrawn(text: str, one: _Sum) -> bool:
    """Whether the sum is named only to take it back: 刚说三百当我没讲, 五千不够就往上加."""
    beyond = text[one.end : one.end + NEAR]
    return LIFTED_SUM.match(beyond) is not None or (
        SAID_BEFORE.search(_before(text, one)) is not None and CLEAR.search(beyond) is not None
    )


def _candidate(text: str, one: _Sum, kind: str) -> Candidate:
    low, high = _number(one.low), _number(one.high)
    ends: dict[str, tuple[float | int | None, float | int | None]] = {
        "max": (None, high),
        "min": (low, None),
        "approx": (None, None),
    }
    start, end = ends.get(kind, (low, high))
    if kind == "vague" and not one.low:
        start = None  # 将近一千 says no lower end
    if kind == "approx":
        start = end = high
    return Candidate(text[one.start : one.end], kind, start, end, one.currency or DEFAULT_CURRENCY)


def _number(value: Decimal) -> float | int:
    return int(value) if value == value.to_integral_value() else float(value)


# ------------------------------------------------------------------------------------------------ one reading

_Ends = tuple[float | int | None, float | int | None, float | int | None, bool, str | None]


def _combined(text: str, said: Sequence[tuple[_Sum, Candidate]]) -> _Ends:
    """(low, high, amount, uncertain, currency) of all sums together."""
    if not said:
        return None, None, None, False, None
    said = _last_word(text, said)
    candidates = list(dict.fromkeys(candidate._replace(text="") for _, candidate in said))
    currency = candidates[0].currency
    lows = [one for one in candidates if one.kind == "min"]
    others = [one for one in candidates if one.kind != "min"]
    if len(others) == 1 and others[0].kind == "max" and len(lows) == 1 and lows[0].low <= others[0].high:  # type: ignore[operator]
        return lows[0].low, others[0].high, others[0].high, False, currency
    if len(candidates) > 1:
        ends = [end for one in candidates for end in (one.low, one.high) if end is not None]
        same = len({one.high for one in others}) == 1 and not lows and all(one.kind != "vague" for one in others)
        if not same:
            return min(ends), max(ends), None, True, currency
    one = others[0] if others else lows[0]
    if one.kind == "vague":
        return one.low, one.high, None, True, currency
    if one.kind == "approx":
        return None, None, one.high, False, currency
    return one.low, one.high, None if one.kind == "min" else one.high, False, currency


def _last_word(text: str, said: Sequence[tuple[_Sum, Candidate]]) -> Sequence[tuple[_Sum, Candidate]]:
    """Only what is said last, where a word of revision (改成, 加到) stands before it."""
    for position in range(len(said) - 1, 0, -1):
        gap = text[said[position - 1][0].end : said[position][0].start]
        if REVISED.search(gap[-NEAR:]):
            return said[position:]
    return said
