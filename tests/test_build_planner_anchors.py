"""Logs to anchors, and the repository's anchors to dev92."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import small_world

from reward.planner_reward import parse_golden
from scripts.data.anchor_filter import greeting_only, is_fragment, keep
from scripts.data.build_planner_anchors import Columns, anchors_from_log, log_rows
from scripts.data.dev_from_anchors import load_dev
from scripts.data.near_duplicate_index import NearDuplicateIndex
from scripts.data.sessions import Session, read_sessions, session_faults, turn, turn_texts
from swift_plugin.cards import DEFAULT_CARDS, Card, load_cards

ROOT = Path(__file__).resolve().parents[1]
ANCHORS = ROOT / "data" / "anchors.jsonl"
GOLDEN_TEXT = small_world.golden()  # a sound record as a set holds it, a string


@pytest.fixture(scope="module")
def cards() -> tuple[Card, ...]:
    return load_cards(DEFAULT_CARDS)


@pytest.fixture(scope="module")
def anchors() -> list[Session]:
    return read_sessions(ANCHORS)


def session(identity: str, *texts: str) -> Session:
    return {
        "id": identity,
        "source": "log",
        "family": "log",
        "card": None,
        "split": None,
        "dimensions": {},
        "turns": [turn(text) for text in texts],
    }


# ------------------------------------------------------------------------------------------ the shipped anchors


def test_the_repository_ships_94_anchors_none_of_them_called_real(anchors: list[Session]) -> None:
    assert len(anchors) == 94
    assert {one["source"] for one in anchors} == {"handwritten"}
    assert {one["split"] for one in anchors} == {"dev92"}


def test_dev92_is_what_the_filter_keeps(anchors: list[Session], cards: tuple[Card, ...]) -> None:
    kept, dropped = keep(anchors)
    assert [one["reason"] for one in dropped] == ["greeting only", "near-duplicate of dev-51"]
    rows = load_dev(ANCHORS, cards, "full")
    assert [row["id"] for row in rows] == [f"dev-{number:02d}" for number in range(1, 93)]
    assert {row["split"] for row in rows} == {"dev92"}
    for row, one in zip(rows, kept, strict=True):
        assert [*row["prior_context"], row["text"]] == turn_texts(one)
        golden = parse_golden(row["golden_json"])
        assert {**golden, "must_not": []} == parse_golden(one["turns"][-1]["golden"])


def test_an_anchor_without_a_golden_or_a_card_is_named(
    tmp_path: Path, anchors: list[Session], cards: tuple[Card, ...]
) -> None:
    path = tmp_path / "anchors.jsonl"
    first = json.loads(json.dumps(anchors[0]))
    first["turns"][-1]["golden"]["category_anchor"] = "shoe rack"
    path.write_text(json.dumps(first), encoding="utf-8")
    with pytest.raises(ValueError, match=r"anchors\.jsonl \(dev-01\).*shoe rack"):
        load_dev(path, cards, "full")
    first["turns"][-1]["golden"] = None
    path.write_text(json.dumps(first), encoding="utf-8")
    with pytest.raises(ValueError, match=r"\(dev-01\): the last turn has no golden"):
        load_dev(path, cards, "full")


def test_fragments_are_told_from_requests(anchors: list[Session], cards: tuple[Card, ...]) -> None:
    for one in keep(anchors)[0]:
        assert is_fragment(turn_texts(one), cards) == (one["family"] == "follow_up_no_context"), turn_texts(one)


# ------------------------------------------------------------------------------------------------- the filter


@pytest.mark.parametrize(
    ("text", "greets", "reason"),
    [
        ("你好，在吗～", True, "greeting and call"),
        ("Hello!", True, "in English"),
        ("。。。", True, "no letter at all"),
        ("你好，想买跑鞋", False, "a request follows"),
        ("多谢多谢，问题解决啦", False, "thanks that say more"),
        ("早餐机", False, "begins like a greeting"),
        ("嗨" * 5000 + "鞋", False, "long, and decided in one pass"),
    ],
)
def test_greetings(text: str, greets: bool, reason: str) -> None:
    assert greeting_only(text) == greets, reason


@pytest.mark.parametrize(
    ("texts", "fragment", "reason"),
    [
        (["这款还有黑的吗"], True, "points at something shown"),
        (["要500以内的"], True, "a limit alone"),
        (["想买跑鞋", "要500以内的"], False, "the subject stands in an earlier turn"),
        (["这款跑鞋还有黑的吗"], False, "points back, but names its category"),
        (["送妈妈点什么好"], False, "a wish without a category is no follow-up"),
        (["换一个"], True, "points back at nothing"),
        (["刚才那款有大号吗"], True, "points back at nothing"),
        (["想买跑鞋", "刚才那款有大号吗"], False, "the context is there"),
        (["那个，想买台灯"], False, "那个 as an opener"),
        (["同事那个保温杯不错"], False, "somebody's, and it is named"),
        (["这周末想给朋友买点礼物"], False, "这 of a time"),
    ],
)
def test_fragments(texts: list[str], fragment: bool, reason: str, cards: tuple[Card, ...]) -> None:
    assert is_fragment(texts, cards) == fragment, reason


@pytest.mark.parametrize(
    ("second", "kept", "reason"),
    [
        ("想买双防水的跑鞋，500以内！", False, "punctuation alone differs"),
        ("想买双防水跑鞋 500以内", False, "one particle differs"),
        ("想买双防水的跑鞋，500以内，另外不要网面的，女款，颜色浅一点", True, "contains it and asks for more"),
        ("想找个静音的吸尘器", True, "another request"),
    ],
)
def test_near_duplicates(second: str, kept: bool, reason: str) -> None:
    sessions = [session("a", "想买双防水的跑鞋，500以内"), session("b", second)]
    assert (len(keep(sessions)[0]) == 2) == kept, reason


def test_requests_that_differ_in_a_colour_are_two() -> None:
    assert len(keep([session("a", "有没有黑色的跑鞋"), session("b", "有没有白色的跑鞋")])[0]) == 2


def test_assent_stays_inside_a_session_and_is_none_alone() -> None:
    kept, dropped = keep([session("a", "你好", "想买跑鞋", "好的"), session("b", "好的", "嗯嗯")])
    assert turn_texts(kept[0]) == ["想买跑鞋", "好的"]
    assert dropped == [{"id": "b", "reason": "greeting only"}]


def test_the_index_finds_what_a_full_comparison_finds(anchors: list[Session]) -> None:
    index = NearDuplicateIndex(0.6)
    for one in anchors:
        index.add(one["id"], turn_texts(one)[-1])
    for one in anchors[:92]:
        twin = index.twin(turn_texts(one)[-1] + "呀！")
        assert twin and twin.name == one["id"]
    with pytest.raises(ValueError, match="dev-01"):
        index.add("dev-01", "")


# ------------------------------------------------------------------------------------------------ from a log

LOG = [
    {"sid": "李雷的会话", "role": "user", "content": "你好"},
    {"sid": "李雷的会话", "role": "bot", "content": "您好，我的电话13900001111"},
    {"sid": "李雷的会话", "role": "user", "content": "想买跑鞋，\n打我13812345678"},
    {"sid": "b", "role": "user", "content": "在吗～"},
    {"sid": "c", "role": "user", "content": "想买跑鞋，打我13812345670"},
    {"sid": "李雷的会话", "role": "user", "content": "要黑色的"},
    {"sid": "d", "role": "user", "content": "这款还有黑的吗"},
    {"sid": "e", "role": "user", "content": None},
]
COLUMNS = Columns("content", "sid", "role")


def write_log(path: Path) -> Path:
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            writer = csv.DictWriter(file, list(LOG[0]))
            writer.writeheader()
            writer.writerows(LOG)
    else:
        path.write_text("\n".join(json.dumps(row) for row in LOG) + "\n\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl"])
def test_a_log_becomes_anchors(tmp_path: Path, name: str, cards: tuple[Card, ...]) -> None:
    made, dropped, report = anchors_from_log(write_log(tmp_path / name), COLUMNS, cards)
    assert [turn_texts(one) for one in made] == [
        ["想买跑鞋， 打我[phone]", "要黑色的"],
        ["想买跑鞋，打我[phone]"],
        ["这款还有黑的吗"],
    ]
    assert [one["dimensions"]["turn"] for one in made] == ["follow_up", "first", "fragment"]
    assert made[2]["family"] == "follow_up_no_context"
    assert {one["source"] for one in made} == {"log"}
    assert not [fault for one in made for fault in session_faults(one)]
    assert report["masked"] == {"phone": 2}  # the bot's own line is never read
    assert report["dropped"] == {"greeting only": 1} and [one["id"] for one in dropped] == ["log-00002"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "data" / "build_planner_anchors.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_nothing_personal_is_written_or_printed(tmp_path: Path) -> None:
    out = tmp_path / "out" / "anchors.jsonl"
    log = write_log(tmp_path / "log.csv")
    columns = ("--text-column", "content", "--session-column", "sid", "--role-column", "role")
    done = run(str(log), *columns, "--out", str(out))
    assert done.returncode == 0, done.stderr
    written = {path.name: path.read_text(encoding="utf-8") for path in out.parent.iterdir()}
    assert set(written) == {"anchors.jsonl", "anchors.report.json", "anchors.report.txt"}
    for text in (*written.values(), done.stdout, done.stderr):
        assert "1381234567" not in text and "李雷" not in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--text-column", "body"), "no column 'body'"),
        (("--text-column", "content", "--role-column", "role", "--user-value", "human"), "holds no message"),
    ],
)
def test_wrong_use_is_explained(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    out = tmp_path / "anchors.jsonl"
    done = run(str(write_log(tmp_path / "log.jsonl")), *arguments, "--out", str(out))
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert not out.exists()


CSV_HEAD = "sid,content\n1,想买跑鞋\n"


@pytest.mark.parametrize(
    ("name", "content", "said", "reason"),
    [
        (
            "log.jsonl",
            b'{"content": "a"}\n\n{"content": "\\ud83d"}\n',
            "log.jsonl:3: column 'content' holds half",
            "cut",
        ),
        (
            "log.jsonl",
            '{"content": "a"}\n{"content": "想买"}\n'.encode("gbk"),
            "log.jsonl:2: no UTF-8",
            "another code page",
        ),
        ("log.jsonl", b"[1]\n", "log.jsonl:1: expected an object", "no row"),
        ("log.csv", f"{CSV_HEAD}2,想买".encode("gbk"), "log.csv:2: no UTF-8", "another code page"),
        (
            "log.csv",
            f'{CSV_HEAD}2,"27寸显示器要曲面的\n3,想买台灯\n'.encode(),
            "log.csv:3: no CSV in lines 3 to 4",
            "open",
        ),
        (
            "log.csv",
            f'{CSV_HEAD}2,"27寸\n3,想买"台灯\n'.encode(),
            "log.csv:3: no CSV in lines 3 to 4",
            "closed by another's",
        ),
        ("log.csv", f'{CSV_HEAD}2,"27"寸显示器\n'.encode(), "log.csv:3: no CSV in lines 3 to 3", "an inch mark"),
    ],
)
def test_a_log_that_cannot_be_read_is_named_by_file_and_line(
    tmp_path: Path, name: str, content: bytes, said: str, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    done = run(str(tmp_path / name), "--text-column", "content", "--out", str(tmp_path / "anchors.jsonl"))
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, (reason, done.stderr)
    assert done.stderr.count("\n") <= 2, "one line, beside the progress bar's"
    assert not (tmp_path / "anchors.jsonl").exists()


def test_a_quoted_text_may_hold_line_ends_commas_and_doubled_quotes(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_bytes('content\r\n"27""寸显示器，\r\n要曲面的, 黑的"\r\n'.encode())
    assert list(log_rows(log)) == [(3, {"content": '27"寸显示器，\r\n要曲面的, 黑的'})]


@pytest.mark.parametrize("out", ["folder", "file/anchors.jsonl"])
def test_a_place_that_takes_no_file_is_refused_before_the_log_is_read(tmp_path: Path, out: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    done = run(str(tmp_path / "none.jsonl"), "--text-column", "content", "--out", str(tmp_path / out))
    assert done.returncode == 2 and "none.jsonl" not in done.stderr.splitlines()[-1]
    assert "argument --out" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"turns": []}, "at least one turn"),
        ({"source": "real"}, "source 'real'"),
        ({"card": 3}, "card must be"),
        ({"split": "dev"}, "split 'dev'"),
        ({"turns": [{"text": " ", "golden": None, "plan": None}]}, "text must not be empty"),
        ({"turns": [{"text": "a", "golden": {}, "plan": None}]}, "key 'category' is missing"),
        ({"turns": [{"text": "a", "golden": "{}", "plan": None}]}, "golden must be an object or null"),
        ({"turns": [{"text": "a", "golden": GOLDEN_TEXT, "plan": None}]}, "golden must be an object or null"),
        ({"turns": [{"text": "a", "golden": [], "plan": None}]}, "a JSON object is expected"),
        ({"turns": [turn("想买\ud83d")]}, "turn 1: its JSON holds half a character, '\\ud83d'"),
        ({"turns": [turn("a", None, {"keywords": ["\ude00"], "exclude_terms": []})]}, "turn 1: its JSON holds half"),
        ({"id": "a\ud83d"}, "its JSON holds half a character"),
        ({"dimensions": {"\ud83d": 1}}, "its JSON holds half a character"),
        ({"turns": [turn("想买\U0001f600")]}, None),
        (
            {"turns": [turn("不要黑的", None, {"keywords": [], "exclude_terms": [{"word": "red", "evidence": "红"}]})]},
            "does not stand in the turn",
        ),
        ({"extra": 1}, "key 'extra' is unknown"),
    ],
)
def test_what_a_session_must_hold(change: dict[str, Any], fault: str | None) -> None:
    faults = session_faults({**session("a", "想买跑鞋"), **change})
    assert (not faults) if fault is None else fault in "; ".join(faults)
