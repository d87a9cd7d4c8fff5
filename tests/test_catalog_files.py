"""Catalogue files to items: every form alike, bad rows named with their line, ids from content."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from catalog_world import write_csv, write_jsonl
from hypothesis import given
from hypothesis import strategies as st

from scripts.catalog.catalog_files import MAX_LINE, CatalogError, Columns, check_columns, read_rows
from scripts.catalog.catalog_items import MAX_TITLE, BadRow, content_id, make_item

ITEMS = [
    {"title": 'Dell 27" monitor, curved', "category": "monitors", "price": "199.90"},
    {"title": "防水跑鞋 男款", "category": "running shoes", "price": ""},
    {"title": "Desk lamp", "category": "", "price": "5"},
]


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
