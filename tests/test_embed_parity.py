"""Embedding parity: figures, acceptance lines, the command on real encoders, preflight's demand for a report."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embeddings_server import EmbeddingsServer
from small_world import PRODUCTS, TITLES, build_store, encoder, reward

from scripts.train.embed_parity import Compared, acceptance, compare, cosines, figures, kendall_tau, overlap, worst
from scripts.train.launch_facts import Findings, Launch
from scripts.train.parity_file import (
    MAX_AGE_DAYS,
    collection_identity,
    encoder_identity,
    load_report,
    report_faults,
)
from scripts.train.preflight_services import check_rollout_env
from scripts.train.verify_embed_parity import compare_encoders, main, read_texts, search, side_settings
from swift_plugin.settings import Settings
from swift_plugin.stores import EdgeStore
from tests.launch_world import CHECKOUT, clean_environment, write_rows

KEY = "s3cret-key"
NOW = datetime(2030, 5, 17, 12, 0, tzinfo=timezone.utc)


# --- figures ----------------------------------------------------------------------------------------------------------

OVERLAPS: list[tuple[str, str, float, str]] = [
    ("abcd", "abcd", 1.0, "the same"),
    ("abcd", "dcba", 1.0, "the order does not matter here"),
    ("abcd", "wxyz", 0.0, "nothing in common"),
    ("abcd", "abcx", 0.75, "one of four"),
    ("aab", "abb", 2 / 3, "a title counts as often as both lists hold it"),
    ("abcd", "ab", 0.5, "a shorter list lacks what it lacks"),
    ("abcd", "", 0.0, "one found nothing"),
    ("", "", 1.0, "both found nothing: they agree"),
]


@pytest.mark.parametrize(("a", "b", "expected", "reason"), OVERLAPS)
def test_overlap(a: str, b: str, expected: float, reason: str) -> None:
    assert overlap(list(a), list(b)) == overlap(list(b), list(a)) == pytest.approx(expected), reason


TAUS: list[tuple[str, str, float | None, str]] = [
    ("abcd", "abcd", 1.0, "one order"),
    ("abcd", "dcba", -1.0, "the other way round"),
    ("abcd", "abdc", 2 / 3, "one of six pairs swapped"),
    ("abcd", "xaybc", 1.0, "only common titles are ranked"),
    ("aab", "aba", 1 / 3, "the second a is a title of its own: one of three pairs swapped"),
    ("ab", "ax", None, "one common title has no order"),
    ("", "", None, "none has"),
]


@pytest.mark.parametrize(("a", "b", "expected", "reason"), TAUS)
def test_kendalls_tau(a: str, b: str, expected: float | None, reason: str) -> None:
    got = kendall_tau(list(a), list(b))
    assert got == (expected if expected is None else pytest.approx(expected)), reason


def test_cosines_of_unit_rows() -> None:
    a = np.array([[1, 0], [0.6, 0.8], [1, 0], [0, 0]], dtype=np.float32)
    b = np.array([[1, 0], [0.8, 0.6], [-1, 0], [1, 0]], dtype=np.float32)
    np.testing.assert_allclose(cosines(a, b), [1, 0.96, -1, 0], atol=1e-6)


def one(text: str = "t", **changes: Any) -> Compared:
    made = {"cosine": 1.0, "overlap": 1.0, "tau": 1.0, "same_first": True, "first_a": "x", "first_b": "x"}
    return Compared(text=text, **{**made, **changes})


def test_the_figures_of_many_texts() -> None:
    compared = [one(cosine=0.9, overlap=0.5, tau=None, same_first=False), *[one(tau=0.8)] * 199]
    found = figures(compared)
    assert found["texts"] == 200
    assert found["cosine"]["min"] == 0.9 and found["cosine"]["mean"] == pytest.approx(0.9995)
    assert 0.9 < found["cosine"]["p1"] <= 1.0
    assert found["overlap"] == {"min": 0.5, "mean": pytest.approx(0.9975)}
    assert found["top1"] == {"count": 199, "of": 200, "share": 0.995}
    assert found["kendall_tau"] == {"mean": pytest.approx(0.8), "texts": 199}
    with pytest.raises(ValueError, match="no texts"):
        figures([])


LINES: list[tuple[list[Compared], list[bool], str]] = [
    ([one()] * 100, [True, True, True], "equal"),
    ([one(cosine=0.9991)] * 100, [True, True, True], "half precision"),
    ([one(cosine=0.9989)] * 100, [False, True, True], "the cosine alone decides"),
    ([one(overlap=0.949)] * 100, [True, False, True], "so does the overlap"),
    ([one(overlap=0.95)] * 100, [True, True, True], "on the line is above it"),
    ([one(same_first=False), *[one()] * 99], [True, True, True], "99 of 100"),
    ([*[one(same_first=False)] * 2, *[one()] * 98], [True, True, False], "98 of 100"),
    ([one(tau=-1.0)] * 100, [True, True, True], "tau is told, not judged"),
]


@pytest.mark.parametrize(("compared", "passed", "reason"), LINES)
def test_the_acceptance_lines(compared: list[Compared], passed: list[bool], reason: str) -> None:
    assert [line["passed"] for line in acceptance(figures(compared))] == passed, reason


def test_the_texts_that_differ_most_come_first_and_those_that_agree_not_at_all() -> None:
    compared = [
        one("agrees"),
        one("half precision", cosine=0.9995),
        one("cosine", cosine=0.99),
        one("first", same_first=False),
        one("overlap", overlap=0.9),
        one("overlap and first", overlap=0.9, same_first=False),
    ]
    assert [found.text for found in worst(compared)] == ["overlap and first", "overlap", "first", "cosine"]
    assert len(worst(compared, 2)) == 2


def test_compare_keeps_texts_vectors_and_titles_together() -> None:
    a = np.eye(2, dtype=np.float32)
    got = compare(["s", "t"], a, a[::-1].copy(), [["x", "y"], ["z"]], [["y", "x"], []])
    assert got[0] == Compared("s", 0.0, 1.0, -1.0, False, "x", "y")
    assert got[1] == Compared("t", 0.0, 0.0, None, False, "z", None)


# --- texts and spellings ----------------------------------------------------------------------------------------------


def test_texts_are_distinct_and_spread_over_the_file(tmp_path: Path) -> None:
    rows = [{"search": f"lamp {n // 2}"} for n in range(400)] + [{"search": None}, {"search": " "}]
    texts = read_texts(write_rows(tmp_path / "trace.jsonl", rows), 150)
    assert len(texts) == len(set(texts)) == 150 and (texts[0], texts[-1]) == ("lamp 0", "lamp 199")
    assert len(read_texts(tmp_path / "trace.jsonl", 1000)) == 200


def test_every_kind_of_file_gives_its_texts(tmp_path: Path) -> None:
    for key in ("search", "title", "text"):
        path = write_rows(tmp_path / f"{key}.jsonl", [{key: title, "id": "7"} for title in TITLES])
        assert read_texts(path, 1000) == TITLES
    (tmp_path / "plain.txt").write_text("\n".join(TITLES) + "\n\n", encoding="utf-8")
    assert read_texts(tmp_path / "plain.txt", 1000) == TITLES


def test_traces_are_read_packed_and_with_half_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [json.dumps({"search": title}) for title in TITLES]
    torn = "\n".join([*lines[:60], lines[60][:9], *lines[60:]]) + "\n"
    part = tmp_path / "reward_trace.rank0.0001.jsonl.gz"
    part.write_bytes(gzip.compress(torn.encode()))
    assert read_texts(part, 1000) == TITLES
    assert "reward_trace.rank0.0001.jsonl.gz:61 is left out" in caplog.text
    other = tmp_path / "texts.ndjson"
    other.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    assert read_texts(other, 1000) == TITLES
    other.write_text(torn)
    with pytest.raises(ValueError, match="texts.ndjson:61"):  # no trace: a file that is damaged
        read_texts(other, 1000)


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("t.txt", '{"search": "x"}', "t.txt:1 is a JSON line in a file of plain text"),
        ("t.jsonl", '{"search": "\\ud800"}', "t.jsonl:1: search holds half a surrogate pair"),
        ("t.txt", b"\xff\xfe", "t.txt:1: 'utf-8' codec"),
    ],
)
def test_a_line_that_is_no_text_is_named(tmp_path: Path, name: str, line: str | bytes, said: str) -> None:
    (tmp_path / name).write_bytes(line if isinstance(line, bytes) else line.encode())
    with pytest.raises(ValueError, match=said):
        read_texts(tmp_path / name, 1000)


def test_a_limit_below_the_fewest_texts_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    for limit in ("99", "0", "-5", "x"):
        with pytest.raises(SystemExit, match="2"):
            main(["hashed", "http://127.0.0.1:9/v1", "--texts", "t.txt", f"--limit={limit}"])
        assert "100 or more" in capsys.readouterr().err


TEXT_FAULTS: list[tuple[list[Any], str, str]] = [
    ([{"search": f"{n}"} for n in range(99)], "99 distinct texts; 100", "one text would decide the line of 99 %"),
    ([{"query": "x"}], "bad.jsonl:1 has none of the keys search, title, text", "another file"),
    ([{"text": "x"}, ["y"]], "bad.jsonl:2", "a list"),
    ([{"text": 7}], "text is no text", "a number"),
]


@pytest.mark.parametrize(("rows", "said", "reason"), TEXT_FAULTS)
def test_a_file_without_usable_texts_is_refused(tmp_path: Path, rows: list[Any], said: str, reason: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_texts(write_rows(tmp_path / "bad.jsonl", rows), 1000)


BASE = {
    "PLANNER_EMBED_URL": "http://127.0.0.1:8081/v1",
    "PLANNER_EMBED_MODEL": "BAAI/bge-m3",
    "PLANNER_EMBED_API_KEY": KEY,
}
SPELLINGS: list[tuple[str, tuple[str | None, str | None, str | None], str]] = [
    ("hashed", (None, None, None), "no model at all"),
    ("/models/bge-m3", (None, "/models/bge-m3", None), "a folder"),
    ("BAAI/bge-m3", (None, "BAAI/bge-m3", None), "a hub name"),
    ("http://127.0.0.1:8081", ("http://127.0.0.1:8081", "BAAI/bge-m3", KEY), "the one that is set, spelled shorter"),
    ("http://127.0.0.1:8081/v1#m", ("http://127.0.0.1:8081/v1", "m", KEY), "another model there"),
    ("http://127.0.0.1:8082/v1", ("http://127.0.0.1:8082/v1", "bge-m3", None), "another port never sees the key"),
    ("https://api.example.com/v1#e4", ("https://api.example.com/v1", "e4", None), "another service"),
]


@pytest.mark.parametrize(("spelled", "expected", "reason"), SPELLINGS)
def test_an_encoder_is_spelled_as_the_settings_spell_it(
    spelled: str, expected: tuple[str | None, str | None, str | None], reason: str
) -> None:
    made = side_settings(Settings.from_env(BASE), spelled)
    assert (made.embed_url, made.embed_model, made.embed_api_key) == expected, reason


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("parity")
    build_store(made / "store")
    (made / "texts.txt").write_text("\n".join(TITLES), encoding="utf-8")
    return made


@pytest.fixture
def server() -> Iterator[EmbeddingsServer]:
    with EmbeddingsServer() as running:
        yield running


def verify(folder: Path, a: str, b: str, *more: str, code: int, **variables: str) -> tuple[dict[str, Any], str]:
    """Run the command as a person would; gives its report ({} where it wrote none) and all that it printed."""
    out = folder / "report.json"
    out.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "scripts/train/verify_embed_parity.py", *arguments(folder, a, b), *more],
        cwd=CHECKOUT, env={**clean_environment(), "PLANNER_STORE_DIR": str(folder / "store"), **variables},
        text=True, capture_output=True, timeout=240, check=False,
    )  # fmt: skip
    printed = done.stdout + done.stderr
    assert done.returncode == code and "Traceback" not in printed, printed
    return (json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}), printed


def arguments(folder: Path, a: str, b: str) -> list[str]:
    return [a, b, "--json", str(folder / "report.json"), "--texts", str(folder / "texts.txt")]


@pytest.fixture
def refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """refused(A, B, *more arguments, VARIABLE=...) -> the message with which nothing was compared, in this process."""

    def run(a: str, b: str, *more: str, **variables: str) -> str:
        (folder / "report.json").unlink(missing_ok=True)
        with monkeypatch.context() as patch:
            for name in set(os.environ) - set(clean_environment()):
                patch.delenv(name)
            for name, value in {"PLANNER_STORE_DIR": str(folder / "store"), **variables}.items():
                patch.setenv(name, value)
            assert main([*arguments(folder, a, b), *more]) == 2
        assert not (folder / "report.json").exists()
        return capsys.readouterr().err

    return run


def test_an_endpoint_with_the_same_model_passes(folder: Path, server: EmbeddingsServer) -> None:
    report, printed = verify(folder, "hashed", f"{server.url}/v1#hashed-480", code=0)
    assert report["verdict"] == "pass" and "verdict: pass" in printed
    assert report["a"] == {"encoder": {"kind": "hashed", "model": None, "url": None}, "dim": 480}
    assert report["b"]["encoder"]["url"] == f"{server.url}/v1/embeddings"
    assert report["collection"] == {
        "identity": {"kind": "edge", "where": str((folder / "store").resolve()), "name": None},
        "points": 160, "remark": None,
    }  # fmt: skip
    assert report["texts"] == {"file": str(folder / "texts.txt"), "asked": 160, "left_out": 0}
    found = report["figures"]
    assert found["cosine"]["min"] > 0.99999 and found["top1"] == {"count": 160, "of": 160, "share": 1.0}
    # Equal scores decide the rest: a difference in the last digit changes their order and which of them is the 20th.
    assert found["overlap"]["mean"] > 0.99 and found["kendall_tau"]["mean"] > 0.9
    assert sum(len(request.body["input"]) for request in server.requests) >= 160


def test_an_encoder_that_errs_on_some_texts_fails_and_they_are_named(folder: Path) -> None:
    wrong = set(TITLES[:4])  # 4 of 160: mean cosine and top-1 fall below their lines
    other = dict(zip(TITLES[:4], encoder().encode([f"{product} gold" for product in PRODUCTS[-4:]]), strict=True))

    class Wrong(EmbeddingsServer):
        def answer(self, request: Any) -> tuple[int, Any]:
            status, value = super().answer(request)
            for item in value["data"]:
                text = request.body["input"][item["index"]]
                if text in wrong:
                    item["embedding"] = other[text].tolist()
            return status, value

    with Wrong() as server:
        report, printed = verify(folder, "hashed", f"{server.url}/v1#hashed-480", code=1)
    assert report["verdict"] == "fail" and "verdict: fail" in printed and "FAIL mean cosine" in printed
    assert {found["text"] for found in report["worst"][:4]} == wrong
    assert report["figures"]["top1"] == {"count": 156, "of": 160, "share": 0.975}
    assert report["figures"]["cosine"]["min"] < 0.5 and report["figures"]["cosine"]["p1"] < 0.999
    assert "first title A" in printed


def test_texts_without_words_are_left_out_of_two_encoders_that_cannot_encode_them(folder: Path) -> None:
    store = EdgeStore(folder / "store")
    compared = compare_encoders(encoder(), encoder(), store, ["desk lamp", "!?", "yoga mat"], 20)
    assert [found.text for found in compared] == ["desk lamp", "yoga mat"]
    rows = encoder().encode(["!?", "desk lamp"])
    found = search(store, rows, 5)
    store.close()
    assert found[0] == [] and len(found[1]) == 5


def another_model(answer: dict[str, Any]) -> None:
    """The hashed vectors with their numbers in another order: of the same size, and comparable among themselves."""
    for item in answer["data"]:
        item["embedding"] = item["embedding"][7:] + item["embedding"][:7]


def test_two_encoders_of_which_neither_filled_the_collection_are_not_compared(
    folder: Path, refused: Callable[..., str]
) -> None:
    with EmbeddingsServer(change=another_model) as one, EmbeddingsServer(change=another_model) as other:
        (folder / "store" / EdgeStore.MANIFEST).rename(folder / "kept")  # as in a Qdrant collection: it says nothing
        try:
            said = refused(f"{one.url}/v1#hashed-480", f"{other.url}/v1#hashed-480")
        finally:
            (folder / "kept").rename(folder / "store" / EdgeStore.MANIFEST)
    assert "the vectors in the store are not those of hashed-480" in said and "mean cosine of" in said


def test_the_key_goes_to_the_set_endpoint_alone(folder: Path, refused: Callable[..., str]) -> None:
    with EmbeddingsServer(api_key=KEY) as keyed, EmbeddingsServer() as other:
        spelled = (f"{keyed.url}/v1#hashed-480", f"{other.url}/v1#hashed-480")
        report, printed = verify(folder, *spelled, code=0, PLANNER_EMBED_URL=keyed.url, PLANNER_EMBED_API_KEY=KEY)
        assert keyed.requests and other.requests
        assert not [request for request in other.requests if "authorization" in request.headers]
        assert KEY not in json.dumps(report) + printed
        said = refused(*spelled)  # not set: the endpoint refuses
        assert "401" in said and "PLANNER_EMBED_API_KEY" in said


def test_what_cannot_be_compared_ends_with_2_and_writes_nothing(
    folder: Path, server: EmbeddingsServer, refused: Callable[..., str]
) -> None:
    url = f"{server.url}/v1"
    cases = [
        (("hashed", "hashed"), {}, "agrees with itself", "the same twice"),
        ((f"{url}#bge-m3", "hashed"), {}, "was filled by the encoder hashed-480", "A did not fill the store"),
        (("hashed", "ftp://host"), {}, "http", "no address"),
        (("hashed", url), {"PLANNER_STORE_DIR": str(folder / "none")}, "no embedded store", "no collection"),
        (("hashed", url), {"PLANNER_EMBED_BACH": "1"}, "PLANNER_EMBED_BATCH", "a typo"),
        (("hashed", url, "--texts", str(folder / "none.txt")), {}, "none.txt", "no texts"),
    ]
    for spelled, variables, said, reason in cases:
        assert said in refused(*spelled, **variables), reason
    server.change = lambda answer: [item["embedding"].append(0.5) for item in answer["data"]] and None
    said = refused("hashed", url)
    assert "size 481" in said and "size 480" in said


# --- preflight --------------------------------------------------------------------------------------------------------


def settings_of(folder: Path, **variables: str) -> Settings:
    return Settings.from_env({"PLANNER_STORE_DIR": str(folder / "store"), **variables})


def report_of(settings: Settings, **changes: Any) -> dict[str, Any]:
    """A report that vouches for these settings at NOW."""
    made = {
        "format": 1,
        "verdict": "pass",
        "made": (NOW - timedelta(days=1)).isoformat(),
        "a": {"encoder": {"kind": "hashed", "model": None, "url": None}},
        "b": {"encoder": encoder_identity(settings)},
        "collection": {"identity": collection_identity(settings), "points": 160},
    }
    return {**made, **changes}


def saved(folder: Path, report: Any) -> Path:
    path = folder / "parity.json"
    path.write_text(report if isinstance(report, str) else json.dumps(report), encoding="utf-8")
    return path


BOX = {"PLANNER_EMBED_URL": "http://127.0.0.1:8081/v1", "QDRANT_URL": "http://127.0.0.1:6333", "QDRANT_COLLECTION": "p"}
RUNS: list[tuple[dict[str, str], str | None, str]] = [
    (BOX, None, "as compared"),
    ({**BOX, "PLANNER_EMBED_URL": "http://127.0.0.1:8081"}, None, "the same address, spelled shorter"),
    ({**BOX, "PLANNER_EMBED_URL": "http://127.0.0.1:8082/v1"}, "this run encodes with endpoint", "another port"),
    ({**BOX, "PLANNER_EMBED_MODEL": "bge-large"}, "this run encodes with endpoint bge-large", "another model"),
    ({**BOX, "PLANNER_EMBED_URL": "", "PLANNER_EMBED_MODEL": "BAAI/bge-m3"}, "FlagEmbedding", "in process"),
    ({**BOX, "PLANNER_EMBED_URL": ""}, None, "the other one of the two compared"),
    ({**BOX, "QDRANT_COLLECTION": "q"}, "this run searches qdrant", "another collection"),
    ({**BOX, "QDRANT_URL": "http://10.0.0.2:6333"}, "this run searches qdrant", "another server"),
    ({**BOX, "QDRANT_URL": ""}, "this run searches edge", "the embedded store"),
    ({**BOX, "QDRANT_API_KEY": "other"}, None, "a key is no part of what was compared"),
]


@pytest.mark.parametrize(("variables", "fault", "reason"), RUNS)
def test_a_report_vouches_for_its_own_encoders_and_collection(
    tmp_path: Path, variables: dict[str, str], fault: str | None, reason: str
) -> None:
    report = load_report(saved(tmp_path, report_of(settings_of(tmp_path, **BOX))))
    faults = report_faults(report, settings_of(tmp_path, **variables), NOW)
    assert faults == [] if fault is None else len(faults) == 1 and fault in faults[0], (reason, faults)


AGES: list[tuple[timedelta, str | None, str]] = [
    (timedelta(days=MAX_AGE_DAYS), None, "on the day"),
    (timedelta(days=MAX_AGE_DAYS, seconds=1), "more than 7 days ago", "a second too old"),
    (timedelta(days=400), "made on 2029-04-12, more than", "last year's"),
    (timedelta(0), None, "just made"),
    (-timedelta(minutes=30), None, "two machines' clocks differ"),
    (-timedelta(hours=2), "in the future", "a clock is wrong"),
]


@pytest.mark.parametrize(("age", "fault", "reason"), AGES)
def test_a_report_must_be_fresh(tmp_path: Path, age: timedelta, fault: str | None, reason: str) -> None:
    settings = settings_of(tmp_path, **BOX)
    report = load_report(saved(tmp_path, report_of(settings, made=(NOW - age).isoformat())))
    faults = report_faults(report, settings, NOW)
    assert faults == [] if fault is None else len(faults) == 1 and fault in faults[0], (reason, faults)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "half a file"),
        ("[]", "no object"),
        ({"format": 2}, "another format"),
        ({"format": 1, "verdict": "pass"}, "keys are missing"),
        ({"made": "today"}, "no time"),
        ({"made": "2030-05-17T12:00:00"}, "no zone"),
        ({"a": {}}, "no encoder"),
        ({"b": {"encoder": "hashed"}}, "an encoder that identifies nothing"),
        ({"collection": {"points": 160}}, "no collection"),
        ({"verdict": True}, "a verdict that is none"),
    ],
)
def test_what_is_no_report_says_so(tmp_path: Path, content: Any, reason: str) -> None:
    if isinstance(content, dict) and "format" not in content:
        content = report_of(settings_of(tmp_path), **content)
    with pytest.raises(ValueError, match="is no parity report.*verify_embed_parity"):
        load_report(saved(tmp_path, content))


def preflight(folder: Path, report: Path | None, **variables: str) -> Findings:
    """What GRPO's preflight finds about store and encoder."""
    environ = {"PLANNER_STORE_DIR": str(folder / "store"), **variables}
    if report is not None:
        environ["PLANNER_PARITY_FILE"] = str(report)
    found = Findings()
    settings = Settings.from_env(environ)
    check_rollout_env(Launch(kind="grpo", args={}, settings=settings, environ=environ), reward(), found)  # type: ignore[arg-type]
    return found


