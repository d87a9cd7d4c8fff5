"""eval_planner.py end to end: a real chat endpoint over HTTP, the real environment and store, real local models."""

import hashlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, Reply
from commands import run
from faulty_http import Fault
from small_world import REWARD_FILE, TEXT, TITLES, build_store, golden, plan

from scripts.eval.eval_planner import main, prompt_of, read_rows
from scripts.eval.evaluation_files import load
from swift_plugin.prompts import build_messages

GOOD = plan("waterproof running shoes", "waterproof trainers")
KEY = "sk-very-secret-7"
FAST = {"PLANNER_REQUEST_SECONDS": "4", "PLANNER_RETRY_SECONDS": "4"}  # for failures that stay
STALL_S = 60  # the server gives up earlier, when it is stopped


def row(number: int, text: str = "", prior: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    said = text or f"{TEXT}{number}号"
    return {
        "id": f"dev-{number}",
        "messages": build_messages(said, prior, "short"),
        "text": said,
        "prior_context": list(prior),
        "family": "attribute",
        "split": "dev92",
        "golden_json": golden(**changes),
    }


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_store(tmp_path_factory.mktemp("index") / "store")


def evaluate(
    server: ChatServer, data: Path, out: Path, store: Path, *more: str, code: int = 0, **environment: str
) -> str:
    return run(
        [sys.executable, "scripts/eval/eval_planner.py", "--endpoint", server.base_url, "--model", "m"]
        + ["--data", str(data), "--out", str(out), *more],
        {"PLANNER_STORE_DIR": str(store), **environment},
        code=code,
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def number_of(text: str) -> str:
    """The record's number in a test row's words."""
    return "".join(character for character in text if character.isdigit())


@pytest.fixture(scope="module")
def faulty(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One evaluation of ten records, of which every kind of failure takes one; greedy and 2 samples."""
    folder = tmp_path_factory.mktemp("faulty")
    rows = [row(number) for number in range(9)]
    rows.append(row(9, "要红色的9", ("想买跑鞋",), must_have=["leather"]))
    data = write_rows(folder / "dev.jsonl", rows)

    def script(model: str, text: str, count: int) -> Reply | str:
        match number_of(text):
            case "1":
                return Reply(status=500)
            case "2":
                return Reply(status=429)
            case "3":
                return Reply(content=GOOD, stall_s=STALL_S)
            case "4":
                return Reply(content="", finish_reason="content_filter")
            case "5":
                return Reply(content=GOOD[: len(GOOD) // 2])  # cut by the token limit: a bad plan, not a failure
            case "6":
                return Reply(status=400)
        return GOOD

    with ChatServer(script, api_key=KEY) as server:
        printed = evaluate(
            server, data, folder / "out" / "e", store, "--samples", "2", "--gates", "grounded,overcommit",
            PLANNER_API_KEY=KEY, PLANNER_REWARD_WEIGHTS="field=0.9", PLANNER_REWARD_GATES="domain", **FAST,
        )  # fmt: skip
    return {"printed": printed, "prefix": folder / "out" / "e", "data": data, **load(folder / "out" / "e")}


def test_failed_calls_are_listed_and_never_scored(faulty: dict[str, Any]) -> None:
    summary = faulty["summary"]
    assert summary["coverage"] == {"count": 5, "of": 10, "share": 0.5}
    reasons = {f["id"]: f["reason"] for f in summary["failures"] if f["mode"] == "greedy"}
    assert sorted(reasons) == ["dev-1", "dev-2", "dev-3", "dev-4", "dev-6"]
    for name, reason in (
        ("dev-1", "HTTP 500"),
        ("dev-2", "HTTP 429"),
        ("dev-3", "no answer within"),
        ("dev-4", "empty answer"),
        ("dev-6", "HTTP 400"),
    ):
        assert reason in reasons[name]
    assert [record["id"] for record in faulty["greedy"]] == ["dev-0", "dev-5", "dev-7", "dev-8", "dev-9"]
    totals = [record["samples"][0]["breakdown"]["total"] for record in faulty["greedy"]]
    assert summary["greedy"]["reward"]["mean"] == pytest.approx(sum(totals) / 5)
    assert totals[1] == -1.0  # the cut answer is the model's own
    assert summary["greedy"]["calls"]["cut_by_the_token_limit"] == 1


def test_scores_come_from_the_store_on_default_weights(faulty: dict[str, Any]) -> None:
    from reward.planner_reward import DEFAULT_WEIGHTS, compute_reward

    summary, first = faulty["summary"], faulty["greedy"][0]
    assert (summary["weights"], summary["gates"]) == (dict(DEFAULT_WEIGHTS), [])
    (sample,) = first["samples"]
    assert "Waterproof Running Shoes".lower() in sample["titles"][0].lower()
    again = compute_reward(json.loads(GOOD), first["golden"], first["text"], sample["titles"])
    assert sample["breakdown"] == again.to_dict()


def test_the_second_column_stands_apart(faulty: dict[str, Any]) -> None:
    extra = faulty["summary"]["extra"]
    assert extra["gates"] == ["overcommit", "grounded"] and "with gates" in extra["label"]
    assert set(extra["greedy"]) == {"reward", "parts"}
    assert extra["greedy"]["reward"]["mean"] <= faulty["summary"]["greedy"]["reward"]["mean"]


def test_calls_keep_latency_tokens_and_no_key(faulty: dict[str, Any]) -> None:
    about = faulty["summary"]["greedy"]["calls"]
    assert (about["calls"], about["failed"], about["answered"]["count"]) == (10, 5, 5)
    assert 0 < about["latency_s"]["median"] <= about["latency_s"]["p95"] < STALL_S
    assert about["tokens"] == {"prompt": 500, "completion": 4 * len(GOOD) + len(GOOD) // 2}
    written = "".join(file.read_text(encoding="utf-8") for file in faulty["prefix"].parent.iterdir())
    assert KEY not in written + faulty["printed"]


def test_context_is_kept_with_the_record(faulty: dict[str, Any]) -> None:
    last = faulty["greedy"][-1]
    assert last["prior_context"] == ["想买跑鞋"] and last["context_rendered"] is True
    assert faulty["summary"]["greedy"]["earlier_category_kept"] == {"count": 1, "of": 1, "share": 1.0}
    assert faulty["summary"]["greedy"]["tiers"]["turns"]["2"]["records"] == 1


def test_hashes_in_the_summary_are_those_of_the_files(faulty: dict[str, Any]) -> None:
    for mode in ("greedy", "samples"):
        data = Path(f"{faulty['prefix']}.{mode}.jsonl").read_bytes()
        assert faulty["summary"][mode]["records_sha256"] == hashlib.sha256(data).hexdigest()
    assert faulty["summary"]["data_sha256"] == hashlib.sha256(faulty["data"].read_bytes()).hexdigest()
    assert faulty["summary"]["samples"]["completions"] == 10


def test_an_empty_answer_is_the_models_own_unless_something_else_emptied_it(store: Path, tmp_path: Path) -> None:
    def script(model: str, text: str, count: int) -> Reply:
        written = {"0": Reply("", "stop"), "1": Reply(None, "length"), "2": Reply(" ", "stop")}
        return written.get(number_of(text), Reply(None, "stop"))

    def elsewhere(**more: Any) -> Fault:
        return Fault(change=lambda answer: {
            **answer, "choices": [{**answer["choices"][0], "message": {**answer["choices"][0]["message"], **more}}]
        })  # fmt: skip

    call = {"id": "c", "type": "function", "function": {"name": "plan", "arguments": "{}"}}
    with ChatServer(script) as server:
        server.fail(elsewhere(refusal="I cannot help with that"), elsewhere(tool_calls=[call]))
        data = write_rows(tmp_path / "dev.jsonl", [row(number) for number in (8, 9, 0, 1, 2)])
        evaluate(server, data, tmp_path / "e", store, "--concurrency", "1", **FAST)
    made = load(tmp_path / "e")
    assert [record["id"] for record in made["greedy"]] == ["dev-0", "dev-1", "dev-2"]
    (samples,) = zip(*(record["samples"] for record in made["greedy"]), strict=True)
    assert [sample["completion"] for sample in samples] == ["", "", " "]
    assert {sample["breakdown"]["total"] for sample in samples} == {-1.0}
    reasons = {failure["id"]: failure["reason"] for failure in made["summary"]["failures"]}
    assert "refusal" in reasons["dev-8"] and "tool_calls" in reasons["dev-9"]


def test_records_that_lost_some_of_their_samples_are_counted_and_not_compared(store: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "dev.jsonl", [row(number) for number in range(3)])

    def script(model: str, text: str, count: int) -> Reply | str:
        return Reply(status=400) if count == 2 else GOOD  # the second sample, after the greedy call and the first

    printed = []
    for out, one in (("whole", lambda *asked: GOOD), ("short", script)):
        with ChatServer(one) as server:
            printed.append(
                evaluate(server, data, tmp_path / out, store, "--samples", "2", "--concurrency", "1", **FAST)
            )
    samples = load(tmp_path / "short")["summary"]["samples"]
    assert samples["coverage"] == {"count": 3, "of": 3, "share": 1.0}
    assert samples["completion_coverage"] == {"count": 3, "of": 6, "share": 0.5}
    assert "coverage 3/3 records, 3/6 completions" in printed[1] and "coverage" not in printed[0]
    command = [sys.executable, "scripts/eval/compare_runs.py", str(tmp_path / "whole"), str(tmp_path / "short")]
    assert "B has 3 of 6 completions" in run(command, {}, code=2)


def test_another_store_of_the_same_size_cannot_be_compared(store: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "dev.jsonl", [row(number) for number in range(3)])
    build_store(tmp_path / "other", [title.replace("Nordvik", "Fjellvik") for title in TITLES])
    with ChatServer(lambda model, text, count: GOOD) as server:
        for out, place in (("a", store), ("again", build_store(tmp_path / "twin")), ("b", tmp_path / "other")):
            evaluate(server, data, tmp_path / out, place)
    facts = {out: load(tmp_path / out)["summary"] for out in ("a", "again", "b")}
    assert facts["a"]["store"] == facts["b"]["store"] == {"points": len(TITLES), "vector_size": 480}
    assert facts["a"]["store_titles"] == facts["again"]["store_titles"] != facts["b"]["store_titles"]
    command = [sys.executable, "scripts/eval/compare_runs.py", str(tmp_path / "a")]
    assert "hold other titles" in run([*command, str(tmp_path / "b")], {}, code=2)
    run([*command, str(tmp_path / "again")], {})


def test_a_store_that_another_encoder_of_the_same_name_filled_is_refused(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other_words.py"
    said = "\n\n_words = words\n\n\ndef words(text):\n    return [word[::-1] + 'q' for word in _words(text)]\n"
    other.write_text(REWARD_FILE.read_text(encoding="utf-8") + said, encoding="utf-8")
    data = write_rows(tmp_path / "dev.jsonl", [row(1)])
    with ChatServer(lambda model, text, count: GOOD) as server:
        refused = evaluate(server, data, tmp_path / "e", store, code=2, PLANNER_REWARD_FILE=str(other))
        assert "are not those of hashed-480" in refused and not server.asked


def test_no_answer_at_all_is_no_evaluation_and_can_be_resumed(store: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "dev.jsonl", [row(number) for number in range(3)])
    with ChatServer(lambda model, text, count: GOOD, api_key=KEY) as server:
        printed = evaluate(server, data, tmp_path / "e", store, code=2, PLANNER_API_KEY="wrong-key-9", **FAST)
        assert "coverage 0" in printed and "HTTP 401" in printed
        assert "wrong-key-9" not in printed + (tmp_path / "e.calls.jsonl").read_text(encoding="utf-8")
        assert not (tmp_path / "e.summary.json").exists() and not (tmp_path / "e.greedy.jsonl").exists()
        evaluate(server, data, tmp_path / "e", store, PLANNER_API_KEY=KEY, **FAST)
        asked = sum(server.asked.values())
        assert asked == 3
        printed = evaluate(server, data, tmp_path / "e", store, code=2, PLANNER_API_KEY=KEY, **FAST)
        assert "never overwritten" in printed and sum(server.asked.values()) == asked
    assert load(tmp_path / "e")["summary"]["coverage"]["share"] == 1.0


def test_a_torn_calls_file_asks_only_what_is_missing(store: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "dev.jsonl", [row(number) for number in range(3)])
    with ChatServer(lambda model, text, count: GOOD) as server:
        evaluate(server, data, tmp_path / "a", store)
        whole = (tmp_path / "a.calls.jsonl").read_text(encoding="utf-8")
        (tmp_path / "b.calls.jsonl").write_text(whole[:-20], encoding="utf-8")  # killed in the last line
        evaluate(server, data, tmp_path / "b", store)
        assert sum(server.asked.values()) == 4
        other = evaluate(server, data, tmp_path / "b2", store, "--seed", "1")
        assert "reward" in other
        (tmp_path / "c.calls.jsonl").write_text(whole, encoding="utf-8")
        refused = evaluate(server, data, tmp_path / "c", store, "--seed", "1", code=2)
        assert "choose another output" in refused
    assert lines(tmp_path / "b.greedy.jsonl") == lines(tmp_path / "a.greedy.jsonl")


def test_transient_faults_are_retried_within_the_budget(store: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "dev.jsonl", [row(number) for number in range(4)])
    with ChatServer(lambda model, text, count: GOOD) as server:
        server.fail(
            Fault(status=503), Fault(status=429, headers=(("Retry-After", "1"),)), Fault(reset=True), Fault(cut=True)
        )
        evaluate(server, data, tmp_path / "e", store, "--concurrency", "1", PLANNER_RETRY_SECONDS="60")
    summary = load(tmp_path / "e")["summary"]
    assert summary["coverage"]["share"] == 1.0 and summary["failures"] == []
    assert summary["greedy"]["calls"]["tries"] == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--endpoint", "http://127.0.0.1:9/v1", "--adapter", "x"], "for local models"),
        (["--endpoint", "http://127.0.0.1:9/v1", "--kl-to", "x"], "for local models"),
        (["--endpoint", "ftp://host/v1"], "not an http(s) URL"),
        (["--endpoint", "http://u:hunter2@host/v1"], "put the key into PLANNER_API_KEY"),
        (["--endpoint", "http://127.0.0.1:9/v1", "--concurrency", "0"], "at least one call"),
        (["--concurrency", "2"], "for --endpoint"),
        (["--samples", "-1"], "use 0 (greedy only) or more"),
        (["--endpoint", "http://127.0.0.1:9/v1", "--max-new-tokens", "9"], "for local"),
        (["--max-new-tokens", "0"], "use 1 or more"),
        (["--kl-to", "/tmp", "--max-new-tokens", "9"], "leave out --max-new-tokens"),
        (["--kl-to", "/no/such/folder"], "is no folder"),
        (["--backend", "vllm", "--kl-to", "/tmp"], "leave out --backend vllm"),
        (["--gates", "none"], "unknown"),
        pytest.param(
            ["--backend", "vllm"],
            "vllm is not installed",
            marks=pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vllm is installed here"),
        ),
    ],
)
def test_wrong_use_ends_with_2_and_says_what_to_do(
    arguments: list[str],
    message: str,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = write_rows(tmp_path / "dev.jsonl", [row(1)])
    given = ["--model", "Qwen/Qwen3-4B-Instruct-2507", "--data", str(data), "--out", str(tmp_path / "e"), *arguments]
    monkeypatch.setattr(sys, "argv", ["eval_planner.py", *given])
    monkeypatch.setenv("PLANNER_STORE_DIR", str(store))
    try:
        code = main()
    except SystemExit as end:  # argparse
        code = end.code
    printed = capsys.readouterr()
    assert code == 2
    assert message in printed.err and "Traceback" not in printed.err and "hunter2" not in printed.out + printed.err


def test_an_answer_that_trickles_in_is_a_failed_call_within_the_budget(store: Path, tmp_path: Path) -> None:
    """A gateway that keeps a connection alive with blanks would hold an evaluation, and its latency, for ever."""
    data = write_rows(tmp_path / "dev.jsonl", [row(number) for number in range(2)])
    with ChatServer(lambda model, text, count: GOOD) as server:
        server.fail(*[Fault(trickle_s=20)] * 5)
        evaluate(
            server, data, tmp_path / "e", store, "--concurrency", "1", code=2,
            PLANNER_RETRY_SECONDS="2", PLANNER_REQUEST_SECONDS="1",
        )  # fmt: skip
    assert "no answer within 1 s" in (tmp_path / "e.calls.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"id": "宽"}\n'.encode("gbk"), "dev.jsonl:1: no UTF-8 (byte 0xbf): save it as UTF-8"),
        (b"3\n", "dev.jsonl:1: no JSON object"),
        (b"[" * 100_000, "dev.jsonl:1: no JSON"),
        ({"id": ["a"]}, "dev.jsonl:1: id is ['a']"),
        ({"messages": None}, "row 'dev-1': messages is None"),
        ({"messages": []}, "row 'dev-1': messages is []"),
        ({"messages": [{"role": "system"}]}, "row 'dev-1': messages is [{'role': 'system'}]"),
    ],
)
def test_a_bad_set_names_its_line(content: bytes | dict[str, Any], said: str, tmp_path: Path) -> None:
    data = tmp_path / "dev.jsonl"
    data.write_bytes(content if isinstance(content, bytes) else json.dumps({**row(1), **content}).encode())
    with pytest.raises(ValueError, match=re.escape(said)):
        prompt_of(read_rows(data))


def test_a_set_with_an_id_twice_is_refused(store: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "dev.jsonl", [row(1), row(1)])
    with ChatServer(lambda model, text, count: GOOD) as server:
        assert "holds an id twice" in evaluate(server, data, tmp_path / "e", store, code=2)
        assert not server.asked
