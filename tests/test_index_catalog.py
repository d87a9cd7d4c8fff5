"""Catalogue files to points: every form alike, faults named, killed runs completed, memory flat."""

import gzip
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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
from hypothesis import given
from hypothesis import strategies as st
from qdrant_server import QdrantServer
from small_world import encoder

from scripts.catalog import index_catalog
from scripts.catalog.catalog_files import MAX_LINE, CatalogError, Columns, check_columns, read_rows
from scripts.catalog.catalog_items import MAX_TITLE, BadRow, content_id, make_item
from scripts.catalog.filled_by import LOOKED_AT
from scripts.catalog.point_survey import EdgePoints, QdrantPoints, Survey, survey
from swift_plugin.stores import EdgeStore, QdrantStore

ITEMS = [
    {"title": 'Dell 27" monitor, curved', "category": "monitors", "price": "199.90"},
    {"title": "防水跑鞋 男款", "category": "running shoes", "price": ""},
    {"title": "Desk lamp", "category": "", "price": "5"},
]


@pytest.fixture
def endpoint() -> Iterator[TinyEmbeddings]:
    with TinyEmbeddings() as running:
        yield running


@pytest.fixture
def server() -> Iterator[QdrantServer]:
    with QdrantServer(None) as running:
        yield running


# --- reading ---------------------------------------------------------------------------------------------------


def read(path: Path, **columns: str) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    """Payloads and (line, reason) of a file."""
    good, bad = [], []
    for row in read_rows(path, Columns.chosen(**columns)):
        try:
            if row.fault:
                raise BadRow(row.fault)
            good.append(dict(make_item(row.values).payload))
        except BadRow as fault:
            bad.append((row.line, str(fault)))
    return good, bad


def written(tmp_path: Path, form: str) -> Path:
    """ITEMS in one of the forms."""
    path = tmp_path / f"items.{form}"
    if form == "parquet":
        typed = [{**item, "price": float(item["price"]) if item["price"] else None} for item in ITEMS]
        pq.write_table(pa.Table.from_pylist(typed), path)
    elif form == "jsonl":
        write_jsonl(path, ITEMS)
    elif form == "tsv":
        lines = ["\t".join(["title", "category", "price"]), *("\t".join(item.values()) for item in ITEMS)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        write_csv(path, ITEMS)
    return path


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet"])
def test_every_form_gives_the_same_items(tmp_path: Path, form: str) -> None:
    assert read(written(tmp_path, form)) == (
        [
            {"title": 'Dell 27" monitor, curved', "category": "monitors", "price": 199.9},
            {"title": "防水跑鞋 男款", "category": "running shoes"},
            {"title": "Desk lamp", "price": 5.0},
        ],
        [],
    )


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl"])
def test_a_gzip_file_is_read_as_its_content(tmp_path: Path, form: str) -> None:
    plain = written(tmp_path, form)
    packed = tmp_path / f"{plain.name}.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(packed) == read(plain)
    whole = packed.read_bytes()
    packed.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CatalogError, match="no whole gzip file"):
        read(packed)


def test_columns_have_the_users_names(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text("\ufeffsku,name,price,cost\n1,Desk lamp,x,4.5\n")  # Excel begins a UTF-8 file with a mark
    assert read(path, title="name", price="cost") == ([{"title": "Desk lamp", "price": 4.5}], [])
    assert read(path, title="name", price="") == ([{"title": "Desk lamp"}], [])
    assert read(path, title="sku", price="") == ([{"title": "1"}], [])


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("c.csv", "name,price\na,1\n", {}, "no column 'title'; it has name, price"),
        ("c.csv", "title\na\n", {"price": "cost"}, "no column 'cost'"),
        ("c.tsv", "title,price\na,1\n", {}, "no column 'title'; it has title,price"),
        ("c.csv", "title,title\na,b\n", {}, "the column 'title' 2 times"),
        ("c.csv", "", {}, "is empty"),
        ("c.csv", '"title\na\n', {}, "no header"),
        ("c.csv", b"\xff\xfet\0i\0t\0l\0e\0\n\0", {}, "is UTF-16. Convert it: iconv"),
        ("c.xlsx", "x", {}, "unknown form"),
        ("c", "x", {}, "unknown form"),
        ("c.gz", "x", {}, "unknown form"),
        ("c.parquet.gz", "x", {}, "unknown form"),
        ("c.parquet", "x", {}, "cannot be read as Parquet"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, content: str | bytes, columns: dict[str, str], message: str
) -> None:
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(CatalogError, match=message) as error:
        read(tmp_path / name, **columns)
    assert name in str(error.value)


def test_a_key_that_a_user_named_must_occur_in_json_lines(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [{"title": "a"}] * 3 + [{"title": "b", "cost": 2}])
    check_columns(path, Columns.chosen(price="cost"))
    with pytest.raises(CatalogError, match="none of its first 4 rows has the key 'prise'"):
        check_columns(path, Columns.chosen(price="prise"))
    with pytest.raises(CatalogError, match="the key 'name'"):
        check_columns(path, Columns.chosen(title="name"))


def test_whole_numbers_that_pandas_made_floats_are_text(tmp_path: Path) -> None:
    table = pa.table({"title": ["a", "b"], "category": [3.0, float("nan")]})
    pq.write_table(table, tmp_path / "c.parquet")
    assert read(tmp_path / "c.parquet") == ([{"title": "a", "category": "3"}, {"title": "b"}], [])


def test_a_parquet_file_without_the_column_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["a"]}), tmp_path / "c.parquet")
    with pytest.raises(CatalogError, match="no column 'title'; it has name"):
        read(tmp_path / "c.parquet")


