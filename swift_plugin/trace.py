"""The evidence behind every number: one JSON line for each scored completion.

A rank writes `reward_trace.rank{N}.jsonl`. When that is full it becomes a compressed part, first
`reward_trace.rank{N}.0001.jsonl.gz`, and a new file begins. `trace_files` gives all of it back in order.
"""

import gzip
import io
import json
import math
import os
import re
import shutil
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
    "started",
)
PART_BYTES = 64 << 20  # of text, some 36,000 completions: past this the file becomes a compressed part
COMPRESSION = 3  # of gzip: a third of the time of its default 6, for a tenth more bytes
_NAME = re.compile(r"reward_trace\.rank(\d+)(?:\.(\d+)\.jsonl(?:\.gz)?|\.jsonl)")


def trace_path(folder: str | Path, rank: int) -> Path:
    """The trace file that one rank writes: `reward_trace.rank{N}.jsonl` in `folder`."""
    return Path(folder) / f"reward_trace.rank{int(rank)}.jsonl"


def trace_files(folder: str | Path) -> dict[int, list[Path]]:
    """Every rank's trace in the order it was written: its parts, then the file being written. Read by `open_trace`.

    A part that a killed run left half compressed is given as the plain file it still is.
    """
    found: dict[int, dict[float, Path]] = {}
    for path in sorted(Path(folder).glob("reward_trace.rank*")):
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        number = int(match[2]) if match[2] else math.inf  # the file being written comes last
        # A part that stands twice was compressed and not yet deleted: the compressed one, which sorts last, is whole.
        found.setdefault(int(match[1]), {})[number] = path
    return {rank: [parts[number] for number in sorted(parts)] for rank, parts in sorted(found.items())}


def is_trace(path: Path) -> bool:
    """Whether the name is that of a rank's trace, or of a part of one."""
    return _NAME.fullmatch(path.name) is not None


def open_trace(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """A file of `trace_files` for reading its lines as bytes, compressed or not."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


class TraceWriter:
    """Appends rows to a JSONL file, one write a batch; opened at the first write. A fork may go on writing.

    Every line has exactly the keys of `TRACE_KEYS`, is strict JSON in ASCII (a lone surrogate from a model is
    an escape, never a crash), and stands complete on disk when `write` returns. The process that wrote first
    compresses a file of `part_bytes` or more away as a part, before its next write: that takes about a second.
    """

    def __init__(self, path: str | Path, part_bytes: int = PART_BYTES) -> None:
        self.path = Path(path)
        self._part_bytes = part_bytes
        self._fd: int | None = None
        self._owner: int | None = None  # a fork never sets a part aside: its parent may be doing the same

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append `rows`; raises ValueError for other keys or a value that is no JSON, OSError for the disk."""
        if not rows:
            return
        for row in rows:
            if tuple(row) != TRACE_KEYS:
                raise ValueError(f"a trace row has the keys {list(row)}, wanted {list(TRACE_KEYS)}")
        lines = [json.dumps(row, ensure_ascii=True, allow_nan=False) + "\n" for row in rows]
        data = "".join(lines).encode("ascii")
        self._owner = self._owner or os.getpid()
        fd = self._open()
        if self._owner == os.getpid() and os.fstat(fd).st_size >= self._part_bytes:
            _compress(self._set_aside())
            fd = self._open()
        while data:  # a full disk or a signal may cut a write short
            data = data[os.write(fd, data) :]

    def close(self) -> None:
        """Close the file; a later write opens it again."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None

    def _open(self) -> int:
        if self._fd is not None and not self._is_current(self._fd):
            self.close()  # a fork's parent made a part of it
        if self._fd is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._end_torn_line(self._fd)
        return self._fd

    def _is_current(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), self.path.stat())
        except FileNotFoundError:
            return False

    def _set_aside(self) -> Path:
        """Rename the full file to the part after the last one, and close it."""
        name = re.compile(rf"{re.escape(self.path.stem)}\.(\d+)\.jsonl(?:\.gz)?")
        taken = [int(match[1]) for path in self.path.parent.iterdir() if (match := name.fullmatch(path.name))]
        part = self.path.with_suffix(f".{max(taken, default=0) + 1:04d}.jsonl")
        self.path.rename(part)
        self.close()
        return part

    @staticmethod
    def _end_torn_line(fd: int) -> None:
        """A killed run may leave half a line: end it, so that it spoils no line of the resumed run."""
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            os.write(fd, b"\n")


def _compress(part: Path) -> None:
    """Replace a part by its compressed copy; killed in the middle, the plain part stays."""
    packed = part.with_name(f"{part.name}.gz")
    scratch = part.with_name(f".{packed.name}.{os.getpid()}.partial")
    with part.open("rb") as plain, gzip.open(scratch, "wb", compresslevel=COMPRESSION) as out:
        shutil.copyfileobj(plain, out, 1 << 20)
    os.replace(scratch, packed)
    part.unlink()
