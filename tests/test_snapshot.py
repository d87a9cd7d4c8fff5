"""A collection carried to another machine: all of it arrives, or the command says what did not."""

import gzip
import hashlib
import json
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qdrant_edge as edge
from catalog_world import DIM, TinyEncoder, rows, set_environment
from commands import ROOT, clean_environment
from faulty_http import Fault
from qdrant_server import QdrantServer, serve_folder
from small_world import TITLES, build_store

from scripts.catalog import restore, snapshot
from scripts.catalog.point_survey import PAGE, SAMPLE, EdgePoints, QdrantPoints, Survey, differences, survey
from swift_plugin.settings import VECTOR_NAME
from swift_plugin.stores import EdgeStore, QdrantStore

KEY = "s3cret-key"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An embedded store of TITLES with whole numbers for ids, as the demo's has."""
    return build_store(tmp_path_factory.mktemp("source") / "catalog.edge")


@pytest.fixture
def source(folder: Path) -> Iterator[QdrantServer]:
    with serve_folder(folder, api_key=KEY) as running:
        yield running


@pytest.fixture
def box() -> Iterator[QdrantServer]:
    with QdrantServer(None, api_key=KEY) as running:
        yield running


def command(main: Any, capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, Any], str]:
    """Exit code, JSON (empty if none was printed) and what stood on stderr."""
    code = main.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert KEY not in out + err and "Traceback" not in err
    return code, json.loads(out) if out else {}, err


def on(monkeypatch: pytest.MonkeyPatch, server: QdrantServer, **more: str) -> None:
    set_environment(monkeypatch, QDRANT_URL=server.url, QDRANT_API_KEY=KEY, PLANNER_RETRY_SECONDS="5", **more)


def survey_of(server: QdrantServer) -> Survey:
    return survey(QdrantPoints(QdrantStore(server.url, server.collection, KEY, retry_budget_s=5, request_timeout_s=5)))


# --- a server's collection --------------------------------------------------------------------------------------


def test_a_collection_moves_from_server_to_server(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    source: QdrantServer,
    box: QdrantServer,
) -> None:
    on(monkeypatch, source)
    code, said, _ = command(snapshot, capsys, "--out", tmp_path / "snap")
    assert code == 0 and said["survey"]["points"] == len(TITLES) and said["kind"] == "qdrant"
    assert not source.snapshots  # it does not stay on the server's disk
    assert sorted(path.name for path in (tmp_path / "snap").iterdir()) == ["collection.snapshot", "manifest.json"]
    on(monkeypatch, box, QDRANT_COLLECTION="moved")
    code, said, err = command(restore, capsys, tmp_path / "snap")
    assert (code, said["differences"], box.collection) == (0, [], "moved")
    assert f"all {len(TITLES)} points have arrived" in err
    assert survey_of(box) == survey_of(source)


def test_points_that_are_there_are_replaced_only_if_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: QdrantServer
) -> None:
    on(monkeypatch, source)
    assert command(snapshot, capsys, "--out", tmp_path / "snap")[0] == 0
    with serve_folder(build_store(tmp_path / "old.edge", ["one desk lamp"]), api_key=KEY) as box:
        on(monkeypatch, box)
        code, _, err = command(restore, capsys, tmp_path / "snap")
        assert code == 2 and "holds 1 points; give --replace" in err and survey_of(box).points == 1
        assert command(restore, capsys, tmp_path / "snap", "--replace")[0] == 0
        assert survey_of(box) == survey_of(source)


def test_the_move_survives_short_faults(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    source: QdrantServer,
    box: QdrantServer,
) -> None:
    on(monkeypatch, source)
    source.fail(Fault(status=503), Fault(), Fault(reset=True), Fault(), Fault(cut=True))
    assert command(snapshot, capsys, "--out", tmp_path / "snap")[0] == 0
    on(monkeypatch, box)
    box.fail(Fault(status=503), Fault(), Fault(), Fault(cut=True), Fault(), Fault(status=502))
    assert command(restore, capsys, tmp_path / "snap")[0] == 0
    assert survey_of(box) == survey_of(source) and not source.faults and not box.faults


