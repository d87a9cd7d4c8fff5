"""The planner's client over real HTTP: the switch, the one fallback, the reason, the prompt, the limits."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from chat_server import ChatServer, Reply
from commands import ROOT, clean_environment
from faulty_http import Fault
from small_world import TEXT, golden, plan

from scripts.data.prompt_rows import prompt_row
from scripts.eval.online_log import read_log
from scripts.online.channels import (
    API,
    DEFAULT_API_MODEL,
    DEFAULT_PORT,
    LOCAL,
    SERVED_NAME,
    read_channels,
)
from scripts.online.planner_client import Plan, Planner, log_row
from scripts.online.rate_limits import RateLimits
from swift_plugin.prompts import build_messages

GOOD = plan("waterproof running shoes")
OTHER = plan("trail running shoes")
LOCAL_KEY, API_KEY = "local-secret-1", "api-secret-2"
STALL_S = 60  # the server gives up earlier, when it is stopped


class Both:
    """A local planner and an API model, each a real server whose answer a test sets."""

    def __init__(self) -> None:
        self.says: dict[str, Reply | str] = {LOCAL: GOOD, API: OTHER}
        self.local = ChatServer(lambda *_: self.says[LOCAL], api_key=LOCAL_KEY)
        self.api = ChatServer(lambda *_: self.says[API], api_key=API_KEY)

    def environ(self, **more: str) -> dict[str, str]:
        made = {
            "LLM_PLANNER": f"local:{self.local.base_url}",
            "PLANNER_API_URL": self.api.base_url,
            "PLANNER_API_KEY": API_KEY,
            "PLANNER_SERVER_API_KEY": LOCAL_KEY,
            "PLANNER_REQUEST_SECONDS": "2",
            **more,
        }
        return {name: value for name, value in made.items() if value != "UNSET"}

    def ask(self, text: str = TEXT, prior: tuple[str, ...] = (), **more: str) -> Plan:
        return Planner.from_env(self.environ(**more)).plan(text, prior)

    def counts(self) -> tuple[int, int]:
        return len(self.local.requests), len(self.api.requests)


@pytest.fixture
def both() -> Iterator[Both]:
    made = Both()
    with made.local, made.api:
        yield made


# --- the switch -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "first", "second", "reason"),
    [
        ({}, (LOCAL, f"http://127.0.0.1:{DEFAULT_PORT}/v1", SERVED_NAME), None, "the stated default; no API, no other"),
        ({"LLM_PLANNER": " "}, (LOCAL, f"http://127.0.0.1:{DEFAULT_PORT}/v1", SERVED_NAME), None, "blank is unset"),
        ({"PLANNER_SERVER_PORT": "9000"}, (LOCAL, "http://127.0.0.1:9000/v1", SERVED_NAME), None, "the server's port"),
        ({"PLANNER_API_URL": "https://host/v1"}, (LOCAL, f"http://127.0.0.1:{DEFAULT_PORT}/v1", SERVED_NAME),
         (API, "https://host/v1", DEFAULT_API_MODEL), "an API is there: it is the other channel"),
        ({"LLM_PLANNER": "local:http://10.0.0.2:8010/v1/#shop"}, (LOCAL, "http://10.0.0.2:8010/v1", "shop"), None,
         "another machine, another served name"),
        ({"LLM_PLANNER": "dashscope/qwen-plus", "PLANNER_API_URL": "https://host/v1"},
         (API, "https://host/v1", "dashscope/qwen-plus"), (LOCAL, f"http://127.0.0.1:{DEFAULT_PORT}/v1", SERVED_NAME),
         "an API model by the name its endpoint knows; the local planner is the other"),
        ({"LLM_PLANNER": "qwen-plus", "PLANNER_API_URL": "https://host/v1", "PLANNER_FALLBACK": "local:http://b:1/v1"},
         (API, "https://host/v1", "qwen-plus"), (LOCAL, "http://b:1/v1", SERVED_NAME), "the other one is named"),
        ({"PLANNER_API_URL": "https://host/v1", "PLANNER_FALLBACK": "qwen-max"},
         (LOCAL, f"http://127.0.0.1:{DEFAULT_PORT}/v1", SERVED_NAME), (API, "https://host/v1", "qwen-max"),
         "likewise for the local planner"),
    ],
)  # fmt: skip
def test_the_switch(
    environ: dict[str, str], first: tuple[str, ...], second: tuple[str, ...] | None, reason: str
) -> None:
    found = [c and (c.kind, c.endpoint.base_url, c.endpoint.model) for c in read_channels(environ)]
    assert found == [first, second], reason


def test_each_channel_has_its_own_key_and_prompt() -> None:
    environ = {"PLANNER_API_URL": "https://host/v1", "PLANNER_API_KEY": "a", "PLANNER_SERVER_API_KEY": "b"}
    local, api = read_channels({**environ, "PLANNER_PROMPT": "short"})
    assert api is not None and (local.endpoint.key, api.endpoint.key) == ("b", "a")
    assert (local.prompt, api.prompt) == ("short", "full"), "the short prompt tells an API model nothing"


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"LLM_PLANNER": "qwen-plus"}, "PLANNER_API_URL is unset"),
        ({"LLM_PLANNER": "http://h:8010/v1"}, "local:URL"),
        ({"LLM_PLANNER": "local:h:8010"}, "http"),
        ({"LLM_PLANNER": "local:http://me:pw-7@h/v1"}, "PLANNER_SERVER_API_KEY"),
        ({"LLM_PLANNER": "http://me:pw-7@h/v1"}, "local:URL"),
        ({"PLANNER_FALLBACK": "local:http://h/v1"}, "both local"),
        ({"PLANNER_SERVER_PORT": "80a"}, "PLANNER_SERVER_PORT='80a'"),
        ({"PLANNER_API_URL": "https://h/v1", "PLANNER_API_KEY": "a b"}, "PLANNER_API_KEY"),
        ({"PLANNER_FALBACK": "x"}, "did you mean PLANNER_FALLBACK"),
        ({"PLANNER_RATE_LIMITS": "qwen"}, "MODEL=REQUESTS_A_MINUTE"),
    ],
)
def test_a_wrong_variable_is_refused_with_the_remedy(environ: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("[", r"\[")) as refusal:
        Planner.from_env(environ)
    assert "pw-7" not in str(refusal.value)


# --- one answer, one fallback -----------------------------------------------------------------------------------------


def test_the_first_channel_answers_and_the_other_is_left_alone(both: Both) -> None:
    answer = both.ask()
    assert (answer.plan, answer.channel, answer.reason) == (json.loads(GOOD), LOCAL, "first choice")
    assert answer.completion == GOOD and both.counts() == (1, 0)


@pytest.mark.parametrize(
    ("local", "fault"),
    [
        (Reply(status=500), "HTTP 500"),
        (Reply(status=429), "HTTP 429"),
        (Reply(status=404), "HTTP 404"),
        ("我不知道", "unparseable answer (no_object)"),
        (GOOD + GOOD, "unparseable answer (second_object)"),
        ('{"category": "跑', "unparseable answer (bad_json)"),
        (Reply(None), "an answer without text"),
        (Reply(" "), "an answer without text"),
        (Reply(GOOD, stall_s=STALL_S), "no answer within 2 s"),
    ],
)
def test_a_failed_slow_or_unparseable_answer_goes_to_the_other_channel_once(
    both: Both, local: Reply | str, fault: str
) -> None:
    both.says[LOCAL] = local
    answer = both.ask()
    assert (answer.plan, answer.channel, answer.completion) == (json.loads(OTHER), API, OTHER)
    assert answer.reason.startswith(f"local {SERVED_NAME}: {fault}") and "asked the other channel" in answer.reason
    assert both.counts() == (1, 1), "nobody is asked twice"
    assert [attempt.fault is None for attempt in answer.attempts] == [False, True]


@pytest.mark.parametrize(
    "fault", [Fault(reset=True), Fault(cut=True), Fault(status=502), Fault(status=200, body="<p>")]
)
def test_a_broken_connection_goes_to_the_other_channel(both: Both, fault: Fault) -> None:
    both.local.fail(fault)
    answer = both.ask()
    assert (answer.channel, both.counts()) == (API, (1, 1))


@pytest.mark.parametrize(
    "choices", [[None], [{}], "abc", {"0": 1}, 5, [5], [{"message": "abc"}], [{"message": [1]}],
                [{"message": {"content": 5}}], [{"message": {"content": [{"type": "text", "text": "x"}]}}]],
)  # fmt: skip
def test_a_malformed_answer_goes_to_the_other_channel(both: Both, choices: object) -> None:
    both.local.fail(Fault(change=lambda answer: {**answer, "choices": choices}))
    answer = both.ask()
    assert (answer.channel, both.counts()) == (API, (1, 1)), answer.reason
    assert "is this a chat endpoint?" in answer.reason


def test_an_answer_nested_without_end_goes_to_the_other_channel(both: Both) -> None:
    both.local.fail(Fault(change=lambda _: "[" * 100_000))
    answer = both.ask()
    assert (answer.channel, "no JSON" in answer.reason) == (API, True)


@pytest.mark.parametrize("arguments", [("鞋\udce9",), (TEXT, ["鞋\ud83d"])])
def test_half_a_character_is_the_texts_fault(both: Both, arguments: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="half a character.*decode"):
        Planner.from_env(both.environ()).plan(*arguments)
    assert both.counts() == (0, 0)


def test_a_server_that_is_down_goes_to_the_other_channel(both: Both) -> None:
    both.local.stop()
    answer = both.ask()
    assert answer.channel == API and "connection failed" in answer.reason


def test_the_reward_file_that_trained_decides_what_a_plan_is(both: Both, tmp_path: Path) -> None:
    strict = tmp_path / "strict_reward.py"
    original = (ROOT / "reward" / "planner_reward.py").read_text(encoding="utf-8")
    refusing = "\n\ndef parse_plan(text):\n    return ParsedPlan(None, ('strict',))\n"
    strict.write_text(original + refusing, encoding="utf-8")
    answer = both.ask(PLANNER_REWARD_FILE=str(strict))
    assert answer.plan is None and answer.attempts[0].issues == ("strict",)


def test_it_works_the_other_way_round(both: Both) -> None:
    both.says[API] = "no plan"
    answer = both.ask(LLM_PLANNER="dashscope/qwen-plus", PLANNER_FALLBACK=f"local:{both.local.base_url}")
    assert (answer.channel, both.counts()) == (LOCAL, (1, 1))
    assert answer.reason.startswith("api dashscope/qwen-plus: unparseable")
    assert both.api.requests[0].body["model"] == "dashscope/qwen-plus", "the name as the endpoint knows it"


def test_without_any_plan_the_answer_says_what_both_did(both: Both) -> None:
    both.says = {LOCAL: "prose", API: Reply(status=503)}
    answer = both.ask()
    assert (answer.plan, answer.channel, both.counts()) == (None, None, (1, 1))
    assert "unparseable answer (no_object)" in answer.reason and "HTTP 503" in answer.reason
    assert answer.completion == "prose", "what a model did say is kept for the log"


def test_without_another_channel_the_reason_says_so(both: Both) -> None:
    both.says[LOCAL] = Reply(status=500)
    answer = both.ask(PLANNER_API_URL="UNSET", PLANNER_API_KEY="UNSET")
    assert (answer.plan, answer.channel, answer.completion) == (None, None, None)
    assert "there is no other channel (PLANNER_API_URL is unset)" in answer.reason


def test_a_refusal_that_quotes_the_key_does_not_reach_the_answer(both: Both) -> None:
    answer = both.ask(PLANNER_SERVER_API_KEY="wrong-key-3")
    assert (answer.channel, "HTTP 401" in answer.reason) == (API, True)
    assert "wrong-key-3" not in json.dumps(answer.to_dict())


def test_an_answer_that_trickles_in_is_slow(both: Both) -> None:
    """A byte now and then keeps the client's own timeout from ever running out."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def trickle() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n")
                while not stop.wait(0.2):
                    try:
                        connection.sendall(b" ")
                    except OSError:
                        return

        thread = threading.Thread(target=trickle)
        thread.start()
        answer = both.ask(LLM_PLANNER=f"local:http://127.0.0.1:{listener.getsockname()[1]}/v1")
        stop.set()
        thread.join()
    assert answer.channel == API and "no answer within 2 s" in answer.reason


