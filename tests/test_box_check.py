"""The checks of a box: their record and exit code, what a machine without a GPU says, the rollout server's check."""

import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from scripts.train.box_report import BAD, BROKEN, CANNOT, FINE, entry, last_words, main, state_of, verdict
from scripts.train.rollout_server_check import ServerFault, ask
from scripts.train.swift_args import parse
from tests.launch_world import CHECKOUT, LaunchWorld, build_world

CHECKS = ("environment", "memory_sft", "memory_grpo", "rollout_server", "prefix_caching", "bge_m3_fp16")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> LaunchWorld:
    return build_world(tmp_path_factory.mktemp("box"))


# --- the record -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "state"),
    [(0, FINE), (1, BAD), (2, CANNOT), (3, BROKEN), (124, BROKEN), (130, BROKEN), (137, BROKEN)],
)
def test_an_exit_code_says_how_a_check_ended(code: int, state: str) -> None:
    assert state_of(code) == state


@pytest.mark.parametrize(
    ("states", "code", "reason"),
    [
        ([FINE, FINE], 0, "all fine"),
        ([FINE, CANNOT], 2, "one could not be done"),
        ([CANNOT, BAD], 1, "a bad verdict outweighs what could not be done"),
        ([FINE, BROKEN], 1, "a check that broke is bad news"),
        ([], 2, "nothing was checked"),
    ],
)
def test_the_exit_code_of_the_whole(states: list[str], code: int, reason: str) -> None:
    assert verdict([{"state": state} for state in states]) == code, reason


def test_the_last_words_are_the_checks_own() -> None:
    log = "loading\r 50%\r100%\nno GPU here\n\nplanner: the run ended with exit code 2: see above (log: x)\n"
    assert last_words(log) == "no GPU here"
    assert last_words("planner: the run ended with exit code 2: see above (log: x)\n") == ""


def test_a_check_that_ran_too_long_says_so() -> None:
    made = entry("memory_sft", ["python", "a b"], code=124, seconds=1800.0, said="measured 3/8")
    assert (made["state"], made["command"]) == (BROKEN, "python 'a b'")
    assert "not done after 1800 s" in made["said"] and "measured 3/8" in made["said"]


def test_the_report_holds_every_check_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--dir", str(tmp_path), "--name"]
    (tmp_path / "memory_sft.json").write_text('{"rows": [1]}')
    assert main(["add", *where, "memory_sft", "--code", "0", "--seconds", "12", "--", "python", "x.py", "--flag"]) == 0
    assert main(["skip", *where, "bge_m3_fp16", "--reason", "FlagEmbedding is missing", "--", "bash", "y.sh"]) == 0
    assert main(["finish", "--dir", str(tmp_path)]) == 2
    report = json.loads((tmp_path / "box_check.json").read_text())
    first, second = report["checks"]
    assert (first["name"], first["state"], first["result"]) == ("memory_sft", FINE, {"rows": [1]})
    assert (first["command"], first["seconds"], first["exit_code"]) == ("python x.py --flag", 12.0, 0)
    assert (second["name"], second["state"], second["exit_code"]) == ("bge_m3_fp16", CANNOT, None)
    assert report["exit_code"] == 2 and report["packages"]["torch"] and report["hardware"]["cpu_cores"]
    assert "FlagEmbedding is missing" in capsys.readouterr().out
    (tmp_path / "rollout_server.log").write_text("HTTP 500\n")
    assert main(["add", *where, "rollout_server", "--code", "1"]) == 0
    assert main(["finish", "--dir", str(tmp_path)]) == 1
    assert json.loads((tmp_path / "box_check.json").read_text())["checks"][2]["said"] == "HTTP 500"


def test_a_half_written_result_is_a_check_that_broke(tmp_path: Path) -> None:
    (tmp_path / "memory_sft.json").write_text('{"rows": [')
    assert main(["add", "--dir", str(tmp_path), "--name", "memory_sft", "--code", "0"]) == 0
    assert main(["finish", "--dir", str(tmp_path)]) == 1
    (check,) = json.loads((tmp_path / "box_check.json").read_text())["checks"]
    assert (check["state"], check["result"]) == (BROKEN, None) and "memory_sft.json is no JSON" in check["said"]


# --- the script -------------------------------------------------------------------------------------------------------


