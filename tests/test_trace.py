"""The trace of a long run: full files become compressed parts, and its readers still see every line once, in order."""

import gzip
import json
import multiprocessing
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grpo_runs import rows, trace_line, write_jsonl, write_run

from scripts.eval.grpo_log import read_run
from scripts.eval.run_archive import select
from swift_plugin import trace as trace_module
from swift_plugin.trace import TRACE_KEYS, TraceWriter, open_trace, trace_files, trace_path

SMALL = 4_096  # bytes of a part


def line(step: int) -> dict[str, Any]:
    """A trace row of some 400 bytes that does not compress to nothing."""
    filling = random.Random(step).randbytes(100).hex()
    return {**dict.fromkeys(TRACE_KEYS), "step": step, "split": "train", "completion": filling}


def steps_in(folder: Path, rank: int = 0) -> list[int]:
    def read() -> Iterator[int]:
        for file in trace_files(folder)[rank]:
            with open_trace(file) as lines:
                yield from (json.loads(text)["step"] for text in lines)

    return list(read())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_full_files_become_compressed_parts_and_no_line_is_lost(tmp_path: Path) -> None:
    writer = TraceWriter(trace_path(tmp_path, 0), SMALL)
    for step in range(200):
        writer.write([line(step)])
    writer.close()
    assert steps_in(tmp_path) == list(range(200))
    parts = trace_files(tmp_path)[0]
    assert [part.name for part in parts[:2]] == ["reward_trace.rank0.0001.jsonl.gz", "reward_trace.rank0.0002.jsonl.gz"]
    assert parts[-1] == trace_path(tmp_path, 0)
    assert len(parts) > 10
    for part in parts[:-1]:
        with open_trace(part) as lines:
            text = lines.read()
        assert text.endswith(b"\n") and SMALL <= len(text) < SMALL + 500  # one batch past the limit at most
        assert part.stat().st_size < len(text)
    assert parts[-1].stat().st_size < SMALL + 500
    assert len(names(tmp_path)) == len(parts)  # nothing else is left behind


def test_parts_keep_their_order_past_9999(tmp_path: Path) -> None:
    for number in (9_999, 10_000, 2):
        with gzip.open(tmp_path / f"reward_trace.rank0.{number:04d}.jsonl.gz", "wb") as out:
            out.write(json.dumps({"step": number}).encode() + b"\n")
    assert steps_in(tmp_path) == [2, 9_999, 10_000]


def test_the_file_being_written_always_exists_after_a_write(tmp_path: Path) -> None:
    """What looks at the plain file alone (a person with tail -f) sees the newest lines at any time."""
    writer = TraceWriter(trace_path(tmp_path, 0), 1)  # every batch is a part of its own
    for step in range(5):
        writer.write([line(step)])
        assert json.loads(trace_path(tmp_path, 0).read_text())["step"] == step


def test_a_resumed_run_goes_on_after_the_parts_that_are_there(tmp_path: Path) -> None:
    for start in (0, 50, 100):
        writer = TraceWriter(trace_path(tmp_path, 0), SMALL)
        for step in range(start, start + 50):
            writer.write([line(step)])
        writer.close()
    assert steps_in(tmp_path) == list(range(150))


def test_ranks_do_not_share_parts(tmp_path: Path) -> None:
    writers = {rank: TraceWriter(trace_path(tmp_path, rank), SMALL) for rank in (1, 10)}
    for step in range(60):
        for rank, writer in writers.items():
            writer.write([line(step * rank)])
    assert {rank: steps_in(tmp_path, rank) for rank in trace_files(tmp_path)} == {
        1: list(range(60)),
        10: [step * 10 for step in range(60)],
    }


def test_killed_while_it_compresses_no_line_is_lost_or_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    def write_until_killed(start: int) -> int:
        writer = TraceWriter(trace_path(tmp_path, 0), SMALL)
        step = start
        try:
            while True:
                writer.write([line(step)])
                step += 1
        except Killed:
            writer.close()
            return step

    with monkeypatch.context() as patch:  # before the compressed copy has its name: the plain part is what there is
        patch.setattr(trace_module.os, "replace", die)
        reached = write_until_killed(0)
    assert "reward_trace.rank0.0001.jsonl" in names(tmp_path)
    assert [name for name in names(tmp_path) if name.endswith(".partial")]
    assert steps_in(tmp_path) == list(range(reached))
    with monkeypatch.context() as patch:  # after it: the part stands there twice
        patch.setattr(trace_module.Path, "unlink", die)
        reached = write_until_killed(reached)
    assert {"reward_trace.rank0.0002.jsonl", "reward_trace.rank0.0002.jsonl.gz"} <= set(names(tmp_path))
    assert steps_in(tmp_path) == list(range(reached))
    TraceWriter(trace_path(tmp_path, 0), SMALL).write([line(reached)])
    assert steps_in(tmp_path) == list(range(reached + 1))


