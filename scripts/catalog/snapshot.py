"""Write a snapshot of a collection, to be carried to another machine and put there by restore.py.

A Qdrant collection (QDRANT_URL, QDRANT_COLLECTION) is snapshotted by its server and downloaded; an embedded store
(--store, PLANNER_STORE_DIR) is packed. Beside the file stands a manifest: its checksum, the number of points, a
checksum of all ids and one of each of 64 sampled points, which restore.py compares on arrival. Nothing may write to the
collection meanwhile; it is surveyed before and after, and a difference ends the command with 1.

Exit codes: 0 written; 1 the collection changed meanwhile; 2 wrong use, or the store does not answer. A signal ends it
with 128 and the signal's number, after the snapshot is deleted from the server.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote

import httpx
from tqdm import tqdm

from scripts.catalog.catalog_targets import chosen_store
from scripts.catalog.point_survey import differences, points_of, survey
from scripts.catalog.snapshot_files import CHUNK, MANIFEST, HashingWriter, Manifest, as_json, pack_folder
from swift_plugin.settings import VECTOR_NAME, Settings
from swift_plugin.stores import EdgeStore, QdrantStore, StoreError

SLOW_S = 3600.0  # a server may take minutes to write a snapshot of a large collection, or to take it in
STALL_S = 60.0  # without a byte, a download has broken off


class Stopped(SystemExit):
    """A signal told the command to end; the exit code is 128 and the signal's number, as a shell counts."""


def stoppable(name: str, main: Callable[[], int]) -> int:
    """The exit code of `main`, which SIGTERM, SIGHUP and Ctrl-C end by Stopped: its `finally` blocks clean up."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, stop)
    try:
        return main()
    except Stopped as stopped:
        code = int(str(stopped.code))
        print(f"{name}: ended by {signal.Signals(code - 128).name}", file=sys.stderr)
        return code


def take(store: EdgeStore | QdrantStore, folder: Path) -> tuple[Manifest, list[str]]:
    """Write the snapshot of `store` into `folder`; the manifest, and what changed meanwhile (nothing: empty)."""
    info = store.describe()
    if info.points == 0:
        raise StoreError(f"{info.kind} {info.name} is empty: there is nothing to carry")
    if info.vector_size is None:
        raise StoreError(f"{info.kind} {info.name} has no vector named {VECTOR_NAME!r}: it is no catalogue of this kit")
    if (folder / MANIFEST).exists():
        raise ValueError(f"{folder} holds a snapshot already: give another --out, or delete it")
    if isinstance(store, EdgeStore) and folder.resolve().is_relative_to(store.path.resolve()):
        raise ValueError(f"{folder} lies in the store itself: give --out another place")
    folder.mkdir(parents=True, exist_ok=True)
    before = survey(points_of(store), info.points)
    if isinstance(store, EdgeStore):
        name, file = store.path.name, "store.tar"
        store.close()  # the engine may write to an open folder; the survey opens it again
        written = pack_folder(store.path, folder / file)
    else:
        name, file = store.collection, "collection.snapshot"
        written = download(store, folder / file)
    changed = differences(before, survey(points_of(store), info.points))
    manifest = Manifest(info.kind, name, file, written.bytes, written.sha256, info.vector_size, info.encoder, before)
    if not changed:
        manifest.write(folder)
    return manifest, changed


def download(store: QdrantStore, target: Path) -> HashingWriter:
    """Have the server make a snapshot, fetch it into `target` and delete it there."""
    print("snapshot: the server is writing it", file=sys.stderr)
    try:
        made = store.call_once(lambda client: client.create_snapshot(store.collection, wait=True), SLOW_S)
    except Stopped:
        print(f"snapshot: the server goes on writing one of {store.collection!r}; delete it there", file=sys.stderr)
        raise
    if made is None:
        raise StoreError(f"Qdrant made no snapshot of {store.collection!r}; has its disk room for one?")
    try:
        written = _fetch(store, made.name, target)
    finally:
        store.call(lambda client, _: client.delete_snapshot(store.collection, made.name, wait=True))
    if made.checksum and made.checksum != written.sha256:
        raise StoreError(f"{target} is not what the server wrote (sha256 differs); run the command again")
    return written


def _fetch(store: QdrantStore, snapshot: str, target: Path) -> HashingWriter:
    path = f"/collections/{quote(store.collection, safe='')}/snapshots/{quote(snapshot, safe='')}"
    try:
        with store.http_client(STALL_S) as client, client.stream("GET", path) as response:
            if response.status_code != 200:
                raise StoreError(f"Qdrant refused to send {path}: HTTP {response.status_code}")
            encoding = response.headers.get("Content-Encoding", "identity")
            if encoding != "identity":
                raise StoreError(
                    f"{path} came compressed ({encoding}), which was not asked for, and would not be the server's file;"
                    " does a proxy stand between? Give QDRANT_URL the server's own address"
                )
            size = int(response.headers.get("Content-Length", 0)) or None
            with target.open("wb") as file, tqdm(total=size, unit="B", unit_scale=True, desc="download") as bar:
                writer = HashingWriter(file, bar)
                for data in response.iter_raw(CHUNK):
                    writer.write(data)
    except httpx.TransportError as error:
        raise StoreError(f"the download of {path} broke off ({error}); run the command again") from error
    return writer


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n"
        "  QDRANT_URL=http://127.0.0.1:6333 QDRANT_COLLECTION=products \\\n"
        "      python scripts/catalog/snapshot.py --out build/products-snapshot\n"
        "  python scripts/catalog/snapshot.py --store build/items.edge --out build/items-snapshot",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the snapshot and its manifest")
    parser.add_argument("--store", type=Path, help="folder of an embedded store (default: QDRANT_URL's collection)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    store: Any = None
    try:
        store = chosen_store(Settings.from_env(), args.store)
        manifest, changed = take(store, args.out)
    except (OSError, ValueError, StoreError) as error:
        print(f"snapshot: {error}", file=sys.stderr)
        return 2
    finally:
        if store is not None:
            store.close()
    for difference in changed:
        print(f"snapshot: something wrote to the collection meanwhile: {difference}", file=sys.stderr)
    print(f"snapshot: {manifest.survey.points:,} points, {manifest.bytes:,} bytes in {args.out}", file=sys.stderr)
    print(json.dumps(as_json(manifest), ensure_ascii=False))
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(stoppable("snapshot", main))
