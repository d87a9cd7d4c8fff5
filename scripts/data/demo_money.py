"""Sums of money as shoppers write them in Chinese: digits, numerals, k, full width, with and without a unit.

Pure functions over a `random.Random`; the amounts are whole numbers in the unit the shopper says.
"""

import random

DIGITS = "零一二三四五六七八九"
FULL_WIDTH = str.maketrans("0123456789", "０１２３４５６７８９")
UNITS = ("块", "块", "块钱", "元", "元", "rmb", "")
ROUND_STEPS = ((100, 5), (300, 10), (1000, 50), (3000, 100), (10000, 500))
LARGEST_STEP = 1000


def chinese_numeral(amount: int) -> str:
    """`amount` in full Chinese numerals.

    Args:
        amount: 1 to 99,999.

    >>> chinese_numeral(350), chinese_numeral(15), chinese_numeral(1080)
    ('三百五十', '十五', '一千零八十')
    """
    if not 1 <= amount <= 99_999:
        raise ValueError(f"amount={amount!r} is outside 1..99999")
    parts: list[str] = []
    gap = False
    for value, unit in ((10_000, "万"), (1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit = amount // value
        amount %= value
        if digit == 0:
            gap = gap or bool(parts)
            continue
        if gap:
            parts.append("零")
            gap = False
        if digit == 1 and value == 10 and not parts:
            parts.append("十")
        else:
            parts.append(DIGITS[digit] + unit)
    return "".join(parts)


def short_numeral(amount: int) -> str:
    """The spoken short form: 1500 is 一千五, 250 is 两百五, 2000 is 两千; the full numeral where there is none."""
    text = chinese_numeral(amount)
    if amount >= 1000 and amount % 100 == 0:
        text = text.removesuffix("百") if amount % 1000 else text
    elif amount >= 110 and amount % 10 == 0 and amount % 100 and amount < 1000:
        text = text.removesuffix("十")
    if text.startswith("二") and amount >= 200:
        text = "两" + text[1:]
    return text


def nice_amount(value: float) -> int:
    """`value` rounded to a sum that people name (295.3 is 300)."""
    step = next((step for limit, step in ROUND_STEPS if value < limit), LARGEST_STEP)
    return max(step, round(value / step) * step)


def written_amount(rng: random.Random, amount: int) -> str:
    """One written form of `amount` with its unit: 300块, 三百块, ￥300, ３００元, 3百, 1.5k, 1千5."""
    forms = ["digits"] * 6 + ["numeral"] * 4 + ["short"] * 3 + ["sign"] + ["wide"]
    if amount >= 1000 and amount % 100 == 0:
        forms += ["k", "k", "qian"]
    if 100 <= amount < 1000 and amount % 100 == 0:
        forms += ["bai"]
    if amount >= 1000:
        forms += ["comma"]
    form = rng.choice(forms)
    unit = rng.choice(UNITS)
    if form == "digits":
        return f"{amount}{unit}"
    if form == "numeral":
        numeral = chinese_numeral(amount)
        if numeral.startswith("二千"):
            numeral = "两千" + numeral[2:]
        return numeral + rng.choice(("块", "块钱", "元"))
    if form == "short":
        # 一千五块 is not said: the short forms that drop their last unit stand alone.
        text = short_numeral(amount)
        full = chinese_numeral(amount)
        return text if text[1:] != full[1:] else text + rng.choice(("块", "块钱", ""))
    if form == "sign":
        return rng.choice(("￥", "¥")) + str(amount)
    if form == "wide":
        return str(amount).translate(FULL_WIDTH) + rng.choice(("元", "块"))
    if form == "k":
        return f"{amount / 1000:g}" + rng.choice(("k", "K"))
    if form == "qian":
        rest = amount % 1000 // 100
        return f"{amount // 1000}千{rest or ''}"
    if form == "bai":
        return f"{amount // 100}百" + rng.choice(("块", "", "块钱"))
    return f"{amount:,}" + rng.choice(("元", "块"))


def written_range(rng: random.Random, low: int, high: int) -> str:
    """A written range: 200-300, 200到300块, 两百到三百, 二百至三百元, 200~300."""
    if rng.random() < 0.6:
        return f"{low}{rng.choice(('-', '到', '~', '—', '至'))}{high}{rng.choice(UNITS)}"
    spell = rng.choice((short_numeral, chinese_numeral))
    return f"{spell(low)}{rng.choice(('到', '至'))}{spell(high)}{'' if spell is short_numeral else '块'}"


def written_vague(rng: random.Random, near: float) -> str:
    """A colloquial sum near `near` that names no exact amount: 十五六块, 两三百, 百来块, 三百多.

    >>> written_vague(random.Random(1), 16)
    '十几块'
    """
    unit = rng.choice(("块", "块钱", ""))
    if near < 20:
        digit = min(8, max(2, int(near) % 10))
        return rng.choice((f"十{DIGITS[digit]}{DIGITS[digit + 1]}块{unit[1:]}", "十几块", "十来块钱"))
    if near < 100:
        digit = min(8, max(2, int(near // 10)))
        pair = ("两" if digit == 2 else DIGITS[digit]) + DIGITS[digit + 1]
        return rng.choice(
            (f"{pair}十{unit}", f"{pair}十块", "几十块", f"{DIGITS[digit]}十多块", f"{DIGITS[digit]}十来块")
        )
    name, digit = ("百", int(near // 100)) if near < 1000 else ("千", int(near // 1000))
    if digit == 1 and rng.random() < 0.5:
        return rng.choice(
            {"百": ("百来块", "百十来块", "一百多", "一百来块"), "千": ("千把块", "一千来块", "一千多")}[name]
        )
    digit = min(8, digit)
    first = "两" if digit == 2 else DIGITS[digit]
    second = "两" if digit == 1 else DIGITS[digit + 1]
    pair = f"{first}{second}{name}"
    return rng.choice((f"{pair}{unit}", f"{pair}块", pair, f"{first}{name}多", f"{first}{name}来块", f"几{name}块"))