# --- the prompt -------------------------------------------------------------------------------------------------------

PRIORS = [(), ("想买双跑鞋",), ("想买双跑鞋", "算了，给我看看登山靴")]


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("style", ["short", "full"])
def test_the_prompt_is_the_one_of_training(both: Both, prior: tuple[str, ...], style: str) -> None:
    row = prompt_row("r-1", TEXT, prior, family="plain", split="train", golden=json.loads(golden()), style=style)
    both.says[LOCAL] = "prose"  # so that both are asked
    both.ask(TEXT, prior, PLANNER_PROMPT=style)
    assert both.local.requests[0].body["messages"] == row["messages"]
    assert both.api.requests[0].body["messages"] == build_messages(TEXT, prior, "full")
    assert both.local.requests[0].body["temperature"] == 0


@pytest.mark.parametrize("arguments", [("",), (" \n",), (TEXT, "想买双跑鞋"), (TEXT, [1])])
def test_what_is_no_request_is_an_error(both: Both, arguments: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="blank|list of earlier turns"):
        Planner.from_env(both.environ()).plan(*arguments)
    assert both.counts() == (0, 0)


# --- limits and threads -----------------------------------------------------------------------------------------------


def test_a_model_out_of_turns_goes_to_the_other_channel(both: Both) -> None:
    planner = Planner.from_env(both.environ(PLANNER_RATE_LIMITS=f"{SERVED_NAME}=1"))
    assert [planner.plan(TEXT).channel for _ in range(2)] == [LOCAL, API]
    answer = planner.plan(TEXT)
    assert "rate limit leaves no turn within 2 s" in answer.reason
    assert both.counts() == (1, 2)