def test_a_snapshot_is_not_begun_twice_and_a_broken_download_is_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: QdrantServer
) -> None:
    """A server whose disk is full answers 500 for as long as it is asked."""
    on(monkeypatch, source)
    asked_first = [Fault()] * requests_before_the_snapshot(source, tmp_path, capsys)
    source.fail(*asked_first, Fault(status=500))
    source.requests.clear()
    code, _, err = command(snapshot, capsys, "--out", tmp_path / "a")
    assert code == 2 and "HTTP 500" in err
    assert [request.path for request in source.requests if request.path.endswith("/snapshots")] == [
        "/collections/products/snapshots"
    ]
    source.fail(*asked_first, Fault(), Fault(cut=True))
    code, _, err = command(snapshot, capsys, "--out", tmp_path / "b")
    assert code == 2 and "broke off" in err and not (tmp_path / "b" / "manifest.json").exists()
    assert not source.snapshots
    code, _, err = command(restore, capsys, tmp_path / "b")
    assert code == 2 and "no finished snapshot" in err


def test_a_snapshot_is_fetched_as_it_is_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: QdrantServer
) -> None:
    """Qdrant's web server and many a proxy compress what they send, where the client allows it."""
    on(monkeypatch, source)
    before = requests_before_the_snapshot(source, tmp_path, capsys)
    (download,) = [it for it in source.requests if it.method == "GET" and "/snapshots/" in it.path]
    assert download.headers["accept-encoding"] == "identity"
    source.fail(*[Fault()] * (before + 1), Fault(headers=(("Content-Encoding", "gzip"),), change=gzip.compress))
    code, _, err = command(snapshot, capsys, "--out", tmp_path / "snap")
    assert code == 2 and "came compressed (gzip)" in err and "sha256" not in err
    assert not source.snapshots and not (tmp_path / "snap" / "collection.snapshot").exists()


