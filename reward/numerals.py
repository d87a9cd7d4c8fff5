"""Numbers as shoppers write them in Chinese: digits, numerals, both mixed, short forms, spans. Standard library only.

``read_numeral`` reads one number at a given place of a text; ``normalise`` prepares the text. What a number stands
for (money, a size, a count) is not judged here; ``reward.budget`` does that.
"""

import re
import unicodedata
from decimal import Decimal
from typing import NamedTuple

DIGITS = "零一二两三四五六七八九"
UNITS = {"十": 10, "百": 100, "千": 1000, "万": 10_000, "亿": 100_000_000, "k": 1000, "w": 10_000}
LONGEST_DIGITS = 15  # a longer row of digits is an order, card or phone number, never a sum
MOST_TERMS = 10

_VALUES = {**dict(zip("零一三四五六七八九", (0, 1, 3, 4, 5, 6, 7, 8, 9), strict=True)), "二": 2, "两": 2}
_SMALL = "十百千"
_VARIANTS = str.maketrans(
    "〇壹贰貳叁參肆伍陆陸柒捌玖拾佰仟萬億兩幾數圆圓塊錢銭幣鎊歐澳韓個來餘碼雙條臺",
    "零一二二三三四五六六七八九十百千万亿两几数元元块钱钱币镑欧澳韩個来余码双条台",
)  # 個 stays: only the Cantonese 個 is a unit of money
# 俩 and 仨 are two and three pieces (一百块俩) unless a unit follows.
_SPOKEN = {"俩": "两", "仨": "三", "廿": "二十", "卅": "三十"}
_SPOKEN_NUMERAL = re.compile(r"[俩仨](?=仨?[十百千万亿块元])|[廿卅]")
_WIDE_COMMA = re.compile(r"(?<=[０-９])，(?=[０-９]{3})")
_COMMA = re.compile(r"(?<!\d),|,(?!\d{3})")
_SPLIT_NUMBER = re.compile(r"(?<=\d) (?=[百千万亿](?:[元块多万亿;美港日欧韩台]|$))")
_ARABIC = r"\d{1,3}(?:,\d{3}){1,4}(?!\d|,\d)(?:\.\d+)?|\d+(?:\.\d+)?"  # bounded groups keep the scan linear
_TERM = re.compile(
    rf"(?P<arabic>{_ARABIC})(?:(?P<letter>[kKwW])(?P<after>\d?)(?![0-9A-Za-z]))?(?P<units>[十百千万亿]*)"
    rf"|(?P<decimal>[{DIGITS}]+点[{DIGITS}]+)(?P<units2>[十百千万亿]*)"
    rf"|(?P<vague>[几数])(?P<units3>[十百千万亿]+)"
    rf"|(?P<digits>[{DIGITS}]+)(?P<units4>[十百千万亿]*)"
    r"|(?P<ten>十)(?P<units5>[万亿]*)"
    rf"|点(?P<fraction>[{DIGITS}]+)"
    r"|(?P<some>几)"
)
# 百八十 is some 80 to 100, 百十 some 100 to 110; 千 alone is a number only before 元, 来, 把 (the caller judges).
_IDIOM = re.compile(r"(百)八十(?![万亿])|(千)八百(?![万亿])|(万)八千|(百)十(?![万亿])")
_UNIT_ALONE = re.compile(rf"[百千万亿]+(?![{DIGITS}十百千\d])")
START = re.compile(rf"[\d{DIGITS}十百千万亿几数]")


class Numeral(NamedTuple):
    """A number: ``low`` equals ``high`` when it is exact.

    ``top``: the unit that an end of a range without its own takes over (一到两千: 1000), 1 where there is none.
    ``letter``: the k or w it was written with, as written. ``unit_alone``: no digit was said (百元, 千把块).
    ``arabic``: it is written in digits alone.
    """

    end: int
    low: Decimal
    high: Decimal
    top: int = 1
    letter: str = ""
    unit_alone: bool = False
    arabic: bool = False


def normalise(text: str) -> str:
    """NFKC, Chinese variants and spoken numerals folded, spaces single, line ends and commas outside numbers as ``;``.

    >>> normalise("人民币  ３００圓，12 万元")
    '人民币 300元;12万元'
    """
    text = _WIDE_COMMA.sub(",", text).replace("，", ";").replace("\n", ";")
    text = unicodedata.normalize("NFKC", text).translate(_VARIANTS)
    text = _SPLIT_NUMBER.sub("", " ".join(_COMMA.sub(";", text).split()))
    text = _SPOKEN_NUMERAL.sub(lambda found: _SPOKEN[found.group()], text)
    return re.sub(r"(?<=[千万])儿(?=八)", "", text)


def step(value: Decimal) -> Decimal:
    """The size of the last place that is said: what 多 may add (3000: 1000, 250: 10, 1.5: 1)."""
    if value != value.to_integral_value():
        return Decimal(1)
    whole, size = int(value), 1  # exact whatever its length, where Decimal's % is not
    while whole and whole % (size * 10) == 0:
        size *= 10
    return Decimal(size)


