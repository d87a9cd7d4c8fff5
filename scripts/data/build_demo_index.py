"""Embed a catalogue into the embedded vector store: catalog.jsonl -> catalog.edge.

Each line of the catalogue is one item, {"title": ..., "category": ..., "price": ..., "currency": ...}; only
the title is required. The store is built beside its place and put there when it is complete and its count is
right.
"""

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from swift_plugin.encoders import EncoderError, make_encoder
from swift_plugin.settings import DEMO_CATALOG, Settings
from swift_plugin.stores import EdgeStore, StoreError, check_replaceable, check_store, replace_folder

PAYLOAD_KEYS = ("title", "category", "price", "currency")
BATCH = 1024  # items encoded together


def read_catalogue(path: Path) -> list[dict[str, Any]]:
    """The payloads of all items; raises ValueError naming the line that has no title."""
    payloads = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                item = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}:{number} is not JSON: {error}") from None
            title = item.get("title") if isinstance(item, dict) else None
            if not isinstance(title, str) or not title.strip():
                raise ValueError(f"{path}:{number} has no title: {line.strip()[:120]}")
            payloads.append({key: item[key] for key in PAYLOAD_KEYS if item.get(key) is not None})
    if not payloads:
        raise ValueError(f"{path} is empty: a store without items scores every search 0")
    return payloads


def batches(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """`rows` in pieces of BATCH, with a progress bar counting items."""
    with tqdm(total=len(rows), unit="item", desc="index") as bar:
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            yield batch
            bar.update(len(batch))


def build(catalogue: Path, target: Path, settings: Settings) -> dict[str, Any]:
    """Build the store at `target` and return what it holds; `target` is untouched if anything fails."""
    payloads = read_catalogue(catalogue)
    check_replaceable(target)
    encoder = make_encoder(settings)
    target.parent.mkdir(parents=True, exist_ok=True)
    workplace = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        workplace.chmod(0o755)  # mkdtemp's 0700 would keep other users of a shared box out
        store = EdgeStore.create(workplace, encoder.dim, encoder=encoder.name)
        for batch in batches(payloads):
            store.add(encoder.encode([row["title"] for row in batch]), batch)
        if len(payloads) > store.EXACT_UP_TO:
            print("index: building the HNSW graph, a minute for each 300,000 items", file=sys.stderr)
        store.finish()
        info = check_store(store, encoder)
        store.close()
        if info.points != len(payloads):
            raise StoreError(f"the store holds {info.points} points, the catalogue {len(payloads)} items")
        replace_folder(workplace, target)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)
    return {**dataclasses.asdict(info), "name": str(target)}


def main(argv: list[str] | None = None) -> int:
    try:
        settings = Settings.from_env()
    except ValueError as error:
        print(f"build_demo_index: {error}", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python scripts/data/build_demo_index.py --catalog build/demo/catalog.jsonl"
        " --store build/demo/catalog.edge",
    )
    parser.add_argument("--catalog", type=Path, default=DEMO_CATALOG, help="JSONL (default: %(default)s)")
    parser.add_argument("--store", type=Path, default=settings.store_dir, help="(default: %(default)s)")
    args = parser.parse_args(argv)
    try:
        built = build(args.catalog, args.store.absolute(), settings)
    except (OSError, ValueError, StoreError, EncoderError) as error:
        print(f"build_demo_index: {error}", file=sys.stderr)
        return 2
    print(json.dumps(built, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