def test_names_of_one_model_share_a_bucket(both: Both) -> None:
    limits = RateLimits({"qwen-plus": 1})
    for name in ("dashscope/qwen-plus", "qwen-plus"):
        Planner(*read_channels(both.environ(LLM_PLANNER=name)), limits).plan(TEXT)
    assert [request.body["model"] for request in both.api.requests] == ["dashscope/qwen-plus"]


def test_threads_get_their_own_answers(both: Both) -> None:
    both.local.script = lambda model, text, n: plan(text)
    planner = Planner.from_env(both.environ(PLANNER_REQUEST_SECONDS="20"))
    texts = [f"{TEXT}{number}号" for number in range(64)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(planner.plan, texts))
    assert [answer.plan["keywords"] for answer in answers if answer.plan] == [[text] for text in texts]


# --- the command and the log ------------------------------------------------------------------------------------------


def command(both: Both, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "scripts/online/planner_client.py", *arguments],
        cwd=ROOT, env={**clean_environment(), **both.environ(**more)}, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


def test_the_command_prints_the_answer(both: Both) -> None:
    done = command(both, TEXT, "--prior", "你好")
    assert (done.returncode, json.loads(done.stdout)["channel"]) == (0, LOCAL), done.stderr
    assert both.local.requests[0].body["messages"] == build_messages(TEXT, ["你好"], "full")
    both.says = {LOCAL: "prose", API: "prose"}
    assert command(both, TEXT).returncode == 1
    done = command(both, TEXT, LLM_PLANNER="ftp://x")
    assert (done.returncode, done.stdout) == (2, "") and "Traceback" not in done.stderr


def test_the_log_row_is_one_that_online_evaluation_reads(both: Both, tmp_path: Path) -> None:
    rows = [log_row("r-1", TEXT, ["你好"], both.ask(TEXT, ("你好",)))]
    both.says = {LOCAL: "prose", API: Reply(status=500)}
    rows.append(log_row("r-2", TEXT, [], both.ask()))
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    requests, _ = read_log(log)
    assert [(one.id, one.prior_context, one.completion) for one in requests] == [
        ("r-1", ("你好",), GOOD),
        ("r-2", (), "prose"),
    ]
