"""JSON lines end at line feeds, and a file is replaced whole or not at all."""

from pathlib import Path

import pytest

from scripts.data.sessions import read_sessions, turn, write_rows
from scripts.files import json_lines, write_atomically


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c"])
def test_a_text_with_a_line_mark_of_unicode_stays_one_row(tmp_path: Path, mark: str) -> None:
    row = {
        "id": "a", "source": "log", "family": "single", "card": None, "split": None, "dimensions": {},
        "turns": [turn(f"想买{mark}跑鞋")],
    }  # fmt: skip
    write_rows(tmp_path / "rows.jsonl", [row, {**row, "id": "b"}])
    assert read_sessions(tmp_path / "rows.jsonl") == [row, {**row, "id": "b"}]


def test_a_broken_line_is_named_and_the_end_is_no_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n[2]\n')
    assert list(json_lines(path)) == [(1, {"a": 1}), (2, [2])]
    path.write_text('{"a": 1}\n\n{"a": 2')
    with pytest.raises(ValueError, match=r"rows.jsonl:3: no JSON"):
        list(json_lines(path))


def test_an_old_file_survives_a_text_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "half \ud800")
    assert path.read_text() == "old"
    with pytest.raises(OSError):
        write_atomically(path.parent, "a folder is no file")
    assert [*tmp_path.iterdir(), *path.parent.iterdir()] == [path.parent, path], "nothing half-written stays"
