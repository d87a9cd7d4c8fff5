"""The quality gate: a row for each kind of finding, a near miss that passes, and the gate as a whole."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_world
from chat_server import ChatServer

from scripts.data.adversarial_seeds import FAMILIES, load_seeds
from scripts.data.build_demo_requests import load_unwanted
from scripts.data.build_planner_adversarial import UNWANTED, build
from scripts.data.build_planner_queries import build as build_queries
from scripts.data.gate_checks import (
    LONGEST_TURN,
    MOST_TURNS,
    Finding,
    consistency_findings,
    form_findings,
    personal_findings,
    tone_findings,
)
from scripts.data.gate_corpus import HeldOut, Seen, coverage_findings
from scripts.data.gate_profile import profile, profile_table
from scripts.data.gate_splits import HELD_OUT, WATCH_ROWS, assign_splits, held_out, wording
from scripts.data.planner_quality_gate import MOST_DROPPED, Outcome, Row, gate, read_rows
from scripts.data.query_llm import asked_sessions
from scripts.data.query_wording import load_wording
from scripts.data.sessions import Session, turn, turn_texts, write_rows
from scripts.data.vote_client import Cache, VoteClient
from swift_plugin.cards import DEFAULT_CARDS, Card, load_cards

ROOT = Path(__file__).resolve().parents[1]
ANCHORS = ROOT / "data" / "anchors.jsonl"

GOLDEN: dict[str, Any] = json.loads(small_world.golden())
HINT: dict[str, Any] = {"keywords": ["waterproof running shoes"], "exclude_terms": []}


def session(*texts: str, golden: dict[str, Any] | None = GOLDEN, **changes: Any) -> Session:
    """A template session about running shoes whose last turn has `golden`."""
    *earlier, last = texts
    hint = None if golden is None else HINT
    base = {"id": "q-1", "source": "template", "family": "attribute", "card": "running_shoes", "split": None}
    return {**base, "dimensions": {}, "turns": [*map(turn, earlier), turn(last, golden, hint)], **changes}


@pytest.fixture(scope="module")
def cards() -> tuple[Card, ...]:
    return load_cards(DEFAULT_CARDS)


@pytest.fixture(scope="module")
def adversarial(cards: tuple[Card, ...]) -> list[Session]:
    return build(cards, load_seeds(), load_unwanted(UNWANTED), 321, 7)


# ---------------------------------------------------------------------------------------- checks of one row

FORM, PERSONAL, TONE = form_findings, personal_findings, tone_findings


BY_ID = {card.id: card for card in load_cards(DEFAULT_CARDS)}


def CONSISTENT(one: Session) -> list[Finding]:
    return consistency_findings(one, BY_ID)


SUM = {**GOLDEN, "budget_amount": 300}


@pytest.mark.parametrize(
    ("check", "flagged", "kind", "unusable", "passes", "reason"),
    [
        (FORM, session("防水跑鞋", split="dev"), "schema", True, session("防水跑鞋", split="test"), "closed list"),
        (FORM, session("跑" * (LONGEST_TURN + 1)), "too_long", True, session("跑" * LONGEST_TURN), "the limit itself"),
        (FORM, session("跑鞋", "……"), "no_words", True, session("跑鞋", "42"), "a number is an answer"),
        (FORM, session("跑鞋", "黑"), "very_short", False, session("跑鞋", "黑的"), "two characters say something"),
        (FORM, session("跑鞋&amp;袜子"), "html", True, session("跑鞋&袜子，A&B牌"), "an ampersand is no escape"),
        (FORM, session("防水<br>跑鞋"), "html", True, session("防水跑鞋 <500"), "a comparison is no tag"),
        (FORM, session("防水  跑鞋"), "blank_run", False, session("防水 跑鞋"), "one blank is typed"),
        (FORM, session("跑鞋 keywords: shoes"), "answer_inside", True, session("跑鞋 关键是防水"), "the plan's key"),
        (FORM, session("为您推荐跑鞋"), "answer_inside", True, session("给我推荐跑鞋"), "the shop speaks"),
        (FORM, session(*["跑鞋"] * (MOST_TURNS + 1)), "many_turns", False, session(*["跑鞋"] * MOST_TURNS), "limit"),
        (PERSONAL, session("跑鞋，打我13812345678"), "phone", True, session("跑鞋，打我[phone]"), "masked is fine"),
        (PERSONAL, session("跑鞋寄到文三路188号3栋"), "address", True, session("文三路那家店的跑鞋"), "a street"),
        (TONE, session("要{attr}的跑鞋"), "open_slot", True, session("要防水的跑鞋[phone]"), "a mask is no slot"),
        (TONE, session("要防水的的跑鞋"), "stammer", False, session("的的确确要防水的跑鞋"), "a word, no slip"),
        (TONE, session("请为我推荐跑鞋"), "written_register", False, session("推荐双跑鞋呗"), "spoken"),
        (CONSISTENT, session("防水跑鞋", card="shoe_rack"), "unknown_card", True, session("防水跑鞋"), "a card"),
        (CONSISTENT, session("要防水的"), "silent_on_card", True, session("想买跑鞋", "要防水的"), "named before"),
        (
            CONSISTENT,
            session("要防水的", source="llm"),
            "silent_on_card",
            False,
            session("want waterproof Running Shoes", source="llm"),
            "a model may know another word: reported; the anchor is a name",
        ),
        (
            CONSISTENT,
            session("防水跑鞋", golden={**GOLDEN, "category": "拖鞋"}),
            "other_card",
            True,
            session("再便宜点", golden={**GOLDEN, "category": None, "status": "context_missing"}, card=None),
            "a category that cannot be known contradicts no card",
        ),
        (
            CONSISTENT,
            session("想买防水跑鞋，黑的", "想买防水跑鞋"),
            "only_repeats",
            True,
            session("想买防水跑鞋，黑的", "防水跑鞋要透气的"),
            "says something more",
        ),
        (CONSISTENT, session("跑鞋", golden=SUM), "no_sum", True, session("跑鞋三百", golden=SUM), "a sum in words"),
        (
            CONSISTENT,
            session("跑鞋，不要黑的", golden={**GOLDEN, "exclude_expected": True}),
            "exclusion_lost",
            True,
            session("跑鞋，不太喜欢黑的"),
            "a soft dislike excludes nothing",
        ),
        (
            CONSISTENT,
            session("跑鞋", "要黑的", golden={**GOLDEN, "status": "context_missing"}),
            "context_present",
            False,
            session("要黑的跑鞋", golden={**GOLDEN, "status": "context_missing"}),
            "the first turn has no context",
        ),
    ],
)
def test_row_checks(
    check: Callable[[Session], list[Finding]],
    flagged: Session,
    kind: str,
    unusable: bool,
    passes: Session,
    reason: str,
) -> None:
    found = {one.kind: one for one in check(flagged)}
    assert kind in found and found[kind].unusable == unusable, (reason, found)
    assert found[kind].id == "q-1" and found[kind].reason
    assert kind not in {one.kind for one in check(passes)}, reason


@pytest.mark.parametrize("row", [None, 3, [], {}, {"id": 5}, {"id": "a", "turns": {}}])
def test_a_row_of_any_shape_is_a_finding_not_a_crash(row: Any) -> None:
    found = form_findings(row, "file:7")
    assert found and all(one.kind == "schema" and one.unusable for one in found)


def test_a_personal_finding_does_not_quote(cards: tuple[Card, ...]) -> None:
    assert "1381234" not in str(personal_findings(session("跑鞋，打我13812345678")))


def test_a_common_opening_is_reported() -> None:
    assert [one.kind for one in tone_findings(session("想买防水的跑鞋"), 0.06)] == ["common_opening"]
    assert not tone_findings(session("想买防水的跑鞋"), 0.05)


# ------------------------------------------------------------------------------------- checks that compare rows

LONG = "下个月要去山里跑比赛，想买双防水的跑鞋，鞋底厚一点，颜色深一点"


@pytest.mark.parametrize(
    ("text", "golden", "kind", "unusable", "reason"),
    [
        (LONG + "！", GOLDEN, "exact", True, "punctuation alone differs"),
        (LONG + "呀", GOLDEN, "near", True, "a particle more, the same golden"),
        (LONG.replace("厚", "薄"), {**GOLDEN, "must_have": ["thin"]}, "near_other_golden", False, "the word matters"),
        ("出差用，想找个静音的吸尘器", GOLDEN, None, False, "another request"),
    ],
)
def test_duplicates(text: str, golden: dict[str, Any], kind: str | None, unusable: bool, reason: str) -> None:
    seen = Seen()
    seen.add(session(LONG, id="q-0"))
    found = seen.findings(session(text, golden=golden))
    assert [(one.kind, one.unusable) for one in found] == ([] if kind is None else [(kind, unusable)]), reason


DEV, TEST = "脚汗多，跑步鞋想换双透气好的", "周末要去露营，顺手给家里添个洗头膏，敏感肌用的"


@pytest.mark.parametrize(
    ("texts", "kinds", "reason"),
    [
        (["脚汗多，跑步鞋想换双透气的"], ["dev"], "nearly a dev text"),
        (["想换双透气好的跑步鞋"], ["dev"], "its pairs in another order"),
        (["想买双跑步鞋，别太贵"], [], "shares the category only"),
        (["跑鞋", TEST + "，急"], ["test"], "a test text and an ending, in any turn"),
        (["周末要去露营，顺手给家里添个登山靴，防水的"], [], "the same template, another card"),
    ],
)
def test_leakage(texts: list[str], kinds: list[str], reason: str) -> None:
    held = HeldOut([("dev-05", DEV)], [("adv-9", TEST)])
    assert [one.kind for one in held.findings(session(*texts))] == kinds, reason


def test_coverage_and_balance(cards: tuple[Card, ...]) -> None:
    rows = [session(LONG, id=f"q-{at}", split="train", dimensions={"budget": "none"}) for at in range(40)]
    rows += [session(LONG, id="z", split="train", family="switch", card=cards[0].id, dimensions={"budget": "exact"})]
    found = coverage_findings(rows, cards[:1])
    assert {one.kind for one in found} == {"rare_family", "uneven_dimension"}
    assert not [one for one in found if one.unusable]
    uncovered = [one for one in coverage_findings(rows, cards) if one.kind == "uncovered_card"]
    assert len(uncovered) == len(cards) - 2 and all(one.unusable for one in uncovered)
    few = coverage_findings(rows, cards[:1], frozenset({"switch"}))
    assert "few_adversarial" in {one.kind for one in few}
    assert "few_adversarial" not in {one.kind for one in coverage_findings(rows, cards[:1], frozenset({"attribute"}))}


# ----------------------------------------------------------------------------------------------------- splits


def test_splits_hold_out_whole_wordings_of_every_family(adversarial: list[Session]) -> None:
    split = assign_splits(adversarial)
    for family in FAMILIES:
        mine = [one for one in split if one["family"] == family]
        held = [one for one in mine if one["split"] in ("watch", "test")]
        assert HELD_OUT * len(mine) <= len(held) <= 0.3 * len(mine)
        assert any(one["split"] == "test" for one in held)
        assert not {wording(one) for one in held} & {wording(one) for one in mine if one["split"] == "train"}


@pytest.fixture(scope="module")
def queries(cards: tuple[Card, ...]) -> list[Session]:
    return build_queries(cards, load_unwanted(UNWANTED), load_wording(), 1200, 7)


def test_no_wording_is_trained_on_and_judged(
    queries: list[Session], adversarial: list[Session], cards: tuple[Card, ...], tmp_path: Path
) -> None:
    def script(model: str, text: str, count: int) -> str:
        return json.dumps({"turns": [f"{one}呗" for one in json.loads(text)["turns"]]}, ensure_ascii=False)

    with ChatServer(script) as server:
        rewordings, _ = asked_sessions(VoteClient(server.base_url, "m", Cache(tmp_path)), queries[::4], cards)
    split = assign_splits([*queries, *rewordings, *adversarial])
    train, held = ([one for one in split if (one["split"] == "train") == trained] for trained in (True, False))
    assert not {wording(one) for one in held} & {wording(one) for one in train}
    assert HELD_OUT * len(split) <= len(held) <= 1.5 * HELD_OUT * len(split)
    splits = {one["id"]: one["split"] for one in split}
    assert len(rewordings) == len(queries[::4])
    for one in rewordings:
        assert splits[one["id"]] == splits[one["id"].replace("llm-", "query-")]
    assert Counter(splits.values())["watch"] == WATCH_ROWS
    families = {one["family"] for one in split}
    assert {one["family"] for one in train} == {one["family"] for one in held if one["split"] == "test"} == families


@pytest.mark.parametrize(
    ("worded", "families", "wordings", "reason"),
    [
        ({"a": "1111112222", "b": "3333334444"}, {"a", "b"}, 2, "families that share nothing: a wording of each"),
        ({"a": "12", "b": "13"}, {"a", "b"}, 1, "1 words both, and both stay in training without it"),
        ({"a": "1234", "b": "234"}, {"a", "b"}, 1, "a wording of both families, not one of each"),
        ({"a": "1", "b": "123"}, {"b"}, 1, "1 is all that a has in training, so b holds out another one"),
        ({"a": "1", "b": "1"}, set(), 0, "no family is held out whole"),
    ],
)
def test_a_wording_is_held_out_in_all_its_families(
    worded: dict[str, str], families: set[str], wordings: int, reason: str
) -> None:
    rows = [
        session(LONG, id=f"{family}-{at}", family=family, dimensions={"template": voice})
        for family, voices in worded.items()
        for at, voice in enumerate(voices)
    ]
    chosen = held_out(rows)
    held, train = ([one for one in rows if (one["id"] in chosen) == is_held] for is_held in (True, False))
    assert {one["family"] for one in held} == families and len({wording(one) for one in held}) == wordings, reason
    assert not {wording(one) for one in held} & {wording(one) for one in train}, reason
    assert {one["family"] for one in train} == set(worded), reason


def test_splits_do_not_depend_on_order_or_company(adversarial: list[Session]) -> None:
    def by_id(rows: list[Session]) -> dict[str, str]:
        return {one["id"]: one["split"] for one in rows}

    assert by_id(assign_splits(adversarial)) == by_id(assign_splits(adversarial[::-1]))
    anchors = [session(LONG, id="log-1", source="log")]
    assert by_id(assign_splits([*anchors, *adversarial])) == by_id(assign_splits(adversarial)) | {"log-1": "dev92"}


def test_watch_is_bounded_and_takes_from_every_family() -> None:
    rows = [session(LONG, id=f"{name}-{at}", family=name) for name in "abcd" for at in range(300)]
    watch = Counter(one["family"] for one in assign_splits(rows) if one["split"] == "watch")
    assert watch == dict.fromkeys("abcd", WATCH_ROWS // 4)


def test_a_row_in_review_is_never_held_out() -> None:
    review = {**GOLDEN, "status": "review"}
    rows = [session(LONG, id=f"q-{at}", golden=review if at % 2 else GOLDEN) for at in range(200)]
    held = [one for one in assign_splits(rows) if one["split"] != "train"]
    assert held and all(one["turns"][-1]["golden"]["status"] == "agree" for one in held)


# ---------------------------------------------------------------------------------------------- the whole gate


def as_rows(sessions: list[Any], file: str = "adversarial.jsonl") -> list[Row]:
    return [Row(file, f"{file}:{number}", one) for number, one in enumerate(sessions, 1)]


@pytest.fixture(scope="module")
def outcome(adversarial: list[Session], cards: tuple[Card, ...]) -> Outcome:
    return gate([*read_rows(ANCHORS), *as_rows(adversarial)], cards)


def test_anchors_go_to_dev_whole_and_never_to_train(outcome: Outcome) -> None:
    anchors = [one for one in outcome.rows if one["source"] == "handwritten"]
    assert len(anchors) == 92 and {one["split"] for one in anchors} == {"dev92"}
    assert {one["split"] for one in outcome.rows if one["source"] != "handwritten"} == {"train", "watch", "test"}


def test_the_adversarial_set_passes(outcome: Outcome) -> None:
    assert outcome.reasons == []
    assert outcome.report["dropped"].get("adversarial.jsonl", 0) <= 0.03 * 321
    assert set(FAMILIES) <= set(outcome.report["families"])
    assert list(outcome.report["profiles"]) == ["anchors", "adversarial.jsonl (template)"]


def test_every_dropped_row_has_a_reason(adversarial: list[Session], cards: tuple[Card, ...]) -> None:
    spoilt = [json.loads(json.dumps(one)) for one in adversarial]
    spoilt[0]["turns"][-1]["text"] += " 打我13812345678"
    spoilt[1]["turns"][-1]["golden"] = {}
    spoilt[2] = "no session"
    spoilt[4] = {**spoilt[3], "id": "adv-copy"}
    result = gate(as_rows(spoilt), cards)
    kept = {one["id"] for one in result.rows}
    unusable = {one.id for one in result.findings if one.unusable and one.id}
    # what is no session goes by its line: its id may be that of another row
    assert {spoilt[0]["id"], "adversarial.jsonl:2", "adversarial.jsonl:3", "adv-copy"} <= unusable
    assert not kept & unusable
    lines = {1: "adversarial.jsonl:2", 2: "adversarial.jsonl:3"}
    assert kept | unusable == {lines.get(at) or one["id"] for at, one in enumerate(spoilt)}


@pytest.mark.parametrize(
    ("changes", "first", "reason"),
    [
        ({}, False, "a line twice keeps one row"),
        ({"turns": [turn("完全不同的话")]}, False, "other words under the same id"),
        ({"turns": []}, False, "a malformed row under the id of an earlier one"),
        ({"turns": []}, True, "a malformed row under the id of a later one"),
    ],
)
def test_a_row_that_reuses_an_id_takes_no_sound_one_along(
    adversarial: list[Session], cards: tuple[Card, ...], changes: dict[str, Any], first: bool, reason: str
) -> None:
    sound = gate(as_rows(adversarial), cards)
    spoilt = {**adversarial[0], **changes}
    assert sound.rows[0]["id"] == spoilt["id"]
    result = gate(as_rows([spoilt, *adversarial] if first else [*adversarial, spoilt]), cards)
    assert result.rows == sound.rows, reason
    line = f"adversarial.jsonl:{1 if first else len(adversarial) + 1}"
    (blamed,) = (one for one in result.findings if one.id == line)
    assert spoilt["id"] in blamed.reason and blamed.unusable, reason
    assert sum(result.report["dropped"].values()) == sum(sound.report["dropped"].values()) + 1, reason


def test_rows_that_are_no_sessions_count_as_unusable(adversarial: list[Session], cards: tuple[Card, ...]) -> None:
    spoilt = [{key: one[key] for key in one if at % 5 or key != "card"} for at, one in enumerate(adversarial)]
    result = gate([*read_rows(ANCHORS), *as_rows(spoilt)], cards)
    assert f"adversarial.jsonl: {len(spoilt[::5])} of {len(spoilt)} rows are unusable" in "; ".join(result.reasons)
    dropped = result.report["dropped"]
    assert result.report["rows_in"] - result.report["rows_out"] == sum(dropped.values())
    assert dropped["anchors.jsonl"] == len(result.report["anchors_filtered"]) == 2


def test_a_turn_that_is_judged_because_the_last_one_is_chatter_is_checked(
    outcome: Outcome, adversarial: list[Session], cards: tuple[Card, ...]
) -> None:
    taught = next(one for one in outcome.rows if one["split"] == "train" and len(one["turns"]) == 1)
    asked = taught["turns"][0]
    anchor = {
        **taught, "id": "dev-x", "source": "handwritten", "dimensions": {}, "turns": [asked, turn("先这样，回头再说")]
    }  # fmt: skip
    result = gate([*read_rows(ANCHORS), *as_rows([anchor], "more.jsonl"), *as_rows(adversarial)], cards)
    assert "dev-x" in {one["id"] for one in result.rows if one["split"] == "dev92"}
    assert asked["text"] not in {text for one in result.rows if one["split"] == "train" for text in turn_texts(one)}
    assert any(one.id == taught["id"] and "dev-x" in one.reason for one in result.findings if one.check == "leakage")


def test_a_test_text_that_comes_back_in_training_is_dropped(outcome: Outcome, cards: tuple[Card, ...]) -> None:
    held = next(one for one in outcome.rows if one["split"] == "test")
    train = next(one for one in outcome.rows if one["split"] == "train" and one["family"] == held["family"])
    leaked = {**train, "id": "leak", "dimensions": train["dimensions"]}
    last = held["turns"][-1]
    leaked["turns"] = [*leaked["turns"][:-1], {**last, "text": last["text"] + "，急用，谢谢老板"}]
    leaked["card"] = held["card"]
    generated = [one for one in outcome.rows if one["source"] == "template"]
    result = gate(as_rows([*generated, leaked]), cards)
    assert "leak" not in {one["id"] for one in result.rows}
    assert "leak" in {one.id for one in result.findings if one.check in ("leakage", "duplicate")}


def test_the_same_rows_give_the_same_outcome(
    outcome: Outcome, adversarial: list[Session], cards: tuple[Card, ...]
) -> None:
    again = gate([*read_rows(ANCHORS), *as_rows(adversarial)], cards)
    assert json.dumps(again.report) == json.dumps(outcome.report) and again.rows == outcome.rows


def test_what_makes_the_verdict_bad(adversarial: list[Session], cards: tuple[Card, ...]) -> None:
    exposed = session("跑鞋，打我13812345678", id="log-1", source="log", golden=None, card=None)
    spoilt = [{**one, "card": "gone"} if at < 321 * MOST_DROPPED + 1 else one for at, one in enumerate(adversarial)]
    alone = [session(LONG, id="only", family="lonely")]
    few = [one for one in adversarial if one["card"] != cards[0].id]
    for rows, said in (
        ([exposed, *adversarial], "anchors hold personal data"),
        (spoilt, "rows are unusable"),
        ([*adversarial, *alone], "family lonely has no session in test"),
        (few, f"no session for card {cards[0].id}"),
    ):
        assert said in "; ".join(gate(as_rows(rows), cards).reasons)


def test_profiles_count_what_goldens_say() -> None:
    rows = [session("想买跑鞋", "要防水的，三百", golden=SUM), session("跑鞋"), session("跑鞋", golden=None)]
    one = profile(rows)
    assert one["sessions"] == 3 and one["multi_turn"] == pytest.approx(1 / 3)
    assert (one["budget"], one["exclusion"], one["no_category"]) == (0.5, 0.0, 0.0)  # of the two with a golden
    assert profile([session("跑鞋", golden=None)])["budget"] is None
    assert "50%" in profile_table({"anchors": one})


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "data" / "planner_quality_gate.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_writes_rows_and_both_reports(tmp_path: Path, adversarial: list[Session]) -> None:
    source, out = tmp_path / "adversarial.jsonl", tmp_path / "out" / "gated.jsonl"
    write_rows(source, adversarial)
    done = run(str(source), "--out", str(out))
    assert done.returncode == 0, done.stderr
    report = json.loads((out.parent / "gated.report.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == report["rows_out"] and all(turn_texts(one) for one in rows)
    text = (out.parent / "gated.report.txt").read_text(encoding="utf-8")
    assert text == done.stdout and "anchors" in text and "dev-94 left out: near-duplicate of dev-51" in text
    write_rows(source, adversarial[:20])
    done = run(str(source), "--out", str(out))
    assert done.returncode == 1 and "verdict: bad" in done.stdout


@pytest.mark.parametrize(
    ("content", "said"), [("", "holds no row"), ("{", "bad.jsonl:1: no JSON"), (None, "bad.jsonl")]
)
def test_wrong_use_is_explained(tmp_path: Path, content: str | None, said: str) -> None:
    source = tmp_path / "bad.jsonl"
    if content is not None:
        source.write_text(content, encoding="utf-8")
    done = run(str(source), "--out", str(tmp_path / "gated.jsonl"))
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("names", "said", "reason"),
    [
        (("one/q.jsonl", "two/q.jsonl"), ("one/q.jsonl:1", "two/q.jsonl:1"), "files of one name go by their paths"),
        (("one.jsonl", "two.jsonl"), ("one.jsonl:1", "two.jsonl:1"), "a builder's ids begin anew in each file"),
        (("one.jsonl", "one.jsonl"), ("one.jsonl is given twice",), "no file is a duplicate of itself"),
    ],
)
def test_an_id_in_two_files_blames_neither(
    tmp_path: Path, adversarial: list[Session], names: tuple[str, ...], said: tuple[str, ...], reason: str
) -> None:
    files = [tmp_path / name for name in names]
    for file in files:
        write_rows(file, adversarial[:3])
    done = run(*map(str, files), "--out", str(tmp_path / "gated.jsonl"))
    assert done.returncode == 2 and all(one in done.stderr for one in said), (reason, done.stderr)
    assert not (tmp_path / "gated.jsonl").exists()


@pytest.mark.parametrize("where", ["taken", "file/gated.jsonl"])
def test_a_place_that_cannot_be_written_ends_with_2_before_the_work(tmp_path: Path, where: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = run(str(tmp_path / "no.jsonl"), "--out", str(tmp_path / where))
    assert done.returncode == 2 and "--out" in done.stderr and "Traceback" not in done.stderr, done.stderr
