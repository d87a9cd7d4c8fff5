"""The planner's server: what its guard lets through, what its launcher refuses, and one real server under load."""

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from commands import ROOT, World, run

from scripts.online.channels import DEFAULT_PORT, SERVED_NAME, Channel, read_channels
from scripts.online.planner_client import Planner
from scripts.online.planner_server import check, find_manifest, is_alive, main
from scripts.online.rate_limits import RateLimits
from scripts.online.server_guard import LONGEST_BODY, Guard
from scripts.train.launch_facts import Launch
from scripts.train.swift_args import parse
from swift_plugin.prompts import build_messages
from swift_plugin.settings import Settings
from tests.launch_world import LaunchWorld, build_world, write_adapter

LAUNCHER = "run_planner_server.sh"
KEY = "server-secret-1"
BEARER = {"Authorization": f"Bearer {KEY}"}
MANIFEST = '{"format": 1, "kind": "grpo", "prompt": "full"}\n'


# --- the guard, over real HTTP ----------------------------------------------------------------------------------------


async def behind(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """What stands behind the guard: says that it was reached."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"reached:" + body})


class Served:
    """The guard on a port of its own, before `app`."""

    def __init__(self, key: str | None, manifest: str | None, app: Any = behind) -> None:
        import uvicorn

        self.well = True
        guard = Guard(app, key=key, manifest=manifest, healthy=lambda: self.well, about={"model": "planner"})
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(guard, lifespan="off", log_level="error"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)

    def __enter__(self) -> "Served":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served(KEY, MANIFEST) as made:
        yield made


CHAT = ("POST", "/v1/chat/completions")
USER = {"role": "user", "content": "想买跑鞋"}
ASKED = {"model": SERVED_NAME, "messages": [USER]}
ASKED_BYTES = json.dumps(ASKED).encode()


@pytest.mark.parametrize(
    ("route", "headers", "status", "reason"),
    [
        (("GET", "/health"), {}, 200, "a health check needs no key"),
        (("HEAD", "/health"), {}, 200, "nor does a load balancer's"),
        (("GET", "/health/"), {}, 200, "with a slash"),
        (("POST", "/health"), {}, 401, "but it is read only"),
        (CHAT, {}, 401, "no key"),
        (CHAT, {"Authorization": "Bearer wrong"}, 401, "a wrong key"),
        (CHAT, {"Authorization": KEY}, 401, "the key alone is no bearer"),
        (CHAT, {"Authorization": f"Bearer {KEY}x"}, 401, "a longer key"),
        (CHAT, {"Authorization": "Bearer 钥匙".encode()}, 401, "no ASCII"),
        (CHAT, BEARER, 200, "the key"),
        (("GET", "/v1/models"), {}, 401, "the model's name is not for everyone"),
        (("GET", "/v1/models"), BEARER, 200, "but for the key"),
        (("GET", "/manifest"), {}, 401, "the manifest names paths"),
        (("GET", "/manifest"), BEARER, 200, "which the key opens"),
        (("POST", "/infer/"), BEARER, 404, "ms-swift's own interface stays closed"),
        (("GET", "/docs"), BEARER, 404, "and so does the rest"),
        (("GET", "/v1/chat/completions"), BEARER, 404, "a wrong method"),
    ],
)
def test_who_may_ask_what(
    served: Served, route: tuple[str, str], headers: dict[str, str], status: int, reason: str
) -> None:
    content = ASKED_BYTES if route[0] == "POST" else None
    answer = httpx.request(route[0], served.url + route[1], headers=headers, content=content, trust_env=False)
    assert answer.status_code == status, reason
    assert (status == 200 and route in (CHAT, ("GET", "/v1/models"))) == answer.text.startswith("reached:"), reason
    if status == 401:
        assert answer.headers["WWW-Authenticate"] == "Bearer" and KEY not in answer.text


def post(server: Served, content: Any) -> httpx.Response:
    return httpx.post(server.url + CHAT[1], headers=BEARER, content=content, trust_env=False)


def test_a_body_is_bounded(served: Served) -> None:
    longest = ASKED_BYTES.ljust(LONGEST_BODY)
    assert post(served, longest).text == "reached:" + longest.decode()
    assert post(served, longest + b" ").status_code == 413
    assert post(served, iter([ASKED_BYTES[:9], ASKED_BYTES[9:]])).text == "reached:" + ASKED_BYTES.decode(), "chunks"
    assert post(served, iter([b" " * 1000] * 66)).status_code == 413, "chunks are counted as they come"


def test_a_body_longer_than_it_says_is_bounded(served: Served) -> None:
    """Both headers in one request: the chunks count, and Content-Length says less."""
    head = (
        f"POST {CHAT[1]} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    body = ASKED_BYTES.ljust(LONGEST_BODY + 1)
    with socket.create_connection(("127.0.0.1", int(served.url.rsplit(":", 1)[1])), timeout=20) as connection:
        connection.sendall(head.encode() + f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("changed", "named", "reason"),
    [
        ({"images": ["/etc/passwd"]}, "'images'", "the server would open the file"),
        ({"images": None}, "'images'", "whatever stands there"),
        ({"videos": ["http://127.0.0.1/"]}, "'videos'", "or fetch the URL"),
        ({"num_beams": 1000}, "'num_beams'", "a thousand answers for one"),
        ({"structured_outputs_regex": "(a*)*"}, "'structured_outputs_regex'", "a pattern may take forever"),
        ({"chat_template_kwargs": {}}, "'chat_template_kwargs'", "the prompt is the one of training"),
        ({"k" * 999: 1}, "'kkk", "a long key is cut"),
        ({"\ud800": 1}, "ud800", "half a character can be named"),
        ({"n": 0}, "n is 0", "no answer at all"),
        ({"n": 2}, "n is 2", "two"),
        ({"messages": None}, "messages", "nothing is asked"),
        ({"messages": []}, "messages", "nothing is asked"),
        ({"messages": ["鞋"]}, "messages[0] is no object", "a text is no message"),
        ({"messages": [USER, {"content": "鞋"}]}, "messages[1].role", "nobody says it"),
        ({"messages": [{"role": 5, "content": "鞋"}]}, "messages[0].role", "nor does a number"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "nothing is said"),
        ({"messages": [{**USER, "content": None}]}, "messages[0].content", "nor here"),
        ({"messages": [{**USER, "content": [1, 2]}]}, "messages[0].content", "tokens are no text"),
        ({"messages": [{**USER, "content": [{"type": "image", "image": "/etc/hostname"}]}]}, "messages[0].content",
         "a part of a message is opened as well"),
        ({"messages": [{**USER, "content": [{"type": "text", "text": 5}]}]}, "messages[0].content", "no text"),
        ({"messages": [{**USER, "tool_calls": [5]}]}, "'tool_calls'", "a planner calls no tools"),
    ],
)  # fmt: skip
def test_only_a_request_for_one_answer_to_texts_goes_through(
    served: Served, changed: dict[str, Any], named: str, reason: str
) -> None:
    answer = post(served, json.dumps({**ASKED, **changed}).encode())
    assert answer.status_code == 400, reason
    error = answer.json()["error"]
    assert named in error["message"] and error["type"] == "invalid_request_error", reason
    assert len(error["message"]) < 500


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b"\xff", b"[" * 50_000, b'{"n": ' + b"9" * 5000 + b"}"])
def test_what_is_no_json_object_is_refused(served: Served, body: bytes) -> None:
    answer = post(served, body)
    assert answer.status_code == 400 and "the body is no JSON" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.0, "max_tokens": 256},
        {"temperature": 0.7, "top_p": 0.8, "seed": 1, "n": 1},
        {"stream": True, "stream_options": {"include_usage": True}, "user": "shop", "stop": ["}"]},
        {"messages": [{"role": "system", "content": "s"}, {**USER, "content": [{"type": "text", "text": "鞋"}]}]},
        {"messages": [USER, {"role": "assistant", "content": "{}", "tool_calls": None, "refusal": None}, USER]},
    ],
)
def test_what_clients_send_goes_through_as_it_is(served: Served, more: dict[str, Any]) -> None:
    body = json.dumps({**ASKED, **more})
    assert post(served, body.encode()).text == "reached:" + body


def test_an_answer_in_pieces_comes_in_pieces() -> None:
    seen = threading.Event()

    async def slowly(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        there = await asyncio.to_thread(seen.wait, 20)
        await send({"type": "http.response.body", "body": b"last" if there else b"too late"})

    with Served(None, None, slowly) as made:
        asked = httpx.stream("POST", made.url + CHAT[1], content=ASKED_BYTES, trust_env=False, timeout=30)
        with asked as answer:
            pieces = answer.iter_raw()
            assert next(pieces) == b"first"
            seen.set()
            assert b"".join(pieces) == b"last"


def test_the_server_learns_that_its_client_has_left() -> None:
    left = threading.Event()

    async def waiting(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await receive()
        if (await receive())["type"] == "http.disconnect":
            left.set()

    with Served(None, None, waiting) as made:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(made.url + CHAT[1], content=ASKED_BYTES, trust_env=False, timeout=0.5)
        assert left.wait(20)


def test_manifest_and_health_are_what_they_say(served: Served) -> None:
    assert httpx.get(f"{served.url}/manifest", headers=BEARER, trust_env=False).text == MANIFEST
    try:
        served.well = False
        answer = httpx.get(f"{served.url}/health", trust_env=False)
    finally:
        served.well = True
    assert (answer.status_code, answer.json()) == (503, {"status": "failed", "model": "planner"})


def test_without_key_and_manifest() -> None:
    with Served(None, None) as made:
        assert httpx.post(made.url + CHAT[1], content=ASKED_BYTES, trust_env=False).text.startswith("reached:")
        answer = httpx.get(f"{made.url}/manifest", trust_env=False)
    assert answer.status_code == 404 and "planner_manifest.json" in answer.text


def test_an_engine_whose_worker_died_is_not_well() -> None:
    class Engine:
        _task_thread: threading.Thread | None = None
        engine: Any = None

    engine = Engine()
    assert is_alive(engine), "no request came yet"
    engine._task_thread = threading.Thread(target=lambda: None)
    engine._task_thread.start()
    engine._task_thread.join()
    assert not is_alive(engine)
    engine._task_thread = None
    engine.engine = type("Core", (), {"errored": True})()
    assert not is_alive(engine), "vLLM says so"


# --- the launcher -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def launch_world(tmp_path_factory: pytest.TempPathFactory) -> LaunchWorld:
    return build_world(tmp_path_factory.mktemp("serving"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def dry(world: LaunchWorld, *arguments: str, **variables: str) -> tuple[dict[str, Any], list[str], str]:
    """Effective arguments, the words of the printed command, and all that was said."""
    done = world.run(LAUNCHER, *arguments, DRY_RUN="1", **variables)
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout.strip().splitlines()[-1])
    return parse("deploy", words[words.index("--") + 1 :]).values, words, done.stdout + done.stderr


def test_a_cpu_serves_with_transformers_on_loopback(launch_world: LaunchWorld) -> None:
    args, words, said = dry(
        launch_world, "--adapters", str(launch_world.adapter), CUDA_VISIBLE_DEVICES="", PLANNER_SERVER_API_KEY=KEY
    )
    expected = {
        "infer_backend": "transformers", "torch_dtype": "float32", "host": "127.0.0.1", "port": DEFAULT_PORT,
        "served_model_name": SERVED_NAME, "model": str(launch_world.model), "template": "qwen3_nothinking",
        "adapters": [str(launch_world.adapter)], "max_new_tokens": 256, "temperature": 0.0, "verbose": False,
        "api_key": None,
    }  # fmt: skip
    assert {name: args[name] for name in expected} == expected
    assert "CUDA_VISIBLE_DEVICES=" in words and KEY not in said
    assert "key from PLANNER_SERVER_API_KEY" in said


def test_a_gpu_serves_with_vllm(launch_world: LaunchWorld) -> None:
    two = ("--vllm_data_parallel_size", "2", "--port", "8123")
    args, words, _ = dry(launch_world, *two, CUDA_VISIBLE_DEVICES="4,5,6", PLANNER_LORA_RANK="64")
    expected = {
        "infer_backend": "vllm", "torch_dtype": "bfloat16", "vllm_max_lora_rank": 64, "vllm_max_model_len": 2304,
        "vllm_enable_prefix_caching": True, "port": 8123,
    }  # fmt: skip
    assert {name: args[name] for name in expected} == expected
    assert "CUDA_VISIBLE_DEVICES=4,5" in words, "as many as are used, no more"
    assert words[-4:] == list(two), "the user's arguments come last and win"


def test_the_launcher_ends_with_2_and_the_remedy(launch_world: LaunchWorld) -> None:
    done = launch_world.run(LAUNCHER, "--api_key", KEY, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2 and "set PLANNER_SERVER_API_KEY" in done.stderr and KEY not in done.stdout + done.stderr
    done = launch_world.run(LAUNCHER, "--help")
    assert done.returncode == 0 and "Variables" in done.stdout and f"bash {LAUNCHER}" in done.stdout


def test_shellcheck_is_clean() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("shellcheck")), "-x", LAUNCHER],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def judged(
    world: LaunchWorld, *arguments: str, gpus: tuple[str, ...] = (), dry_run: bool = False, **environ: str
) -> tuple[str, str]:
    """Refusals and warnings about a server with these arguments."""
    line = ["--model", str(world.model), "--template", "qwen3_nothinking", "--host", "127.0.0.1"]
    args = parse("deploy", [*line, "--port", str(free_port()), *arguments])
    settings = Settings.from_env(environ)
    found = check(Launch("rollout", args, settings, environ, dry_run=dry_run, visible_gpus=gpus))
    return "\n".join(found.refusals), "\n".join(found.warnings)


@pytest.mark.parametrize(
    ("arguments", "environ", "refused", "reason"),
    [
        ((), {}, "", "a model on loopback needs nothing"),
        (("--host", "::1"), {}, "", "nor on the other loopback"),
        (("--host", "0.0.0.0"), {}, "set PLANNER_SERVER_API_KEY", "anyone could use it"),
        (("--host", "0.0.0.0"), {"PLANNER_SERVER_API_KEY": KEY}, "", "with a key it may be open"),
        (("--api_key", KEY), {}, "list of processes", "a key in argv"),
        (("--model", "{adapter}"), {}, "give it as --adapters", "an adapter is no model"),
        (("--model", "/no/model"), {}, "no model folder", "nothing there"),
        (("--adapters", "/no/adapter"), {}, "holds no adapter_config.json", "nothing there"),
        (("--adapters", "{model}"), {}, "serve whole weights as PLANNER_MODEL", "a model is no adapter"),
        (("--adapters", "{adapter}", "{adapter}"), {}, "names 2 adapters", "one planner"),
        (("--model_type", "llama"), {}, "say --model_type llama: give --model_type qwen3", "another family"),
        (("--template", "qwen3"), {}, "use --template qwen3_nothinking", "another prompt than in training"),
        (("--adapters", "{wide}", "--infer_backend", "vllm"), {}, "rank 64 is above", "vLLM would not load it"),
        (("--infer_backend", "vllm"), {}, "this machine's are: none", "no GPU"),
    ],
)
def test_the_launch_is_judged(
    launch_world: LaunchWorld, tmp_path: Path, arguments: tuple[str, ...], environ: dict[str, str], refused: str,
    reason: str,
) -> None:  # fmt: skip
    names = {
        "adapter": launch_world.adapter,
        "model": launch_world.model,
        "wide": write_adapter(tmp_path / "wide", r=64),
    }
    said, _ = judged(launch_world, *(argument.format(**names) for argument in arguments), **environ)
    assert (refused in said) if refused else said == "", reason
    assert KEY not in said


def test_a_busy_port_is_refused(launch_world: LaunchWorld) -> None:
    with socket.socket() as busy:
        busy.bind(("", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        assert f"port {port} is taken" in judged(launch_world, "--port", port)[0]
        assert "--port 70000 is no port" in judged(launch_world, "--port", "70000")[0]
        refused, warned = judged(launch_world, "--port", port, dry_run=True)
    assert refused == "" and f"port {port} is taken" in warned


def test_a_wrong_key_variable_is_refused_without_the_key(
    launch_world: LaunchWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLANNER_SERVER_API_KEY", "two words")
    assert main(["--check", "--", "--model", str(launch_world.model)]) == 2
    printed = capsys.readouterr()
    assert "PLANNER_SERVER_API_KEY" in printed.err and "two words" not in printed.out + printed.err


def test_the_manifest_is_the_one_of_the_run(launch_world: LaunchWorld, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "run" / "checkpoint-20", base_model_name_or_path="/models/other")
    line = ["--model", str(launch_world.model), "--adapters", str(adapter)]
    assert find_manifest(parse("deploy", line)) is None
    _, warned = judged(launch_world, *line)
    assert "/manifest will say 404" in warned and "was trained on /models/other" in warned
    made = tmp_path / "run" / "planner_manifest.json"
    made.write_text(MANIFEST, encoding="utf-8")
    assert find_manifest(parse("deploy", line)) == made
    assert "trained on the prompt 'full'" in judged(launch_world, *line, PLANNER_PROMPT="short")[1]
    assert "prompt" not in judged(launch_world, *line, PLANNER_PROMPT="full")[1]
    merged = adapter / "planner_manifest.json"  # what merge_adapter.py writes stands in the folder itself
    merged.write_text(MANIFEST, encoding="utf-8")
    assert find_manifest(parse("deploy", line)) == merged


# --- one real server: the nano model with its adapter on a CPU --------------------------------------------------------


@dataclass(frozen=True)
class Running:
    process: "subprocess.Popen[str]"
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def planner(self, world: World) -> Planner:
        channel: Channel = read_channels(
            {
                "LLM_PLANNER": f"local:{self.url}/v1",
                "PLANNER_SERVER_API_KEY": KEY,
                "PLANNER_PROMPT": world.environment["PLANNER_PROMPT"],
            }
        )[0]
        return Planner(channel, None, RateLimits({}))


@pytest.fixture(scope="module")
def running(world: World, base: Path, sft: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    port = free_port()
    log = tmp_path_factory.mktemp("server") / "printed.log"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PLANNER_", "QDRANT_"))},
        **world.environment,
        "PLANNER_MODEL": str(base),
        "PLANNER_SERVER_PORT": str(port),
        "PLANNER_SERVER_API_KEY": KEY,
        "PLANNER_PYTHON": sys.executable,
        "CUDA_VISIBLE_DEVICES": "",
    }
    with log.open("w") as out:
        process = subprocess.Popen(
            ["bash", LAUNCHER, "--adapters", str(sft)],
            cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        made = Running(process, port, log)
        try:
            deadline = time.monotonic() + 240
            while not healthy(made):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
                time.sleep(0.5)
            yield made
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    assert process.returncode == 143, log.read_text()[-4000:]
    assert not healthy(made), "nothing answers after the launcher has ended"


def healthy(server: Running) -> bool:
    try:
        return httpx.get(f"{server.url}/health", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def chat(server: Running, content: Any, headers: dict[str, str] = BEARER, **more: Any) -> httpx.Response:
    body = {"model": SERVED_NAME, "messages": content, **more}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60, trust_env=False)


@pytest.mark.slow
def test_the_key_is_asked_for_and_shown_nowhere(running: Running, world: World) -> None:
    messages = build_messages("想买跑鞋", (), "short")
    assert chat(running, messages, {}).status_code == 401
    assert chat(running, messages).status_code == 200
    family = [psutil.Process(running.process.pid), *psutil.Process(running.process.pid).children(recursive=True)]
    assert len(family) >= 2
    assert KEY not in " ".join(" ".join(one.cmdline()) for one in family)
    assert KEY not in running.log.read_text()
    assert "想买跑鞋" not in running.log.read_text(), "a shopper's words stay out of the log"


@pytest.mark.slow
def test_the_manifest_of_the_run_is_served(running: Running, sft: Path) -> None:
    answer = httpx.get(f"{running.url}/manifest", headers=BEARER, trust_env=False)
    assert answer.text == (sft.parent / "planner_manifest.json").read_text(encoding="utf-8")
    assert httpx.get(f"{running.url}/health", trust_env=False).json()["model"] == SERVED_NAME


@pytest.mark.slow
def test_the_client_gets_the_plan_that_was_learnt(running: Running, world: World) -> None:
    planner = running.planner(world)
    answers = [planner.plan(row["text"], row["prior_context"]) for row in world.rows("learnt.jsonl")]
    assert {answer.channel for answer in answers} == {"local"}, [answer.reason for answer in answers]


@pytest.mark.slow
def test_a_bad_request_does_not_spoil_its_neighbours(running: Running, world: World) -> None:
    """Requests of the same moment are answered as one batch."""
    good = build_messages(world.rows("learnt.jsonl")[0]["text"], (), "short")
    long = build_messages("跑鞋" * 600, (), "short")
    alone = chat(running, good, temperature=0, max_tokens=256).json()["choices"][0]["message"]["content"]
    with ThreadPoolExecutor(8) as pool:
        asked = [good, long] * 8
        answers = list(pool.map(lambda messages: chat(running, messages, temperature=0, max_tokens=256), asked))
    assert [answer.status_code for answer in answers[1::2]] == [400] * 8, "it leaves no room for a plan"
    assert [answer.status_code for answer in answers[::2]] == [200] * 8
    assert {answer.json()["choices"][0]["message"]["content"] for answer in answers[::2]} == {alone}


@pytest.mark.slow
def test_no_file_that_a_request_names_is_opened(running: Running, tmp_path: Path) -> None:
    """Reading a pipe that nobody writes to would stop the engine's only worker for good."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    messages = build_messages("想买跑鞋", (), "short")
    part = [{"role": "user", "content": [{"type": "image", "image": str(pipe)}]}]
    assert [chat(running, messages, images=[str(pipe)]).status_code, chat(running, part).status_code] == [400, 400]
    assert chat(running, messages).status_code == 200


@pytest.mark.slow
def test_the_openai_client_can_stream(running: Running) -> None:
    import openai

    with httpx.Client(trust_env=False) as http:
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key=KEY, max_retries=0, http_client=http)
        asked = {"model": SERVED_NAME, "messages": build_messages("想买跑鞋", (), "short"), "temperature": 0}
        whole = client.chat.completions.create(**asked).choices[0].message.content
        pieces = [part.choices[0].delta.content or "" for part in client.chat.completions.create(**asked, stream=True)]
    assert len(pieces) > 1 and "".join(pieces) == whole


@pytest.mark.slow
def test_200_requests_at_8_are_neither_lost_nor_crossed(running: Running, world: World, tmp_path: Path) -> None:
    printed = run(
        [sys.executable, "scripts/online/load_test.py", "--url", f"{running.url}/v1"]
        + ["--data", str(world.folder / "dev92.jsonl"), "--out", str(tmp_path / "load.json")],
        {"PLANNER_SERVER_API_KEY": KEY},
    )
    assert "200 requests at concurrency 8: 200 right, 0 lost, 0 crossed, 0 changed" in printed
    found = json.loads((tmp_path / "load.json").read_text(encoding="utf-8"))["answers"]
    assert found["distinct_answers"]["count"] > 10
