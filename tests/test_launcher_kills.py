"""A launcher that is ended, by a signal or by kill -9, before its trainer is there and after: nothing of it is left."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.launch_world import CHECKOUT, clean_environment
from tests.test_supervise import ORPHAN, PATIENCE, await_end, await_file, is_gone, python, take_signals

GRPO, SERVER = "run_grpo_planner.sh", "run_planner_server.sh"

# Stands for python: the step named in HANG waits for ever, the other steps that would judge or write do nothing.
FAKE_PYTHON = f"""#!/bin/sh
if [ "$2" = "$HANG" ]; then
  [ -z "$DEAF" ] || trap '' TERM
  echo $$ >"$KILLS/step"
  exec sleep 600
fi
case "$2" in scripts.train.preflight | scripts.train.manifest | scripts.train.show_rows) exit 0 ;; esac
exec "{sys.executable}" "$@"
"""
# Stands for ms-swift's executable: leaves a process in a session of its own, as torchrun does, and waits.
FAKE_SWIFT = f"""#!{sys.executable}
import os, sys, time
sys.argv[1] = os.environ["KILLS"] + "/rank"
{ORPHAN}
time.sleep(600)
"""


@dataclass(frozen=True)
class Stage:
    """Stand-ins for python and swift in `folder`, and the launches that use them."""

    folder: Path

    def launch(self, script: str = GRPO, **variables: str) -> "subprocess.Popen[str]":
        out = ["--output_dir", str(self.folder / "run")] if script == GRPO else []
        return subprocess.Popen(
            ["bash", str(CHECKOUT / script), *out],
            env={
                **clean_environment(),
                "PLANNER_PYTHON": str(self.folder / "python"),
                "PLANNER_SFT_ADAPTER": "none",
                "CUDA_VISIBLE_DEVICES": "",
                "KILLS": str(self.folder),
                "HANG": "",
                "DEAF": "",
                **variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a terminal's foreground group
            preexec_fn=take_signals,  # bash cannot trap what was ignored when it started
        )

    def step(self) -> int:
        return int(await_file(self.folder / "step"))

    def trainer_was_started(self) -> bool:
        return (self.folder / "rank").exists()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    for name, text in (("python", FAKE_PYTHON), ("swift", FAKE_SWIFT)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    yield Stage(tmp_path)
    for name in ("step", "rank"):  # what a failed test leaves
        file = tmp_path / name
        if file.exists() and not is_gone(int(file.read_text())):
            os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("script", "step", "send", "number", "reason"),
    [
        (GRPO, "scripts.train.preflight", os.kill, signal.SIGTERM, "as a job scheduler sends it"),
        (GRPO, "scripts.train.preflight", os.kill, signal.SIGINT, "kill -INT"),
        (GRPO, "scripts.train.preflight", os.killpg, signal.SIGINT, "Ctrl-C: the terminal signals the group"),
        (GRPO, "scripts.train.preflight", os.kill, signal.SIGHUP, "the terminal was closed"),
        (GRPO, "scripts.train.swift_args", os.kill, signal.SIGTERM, "a step whose output is captured"),
        (GRPO, "scripts.train.manifest", os.kill, signal.SIGTERM, "the last step"),
        (SERVER, "scripts.online.planner_server", os.kill, signal.SIGTERM, "the planner server's own preflight"),
    ],
)
def test_a_signal_before_the_trainer_is_there(
    stage: Stage, script: str, step: str, send: Callable[[int, int], None], number: signal.Signals, reason: str
) -> None:
    run = stage.launch(script, HANG=step)
    waiting = stage.step()
    send(run.pid, number)
    printed, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 128 + number, (reason, printed)
    last = f"planner: the run ended with exit code {128 + number}: stopped by {number.name} before it began"
    assert printed.splitlines()[-1] == last, reason
    assert is_gone(waiting), reason
    assert not stage.trainer_was_started(), reason


def test_a_second_signal_kills_a_deaf_step(stage: Stage) -> None:
    run = stage.launch(HANG="scripts.train.preflight", DEAF="1")
    waiting = stage.step()
    deadline = time.monotonic() + PATIENCE
    while run.poll() is None:
        assert time.monotonic() < deadline
        run.send_signal(signal.SIGTERM)
        time.sleep(0.5)
    assert run.returncode == 143
    await_end(waiting)
    run.communicate(timeout=PATIENCE)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="without it the step goes on to its own end")
def test_kill_nine_before_the_trainer_is_there(stage: Stage) -> None:
    run = stage.launch(HANG="scripts.train.preflight")
    waiting = stage.step()
    run.kill()
    run.communicate(timeout=PATIENCE)
    await_end(waiting)
    assert not stage.trainer_was_started()


@pytest.mark.parametrize("send", [os.kill, os.killpg])  # the second: as `kill -9 %1` in a terminal
def test_kill_nine_on_the_launcher_of_a_trainer(stage: Stage, send: Callable[[int, int], None]) -> None:
    run = stage.launch()
    rank = int(await_file(stage.folder / "rank"))
    send(run.pid, signal.SIGKILL)
    run.communicate(timeout=PATIENCE)
    await_end(rank)
    log = (stage.folder / "run" / "train.log").read_text()
    assert "stopped by SIGKILL" in log.splitlines()[-1]


def test_a_captured_step_keeps_its_words(stage: Stage) -> None:
    """Spaces, quotes and several lines come through, and what fails fails."""
    source = f'. "{CHECKOUT}/scripts/train/launch_common.sh"; capture heard "$@"; printf "%s." "$heard"'
    for command, code, heard in (
        (python("print('a \"b\"  c\\n\\nd\\n')"), 0, 'a "b"  c\n\nd.'),
        (python("raise SystemExit(5)"), 5, ""),
    ):
        done = subprocess.run(
            ["bash", "-eu", "-c", source, "launcher", *command],
            env={**clean_environment(), "PLANNER_PYTHON": sys.executable},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (code, heard), done.stderr
