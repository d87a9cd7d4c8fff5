"""All processes of a run end together, the exit code survives, and the last line says what happened."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from scripts.train.supervise import GRACE_SECONDS, cause_of_failure
from tests.launch_world import CHECKOUT

PATIENCE = 60.0  # seconds until a step of these tests counts as hung; they take a second or two

# Starts a process that shares neither session nor process group with it, as torchrun starts its ranks.
ORPHAN = (
    "import subprocess, sys, pathlib; "
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True); "
    "pathlib.Path(sys.argv[1]).write_text(str(child.pid)); "
)
IGNORES_SIGTERM = (
    "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "pathlib.Path(sys.argv[1]).write_text('up'); time.sleep(600)"
)


SUPERVISE = ("-m", "scripts.train.supervise")


def supervise(
    log: Path, *commands: list[str], program: Sequence[str] = SUPERVISE, hangup: signal.Handlers = signal.SIG_DFL
) -> "subprocess.Popen[str]":
    line = [sys.executable, *program, "--log", str(log), "--", *commands[0]]
    for command in commands[1:]:
        line += ["::", *command]
    return subprocess.Popen(
        line,
        cwd=CHECKOUT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: take_signals(hangup),
    )


def take_signals(hangup: signal.Handlers = signal.SIG_DFL) -> None:
    """As in a terminal, however the tests were started: nohup ignores SIGHUP, `&` in a script SIGINT and SIGQUIT."""
    signal.signal(signal.SIGHUP, hangup)
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def await_file(path: Path) -> str:
    deadline = time.monotonic() + PATIENCE
    while not (path.is_file() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.05)
    return path.read_text()


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    ("commands", "code", "said", "reason"),
    [
        ([python("print('a')"), python("print('b')")], 0, ["a", "b"], "one after the other"),
        ([python("raise SystemExit(3)"), python("print('b')")], 3, ["exit code 3"], "the first failure ends it"),
        (
            [python("print('a')"), python("raise SystemExit(7)")],
            7,
            ["a", "exit code 7"],
            "the code is the command's own",
        ),
        (
            [python("import os; os.kill(os.getpid(), 9)")],
            137,
            ["exit code 137", "out of memory"],
            "a signal is 128 + n",
        ),
        (
            [python("raise SystemExit(-9)")],
            247,
            ["exit code 247", "out of memory"],
            "how swift passes on that its one process was killed",
        ),
        (
            [python("import os; print('ValueError: harmless', flush=True); os.kill(os.getpid(), 9)")],
            137,
            ["exit code 137", "out of memory"],
            "what it logged before did not kill it",
        ),
        ([["/no/such/swift"]], 127, ["cannot start /no/such/swift", "exit code 127"], "no traceback of ours"),
        ([python("raise KeyError('golden')")], 1, ["exit code 1: KeyError: 'golden'"], "the cause is on the last line"),
    ],
)
def test_exit_codes_survive(tmp_path: Path, commands: list[list[str]], code: int, said: list[str], reason: str) -> None:
    log = tmp_path / "run" / "train.log"
    run = supervise(log, *commands)
    printed, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == code, reason
    assert log.read_text() == printed, "the log holds what the terminal saw"
    for text in said:
        assert text in printed, reason
    if code:
        assert printed.splitlines()[-1].startswith("planner: the run ended with exit code"), reason
        assert "b" not in printed.splitlines()


def test_a_second_run_appends_to_the_log(tmp_path: Path) -> None:
    for _ in range(2):
        assert supervise(tmp_path / "log", python("print('once')")).wait(PATIENCE) == 0
    assert (tmp_path / "log").read_text() == "once\nonce\n"


def test_no_process_outlives_its_command(tmp_path: Path) -> None:
    run = supervise(tmp_path / "log", python(ORPHAN, str(tmp_path / "pid")))
    run.communicate(timeout=PATIENCE)
    assert run.returncode == 0
    assert is_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_ends_everything(tmp_path: Path, number: int, code: int) -> None:
    second = python("open('/dev/null'); print('never')")
    run = supervise(tmp_path / "log", python(ORPHAN + "import time; time.sleep(600)", str(tmp_path / "pid")), second)
    orphan = int(await_file(tmp_path / "pid"))
    run.send_signal(number)
    printed, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == code
    assert is_gone(orphan)
    assert "never" not in printed
    assert f"stopped by {signal.Signals(number).name}" in printed.splitlines()[-1]


def test_a_second_signal_kills_what_does_not_listen(tmp_path: Path) -> None:
    run = supervise(tmp_path / "log", python(IGNORES_SIGTERM, str(tmp_path / "up")))
    await_file(tmp_path / "up")
    run.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert run.poll() is None, "the first signal leaves it its grace"
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=PATIENCE)
    assert run.returncode == 143


def await_end(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_gone(pid):
        assert time.monotonic() < deadline, f"{pid} lives on"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGQUIT])
def test_a_killed_supervisor_leaves_nothing(tmp_path: Path, number: int) -> None:
    run = supervise(tmp_path / "log", python(ORPHAN + "import time; time.sleep(600)", str(tmp_path / "pid")))
    orphan = int(await_file(tmp_path / "pid"))
    family = [orphan, *(child.pid for child in psutil.Process(run.pid).children(recursive=True))]
    run.send_signal(number)
    run.communicate(timeout=PATIENCE)
    assert run.returncode == -number
    for pid in family:
        await_end(pid)
    assert "stopped by SIGKILL" in (tmp_path / "log").read_text().splitlines()[-1]


def test_a_killed_second_process_leaves_nothing(tmp_path: Path) -> None:
    """The one between the supervisor and the commands."""
    run = supervise(tmp_path / "log", python(ORPHAN + "import time; time.sleep(600)", str(tmp_path / "pid")))
    orphan = int(await_file(tmp_path / "pid"))
    (second,) = psutil.Process(run.pid).children()
    family = [orphan, *(child.pid for child in second.children(recursive=True))]
    second.kill()
    printed, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 137
    assert all(is_gone(pid) for pid in family)
    assert "exit code 137: the process that supervised it was killed by SIGKILL" in printed.splitlines()[-1]


TOLD_WHILE_STARTING = """
import os, signal, subprocess, sys
from scripts.train import supervise
start = subprocess.Popen
def start_and_be_told(*arguments, **options):
    child = start(*arguments, **options)
    os.kill(os.getpid(), signal.SIGTERM)
    return child
