"""Fill a Qdrant collection or an embedded store with a catalogue: CSV, TSV, JSON lines or Parquet, of any size.

The encoder is the one the environment names (PLANNER_EMBED_URL, PLANNER_EMBED_MODEL; without: hashed). Rows are read,
encoded and stored batch by batch. A point's id is made from its content, so the same command goes on after a kill,
skips what is there, and makes no duplicates. Rows that make no item are written to a file with the reason. At the end
the store is counted. A collection is added to. An embedded store is built beside its place (FOLDER.partial) and put
there when it is complete; one that other files filled is replaced only with --replace.

Exit codes: 0 filled and counted; 1 the count is wrong, or more rows were refused than --max-bad; 2 wrong use, or a
file, the encoder or the store cannot be used.
"""

import argparse
import dataclasses
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from tqdm import tqdm

from scripts.catalog.catalog_files import FIELDS, MAX_LINE, CatalogError, Columns, Row, check_columns, read_rows
from scripts.catalog.catalog_items import BadRow, Item, make_item
from scripts.catalog.catalog_targets import EdgeTarget, QdrantTarget, Target, chosen_store
from scripts.catalog.filled_by import check_same_encoder
from swift_plugin.encoders import Encoder, EncoderError, make_encoder
from swift_plugin.settings import CHECKOUT, Settings
from swift_plugin.stores import EdgeStore, StoreError, VectorStorage

BATCH = 256  # rows encoded and stored together: about 5 MB of JSON at 1,024 dimensions (Qdrant takes 32 MB)
BAD_ROW_KEYS = ("file", "line", "reason", "row")
HOPELESS = 1000  # so many rows and none of them good: the wrong column or encoding, not bad rows


@dataclass
class BadRows:
    """The side file: one JSON line a refused row, `file`, `line`, `reason` and `row` (its beginning)."""

    path: Path
    kinds: Counter[str] = field(default_factory=Counter)
    _file: IO[str] | None = None

    def add(self, row: Row, reason: str) -> None:
        """Write one; `kinds` counts the reasons up to their colon."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("w", encoding="utf-8")
        line = dict(zip(BAD_ROW_KEYS, (row.file, row.line, reason, row.raw), strict=True))
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self.kinds[reason.partition(":")[0]] += row.lines

    def __enter__(self) -> "BadRows":
        self.path.unlink(missing_ok=True)  # an earlier run's: each run reads every row again
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


def check_own_file(path: Path) -> None:
    """Raise ValueError if `path` is anything but an earlier run's side file: it would be deleted."""
    if not path.exists():
        return
    with path.open("rb") as file:
        line = file.readline(MAX_LINE)
    try:
        ours = not line or set(json.loads(line)) == set(BAD_ROW_KEYS)
    except (ValueError, TypeError):
        ours = False
    if not ours:
        raise ValueError(f"{path} exists and is no file of refused rows: give --bad-rows another name")


@dataclass
class Tally:
    """Counts of one run: `rows` read, `new` points, `there` already (or repeated in the files), `refused`.

    A record that cannot be read counts with every line it took up. `having` counts the good rows with each field.
    """

    rows: int = 0
    new: int = 0
    there: int = 0
    refused: int = 0
    having: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FIELDS, 0))


