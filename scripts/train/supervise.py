"""Run commands one after the other so that all of a run's processes end together.

Output goes to the terminal and to a log file. SIGTERM, SIGINT and SIGHUP to this process end the command: SIGTERM to
its process group (torchrun passes it on to the ranks), and after a grace SIGKILL to whatever is left of its
descendants. However a command ends, no descendant outlives it. The exit code is the command's own (128 + the signal
where a signal ended it), and after a failure the last line says what it was.

Nothing can handle kill -9, so there are two processes: the one that was started passes signals on to a second, which
runs the commands and notices when the first is killed; the first ends what a killed second one leaves.
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
CANNOT_START = 127  # as a shell says
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


def cause_of_failure(log_tail: str, killed: bool = False) -> str:
    """What best explains a failed run, as one line; empty if the text holds nothing that does.

    The last error of the store or the encoder, else a rank that was killed (the others then lose their connection to
    it), else that the run was `killed`, as its exit code says, else the last exception that neither reports such a lost
    connection nor is torchrun's own summary.

    >>> cause_of_failure("[rank1]: reward.StoreError: no answer\\n[rank0]: RuntimeError: peer closed\\n")
    'reward.StoreError: no answer'
    """
    found = [match for line in re.split(r"[\r\n]+", log_tail) if (match := EXCEPTION_LINE.match(line.strip()))]

    def named(names: Sequence[str]) -> list[re.Match[str]]:
        return [match for match in found if match["name"].rpartition(".")[2] in names]

    ours, rank = named(OUR_ERRORS), KILLED_RANK.search(log_tail)
    if rank and not ours:
        return f"rank {rank['rank']} was {KILLED}"
    if killed and not ours:
        return KILLED  # an exception that the run logged and survived did not end it
    others = [match for match in found if match not in named(REPORTS_OF_ERRORS)]
    chosen = ours or [match for match in others if not LOST_PEER.search(match.string)] or others
    return f"{chosen[-1]['name']}{chosen[-1]['text'] or ''}" if chosen else ""


def write_all(descriptor: int, data: bytes) -> None:
    """`os.write` until all of `data` is out."""
    while data:
        data = data[os.write(descriptor, data) :]


def emit(log: int, data: bytes) -> None:
    """Print `data` and append it to the log. Unbuffered: a signal handler may interrupt it.

    Either may fail (the terminal or `| head` is gone, the disk is full): the run goes on, and the other has it all.
    """
    for descriptor in (log, sys.stdout.fileno()):
        try:
            write_all(descriptor, data)
        except OSError:
            pass


class Supervisor:
    """Runs one command at a time and ends it when told to.

    Args:
        log: file descriptor, open for appending; receives everything the commands print.
    """

    def __init__(self, log: int):
        self.log = log
        self.received: list[int] = []  # signals, in order

    def handle(self, number: int, _frame: FrameType | None = None) -> None:
        """Signal handler: only takes note, since it may come at any point, even while a command is being started.

        The first signal asks the command to end, a second one kills it.
        """
        self.received.append(number)
        emit(self.log, f"\nplanner: {signal.Signals(number).name} received, ending all processes of the run\n".encode())

    def _copy_output(self, pipe: BinaryIO) -> None:
        while chunk := os.read(pipe.fileno(), 65536):
            emit(self.log, chunk)

    def run(self, command: Sequence[str]) -> int:
        """Run `command` to its end, or to ours; returns the exit code (128 + n after signal n)."""
        if self.received:
            return 128 + self.received[-1]
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, which gets one clean SIGTERM
            )
        except OSError as error:
            emit(self.log, f"planner: cannot start {command[0]}: {error.strerror}\n".encode())
            return CANNOT_START
        with child:
            assert child.stdout is not None
            copier = threading.Thread(target=self._copy_output, args=(child.stdout,), daemon=True)
            copier.start()
            code = self._wait(child)
            end_descendants(LEFTOVER_SECONDS)
            copier.join(LEFTOVER_SECONDS)
        if self.received:
            return 128 + self.received[-1]
        return code if code >= 0 else 128 - code

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        deadline: float | None = None
        while True:
            try:
                return child.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                if self.received and deadline is None:
                    deadline = time.monotonic() + GRACE_SECONDS
                    signal_group(child.pid, signal.SIGTERM)
                elif deadline is not None and (len(self.received) > 1 or time.monotonic() > deadline):
                    end_descendants(0.0)


def signal_group(leader: int, number: int) -> None:
    """Send a signal to the process group of `leader`, if it still exists."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        pass  # it has just ended by itself; macOS says the second


