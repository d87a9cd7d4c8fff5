"""Every fault a service can have, for the store and for the embeddings endpoint: the same rewards, or an error.

Each row strikes one of the two in the middle of a run, over the real clients and real HTTP. A fault that passes within
the retry budget changes no reward, to the bit; one that does not raises, names the service, what it did and the way
out, and leaves the environment fit to go on. No row may end in a score for a search that was not answered.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import ROOT, clean_environment
from embeddings_server import EmbeddingsServer
from faulty_http import FOR_GOOD, Fault, FaultyServer
from qdrant_server import QdrantServer, serve_folder
from scoring_run import score
from small_world import build_store

from swift_plugin.encoders import EncoderError
from swift_plugin.rollout_env import RolloutEnv
from swift_plugin.settings import Settings
from swift_plugin.stores import StoreError

LONG = 30.0  # seconds of a stall, and the limit of every row: a row that waits a stall out has no timeout
SHORT_BUDGET, AMPLE_BUDGET = "1", "25"  # seconds; the second outlasts every fault below that passes
PROXIES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
SAME = ""  # the outcome of a row whose fault changes no reward


@dataclass(frozen=True)
class Service:
    """One of the two services: what it raises, the key of its answer's list, the variables its errors name."""

    name: str
    error: type[Exception]
    items: str
    url_variable: str
    key_variable: str


STORE = Service("store", StoreError, "result", "QDRANT_URL", "QDRANT_API_KEY")
EMBEDDINGS = Service("embeddings", EncoderError, "data", "PLANNER_EMBED_URL", "PLANNER_EMBED_API_KEY")


def one_too_few(service: Service) -> Callable[[Any], Any]:
    return lambda answer: {**answer, service.items: answer[service.items][:-1]}


def one_too_many(service: Service) -> Callable[[Any], Any]:
    return lambda answer: {**answer, service.items: [*answer[service.items], answer[service.items][0]]}


def always(fault: Fault) -> Callable[[Service], list[Fault]]:
    return lambda _: [fault] * 99


@dataclass(frozen=True)
class Row:
    """A fault: what the next requests to the service meet, and how the step that asks them ends.

    `outcome`: SAME, or a pattern of the error, in which {service.url_variable} and the like are filled in.
    `at_once`: the error comes at the first such answer, without a second request. `slow`: a variant of a row above it,
    which only `make test-all` runs.
    """

    name: str
    faults: Callable[[Service], list[Fault]]
    outcome: str
    reason: str
    budget_s: str = AMPLE_BUDGET
    request_s: str = "5"
    proxy: bool = False
    at_once: bool = False
    slow: bool = False


def passing(name: str, *faults: Fault, reason: str, **options: Any) -> Row:
    return Row(name, lambda _: list(faults), SAME, reason, **options)


def lasting(name: str, fault: Fault, outcome: str, *, reason: str, **options: Any) -> Row:
    outcome += f".*budget {SHORT_BUDGET} s.*{{service.url_variable}}.*PLANNER_RETRY_SECONDS"
    return Row(name, always(fault), outcome, reason, **{"budget_s": SHORT_BUDGET, **options})


def hopeless(name: str, faults: Callable[[Service], list[Fault]], outcome: str, *, reason: str, **options: Any) -> Row:
    return Row(name, faults, outcome, reason, at_once=True, **options)


