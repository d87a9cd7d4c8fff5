"""The load test finds what it is there to find: lost, crossed and changed answers, on a server that makes them."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from chat_server import ChatServer, Reply
from commands import run
from faulty_http import Fault
from small_world import TEXT, golden, plan

from scripts.eval.endpoint import Call
from scripts.online.load_test import distribution, judge
from swift_plugin.prompts import build_messages

PROMPTS = 5
KEY = "server-secret-1"
TEXTS = [f"{TEXT}{number}号" for number in range(PROMPTS)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        {
            "id": f"dev-{number}",
            "messages": build_messages(text, (), "short"),
            "text": text,
            "family": "plain",
            "split": "dev92",
            "golden_json": golden(),
        }
        for number, text in enumerate(TEXTS)
    ]
    path = tmp_path_factory.mktemp("load") / "dev.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def right(text: str) -> str:
    return plan(text)


def after(first: int, fault: Callable[[str], Reply | str]) -> Callable[[str, str, int], Reply | str]:
    """Right answers, but for one prompt's request number `first`, which goes wrong."""
    return lambda model, text, n: fault(text) if (text, n) == (TEXTS[3], first) else right(text)


def load(server: ChatServer, data: Path, *more: str, code: int = 0, **variables: str) -> str:
    return run(
        [sys.executable, "scripts/online/load_test.py", "--url", server.base_url, "--data", str(data)]
        + ["--requests", "40", "--concurrency", "4", *more],
        {"PLANNER_SERVER_API_KEY": KEY, "PLANNER_REQUEST_SECONDS": "2", **variables},
        code=code,
    )


def test_a_sound_server_passes_and_the_latency_is_printed(data: Path, tmp_path: Path) -> None:
    with ChatServer(lambda model, text, n: right(text), api_key=KEY) as server:
        printed = load(server, data, "--out", str(tmp_path / "load.json"))
    assert "40 requests at concurrency 4: 40 right, 0 lost, 0 crossed, 0 changed" in printed
    assert f"distinct answers: {PROMPTS} of {PROMPTS} prompts" in printed and "p95" in printed
    result = json.loads((tmp_path / "load.json").read_text(encoding="utf-8"))
    assert sum(part["count"] for part in result["latency_s"]["histogram"]) == 40
    assert result["latency_s"]["min"] <= result["latency_s"]["p50"] <= result["latency_s"]["max"]
    assert KEY not in printed + json.dumps(result)


@pytest.mark.parametrize(
    ("fault", "more", "code", "said"),
    [
        (lambda text: right(TEXTS[0]), (), 1, "39 right, 0 lost, 1 crossed, 0 changed"),
        (lambda text: right(TEXTS[0]), ("--allow-changed",), 1, "1 crossed"),
        (lambda text: right("别的"), (), 1, "39 right, 0 lost, 0 crossed, 1 changed"),
        (lambda text: right("别的"), ("--allow-changed",), 0, "1 changed"),
        (lambda text: Reply(status=503), (), 1, "39 right, 1 lost, 0 crossed, 0 changed"),
        (lambda text: Reply(None), (), 1, "1 lost"),
    ],
)
def test_one_wrong_answer_among_forty_is_found(
    fault: Callable[[str], Reply | str], more: tuple[str, ...], code: int, said: str, data: Path
) -> None:
    with ChatServer(after(5, fault), api_key=KEY) as server:
        assert said in load(server, data, *more, code=code)


@pytest.mark.parametrize("choices", [[None], "abc", [{"message": 5}]])
def test_a_malformed_answer_is_a_lost_one(choices: object, data: Path) -> None:
    with ChatServer(lambda model, text, n: right(text), api_key=KEY) as server:
        server.fail(*[Fault()] * (1 + PROMPTS), Fault(change=lambda answer: {**answer, "choices": choices}))
        printed = load(server, data, code=1)
    assert "39 right, 1 lost" in printed and "is this a chat endpoint?" in printed


def test_a_count_that_is_none_is_no_fault(data: Path) -> None:
    with ChatServer(lambda model, text, n: right(text), api_key=KEY) as server:
        server.fail(*[Fault(change=lambda answer: {**answer, "usage": "x"})] * 99)
        assert "40 right" in load(server, data)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (None, "'dev-1' has no list of messages"),
        (["q"], "'dev-1' has no list of messages"),
        ([], "'dev-1' has no list of messages"),
        ([{"role": "user", "content": "鞋\ud800"}], "half a character"),
    ],
)
def test_a_row_that_cannot_be_asked_is_wrong_use(messages: object, said: str, data: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
    rows[1]["messages"] = messages
    changed = tmp_path / "changed.jsonl"
    changed.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with ChatServer(lambda model, text, n: right(text), api_key=KEY) as server:
        printed = load(server, changed, code=2)
    assert said in printed and "Traceback" not in printed


def test_a_server_that_cannot_be_judged_is_wrong_use(data: Path) -> None:
    with ChatServer(lambda *_: right("一样"), api_key=KEY) as server:
        assert "get the same answer" in load(server, data, code=2)
        assert "401" in load(server, data, code=2, PLANNER_SERVER_API_KEY="other")
    printed = load(server, data, code=2)  # it listens no more
    assert "dev-0 got no answer when it was asked alone" in printed and "Traceback" not in printed


def call(identity: str, completion: str | None, tries: int = 1) -> Call:
    reason = None if completion else "HTTP 500"
    return Call(identity, "greedy", 0, completion, reason, "stop", 0.1, 1, 1, tries)


@pytest.mark.parametrize(
    ("completion", "tries", "kind"),
    [("A", 1, None), ("B", 1, "crossed"), ("AB", 1, "changed"), (None, 1, "lost"), ("A", 2, "lost")],
)
def test_what_is_what(completion: str | None, tries: int, kind: str | None) -> None:
    found = judge({"a": "A", "b": "B", "c": "A"}, [call("a", completion, tries)])
    assert {name: found[name] for name in ("lost", "crossed", "changed") if found[name]} == ({kind: 1} if kind else {})
    assert found["distinct_answers"] == {"count": 2, "of": 3, "share": 2 / 3}


def test_the_distribution_of_known_times() -> None:
    found = distribution([float(second) for second in range(1, 101)])
    assert (found["min"], found["p50"], found["p99"], found["max"]) == (1.0, 50.5, pytest.approx(99.01), 100.0)
    assert [part["count"] for part in found["histogram"]] == [10] * 10
    assert distribution([]) == {}
