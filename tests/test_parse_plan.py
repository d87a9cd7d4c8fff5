"""parse_plan: one row a rule of the contract's section on parsing, with its reason."""

import json
import time

import pytest

from reward.planner_reward import MAX_CHARACTERS, MAX_DEPTH, MAX_INTEGER_DIGITS, parse_plan

PLAN = {
    "category": "跑鞋",
    "domains": ["footwear"],
    "budget_amount": 300,
    "clear_budget": False,
    "keywords": ["running shoes", "trail runners"],
    "exclude_terms": [],
}
TEXT = json.dumps(PLAN, ensure_ascii=False)
# What a JSON reader sees when a backslash escape stands in the completion.
HIGH, LOW = "\\ud83d", "\\ude00"


def nested(depth: int, brackets: str = "[]") -> str:
    """An object whose nesting is `depth` deep, the object itself being 1."""
    return '{"a": ' + brackets[0] * (depth - 1) + brackets[1] * (depth - 1) + "}"


ACCEPTED = [
    # text, issues, reason
    (TEXT, (), "strict JSON, nothing around it"),
    (f" \t\r\n{TEXT}\n", (), "JSON's own white space around the object is part of strict JSON"),
    (f"<think>cheap {{shoes}} [x]</think>{TEXT}", (), "one leading closed think block, whatever it holds"),
    (f"\n <think></think>\n\n{TEXT}", (), "an empty think block with white space around it"),
    (f"<think>a <think> b</think>{TEXT}", (), "the block ends at its first closing tag"),
    (f"<think>\ud800</think>{TEXT}", (), "lone surrogates count only after the think block"),
    (f"```json\n{TEXT}\n```", ("fence",), "one Markdown fence is noted"),
    (f"```\n{TEXT}\n```", ("fence",), "a fence needs no language"),
    (f"```json {TEXT}```", ("fence",), "a fence on one line is still one"),
    (f"````json\n{TEXT}\n````", ("fence",), "a fence is three backticks or more"),
    (f"```json\n{TEXT}", ("fence",), "the closing fence may be missing"),
    (f"{TEXT}\n```", ("fence",), "a closing mark alone is the fence it belongs to, noted once"),
    (f"<think>x</think>\n```json\n{TEXT}\n```", ("fence",), "think block and fence together"),
    (f"Here is the plan: {TEXT}", ("prose",), "prose before the object is noted"),
    (f"{TEXT}\nHope it helps!", ("prose",), "prose after the object is noted"),
    (f"好的：{TEXT} 完成。", ("prose",), "prose on both sides is noted once"),
    (f"Sure:\n```json\n{TEXT}\n```\nDone.", ("fence", "prose"), "fence and prose are two issues"),
    (f"```json\nThe plan is {TEXT}\n```", ("fence", "prose"), "prose inside the fence is prose"),
    (f"</think>{TEXT}", ("prose",), "a closing tag alone is prose: only <think> is barred from it"),
    (f"\ufeff{TEXT}", ("prose",), "a byte order mark is no JSON white space"),
    (f"\u3000{TEXT}", ("prose",), "nor is the wide space"),
    (f"“Quoted” – `code` {TEXT}", ("prose",), "quotes and backticks in prose are prose"),
]


@pytest.mark.parametrize(("text", "issues", "reason"), ACCEPTED)
def test_accepted(text: str, issues: tuple[str, ...], reason: str) -> None:
    parsed = parse_plan(text)
    assert parsed.plan == PLAN, reason
    assert parsed.issues == issues, reason