ROWS = [
    passing("503-burst", *[Fault(status=503)] * 2, reason="a service that is overloaded for a moment"),
    passing(
        "5xx-mixed", Fault(status=500), Fault(status=502), Fault(status=504), slow=True, reason="a gateway in between"
    ),
    lasting("503-stays", Fault(status=503), "HTTP 503", reason="the budget is spent"),
    passing("429", Fault(status=429), slow=True, reason="a rate limit without a time"),
    passing(
        "429-retry-after", Fault(status=429, headers=(("Retry-After", "1"),)), slow=True, reason="a rate limit with one"
    ),
    lasting(
        "429-retry-after-an-hour",
        Fault(status=429, headers=(("Retry-After", "3600"),)),
        r"HTTP 429.*\(1 tries",
        slow=True,
        reason="no sleep beyond the budget: the run ends now",
    ),
    passing("stall", Fault(stall_s=1.6), request_s="1", reason="past the timeout of one try"),
    passing("slow", Fault(stall_s=0.7), reason="within the timeout: slow is not broken"),
    lasting("stall-stays", Fault(stall_s=LONG), "Timeout", request_s="1", reason="every try ends at its timeout"),
    lasting(
        "stall-longer-than-the-budget",
        Fault(stall_s=LONG),
        "Timeout",
        request_s="20",
        slow=True,
        reason="a try is given no longer than what the budget has left",
    ),
    passing(
        "trickle",
        Fault(trickle_s=LONG),
        request_s="1",
        reason="bytes keep coming, each within the timeout of a read; the whole answer is not",
    ),
    lasting(
        "trickle-stays", Fault(trickle_s=LONG), "ReadTimeout", request_s="1", slow=True, reason="so too, every time"
    ),
    passing("reset", Fault(reset=True), Fault(reset=True), reason="a connection dropped without an answer"),
    lasting(
        "reset-stays",
        Fault(reset=True),
        "(Read|Write|Protocol)Error",
        slow=True,
        reason="something kills every connection",
    ),
    passing("cut", Fault(cut=True), reason="half an answer is none"),
    lasting("cut-stays", Fault(cut=True), "RemoteProtocolError", slow=True, reason="a broken proxy in between"),
    lasting("refused", Fault(down_s=FOR_GOOD), "ConnectError", reason="the process died in the middle of the run"),
    passing("restart", Fault(down_s=0.5), reason="the process is back within the budget, on the same port"),
    passing("restart-and-load", Fault(down_s=0.4), Fault(status=503), slow=True, reason="and is not ready at once"),
    passing("two-restarts", Fault(down_s=0.4), Fault(down_s=0.4), slow=True, reason="it fell over again"),
    hopeless(
        "batch-too-short",
        lambda service: [Fault(change=one_too_few(service))],
        "no longer belong together",
        reason="titles of one plan would be scored for another",
    ),
    hopeless(
        "batch-too-long",
        lambda service: [Fault(change=one_too_many(service))],
        "no longer belong together",
        reason="so too",
    ),
    hopeless(
        "another-page",
        lambda _: [Fault(status=200, body="<html>log in</html>")],
        "like Qdrant|no JSON",
        reason="a captive portal answers 200",
    ),
    hopeless(
        "key-withdrawn",
        lambda _: [Fault(status=401, body="unauthorised")],
        "{service.key_variable}",
        reason="no retry makes a key right",
    ),
    hopeless(
        "gone-from-the-service",
        lambda _: [Fault(status=404, body="not found")],
        "404.*(QDRANT_COLLECTION|PLANNER_EMBED_MODEL)",
        reason="the collection dropped, the model unloaded",
    ),
    Row("proxy", lambda _: [], SAME, "loopback never goes through HTTP_PROXY", proxy=True),
    lasting(
        "proxy-and-refused",
        Fault(down_s=FOR_GOOD),
        "ConnectError",
        proxy=True,
        slow=True,
        reason="nor does a retry: the proxy's own error would hide the outage",
    ),
    passing("proxy-and-restart", Fault(down_s=0.6), proxy=True, slow=True, reason="nor the first call after a restart"),
]


@dataclass
class Services:
    """Both services and a proxy that must never be asked."""

    store: QdrantServer
    embeddings: EmbeddingsServer
    proxy: FaultyServer
    undisturbed: list[float]  # rewards of step 2 without any fault

    def of(self, service: Service) -> FaultyServer:
        return self.store if service is STORE else self.embeddings

    def environ(self, budget_s: str = AMPLE_BUDGET, request_s: str = "5") -> dict[str, str]:
        return {
            "QDRANT_URL": self.store.url,
            "PLANNER_EMBED_URL": self.embeddings.url,
            "PLANNER_EMBED_BATCH": "4",  # three requests a step
            "PLANNER_RETRY_SECONDS": budget_s,
            "PLANNER_REQUEST_SECONDS": request_s,
        }


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    folder = build_store(tmp_path_factory.mktemp("world") / "catalog.edge")
    with serve_folder(folder) as store, EmbeddingsServer() as embeddings, QdrantServer(None) as proxy:
        made = Services(store, embeddings, proxy, [])
        env = RolloutEnv.from_settings(Settings.from_env(made.environ()))
        made.undisturbed.extend(score(env, 2))
        env.close()
        yield made


@pytest.fixture
def services(running: Services) -> Services:
    """Both services up, whatever the row before did to them."""
    for server in (running.store, running.embeddings, running.proxy):
        server.faults.clear()
        server.requests.clear()
        server.come_back()
    return running


CASES = [
    pytest.param(row, service, id=f"{row.name}-{service.name}", marks=[pytest.mark.slow] * row.slow)
    for row in ROWS
    for service in (STORE, EMBEDDINGS)
]


