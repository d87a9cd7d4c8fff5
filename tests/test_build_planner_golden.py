"""The golden stage through its command, against a real chat server that fails in every way an endpoint fails."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import small_world
from chat_server import ChatServer, Reply
from commands import ROOT, World, clean_environment
from faulty_http import Fault

from scripts.data.build_planner_golden import check_rulings
from scripts.data.golden_rows import Findings, golden_row, turns_of
from scripts.data.golden_votes import Vote
from scripts.data.planner_golden_overrides import Ruling, by_id, row_sha256
from scripts.data.sessions import Session, turn, write_rows
from swift_plugin.cards import DEFAULT_CARDS, load_cards

VOTE = {"category": "跑鞋", "domains": ["footwear"], "must_have": ["waterproof"], "anchor": "running shoes"}
GOLDEN = json.loads(small_world.golden(budget_amount=300, exclude_expected=True))
SECRET = "sk-not-for-any-log"


def session(identity: str, *turns: dict[str, Any], **changes: Any) -> Session:
    base = {"id": identity, "source": "template", "family": "attribute", "card": None, "split": "train"}
    return {**base, "dimensions": {}, "turns": list(turns), **changes}


def vote(**changes: Any) -> str:
    return json.dumps({**VOTE, **changes}, ensure_ascii=False)


class Stage:
    """A folder with sessions, and the command run on it."""

    def __init__(self, folder: Path, *sessions: Session) -> None:
        self.folder = folder
        write_rows(folder / "sessions.jsonl", sessions)

    def command(self, *more: str) -> list[str]:
        names = ["sessions.jsonl", "--out", "golden.jsonl", "--report", "report.json"]
        files = [name if name.startswith("--") else str(self.folder / name) for name in names]
        return [sys.executable, "scripts/data/build_planner_golden.py", *files, *more]

    def run(self, *more: str, code: int = 0) -> str:
        environment = {**clean_environment(), "PLANNER_API_KEY": SECRET}
        done = subprocess.run(
            self.command(*more), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        printed = done.stdout + done.stderr
        assert done.returncode == code, printed
        assert "Traceback" not in printed and SECRET not in printed
        return printed

    def asking(self, server: ChatServer, *more: str, code: int = 0) -> str:
        return self.run("--endpoint", server.base_url, "--model", "judge", *more, code=code)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "golden.jsonl").read_text(encoding="utf-8").splitlines()]

    @property
    def report(self) -> dict[str, Any]:
        return json.loads((self.folder / "report.json").read_text(encoding="utf-8"))


def test_without_an_endpoint_nothing_is_guessed(tmp_path: Path) -> None:
    stage = Stage(
        tmp_path,
        session("made", turn("想买防水跑鞋，三百以内，不要黑色的", GOLDEN)),
        session("differs", turn("想买防水跑鞋，五百以内", GOLDEN)),
        session("unknown", turn("想买个台灯")),
        session("fragment", turn("刚才那款有大号吗")),
    )
    stage.run()
    rows = {row["id"]: row for row in stage.rows}
    assert set(rows) == {"made#0", "differs#0", "fragment#0"}
    assert rows["made#0"]["golden"] == {**GOLDEN, "budget_uncertain": False, "must_not": []}
    assert rows["differs#0"]["golden"]["budget_amount"] == 500  # the rule stands
    assert rows["fragment#0"]["status"] == "context_missing" and rows["fragment#0"]["golden"]["category"] is None
    report = stage.report
    assert [one["id"] for one in report["rows_without_golden"]] == ["unknown#0"]
    assert [one["id"] for one in report["budget_differs"]] == ["differs#0"]
    assert [one["id"] for one in report["exclusion_differs"]] == ["differs#0"]
    assert "differs#0" in (tmp_path / "report.txt").read_text(encoding="utf-8")


def test_votes_decide_and_audit_over_the_whole_session(tmp_path: Path) -> None:
    stage = Stage(
        tmp_path,
        session("open", turn("想买跑鞋"), turn("要防水的，三百左右")),
        session("made", turn("想买防水拖鞋，三百以内，不要黑色的", {**GOLDEN, "category": "拖鞋"})),
        session("fragment", turn("刚才那款有大号吗")),
    )
    with ChatServer(lambda model, text, n: vote(), api_key=SECRET) as server:
        stage.asking(server, "--prices", "1", "2")
        temperatures = {request.body["temperature"] for request in server.requests}
        seen = [request.body["messages"][-1]["content"] for request in server.requests]
    assert temperatures == {0.0, 0.3, 0.6}
    assert any("想买跑鞋" in text and "要防水的" in text for text in seen)
    rows = {row["id"]: row for row in stage.rows}
    assert rows["open#1"]["golden"]["category"] == "跑鞋" and rows["open#1"]["golden"]["budget_amount"] == 300
    assert rows["open#1"]["golden_from"] == {"budget": "rule", "category": "votes", "exclude": "rule"}
    assert rows["made#0"]["golden"]["category"] == "拖鞋"
    assert rows["fragment#0"]["golden"]["category"] is None and rows["fragment#0"]["status"] == "context_missing"
    votes = stage.report["votes"]
    assert (votes["audited"], votes["audited_differs"], votes["audit_differs_by_field"]) == (1, 1, {"category": 1})
    usage = stage.report["usage"]
    expected = (12 * 100 * 1 + usage["completion_tokens"] * 2) / 1e6
    assert usage["prompt_tokens"] == 12 * 100 and usage["cost"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("replies", "status", "why"),
    [
        ([vote(), vote(), Reply("", "stop")], "agree", "an empty one fails, two carry"),
        ([vote(), vote(), Reply(None, "stop")], "agree", "no content at all fails"),
        ([vote(), Reply(vote(), "length"), vote(category="拖鞋")], "review", "a cut one fails, though it reads well"),
        ([vote(), "我不知道", Reply("", "stop")], None, "one vote is no golden"),
    ],
)
def test_an_empty_or_cut_answer_is_no_opinion(
    tmp_path: Path, replies: list[Reply | str], status: str | None, why: str
) -> None:
    stage = Stage(tmp_path, session("open", turn("想买防水的跑鞋")))
    with ChatServer(lambda model, text, n: replies[n]) as server:
        stage.asking(server, "--workers", "1", code=1 if status is None else 0)
    assert [row["status"] for row in stage.rows] == ([] if status is None else [status]), why
    assert stage.report["votes"]["failed"] == sum(one != vote() and one != vote(category="拖鞋") for one in replies)


def test_votes_that_give_no_row_are_a_bad_verdict_and_a_better_server_is_asked_anew(tmp_path: Path) -> None:
    stage = Stage(tmp_path, session("open", turn("想买防水的跑鞋")))
    cut = [Reply("先想想", "length"), Reply("", "stop"), Reply("", "length")]
    with ChatServer(lambda model, text, n: cut[n] if n < 3 else vote()) as server:
        printed = stage.asking(server, "--workers", "1", code=1)
        assert "no golden row" in printed and "2 answers empty, 1 cut" in printed and "thinking off" in printed
        assert (stage.rows, stage.report["usage"]["cut"], stage.report["usage"]["empty"]) == ([], 1, 2)
        cache = tmp_path / "golden.votes" / "answers.jsonl"
        assert not cache.exists()
        answer = {"content": "先想想", "finish_reason": "length", "prompt_tokens": 1, "completion_tokens": 512}
        stage.asking(server)
        kept = cache.read_text(encoding="utf-8").splitlines()
        # as caches were written when cut answers were kept: they are no answers now
        cache.write_text("".join(json.dumps({**json.loads(one), "answer": answer}) + "\n" for one in kept))
        stage.asking(server)
    assert len(server.requests) == 9 and stage.report["usage"]["cached"] == 0
    assert [row["status"] for row in stage.rows] == ["agree"]


@pytest.mark.parametrize(
    ("out", "report", "reason"),
    [
        ("golden.jsonl", "report.txt", "the text would overwrite the JSON"),
        ("golden.jsonl", "golden.jsonl", "the report would overwrite the rows"),
        ("golden.jsonl", "./x/../golden.jsonl", "the same file by another name"),
        ("golden.txt", "golden.json", "the text would overwrite the rows"),
    ],
)
def test_a_report_never_overwrites_rows_or_itself(tmp_path: Path, out: str, report: str, reason: str) -> None:
    stage = Stage(tmp_path, session("made", turn("想买防水跑鞋，三百以内，不要黑色的", GOLDEN)))
    (tmp_path / "x").mkdir()
    printed = stage.run("--out", str(tmp_path / out), "--report", f"{tmp_path}/{report}", code=2)
    assert "must be three files" in printed and not (tmp_path / out).exists(), reason


def test_429_500_a_reset_and_a_stalled_reply_are_asked_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, session("open", turn("想买防水的跑鞋")))
    with ChatServer(lambda model, text, n: vote()) as server:
        stall = Fault(stall_s=900)  # longer than the command may take: only a timeout of its own ends the wait
        server.fail(Fault(429, headers=(("Retry-After", "0"),)), Fault(500), Fault(reset=True), stall)
        stage.asking(server, "--workers", "1", "--timeout", "5")
        assert len(server.requests) == 3 + 4
    assert stage.rows[0]["status"] == "agree" and stage.report["usage"]["retries"] == 4


def test_a_malformed_answer_is_asked_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, session("open", turn("想买防水的跑鞋")))
    with ChatServer(lambda model, text, n: vote()) as server:
        for choices in ([None], "abc", [{"message": 5}]):
            server.fail(Fault(change=lambda answer, choices=choices: {**answer, "choices": choices}))
        stage.asking(server, "--workers", "1")
        assert len(server.requests) == 3 + 3
    assert stage.rows[0]["status"] == "agree" and stage.report["usage"]["retries"] == 3


def test_an_endpoint_that_stays_down_stops_the_run_and_says_how_to_go_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path, session("open", turn("想买防水的跑鞋")))
    with ChatServer(lambda model, text, n: Reply(status=503)) as server:
        printed = stage.asking(server, "--retry-seconds", "1", code=2)
    assert "503" in printed and "Run the same command again" in printed
    assert not (tmp_path / "golden.jsonl").exists()


def test_a_wrong_key_stops_at_once_and_is_not_repeated(tmp_path: Path) -> None:
    stage = Stage(tmp_path, session("open", turn("想买防水的跑鞋")))
    with ChatServer(lambda model, text, n: vote(), api_key="another") as server:
        printed = stage.asking(server, "--workers", "1", code=2)
        assert "401" in printed and "key" in printed
        assert len(server.requests) == 1


def test_after_a_kill_nothing_is_asked_twice(tmp_path: Path) -> None:
    sessions = [session(f"s{number}", turn(f"想买防水的跑鞋{'啊' * number}")) for number in range(4)]
    stage = Stage(tmp_path, *sessions)
    answered: list[str] = []

    def script(model: str, text: str, n: int) -> Reply | str:
        if len(answered) >= 5:
            return Reply(vote(), "stop", stall_s=60 if not resumed else 0)
        answered.append(text)
        return vote()

    resumed: list[bool] = []
    with ChatServer(script) as server:
        more = ("--endpoint", server.base_url, "--model", "judge", "--workers", "1")
        cache = tmp_path / "golden.votes" / "answers.jsonl"
        process = subprocess.Popen(stage.command(*more), cwd=ROOT, env=clean_environment(), stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 280
        while not (cache.exists() and cache.read_bytes().count(b"\n") == 5 and len(server.requests) == 6):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with cache.open("ab") as file:
            file.write(b'{"key": "cut')  # the line it was writing when it was killed
        resumed.append(True)
        stage.asking(server, "--workers", "1")
        assert len(server.requests) == 6 + (12 - 5)  # five kept, one lost with the process
        assert stage.report["usage"]["cached"] == 5 and stage.report["usage"]["asked"] == 7
        stage.asking(server)
        assert len(server.requests) == 13 and stage.report["usage"]["asked"] == 0
    assert SECRET not in cache.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("--endpoint", "http://127.0.0.1:1/v1"), "--model"), (("--workers", "0"), "--workers")],
)
def test_wrong_use(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    assert says in Stage(tmp_path, session("open", turn("想买跑鞋"))).run(*arguments, code=2)


def test_a_broken_session_is_named(tmp_path: Path) -> None:
    stage = Stage(tmp_path, session("open", turn("想买跑鞋"), split="training"))
    assert "open" in stage.run(code=2)


def test_an_empty_file_of_sessions_is_named(tmp_path: Path) -> None:
    assert "sessions.jsonl holds no session" in Stage(tmp_path).run(code=2)
    assert not (tmp_path / "golden.jsonl").exists()


def test_turns_without_a_golden_beside_one_with_it_are_chatter_unless_voted(tmp_path: Path) -> None:
    stage = Stage(
        tmp_path,
        session("mixed", turn("这些都不错"), turn("想买防水跑鞋，三百以内，不要黑色的", GOLDEN), turn("嗯我再想想")),
        session("fragment", turn("这些都不错")),
    )
    stage.run()
    assert [row["id"] for row in stage.rows] == ["mixed#1", "fragment#0"]
    assert stage.rows[0]["prior_context"] == ["这些都不错"]
    assert [one["id"] for one in stage.report["chatter_turns"]] == ["mixed#0", "mixed#2"]
    assert (stage.report["chatter"], stage.report["no_golden"]) == (2, 0)
    with ChatServer(lambda model, text, n: vote(category=None, domains=None, anchor="")) as server:
        stage.asking(server)
    statuses = {row["id"]: row["status"] for row in stage.rows}
    assert statuses == {"mixed#0": "context_missing", "mixed#1": "agree", "mixed#2": "agree",
                        "fragment#0": "context_missing"}  # fmt: skip
    assert stage.report["chatter"] == 0


def test_the_cards_tell_a_request_from_a_fragment(tmp_path: Path) -> None:
    stage = Stage(tmp_path, session("open", turn("那款洗碗布还有黑的吗")))
    stage.run()
    assert [row["status"] for row in stage.rows] == ["context_missing"]  # no card knows the thing
    first, *others = DEFAULT_CARDS.read_text(encoding="utf-8").splitlines()
    card = json.loads(first)
    first = json.dumps({**card, "aliases": [*card["aliases"], "洗碗布"]}, ensure_ascii=False)
    cards = tmp_path / "cards.jsonl"
    cards.write_text("\n".join([first, *others]) + "\n", encoding="utf-8")
    stage.run("--cards", str(cards))
    assert stage.rows == [] and stage.report["no_golden"] == 1
    assert "none.jsonl" in stage.run("--cards", str(tmp_path / "none.jsonl"), code=2)


# Votes on turns whose goods no card knows

CARDS = load_cards(DEFAULT_CARDS)
TANK = Vote("乌龟缸", ("pet",), (), "turtle tank")


@pytest.mark.parametrize(
    ("text", "votes", "category", "why"),
    [
        ("有没有乌龟缸", [TANK] * 3, "乌龟缸", "a request that opens like a limit"),
        ("和闺蜜同款的刮痧板", [TANK._replace(category="刮痧板")] * 3, "刮痧板", "同款, and what is meant"),
        ("300块的沙袋", [TANK._replace(category="沙袋")] * 3, "沙袋", "opens with a sum"),
        ("最好是实木的榻榻米", [TANK._replace(category="榻榻米")] * 3, "榻榻米", "opens with a wish"),
        ("家里这几天潮，想买个除湿袋", [TANK._replace(category="除湿袋")] * 3, "除湿袋", "这几 of a time"),
        ("有没有乌龟缸", [TANK, TANK._replace(category="玻璃乌龟缸"), None], "乌龟缸", "two carry"),
        ("有没有turtle tank", [TANK] * 3, "乌龟缸", "named in the catalogue's language"),
        ("有没有乌龟缸", [TANK, TANK._replace(category="鱼食"), None], None, "no majority"),
        ("有没有乌龟缸", [TANK, None, None], None, "one vote is none"),
        ("有没有乌龟缸", None, None, "nobody was asked"),
        ("有没有乌龟缸", [TANK._replace(category=None)] * 3, None, "the votes abstain"),
        ("要500以内的", [TANK] * 3, None, "a limit alone: whatever the votes name is invented"),
        ("刚才那款有大号吗", [TANK] * 3, None, "points back at nothing"),
    ],
)
def test_a_turn_like_a_fragment_takes_the_good_that_it_names(
    text: str, votes: list[Vote | None] | None, category: str | None, why: str
) -> None:
    row = golden_row(turns_of([session("open", turn(text))])[0], votes, None, Findings(), CARDS)
    assert row is not None and row["golden"]["category"] == category, why
    assert row["status"] == row["golden"]["status"] == ("review" if category else "context_missing"), why
    assert row["golden_from"]["category"] == ("votes" if category else "context_missing"), why
    assert row["golden"]["category_anchor"] == ("turtle tank" if category else ""), why


def test_votes_that_make_no_golden_record_stop_no_run(tmp_path: Path) -> None:
    stage = Stage(tmp_path, session("odd", turn("想买点绢花")), session("open", turn("想买防水的跑鞋")))
    odd = vote(category="绢花", domains=["home_kitchen"], must_have=["flowers"], anchor="artificial flowers")
    with ChatServer(lambda model, text, n: odd if "绢花" in text else vote()) as server:
        stage.asking(server)
    assert [row["id"] for row in stage.rows] == ["open#0"]
    (left,) = stage.report["rows_without_golden"]
    assert left["id"] == "odd#0" and "'flowers'" in left["why"] and "negates" in left["why"]
    votes = [Vote("绢花", ("home_kitchen",), ("flowers",), "artificial flowers")] * 3
    one = turns_of([session("odd", turn("想买点绢花"))])[0]
    ruled = ruling(id="odd#0", sha256=row_sha256("想买点绢花", []), fields={"category": "绢花"})
    row = golden_row(one, votes, ruled, Findings(), CARDS)
    assert row is not None and row["golden"]["category"] == "绢花" and row["golden"]["must_have"] == []


def test_answers_in_the_wrong_language_are_failed_votes(tmp_path: Path) -> None:
    stage = Stage(tmp_path, session("open", turn("想买防水的跑鞋")))
    replies = [vote(category="running shoes", must_have=["防水"], anchor="跑鞋"), vote(anchor="跑鞋"), vote(anchor="-")]
    with ChatServer(lambda model, text, n: replies[n]) as server:
        stage.asking(server, "--workers", "1", code=1)
    assert stage.rows == [] and stage.report["votes"]["failed"] == 2


@pytest.mark.parametrize("left", [b"", b'{"key": "cut'])
def test_an_empty_or_cut_file_of_answers_is_begun_anew(tmp_path: Path, left: bytes) -> None:
    stage = Stage(tmp_path, session("open", turn("想买防水的跑鞋")))
    (tmp_path / "golden.votes").mkdir()
    (tmp_path / "golden.votes" / "answers.jsonl").write_bytes(left)
    with ChatServer(lambda model, text, n: vote()) as server:
        stage.asking(server)
    assert stage.rows[0]["status"] == "agree" and stage.report["usage"]["asked"] == 3


# Rulings


def made_turns() -> list[Any]:
    return turns_of([session("made", turn("想买防水跑鞋", {**GOLDEN, "exclude_expected": False}))])


def ruling(**changes: Any) -> Ruling:
    fields = {"id": "made#0", "sha256": row_sha256("想买防水跑鞋", []), "reason": "a trail shoe is meant"}
    return Ruling(**{**fields, "fields": {"category": "越野跑鞋"}, **changes})


def test_a_ruling_wins_and_says_so() -> None:
    findings = Findings()
    row = golden_row(made_turns()[0], None, ruling(), findings, CARDS)
    assert row is not None and row["golden"]["category"] == "越野跑鞋" and row["status"] == "resolved"
    assert row["golden_from"]["category"] == "override" and row["golden_from"]["budget"] == "rule"
    assert findings.ruled[0]["reason"] == "a trail shoe is meant"


def test_a_ruling_whose_row_changed_is_an_error() -> None:
    with pytest.raises(ValueError, match="made#0.*changed"):
        golden_row(made_turns()[0], None, ruling(sha256=row_sha256("想买防水的跑鞋", [])), Findings(), CARDS)
    with pytest.raises(ValueError, match="made#7"):
        check_rulings({"made#7": ruling(id="made#7")}, made_turns())
    assert check_rulings({"other#0": ruling(id="other#0")}, made_turns()) == ["other#0"]


@pytest.mark.parametrize(
    ("rulings", "says"),
    [
        ((ruling(), ruling()), "two"),
        ((ruling(reason=" "),), "reason"),
        ((ruling(fields={"categroy": "x"}),), "categroy"),
        ((ruling(fields={}),), "fields"),
    ],
)
def test_a_careless_ruling_is_refused(rulings: tuple[Ruling, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        by_id(rulings)


@pytest.mark.slow
def test_a_served_nano_model_is_asked_over_http(world: World, tmp_path: Path) -> None:
    """`swift deploy` of the untrained model on the CPU: its answers are no votes, and are counted as failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (tmp_path / "deploy.log").open("w")
    command = [str(Path(sys.executable).with_name("swift")), "deploy", "--model", str(world.folder / "nano")]
    command += ["--infer_backend", "transformers", "--port", str(port), "--host", "127.0.0.1"]
    command += ["--model_type", "qwen3", "--template", "qwen3_nothinking"]
    command += ["--served_model_name", "nano", "--torch_dtype", "float32"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=clean_environment(), stdout=log, stderr=log, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 300
        while "Uvicorn running" not in (tmp_path / "deploy.log").read_text(encoding="utf-8"):
            assert time.monotonic() < deadline and process.poll() is None, (tmp_path / "deploy.log").read_text()
            time.sleep(1)
        stage = Stage(tmp_path, session("open", turn("想买跑鞋")))
        stage.run("--endpoint", f"http://127.0.0.1:{port}/v1", "--model", "nano", "--workers", "1", code=1)
        report = stage.report
        assert report["votes"]["asked"] == report["votes"]["failed"] == report["usage"]["asked"] == 3
        assert report["usage"]["completion_tokens"] > 0 and report["no_golden"] == 1
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)
        log.close()
