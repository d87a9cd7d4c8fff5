"""The budget rules: tables of cases with a reason a row, and properties over any text."""

import json
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest
from commands import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from reward.budget import parse_budget

CASES = ROOT.parent / "shared" / "cases" / "price_cases.jsonl"

# text, amount, low, high, why
EXACT = [
    ("预算300", 300, 300, 300, "digits after a budget word"),
    ("２０００元", 2000, 2000, 2000, "full-width digits"),
    ("1,500元", 1500, 1500, 1500, "thousands separator"),
    ("１，５００元", 1500, 1500, 1500, "full-width thousands separator"),
    ("预算 300 元", 300, 300, 300, "spaces between"),
    ("1.5k以内", 1500, None, 1500, "k"),
    ("3w左右的车", 30000, None, None, "w; 左右 names no end"),
    ("1千5", 1500, 1500, 1500, "千 with digits"),
    ("一千五", 1500, 1500, 1500, "short form"),
    ("一千零五", 1005, 1005, 1005, "零 closes the gap"),
    ("13万2", 132000, 132000, 132000, "short form of 万"),
    ("一千五万", 10050000, 10050000, 10050000, "inside a number there is no short form"),
    ("三百块以内", 300, None, 300, "at most"),
    ("俩百块", 200, 200, 200, "俩 is two"),
    ("仨百以内", 300, None, 300, "仨 is three"),
    ("预算俩千五", 2500, 2500, 2500, "with a short form"),
    ("仨万左右", 30000, None, None, "before 万"),
    ("仨十块", 30, 30, 30, "before 十"),
    ("俩百到仨百", 300, 200, 300, "in a range"),
    ("廿五块", 25, 25, 25, "廿 is twenty"),
    ("卅块以内", 30, None, 30, "卅 is thirty"),
    ("我俩预算300", 300, 300, 300, "俩 alone is no part of a sum"),
    ("一百块钱仨", 100, 100, 100, "仨 alone is a count"),
    ("十块五毛", 10.5, 10.5, 10.5, "small change"),
    ("五块六的", 5.6, 5.6, 5.6, "a lone digit after 块"),
    ("9块9包邮", 9.9, 9.9, 9.9, "the same before 包邮"),
    ("十九块九包邮的袜子", 19.9, 19.9, 19.9, "the same in Chinese"),
    ("9.9包邮", 9.9, 9.9, 9.9, "with a point"),
    ("9块9 包邮", 9.9, 9.9, 9.9, "before a space"),
    ("9块9（包邮）", 9.9, 9.9, 9.9, "before a bracket"),
    ("9块9一双", 9.9, 9.9, 9.9, "before a piece: 一双 is no part of the sum"),
    ("九块九两双", 9.9, 9.9, 9.9, "before two pieces"),
    ("9块9左右", 9.9, None, None, "before 左右"),
    ("9块9封顶", 9.9, None, 9.9, "before a bound"),
    ("9块9起", None, 9.9, None, "before a lower bound"),
    ("9块9就行", 9.9, 9.9, 9.9, "before 就"),
    ("9元9包邮", 9.9, 9.9, 9.9, "the same after 元"),
    ("59.9有能用的没", 59.9, 59.9, 59.9, "a shop's price"),
    ("200-300", 300, 200, 300, "a range takes its upper end"),
    ("一到两千", 2000, 1000, 2000, "the lower end takes the unit over"),
    ("800到1千", 1000, 800, 1000, "the lower end keeps its own size"),
    ("从8500到3万", 30000, 8500, 30000, "as above"),
    ("小于300", 300, None, 300, "an upper bound"),
    ("至少300", None, 300, None, "a lower bound alone"),
    ("800以上", None, 800, None, "a lower bound alone"),
    ("不低于500", None, 500, None, "not below"),
    ("不超过500", 500, None, 500, "not above"),
    ("300不到", 300, None, 300, "less than"),
    ("三百不到", 300, None, 300, "the same in Chinese"),
    ("300不到一点", 300, None, 300, "一点 is no sum of its own"),
    ("300块不到的跑鞋", 300, None, 300, "the same with a unit"),
    ("预算300不足", 300, None, 300, "不足 says the same"),
    ("9块9不到", 9.9, None, 9.9, "after small change"),
    ("300不到的不要", None, 300, None, "refusing what is below is a lower bound"),
    ("超过300不到500", 500, 300, 500, "不到 before a sum belongs to that sum"),
    ("300到500不到", 500, 300, 500, "a range keeps its ends"),
    ("不高于500", 500, None, 500, "not higher: 高于 is no height"),
    ("价格高于300低于500", 500, 300, 500, "both bounds"),
    ("不低于300不高于500", 500, 300, 500, "both bounds"),
    ("低于500的免谈", None, 500, None, "refusing what is below is a lower bound"),
    ("超过500的不要", 500, None, 500, "refusing what is above is an upper bound"),
    ("500以下 不要黑色", 500, None, 500, "what is refused is the colour"),
    ("500以上1000以内", 1000, 500, 1000, "both bounds"),
    ("原来预算300，现在改成500", 500, 500, 500, "the last word counts"),
    ("三百元太抠了，放宽到五百以内", 500, None, 500, "the last word counts; 放宽 is no width"),
    ("三百太少，调高到五百", 500, 500, 500, "the last word counts; 调高 is no height"),
    ("最高500", 500, None, 500, "最高 is no height"),
    ("预算4K", 4000, 4000, 4000, "beside a budget word K is thousands"),
    ("预算三百两双袜子", 300, 300, 300, "两双 is a count"),
    ("五百块两双", 500, 500, 500, "a price and a count"),
    ("iPhone 15 预算5000", 5000, 5000, 5000, "a model number beside it"),
    ("1-2k", 2000, 1000, 2000, "a range in k is money: pixels come alone"),
    ("1k到2k", 2000, 1000, 2000, "the same with both units"),
    ("1500~2k的", 2000, 1500, 2000, "the same with one end in full"),
    ("1-2k的笔记本电脑", 2000, 1000, 2000, "nor does a computer make pixels of it"),
    ("预算1-2k", 2000, 1000, 2000, "beside a budget word"),
    ("3-4K", 4000, 3000, 4000, "K"),
    ("4k显示器，2k以内", 2000, None, 2000, "pixels and money"),
    ("under $50", 50, None, 50, "English"),
]
UNCERTAIN = [
    ("十五六块", 15, 16, "span of neighbours"),
    ("两三百", 200, 300, "span, no unit of money"),
    ("俩仨百块", 200, 300, "the same, spoken"),
    ("三五百块", 300, 500, "span of 3 and 5"),
    ("百八十块", 80, 100, "idiom"),
    ("300多块", 300, 400, "多 adds less than the last place"),
    ("几百块", 100, 1000, "vague digit"),
    ("一千来块", 1000, 2000, "来"),
    ("将近一千", None, 1000, "no lower end said"),
    ("2、3百", 200, 300, "span with a pause"),
    ("三百五百都行", 300, 500, "two sums"),
]
NO_CHANGE = [
    ("三百块俩", 300, "a lot"),
    ("五十块三件", 50, "a lot"),
    ("五十块两三件", 50, "a lot"),
    ("五十块五花肉", 50, "part of a word"),
    ("五十块三明治", 50, "part of a word"),
    ("五十块一样的", 50, "part of a word"),
    ("100元3双", 100, "a lot"),
    ("100元9折", 100, "a discount"),
]
NO_MONEY = [
    ("16寸", "size"),
    ("至少100个人", "count"),
    ("65W", "power"),
    ("65w以上的快充", "power, lower case and bounded"),
    ("4K的笔记本电脑", "pixels"),
    ("舅舅送个无人机，大概4K", "money or pixels: without a budget word it is left alone"),
    ("2k-4k分辨率", "pixels"),
    ("2k到4k的显示器", "pixels"),
    ("宽500以内的桌子", "width"),
    ("42欧码", "size"),
    ("100欧的电阻", "ohms"),
    ("100欧姆电阻", "ohms"),
    ("2024欧洲杯球衣", "year and part of a word"),
    ("38欧的跑鞋", "size: shoes are sold by European numbers"),
    ("三元催化器", "part of a word"),
    ("十块五个", "pieces, or the price of a lot"),
    ("十块五六个", "pieces, or the price of a lot"),
    ("5包邮", "a small number is a count"),
    ("两块电池", "pieces"),
    ("1000块拼图", "pieces"),
    ("一块买", "together"),
    ("20分钟", "time"),
    ("2024款", "year"),
    ("RTX 4090", "model number"),
    ("40码到42码", "sizes"),
    ("身高180以上的裤子", "height"),
    ("身高高于180的裤子", "height"),
    ("高度不高于180", "height"),
    ("50岁以上", "age"),
    ("50岁不到", "age"),
    ("300不到位", "part of a word"),
    ("20以内加减法", "sums at school"),
    ("满300减50", "a shop's offer"),
    ("电话13812345678", "phone number"),
    ("千万别是黑色", "千万 is no number here"),
    ("一定要防水，一起买", "一 is no number here"),
    ("单元门", "part of a word"),
    ("便宜点", "no sum"),
]
CLEAR = [
    ("价格那条线不要了，能折叠的来几款", True, "the limit itself is dropped"),
    ("预算不要了", True, "so is the budget"),
    ("防水那条不要了", False, "another wish is dropped, not the limit"),
    ("充电线不要了", False, "a cable is no line of prices"),
    ("贵点也行", True, "lifts the limit"),
    ("不限预算", True, "lifts the limit"),
    ("预算不限了", True, "lifts the limit"),
    ("刚说三百当我没讲，东西好就成", True, "the sum is taken back"),
    ("超预算也行", True, "lifts the limit"),
    ("便宜点", False, "tightens, if anything"),
    ("再贵一点的呢", False, "asks for another one"),
    ("价格无所谓", False, "states none, lifts none"),
    ("不要太贵的", False, "the opposite"),
    ("贵的那个跟便宜那个差在哪儿", False, "a question"),
]