@pytest.mark.parametrize(("row", "service"), CASES)
def test_the_matrix(row: Row, service: Service, services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    if row.proxy:
        for name in PROXIES:
            monkeypatch.setenv(name, services.proxy.url)
    env = RolloutEnv.from_settings(Settings.from_env(services.environ(row.budget_s, row.request_s)))
    score(env, 1)  # connections are open now
    struck = services.of(service)
    struck.requests.clear()
    faults = row.faults(service)
    struck.fail(*[Fault()] * (service is EMBEDDINGS), *faults)  # its second request of the step, the store's only one

    started = time.monotonic()
    if row.outcome == SAME:
        assert score(env, 2) == services.undisturbed, row.reason
        assert not struck.faults, "the fault never struck"
    else:
        with pytest.raises(service.error) as raised:
            score(env, 2)
        message = str(raised.value)
        assert re.search(row.outcome.format(service=service), message), (row.reason, message)
        assert struck.url in message
        assert env.last_rows[0]["step"] == 1, "nothing of the step was scored"
        if row.at_once:
            assert len(struck.requests) == 1 + (service is EMBEDDINGS), row.reason
        struck.faults.clear()
        struck.come_back()
        assert score(env, 2) == services.undisturbed, "the failure was remembered"
    assert time.monotonic() - started < LONG
    assert services.proxy.requests == []
    env.close()


# --- the same in a process of its own: how a run ends, and what it leaves ---------------------------------------------


def start_run(run_dir: Path, services: Services, budget_s: str) -> "subprocess.Popen[str]":
    """Scoring for ever under the supervisor, as the launchers start training."""
    command = [sys.executable, "-m", "scripts.train.supervise", "--log", str(run_dir / "train.log"), "--"]
    return subprocess.Popen(
        [*command, sys.executable, str(ROOT / "tests" / "scoring_run.py"), str(run_dir), "1000000"],
        cwd=ROOT,
        env={**clean_environment(), **services.environ(budget_s, "1"), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def await_steps(run: "subprocess.Popen[str]", count: int) -> None:
    assert run.stdout is not None
    for line in run.stdout:
        if line.startswith(f"step {count} "):
            return
    pytest.fail("the run ended before its time")


def the_trainer(run: "subprocess.Popen[str]") -> psutil.Process:
    (second,) = psutil.Process(run.pid).children()  # supervise.py is two processes
    (child,) = second.children()
    return child


@pytest.mark.parametrize(
    "service",
    [pytest.param(STORE, id="store"), pytest.param(EMBEDDINGS, id="embeddings", marks=pytest.mark.slow)],
)
def test_a_service_that_dies_ends_the_run(service: Service, services: Services, tmp_path: Path) -> None:
    run = start_run(tmp_path, services, "2")
    try:
        await_steps(run, 3)
        services.of(service).go_away()
        printed, _ = run.communicate(timeout=2 * LONG)
    finally:
        run.kill()
    assert run.returncode == 1
    last = printed.strip().splitlines()[-1]
    assert service.error.__name__ in last and services.of(service).url in last and service.url_variable in last
    check_trace(tmp_path)


@pytest.mark.slow
def test_a_service_that_returns_in_time_does_not(services: Services, tmp_path: Path) -> None:
    run = start_run(tmp_path, services, AMPLE_BUDGET)
    try:
        await_steps(run, 3)
        for server in (services.store, services.embeddings):
            server.go_away()
            time.sleep(0.5)
            server.come_back()
        await_steps(run, 9)
        trainer = the_trainer(run)
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=2 * LONG)
    finally:
        run.kill()
    assert run.returncode == 128 + signal.SIGINT
    assert not trainer.is_running()
    check_trace(tmp_path)


@pytest.mark.slow
def test_a_trainer_killed_by_nine_ends_the_run_and_says_so(services: Services, tmp_path: Path) -> None:
    run = start_run(tmp_path, services, AMPLE_BUDGET)
    try:
        await_steps(run, 3)
        os.kill(the_trainer(run).pid, signal.SIGKILL)
        printed, _ = run.communicate(timeout=2 * LONG)
    finally:
        run.kill()
    assert run.returncode == 128 + signal.SIGKILL
    assert "SIGKILL" in printed.strip().splitlines()[-1]
    check_trace(tmp_path)


def check_trace(run_dir: Path) -> None:
    """Every line is whole but perhaps a killed run's last, and every search has the titles it found."""
    lines = (run_dir / "reward_trace.rank0.jsonl").read_text(encoding="ascii").split("\n")[:-1]
    rows = [json.loads(line) for line in lines]
    assert len(rows) >= 12 * 3
    assert all(len(row["titles"]) == 20 for row in rows if row["search"])
    assert {row["breakdown"]["total"] for row in rows if row["plan"] is None} == {-1.0}
