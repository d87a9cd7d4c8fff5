"""Generated sessions: every card, balanced cells, golden records that agree with the words, and a model's wording."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, Reply

from reward.planner_reward import compute_reward, parse_golden
from scripts.data.build_demo_requests import load_unwanted
from scripts.data.build_planner_adversarial import UNWANTED
from scripts.data.build_planner_queries import CardDeck, build, report_of
from scripts.data.demo_requests import FAMILIES
from scripts.data.gate_checks import consistency_findings, form_findings, personal_findings, tone_findings
from scripts.data.query_llm import read_turns
from scripts.data.query_matrix import DIMENSIONS, WITHOUT_CARD, Cell, cells, draw_cells, makes_sense, table
from scripts.data.query_wording import VOICES, WORDING, load_wording
from scripts.data.sessions import Session, read_sessions, session_faults, turn_texts
from swift_plugin.cards import DEFAULT_CARDS, Card, load_cards

ROOT = Path(__file__).resolve().parents[1]
SESSIONS = 1200
LIMITED_BEFORE = (("lifted", "follow_up"), ("lifted", "long"))  # a fragment lifts a limit that nobody has heard


@pytest.fixture(scope="module")
def cards() -> tuple[Card, ...]:
    return load_cards(DEFAULT_CARDS)


@pytest.fixture(scope="module")
def sessions(cards: tuple[Card, ...]) -> list[Session]:
    return build(cards, load_unwanted(UNWANTED), load_wording(), SESSIONS, 7)


# ---------------------------------------------------------------------------------------------- the matrix


def cell(**values: str) -> Cell:
    return Cell(**{**{name: "none" for name in DIMENSIONS}, "turn": "first", "tone": "plain", **values})


@pytest.mark.parametrize(
    ("one", "sensible", "why"),
    [
        (cell(), True, "a category alone"),
        (cell(budget="lifted"), False, "nothing was limited before the first turn"),
        (cell(budget="lifted", turn="follow_up"), True, "the limit stands in the first turn"),
        (cell(budget="lifted", turn="switch"), False, "the limit was on other goods"),
        (cell(turn="follow_up"), False, "the second turn has nothing to say"),
        (cell(turn="long", attribute="one"), False, "the third turn has nothing to say"),
        (cell(turn="long", attribute="two"), True, "one attribute a turn"),
        (cell(turn="switch"), True, "the other category is said"),
        (cell(turn="fragment", attribute="one"), True, "one thing"),
        (cell(turn="fragment", attribute="one", budget="exact"), False, "two things"),
        (cell(turn="fragment", exclusion="soft"), False, "no template says a soft one alone"),
        (cell(turn="talk", exclusion="hard"), False, "talk excludes nothing"),
        (cell(turn="talk", scene="gift"), False, "a scene needs goods"),
    ],
)
def test_a_cell_makes_sense_or_not(one: Cell, sensible: bool, why: str) -> None:
    assert makes_sense(one) == sensible, why
    assert (one in cells()) == sensible


def test_values_come_by_weight_and_no_pair_of_values_is_missing() -> None:
    drawn = draw_cells(SESSIONS, random.Random(3))
    assert len(drawn) == SESSIONS and set(drawn) <= set(cells())
    counted = table([one._asdict() for one in drawn])
    turns = DIMENSIONS["turn"]
    for value, weight in turns.items():
        assert abs(counted["values"]["turn"][value] - SESSIONS * weight / sum(turns.values())) < 1
    for name, values in DIMENSIONS.items():
        mean = SESSIONS / len(values)
        for value, count in counted["values"][name].items():
            assert mean / 3 <= count <= 3 * mean, (name, value)  # what the gate calls balanced
    assert {one["empty"] for one in counted["pairs"].values()} == {0}


def test_the_table_counts_an_empty_cell() -> None:
    counted = table([cell(scene="gift")._asdict()])
    assert counted["values"]["scene"]["gift"] == 1
    assert counted["pairs"]["tone x scene"] == {"cells": 24, "empty": 23, "least": 0, "most": 1}
    assert counted["cells_filled"] == 1


# ---------------------------------------------------------------------------------------------- the sessions


def test_every_card_is_asked_for_about_equally_often(sessions: list[Session], cards: tuple[Card, ...]) -> None:
    report = report_of(sessions, cards)
    assert report["sessions"] == SESSIONS
    assert (report["cards"]["covered"], report["cards"]["uncovered"]) == (len(cards), [])
    assert report["cards"]["most"] - report["cards"]["least"] <= 3
    assert report["turns_with_golden"] == report["turns"] >= 1.5 * SESSIONS
    assert set(report["families"]) == set(FAMILIES)
    voices = report["voices"].values()
    assert len(voices) == VOICES and max(voices) - min(voices) < 0.1 * SESSIONS


def test_every_row_is_a_session_nobody_has_to_repair(sessions: list[Session], cards: tuple[Card, ...]) -> None:
    by_id = {card.id: card for card in cards}
    assert len({one["id"] for one in sessions}) == len({tuple(turn_texts(one)) for one in sessions}) == SESSIONS
    for one in sessions:
        assert session_faults(one) == []
        found = [*form_findings(one), *personal_findings(one), *tone_findings(one), *consistency_findings(one, by_id)]
        assert [finding for finding in found if finding.unusable] == [], one


def test_the_golden_record_says_what_the_cell_says(sessions: list[Session], cards: tuple[Card, ...]) -> None:
    by_id = {card.id: card for card in cards}
    for one in sessions:
        dims, goldens = one["dimensions"], [parse_golden(turn["golden"]) for turn in one["turns"]]
        last = goldens[-1]
        assert len(goldens) == {"follow_up": 2, "switch": 2, "long": 3}.get(dims["turn"], 1), one["id"]
        assert any(golden["exclude_expected"] for golden in goldens) == (dims["exclusion"] == "hard"), one["id"]
        assert any(golden["budget_uncertain"] for golden in goldens) == (dims["budget"] == "vague"), one["id"]
        assert last["clear_budget"] == (dims["budget"] == "lifted"), one["id"]
        given = [golden["budget_amount"] for golden in goldens if golden["budget_amount"] is not None]
        limited = dims["budget"] in ("exact", "range") or (dims["budget"], dims["turn"]) in LIMITED_BEFORE
        assert len(given) == limited, one["id"]
        if dims["turn"] in WITHOUT_CARD:
            assert one["card"] is None and last["category"] is None
            assert last["status"] == ("context_missing" if dims["turn"] == "fragment" else "agree")
            continue
        card = by_id[one["card"]]
        assert (last["category"], last["domains"]) == (card.zh, list(card.domains))
        asked = [a for a in card.attributes if set(a.must_have) <= set(last["must_have"])]
        assert {term for a in asked for term in a.must_have} == set(last["must_have"])
        assert not any(attribute.held_out and not asked for attribute in asked), one["id"]
        assert bool(last["must_have"]) == (dims["attribute"] != "none"), one["id"]


def test_every_later_turn_says_something_new(sessions: list[Session]) -> None:
    for one in sessions:
        if one["dimensions"]["turn"] in ("follow_up", "long"):
            texts = turn_texts(one)
            assert len(set(texts)) == len(texts) and all(texts), one["id"]


def test_the_hint_makes_a_plan_that_its_golden_record_rewards(sessions: list[Session]) -> None:
    for one in sessions:
        for turn in one["turns"]:
            golden = turn["golden"]
            plan = {
                "category": golden["category"] or "",
                "domains": golden["domains"] or ["other"],
                "budget_amount": golden["budget_amount"],
                "clear_budget": golden["clear_budget"],
                **turn["plan"],
            }
            scored = compute_reward(plan, golden, turn["text"], None)
            assert scored.format == 1 and scored.field_score in (1, None), (one["id"], turn["text"])
            assert not (scored.evidence_faked or scored.exclusion_missed), (one["id"], turn["text"])
            assert bool(turn["plan"]["keywords"]) == (golden["category"] is not None)


def test_held_out_attributes_are_never_asked(sessions: list[Session], cards: tuple[Card, ...]) -> None:
    by_zh = {card.zh: card for card in cards}
    for one in sessions:
        for turn in one["turns"]:
            golden = turn["golden"]
            if golden["must_have"]:
                usable = {t for a in by_zh[golden["category"]].attributes if not a.held_out for t in a.must_have}
                assert set(golden["must_have"]) <= usable, one["id"]


def test_voices_share_no_template() -> None:
    voices = load_wording().voices
    for name in voices[0].sections:
        texts = [text for voice in voices for text in voice.sections[name]]
        assert [text for text, count in Counter(texts).items() if count > 1 and text != "{r}"] == [] or name in (
            "budget_short",
        ), name


def test_a_card_that_was_drawn_in_vain_comes_next(cards: tuple[Card, ...]) -> None:
    deck = CardDeck(random.Random(1), cards[:3])
    first = deck.draw()
    deck.give_back(first)
    assert deck.draw() is first
    assert sorted(card.id for card in (deck.draw(), deck.draw(), first)) == sorted(card.id for card in cards[:3])


def test_wording_that_misses_a_section_is_named(tmp_path: Path) -> None:
    data = json.loads(WORDING.read_text(encoding="utf-8"))
    path = tmp_path / "wording.json"
    path.write_text(json.dumps({**data, "sections": {**data["sections"], "budget_open": []}}), encoding="utf-8")
    with pytest.raises(ValueError, match="section budget_open has 5 templates, needs 8"):
        load_wording(wording=path)
    path.write_text(json.dumps({**data, "tones": {"plain": data["tones"]["plain"]}}), encoding="utf-8")
    with pytest.raises(ValueError, match="tones must be plain, polite, terse, chatty, found plain"):
        load_wording(wording=path)


# ---------------------------------------------------------------------------------------------- the command


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, "scripts/data/build_planner_queries.py", *arguments]
    return subprocess.run(script, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **env})


def test_the_same_seed_gives_the_same_bytes_and_too_few_sessions_are_a_bad_verdict(tmp_path: Path) -> None:
    for name in ("a", "b"):
        done = command("--sessions", "60", "--out", str(tmp_path / f"{name}.jsonl"))
        assert done.returncode == 1 and "cards without a session" in done.stderr
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    report = json.loads((tmp_path / "a.report.json").read_text(encoding="utf-8"))
    assert report["sessions"] == len(read_sessions(tmp_path / "a.jsonl")) == 60
    assert "60 sessions" in (tmp_path / "a.report.txt").read_text(encoding="utf-8")


def test_a_place_that_takes_no_file_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "file" / "q.jsonl"):
        done = command("--out", str(out), "--cards", "no/cards.jsonl")
        assert done.returncode == 2 and "argument --out" in done.stderr and "Traceback" not in done.stderr


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "q.report.json").mkdir()
    done = command("--out", str(tmp_path / "q.jsonl"), "--sessions", "8")
    assert done.returncode == 2 and "q.report.json" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("--sessions", "0"), ("--model", "x"), ("--cards", "no/cards.jsonl")])
def test_wrong_use_ends_with_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert command("--out", str(tmp_path / "q.jsonl"), *arguments).returncode == 2
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------------- worded by a model


@pytest.mark.parametrize(
    ("content", "turns"),
    [
        ('{"turns": ["买鞋", "要黑的"]}', ["买鞋", "要黑的"]),
        ('```json\n{"turns": ["买鞋", "要黑的"]}\n```', ["买鞋", "要黑的"]),
        ('{"turns": ["买鞋"]}', None),
        ('{"turns": ["买鞋", " "]}', None),
        ('{"turns": ["买鞋", 3]}', None),
        ('["买鞋", "要黑的"]', None),
        ("好的，买鞋", None),
        ("[" * 100_000, None),
        ('{"turns": ["买鞋", "要\\ud83d"]}', None),
    ],
)
def test_an_answer_is_turns_or_nothing(content: str, turns: Any) -> None:
    assert read_turns(content, 2) == turns


def test_a_model_words_the_cells_and_a_second_run_asks_nothing(tmp_path: Path) -> None:
    def script(model: str, text: str, count: int) -> str:
        turns = json.loads(text)["turns"]
        if len(turns) == 3:
            return "我不会"  # no usable answer: the session is left out and counted
        return json.dumps({"turns": [f"{turn}呗" for turn in turns]}, ensure_ascii=False)

    out = tmp_path / "llm.jsonl"
    with ChatServer(script, api_key="sesame") as server:
        arguments = ("--sessions", "40", "--out", str(out), "--endpoint", server.base_url, "--model", "m")
        refused = command(*arguments, PLANNER_API_KEY="wrong")
        assert refused.returncode == 2 and "wrong" not in refused.stderr + refused.stdout
        done = command(*arguments, PLANNER_API_KEY="sesame")
        asked = sum(server.asked.values())
        again = command(*arguments, PLANNER_API_KEY="sesame")
        assert sum(server.asked.values()) == asked
    assert done.returncode == again.returncode == 1, done.stderr  # 40 sessions cannot cover every card
    sessions = read_sessions(out)
    report = json.loads((tmp_path / "llm.report.json").read_text(encoding="utf-8"))
    assert 0 < len(sessions) == 40 - report["endpoint"]["unusable_answers"] < 40
    for one in sessions:
        assert one["source"] == "llm" and one["id"].startswith("llm-")
        assert all(turn["golden"] is turn["plan"] is None and turn["text"].endswith("呗") for turn in one["turns"])
    assert report["turns_with_golden"] == 0


def test_half_characters_and_cut_answers_are_counted_not_fatal_and_cut_ones_asked_again(tmp_path: Path) -> None:
    """Half a character comes in two ways: escaped in the model's own JSON, and in the server's."""
    healed: list[bool] = []

    def script(model: str, text: str, count: int) -> Reply | str:
        turns = json.loads(text)["turns"]
        if len(turns) == 3:
            return Reply('{"turns": ["买', "length") if not healed else json.dumps({"turns": turns})
        if len(turns) == 2:
            return '{"turns": ["买鞋", "要\\ud83d"]}'
        return "买\ud83d" if "手机" in turns[0] else json.dumps({"turns": turns})

    out = tmp_path / "llm.jsonl"
    with ChatServer(script) as server:
        arguments = ("--sessions", "40", "--out", str(out), "--endpoint", server.base_url, "--model", "m")
        counts = []
        for _ in range(2):
            done = command(*arguments)
            assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
            counts.append(json.loads((tmp_path / "llm.report.json").read_text(encoding="utf-8"))["endpoint"])
            healed.append(True)
    first, second = counts
    assert first["cut"] == second["asked"] > 0 and second["cut"] == 0, "cut answers are not kept"
    assert second["cached"] == first["asked"] - first["cut"], "whole ones are, whatever they say"
    assert second["unusable_answers"] == first["unusable_answers"] - first["cut"] > 0


def test_a_model_that_never_finishes_is_named_with_the_way_out(tmp_path: Path) -> None:
    out = tmp_path / "llm.jsonl"
    with ChatServer(lambda model, text, count: Reply("想想看", "length")) as server:
        done = command("--sessions", "8", "--out", str(out), "--endpoint", server.base_url, "--model", "m")
    assert done.returncode == 2 and not out.exists()
    assert "0 empty, 8 cut" in done.stderr and "switch its thinking off" in done.stderr


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"key": "a", "ans', "torn by a kill before a newer line"),
        (b"", "a blank line"),
        (b"[]", "no row"),
        (b'{"key": "a", "answer": {"content": "x"}}', "an answer without its parts"),
        (
            b'{"key": "a", "answer": {"content": 3, "finish_reason": "stop", "prompt_tokens": 1, '
            b'"completion_tokens": 1}}',
            "a content that is no text",
        ),
        (b'{"key": "\xff"}', "no UTF-8"),
    ],
)
def test_a_line_of_the_cache_that_is_no_answer_is_named(tmp_path: Path, line: bytes, reason: str) -> None:
    cache = tmp_path / "llm.answers" / "answers.jsonl"
    cache.parent.mkdir()
    whole = (
        b'{"key": "k", "answer": {"content": "x", "finish_reason": "stop", "prompt_tokens": 1, "completion_tokens": 1}}'
    )
    cache.write_bytes(b"\n".join([whole, line, whole, b""]))
    out, endpoint = str(tmp_path / "llm.jsonl"), "http://127.0.0.1:1/v1"
    done = command("--sessions", "8", "--out", out, "--endpoint", endpoint, "--model", "m")
    assert done.returncode == 2 and "Traceback" not in done.stderr, reason
    assert f"{cache}:2: " in done.stderr and "delete this line" in done.stderr