@pytest.mark.parametrize(("text", "amount", "low", "high", "why"), EXACT)
def test_one_amount(text: str, amount: float | None, low: float | None, high: float | None, why: str) -> None:
    reading = parse_budget(text)
    assert (reading.amount, reading.low, reading.high) == (amount, low, high), why
    assert not reading.uncertain and not reading.clear, why


LOWER_BOUNDS = ["不低于300", "不少于300", "不小于300", "高于300", "高过300", "大于300", "超过300", "至少300", "最少300"]
LOWER_BOUNDS += ["最低300", "起码300", "下限300", "300以上", "300起", "300往上"]
UPPER_BOUNDS = ["不高于500", "不高过500", "不多于500", "不大于500", "不超过500", "低于500", "小于500", "至多500"]
UPPER_BOUNDS += ["最多500", "最高500", "顶多500", "上限500", "不到500", "500以下", "500封顶", "500往下"]


def test_a_lower_and_an_upper_bound_are_a_range_in_either_order() -> None:
    wrong = []
    for pair in product(LOWER_BOUNDS, UPPER_BOUNDS):
        for (first, second), between in product((pair, pair[::-1]), ("，", "且", " ")):
            reading = parse_budget(f"{first}{between}{second}")
            if (reading.amount, reading.low, reading.high, reading.uncertain) != (500, 300, 500, False):
                wrong.append(f"{first}{between}{second}")
    assert not wrong