class Indexer:
    """Reads files into a target. `tally` is what was done; `bar` counts the files' bytes."""

    def __init__(self, target: Target, encoder: Encoder, bad: BadRows, bar: Any, currency: str | None) -> None:
        self.tally = Tally()
        self._target = target
        self._encoder = encoder
        self._bad = bad
        self._bar = bar
        self._currency = currency

    def run(self, files: Sequence[Path], columns: Columns) -> None:
        """Everything from reading to storing; raises CatalogError, EncoderError or StoreError."""
        started, before = time.monotonic(), 0
        for path in files:
            pairs = self._items(path, columns)
            while batch := list(itertools.islice(pairs, BATCH)):
                self._store(batch)
                self._bar.update(before + batch[-1][0].read - self._bar.n)
                rate = self.tally.rows / max(1e-9, time.monotonic() - started)
                self._bar.set_postfix_str(f"{self.tally.rows:,} rows, {rate:,.0f} rows/s", refresh=False)
            before += path.stat().st_size
            self._bar.update(before - self._bar.n)

    def _items(self, path: Path, columns: Columns) -> Iterator[tuple[Row, Item]]:
        for row in read_rows(path, columns):
            self.tally.rows += row.lines
            try:
                if row.fault is not None:
                    raise BadRow(row.fault)
                item = make_item(row.values, self._currency)
            except BadRow as fault:
                self._refuse(row, str(fault))
            else:
                for name in item.payload:
                    self.tally.having[name] += 1
                yield row, item

    def _refuse(self, row: Row, reason: str) -> None:
        self._bad.add(row, reason)
        self.tally.refused += row.lines
        if self.tally.refused == self.tally.rows >= HOPELESS:
            raise CatalogError(
                f"{row.file}: none of the first {self.tally.rows} rows can be used; the last: {reason}. Are columns,"
                f" form and encoding right? All are in {self._bad.path}"
            )

    def _store(self, batch: Sequence[tuple[Row, Item]]) -> None:
        by_id = {item.id: (row, item) for row, item in batch}
        known = self._target.known(list(by_id))
        fresh = [pair for point, pair in by_id.items() if point not in known]
        if not fresh:
            self.tally.there += len(batch)
            return
        vectors = self._encoder.encode([item.title for _, item in fresh])
        if vectors.shape != (len(fresh), self._encoder.dim) or not np.isfinite(vectors).all():
            raise EncoderError(f"the encoder {self._encoder.name} gave {vectors.shape} for {len(fresh)} titles, or NaN")
        wordless = ~vectors.any(axis=1)
        without = {item.id for (_, item), empty in zip(fresh, wordless, strict=True) if empty}
        refused = [row for row, item in batch if item.id in without]  # a repeated one as often as it stands there
        for row in refused:
            self._refuse(row, "title has no word the encoder knows")
        items = [item for _, item in fresh if item.id not in without]
        if items:
            self._target.add(items, vectors[~wordless])
        self.tally.new += len(items)
        self.tally.there += len(batch) - len(refused) - len(items)


def make_target(args: argparse.Namespace, settings: Settings, encoder: Encoder) -> Target:
    """The target the flags and the settings name; raises ValueError where they name none."""
    store = chosen_store(settings, args.store)
    storage = VectorStorage(on_disk=args.on_disk, int8=args.int8)
    if not isinstance(store, EdgeStore):
        return QdrantTarget(store, encoder, storage)
    source = {
        "files": [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in args.catalog],
        "columns": {name: getattr(args, f"{name}_column") for name in FIELDS},
        "currency": args.currency,
        "encoder": [encoder.name, encoder.dim],
        "storage": dataclasses.asdict(storage),
    }
    return EdgeTarget(store.path, encoder, storage, source, replace=args.replace)