def _go_on(writer: TraceWriter, start: Any, first: int, count: int) -> None:
    start.wait(60)
    for step in range(first, first + count):
        writer.write([line(step)])


def test_a_fork_never_writes_into_a_part_and_never_makes_one(tmp_path: Path) -> None:
    writer = TraceWriter(trace_path(tmp_path, 0), SMALL)
    filled = 0
    while filled == 0 or writer.path.stat().st_size < SMALL:  # the next row comes into a full file
        writer.write([line(filled)])
        filled += 1
    context = multiprocessing.get_context("fork")
    start = context.Event()
    child = context.Process(target=_go_on, args=(writer, start, 100, 30), daemon=True)
    child.start()
    writer.write([line(filled)])
    assert len(trace_files(tmp_path)[0]) == 2  # the file the child inherited is a part now
    start.set()
    child.join(60)
    assert child.exitcode == 0
    assert steps_in(tmp_path) == [*range(filled + 1), *range(100, 130)]
    assert len(trace_files(tmp_path)[0]) == 2
    writer.write([line(200)])
    assert len(trace_files(tmp_path)[0]) == 3
    assert steps_in(tmp_path)[-1] == 200


def split_up(run: Path, sizes: list[int]) -> None:
    """Do to a run's trace what a long run does: its first lines become parts of so many lines."""
    live = run / "reward_trace.rank0.jsonl"
    lines = live.read_bytes().splitlines(keepends=True)
    for number, size in enumerate(sizes, 1):
        with gzip.open(run / f"reward_trace.rank0.{number:04d}.jsonl.gz", "wb") as out:
            out.writelines(lines[:size])
        lines = lines[size:]
    live.write_bytes(b"".join(lines))


@pytest.mark.parametrize("sizes", [[1, 30], [40, 40, 40], [83]], ids=["a line", "three parts", "inside a step"])
def test_the_log_analysis_reads_a_run_in_parts_as_one(tmp_path: Path, sizes: list[int]) -> None:
    # A resumed run: steps 6 and 7 come a second time, and the later pass wins over lines that stand in an earlier part.
    order = [*range(8), *range(6, 12)]
    trace = [trace_line(step, "train", f"g{n % 4}", step / 20 + n / 100, n < 5) for step in order for n in range(8)]
    trace += [trace_line(12, "watch", f"w{n}", n / 10) for n in range(8)]
    run = write_run(tmp_path / "run", rows(12))
    write_jsonl(run / "reward_trace.rank0.jsonl", trace)
    whole = read_run(run / "logging.jsonl")
    split_up(run, sizes)
    assert len(trace_files(run)[0]) == len(sizes) + 1
    in_parts = read_run(run / "logging.jsonl")
    assert whole is not None and in_parts is not None
    assert in_parts.watch == whole.watch and len(whole.watch) == 1
    assert in_parts.steps == whole.steps and "planner/format_rate" in whole.steps[0].metrics


def test_an_archive_takes_the_parts_and_not_what_is_half_written(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "reward_trace.rank0.jsonl", [{"step": step} for step in range(4)])
    split_up(tmp_path, [2])
    (tmp_path / ".reward_trace.rank0.0002.jsonl.gz.7.partial").write_bytes(b"half")
    (tmp_path / "other.gz").write_bytes(b"")
    packed = sorted(select(tmp_path, weights=False).files)
    assert packed == ["reward_trace.rank0.0001.jsonl.gz", "reward_trace.rank0.jsonl"]


def test_another_file_of_the_folder_is_no_trace(tmp_path: Path) -> None:
    for name in ("reward_trace.rank0.jsonl.bak", "reward_trace.rank.jsonl", "reward_trace.rank0.x.jsonl"):
        (tmp_path / name).touch()
    assert trace_files(tmp_path) == {}
    assert trace_files(tmp_path / "missing") == {}


def test_the_folder_is_made_at_the_first_write_and_a_deleted_file_again(tmp_path: Path) -> None:
    writer = TraceWriter(trace_path(tmp_path / "new" / "run", 0))
    assert not (tmp_path / "new").exists()
    writer.write([line(0)])
    os.unlink(writer.path)
    writer.write([line(1)])
    assert steps_in(tmp_path / "new" / "run") == [1]
