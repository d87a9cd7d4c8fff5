"""The index command: both engines filled alike, faults named, killed runs completed, memory flat."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from catalog_world import (
    DIM,
    TinyEmbeddings,
    TinyEncoder,
    kill_at_request,
    rows,
    set_environment,
    stall_at,
    start,
    write_csv,
    write_jsonl,
)
from commands import ROOT, clean_environment
from faulty_http import Fault
from qdrant_server import QdrantServer
from small_world import encoder

from scripts.catalog import index_catalog
from scripts.catalog.filled_by import LOOKED_AT
from scripts.catalog.point_survey import EdgePoints, QdrantPoints, Survey, survey
from swift_plugin.stores import EdgeStore, QdrantStore


@pytest.fixture
def endpoint() -> Iterator[TinyEmbeddings]:
    with TinyEmbeddings() as running:
        yield running


@pytest.fixture
def server() -> Iterator[QdrantServer]:
    with QdrantServer(None) as running:
        yield running


def command(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, Any], str]:
    """Exit code, JSON (empty if none was printed) and what stood on stderr."""
    code = index_catalog.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else {}, err


def edge_survey(folder: Path) -> Survey:
    store = EdgeStore(folder)
    made = survey(EdgePoints(store))
    store.close()
    return made


def qdrant_survey(server: QdrantServer) -> Survey:
    store = QdrantStore(server.url, "products", retry_budget_s=10, request_timeout_s=5)
    return survey(QdrantPoints(store))


def test_an_embedded_store_is_filled_counted_and_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_environment(monkeypatch)
    items = [{"title": title, "price": "9.5"} for title in ("red desk lamp", "trail running shoes", "yoga mat")]
    first = write_csv(tmp_path / "a.csv", [*items, items[0], {"title": "***"}, {"title": "x", "price": "?"}])
    second = write_jsonl(tmp_path / "b.jsonl", [items[0], {"title": "blue desk lamp"}])
    bad = tmp_path / "bad.jsonl"
    code, result, err = command(
        capsys,
        first,
        second,
        "--store",
        tmp_path / "s.edge",
        "--bad-rows",
        bad,
        "--currency",
        "EUR",
        "--max-bad",
        "0.5",
    )
    assert code == 0
    assert {key: result[key] for key in ("rows", "new", "there", "refused", "points")} == {
        "rows": 8,
        "new": 4,
        "there": 2,
        "refused": 2,
        "points": 4,
    }
    assert result["store"]["encoder"].startswith("hashed") and result["store"]["points"] == 4
    store = EdgeStore(tmp_path / "s.edge")
    ((lamps, shoes),) = [
        store.search_payloads(encoder().encode(["desk lamp", "running shoes"]), 2, ("price", "currency"))
    ]
    assert sorted(one["title"] for one in lamps) == ["blue desk lamp", "red desk lamp"]
    assert shoes[0] == {"title": "trail running shoes", "price": 9.5, "currency": "EUR"}
    refused = [json.loads(line) for line in bad.read_text().splitlines()]
    assert [(row["file"], row["line"], row["reason"]) for row in refused] == [
        (str(first), 7, "price is no plain number: '?'"),
        (str(first), 6, "title has no word the encoder knows"),
    ]
    assert refused[0]["row"] == "x,,?" and result["bad_rows"] == str(bad)
    assert "1 refused: price is no plain number" in err and "8 rows" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.jsonl", "bad.jsonl", "s.edge"]


def test_a_second_catalogue_replaces_an_embedded_store_only_when_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], endpoint: TinyEmbeddings
) -> None:
    set_environment(monkeypatch, PLANNER_EMBED_URL=endpoint.url)
    place = ("--store", tmp_path / "s.edge", "--bad-rows", tmp_path / "bad.jsonl", "--max-bad", "1")
    assert command(capsys, write_csv(tmp_path / "a.csv", [*rows(300), {"category": "c"}]), *place)[1]["refused"] == 1
    other = write_csv(tmp_path / "b.csv", rows(20))
    code, _, err = command(capsys, other, *place)
    assert code == 2 and "was filled with other files. --replace puts the new one in its place" in err
    assert EdgeStore(tmp_path / "s.edge").describe().points == 299 + 1 and (tmp_path / "bad.jsonl").exists()
    code, result, _ = command(capsys, other, *place, "--replace")
    assert (code, result["points"], result["bad_rows"]) == (0, 20, None)
    assert not (tmp_path / "bad.jsonl").exists()
    assert EdgeStore(tmp_path / "s.edge").describe().points == 20


def test_a_collection_is_made_filled_and_added_to(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    endpoint: TinyEmbeddings,
    server: QdrantServer,
) -> None:
    set_environment(monkeypatch, PLANNER_EMBED_URL=endpoint.url, QDRANT_URL=server.url)
    catalog = write_csv(tmp_path / "a.csv", rows(600))
    code, result, _ = command(capsys, catalog)
    assert (code, result["new"], result["points"]) == (0, 600, 600)
    assert result["store"]["kind"] == "qdrant"
    code, result, _ = command(capsys, write_csv(tmp_path / "b.csv", rows(700)))
    assert (code, result["new"], result["there"], result["points"]) == (0, 100, 600, 700)
    assert len(endpoint.texts()) == 700 + LOOKED_AT  # each once, and some to see that the encoder is the same
    found = QdrantStore(server.url, "products", retry_budget_s=10, request_timeout_s=5).search_payloads(
        TinyEncoder().encode(['item 4, 27" wide']), 1, ("price", "category")
    )
    assert found == [[{"title": 'item 4, 27" wide', "price": 4.5, "category": "c4"}]]


def test_every_fault_of_the_server_ends_in_the_same_collection(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    endpoint: TinyEmbeddings,
    server: QdrantServer,
) -> None:
    set_environment(monkeypatch, PLANNER_EMBED_URL=endpoint.url, QDRANT_URL=server.url)
    # `cut` does what was asked and loses the answer: the collection is there already at the second try, and so on
    server.fail(
        Fault(reset=True), Fault(), Fault(cut=True), *[Fault(), Fault(status=503), Fault(), Fault(cut=True)] * 3
    )
    endpoint.fail(Fault(status=503), Fault(), Fault(status=429))
    code, result, _ = command(capsys, write_csv(tmp_path / "a.csv", rows(600)))
    assert (code, result["new"], result["points"]) == (0, 600, 600)
    assert not server.faults and not endpoint.faults


def test_a_dead_server_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], endpoint: TinyEmbeddings
) -> None:
    set_environment(
        monkeypatch,
        PLANNER_EMBED_URL=endpoint.url,
        QDRANT_URL="http://127.0.0.1:9",
        PLANNER_RETRY_SECONDS="0",
        QDRANT_API_KEY="s3cret",
    )
    code, _, err = command(capsys, write_csv(tmp_path / "a.csv", rows(5)))
    assert code == 2 and "does not answer" in err and "s3cret" not in err and "Traceback" not in err


@pytest.mark.parametrize("flags", [(), ("--on-disk",), ("--int8",), ("--on-disk", "--int8")])
def test_storage_options_reach_both_engines(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    endpoint: TinyEmbeddings,
    server: QdrantServer,
    flags: tuple[str, ...],
) -> None:
    catalog = write_csv(tmp_path / "a.csv", rows(5))
    set_environment(monkeypatch, PLANNER_EMBED_URL=endpoint.url, QDRANT_URL=server.url)
    assert command(capsys, catalog, *flags)[0] == 0
    (sent,) = [request.body for request in server.requests if request.method == "PUT" and "vectors" in request.body]
    assert sent["vectors"]["dense"] == {
        "size": DIM,
        "distance": "Cosine",
        **({"on_disk": True} if "--on-disk" in flags else {}),
        **({"quantization_config": {"scalar": {"type": "int8", "always_ram": True}}} if "--int8" in flags else {}),
    }
    assert command(capsys, catalog, "--store", tmp_path / "s.edge", *flags)[0] == 0
    config = json.loads((tmp_path / "s.edge" / "edge_config.json").read_text())
    assert (config["vectors"]["dense"].get("memory") == "cold") == ("--on-disk" in flags)
    assert bool(config.get("quantization_config")) == ("--int8" in flags)


def test_every_row_without_a_word_is_refused_however_often_it_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_environment(monkeypatch)
    catalog = write_jsonl(tmp_path / "a.jsonl", [{"title": "!!!"}, {"title": "!!!"}, {"title": "red shoe"}])
    _, result, _ = command(capsys, catalog, "--store", tmp_path / "s.edge", "--max-bad", "1")
    assert [result[key] for key in ("rows", "new", "there", "refused")] == [3, 1, 0, 2]


# --- refusals --------------------------------------------------------------------------------------------------


def test_a_collection_made_otherwise_is_refused_before_anything_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    endpoint: TinyEmbeddings,
    server: QdrantServer,
) -> None:
    catalog = write_csv(tmp_path / "a.csv", rows(5))
    set_environment(monkeypatch, PLANNER_EMBED_URL=endpoint.url, QDRANT_URL=server.url)
    assert command(capsys, catalog)[0] == 0
    more = write_csv(tmp_path / "b.csv", rows(50))
    code, _, err = command(capsys, more, "--on-disk", "--int8")
    assert code == 2 and "made without --on-disk and --int8" in err
    with TinyEmbeddings("another model") as another:
        monkeypatch.setenv("PLANNER_EMBED_URL", another.url)
        for added in (more, write_jsonl(tmp_path / "other.jsonl", [{"title": "not there yet"}])):
            code, _, err = command(capsys, added)
            assert code == 2 and "filled by another encoder" in err
    monkeypatch.delenv("PLANNER_EMBED_URL")
    code, _, err = command(capsys, more)
    assert code == 2 and "for vectors of size 8, the encoder hashed-480 makes 480" in err
    server.vectors = {"dense": {"size": DIM, "distance": "Manhattan"}}
    monkeypatch.setenv("PLANNER_EMBED_URL", endpoint.url)
    code, _, err = command(capsys, more)
    assert code == 2 and "compares vectors by Manhattan" in err
    assert qdrant_survey(server).points == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a.csv",), "where? Set QDRANT_URL"),
        (("none.csv", "--store", "s"), "none.csv"),
        (("a.csv", "b.pdf", "--store", "s"), "unknown form"),
        (("a.csv", "--store", "s", "--price-column", "cost"), "no column 'cost'"),
        (("a.csv", "--store", "s", "--title-column", ""), "needs its title column"),
        (("a.csv", "--store", "photos"), "holds no vector store"),
        (("empty.csv", "--store", "s"), "no row of empty.csv makes an item"),
        (("wrong.csv", "--store", "s"), "none of the first 1000 rows can be used"),
    ],
)
def test_wrong_use_ends_with_2_and_one_message(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    endpoint: TinyEmbeddings,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    set_environment(monkeypatch, PLANNER_EMBED_URL=endpoint.url)
    monkeypatch.chdir(tmp_path)
    write_csv(Path("a.csv"), rows(5))
    write_csv(Path("empty.csv"), [])
    write_csv(Path("wrong.csv"), [{"title": f"a{i}", "price": "$5"} for i in range(1500)])
    Path("photos").mkdir()
    Path("photos/a.jpg").touch()
    code, result, err = command(capsys, *arguments, "--bad-rows", "bad.jsonl")
    assert code == 2 and message in err and not result and "Traceback" not in err
    assert Path("photos/a.jpg").exists() and not Path("s").exists()


def test_a_run_that_stored_nothing_does_not_stand_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], endpoint: TinyEmbeddings
) -> None:
    set_environment(monkeypatch, PLANNER_EMBED_URL=endpoint.url)
    catalog = write_csv(tmp_path / "a.csv", rows(9))
    assert command(capsys, catalog, "--store", tmp_path / "s.edge", "--price-column", "cost")[0] == 2
    code, result, _ = command(capsys, catalog, "--store", tmp_path / "s.edge")
    assert (code, result["points"]) == (0, 9)


def test_too_many_bad_rows_end_with_1_and_the_old_store_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], endpoint: TinyEmbeddings
) -> None:
    set_environment(monkeypatch, PLANNER_EMBED_URL=endpoint.url)
    place = ("--store", tmp_path / "s.edge", "--bad-rows", tmp_path / "bad.jsonl")
    assert command(capsys, write_csv(tmp_path / "a.csv", rows(7)), *place)[0] == 0
    bad = write_csv(tmp_path / "b.csv", [*rows(98), {"category": "c"}, {"category": "d"}])
    code, result, err = command(capsys, bad, *place, "--replace")
    assert code == 1 and "2 of 100 rows were refused" in err and result["refused"] == 2
    assert EdgeStore(tmp_path / "s.edge").describe().points == 7
    asked = len(endpoint.texts())
    code, result, _ = command(capsys, bad, *place, "--replace", "--max-bad", "0.02")  # goes on with what was encoded
    assert (code, result["points"], result["new"]) == (0, 98, 0)
    assert len(endpoint.texts()) == asked + LOOKED_AT
    assert EdgeStore(tmp_path / "s.edge").describe().points == 98


def test_the_list_of_bad_rows_never_takes_the_place_of_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_environment(monkeypatch)
    catalog = write_csv(tmp_path / "a.csv", rows(5))
    notes = tmp_path / "notes.jsonl"
    notes.write_text('{"mine": 1}\n')
    for file in (catalog, notes):
        before = file.read_bytes()
        code, _, err = command(capsys, catalog, "--store", tmp_path / "s.edge", "--bad-rows", file)
        assert code == 2 and "give --bad-rows another name" in err and file.read_bytes() == before


def test_two_runs_never_fill_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], endpoint: TinyEmbeddings
) -> None:
    catalog, place = write_csv(tmp_path / "a.csv", rows(2000)), ("--store", tmp_path / "s.edge")
    stall_at(endpoint, 6)
    first = start("index_catalog.py", catalog, *place, PLANNER_EMBED_URL=endpoint.url)
    deadline = time.monotonic() + 60
    while len(endpoint.requests) < 6 and time.monotonic() < deadline:
        time.sleep(0.02)
    set_environment(monkeypatch, PLANNER_EMBED_URL=endpoint.url)
    code, _, err = command(capsys, catalog, *place)
    assert code == 2 and "another run is filling" in err
    first.kill()
    first.communicate()
    code, result, _ = command(capsys, catalog, *place)  # the lock died with its run
    assert (code, result["points"]) == (0, 2000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "s.edge"]


def test_what_the_engine_refuses_while_filling_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], endpoint: TinyEmbeddings
) -> None:
    set_environment(monkeypatch, PLANNER_EMBED_URL=endpoint.url)
    folder = tmp_path / "s.edge"

    def wreck(_: Any) -> None:  # while the titles are encoded, somebody deletes the unfinished store
        shutil.rmtree(tmp_path / "s.edge.partial", ignore_errors=True)

    endpoint.change = wreck
    code, _, err = command(capsys, write_csv(tmp_path / "a.csv", rows(5000)), "--store", folder)
    assert code == 2 and "cannot be filled" in err and not folder.exists()


# --- killed runs -----------------------------------------------------------------------------------------------


def test_a_killed_run_into_a_collection_goes_on_without_duplicates(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    endpoint: TinyEmbeddings,
    server: QdrantServer,
) -> None:
    catalog = write_csv(tmp_path / "a.csv", rows(2000))
    environment = {"PLANNER_EMBED_URL": endpoint.url, "QDRANT_URL": server.url}
    stall_at(endpoint, 18)  # the size, 16 requests of 64 texts, and the first of the fifth batch
    kill_at_request(start("index_catalog.py", catalog, **environment), endpoint, 18)
    endpoint.requests.clear()
    set_environment(monkeypatch, **environment)
    code, result, _ = command(capsys, catalog)
    assert (code, result["there"], result["new"], result["points"]) == (0, 1024, 976, 2000)
    assert len(endpoint.texts()) == 976 + LOOKED_AT
    with QdrantServer(None) as whole:
        monkeypatch.setenv("QDRANT_URL", whole.url)
        assert command(capsys, catalog)[0] == 0
        assert qdrant_survey(server) == qdrant_survey(whole)


def test_a_killed_run_into_an_embedded_store_goes_on_without_duplicates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], endpoint: TinyEmbeddings
) -> None:
    catalog = write_csv(tmp_path / "a.csv", rows(6000))
    place = ("--store", tmp_path / "s.edge", "--bad-rows", tmp_path / "bad.jsonl")
    stall_at(endpoint, 80)
    kill_at_request(start("index_catalog.py", catalog, *place, PLANNER_EMBED_URL=endpoint.url), endpoint, 80)
    assert not (tmp_path / "s.edge").exists() and (tmp_path / "s.edge.partial").exists()
    endpoint.requests.clear()
    set_environment(monkeypatch, PLANNER_EMBED_URL=endpoint.url)

    code, _, err = command(capsys, catalog, *place, "--int8")
    assert code == 2 and "begun with different storage" in err
    code, _, err = command(capsys, write_csv(tmp_path / "b.csv", rows(10)), *place)
    assert code == 2 and "begun with different files" in err

    code, result, _ = command(capsys, catalog, *place)
    assert code == 0 and result["points"] == 6000
    assert 4096 <= result["there"] < 5056  # what was flushed, and no more than was encoded
    assert result["new"] == 6000 - result["there"]
    assert command(capsys, catalog, "--store", tmp_path / "whole.edge")[0] == 0
    assert edge_survey(tmp_path / "s.edge") == edge_survey(tmp_path / "whole.edge")
    titles = [row["title"] for row in rows(6000)[::50]]
    found = EdgeStore(tmp_path / "s.edge").search_batch(TinyEncoder().encode(titles), 1)
    assert found == [[title] for title in titles]
    assert not (tmp_path / "s.edge.partial").exists()


def test_a_run_killed_before_its_first_point_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], endpoint: TinyEmbeddings
) -> None:
    set_environment(monkeypatch, PLANNER_EMBED_URL=endpoint.url)
    begun = EdgeStore.create(tmp_path / "s.edge.partial", 3, encoder="half-made")  # its run file is written after it
    begun.close()
    code, result, _ = command(capsys, write_csv(tmp_path / "a.csv", rows(9)), "--store", tmp_path / "s.edge")
    assert (code, result["points"]) == (0, 9)


# A process's peak starts from that of the process that forked it: one as large as pytest would hide the command's.
SMALL_PARENT = """import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)"""


def peak_mib(catalog: Path, **environment: str) -> float:
    """Largest resident memory of one run, in MiB."""
    command = [sys.executable, "scripts/catalog/index_catalog.py", str(catalog)]
    done = subprocess.run(
        [sys.executable, "-c", SMALL_PARENT, *command],
        cwd=ROOT,
        env={**clean_environment(), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout) / 1024


@pytest.mark.slow
def test_memory_is_flat_in_the_catalogues_size(tmp_path: Path, endpoint: TinyEmbeddings) -> None:
    """Four times the rows of 1.8 kB each are 21 MB more to hold, for whoever holds them."""
    peaks = []
    for count in (4000, 16000):
        filler = "wide words " * 160
        catalog = write_jsonl(tmp_path / f"{count}.jsonl", [{"title": f"{i} {filler}"} for i in range(count)])
        with QdrantServer(None) as server:
            peaks.append(peak_mib(catalog, PLANNER_EMBED_URL=endpoint.url, QDRANT_URL=server.url))
            assert server.shard is not None and server.shard.info().points_count == count
        endpoint.requests.clear()
    assert peaks[1] < peaks[0] + 10, peaks


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        index_catalog.main(["--help"])
    assert "python scripts/catalog/index_catalog.py items.parquet" in capsys.readouterr().out