@pytest.mark.parametrize(
    ("form", "line", "reason"),
    [
        ("csv", b"a,b,c,1", "columns do not fit: 4 of them, the header has 3"),
        ("csv", b"a,b", "columns do not fit: 2 of them, the header has 3"),
        ("csv", b'"a" b,c,1', "no CSV row"),
        ("csv", b",c,1", "no title"),
        ("csv", b" ,c,1", "no title"),
        ("csv", "跑鞋".encode("gb18030") + b",c,1", "title is no UTF-8"),
        ("csv", b"a,c,cheap", "price is no plain number: 'cheap'"),
        ("csv", b'a,c,"1,299.00"', "price is no plain number"),
        ("csv", b"a,c,-1", "price is no plain number"),
        ("csv", b"a,c,1_000", "price is no plain number"),
        ("csv", b"a,c,nan", "price is no plain number"),
        ("csv", b"a" * (MAX_TITLE + 1) + b",c,1", "title too long: 2001 characters"),
        ("csv", b"a" * (MAX_LINE + 1) + b",c,1", f"longer than {MAX_LINE} bytes"),
        ("tsv", b"a\tc", "columns do not fit"),
        ("jsonl", b'{"title": "a"', "no JSON"),
        ("jsonl", b'["a"]', "no JSON object"),
        ("jsonl", b"[" * 200_000, "no JSON"),
        ("jsonl", b'{"name": "a"}', "no title"),
        ("jsonl", b'{"title": null}', "no title"),
        ("jsonl", b'{"title": 5}', "title is no text: 5"),
        ("jsonl", b'{"title": "a\\ud800"}', "title is no UTF-8"),
        ("jsonl", b'{"title": "a", "category": ["b"]}', "category is no text: ['b']"),
        ("jsonl", b'{"title": "a", "price": true}', "price is no plain number: True"),
        ("jsonl", b'{"title": "a", "price": Infinity}', "price is no plain number"),
        ("jsonl", b'{"title": "a", "price": 1' + b"0" * 400 + b"}", "price is no plain number"),
        ("jsonl", b'{"title": "' + b"a" * (2 * MAX_LINE) + b'"}', f"longer than {MAX_LINE} bytes"),
    ],
)
def test_a_bad_row_has_line_and_reason_and_its_neighbours_stay(
    tmp_path: Path, form: str, line: bytes, reason: str
) -> None:
    before, after = {
        "csv": (b"title,category,price\nfirst,c,1\n", b"\nlast,c,2\n"),
        "tsv": (b"title\tcategory\tprice\nfirst\tc\t1\n", b"\nlast\tc\t2\n"),
        "jsonl": (b'\n{"title": "first"}\n', b'\n{"title": "last"}\n'),
    }[form]
    path = tmp_path / f"c.{form}"
    path.write_bytes(before + line + after)
    good, ((number, said),) = read(path)
    assert [item["title"] for item in good] == ["first", "last"]
    assert number == 3 and said.startswith(reason)


