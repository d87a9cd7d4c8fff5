"""Run commands one after the other so that all of a run's processes end together.

Output goes to the terminal and to a log file. SIGTERM, SIGINT and SIGHUP to this process end the command: SIGTERM to
its process group (torchrun passes it on to the ranks), and after a grace SIGKILL to whatever is left of its
descendants. However a command ends, no descendant outlives it. The exit code is the command's own (128 + the signal
where a signal ended it), and after a failure the last line says what it was.
"""

import argparse
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import BinaryIO

import psutil

NEXT = "::"  # between commands on the command line
GRACE_SECONDS = 40.0  # torchrun itself gives its ranks 30 s between SIGTERM and SIGKILL
LEFTOVER_SECONDS = 5.0  # for descendants that outlived their command
TAIL_BYTES = 400_000  # of the log are searched for the cause of a failure
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
# "[rank1]: swift_plugin.stores.StoreError: Qdrant at ... does not answer"
EXCEPTION_LINE = re.compile(
    r"^(?:\[rank\d+\]:\s*)?(?P<name>(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit))(?P<text>:.*)?$"
)
OUR_ERRORS = ("StoreError", "EncoderError")  # when one rank raises these, the other ranks' errors follow from it
KILLED = "killed by SIGKILL, most often the kernel out of memory"
KILLED_CODES = (128 + signal.SIGKILL, 256 - signal.SIGKILL)  # the second: swift exits with its child's -9
KILLED_RANK = re.compile(r"^\s*rank\s*: (?P<rank>\d+) .*\n\s*exitcode\s*: -9 ", re.MULTILINE)  # torchrun's summary
# What the other ranks say when one has raised: gloo, then NCCL.
LOST_PEER = re.compile(r"Connection (?:closed|reset) by peer|Dist(?:Backend|Network)Error")
REPORTS_OF_ERRORS = ("ChildFailedError", "CalledProcessError", "SystemExit")  # torchrun's summary, not the cause


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent dies (Linux), so that they can be ended too.

    torchrun puts every rank into a session of its own: without this, ranks outlive a killed torchrun.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def cause_of_failure(log_tail: str) -> str:
    """What best explains a failed run, as one line; empty if the text holds nothing that does.

    The last error of the store or the encoder, else a rank that was killed (the others then lose their connection to
    it), else the last exception that neither reports such a lost connection nor is torchrun's own summary.

    >>> cause_of_failure("[rank1]: reward.StoreError: no answer\\n[rank0]: RuntimeError: peer closed\\n")
    'reward.StoreError: no answer'
    """
    found = [match for line in re.split(r"[\r\n]+", log_tail) if (match := EXCEPTION_LINE.match(line.strip()))]

    def named(names: Sequence[str]) -> list[re.Match[str]]:
        return [match for match in found if match["name"].rpartition(".")[2] in names]

    ours, killed = named(OUR_ERRORS), KILLED_RANK.search(log_tail)
    if killed and not ours:
        return f"rank {killed['rank']} was {KILLED}"
    others = [match for match in found if match not in named(REPORTS_OF_ERRORS)]
    chosen = ours or [match for match in others if not LOST_PEER.search(match.string)] or others
    return f"{chosen[-1]['name']}{chosen[-1]['text'] or ''}" if chosen else ""


def write_all(descriptor: int, data: bytes) -> None:
    """`os.write` until all of `data` is out."""
    while data:
        data = data[os.write(descriptor, data) :]