def index(args: argparse.Namespace, settings: Settings) -> tuple[dict[str, Any], list[str]]:
    """Fill the target; what was done, and what is wrong with it (nothing: an empty list)."""
    columns = Columns.chosen(**{name: getattr(args, f"{name}_column") for name in FIELDS})
    for path in args.catalog:
        check_columns(path, columns)
    started = time.monotonic()
    encoder = make_encoder(settings)
    target = make_target(args, settings, encoder)
    size = sum(path.stat().st_size for path in args.catalog)
    bad_path = args.bad_rows or CHECKOUT / "build" / "bad_rows" / f"{args.catalog[0].name}.jsonl"
    check_own_file(bad_path)
    try:
        if before := target.open():
            check_same_encoder(encoder, target.store)
        with BadRows(bad_path) as bad, tqdm(total=size, unit="B", unit_scale=True, desc="index") as bar:
            indexer = Indexer(target, encoder, bad, bar, args.currency)
            indexer.run(args.catalog, columns)
        tally = indexer.tally
        if not tally.new + tally.there:
            raise CatalogError(f"no row of {', '.join(map(str, args.catalog))} makes an item; see {bad_path}")
        faults = []
        if (points := target.count()) != before + tally.new:
            faults.append(
                f"the store holds {points} points, {before} before and {tally.new} new make {before + tally.new}: does"
                " something else write to it? Index into a new one"
            )
        if tally.refused > args.max_bad * tally.rows:
            faults.append(
                f"{tally.refused} of {tally.rows} rows were refused, --max-bad allows a share of {args.max_bad:g}; the"
                f" reasons are in {bad_path}. An embedded store is put in its place only when this holds"
            )
        result: dict[str, Any] = {**dataclasses.asdict(tally), "points": points, "reasons": dict(bad.kinds)}
        if not faults:
            if isinstance(target, EdgeTarget) and points > EdgeStore.EXACT_UP_TO:
                print("index: building the HNSW graph, a minute for each 300,000 items", file=sys.stderr)
            result["store"] = dataclasses.asdict(target.finish())
    finally:
        target.close()
    result["seconds"] = round(time.monotonic() - started, 1)
    result["bad_rows"] = str(bad_path) if tally.refused else None
    return result, faults


def share(text: str) -> float:
    """A share of rows for argparse: 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no share from 0 to 1")
    return value


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n"
        "  QDRANT_URL=http://127.0.0.1:6333 QDRANT_COLLECTION=products PLANNER_EMBED_URL=http://127.0.0.1:8081/v1 \\\n"
        "      python scripts/catalog/index_catalog.py items.parquet --title-column name --currency USD --int8\n"
        "  python scripts/catalog/index_catalog.py items-1.csv.gz items-2.csv.gz --store build/items.edge",
    )
    parser.add_argument("catalog", type=Path, nargs="+", help=".csv, .tsv, .jsonl (each also .gz) or .parquet")
    parser.add_argument("--store", type=Path, help="folder of an embedded store (default: QDRANT_URL's collection)")
    parser.add_argument("--title-column", metavar="NAME", help="column of the title (default: title)")
    parser.add_argument("--category-column", metavar="NAME", help='default: category, if it exists; "" reads none')
    parser.add_argument("--price-column", metavar="NAME", help='default: price, if it exists; "" reads none')
    parser.add_argument("--currency-column", metavar="NAME", help='default: currency, if it exists; "" reads none')
    parser.add_argument("--currency", help="currency of prices whose row names none, as USD")
    parser.add_argument("--on-disk", action="store_true", help="read vectors from disk as a search needs them")
    parser.add_argument("--int8", action="store_true", help="search a copy of the vectors quantised to 8 bits")
    parser.add_argument("--replace", action="store_true", help="replace an embedded store that was filled otherwise")
    parser.add_argument("--bad-rows", type=Path, help="file of refused rows (default: build/bad_rows/CATALOG.jsonl)")
    parser.add_argument("--max-bad", type=share, default=0.01, help="share of rows that may be refused (%(default)s)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    try:
        result, faults = index(args, Settings.from_env())
    except (OSError, ValueError, StoreError, EncoderError) as error:
        print(f"index_catalog: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("index_catalog: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    done = f"{result['rows']:,} rows in {result['seconds']} s: {result['new']:,} new points"
    print(f"{done}, {result['there']:,} there already or repeated, {result['refused']:,} refused", file=sys.stderr)
    fields = ", ".join(f"{result['having'][name]:,} a {name}" for name in FIELDS[1:])
    print(f"  {result['having']['title']:,} rows make items; of them have {fields}", file=sys.stderr)
    for reason, count in result["reasons"].items():
        print(f"  {count:,} refused: {reason}", file=sys.stderr)
    for fault in faults:
        print(f"index_catalog: {fault}", file=sys.stderr)
    print(json.dumps(result, ensure_ascii=False))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