def requests_before_the_snapshot(server: QdrantServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> int:
    server.requests.clear()
    assert command(snapshot, capsys, "--out", tmp_path / "count")[0] == 0
    paths = [request.path for request in server.requests]
    return paths.index("/collections/products/snapshots")


def test_a_collection_written_to_meanwhile_gives_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server gets a point while it writes the snapshot."""

    class Busy(QdrantServer):
        def _snapshot(self) -> tuple[int, Any]:
            size = self.vectors["dense"]["size"] if self.vectors else 0
            point = edge.Point(10_000, {VECTOR_NAME: [1.0] * size}, {"title": "new"})
            self.shard.update(edge.UpdateOperation.upsert_points([point]))  # type: ignore[union-attr]
            return super()._snapshot()

    made = build_store(tmp_path / "busy.edge")
    size = EdgeStore(made).describe().vector_size
    vectors = {VECTOR_NAME: {"size": size, "distance": "Cosine"}}
    with Busy(edge.EdgeShard.load(str(made)), vectors=vectors, folder=made, api_key=KEY) as server:
        on(monkeypatch, server)
        code, _, err = command(snapshot, capsys, "--out", tmp_path / "snap")
    assert code == 1 and "wrote to the collection meanwhile: 161 points instead of 160" in err
    assert not (tmp_path / "snap" / "manifest.json").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_leaves_no_snapshot_on_the_server(
    tmp_path: Path, source: QdrantServer, number: signal.Signals, code: int
) -> None:
    names = {"QDRANT_URL": source.url, "QDRANT_API_KEY": KEY, "PLANNER_RETRY_SECONDS": "5"}
    source.latency_s = 1.0  # the download waits for so long
    with process("snapshot", "--out", str(tmp_path / "snap"), **names) as run:
        wait_for(lambda: any(it.method == "GET" and "/snapshots/" in it.path for it in source.requests), run)
        run.send_signal(number)
        _, err = run.communicate(timeout=60)
    assert run.returncode == code and "Traceback" not in err and f"ended by {number.name}" in err
    assert not source.snapshots and not (tmp_path / "snap" / "manifest.json").exists()


def test_a_signal_during_a_restore_leaves_no_half_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    set_environment(monkeypatch)
    assert command(snapshot, capsys, "--store", folder, "--out", tmp_path / "snap")[0] == 0
    with tarfile.open(tmp_path / "snap" / "store.tar", "a") as archive:
        for number in range(20_000):  # which take a while
            archive.addfile(tarfile.TarInfo(f"more/{number}"))
    resign(tmp_path / "snap")
    with process("restore", str(tmp_path / "snap"), "--store", str(tmp_path / "box" / "items.edge")) as run:
        wait_for(lambda: bool(list(tmp_path.glob("box/*/more/0"))), run)
        run.send_signal(signal.SIGTERM)
        _, err = run.communicate(timeout=60)
    assert run.returncode == 143 and "Traceback" not in err and "ended by SIGTERM" in err
    assert not list((tmp_path / "box").iterdir())


def process(name: str, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
    """The command as a process of its own."""
    return subprocess.Popen(
        [sys.executable, f"scripts/catalog/{name}.py", *arguments],
        cwd=ROOT, env={**clean_environment(), **variables}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for(reached: Any, run: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


# --- an embedded store ------------------------------------------------------------------------------------------


def test_an_embedded_store_moves_as_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    set_environment(monkeypatch)
    assert command(snapshot, capsys, "--store", folder, "--out", tmp_path / "snap")[0] == 0
    code, said, _ = command(restore, capsys, tmp_path / "snap", "--store", tmp_path / "box" / "items.edge")
    assert (code, said["kind"], said["encoder"]) == (0, "edge", "hashed-480")
    here, there = EdgeStore(folder), EdgeStore(tmp_path / "box" / "items.edge")
    assert there.describe().encoder == here.describe().encoder
    query = np.random.default_rng(0).standard_normal((20, 480)).astype(np.float32)
    assert there.search_batch(query, 20) == here.search_batch(query, 20)
    code, _, err = command(restore, capsys, tmp_path / "snap", "--store", tmp_path / "box" / "items.edge")
    assert code == 2 and "give --replace" in err
    there.close()
    assert command(restore, capsys, tmp_path / "snap", "--store", tmp_path / "box" / "items.edge", "--replace")[0] == 0
    assert [path.name for path in (tmp_path / "box").iterdir()] == ["items.edge"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda snap: (snap / "manifest.json").unlink(), "no finished snapshot"),
        (lambda snap: (snap / "manifest.json").write_text("{"), "is damaged"),
        (lambda snap: (snap / "manifest.json").write_text('{"kind": "edge"}'), "is damaged"),
        (lambda snap: edit(snap, file="../store.tar"), "no file of this folder"),
        (lambda snap: (snap / "store.tar").unlink(), "is missing; copy the whole folder"),
        (lambda snap: cut(snap / "store.tar"), "bytes, "),
        (lambda snap: flip(snap / "store.tar"), "sha256 differs"),
        (lambda snap: edit(snap, kind="qdrant"), "a snapshot of a Qdrant collection"),
    ],
)
def test_a_copy_that_is_not_whole_is_refused_before_anything_is_touched(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    spoil: Any,
    message: str,
) -> None:
    set_environment(monkeypatch)
    assert command(snapshot, capsys, "--store", folder, "--out", tmp_path / "snap")[0] == 0
    spoil(tmp_path / "snap")
    code, said, err = command(restore, capsys, tmp_path / "snap", "--store", tmp_path / "box.edge")
    assert code == 2 and message in err and not said
    assert [path.name for path in tmp_path.iterdir()] == ["snap"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../outside", tarfile.REGTYPE),
        ("/tmp/outside-of-the-store", tarfile.REGTYPE),
        ("inner/../../outside", tarfile.REGTYPE),
        ("link", tarfile.SYMTYPE),
    ],
)
def test_an_archive_that_leaves_its_folder_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    name: str,
    kind: bytes,
) -> None:
    set_environment(monkeypatch)
    assert command(snapshot, capsys, "--store", folder, "--out", tmp_path / "snap")[0] == 0
    with tarfile.open(tmp_path / "snap" / "store.tar", "w") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc"
        archive.addfile(member)
    resign(tmp_path / "snap")
    code, _, err = command(restore, capsys, tmp_path / "snap", "--store", tmp_path / "box.edge")
    assert code == 2 and "no file of a store" in err
    assert [path.name for path in tmp_path.iterdir()] == ["snap"] and not Path("/tmp/outside-of-the-store").exists()


def test_a_store_that_arrives_with_other_points_is_named_and_not_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    set_environment(monkeypatch)
    assert command(snapshot, capsys, "--store", folder, "--out", tmp_path / "snap")[0] == 0
    other = build_store(tmp_path / "other.edge", TITLES[:-1])
    assert command(snapshot, capsys, "--store", other, "--out", tmp_path / "other")[0] == 0
    (tmp_path / "other" / "store.tar").rename(tmp_path / "snap" / "store.tar")
    resign(tmp_path / "snap")
    code, said, err = command(restore, capsys, tmp_path / "snap", "--store", tmp_path / "box.edge")
    assert code == 1 and "159 points instead of 160" in err and said["differences"]
    assert not (tmp_path / "box.edge").exists()


def edit(snap: Path, **values: Any) -> None:
    manifest = json.loads((snap / "manifest.json").read_text())
    (snap / "manifest.json").write_text(json.dumps({**manifest, **values}))


def resign(snap: Path) -> None:
    """Make the manifest speak of the data file as it is now."""
    data = (snap / "store.tar").read_bytes()
    edit(snap, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-512])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# --- wrong use --------------------------------------------------------------------------------------------------


def test_what_cannot_be_snapshotted_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], box: QdrantServer
) -> None:
    set_environment(monkeypatch)
    assert "where? Set QDRANT_URL" in command(snapshot, capsys, "--out", tmp_path / "a")[2]
    assert "no embedded store" in command(snapshot, capsys, "--store", tmp_path / "x", "--out", tmp_path / "a")[2]
    empty = EdgeStore.create(tmp_path / "empty", DIM, encoder="tiny")
    empty.finish()
    assert "is empty" in command(snapshot, capsys, "--store", tmp_path / "empty", "--out", tmp_path / "a")[2]
    inside = EdgeStore.create(tmp_path / "s.edge", DIM, encoder="tiny")
    inside.add(np.ones((1, DIM), dtype=np.float32), [{"title": "a"}])
    inside.finish()
    err = command(snapshot, capsys, "--store", tmp_path / "s.edge", "--out", tmp_path / "s.edge" / "snap")[2]
    assert "lies in the store itself" in err and not (tmp_path / "s.edge" / "snap").exists()
    on(monkeypatch, box)
    code, _, err = command(snapshot, capsys, "--out", tmp_path / "a")
    assert code == 2 and "The collection is missing" in err and not (tmp_path / "a").exists()


def test_a_store_without_the_kits_vector_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "other.edge"
    folder.mkdir()
    vectors = {"text": edge.EdgeVectorParams(size=2, distance=edge.Distance.Cosine)}
    shard = edge.EdgeShard.create(str(folder), edge.EdgeConfig(vectors=vectors, wal_enabled=False))
    shard.update(edge.UpdateOperation.upsert_points([edge.Point(1, {"text": [1.0, 0.0]}, {"title": "a"})]))
    shard.close()
    set_environment(monkeypatch)
    code, _, err = command(snapshot, capsys, "--store", folder, "--out", tmp_path / "snap")
    assert code == 2 and "has no vector named 'dense'" in err and not (tmp_path / "snap").exists()
    with QdrantServer(edge.EdgeShard.load(str(folder)), vectors={"text": {"size": 2, "distance": "Dot"}}) as server:
        on(monkeypatch, server)
        code, _, err = command(snapshot, capsys, "--out", tmp_path / "snap")
    assert code == 2 and "has no vector named 'dense'" in err and not (tmp_path / "snap").exists()


def test_a_snapshot_is_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    set_environment(monkeypatch)
    assert command(snapshot, capsys, "--store", folder, "--out", tmp_path / "snap")[0] == 0
    code, _, err = command(snapshot, capsys, "--store", folder, "--out", tmp_path / "snap")
    assert code == 2 and "holds a snapshot already" in err


# --- the survey -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> EdgeStore:
    """More than one page of points, with UUIDs for ids."""
    from scripts.catalog.catalog_items import make_item

    items = [make_item(row) for row in rows(PAGE + 300)]
    store = EdgeStore.create(tmp_path_factory.mktemp("large") / "s.edge", DIM, encoder="tiny")
    vectors = TinyEncoder().encode([item.title for item in items])
    store.add(vectors, [item.payload for item in items], [item.id for item in items])
    store.finish()
    return store


def test_a_survey_reads_every_point_once(large: EdgeStore) -> None:
    pages = list(EdgePoints(large).pages())
    ids = [point_id for page in pages for point_id in page]
    assert len(pages) == 2 and len(ids) == len(set(ids)) == PAGE + 300
    made = survey(EdgePoints(large))
    assert made.points == PAGE + 300 and len(made.sample) == SAMPLE


def test_both_engines_give_the_same_survey(large: EdgeStore) -> None:
    made = survey(EdgePoints(large))
    large.close()
    with serve_folder(large.path, api_key=KEY) as server:
        assert survey_of(server) == made


class Listed:
    """Points held in a dictionary, to spoil one at a time."""

    def __init__(self, points: dict[int, tuple[dict[str, Any], list[float]]]) -> None:
        self.points = points

    def pages(self) -> Iterator[list[int | str]]:
        yield list(self.points)

    def fetch(self, ids: Any) -> Any:
        return [(point_id, *self.points[point_id]) for point_id in ids]


def listed() -> dict[int, tuple[dict[str, Any], list[float]]]:
    return {number: ({"title": f"t{number}", "price": 0.1}, [0.1, float(number)]) for number in range(SAMPLE)}


def test_order_does_not_matter_and_float32_is_what_counts() -> None:
    turned = dict(reversed(listed().items()))
    turned[3] = (dict(reversed(turned[3][0].items())), [float(np.float32(0.1)), 3.0])
    assert differences(survey(Listed(listed())), survey(Listed(turned))) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda points: points.pop(3), "63 points instead of 64"),
        (lambda points: points.update({99: points.pop(3)}), "the ids differ"),
        (lambda points: points[3][0].update(title="u"), "1 of 64 sampled points have another payload or vector, as 3"),
        (lambda points: points[3][1].__setitem__(1, np.nextafter(np.float32(3), np.float32(4))), "1 of 64 sampled"),
    ],
)
def test_every_difference_is_named(change: Any, said: str) -> None:
    points = listed()
    change(points)
    found = differences(survey(Listed(listed())), survey(Listed(points)))
    assert len(found) == 1 and said in found[0]


def test_a_point_that_cannot_be_read_is_named() -> None:
    made = survey(Listed(listed()))
    lost = replace(made, sample={key: value for key, value in made.sample.items() if key != "3"})
    assert differences(made, lost) == ["the sampled point 3 cannot be read"]


@pytest.mark.parametrize("main", [snapshot, restore])
def test_help_shows_an_example(main: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["--help"])
    assert f"python scripts/catalog/{main.__name__.rsplit('.')[-1]}.py" in capsys.readouterr().out
