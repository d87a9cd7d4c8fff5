"""doctor: what is missing is named with its fix and decides the exit code, and no secret is printed."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from qdrant_server import QdrantServer

from scripts.train.doctor import (
    MISSING,
    NOTE,
    OK,
    Line,
    check_disk,
    check_model,
    check_packages,
    examine,
    import_fix,
    launcher_defaults,
    launches,
    page,
    proxies,
    read_pins,
    visible_gpus,
)
from scripts.train.launch_facts import Findings
from scripts.train.preflight_services import check_gpus, check_proxy
from swift_plugin.settings import CHECKOUT, Settings
from tests.launch_world import clean_environment
from tests.small_world import build_store

SECRET = "sk-very-secret-0123"
DEFAULTS = launcher_defaults()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_store(tmp_path_factory.mktemp("doctor") / "store")


@pytest.fixture(scope="module")
def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def run(*arguments: str, code: int, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "scripts/train/doctor.py", *arguments],
        cwd=CHECKOUT, env={**clean_environment(), "CUDA_VISIBLE_DEVICES": "", **variables}, capture_output=True,
        text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    return done.stdout


def lines(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(line["section"], line["name"]): line for line in json.loads(text)["lines"]}


def test_a_complete_environment_is_fine(store: Path, free_port: str) -> None:
    made = lines(run("--no-import", "--json", code=0, PLANNER_STORE_DIR=str(store), PLANNER_ROLLOUT_PORT=free_port))
    assert made["retrieval", "store and encoder"]["state"] == OK
    assert "160 points of size 480" in made["retrieval", "store and encoder"]["found"]
    assert made["packages", "torch"]["state"] in (OK, NOTE)
    assert made["grpo", "import"]["state"] == NOTE, "a skipped import is not called fine"


def test_a_missing_store_is_named_with_the_command_that_builds_it(tmp_path: Path) -> None:
    shown = run("--no-import", code=1, PLANNER_STORE_DIR=str(tmp_path / "none"))
    assert f"no embedded store at {tmp_path / 'none'}" in shown
    assert "fix retrieval, store and encoder: python scripts/data/build_demo_index.py" in shown
    assert shown.rstrip().endswith("missing")


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"PLANNER_RETREIVAL": "off"}, "did you mean PLANNER_RETRIEVAL"),
        ({"QDRANT_URL": "localhost"}, "QDRANT_URL"),
        ({"PLANNER_ROLLOUT_PORT": "eight"}, "PLANNER_ROLLOUT_PORT='eight'"),
        ({"PLANNER_REWARD_FILE": "/no/reward.py"}, "/no/reward.py"),
        ({"HTTPS_PROXY": "http://[::1", "PLANNER_RETRIEVAL": "off"}, "HTTPS_PROXY"),
        ({"PLANNER_ROLLOUT_PORT": "²"}, "PLANNER_ROLLOUT_PORT='²'"),
        ({"PLANNER_REWARD_WEIGHTS": "fiel=0.4", "PLANNER_RETRIEVAL": "off"}, "fiel"),
        ({"PLANNER_MODEL": "./no-such-model", "PLANNER_RETRIEVAL": "off"}, "no-such-model"),
    ],
)
def test_a_wrong_setting_is_missing_and_named(variables: dict[str, str], named: str) -> None:
    made = json.loads(run("--no-import", "--json", code=1, **variables))
    assert not made["fine"]
    assert any(named in line["found"] for line in made["lines"] if line["state"] == MISSING)


@pytest.mark.parametrize(
    ("code", "named"),
    [("def x(:", "SyntaxError"), ("import nonesuch", "nonesuch"), ("raise SystemExit(0)", "SystemExit: 0")],
)
def test_a_reward_that_cannot_be_loaded_is_missing(tmp_path: Path, code: str, named: str) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text(code + "\n", encoding="utf-8")
    environ = {**clean_environment(), "PLANNER_REWARD_FILE": str(reward)}
    (line,) = [line for line in examine(environ, import_path=False) if line.state == MISSING and "reward" in line.found]
    assert str(reward) in line.found and named in line.found


def test_secrets_are_masked_everywhere(store: Path) -> None:
    with QdrantServer(None, api_key=SECRET) as server:
        shown = run(
            "--no-import", code=1, QDRANT_URL=server.url, QDRANT_API_KEY=SECRET, PLANNER_API_KEY="other-" + SECRET,
            HTTPS_PROXY="http://user:hush-77@proxy.example:3128", http_proxy="me:hush-77@proxy.example:3128",
        )  # fmt: skip
    assert SECRET not in shown and "hush-77" not in shown
    assert "QDRANT_API_KEY=***" in shown and "proxy.example:3128" in shown


URLS_WITH_A_PASSWORD: list[tuple[dict[str, str], str]] = [
    ({"QDRANT_URL": "http://bob:hush-77@q:6333"}, "QDRANT_URL=http://q:6333"),
    ({"QDRANT_URL": "http://bob:hush-77/x@q:6333"}, "QDRANT_URL=http://q:6333"),
    ({"PLANNER_API_URL": "https://bob:hush-77@api/v1?key=hush-77"}, "PLANNER_API_URL=https://api/v1"),
    ({"LLM_PLANNER": "local:http://bob:hush-77@h/v1"}, "LLM_PLANNER=local:http://h/v1"),
    ({"HTTP_PROXY": "http://bob:hush-77/x@proxy:3128"}, "HTTP_PROXY=proxy:3128"),
    ({"HTTPS_PROXY": "http://bob:hush-77#x@proxy:3128"}, "HTTPS_PROXY=***"),
]


@pytest.mark.parametrize(("variables", "shown"), URLS_WITH_A_PASSWORD)
def test_a_password_in_a_url_is_not_shown(variables: dict[str, str], shown: str) -> None:
    lines = examine({**clean_environment(), "PLANNER_RETRIEVAL": "off", **variables}, import_path=False)
    assert "hush" not in page(lines) and any(shown in line.found for line in lines)


def test_an_unreachable_qdrant_is_missing(free_port: str) -> None:
    shown = run("--no-import", code=1, QDRANT_URL=f"http://127.0.0.1:{free_port}", PLANNER_RETRY_SECONDS="0")
    assert f"127.0.0.1:{free_port}" in shown and "does not answer" in shown


def test_retrieval_off_needs_no_store(free_port: str) -> None:
    made = lines(run("--no-import", "--json", code=0, PLANNER_RETRIEVAL="off", PLANNER_ROLLOUT_PORT=free_port))
    assert made["retrieval", "store and encoder"]["state"] == NOTE


@pytest.mark.slow  # imports ms-swift, trl and torch
def test_the_grpo_path_is_really_imported(free_port: str, tmp_path: Path) -> None:
    variables = {"PLANNER_RETRIEVAL": "off", "PLANNER_ROLLOUT_PORT": free_port}
    assert lines(run("--json", code=0, **variables))["grpo", "import"]["state"] == OK
    (tmp_path / "msgspec.py").write_text("raise ModuleNotFoundError(\"No module named 'msgspec'\")", encoding="utf-8")
    shown = run(code=1, PYTHONPATH=str(tmp_path), **variables)
    assert "pip install -c constraints.txt msgspec" in shown, "GRPO needs msgspec, which ms-swift does not require"


@pytest.mark.parametrize(
    ("last", "gpu", "fix"),
    [
        ("ModuleNotFoundError: No module named 'msgspec'", False, "-m pip install -c constraints.txt msgspec"),
        ("ModuleNotFoundError: No module named 'msgspec'", True, "-m pip install -c constraints-gpu.txt msgspec"),
        ("ModuleNotFoundError: No module named 'trl.trainer'", False, "constraints.txt trl"),
        # the checkout itself is not installed
        ("ModuleNotFoundError: No module named 'reward'", False, "-c constraints.txt -e '.[dev,bge,pretrained]'"),
        ("ImportError: cannot import name 'x' from 'trl'", True, "-c constraints-gpu.txt -e '.[gpu,bge]'"),
        # only a name gets into a command
        ("ModuleNotFoundError: No module named 'x; rm -rf /'", False, "constraints.txt x"),
    ],
)
def test_the_fix_of_a_failed_import(last: str, gpu: bool, fix: str) -> None:
    assert import_fix(last, gpu=gpu).endswith(fix)


@pytest.mark.parametrize(
    ("name", "version", "gpu", "state"),
    [
        ("torch", "2.13.0", False, OK),
        ("torch", "2.13.0+cpu", False, OK),  # the same release
        ("torch", "2.12.0", False, NOTE),
        ("torch", None, False, MISSING),
        ("vllm", None, False, OK),
        ("vllm", None, True, MISSING),
        ("FlagEmbedding", None, False, OK),
        ("unpinned", "1.0", False, OK),
    ],
)
def test_versions_against_the_pins(name: str, version: str | None, gpu: bool, state: str) -> None:
    (line,) = check_packages({name: version}, {"torch": "2.13.0"}, "constraints.txt", gpu=gpu, flag_encoder=False)
    assert line.state == state
    assert bool(line.fix) == (state != OK)


def test_flag_embedding_is_missed_where_it_encodes() -> None:
    (line,) = check_packages({"FlagEmbedding": None}, {}, "constraints.txt", gpu=False, flag_encoder=True)
    assert line.state == MISSING and "pip install" in line.fix


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-gpu.txt"])
def test_the_pin_files_are_read(name: str) -> None:
    pins = read_pins(CHECKOUT / name)
    assert pins["ms-swift"] == "4.6.0" and pins["trl"] == "0.29.1"
    assert all(version and ";" not in version and "#" not in version for version in pins.values())


def test_the_launchers_defaults_are_read_where_they_stand() -> None:
    expected = {
        "MODEL": "Qwen/Qwen3-4B-Instruct-2507", "TRAIN_GPUS": "0,1,2,3", "ROLLOUT_GPUS": "4", "ROLLOUT_PORT": "8000",
        "ROLLOUT_HOST": "127.0.0.1",
    }  # fmt: skip
    assert {name: DEFAULTS.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("0", "1")),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "1, 3"}, ("1", "3")),
    ],
)
def test_visible_gpus(environ: dict[str, str], expected: tuple[str, ...]) -> None:
    rows = ["0, NVIDIA GeForce RTX 4090 D, 24564 MiB, 550.1", "1, NVIDIA GeForce RTX 4090 D, 24564 MiB, 550.1"]
    assert visible_gpus(rows, environ) == expected


@pytest.mark.parametrize(
    ("gpus", "environ", "wrong"),
    [
        (("0", "1", "2", "3", "4", "5"), {}, ""),  # the original box
        (("0", "1"), {}, "TRAIN_GPUS=0,1,2,3"),
        (("0", "1"), {"TRAIN_GPUS": "0", "ROLLOUT_GPUS": "0"}, "stands in TRAIN_GPUS"),
        (("0", "1"), {"TRAIN_GPUS": "0", "ROLLOUT_GPUS": "1"}, ""),
    ],
)
def test_gpu_lists_are_judged_as_by_the_launchers(gpus: tuple[str, ...], environ: dict[str, str], wrong: str) -> None:
    found = Findings()
    for launch in launches(Settings(), environ, gpus, DEFAULTS):
        check_gpus(launch, found)
    assert (wrong in " ".join(found.refusals)) if wrong else not found.refusals, found.refusals


def test_a_proxy_in_front_of_the_rollout_server_is_found() -> None:
    grpo, _ = launches(Settings(), {"http_proxy": "http://proxy:3128"}, ("0", "1", "2", "3", "4"), DEFAULTS)
    found = Findings()
    check_proxy(grpo, found)
    assert "NO_PROXY" in found.refusals[0]
    assert proxies({}).state == OK
    assert "proxy:3128" in proxies({"https_proxy": "http://u:p@proxy:3128"}).found


def test_model_and_disk(tmp_path: Path) -> None:
    assert check_model({}, "Qwen/Qwen3-4B-Instruct-2507").state == NOTE
    assert check_model({"PLANNER_MODEL": str(tmp_path)}, "x/y").state == MISSING
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert check_model({"PLANNER_MODEL": str(tmp_path)}, "x/y").state == OK
    assert check_disk(tmp_path, 1e-6).state == OK
    assert check_disk(tmp_path, 1e9).state == MISSING


def test_the_page_ends_with_every_missing_thing() -> None:
    shown = page([Line("a", "x", OK, "1"), Line("b", "y", MISSING, "gone", "make y"), Line("b", "z", MISSING, "why")])
    assert shown.splitlines()[-3:] == ["fix b, y: make y", "fix b, z: as the line above says", "2 missing"]
    assert page([Line("a", "x", OK, "1")]).endswith("all there")
