"""Files as every stage reads and writes them: JSON lines by their line ends alone, and whole files or none."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        scratch.write_text(text, encoding="utf-8")
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds. Raises ValueError, naming the file, for anything else; OSError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}): restore it or take it out of the folder") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object: restore it or take it out of the folder")
    return value


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Line number and value of every line of a JSONL file, as `values_by_line` gives them; FileNotFoundError."""
    yield from values_by_line(path.read_bytes(), path.name)


def values_by_line(data: bytes, name: str) -> Iterator[tuple[int, Any]]:
    """Line number and value of every line of the bytes of a JSONL file called `name` that holds more than blanks.

    Lines end at a line feed and nowhere else: a shopper's text may hold U+2028 or U+0085, at which `str.splitlines`
    would cut the row in two. Raises ValueError naming file and line.
    """
    for number, line in enumerate(_decoded(data, name).split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name}:{number}: no JSON: {error}") from None
        yield number, value


def utf8_text(path: Path) -> str:
    """The text of a file, without a byte order mark. Raises ValueError naming file and line where it is no UTF-8."""
    return _decoded(path.read_bytes(), path.name)


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(f"{name}:{line}: no UTF-8 (byte 0x{data[error.start]:02x}): save it as UTF-8") from None
