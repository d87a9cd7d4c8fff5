"""The demo's stage runner with real commands: done work is kept, failures say so, nothing is left running."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from commands import ROOT

from scripts.demo import stages
from scripts.demo.pretrained import PretrainedRun
from scripts.demo.stages import Stage, StageFailed, run_stage, stage_seconds
from scripts.demo.world import SeedRun, pinned_kernels


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stages run in the checkout and name their inputs relative to it."""
    monkeypatch.setattr(stages, "CHECKOUT", tmp_path)
    (tmp_path / "in").write_text("one")
    return tmp_path


def copy(folder: Path, name: str = "copy", then: str = "", **more: object) -> Stage:
    script = f"cp in out; echo ran >> runs; {then}"
    return Stage(name, ["bash", "-c", script], [folder / "in"], [folder / "out"], **more)  # type: ignore[arg-type]


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text().splitlines())


def test_a_finished_stage_is_kept_until_something_it_reads_changes(checkout: Path) -> None:
    stamps = checkout / "stamps"
    assert run_stage(copy(checkout), stamps) == run_stage(copy(checkout), stamps) == 0
    assert runs(checkout) == 1
    assert stage_seconds("copy", stamps) > 0
    (checkout / "in").write_text("two")
    run_stage(copy(checkout), stamps)
    assert runs(checkout) == 2, "an input changed"
    run_stage(copy(checkout, env={"PLANNER_PROMPT": "short"}), stamps)
    assert runs(checkout) == 3, "a variable changed"
    run_stage(copy(checkout, then=":"), stamps)
    assert runs(checkout) == 4, "the command changed"
    (checkout / "out").unlink()
    run_stage(copy(checkout, then=":"), stamps)
    assert runs(checkout) == 5, "its output is gone"


def test_a_failed_stage_names_its_code_and_runs_again(checkout: Path) -> None:
    with pytest.raises(StageFailed, match="ended with 3") as caught:
        run_stage(copy(checkout, then="exit 3"), checkout / "stamps")
    assert caught.value.code == 3
    with pytest.raises(StageFailed):
        run_stage(copy(checkout, then="exit 3"), checkout / "stamps")
    assert runs(checkout) == 2


def test_only_a_verdict_stage_may_end_with_1(checkout: Path) -> None:
    assert run_stage(copy(checkout, then="exit 1", verdict=True), checkout / "stamps") == 1
    assert run_stage(copy(checkout, then="exit 1", verdict=True), checkout / "stamps") == 1
    assert runs(checkout) == 1, "a bad verdict is an answer: it is kept"
    with pytest.raises(StageFailed):
        run_stage(copy(checkout, "other", then="exit 1"), checkout / "stamps")


def test_a_command_that_leaves_no_output_is_a_failure(checkout: Path) -> None:
    with pytest.raises(StageFailed, match="did not write"):
        run_stage(copy(checkout, then="rm out"), checkout / "stamps")


def test_a_half_finished_try_is_cleared(checkout: Path) -> None:
    (checkout / "old").mkdir()
    run_stage(copy(checkout, clear=[checkout / "old"]), checkout / "stamps")
    assert not (checkout / "old").exists()


def test_a_missing_input_is_named(checkout: Path) -> None:
    (checkout / "in").unlink()
    with pytest.raises(FileNotFoundError, match="stage copy reads"):
        run_stage(copy(checkout), checkout / "stamps")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_killed_runner_takes_its_stage_with_it(checkout: Path, number: signal.Signals) -> None:
    program = (
        "from pathlib import Path\n"
        "from scripts.demo.stages import Stage, end_children_with_me, run_stage\n"
        "end_children_with_me()\n"
        f"run_stage(Stage('sleep', ['bash', '-c', 'sleep 321 & echo $! > {checkout}/pid; wait'], [], []),"
        f" Path('{checkout}/stamps'))\n"
    )
    runner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not (checkout / "pid").exists() or not (checkout / "pid").read_text().strip():
        assert time.monotonic() < deadline and runner.poll() is None
        time.sleep(0.05)
    sleeper = psutil.Process(int((checkout / "pid").read_text()))
    os.kill(runner.pid, number)
    assert runner.wait(timeout=30) == 128 + number
    psutil.wait_procs([sleeper], timeout=10)
    assert not sleeper.is_running()


def demo_stages() -> list[Stage]:
    from scripts.demo.world import SeedRun, calibration_stage, data_stages

    run = SeedRun(7, Path("runs/demo-seed7"))
    evaluations = [run.eval_stage("sft", run.sft)]
    endings = [run.table_stage(["sft", "grpo"]), run.log_stage(), run.compare_stage(), run.report_stage()]
    return [*data_stages(), run.nano_stage(), *evaluations, *endings, calibration_stage()]


@pytest.mark.parametrize("stage", demo_stages(), ids=lambda stage: stage.name)
def test_the_demo_calls_its_scripts_with_flags_they_have(stage: Stage) -> None:
    """The launchers among the stages are dry-run in test_launchers.py."""
    script, flags = stage.command[1], [item for item in stage.command[2:] if item.startswith("--")]
    said = subprocess.run([sys.executable, script, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [flag for flag in flags if flag not in said.stdout] == []


@pytest.mark.parametrize(
    ("flags", "pinned", "reason"),
    [
        ("fpu avx avx2 avx512f", True, "a CPU with AVX2"),
        ("fpu avx", False, "torch would be killed by an instruction that the CPU lacks"),
        (None, False, "no Linux: nobody says"),
    ],
)
def test_kernels_are_pinned_where_the_cpu_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str | None, pinned: bool, reason: str
) -> None:
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t: {flags}\n")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert bool(found := pinned_kernels(tmp_path / "cpuinfo")) is pinned, reason
    assert found.get("OMP_NUM_THREADS", "2") == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert pinned_kernels(tmp_path / "cpuinfo").get("OMP_NUM_THREADS", "8") == "8", "the user's own count stands"


def test_the_nano_models_stages_have_them_and_torch_heeds_them(tmp_path: Path) -> None:
    pins = pinned_kernels()
    stage = SeedRun(42, tmp_path).sft_stage()
    assert pins.items() <= stage.env.items()
    assert not pins.keys() & PretrainedRun(42, tmp_path).sft_stage().env.keys()
    code = "import torch; print(torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **pins}, capture_output=True, text=True)
    assert not pins or done.stdout.split() == ["AVX2", pins["OMP_NUM_THREADS"]]
