"""The rows of catalogue files, one at a time, whatever the file's size: CSV, TSV, JSON lines and Parquet.

The form follows from the name: .csv, .tsv, .jsonl (or .ndjson), each also with .gz, and .parquet. Text is UTF-8. A CSV
file follows RFC 4180: a field may stand in double quotes, and a quote within it is doubled. A TSV file has no quoting:
a quote is a character as any other, and a tab or a line end cannot stand in a field. A row that cannot be read is a row
with a `fault`; a file that cannot be read is a CatalogError.

A quote that is never closed would make one field of all rows up to the next quote. Lines that look like rows of their
own are therefore read again one by one, and only the first, which opens the quote, is refused.
"""

import csv
import gzip
import itertools
import json
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

MAX_LINE = 1 << 20  # bytes; a longer line is no catalogue row, and would have to be held in memory
SHOWN = 500  # characters of a bad row that are kept
PARQUET_ROWS = 1024  # rows read together
PEEKED_ROWS = 1000  # of a JSON file, in which a column that a user named must occur
ROWLIKE = 0.8  # share of a record's lines with the header's number of columns: those are rows, not a field's lines
TITLE_BREAKS = 2  # line ends within a field that is read; more is an unclosed quote
UTF16_MARKS = ("\udcff\udcfe", "\udcfe\udcff")  # the byte order mark as `_Lines` gives bytes that are no UTF-8
UNCLOSED = "a quote that is never closed?"
FIELDS = ("title", "category", "price", "currency")
FORMS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


class CatalogError(ValueError):
    """A catalogue file cannot be used; the message names the file and the remedy."""


@dataclass(frozen=True)
class Columns:
    """Which column of the file holds which field: field name -> column name.

    `names` holds `title` always; `demanded` are the columns a user named, which must then exist.
    """

    names: Mapping[str, str]
    demanded: frozenset[str] = frozenset()

    @classmethod
    def chosen(cls, **given: str | None) -> "Columns":
        """From the flags: None takes the column of the field's own name if there is one, "" reads none.

        >>> Columns.chosen(title="name", price="").names
        {'title': 'name', 'category': 'category', 'currency': 'currency'}
        """
        names = {field: field if given.get(field) is None else str(given[field]) for field in FIELDS}
        if not names["title"]:
            raise CatalogError("a catalogue needs its title column: name it with --title-column")
        demanded = frozenset(name for name in given.values() if name) | {names["title"]}
        return cls({field: name for field, name in names.items() if name}, demanded)

    def found_in(self, header: list[str], where: Path) -> dict[str, str]:
        """The fields this header has; raises CatalogError for a column that is demanded and missing, or doubled."""
        for name in sorted(self.demanded - set(header)):
            shown = ", ".join(header)[:SHOWN]
            raise CatalogError(
                f"{where} has no column {name!r}; it has {shown}. Name them with --title-column, --price-column, ..."
            )
        for name in self.names.values():
            if header.count(name) > 1:
                raise CatalogError(f"{where} has the column {name!r} {header.count(name)} times; rename all but one")
        return {field: name for field, name in self.names.items() if name in header}


@dataclass(frozen=True)
class Row:
    """One row: `line` counts from 1 (in Parquet, rows), `values` by field name, `read` bytes of the file so far.

    A row with a `fault` has no values; `raw` is then the beginning of what stood there, and `lines` how many lines of
    the file are lost with it, each perhaps a row.
    """

    file: str
    line: int
    read: int
    values: Mapping[str, Any]
    fault: str | None = None
    raw: str = ""
    lines: int = 1


def check_columns(path: Path, columns: Columns) -> None:
    """Raise CatalogError for a column that is demanded and not there, before anything is made of the file.

    JSON lines have no header: there a demanded column must occur in the first PEEKED_ROWS rows.
    """
    if file_form(path) != "jsonl":
        next(read_rows(path, columns), None)
        return
    wanted = Columns({name: name for name in columns.demanded})
    seen = [row.values.keys() for row in itertools.islice(read_rows(path, wanted), PEEKED_ROWS) if row.fault is None]
    for name in sorted(columns.demanded.difference(*seen)) if seen else ():
        raise CatalogError(
            f"{path}: none of its first {len(seen)} rows has the key {name!r}. Name its keys with --title-column,"
            " --price-column, ..."
        )


def read_rows(path: Path, columns: Columns) -> Iterator[Row]:
    """The rows of one file in order, blank lines left out.

    Memory is bounded by the longest row (for Parquet: by PARQUET_ROWS rows and a buffer a column). Raises CatalogError
    for an unknown form, a missing column or a damaged file, and OSError for a file that cannot be opened.
    """
    form = file_form(path)
    if form == "parquet":
        yield from _parquet_rows(path, columns)
        return
    try:
        with path.open("rb") as file:
            stream: IO[bytes] = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file  # type: ignore[assignment]
            lines = _Lines(stream, file)
            if form == "jsonl":
                yield from _json_rows(path, lines, columns)
            else:
                yield from _separated_rows(path, lines, columns, form)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CatalogError(f"{path} is no whole gzip file ({error}); copy it again") from error


