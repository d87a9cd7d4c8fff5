"""The evidence behind every number: one JSON line for each scored completion."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TRACE_KEYS = (
    "step",
    "split",
    "id",
    "rank",
    "completion",
    "plan",
    "issues",
    "search",
    "titles",
    "breakdown",
    "timings",
    "reward_sha256",
)


def trace_path(folder: str | Path, rank: int) -> Path:
    """The trace file of one rank: `reward_trace.rank{N}.jsonl` in `folder`."""
    return Path(folder) / f"reward_trace.rank{int(rank)}.jsonl"


class TraceWriter:
    """Appends rows to a JSONL file, one write a batch; opened at the first write. A fork may go on writing.

    Every line has exactly the keys of `TRACE_KEYS`, is strict JSON in ASCII (a lone surrogate from a model is
    an escape, never a crash), and stands complete on disk when `write` returns.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._fd: int | None = None

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append `rows`; raises ValueError for other keys or a value that is no JSON, OSError for the disk."""
        if not rows:
            return
        for row in rows:
            if tuple(row) != TRACE_KEYS:
                raise ValueError(f"a trace row has the keys {list(row)}, wanted {list(TRACE_KEYS)}")
        lines = [json.dumps(row, ensure_ascii=True, allow_nan=False) + "\n" for row in rows]
        data = "".join(lines).encode("ascii")
        fd = self._open()
        while data:  # a full disk or a signal may cut a write short
            data = data[os.write(fd, data) :]

    def close(self) -> None:
        """Close the file; a later write opens it again."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None

    def _open(self) -> int:
        if self._fd is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._end_torn_line(self._fd)
        return self._fd

    @staticmethod
    def _end_torn_line(fd: int) -> None:
        """A killed run may leave half a line: end it, so that it spoils no line of the resumed run."""
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            os.write(fd, b"\n")