supervise.subprocess.Popen = start_and_be_told
sys.exit(supervise.main(sys.argv[1:]))
"""


def test_a_signal_while_the_command_is_being_started_is_passed_on(tmp_path: Path) -> None:
    run = supervise(tmp_path / "log", ["sleep", "600"], program=("-c", TOLD_WHILE_STARTING))
    run.communicate(timeout=GRACE_SECONDS / 2)  # after GRACE_SECONDS it would have been killed
    assert run.returncode == 143


TOLD_BETWEEN_COMMANDS = """
import os, signal, sys
from scripts.train import supervise
run = supervise.Supervisor.run
def be_told_and_run(self, command):
    if command[0] != "true":
        os.kill(os.getpid(), signal.SIGTERM)
    return run(self, command)
supervise.Supervisor.run = be_told_and_run
sys.exit(supervise.main(sys.argv[1:]))
"""


def test_after_a_signal_no_further_command_is_started(tmp_path: Path) -> None:
    started = python("import pathlib, sys; pathlib.Path(sys.argv[1]).touch()", str(tmp_path / "started"))
    run = supervise(tmp_path / "log", ["true"], started, program=("-c", TOLD_BETWEEN_COMMANDS))
    printed, _ = run.communicate(timeout=PATIENCE)
    assert (run.returncode, "stopped by SIGTERM" in printed) == (143, True)
    assert not (tmp_path / "started").exists()


SHORT_GRACE = """
import sys
from scripts.train import supervise
supervise.GRACE_SECONDS = 0.5
sys.exit(supervise.main(sys.argv[1:]))
"""


def test_after_the_grace_what_does_not_listen_is_killed(tmp_path: Path) -> None:
    deaf = python(IGNORES_SIGTERM, str(tmp_path / "up"))
    run = supervise(tmp_path / "log", deaf, program=("-c", SHORT_GRACE))
    await_file(tmp_path / "up")
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=PATIENCE)
    assert run.returncode == 143


# In the group of a leader that ignores SIGTERM: only a signal to the group reaches it.
NOTES_SIGTERM = (
    "import pathlib, signal, sys, time; "
    "signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path(sys.argv[2]).write_text('asked'), sys.exit())); "
    "pathlib.Path(sys.argv[1]).write_text('up'); time.sleep(600)"
)


def test_the_whole_group_is_asked_to_end(tmp_path: Path) -> None:
    leader = (
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); subprocess.run(sys.argv[1:])"
    )
    member = python(NOTES_SIGTERM, str(tmp_path / "up"), str(tmp_path / "asked"))
    run = supervise(tmp_path / "log", python(leader, *member))
    await_file(tmp_path / "up")
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=GRACE_SECONDS / 2)  # the leader ends with its member, not by the SIGKILL after the grace
    assert run.returncode == 143
    assert (tmp_path / "asked").read_text() == "asked"


def test_nohup_spares_the_run_a_closed_terminal(tmp_path: Path) -> None:
    wait = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)\nprint('done')"
    up = python("import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('up')", str(tmp_path / "up"))
    run = supervise(tmp_path / "log", up, python(wait, str(tmp_path / "go")), hangup=signal.SIG_IGN)
    await_file(tmp_path / "up")
    run.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    (tmp_path / "go").touch()
    printed, _ = run.communicate(timeout=PATIENCE)
    assert (run.returncode, printed) == (0, "done\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
def test_a_full_disk_neither_blocks_the_run_nor_its_end(tmp_path: Path) -> None:
    """More than a pipe holds goes to the terminal, and a signal, whose line cannot be logged, still ends the run."""
    code = (
        "import pathlib, sys, time; print('x' * 200_000); pathlib.Path(sys.argv[1]).write_text('up'); time.sleep(600)"
    )
    run = supervise(Path("/dev/full"), python(code, str(tmp_path / "up")))
    assert run.stdout is not None
    assert run.stdout.readline() == "x" * 200_000 + "\n"
    await_file(tmp_path / "up")
    run.send_signal(signal.SIGTERM)
    printed, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 143
    assert "stopped by SIGTERM" in printed.splitlines()[-1]


LEAVES_ANOTHER = """
import pathlib, signal, subprocess, sys, time
def leave(*_):
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    pathlib.Path(sys.argv[1]).write_text(str(child.pid))
    sys.exit()
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
time.sleep(600)
"""


def test_what_is_forked_at_the_end_ends_too(tmp_path: Path) -> None:
    start = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], stdout=-1)\n"
    start += "p.stdout.readline()"
    run = supervise(tmp_path / "log", python(start, LEAVES_ANOTHER, str(tmp_path / "pid")))
    run.communicate(timeout=PATIENCE)
    assert run.returncode == 0
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_a_closed_terminal_does_not_end_the_run(tmp_path: Path) -> None:
    code = "import sys, time\nfor i in range(20): print('line', i, flush=True); time.sleep(0.02)"
    run = supervise(tmp_path / "log", python(code))
    assert run.stdout is not None
    run.stdout.close()
    assert run.wait(PATIENCE) == 0
    assert "line 19" in (tmp_path / "log").read_text()


RANKS = """
import os, time
if os.environ["RANK"] == "1":
    raise RuntimeError("the second rank has had enough")