def file_form(path: Path) -> str:
    """csv, tsv, jsonl or parquet; raises CatalogError for any other name."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes[-1:] == [".gz"]
    last = suffixes[-2:-1] if packed else suffixes[-1:]
    form = FORMS.get("".join(last))
    if form is None or (packed and form == "parquet"):
        raise CatalogError(f"{path}: unknown form; give .csv, .tsv or .jsonl (each also with .gz), or .parquet")
    return form


class _Lines:
    """Lines of a byte stream as text; bytes that are no UTF-8 become lone surrogates, which the item's check finds.

    After each record the reader asks what was unusual about its lines and begins the next one.
    """

    def __init__(self, stream: IO[bytes], file: IO[bytes]) -> None:
        self._stream = stream
        self._file = file  # below the decompressor: its position is what the progress bar counts
        self._again: deque[str] = deque()
        self.count = 0
        self.begin()

    def begin(self) -> None:
        self.first = self.count + 1
        self.record: list[str] = []
        self.overlong = False

    @property
    def raw(self) -> str:
        """The beginning of the record."""
        return "".join(line[:SHOWN] for line in self.record[:SHOWN])[:SHOWN]

    def put_back(self) -> None:
        """Give all lines of this record but the first once more."""
        self._again.extendleft(reversed(self.record[1:]))
        self.count -= len(self.record) - 1
        del self.record[1:]

    @property
    def read(self) -> int:
        return self._file.tell()

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        if self._again:
            self.count += 1
            self.record.append(self._again.popleft())
            return self.record[-1]
        data = self._stream.readline(MAX_LINE)
        if not data:
            raise StopIteration
        piece, overlong = data, False
        while len(piece) == MAX_LINE and not piece.endswith(b"\n"):
            overlong = self.overlong = True
            piece = self._stream.readline(MAX_LINE)
        self.count += 1
        text = data.decode("utf-8", "surrogateescape")
        if self.count == 1:
            text = text.removeprefix("\ufeff")
        self.record.append(text[:SHOWN] if overlong else text)
        return "\n" if overlong else text  # half a line must not be parsed


def _separated_rows(path: Path, lines: _Lines, columns: Columns, form: str) -> Iterator[Row]:
    if form == "csv":
        reader = csv.reader(lines, strict=True)
    else:
        reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    try:
        header = next(reader, None)
    except csv.Error as error:
        raise CatalogError(f"{path}: the first line is no header ({error})") from error
    if header is None:
        raise CatalogError(f"{path} is empty; its first line must name the columns")
    if header and header[0].startswith(UTF16_MARKS):
        raise CatalogError(f"{path} is UTF-16. Convert it: iconv -f UTF-16 -t UTF-8 {path.name} > utf8-{path.name}")
    places = {field: header.index(name) for field, name in columns.found_in(header, path).items()}
    while True:
        lines.begin()
        fault, cells, lost = None, None, 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fault, lost = f"no {form.upper()} row: {error}", len(lines.record)
        if lines.overlong:
            fault, lost = f"longer than {MAX_LINE} bytes", len(lines.record)
        elif form == "csv" and _are_rows(lines.record, len(header)):
            lines.put_back()
            fault, lost = f"no CSV row: {UNCLOSED}", 1
        elif cells is not None and not any(cells):
            continue
        elif cells is not None and len(cells) != len(header):
            fault, lost = f"columns do not fit: {len(cells)} of them, the header has {len(header)}", len(lines.record)
        elif cells is not None and any(cells[place].count("\n") > TITLE_BREAKS for place in places.values()):
            fault, lost = f"a field spans lines: {UNCLOSED}", len(lines.record)
        values = {} if fault or cells is None else {field: cells[place] for field, place in places.items()}
        yield Row(str(path), lines.first, lines.read, values, fault, _shown(lines.raw), lost)


def _are_rows(record: list[str], columns: int) -> bool:
    """Whether the lines of one record look like rows of their own, with as many columns as the header.

    Two lines of a file with one or two columns say too little: a title with a comma and a line end has them, too.
    """
    if len(record) < 2 or columns < 2 or len(record) + columns < 5:
        return False
    fitting = sum(_columns(line) == columns for line in record)
    return fitting >= ROWLIKE * len(record)


def _columns(line: str) -> int:
    """Fields of one line read alone: with its quotes where they are whole, else as if they were letters."""
    try:
        return len(next(csv.reader([line], strict=True), []))
    except csv.Error:
        return line.count(",") + 1


def _json_rows(path: Path, lines: _Lines, columns: Columns) -> Iterator[Row]:
    while True:
        lines.begin()
        line = next(lines, None)
        if line is None:
            return
        fault, values = None, {}
        if lines.overlong:
            fault = f"longer than {MAX_LINE} bytes"
        elif not line.strip():
            continue
        else:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                fault = f"no JSON: {error}"
            else:
                if isinstance(row, dict):
                    values = {field: row[name] for field, name in columns.names.items() if name in row}
                else:
                    fault = "no JSON object"
        yield Row(str(path), lines.first, lines.read, values, fault, _shown(lines.raw))


def _parquet_rows(path: Path, columns: Columns) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    size = path.stat().st_size
    try:
        # without pre_buffer and with a buffer a column is read as it is needed, not a row group at once
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            present = columns.found_in(file.schema_arrow.names, path)
            total, number = max(1, file.metadata.num_rows), 0
            for batch in file.iter_batches(PARQUET_ROWS, columns=list(present.values())):
                for record in batch.to_pylist():
                    number += 1
                    values = {field: record[name] for field, name in present.items()}
                    raw = _shown(json.dumps(values, ensure_ascii=False, default=str))
                    yield Row(str(path), number, size * number // total, values, None, raw)
    except pa.ArrowException as error:
        raise CatalogError(f"{path} cannot be read as Parquet: {error}") from error


def _shown(raw: str) -> str:
    """What may be written as UTF-8 again: bytes that were none become U+FFFD."""
    return raw[:SHOWN].rstrip("\r\n").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