def test_in_a_file_of_one_column_a_quote_that_is_never_closed_takes_the_lines_up_to_the_next_quote(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c.csv"
    path.write_text('title\nfirst\n"open\nlost\n"quoted"\nlast\n')
    good, bad = read(path)
    assert [item["title"] for item in good] == ["first", "last"]
    assert [line for line, _ in bad] == [3]
    (lost,) = [row.lines for row in read_rows(path, Columns.chosen()) if row.fault]
    assert lost == 3  # every line of it counts towards --max-bad


def many(count: int, **changed: str) -> str:
    """A CSV of so many rows; `changed` maps r5 to the line that stands instead of row 5."""
    lines = [changed.get(f"r{number}", f"item {number} wide,office,{number}.5") for number in range(count)]
    return "\n".join(["title,category,price", *lines]) + "\n"


@pytest.mark.parametrize(
    ("text", "refused", "reason"),
    [
        (many(5000, r700='"item 700 wide,office,1'), [702], "no other quote in the file: the field's limit ends it"),
        (many(200, r50='"item 50,office,1', r80='item 80 27",office,1'), [52], "another row's quote closes it"),
        (many(200, r50='"item 50,office,1', r51='item 51 27",office,1'), [52], "that of the very next row"),
        (many(200, r50='item 50,"office,1', r90='item 90,"home, garden",1'), [52], "in another column"),
        (many(200, r3='"item 3,office,1', r9='"item 9,office,1', r12='"item 12,a,1'), [5, 11, 14], "three of them"),
        (many(9, r8='"item 8,office,1'), [10], "in the last row"),
        (many(9, r3='"item 3\nwide",office,1'), [], "a title of two lines is one row"),
        (many(9, r3='item 3,"office, a\nand, b\nx",1'), [], "so is a category of three"),
    ],
)
def test_a_quote_that_is_never_closed_costs_its_own_row_alone(
    tmp_path: Path, text: str, refused: list[int], reason: str
) -> None:
    path = tmp_path / "c.csv"
    path.write_text(text)
    good, bad = read(path)
    whole = sum(line.count(",") >= 2 for line in text.splitlines()) - 1
    if not refused:
        assert not bad and len(good) == 9, reason
        return
    assert [line for line, _ in bad] == refused and all("no CSV row: " in said for _, said in bad), reason
    assert len(good) == whole - len(refused), reason
    assert all("\n" not in item["title"] and item["title"].count("item") == 1 for item in good)


def test_a_field_of_many_lines_that_look_like_no_rows_is_refused_with_all_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text('title,price\n"a\nb\nc\nd",1\nlast,2\n')
    first, last = read_rows(path, Columns.chosen())
    assert first.fault == "a field spans lines: a quote that is never closed?" and first.lines == 4
    assert last.values["title"] == "last" and last.line == 6


def test_blank_lines_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("title,price\n\na,1\n,\nb,2\n\n")
    (tmp_path / "c.jsonl").write_text('\n{"title": "a"}\n \n{"title": "b"}')
    for name in ("c.csv", "c.jsonl"):
        good, bad = read(tmp_path / name)
        assert [item["title"] for item in good] == ["a", "b"] and not bad


def test_prices_of_parquet_may_be_whole_decimal_or_unknown(tmp_path: Path) -> None:
    for name, column in {
        "whole": pa.array([5, None], pa.int64()),
        "decimal": pa.array(["5.00", None]).cast(pa.decimal128(8, 2)),
        "float": pa.array([5.0, float("nan")]),
    }.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"title": ["a", "b"], "price": column}), path)
        assert read(path) == ([{"title": "a", "price": 5.0}, {"title": "b"}], [])


# --- ids -------------------------------------------------------------------------------------------------------


def test_an_id_never_changes() -> None:
    """Another id for the same content would double every catalogue that is indexed again."""
    item = make_item({"title": "Trail shoes", "category": "running shoes", "price": 59.9}, "USD")
    assert item.id == "fe441fde-b2ab-5fee-b74f-c2925ae61be9"


def test_what_makes_another_item_and_what_does_not() -> None:
    base = make_item({"title": "Trail shoes", "price": 5}).id
    assert make_item({"title": " Trail\n shoes ", "price": "5.0", "category": None}).id == base
    others = [
        make_item({"title": "trail shoes", "price": 5}),
        make_item({"title": "Trail shoes", "price": 6}),
        make_item({"title": "Trail shoes"}),
        make_item({"title": "Trail shoes", "price": 5, "category": "shoes"}),
        make_item({"title": "Trail shoes", "price": 5}, "USD"),
    ]
    assert len({base, *(item.id for item in others)}) == 6


@given(st.dictionaries(st.sampled_from(["title", "category", "currency"]), st.text(), max_size=3))
def test_no_two_payloads_share_an_id(payload: dict[str, str]) -> None:
    turned = dict(reversed(payload.items()))
    assert content_id(turned) == content_id(payload)
    assert content_id({**payload, "title": payload.get("title", "") + "x"}) != content_id(payload)


# --- the command -----------------------------------------------------------------------------------------------


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


def test_a_parquet_file_is_read_piece_by_piece(tmp_path: Path) -> None:
    """One row group of 200,000 rows: the pool must not hold it whole."""
    size = 200_000
    table = pa.table({"title": [f"{i} {'x' * 180}" for i in range(size)], "junk": np.zeros(size)})
    pq.write_table(table, tmp_path / "c.parquet", row_group_size=size, compression="none", use_dictionary=False)
    del table
    held = pa.total_allocated_bytes()
    most = 0
    for number, _ in enumerate(read_rows(tmp_path / "c.parquet", Columns.chosen())):
        if number % 5000 == 0:
            most = max(most, pa.total_allocated_bytes() - held)
    assert number == size - 1 and most < 10e6, most  # the column is 37 MB


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        index_catalog.main(["--help"])
    assert "python scripts/catalog/index_catalog.py items.parquet" in capsys.readouterr().out