def end_descendants(grace_s: float) -> None:
    """SIGTERM to all descendants of this process, SIGKILL to those left after `grace_s` seconds (0: at once).

    They are listed anew until none is left: one list lacks what is forked, or loses its parent, while it is made.
    """
    kill_at = time.monotonic() + grace_s
    asked: set[int] = set()
    while living := psutil.Process().children(recursive=True):
        late = time.monotonic() - kill_at
        if late > LEFTOVER_SECONDS:
            return  # the kernel holds them, say in a driver
        for process in living:
            if late >= 0 or process.pid not in asked:
                _send(process, signal.SIGKILL if late >= 0 else signal.SIGTERM)
        asked.update(process.pid for process in living)
        psutil.wait_procs(living, timeout=0.1)


def _send(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        pass  # it has just ended by itself


def say_how_it_ended(log: int, code: int, cause: str, log_path: Path) -> None:
    """The last line of a failed run."""
    emit(log, f"planner: the run ended with exit code {code}: {cause or 'see above'} (log: {log_path})\n".encode())


def run_all(commands: Sequence[Sequence[str]], supervisor: Supervisor, log_path: Path) -> int:
    """Run the commands in order, stop at the first failure, and say on the last line how a failed run ended."""
    start = os.path.getsize(log_path)
    code = 0
    for command in commands:
        code = supervisor.run(command)
        if code != 0:
            break
    if code != 0:
        with log_path.open("rb") as written:
            written.seek(max(start, os.path.getsize(log_path) - TAIL_BYTES))
            tail = written.read(TAIL_BYTES).decode("utf-8", errors="replace")
        if supervisor.received:
            cause = f"stopped by {signal.Signals(supervisor.received[-1]).name}"
        else:
            cause = cause_of_failure(tail, killed=code in KILLED_CODES)
        say_how_it_ended(supervisor.log, code, cause, log_path)
    return code


def supervise(commands: Sequence[Sequence[str]], log_path: Path) -> int:
    """`run_all` in a process between this one and the commands, so that each can end the run if the other is killed."""
    # nohup: closing the terminal shall not end the run. A background job's ignored SIGINT, though, is taken up again.
    spared = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else set()
    ending = [number for number in ENDING_SIGNALS if number not in spared]
    # Blocked, they wait for `sigwait`, or for the second process's handlers: none is lost, whenever it comes.
    signal.pthread_sigmask(signal.SIG_BLOCK, [*ending, signal.SIGCHLD])
    signal.signal(signal.SIGCHLD, lambda *_: None)  # BSD and macOS drop it otherwise, even when it is blocked
    adopt_orphans()
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    alive, held_open = os.pipe()
    second = os.fork()
    if second == 0:
        os.close(held_open)  # the first process alone holds it: its end is the end of the pipe
        os.setsid()  # neither Ctrl-C nor a kill -9 to the first one's group reaches this process
        adopt_orphans()
        supervisor = Supervisor(log)
        for number in ending:
            signal.signal(number, supervisor.handle)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [*ending, signal.SIGCHLD])
        threading.Thread(target=_await_end, args=(alive, supervisor), daemon=True).start()
        return run_all(commands, supervisor, log_path)
    os.close(alive)
    code = _pass_signals_on(second, ending)
    if code < 0:
        end_descendants(LEFTOVER_SECONDS)
        killer, code = signal.Signals(-code).name, 128 - code
        say_how_it_ended(log, code, f"the process that supervised it was killed by {killer}", log_path)
    return code


def _await_end(alive: int, supervisor: Supervisor) -> None:
    """End the run once nobody holds the other end of the pipe `alive`."""
    os.read(alive, 1)
    supervisor.handle(signal.SIGKILL)  # the likeliest by far of what ends the first process before this one


def _pass_signals_on(child: int, ending: Sequence[int]) -> int:
    """Send what this process receives to `child` until it ends; its exit code, or -n if signal n killed it."""
    while True:
        number = signal.sigwait([*ending, signal.SIGCHLD])
        if number != signal.SIGCHLD:
            os.kill(child, number)  # if it has ended, it has not been waited for: the number is still its own
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)


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
    return supervise(commands, args.log)


if __name__ == "__main__":
    sys.exit(main())
