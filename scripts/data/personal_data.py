"""Personal data in shoppers' messages: found by pattern and replaced by a bracketed kind before anything is written.

Pure functions. The patterns are made for Chinese messages; they prefer masking too much to masking too little where
a number stands beside its name (订单号 ...), and leave sums, sizes and model numbers alone.
"""

import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

SEPARATOR = r"[ \-—.]?"
NO_LETTER_BEFORE, NO_LETTER_AFTER = r"(?<![0-9A-Za-z])", r"(?![0-9A-Za-z])"
NO_DIGIT_BEFORE = r"(?<!\d)"  # of what people type right behind a word: vx13812345678, sfz110105...
NAMED_ORDER = (
    r"(?:订单编号|订单号|订单|运单号|快递单号|物流单号|单号|快递|运单|流水号|交易号|order(?: ?(?:no|number|id))?)"
)
# 走路, 逛街, 广场舞 name no place, nor the 弄 of 给我弄一双: as a street it stands behind a number or a name.
STREET = (
    r"(?:(?<![走赶])路|(?<![逛压轧])街|大道|巷|胡同|小区|花园|公寓|大厦|广场(?!舞)|村|苑"
    r"|(?<=[\d\u4e00-\u9fff])(?<![我你您他她它们帮想要给去来再能会得可以好己人么样不别就也都还才没])弄)"
)
HOUSE = r"(?:号院|号楼|栋|幢|座|弄|单元|室)"
# 公路车头盔2号, 走路穿37号: a size. 号 alone is a house number only where none of these stands before it.
SIZED = r"[鞋靴袜衣裤裙帽盔码剪刀套穿球个]"
LONGEST_PLACE = 24  # Chinese characters of province, city, district and street before the house number
BEFORE_A_PLACE = re.compile(r"(?:地址是|地址|寄到|寄往|送到|送去|发到|发往|住在|家在|我在|住|是|到|在)")


class Found(NamedTuple):
    """One piece of personal data: what it is, and where it stands in the text (`start` to `end`, exclusive)."""

    kind: str
    start: int
    end: int


def luhn_valid(digits: str) -> bool:
    """Whether a string of digits passes the check sum of bank cards.

    >>> luhn_valid("4111111111111111"), luhn_valid("4111111111111112")
    (True, False)
    """
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if place % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


_ID_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
_ID_CHECKS = "10X98765432"


def resident_id_valid(number: str) -> bool:
    """Whether 18 characters are a resident identity number: a date of birth and a check character that fit.

    >>> resident_id_valid("11010519491231002X"), resident_id_valid("110105194912310021")
    (True, False)
    """
    if not re.fullmatch(r"[1-9]\d{5}(?:18|19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])\d{3}[\dXx]", number):
        return False
    total = sum(weight * int(digit) for weight, digit in zip(_ID_WEIGHTS, number, strict=False))
    return _ID_CHECKS[total % 11] == number[-1].upper()


def _plain(piece: str) -> str:
    return re.sub(r"[^\dXx]", "", piece)


def _always(piece: str) -> bool:
    return True


def _id_like(piece: str) -> bool:
    # A mistyped identity number is still personal: the shape of a birth date is enough, the check digit is not asked.
    return re.fullmatch(r"[1-9]\d{5}(?:18|19|20)\d{2}(?:0[1-9]|1[0-2])\d{5}[\dXx]", _plain(piece)) is not None


def _card_like(piece: str) -> bool:
    digits = _plain(piece)
    return 13 <= len(digits) <= 19 and luhn_valid(digits)