class Supervisor:
    """Runs one command at a time and ends it when told to.

    Args:
        log: file descriptor, open for appending; receives everything the commands print.
    """

    def __init__(self, log: int):
        self.log = log
        self.terminal = sys.stdout.fileno()
        self.child: subprocess.Popen[bytes] | None = None
        self.signalled: int | None = None

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Signal handler: the first signal asks the command to end, a second one kills it."""
        self.emit(f"\nplanner: {signal.Signals(number).name} received, ending all processes of the run\n".encode())
        if self.signalled is not None:
            end_descendants(0.0)
        self.signalled = number
        if self.child is not None:
            signal_group(self.child.pid, signal.SIGTERM)

    def emit(self, data: bytes) -> None:
        """Print `data` and append it to the log. Unbuffered: the signal handler may interrupt it."""
        write_all(self.log, data)
        try:
            write_all(self.terminal, data)
        except OSError:
            pass  # the terminal or `| head` is gone; the run goes on and the log holds everything

    def _copy_output(self, pipe: BinaryIO) -> None:
        while chunk := os.read(pipe.fileno(), 65536):
            self.emit(chunk)

    def run(self, command: Sequence[str]) -> int:
        """Run `command` to its end, or to ours; returns the exit code (128 + n after signal n)."""
        if self.signalled is not None:
            return 128 + self.signalled
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes on one clean SIGTERM
        ) as self.child:
            assert self.child.stdout is not None
            copier = threading.Thread(target=self._copy_output, args=(self.child.stdout,), daemon=True)
            copier.start()
            code = self._wait(self.child)
            end_descendants(LEFTOVER_SECONDS)
            copier.join(LEFTOVER_SECONDS)
        self.child = None
        if self.signalled is not None:
            return 128 + self.signalled
        return code if code >= 0 else 128 - code

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        deadline: float | None = None
        while True:
            try:
                return child.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                if self.signalled is not None and deadline is None:
                    deadline = time.monotonic() + GRACE_SECONDS
                if deadline is not None and time.monotonic() > deadline:
                    end_descendants(0.0)


def signal_group(leader: int, number: int) -> None:
    """Send a signal to the process group of `leader`, if it still exists."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        pass  # it has just ended by itself


def end_descendants(grace_s: float) -> None:
    """SIGTERM to all descendants of this process, SIGKILL to those left after `grace_s` seconds (0: at once)."""
    living = psutil.Process().children(recursive=True)
    if grace_s > 0:
        for process in living:
            _send(process, signal.SIGTERM)
        _, living = psutil.wait_procs(living, timeout=grace_s)
    for process in living:
        _send(process, signal.SIGKILL)
    psutil.wait_procs(living, timeout=LEFTOVER_SECONDS)


def _send(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        pass  # it has just ended by itself


def run_all(commands: Sequence[Sequence[str]], log_path: Path) -> int:
    """Run the commands in order, stop at the first failure, and say on the last line how a failed run ended."""
    adopt_orphans()
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab", buffering=0) as log:
        start = log.tell()
        supervisor = Supervisor(log.fileno())
        for number in ENDING_SIGNALS:
            signal.signal(number, supervisor.handle)
        code = 0
        for command in commands:
            code = supervisor.run(command)
            if code != 0:
                break
        if code != 0:
            with log_path.open("rb") as written:
                written.seek(max(start, os.path.getsize(log_path) - TAIL_BYTES))
                cause = cause_of_failure(written.read().decode("utf-8", errors="replace"))
            if supervisor.signalled is not None:
                cause = f"stopped by {signal.Signals(supervisor.signalled).name}"
            elif code in KILLED_CODES and not cause:
                cause = KILLED
            supervisor.emit(
                f"planner: the run ended with exit code {code}: {cause or 'see above'} (log: {log_path})\n".encode()
            )
    return code


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python -m scripts.train.supervise --log run/train.log -- echo first :: sh -c 'exit 3'",
    )
    parser.add_argument("--log", type=Path, required=True, help="file the output is appended to")
    parser.add_argument("commands", nargs=argparse.REMAINDER, help=f"-- then the commands, {NEXT} between them")
    args = parser.parse_args(argv)
    commands: list[list[str]] = [[]]
    for token in args.commands[1:] if args.commands[:1] == ["--"] else args.commands:
        if token == NEXT:
            commands.append([])
        else:
            commands[-1].append(token)
    if not all(commands):
        parser.error("an empty command")
    return run_all(commands, args.log)


if __name__ == "__main__":
    sys.exit(main())
