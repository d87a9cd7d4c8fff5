"""Put a snapshot of snapshot.py into a Qdrant server or an embedded store, and check what arrived.

First the file's checksum is compared with the manifest's; then the server takes it in (or the folder is unpacked beside
its place); then points are counted and all ids and 64 sampled points, payload and vector, are compared with what the
manifest says. A collection or store that holds points already is left alone unless --replace is given.

Exit codes: 0 everything has arrived; 1 something is missing or different; 2 wrong use, a damaged copy, or a store that
does not answer. A signal ends it with 128 and the signal's number, after what was unpacked is deleted.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tqdm import tqdm
from tqdm.utils import CallbackIOWrapper

from scripts.catalog.catalog_targets import chosen_store
from scripts.catalog.point_survey import differences, points_of, survey
from scripts.catalog.snapshot import SLOW_S, stoppable
from scripts.catalog.snapshot_files import Manifest, SnapshotError, as_json, check_file, unpack_folder
from swift_plugin.settings import Settings
from swift_plugin.stores import EdgeStore, QdrantStore, StoreError, check_replaceable, replace_folder


def restore(folder: Path, store: EdgeStore | QdrantStore, replace: bool) -> tuple[Manifest, list[str]]:
    """Put the snapshot in `folder` into `store`; its manifest, and what arrived otherwise (nothing: empty)."""
    manifest = Manifest.read(folder)
    kind = "edge" if isinstance(store, EdgeStore) else "qdrant"
    if manifest.kind != kind:
        raise SnapshotError(
            f"{folder} is a snapshot of {'an embedded store' if kind == 'qdrant' else 'a Qdrant collection'} and fits"
            " only such a one; fill the other kind with index_catalog.py"
        )
    file = check_file(folder, manifest)
    if isinstance(store, EdgeStore):
        return manifest, _restore_folder(file, store, manifest, replace)
    held = store.call(_points_held(store.collection))
    if held and not replace:
        raise StoreError(f"the collection {store.collection!r} holds {held} points; give --replace to replace them")
    _upload(file, store, manifest)
    return manifest, differences(manifest.survey, survey(points_of(store), manifest.survey.points))


def _restore_folder(file: Path, store: EdgeStore, manifest: Manifest, replace: bool) -> list[str]:
    """Unpack beside the place, compare there, and move only what is right."""
    check_replaceable(store.path)
    if store.path.exists() and any(store.path.iterdir()) and not replace:
        raise StoreError(f"{store.path} holds a store already; give --replace to replace it")
    store.path.parent.mkdir(parents=True, exist_ok=True)
    workplace = Path(tempfile.mkdtemp(prefix=f"{store.path.name}.", dir=store.path.parent))
    try:
        workplace.chmod(0o755)  # mkdtemp's 0700 would keep other users of a shared box out
        unpack_folder(file, workplace)
        arrived = EdgeStore(workplace)
        found = differences(manifest.survey, survey(points_of(arrived), manifest.survey.points))
        arrived.close()
        if not found:
            replace_folder(workplace, store.path)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)
    return found


def _points_held(collection: str) -> Any:
    def ask(client: Any, timeout_s: int) -> int:
        if not client.collection_exists(collection):
            return 0
        return int(client.count(collection, exact=True, timeout=timeout_s).count)

    return ask


def _upload(file: Path, store: QdrantStore, manifest: Manifest) -> None:
    """Send the file in pieces; the server checks its checksum and takes it in before it answers."""

    def send(client: Any) -> None:
        with file.open("rb") as opened, tqdm(total=manifest.bytes, unit="B", unit_scale=True, desc="upload") as bar:
            client.http.snapshots_api.recover_from_uploaded_snapshot(
                collection_name=store.collection,
                wait=True,
                priority="snapshot",  # the file wins over what the collection holds
                checksum=manifest.sha256,
                snapshot=CallbackIOWrapper(bar.update, opened, "read"),
            )

    store.call_once(send, SLOW_S)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n"
        "  QDRANT_URL=http://127.0.0.1:6333 QDRANT_COLLECTION=products \\\n"
        "      python scripts/catalog/restore.py build/products-snapshot\n"
        "  python scripts/catalog/restore.py build/items-snapshot --store build/items.edge --replace",
    )
    parser.add_argument("snapshot", type=Path, help="folder that snapshot.py wrote")
    parser.add_argument("--store", type=Path, help="folder of an embedded store (default: QDRANT_URL's collection)")
    parser.add_argument("--replace", action="store_true", help="replace the points that are there already")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    store: Any = None
    try:
        store = chosen_store(Settings.from_env(), args.store)
        manifest, found = restore(args.snapshot, store, args.replace)
    except (OSError, ValueError, StoreError) as error:
        print(f"restore: {error}", file=sys.stderr)
        return 2
    finally:
        if store is not None:
            store.close()
    for difference in found:
        print(f"restore: {difference}. Copy the snapshot again, or take a new one", file=sys.stderr)
    if not found:
        print(f"restore: all {manifest.survey.points:,} points have arrived", file=sys.stderr)
    print(json.dumps({**as_json(manifest), "differences": found}, ensure_ascii=False))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(stoppable("restore", main))