# Tried in this order; a later kind never takes what an earlier one has taken. Every pattern begins with something
# fixed or is bounded, so that the time stays linear in the length of the text.
_KINDS: tuple[tuple[str, str, Callable[[str], bool]], ...] = (
    ("mail", r"(?<![\w.%+\-])[A-Za-z0-9._%+\-]{1,64} ?@ ?[A-Za-z0-9\-]{1,63}(?:\.[A-Za-z0-9\-]{1,63}){1,4}", _always),
    ("id_number", rf"{NO_DIGIT_BEFORE}\d{{6}}{SEPARATOR}\d{{8}}{SEPARATOR}\d{{3}}[0-9Xx]{NO_LETTER_AFTER}", _id_like),
    (
        "order_number",
        rf"(?i:{NAMED_ORDER})\s{{0,3}}[是为：:#＃]?\s{{0,3}}(?P<value>(?=[A-Za-z0-9\-]{{0,28}}\d{{4}})[A-Za-z0-9\-]{{6,32}})",
        _always,
    ),
    (
        "phone",
        rf"{NO_DIGIT_BEFORE}(?:(?:\+|00)?86[ \-]?)?1[3-9]\d{SEPARATOR}\d{{4}}{SEPARATOR}\d{{4}}(?!\d)",
        _always,
    ),
    (
        "phone",
        rf"(?:{NO_DIGIT_BEFORE}(?:0\d{{2,3}}[ \-]\d{{7,8}}|\(0\d{{2,3}}\) ?\d{{7,8}})"
        rf"|{NO_LETTER_BEFORE}400[ \-]?\d{{3,4}}[ \-]?\d{{3,4}})(?!\d)",
        _always,
    ),
    ("phone", r"(?i:座机|电话|固话|tel)(?:号码?)?[是为:：]?\s{0,3}(?P<value>0\d{9,11})(?!\d)", _always),
    ("account", r"(?i:qq|扣扣|加q)(?:号码?|群)?[是为:：]?\s{0,3}(?P<value>[1-9]\d{4,10})(?![\d块元])", _always),
    ("card_number", rf"{NO_LETTER_BEFORE}\d(?:[ \-]?\d){{12,18}}{NO_LETTER_AFTER}", _card_like),
    ("order_number", rf"{NO_LETTER_BEFORE}(?:[A-Z]{{2,4}}\d{{10,20}}|\d{{12,32}}){NO_LETTER_AFTER}", _always),
    (
        "address",
        rf"(?P<street>{STREET})(?:[\u4e00-\u9fff]{{0,6}}?\d{{1,5}}{HOUSE}"
        rf"|(?:(?!{SIZED})[\u4e00-\u9fff]){{0,6}}?\d{{1,5}}号(?![色码球字]|电池))"
        rf"(?:[ ,，]?[\dA-Za-z]{{1,5}}(?:号楼|栋|幢|座|单元|层|楼|室|号)){{0,4}}(?:[ ,，]?\d{{2,5}}(?![\d块元以左]))?",
        _always,
    ),
    (
        "address",
        rf"{NO_LETTER_BEFORE}[\dA-Za-z]{{1,4}}(?:栋|幢|号楼|座)[ ,，]?"
        r"(?:[\dA-Za-z]{1,3}单元[ ,，]?)?[\dA-Za-z]{2,5}[室号房]",
        _always,
    ),
)
_NAMES = "|".join(dict.fromkeys(kind for kind, _, _ in _KINDS))
MASK = re.compile(rf"\[(?:{_NAMES})\]")  # what stands where a piece was masked
_COMPILED = tuple((kind, re.compile(pattern), holds) for kind, pattern, holds in _KINDS)


def _start_of_place(text: str, end: int) -> int:
    """Where the run of Chinese characters before a street begins, without the words that lead up to it."""
    start = end
    while start > 0 and end - start < LONGEST_PLACE and "\u4e00" <= text[start - 1] <= "\u9fff":
        start -= 1
    leading = list(BEFORE_A_PLACE.finditer(text, start, end))
    return leading[-1].end() if leading else start


def find_personal_data(text: str) -> tuple[Found, ...]:
    """The personal data of a text, by position. Full-width digits and letters are read as the usual ones.

    >>> find_personal_data("打我手机13812345678")
    (Found(kind='phone', start=4, end=15),)
    """
    plain = _same_length(text)
    found: list[Found] = []
    taken = bytearray(len(plain))  # 1 where a piece was found: asked in constant time, however many there are
    for kind, pattern, holds in _COMPILED:
        for match in pattern.finditer(plain):
            start, end = match.span("value") if "value" in pattern.groupindex else match.span()
            if "street" in pattern.groupindex:
                start = _start_of_place(plain, start)
            if not any(taken[start:end]) and holds(plain[start:end]):
                found.append(Found(kind, start, end))
                taken[start:end] = b"\1" * (end - start)
    return tuple(sorted(found, key=lambda one: one.start))


def _same_length(text: str) -> str:
    """`text` with full-width characters made ordinary, every character in its place."""
    folded = (unicodedata.normalize("NFKC", char) for char in text)
    return "".join(new if len(new) == 1 else old for new, old in zip(folded, text, strict=True))


def mask_personal_data(text: str) -> tuple[str, tuple[str, ...]]:
    """`text` with each piece replaced by its kind in brackets, and the kinds found, in order.

    >>> mask_personal_data("寄到 a@b.cn，电话13812345678")
    ('寄到 [mail]，电话[phone]', ('mail', 'phone'))
    """
    found = find_personal_data(text)
    pieces, at = [], 0
    for one in found:
        pieces += [text[at : one.start], f"[{one.kind}]"]
        at = one.end
    return "".join([*pieces, text[at:]]), tuple(one.kind for one in found)