def test_preflight_demands_the_report_only_where_it_is_asked_to(
    folder: Path, server: EmbeddingsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"PLANNER_EMBED_URL": server.url, "PLANNER_EMBED_MODEL": "hashed-480"}
    assert preflight(folder, None, **variables).refusals == []
    monkeypatch.setenv("PLANNER_STORE_DIR", str(folder / "store"))
    assert main(arguments(folder, "hashed", f"{server.url}/v1#hashed-480")) == 0
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    good = preflight(folder, saved(tmp_path, report), **variables)
    assert (good.refusals, good.warnings) == ([], [])
    assert good.facts["parity"].startswith("pass of 20")

    (missing,) = preflight(folder, tmp_path / "none.json", **variables).refusals
    assert "PLANNER_PARITY_FILE" in missing and "verify_embed_parity.py" in missing
    failed = preflight(folder, saved(tmp_path, {**report, "verdict": "fail"}), **variables)
    assert len(failed.refusals) == 1 and "verdict is fail" in failed.refusals[0]
    grown = {**report, "collection": {**report["collection"], "points": 150}}
    (warning,) = preflight(folder, saved(tmp_path, grown), **variables).warnings
    assert "held 150 points then and holds 160 now" in warning


def test_a_report_is_judged_although_the_encoder_is_not_up(folder: Path, tmp_path: Path) -> None:
    variables = {"PLANNER_EMBED_URL": "http://127.0.0.1:9", "PLANNER_RETRY_SECONDS": "0"}
    stale = report_of(settings_of(folder, **variables), made="2020-01-01T00:00:00+00:00")
    refusals = preflight(folder, saved(tmp_path, stale), **variables).refusals
    assert len(refusals) == 2 and "does not answer" in refusals[0] and "days ago" in refusals[1]
    off = preflight(folder, tmp_path / "none.json", PLANNER_RETRIEVAL="off")
    assert off.refusals == []  # nothing is encoded