def read_numeral(text: str, start: int, stops: "re.Pattern[str]") -> Numeral | None:
    """The number that begins at ``start`` of a normalised text, or None.

    ``stops`` matches what makes a last digit a count of its own (一千五个 is 一千 and 五个); then the number ends
    before that digit. Reads at most MOST_TERMS terms, so the time does not depend on the text's length.

    >>> never = re.compile("(?!)")
    >>> [str(read_numeral(text, 0, never).low) for text in ("一千五", "一千零五", "13万2", "一千五万")]
    ['1500', '1005', '132000', '10050000']
    """
    idiom = _IDIOM.match(text, start)
    if idiom:
        unit = UNITS[next(group for group in idiom.groups() if group)]
        ends = sorted((Decimal(unit), Decimal(unit) * 8 / 10)) if "八" in idiom.group() else None
        low, high = ends or (Decimal(unit), Decimal(unit) * 11 / 10)
        return Numeral(idiom.end(), low, high, unit, unit_alone=True)
    alone = _UNIT_ALONE.match(text, start)
    if alone:
        value = Decimal(1)
        for unit_name in alone.group()[:4]:
            value *= UNITS[unit_name]
        return Numeral(alone.end(), value, value, min(int(value), 10**9), unit_alone=True)
    return _read_terms(text, start, stops)


class _Term(NamedTuple):
    end: int
    low: Decimal
    high: Decimal
    units: str
    kind: str  # arabic, decimal, digits, zero_led, span, string, vague, ten, fraction
    letter: str = ""
    digits: int = 1  # how many digits were written


def _read_terms(text: str, start: int, stops: "re.Pattern[str]") -> Numeral | None:
    done_low = done_high = Decimal(0)  # what stands before the last 万 or 亿
    low = high = Decimal(0)
    smallest, last_unit, top, letter, position = 10**9, 1, 1, "", start
    only_arabic = True
    for count in range(MOST_TERMS):
        term = _term(text, position)
        if term is None or (count and term.kind == "string") or (not count and term.kind == "fraction"):
            break
        if count and last_unit == 1:
            break  # a second number right behind a number without a unit is another number
        first_unit = UNITS[term.units[0]] if term.units else 1
        if count and term.units and term.units[0] in _SMALL and first_unit >= smallest:
            break
        if not term.units:
            single = term.kind in ("digits", "span") or (term.kind == "arabic" and term.digits == 1)
            if count and single and stops.match(text, term.end):
                break
            short = count > 0 and single and last_unit >= 100
            if count and term.kind == "arabic" and not short and term.low >= last_unit:
                break
            scale = Decimal(last_unit) / 10 if short else Decimal(1)
            low, high, position = low + term.low * scale, high + term.high * scale, term.end
            only_arabic = only_arabic and term.kind == "arabic"
            break
        only_arabic = False
        letter = letter or term.letter
        term_low, term_high = term.low, term.high
        for name in term.units:
            unit = UNITS[name]
            if name in ("万", "亿", "w"):
                term_low, term_high = low + term_low, high + term_high
                whole = name == "亿" or not term_low and not low
                if whole:
                    term_low, term_high = done_low + term_low, done_high + term_high
                    done_low = done_high = Decimal(0)
                done_low, done_high = done_low + term_low * unit, done_high + term_high * unit
                low = high = term_low = term_high = Decimal(0)
                smallest, top = 10**9, unit
            else:
                term_low, term_high = term_low * unit, term_high * unit
                smallest, top = unit, max(top, unit)
            last_unit = unit
        low, high, position = low + term_low, high + term_high, term.end
    if position == start:
        return None
    return Numeral(position, done_low + low, done_high + high, top, letter, arabic=only_arabic)


def _term(text: str, start: int) -> _Term | None:
    found = _TERM.match(text, start)
    if found is None or found.end() - start > 4 * LONGEST_DIGITS:
        return None
    end = found.end()
    if found["arabic"]:
        plain = found["arabic"].replace(",", "")
        if len(plain) > LONGEST_DIGITS:
            return None
        value = Decimal(plain)
        letter = found["letter"] or ""
        if letter:
            value += Decimal(int(found["after"] or 0)) / 10
        return _Term(end, value, value, letter.lower() + found["units"], "arabic", letter, len(plain))
    if found["decimal"]:
        whole, fraction = found["decimal"].split("点")
        value = Decimal(f"{_row(whole)}.{_row(fraction)}")
        return _Term(end, value, value, found["units2"], "decimal")
    if found["fraction"]:
        value = Decimal(f"0.{_row(found['fraction'])}")
        return _Term(end, value, value, "", "fraction")
    if found["vague"] or found["some"]:
        return _Term(end, Decimal(1), Decimal(10), found["units3"] or "", "vague")
    if found["ten"]:
        return _Term(end, Decimal(1), Decimal(1), "十" + found["units5"], "ten")
    return _chinese_term(found["digits"], found["units4"], end)


def _chinese_term(digits: str, units: str, end: int) -> _Term | None:
    bare = digits.lstrip("零")
    if not bare:
        return _Term(end, Decimal(0), Decimal(0), units, "zero_led") if not units else None
    values = [_VALUES[digit] for digit in bare]
    if len(values) == 1:
        value = Decimal(values[0])
        return _Term(end, value, value, units, "zero_led" if bare != digits else "digits")
    if len(values) == 2 and (values[1] - values[0] == 1 or values == [3, 5]) and bare == digits:
        return _Term(end, Decimal(values[0]), Decimal(values[1]), units, "span")
    if units or len(values) > LONGEST_DIGITS:
        return None
    value = Decimal(_row(digits))
    return _Term(end, value, value, "", "string")


def _row(digits: str) -> str:
    return "".join(str(_VALUES[digit]) for digit in digits)