def box_check(world: LaunchWorld, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return world.run("scripts/train/box_check.sh", *arguments, **variables)


def test_a_dry_run_prints_every_command(world: LaunchWorld, tmp_path: Path) -> None:
    done = box_check(world, "--out", str(tmp_path / "out"), DRY_RUN="1", CUDA_VISIBLE_DEVICES="0,5")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(" ")[0].rstrip(":") for line in lines[::2]] == list(CHECKS)
    commands = dict(zip(CHECKS, map(shlex.split, lines[1::2]), strict=True))
    for name, words in commands.items():
        scripts = [word for word in words if word.endswith((".py", ".sh"))]
        assert scripts and all(Path(script).is_file() for script in scripts), name
    for name in CHECKS[1:]:
        assert any(word.endswith("_GPUS=5") or word == "CUDA_VISIBLE_DEVICES=5" for word in commands[name]), name
    assert str(world.model) in commands["memory_sft"] and "--measure" in commands["memory_sft"]
    assert str(world.adapter) in commands["prefix_caching"]
    assert not (tmp_path / "out").exists()
    assert "vllm is not installed" in lines[6], "this machine has none"


def test_one_gpu_can_be_chosen_and_one_check(world: LaunchWorld) -> None:
    done = box_check(world, "memory_grpo", DRY_RUN="1", CUDA_VISIBLE_DEVICES="0,5", ROLLOUT_GPUS="3,4")
    assert done.stdout.count("\n") == 2 and "CUDA_VISIBLE_DEVICES=3 " in done.stdout and "--kind grpo" in done.stdout


def test_what_a_machine_without_a_gpu_cannot_do_stands_in_the_json(world: LaunchWorld, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = box_check(world, "--out", str(out), *CHECKS[1:], CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2, done.stderr
    checks = json.loads((out / "box_check.json").read_text())["checks"]
    assert [check["name"] for check in checks] == list(CHECKS[1:])
    assert {check["state"] for check in checks} == {CANNOT}
    assert all("no GPU" in check["said"] and check["command"] for check in checks)
    again = box_check(world, "--out", str(out), CUDA_VISIBLE_DEVICES="")
    assert again.returncode == 2 and "holds checks already" in again.stderr
    (out / "box_check.json").unlink()  # as after kill -9: its checks must not stand in the next report
    again = box_check(world, "--out", str(out), CUDA_VISIBLE_DEVICES="")
    assert again.returncode == 2 and "holds checks already" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["memory"], "there is no check memory"),
        (["--out"], "--out wants a folder"),
        (["--out", "/proc/no/box", "environment"], "/proc/no/box cannot be written"),
        (["--out", "/etc/passwd", "environment"], "/etc/passwd cannot be written"),
    ],
)
def test_wrong_use(world: LaunchWorld, arguments: list[str], said: str) -> None:
    done = box_check(world, *arguments)
    assert done.returncode == 2 and said in done.stderr


def test_help_is_the_header(world: LaunchWorld) -> None:
    done = box_check(world, "--help")
    assert done.returncode == 0 and done.stdout.startswith("The checks that need a GPU")
    assert all(f"  {name} " in done.stdout for name in CHECKS)


