"""Runs a pipeline's stages one after the other, each as the command a person would type, and skips what is done.

A stage is done when its stamp holds the sha256 of its command, its variables and its input files, and its outputs
exist; a changed input or flag runs it (and therefore what reads its outputs) again. A training that was broken off goes
on from its newest checkpoint where its stage says so.
"""

import ast
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import psutil

from scripts.files import write_atomically
from scripts.train.checkpoints import whole_checkpoints

CHECKOUT = Path(__file__).resolve().parent.parent.parent


class StageFailed(RuntimeError):
    """A stage's command ended non-zero; the message names stage, exit code and log."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Stage:
    """One command: `inputs` and `outputs` are files or folders, `env` is added to this process's environment.

    `clear` paths are removed before the command runs, so that a half-finished try leaves nothing behind. `resume` is
    the run folder of a training whose checkpoints hold all that swift goes on from: where a try with the same
    fingerprint left a whole one, nothing is cleared, and the command gets `--resume_from_checkpoint`.
    `verdict` stages may end with 1: the command worked and its answer is bad.
    """

    name: str
    command: Sequence[str]
    inputs: Sequence[Path]
    outputs: Sequence[Path]
    env: Mapping[str, str] = field(default_factory=dict)
    clear: Sequence[Path] = ()
    verdict: bool = False
    resume: Path | None = None


def fingerprint(stage: Stage) -> str:
    """sha256 over command, variables and the bytes of every input file (folders: their files, by name)."""
    digest = hashlib.sha256(json.dumps([list(stage.command), sorted(stage.env.items())]).encode())
    for item in stage.inputs:
        if not item.exists():
            raise FileNotFoundError(f"stage {stage.name} reads {item}, which is missing; an earlier one makes it")
        for file in sorted(p for p in item.rglob("*") if p.is_file()) if item.is_dir() else [item]:
            digest.update(str(file.relative_to(CHECKOUT)).encode() + file.read_bytes())
    return digest.hexdigest()


def code_of(script: Path) -> list[Path]:
    """The script and every module of the checkout that it imports, directly or not: a stage that it runs reads them.

    Imports are read, not run, wherever they stand in a file; they are absolute everywhere in the checkout.
    """
    found: set[Path] = set()
    unread = [script]
    while unread:
        file = unread.pop()
        if file in found:
            continue
        found.add(file)
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{one.name}" for one in node.names]  # a module of a package, or a name in one
            else:
                continue
            for name in names:
                parts = name.split(".")
                paths = [CHECKOUT.joinpath(*parts[: end + 1]) for end in range(len(parts))]
                unread += [
                    path for one in paths for path in (one.with_suffix(".py"), one / "__init__.py") if path.is_file()
                ]
    return sorted(found)


def run_stage(stage: Stage, stamps: Path) -> int:
    """Run `stage` unless its stamp says it is done; returns the exit code (0, or 1 from a verdict stage).

    The command's output goes to the terminal and to stamps/NAME.log. Raises StageFailed.
    """
    stamp, mark = stamps / f"{stage.name}.json", fingerprint(stage)
    if stamp.is_file() and all(path.exists() for path in stage.outputs):
        done = json.loads(stamp.read_text(encoding="utf-8"))
        if done["fingerprint"] == mark:
            print(f"== {stage.name}: done before ({done['seconds']:.0f} s), kept", flush=True)
            return int(done["code"])
    begun = stamps / f"{stage.name}.begun"
    checkpoint = None
    if stage.resume and begun.is_file() and begun.read_text(encoding="utf-8") == mark:
        checkpoint = next(reversed(whole_checkpoints(stage.resume)), None)
    if checkpoint:
        print(f"== {stage.name}: broken off before, goes on from {checkpoint}", flush=True)
        command = [*stage.command, "--resume_from_checkpoint", str(checkpoint)]
    else:
        command = list(stage.command)
        for path in stage.clear:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    write_atomically(begun, mark)
    print(f"== {stage.name}: {shlex.join(command)}", flush=True)
    started = time.monotonic()
    code = _tee(command, stage.env, stamps / f"{stage.name}.log", "ab" if checkpoint else "wb")
    if code != 0 and not (stage.verdict and code == 1):
        raise StageFailed(
            f"stage {stage.name} ended with {code}; its output is in {stamps / (stage.name + '.log')}. "
            "Run the same make command again to go on from here.",
            code,
        )
    missing = [str(path) for path in stage.outputs if not path.exists()]
    if missing:
        raise StageFailed(f"stage {stage.name} ended with {code} but did not write {', '.join(missing)}", 2)
    seconds = time.monotonic() - started
    write_atomically(stamp, json.dumps({"fingerprint": mark, "seconds": seconds, "code": code}) + "\n")
    begun.unlink()
    return code


def stage_seconds(name: str, stamps: Path) -> float:
    """How long the finished stage `name` took, in seconds."""
    return float(json.loads((stamps / f"{name}.json").read_text(encoding="utf-8"))["seconds"])


def end_children_with_me() -> None:
    """From now on SIGTERM and SIGHUP end everything this process started, however deep, and then the process.

    Stages run in sessions of their own, so without this a killed demo would leave a training run behind.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGTERM)
        sys.exit(128 + number)

    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, end)


def _tee(command: Sequence[str], variables: Mapping[str, str], log_file: Path, mode: str) -> int:
    """Run the command in its own process group, copying its output; Ctrl-C ends the whole group."""
    env = {**os.environ, **variables, "PYTHONUNBUFFERED": "1"}
    with log_file.open(mode) as log:
        process = subprocess.Popen(
            list(command),
            cwd=CHECKOUT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            while chunk := process.stdout.read1(65536):  # type: ignore[attr-defined]
                sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()
                log.write(chunk)
            return process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