time.sleep(600)
"""


def test_a_rank_that_raises_takes_the_others_down(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANKS)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "2",
        "--master_port",
        "0",
        str(script),
    ]
    run = supervise(tmp_path / "log", command)
    printed, _ = run.communicate(timeout=3 * PATIENCE)
    assert run.returncode == 1, printed
    assert "RuntimeError: the second rank has had enough" in printed.splitlines()[-1]
    left = [p for p in psutil.process_iter(["cmdline"]) if str(script) in (p.info["cmdline"] or [])]
    assert not left


@pytest.mark.parametrize(
    ("tail", "cause", "reason"),
    [
        ("", "", "nothing was said"),
        ("loss 0.3\nall good\n", "", "no exception"),
        ("Traceback\n  File x\nValueError: no column text\n", "ValueError: no column text", "a plain traceback"),
        ("[rank1]: KeyError: 'a'\n", "KeyError: 'a'", "torch's prefix goes"),
        (
            "a.b.StoreError: down\n[rank0]: RuntimeError: peer closed\n",
            "a.b.StoreError: down",
            "the others follow from it",
        ),
        (
            "[rank0]: swift_plugin.encoders.EncoderError: x\nOSError: y\n",
            "swift_plugin.encoders.EncoderError: x",
            "so too",
        ),
        (
            "ValueError: x\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n",
            "ValueError: x",
            "summary",
        ),
        (
            "[rank1]: OSError: disk full\n[rank0]: RuntimeError: [pair.cc:553] Connection closed by peer\n",
            "OSError: disk full",
            "gloo's error follows from it",
        ),
        (
            "[rank1]: OSError: disk full\n[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:3\n",
            "OSError: disk full",
            "NCCL's too",
        ),
        (
            "RuntimeError: [pair.cc:553] Connection closed by peer\n",
            "RuntimeError: [pair.cc:553] Connection closed by peer",
            "better than nothing, as where another node's rank raised",
        ),
        (
            "[rank0]: RuntimeError: peer closed\n[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 7)\n",
            "rank 1 was killed by SIGKILL, most often the kernel out of memory",
            "the others follow from it",
        ),
        (
            "StoreError: down\n[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 7)\n",
            "StoreError: down",
            "a rank that hung after it",
        ),
        (
            "ValueError: x\n[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 7)\n",
            "ValueError: x",
            "a rank that raised",
        ),
        ("Train: 5%|\rValueError: x\n", "ValueError: x", "behind a progress bar"),
        ("KeyboardInterrupt\n", "KeyboardInterrupt", "without a text"),
        ("the word Error: inside a line\n", "", "prose is no exception"),
    ],
)
def test_the_cause_is_found(tail: str, cause: str, reason: str) -> None:
    assert cause_of_failure(tail) == cause, reason


def test_an_empty_command_is_wrong_use() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.train.supervise", "--log", os.devnull, "--", "true", "::"],
        cwd=CHECKOUT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "an empty command" in done.stderr