@pytest.mark.parametrize(("text", "amount", "why"), NO_CHANGE)
def test_a_digit_behind_a_sum_is_no_small_change(text: str, amount: float, why: str) -> None:
    assert parse_budget(text).amount == amount, why


@pytest.mark.parametrize(("text", "low", "high", "why"), UNCERTAIN)
def test_uncertain_with_its_ends(text: str, low: float | None, high: float | None, why: str) -> None:
    reading = parse_budget(text)
    assert reading.uncertain and reading.amount is None, why
    assert (reading.low, reading.high) == (low, high), why


@pytest.mark.parametrize(("text", "why"), NO_MONEY)
def test_not_money(text: str, why: str) -> None:
    assert parse_budget(text) == (None, None, None, None, False, False, ()), why


@pytest.mark.parametrize(("text", "clear", "why"), CLEAR)
def test_lifting_a_limit(text: str, clear: bool, why: str) -> None:
    reading = parse_budget(text)
    assert reading.clear is clear and reading.amount is None and not reading.uncertain, why


def test_a_lifted_limit_beside_a_sum_is_uncertain() -> None:
    reading = parse_budget("预算300，贵点也行")
    assert (reading.clear, reading.uncertain, reading.amount) == (True, True, None)


@pytest.mark.parametrize(
    ("text", "currency"), [("300块", "CNY"), ("$50", "USD"), ("港币300", "HKD"), ("三百欧元", "EUR"), ("16寸", None)]
)
def test_currency(text: str, currency: str | None) -> None:
    assert parse_budget(text).currency == currency


@pytest.mark.parametrize(
    ("text", "amount", "currency"),
    [
        ("100欧以内", 100, "EUR"),
        ("一百欧左右", 100, "EUR"),
        ("50-100欧", 100, "EUR"),
        ("100欧的跑鞋", 100, "EUR"),
        ("预算30欧", 30, "EUR"),
        ("30欧以内", 30, "EUR"),
        ("80欧", 80, "EUR"),
        ("100镑以内", 100, "GBP"),
        ("五十美刀", 50, "USD"),
        ("50澳刀", 50, "AUD"),
        ("50加刀", 50, "CAD"),
        ("500铢以内", 500, "THB"),
        ("50美元整", 50, "USD"),
        ("50欧元整的", 50, "EUR"),
    ],
)
def test_short_names_of_currencies(text: str, amount: float, currency: str) -> None:
    reading = parse_budget(text)
    assert (reading.amount, reading.currency) == (amount, currency)