REFUSED = [
    # text, issue, reason
    ("", "no_object", "nothing at all"),
    (" \n", "no_object", "white space only"),
    ("I would search for shoes", "no_object", "prose without an object"),
    ('"跑鞋"', "no_object", "a JSON string is no object"),
    ("null", "no_object", "null is no object"),
    ("<think>{}</think>", "no_object", "an object inside the think block does not count"),
    (f"[{TEXT}]", "list", "a list"),
    ("[1, 2]", "list", "a list without any object"),
    (f"[note] {TEXT}", "list", "prose holds no square brackets"),
    (f"note] {TEXT}", "prose_brackets", "not even a closing one"),
    (f"}} {TEXT}", "prose_brackets", "nor a curly one"),
    (f"{TEXT} see [1", "prose_brackets", "brackets after the object"),
    (f"{TEXT}}}", "prose_brackets", "one closing bracket too many"),
    (f"{TEXT}]", "prose_brackets", "a square one too many"),
    (f"{TEXT}{TEXT}", "second_object", "two objects"),
    (f"{TEXT}\n{{}}", "second_object", "the second may be empty"),
    (f"```json\n{TEXT}\n```\n```json\n{TEXT}\n```", "second_object", "two fenced objects"),
    (f"```\n```json\n{TEXT}\n```\n```", "second_fence", "a fence in a fence: one is accepted"),
    (f"```\nls\n```\n{TEXT}", "second_fence", "a fence that is over before the object"),
    (f"{TEXT}\n```\n```", "second_fence", "two closing marks"),
    (f"<think>{TEXT}", "unclosed_think", "an unclosed think block swallows the plan"),
    ("<think>", "unclosed_think", "an unclosed think block alone"),
    (f"Well, <think>x</think> {TEXT}", "prose_think", "a think block that does not lead"),
    (f"<think>x</think><think>y</think>{TEXT}", "prose_think", "a second think block"),
    (f"{TEXT}<think>", "prose_think", "a think block after the object"),
    ('{"a": 1, "a": 1}', "duplicate_key", "duplicate keys, even with the same value"),
    ('{"a": [{"b": 1, "b": 2}]}', "duplicate_key", "duplicate keys at any depth"),
    ('{"a": 1, "\\u0061": 2}', "duplicate_key", "the same key after unescaping"),
    ('{"a": NaN}', "bad_number", "NaN is no JSON"),
    ('{"a": Infinity}', "bad_number", "Infinity is no JSON"),
    ('{"a": -Infinity}', "bad_number", "nor is -Infinity"),
    ('{"a": 1e309}', "bad_number", "overflows a float"),
    ('{"a": -1e309}', "bad_number", "overflows a float below"),
    ('{"a": [[2e400]]}', "bad_number", "at any depth"),
    ('{"a": "b}', "bad_json", "an unended string"),
    ('{"a": 1', "bad_json", "cut off by the length limit of generation"),
    ('{"a": 1,}', "bad_json", "a trailing comma is not repaired"),
    ('{"a" 1}', "bad_json", "a missing colon is not repaired"),
    ('{"a": 01}', "bad_json", "a leading zero"),
    ('{"a": +1}', "bad_json", "a plus sign"),
    ('{"a": 1.}', "bad_json", "a bare point"),
    ('{"a": "x\ny"}', "bad_json", "a raw line break inside a string"),
    ('{"a": "\\x41"}', "bad_json", "an escape JSON does not know"),
    ('{"a": 1 // note\n}', "bad_json", "a comment"),
    ("{'a': 1}", "bad_json", "single quotes as structure"),
    ("{“a”: 1}", "bad_json", "curly quotes as structure"),
    ('{"a": “b”}', "bad_json", "curly quotes round a value"),
    ('{"a": True}', "bad_json", "a Python literal"),
    ('{"a": None}', "bad_json", "another Python literal"),
    ("{a: 1}", "bad_json", "a bare key"),
    ("{", "bad_json", "the beginning of an object"),
    (f"{TEXT}\ud800", "lone_surrogate", "a lone surrogate around the object"),
    ('{"a": "\udfff"}', "lone_surrogate", "a lone surrogate inside it"),
    (f'{{"a": "{HIGH}"}}', "lone_surrogate", "an escaped one in a value"),
    (f'{{"a": "{LOW}{HIGH}"}}', "lone_surrogate", "halves in the wrong order"),
    (f'{{"{HIGH}": 1}}', "lone_surrogate", "an escaped one in a key"),
    (f'{{"a": [{{"b": ["{LOW}"]}}]}}', "lone_surrogate", "at any depth"),
]


@pytest.mark.parametrize(("text", "issue", "reason"), REFUSED)
def test_refused(text: str, issue: str, reason: str) -> None:
    assert parse_plan(text) == (None, (issue,)), reason


@pytest.mark.parametrize(
    "value", ["“x”", "'x'", "`x`", "```json", "<think>", "</think>", "{[", "]}", "{}{}", "😀"]
)
def test_a_string_value_is_left_alone(value: str) -> None:
    text = json.dumps({"a": value, value: [value]}, ensure_ascii=False)
    assert parse_plan(text) == ({"a": value, value: [value]}, ())


def test_escaped_quotes_do_not_end_a_string() -> None:
    assert parse_plan('{"a": "\\"[[[[[[[[[[[[[[[[[[[[", "b": "\\\\"}').plan == {
        "a": '"' + "[" * 20,
        "b": "\\",
    }


def test_an_escaped_pair_is_one_character() -> None:
    assert parse_plan(f'{{"a": "{HIGH}{LOW}"}}').plan == {"a": "😀"}


@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_nesting_counts_the_object_as_one(brackets: str) -> None:
    def nest(depth: int) -> str:
        if brackets == "[]":
            return nested(depth)
        return '{"a": ' * (depth - 1) + "{}" + "}" * (depth - 1)

    assert MAX_DEPTH == 16
    assert parse_plan(nest(16)).plan is not None, "16 deep is accepted"
    assert parse_plan(nest(17)) == (None, ("too_deep",)), "17 deep is refused"


