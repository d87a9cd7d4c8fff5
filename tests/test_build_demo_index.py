"""catalog.jsonl -> embedded store: complete, or not there at all."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_world import TITLES, encoder

from swift_plugin.settings import CHECKOUT
from swift_plugin.stores import EdgeStore, check_store

SCRIPT = CHECKOUT / "scripts" / "data" / "build_demo_index.py"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of TITLES made by the script; tests copy it."""
    folder = tmp_path_factory.mktemp("built")
    result = run("--catalog", write_catalogue(folder / "catalog.jsonl", TITLES), "--store", folder / "s.edge")
    assert result.returncode == 0, result.stderr
    return folder / "s.edge"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PLANNER_", "QDRANT_"))}
    environ["PYTHONPATH"] = str(CHECKOUT)
    return subprocess.run(command, env=environ, capture_output=True, text=True)


def write_catalogue(path: Path, titles: list[str]) -> Path:
    rows = [{"title": title, "category": "c", "price": 9.5, "currency": "USD"} for title in titles]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_it_builds_a_store_that_passes_preflight(tmp_path: Path) -> None:
    catalogue = write_catalogue(tmp_path / "catalog.jsonl", TITLES * 8)  # more than one batch
    result = run("--catalog", catalogue, "--store", tmp_path / "out" / "s.edge")
    assert result.returncode == 0, result.stderr
    store = EdgeStore(tmp_path / "out" / "s.edge")
    assert check_store(store, encoder()).points == len(TITLES) * 8
    assert json.loads(result.stdout)["points"] == len(TITLES) * 8
    assert "1280/1280" in result.stderr  # the progress bar
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["s.edge"]


def test_a_rebuild_replaces_the_store_while_a_process_reads_it(built: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(built, tmp_path / "s.edge"))
    reader = EdgeStore(target)
    query = encoder().encode(["desk lamp"])
    before = reader.search_batch(query, 20)
    result = run("--catalog", write_catalogue(tmp_path / "c.jsonl", ["one desk lamp"]), "--store", target)
    assert result.returncode == 0, result.stderr
    assert reader.search_batch(query, 20) == before
    assert EdgeStore(target).search_batch(query, 20) == [["one desk lamp"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ('{"title": "a"}\n{"name": "b"}\n', "c.jsonl:2 has no title"),
        ('{"title": " "}\n', "c.jsonl:1 has no title"),
        ('["a"]\n', "c.jsonl:1 has no title"),
        ('{"title": "a"}\n{"title"\n', "c.jsonl:2 is not JSON"),
        (None, "c.jsonl"),
    ],
)
def test_a_broken_catalogue_leaves_the_old_store_alone(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    target = Path(shutil.copytree(built, tmp_path / "s.edge"))
    if content is not None:
        (tmp_path / "c.jsonl").write_text(content)
    code = runpy.run_path(str(SCRIPT))["main"](["--catalog", str(tmp_path / "c.jsonl"), "--store", str(target)])
    assert code == 2 and message in capsys.readouterr().err
    assert EdgeStore(target).describe().points == len(TITLES)
    assert not list(tmp_path.glob("s.edge.*"))


def test_a_folder_that_is_no_store_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("x")
    result = run("--catalog", write_catalogue(tmp_path / "c.jsonl", TITLES), "--store", tmp_path / "photos")
    assert result.returncode == 2 and "choose another --store" in result.stderr
    assert (tmp_path / "photos" / "a.jpg").exists()


def test_help_shows_an_example() -> None:
    assert "example: python scripts/data/build_demo_index.py" in run("--help").stdout
