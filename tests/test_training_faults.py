"""Training runs that are ended from outside, two ranks each: they end at once and whole, and resumed they finish.

One run is interrupted again and again, each time in another way, and goes on from its last checkpoint. Its base model
parses nothing without the adapter: a resumed run that lost it would show as a jump in parse failures.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import ROOT, World, clean_environment
from safetensors.torch import load_file
from small_world import reward

from scripts.train.checkpoints import whole_checkpoints

BUDGET_S = 5
LIMIT_S = 240.0  # a hang shows as this
STEPS = 3  # that a run scores before it is ended
LAST_STEPS = 4  # that the last run still has to do
COMPLETION = 64  # tokens
RANK = 16
STRENGTH = 5.0  # of the change, by the layer's own norm; at 1 the nano model still parses a third
pytestmark = pytest.mark.slow


# --- a base model that needs its adapter ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Policy:
    """Base model and adapter, which together are the model `base` of conftest.py."""

    model: Path
    adapter: Path


@pytest.fixture(scope="module")
def policy(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """Take a random change of rank 16 out of every linear layer and put it into a LoRA adapter."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("policy")
    made = Policy(folder / "model", folder / "adapter")
    shutil.copytree(base, made.model)
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    tuned = get_peft_model(model, lora)
    with torch.no_grad():
        for module in tuned.modules():
            if hasattr(module, "lora_B"):
                weight, low, high = module.weight, module.lora_A["default"].weight, module.lora_B["default"].weight
                torch.nn.init.normal_(high)
                high *= STRENGTH * weight.norm() / (module.scaling["default"] * (high @ low).norm())
                weight -= module.scaling["default"] * (high @ low)
    tuned.save_pretrained(made.adapter)
    tuned.unload().save_pretrained(made.model)
    return made


