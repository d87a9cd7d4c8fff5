"""Reading GRPO runs as they really come, and the statistics on them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpo_runs import PLUGIN_LINE, rows, trace_line, write_jsonl, write_run

from scripts.eval.grpo_log import GrpoRun, NoRun, Series, find_runs, read_run
from scripts.eval.grpo_segments import change_point, segments, trend
from scripts.eval.summary import holm


def read(folder: Path) -> GrpoRun:
    run = read_run(folder / "logging.jsonl")
    assert run is not None
    return run


def series(values: Any) -> Series:
    numbers = np.asarray(values, dtype=float)
    return Series(np.arange(1, len(numbers) + 1), numbers)


def test_a_resumed_run_is_one_run_and_the_later_pass_wins(tmp_path: Path) -> None:
    first, second = rows(12), rows(12, reward=0.1)
    evaluations = [{"eval_reward": 0.5, "global_step/max_steps": f"{step}/12"} for step in (8, 10)]
    run = read(write_run(tmp_path, first[:8] + evaluations[:1] + first[8:11] + evaluations[1:] + second[8:10]))
    assert [step.step for step in run.steps] == list(range(1, 11))  # 11 belonged to the pass that was given up
    assert run.series("reward").values[-1] == pytest.approx(0.1, rel=0.1)
    assert list(run.eval_series("reward").steps) == [8]  # the evaluation at 10 was of the pass given up
    assert run.oddities.replaced == 4


def test_numbers_as_strings_nan_and_torn_lines(tmp_path: Path) -> None:
    lines = rows(12)
    lines[0] = {**lines[0], "reward": "0.25", "elapsed_time": "2m 13s"}
    lines[1] = {**lines[1], "reward": "nan"}
    lines[2] = {**lines[2], "kl": float("inf"), "loss": float("nan")}
    folder = write_run(tmp_path, lines)
    with (folder / "logging.jsonl").open("a") as log:
        log.write('{"loss": 0.1, "gr' + json.dumps({**rows(13)[12], "reward": 0.9}) + "\n" + '{"loss": 0.0, "rew')
    run = read(folder)
    assert len(run.steps) == 13  # the row behind the tear is whole
    assert run.series("reward").values[0] == 0.25 and run.series("reward").values[-1] == 0.9
    assert list(run.series("reward").steps) == [1, *range(3, 14)]
    assert "elapsed_time" not in run.steps[0].metrics
    assert run.oddities.torn == 2
    assert run.oddities.left_out == {"reward": 1, "kl": 1, "loss": 1}


def test_a_final_summary_is_no_step(tmp_path: Path) -> None:
    summary = [{"train_runtime": 3.0, "global_step/max_steps": "0/0"}, {"log_history": [{"reward": 0.5}]}]
    run = read(write_run(tmp_path, summary))
    assert (run.trained, run.oddities.summary_rows, run.oddities.history_steps) == (0, 2, 1)


def test_a_log_without_reward_is_another_training(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "logging.jsonl", [{"loss": 2.0, "global_step/max_steps": "1/10"}])
    assert read_run(tmp_path / "logging.jsonl") is None


def test_versions_are_runs_of_their_own_and_share_the_manifest(tmp_path: Path) -> None:
    for name in ("v0-20260101-000000", "v1-20260101-010000"):
        write_run(tmp_path / name, rows(12), arguments=None)
    write_jsonl(tmp_path / "v0-20260101-000000" / "checkpoint-10" / "logging.jsonl", rows(3))  # no run: a copy
    (tmp_path / "planner_manifest.json").write_text(json.dumps({"kind": "grpo", "arguments": {"beta": 0.04}}))
    found = find_runs(tmp_path)
    assert [log.parent.name[:2] for log in found] == ["v0", "v1"]
    assert [read(log.parent).arguments["beta"] for log in found] == [0.04, 0.04]


def test_a_run_that_died_before_its_first_step_is_found_by_its_manifest(tmp_path: Path) -> None:
    (tmp_path / "dead").mkdir()
    (tmp_path / "dead" / "planner_manifest.json").write_text('{"kind": "grpo"}')
    (tmp_path / "sft").mkdir()
    (tmp_path / "sft" / "planner_manifest.json").write_text('{"kind": "sft"}')
    assert [log.parent.name for log in find_runs(tmp_path)] == ["dead"]
    assert read(tmp_path / "dead").trained == 0


def test_paths_that_hold_no_run_are_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    for path in (tmp_path / "gone", tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(NoRun, match=path.name):
            find_runs(path)


def test_broken_arguments_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    write_run(tmp_path, rows(12))
    (tmp_path / "args.json").write_text("{")
    with pytest.raises(ValueError, match="args.json"):
        read(tmp_path)


def test_plugin_lines_and_traces_stand_at_their_step(tmp_path: Path) -> None:
    """The plugin counts updates done: its step 0 is ms-swift's step 1; its evaluations have ms-swift's number."""
    write_run(tmp_path, rows(12), plugin=lambda step: {"parse_failures": step / 100})
    trace = [trace_line(step, "train", "a", 0.5, exact=step < 6) for step in range(12)]
    trace += [trace_line(4, "watch", "w", 0.2), trace_line(4, "watch", "w", 0.4)]
    # resumed from step 4: rows 4 and on again; the evaluation after four updates stands
    trace += [trace_line(4, "train", "a", 0.5, exact=False), trace_line(5, "train", "a", 0.5)]
    write_jsonl(tmp_path / "reward_trace.rank0.jsonl", trace)
    run = read(tmp_path)
    assert run.steps[0].metrics["planner/parse_failures"] == 0.0
    assert run.steps[11].metrics["planner/parse_failures"] == pytest.approx(0.11)
    assert run.series("planner/format_rate").values.tolist() == [1, 1, 1, 1, 0, 1]
    assert run.watch == {4: {"w": pytest.approx(0.3)}}


def sampled(step: int, failures: float, started: float | None, completions: int = 64) -> dict[str, Any]:
    """A line of planner_steps.jsonl; without `started` as older versions wrote it."""
    line = {**PLUGIN_LINE, "step": step, "split": "train", "completions": completions, "ms": 100.0}
    return {**line, "parse_failures": failures, **({} if started is None else {"started": started})}


def traced(step: int, parsed: int, failed: int, started: float | None) -> list[dict[str, Any]]:
    rows = [trace_line(step, "train", "a", 0.5) for _ in range(parsed)]
    rows += [{**trace_line(step, "train", "a", -1.0, exact=False), "plan": None} for _ in range(failed)]
    return [row if started is None else {**row, "started": started} for row in rows]


def test_all_batches_that_a_process_scores_within_a_step_count(tmp_path: Path) -> None:
    """`--dynamic_sample true`: the reward is called for every resample, under the same step."""
    write_run(tmp_path, rows(2))
    lines = [sampled(0, 0.0, 7.5), sampled(1, 1.0, 7.5, 32), sampled(1, 1.0, 7.5, 32), sampled(1, 0.0, 7.5)]
    write_jsonl(tmp_path / "planner_steps.jsonl", lines)
    trace = [*traced(0, 8, 0, 7.5), *traced(1, 0, 8, 7.5), *traced(1, 8, 0, 7.5)]
    write_jsonl(tmp_path / "reward_trace.rank0.jsonl", trace)
    metrics = read(tmp_path).steps[1].metrics
    assert (metrics["planner/completions"], metrics["planner/groups"], metrics["planner/ms"]) == (128, 24, 300.0)
    assert metrics["planner/parse_failures"] == 0.5 == metrics["planner/format_rate"]
    assert not any("started" in name for name in metrics)


@pytest.mark.parametrize(
    ("first", "second", "failures", "reason"),
    [
        (7.5, 9.5, 0.0, "two processes: the first was killed in this step"),
        (None, 9.5, 0.0, "the first one ran under an older version"),
        (None, None, 0.5, "older logs do not tell a resample from a resumed run"),
    ],
)
def test_a_step_scored_again_by_a_resumed_run_is_that_of_the_later_process(
    tmp_path: Path, first: float | None, second: float | None, failures: float, reason: str
) -> None:
    write_run(tmp_path, rows(2))
    lines = [sampled(0, 0.0, first), sampled(1, 1.0, first), sampled(1, 0.0, second)]
    trace = [*traced(0, 8, 0, first), *traced(1, 0, 8, first), *traced(1, 8, 0, second)]
    write_jsonl(tmp_path / "planner_steps.jsonl", lines)
    write_jsonl(tmp_path / "reward_trace.rank0.jsonl", trace)
    metrics = read(tmp_path).steps[1].metrics
    assert metrics["planner/parse_failures"] == failures, reason
    assert metrics["planner/format_rate"] == 1 - failures, reason
    (tmp_path / "planner_steps.jsonl").unlink()
    assert read(tmp_path).steps[1].metrics["planner/parse_failures"] == failures, reason


def test_the_rows_of_a_rank_that_the_resumed_run_lacks_go_with_its_launch(tmp_path: Path) -> None:
    """Two ranks up to step 9, then one, resumed after step 4: what the other said of 4 to 9 is history."""

    def of(first: int, last: int, started: float, total: float, exact: bool) -> list[dict[str, Any]]:
        lines = [trace_line(step, "train", "a", total, exact) for step in range(first, last)]
        lines += [trace_line(step, "watch", "w", total) for step in (4, 8, 12) if first < step <= last]
        return [{**line, "started": started} for line in sorted(lines, key=lambda line: line["step"])]

    write_run(tmp_path, rows(12))
    resumed = of(4, 12, 900.0, 0.9, True)
    write_jsonl(tmp_path / "reward_trace.rank0.jsonl", of(0, 10, 7.0, 0.2, False) + resumed)
    write_jsonl(tmp_path / "reward_trace.rank1.jsonl", of(0, 10, 9.5, 0.2, False))
    run = read(tmp_path)
    assert run.series("planner/format_rate").values.tolist() == [0] * 4 + [1] * 8
    assert run.watch == {4: {"w": pytest.approx(0.2)}, 8: {"w": 0.9}, 12: {"w": 0.9}}
    # a rank that the first launch lacked takes nothing back but what rank 0 does
    write_jsonl(tmp_path / "reward_trace.rank1.jsonl", of(4, 12, 905.0, 0.9, False))
    assert read(tmp_path).series("planner/format_rate").values.tolist() == [0] * 4 + [0.5] * 8


def launch(folder: Path, name: str, field: float, resumed: int | None = None, sha256: str = "a") -> None:
    """A manifest; `resumed`: the checkpoint it went on from."""
    arguments = {} if resumed is None else {"resume_from_checkpoint": str(folder / f"checkpoint-{resumed}")}
    reward = {"file": "r.py", "sha256": sha256, "weights": {"field": field}, "gates": []}
    manifest = {"kind": "grpo", "arguments": arguments, "reward": reward}
    (folder / name).write_text(json.dumps(manifest), encoding="utf-8")


FIRST, SECOND, NEWEST = "planner_manifest.1.json", "planner_manifest.2.json", "planner_manifest.json"


@pytest.mark.parametrize(
    ("launches", "step", "reason"),
    [
        ([(FIRST, 0.3, None), (NEWEST, 0.4, 8)], 9, "resumed under other weights"),
        ([(FIRST, 0.3, None), (NEWEST, 0.3, 8)], None, "resumed under its own"),
        ([(FIRST, 0.3, None), (NEWEST, 0.4, None)], None, "begun again: the first launch's steps are gone"),
        ([(FIRST, 0.3, None), (SECOND, 0.4, 8), (NEWEST, 0.3, 8)], None, "the second's steps are gone, too"),
        ([(FIRST, 0.3, None), (SECOND, 0.4, 4), (NEWEST, 0.4, 8)], 5, "from the second launch on"),
        ([(FIRST, 0.3, None), (NEWEST, 0.4, 12)], None, "the second has trained no step yet"),
    ],
)
def test_a_reward_that_changed_between_launches_is_seen(
    tmp_path: Path, launches: list[tuple[str, float, int | None]], step: int | None, reason: str
) -> None:
    write_run(tmp_path, rows(12))
    for name, field, resumed in launches:
        launch(tmp_path, name, field, resumed)
    change = read(tmp_path).reward_change
    assert (None if change is None else change.step) == step, reason
    assert change is None or "field=0.3 became field=0.4" in change.what


def test_a_reward_file_that_changed_is_seen_in_the_traces(tmp_path: Path) -> None:
    write_run(tmp_path, rows(12))
    lines = [{**trace_line(step, "train", "a", 0.5), "reward_sha256": "a" if step < 6 else "b"} for step in range(12)]
    write_jsonl(tmp_path / "reward_trace.rank0.jsonl", lines)
    change = read(tmp_path).reward_change
    assert change is not None and change.sentence() == (
        "the training reward changed at step 7: the reward file with sha256 a became b"
    )


def test_segments_cover_the_run_and_short_runs_have_fewer() -> None:
    found = segments(series(range(23)))
    assert [(part.first, part.last) for part in found] == [(1, 5), (6, 10), (11, 15), (16, 19), (20, 23)]
    assert found[0].mean == 2 and found[0].low is not None and found[0].low < 2 < (found[0].high or 0)
    assert [part.steps for part in segments(series([1, 2, 3]))] == [1, 1, 1]
    assert segments(series([1.0]))[0].low is None
    assert segments(series([])) == []


def test_trend_needs_steps_and_does_not_believe_one_of_them() -> None:
    noise = np.random.default_rng(3).normal(0, 0.05, 60)
    assert trend(series(np.linspace(0, 0.2, 60) + noise)).direction == "rises"
    assert trend(series(np.linspace(0.2, 0, 60) + noise)).direction == "falls"
    assert trend(series(noise)).direction == "none"
    assert trend(series(np.linspace(0, 1, 9))).direction == "short"
    assert trend(series([0.5] * 20)).direction == "none"
    wild = noise.copy()
    wild[-1] = 50.0  # the line through it climbs, the ranks do not
    assert trend(series(wild)).direction == "none"
    with pytest.raises(ValueError, match="no values"):
        trend(series([]))


@pytest.mark.parametrize("at", [16, 24, 32, 40, 48, 56, 60])
def test_a_step_is_a_trend_wherever_it_falls(at: int) -> None:
    """Inside a fifth as well as on its edge: a jump is no autocorrelation."""
    random = np.random.default_rng(17)
    for before, after, direction in ((0.93, 0.60, "falls"), (0.50, 0.75, "rises")):
        found = trend(series(np.where(np.arange(80) < at, before, after) + random.normal(0, 0.02, 80)))
        assert found.direction == direction, (found, before, after)
        assert (found.low > 0) == (direction == "rises") and (found.high < 0) == (direction == "falls")


@pytest.mark.parametrize(
    ("lag", "most", "reason"),
    [(0.0, 0.07, "5 % is the test's own"), (0.4, 0.09, "without widening 20 %"), (0.7, 0.14, "fifths see too little")],
)
def test_noise_is_rarely_called_a_trend(lag: float, most: float, reason: str) -> None:
    random = np.random.default_rng(23)
    called = 0
    for _ in range(600):
        walk = random.normal(size=130)
        for i in range(1, 130):
            walk[i] += lag * walk[i - 1]
        called += trend(series(walk[50:])).direction != "none"
    assert called / 600 <= most, reason


def test_change_point_finds_a_jump_and_ignores_a_spike() -> None:
    random = np.random.default_rng(5)
    base = random.binomial(64, 0.01, 60) / 64
    jump = base.copy()
    jump[50:] += 0.3  # a late one: ten steps of sixty
    found = change_point(series(jump))
    assert found is not None and abs(found.step - 51) <= 1 and found.p < 0.01 and found.after - found.before > 0.25
    spike = base.copy()
    spike[30] = 0.9
    found = change_point(series(spike))
    assert found is not None and found.p > 0.05
    assert change_point(series([0.0] * 30)) is None
    assert change_point(series(range(9))) is None


def test_holm() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
    assert holm({}) == {}