@pytest.mark.slow  # imports torch
def test_a_driver_without_a_usable_gpu_is_told_by_the_check_itself(world: LaunchWorld, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = box_check(world, "--out", str(out), "memory_sft", CUDA_VISIBLE_DEVICES="0")
    assert done.returncode == 2, done.stdout + done.stderr
    (check,) = json.loads((out / "box_check.json").read_text())["checks"]
    assert check["state"] == CANNOT and check["exit_code"] == 2 and "torch sees none" in check["said"]


def test_a_signal_ends_the_check_and_leaves_the_report(world: LaunchWorld, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = subprocess.Popen(
        ["bash", str(CHECKOUT / "scripts/train/box_check.sh"), "--out", str(out), "environment", "memory_sft"],
        env=world.environment({"CUDA_VISIBLE_DEVICES": ""}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not any("doctor.py" in command_line(child) for child in descendants(run.pid)):
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    left = descendants(run.pid)
    run.send_signal(signal.SIGTERM)
    printed, _ = run.communicate(timeout=60)
    assert run.returncode == 143, printed
    checks = json.loads((out / "box_check.json").read_text())["checks"]
    assert [(check["name"], check["state"]) for check in checks] == [("environment", BROKEN)]
    psutil.wait_procs(left, timeout=10)
    assert not [child for child in left if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def command_line(process: psutil.Process) -> str:
    """Its words; none where it has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # zombies included
        return ""


def descendants(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children(recursive=True) if child.is_running()]


# --- the rollout server, with a stand-in for the swift executable -----------------------------------------------------

# Answers as `swift rollout` does, or dies where FAKE_SWIFT says so. Only the executable is a stand-in.
FAKE_SWIFT = """#!{python}
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
if os.environ["FAKE_SWIFT"] == "dies":
    raise SystemExit(7)
class Handler(BaseHTTPRequestHandler):
    def answer(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer({{}})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/reset_prefix_cache/":
            return self.answer({{"message": "done"}})
        choice = {{"message": {{"role": "assistant", "content": {plan!r}}}}}
        one = {{"response": {{"choices": [choice], "usage": {{"completion_tokens": 5}}}}}}
        assert asked["request_config"]["max_tokens"] == 16 and asked["infer_requests"][0]["messages"]
        self.answer([one] * len(asked["infer_requests"]))
    def log_message(self, *_):
        pass
port = int(sys.argv[::-1][sys.argv[::-1].index("--port") - 1])
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
PLAN = '{"category": "跑鞋", "keywords": ["running shoes"]}'


@dataclass(frozen=True)
class Copy:
    """A copy of the checkout with the stand-in beside a real python: the launcher writes its log into the copy."""

    root: Path
    world: LaunchWorld

    def run(self, mode: str, *arguments: str, **variables: str) -> tuple["subprocess.CompletedProcess[str]", int]:
        """`rollout_server_check.py` against the stand-in in this mode, and the port it was to serve on."""
        port = free_port()
        made: Mapping[str, str] = {
            "PLANNER_PYTHON": str(self.root / "env/bin/python"), "PYTHONPATH": str(self.root), "FAKE_SWIFT": mode,
            "CUDA_VISIBLE_DEVICES": "0", "ROLLOUT_GPUS": "0", "TRAIN_GPUS": "none", **variables,
        }  # fmt: skip
        command = [sys.executable, str(self.root / "scripts/train/rollout_server_check.py"), "--port", str(port)]
        command += ["--data", str(self.world.train), "--prompts", "3", "--group", "2", "--max-new-tokens", "16"]
        done = subprocess.run(
            [*command, *arguments], env=self.world.environment(made), capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        return done, port


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def copy(world: LaunchWorld, tmp_path_factory: pytest.TempPathFactory) -> Copy:
    root = tmp_path_factory.mktemp("checkout")
    parse("rollout", [])  # the option table travels along
    keep = shutil.ignore_patterns("__pycache__", "*.pyc", "row-lengths-*")
    for folder in ("scripts", "swift_plugin", "reward", "data/prompts", "build/cache"):
        shutil.copytree(CHECKOUT / folder, root / folder, ignore=keep)
    shutil.copy(CHECKOUT / "run_grpo_rollout_server.sh", root)
    python, swift = root / "env/bin/python", root / "env/bin/swift"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    swift.write_text(FAKE_SWIFT.format(python=sys.executable, plan=PLAN))
    for file in (python, swift):
        file.chmod(0o755)
    return Copy(root, world)


def test_a_server_that_answers_is_fine_and_ends(copy: Copy, tmp_path: Path) -> None:
    done, port = copy.run("answers", "--json", str(tmp_path / "server.json"))
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads((tmp_path / "server.json").read_text())
    assert [(one["prefix_cache"], one["completions"], one["plans"]) for one in made["passes"]] == [
        ("empty", 6, 6), ("filled", 6, 6),
    ]  # fmt: skip
    assert made["start_s"] > 0 and "6 hold a plan" in done.stdout
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0, "the server has ended"


@pytest.mark.parametrize(
    ("mode", "variables", "code", "said"),
    [
        ("dies", {}, 1, "ended with exit code 7 before it was up"),
        ("answers", {"CUDA_VISIBLE_DEVICES": ""}, 2, "refused to start"),
    ],
)
def test_a_server_that_does_not_come_up(copy: Copy, mode: str, variables: dict[str, str], code: int, said: str) -> None:
    done, port = copy.run(mode, **variables)
    assert done.returncode == code, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0, "nothing is left behind"


def answer(text: Any = "a plan", **changes: Any) -> dict[str, Any]:
    one = {"choices": [{"message": {"content": text}}], "usage": {"completion_tokens": 3}}
    return {"response": {**one, **changes}}


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, [answer()] * 2, ""),
        (200, [answer()["response"]] * 2, ""),  # a plain chat completion, as servers without multi-turn give
        (500, {"detail": "out of memory"}, '/infer/ answers HTTP 500: {"detail": "out of memory"}'),
        (200, [answer()], "2 completions were asked for, and 1 came back"),
        (200, {"detail": "?"}, "no list came back"),
        (200, [answer(), answer("")], "1 of 2 completions are empty"),
        (200, [answer(), answer(usage={})], "lacks 'completion_tokens'"),
        (200, [answer(), "text"], "an answer of /infer/ lacks"),
    ],
)
def test_answers_of_the_server_are_looked_at(status: int, body: Any, said: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            sent = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}", trust_env=False) as client:
                if not said:
                    assert ask(client, [{"messages": []}], 2, 16)[:2] == (["a plan"] * 2, 6)
                    return
                with pytest.raises(ServerFault, match=re.escape(said)):
                    ask(client, [{"messages": []}], 2, 16)
        finally:
            server.shutdown()


def test_a_server_check_without_its_set_is_wrong_use(copy: Copy) -> None:
    done, _ = copy.run("answers", "--data", "/no/set.jsonl")
    assert done.returncode == 2 and "/no/set.jsonl" in done.stderr