def test_without_its_adapter_the_base_parses_nothing(world: World, policy: Policy) -> None:
    """What the check on parse failures below stands on."""
    from scripts.eval.generate import LocalModel, generate

    prompts = [row["messages"][:-1] for row in world.rows("learnt.jsonl")]

    def parsed(adapter: Path | None) -> int:
        engine = LocalModel(str(policy.model), None if adapter is None else str(adapter)).load()
        found = generate(engine, prompts, samples=0, seed=0, label="greedy", max_new_tokens=COMPLETION)
        return sum(reward().parse_plan(text).plan is not None for (text,) in found)

    assert parsed(policy.adapter) > len(prompts) / 2
    assert parsed(None) == 0


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One launch of the training in `out`; `process` is the launcher, which leads a process group as in a terminal."""

    out: Path
    process: "subprocess.Popen[str]"

    def await_steps(self, count: int, whole: int) -> None:
        """Until `count` more steps are scored than before the launch and `whole` checkpoints are newer."""
        before, saved = len(step_log(self.out)), newest_step(self.out)
        deadline = time.monotonic() + LIMIT_S
        while len(step_log(self.out)) < before + count or newest_step(self.out) < saved + whole:
            if self.process.poll() is not None:
                pytest.fail(f"ended with {self.process.returncode}\n{self.process.communicate()[0][-3000:]}")
            assert time.monotonic() < deadline, f"no steps in {LIMIT_S:g} s"
            time.sleep(0.2)

    def ranks(self) -> list[psutil.Process]:
        """The training processes, rank 0 first."""
        found = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                rank = process.environ().get("RANK")
            except psutil.Error:
                continue  # it has just ended
            if rank is not None:
                found.setdefault(int(rank), process)  # a rank's own children come after it
        return [found[rank] for rank in sorted(found)]

    def end(self) -> tuple[int, str]:
        """Exit code and output, once it has ended; nothing of it is left then."""
        printed, _ = self.process.communicate(timeout=LIMIT_S)
        left = [process for process in psutil.process_iter() if mentions(process, str(self.out))]
        assert not left, left
        return self.process.returncode, printed


def mentions(process: psutil.Process, text: str) -> bool:
    try:
        return any(text in part for part in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False  # it has just ended


def step_log(out: Path) -> list[dict[str, Any]]:
    log = out / "planner_steps.jsonl"
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.is_file() else []


def newest_step(out: Path) -> int:
    saved = whole_checkpoints(out)
    return int(saved[-1].name.removeprefix("checkpoint-")) if saved else 0


@contextmanager
def training(world: World, policy: Policy, out: Path, *more: str, **variables: str) -> Iterator[Run]:
    """GRPO on two ranks, one group of 8 split between them at each step, every step saved."""
    prompts = out.parent / "prompts.jsonl"
    rows = [{**row, "messages": row["messages"][:-1]} for row in world.rows("learnt.jsonl")]
    prompts.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    process = subprocess.Popen(
        ["bash", "run_grpo_planner.sh", "--max_steps", "500", "--eval_strategy", "no", "--max_length", "256"]
        + ["--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "1", "--save_steps", "1"]
        + ["--learning_rate", "1e-6"]  # what is shown here is that nothing is lost, not that something is learnt
        + ["--max_completion_length", str(COMPLETION), "--output_dir", str(out), *more],
        cwd=ROOT,
        env={
            **clean_environment(),
            **world.environment,
            "PLANNER_MODEL": str(policy.model),
            "PLANNER_SFT_ADAPTER": str(policy.adapter),
            "PLANNER_TRAIN_DATA": str(prompts),
            "PLANNER_WATCH_DATA": str(world.folder / "watch.jsonl"),
            "PLANNER_RETRY_SECONDS": str(BUDGET_S),
            "NPROC_PER_NODE": "2",
            **variables,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield Run(out, process)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(LIMIT_S)


@pytest.fixture
def store(world: World) -> Iterator["subprocess.Popen[str]"]:
    """A store of its own process; its first line is its URL."""
    server = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "qdrant_server.py"), "--store", world.environment["PLANNER_STORE_DIR"]],
        stdout=subprocess.PIPE,
        text=True,
    )
    yield server
    server.kill()
    server.wait()


def ctrl_c(run: Run) -> None:
    os.killpg(run.process.pid, signal.SIGINT)  # a terminal signals the group


def terminate(run: Run) -> None:
    run.process.terminate()


def kill_a_rank(run: Run) -> None:
    run.ranks()[1].kill()


# How a run is ended, the launcher's exit code, and what its last line says.
ENDS: list[tuple[Callable[[Run], None], int, str]] = [
    (terminate, 128 + signal.SIGTERM, "stopped by SIGTERM"),
    (ctrl_c, 128 + signal.SIGINT, "stopped by SIGINT"),
    (kill_a_rank, 1, "SIGKILL"),
]


def test_an_interrupted_run_goes_on(
    world: World, policy: Policy, store: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert store.stdout is not None
    url = store.stdout.readline().strip()
    starts: list[tuple[int, int]] = []  # of each launch: its first step, and the lines already in the step log

    def resume() -> list[str]:
        starts.append((newest_step(out), len(step_log(out))))
        saved = whole_checkpoints(out)
        return ["--resume_from_checkpoint", str(saved[-1])] if saved else []

    for end, code, said in ENDS:
        with training(world, policy, out, *resume()) as run:
            run.await_steps(STEPS, whole=1)
            end(run)
            got, printed = run.end()
        assert got == code, (end.__name__, printed[-3000:])
        assert said in printed.strip().splitlines()[-1], (end.__name__, printed[-3000:])
        check_checkpoint(out)

    with training(world, policy, out, *resume(), QDRANT_URL=url) as run:
        run.await_steps(STEPS, whole=1)
        store.kill()
        got, printed = run.end()
    assert got == 1, printed[-3000:]
    last = printed.strip().splitlines()[-1]
    assert "StoreError" in last and url in last, last
    check_checkpoint(out)

    goal = newest_step(out) + LAST_STEPS
    with training(world, policy, out, *resume(), "--max_steps", str(goal)) as run:
        got, printed = run.end()
    assert got == 0, printed[-3000:]
    assert newest_step(out) == goal
    check_steps(step_log(out), starts, goal)
    check_traces(out)


def check_checkpoint(out: Path) -> None:
    """The newest whole checkpoint holds what a resumed run reads."""
    newest = whole_checkpoints(out)[-1]
    assert load_file(newest / "adapter_model.safetensors")
    assert {"optimizer.pt", "scheduler.pt"} <= {path.name for path in newest.iterdir()}


def check_steps(log: list[dict[str, Any]], starts: list[tuple[int, int]], goal: int) -> None:
    """Every launch went on where its checkpoint stood, and parsed as much as the first."""
    ends = [lines for _, lines in starts[1:]] + [len(log)]
    launches = [log[lines:end] for (_, lines), end in zip(starts, ends, strict=True)]
    for (first, _), launch in zip(starts, launches, strict=True):
        assert [line["step"] for line in launch] == list(range(first, first + len(launch)))
    assert launches[-1][-1]["step"] == goal - 1
    failures = [sum(line["parse_failures"] for line in launch) / len(launch) for launch in launches]
    assert failures[0] < 0.5 and max(failures[1:]) < failures[0] + 0.3, failures


def check_traces(out: Path) -> None:
    """Nobody was scored 0 for the outage: every traced search was answered (the store is near to any text)."""
    for rank in (0, 1):
        lines = (out / f"reward_trace.rank{rank}.jsonl").read_text(encoding="ascii").splitlines()
        rows = [row for row in map(whole_row, lines) if row is not None]
        assert len(lines) - len(rows) <= 1, "SIGKILL may tear one line"
        searched = [row for row in rows if row["search"]]
        assert searched and all(row["titles"] for row in searched)


def whole_row(line: str) -> dict[str, Any] | None:
    try:
        row: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return row


def test_a_rank_that_raises_takes_the_other_down(world: World, policy: Policy, tmp_path: Path) -> None:
    """Rank 1 cannot write its trace: rank 0, which waits for its rows, must not wait for ever."""
    out = tmp_path / "run"
    (out / "reward_trace.rank1.jsonl").mkdir(parents=True)
    with training(world, policy, out) as run:
        got, printed = run.end()
    assert got == 1, printed[-3000:]
    assert "IsADirectoryError" in printed.strip().splitlines()[-1]
    assert step_log(out) == []