def test_nesting_is_depth_not_number() -> None:
    side_by_side = ",".join(["[]"] * 50)
    assert parse_plan(f'{{"a": [{side_by_side}]}}').plan is not None, "50 lists side by side"
    fourteen, fifteen = "[" * 14 + "]" * 14, "[" * 15 + "]" * 15
    assert parse_plan(f'{{"a": [{side_by_side}, {fourteen}]}}').plan is not None, "16 deep beside them"
    assert parse_plan(f'{{"a": [{side_by_side}, {fifteen}]}}').issues == ("too_deep",), "17 deep beside them"


def test_length_limit_counts_white_space() -> None:
    assert MAX_CHARACTERS == 8192
    room = 8192 - len(TEXT)
    assert parse_plan(TEXT + " " * room).plan == PLAN, "8,192 characters are accepted"
    assert parse_plan(TEXT + " " * (room + 1)) == (None, ("too_long",)), "white space counts"
    assert parse_plan(" " * (room + 1) + TEXT) == (None, ("too_long",)), "before the object, too"
    assert parse_plan("跑" * 8192).issues == ("no_object",), "characters, not bytes"


def test_length_limit_is_for_what_follows_the_think_block() -> None:
    think = "<think>" + "x" * 20_000 + "</think>"
    room = 8192 - len(TEXT)
    assert parse_plan(think + " " * room + TEXT) == (PLAN, ())
    assert parse_plan(think + " " * (room + 1) + TEXT) == (None, ("too_long",))


@pytest.mark.parametrize("sign", ["", "-"])
def test_integers_have_at_most_300_digits(sign: str) -> None:
    assert MAX_INTEGER_DIGITS == 300
    assert parse_plan(f'{{"a": {sign}{"9" * 300}}}').plan == {"a": int(sign + "9" * 300)}, (
        "the sign is no digit"
    )
    assert parse_plan(f'{{"a": {sign}{"9" * 301}}}') == (None, ("bad_number",))
    assert parse_plan(f'{{"a": {sign}{"9" * 5000}}}') == (None, ("bad_number",)), "beyond int()'s own limit"


@pytest.mark.parametrize(
    ("number", "value", "reason"),
    [
        ("-0", 0, "JSON knows a negative zero"),
        ("1.7e308", 1.7e308, "the largest floats are finite"),
        ("1e-400", 0.0, "underflow is no overflow"),
        ("1" + "0" * 305 + ".5", 1e305, "a fraction is judged by its value, not by its digits"),
        ("99.90", 99.9, "a price"),
    ],
)
def test_numbers_accepted(number: str, value: float, reason: str) -> None:
    assert parse_plan(f'{{"a": {number}}}') == ({"a": value}, ()), reason


@pytest.mark.parametrize("value", [None, b"{}", 5, {"category": None}, ["{}"]])
def test_what_is_no_text_is_refused_without_raising(value: object) -> None:
    assert parse_plan(value) == (None, ("not_text",))  # type: ignore[arg-type]


def test_any_object_is_a_plan() -> None:
    assert parse_plan("{}") == ({}, ()), "keys and types are judged by the reward, not by the parser"


HOSTILE = [
    "<think>",
    "{",
    '"',
    "[{",
    "\ud800",
    "a{",
    "\\",
    '{"a":"',
    "`",
    "``` ",
    '{"a":[',
    '\\"',
    "9",
    "{}",
    " ",
    "<",
]


def junk(unit: str, length: int, head: str = "") -> str:
    return (head + unit * length)[:length]


def test_sixteen_long_junk_completions_in_under_a_second() -> None:
    texts = [junk(unit, 40_000) for unit in HOSTILE]
    assert len(texts) == 16
    begin = time.process_time()
    parsed = [parse_plan(text) for text in texts]
    assert time.process_time() - begin < 1
    assert all(plan is None for plan, _ in parsed)


@pytest.mark.parametrize("head", ["", "{", '{"a": "', '{"a": ', "```json\n{"])
@pytest.mark.parametrize("unit", HOSTILE)
def test_time_is_linear_up_to_the_limit(unit: str, head: str) -> None:
    text = junk(unit, MAX_CHARACTERS, head)
    begin = time.process_time()
    parse_plan(text)
    # Typically under 2 ms; a quadratic scan of 8,192 characters takes hundreds.
    assert time.process_time() - begin < 0.1


def test_time_is_linear_in_the_think_block() -> None:
    begin = time.process_time()
    assert parse_plan("<think>" * 500_000).plan is None
    assert parse_plan("<think>" * 500_000 + "</think>" + TEXT).plan == PLAN
    assert time.process_time() - begin < 1