def test_a_short_name_inside_a_word_is_no_currency() -> None:
    assert parse_budget("北欧300以内的沙发").currency == "CNY"


def test_candidates_keep_what_was_withdrawn() -> None:
    reading = parse_budget("五千不够就往上加，价格那条线不要了")
    assert [candidate.high for candidate in reading.candidates] == [5000]
    assert reading.amount is None and reading.clear


FRAGMENTS = st.sampled_from(
    ["三百", "500", "一千五", "1.5k", "块", "元", "以内", "以上", "到", "-", "不超过", "预算", "，", " ", "的"]
    + ["两", "个", "贵点也行", "多", "来", "毛", "$", "至少", "万", "零", "点", "几", "不看", "改成"]
    + ["、", "半", "寸", "当我没说"]
)
TEXTS = st.one_of(st.text(max_size=60), st.lists(FRAGMENTS, max_size=14).map("".join))


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_every_text_gets_a_consistent_reading(text: str) -> None:
    reading = parse_budget(text)
    assert reading == parse_budget(text)
    if reading.low is not None and reading.high is not None:
        assert reading.low <= reading.high
    if reading.amount is not None:
        assert not reading.uncertain and not reading.clear
        assert reading.low is None or reading.low <= reading.amount
        assert reading.high is None or reading.amount <= reading.high
        assert reading.currency is not None
    json.dumps(reading)


@settings(max_examples=60, deadline=None)
@given(st.integers(10, 99_999), st.sampled_from(["{}块以内", "预算{}元", "不超过{}", "￥{}", "{}元左右", "最多{}块钱"]))
def test_any_whole_sum_is_read_back(amount: int, frame: str) -> None:
    assert parse_budget(frame.format(amount)).amount == amount


@pytest.mark.parametrize(
    "junk",
    ["1", "一", "1,", "1,234", "一百", "3块", "300-", "几", "万", "一点", "预算", "价格的", "贵", "12块5毛", " "],
)
def test_junk_takes_linear_time(junk: str) -> None:
    def fastest(length: int) -> float:
        times = []
        for _ in range(3):
            started = time.process_time()
            parse_budget((junk * length)[:length])
            times.append(time.process_time() - started)
        return min(times)

    assert fastest(40_000) < 8 * fastest(10_000) + 0.05  # quadratic would be 16 times


def test_agrees_with_the_price_cases() -> None:
    if not CASES.exists():
        pytest.skip(f"{CASES.name} stands beside the checkout only where the project is developed")
    done = subprocess.run(
        [sys.executable, "scripts/data/budget_cases.py", str(CASES)], cwd=ROOT, capture_output=True, text=True
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_table_tells_a_wrong_row(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    row = {"text": "三百块", "value": 400, "lo": None, "hi": None, "currency": "CNY", "qualifier": "exact"}
    file.write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")
    command = [sys.executable, "scripts/data/budget_cases.py"]
    done = subprocess.run([*command, str(file)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "WRONG" in done.stdout
    file.write_text(json.dumps({**row, "value": 300}) + "\n\n", encoding="utf-8")
    done = subprocess.run([*command, str(file)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "1 of 1 rows agree" in done.stdout, "a blank line is no row"
    file.write_bytes(json.dumps(row, ensure_ascii=False).encode("gbk"))
    done = subprocess.run([*command, str(file)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "cases.jsonl:1: no UTF-8" in done.stderr and "Traceback" not in done.stderr
    done = subprocess.run([*command, str(tmp_path / "none")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_a_numeral_that_is_no_number_before_cents_is_no_sum() -> None:
    numerals = "零一二两三九十百千万亿几数0"
    for count in (1, 2, 3):
        for one in product(numerals, repeat=count):
            parse_budget("".join(one) + "分")
    assert parse_budget("零百分").candidates == () and parse_budget("五十分").amount == 0.5


@pytest.mark.parametrize(
    "text", ["预算一亿亿亿亿多块", "1亿亿亿亿亿多块的包", "亿" * 59 + "多块", "9" * 15 + "亿亿亿元以内"]
)
def test_a_number_beyond_every_price_is_no_sum(text: str) -> None:
    found = parse_budget(text)
    assert found.amount is None and found.candidates == ()
