"""Adversarial sessions: goldens and plan hints by construction, families and cards evenly used, seeds checked."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from reward.planner_reward import compute_reward, parse_golden, valid_keywords
from scripts.data.adversarial_seeds import FAMILIES, FEWEST_SEEDS, load_seeds
from scripts.data.build_demo_requests import load_unwanted
from scripts.data.build_planner_adversarial import (
    COVERS,
    DEFAULT_SEEDS,
    DEFAULT_SESSIONS,
    UNWANTED,
    build,
    fitting_exclusions,
    neighbours,
)
from scripts.data.gate_checks import consistency_findings, form_findings, personal_findings, tone_findings
from scripts.data.sessions import Session, session_faults, turn_texts
from swift_plugin.cards import DEFAULT_CARDS, Card, load_cards

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def cards() -> tuple[Card, ...]:
    return load_cards(DEFAULT_CARDS)


@pytest.fixture(scope="module")
def sessions(cards: tuple[Card, ...]) -> list[Session]:
    return build(cards, load_seeds(), load_unwanted(UNWANTED), DEFAULT_SESSIONS, 7)


def asked(sessions: list[Session]) -> list[tuple[Session, int, dict[str, Any]]]:
    """Every turn with a golden: session, place, turn."""
    return [(one, at, turn) for one in sessions for at, turn in enumerate(one["turns"]) if turn["golden"]]


def test_the_families_share_321_sessions_evenly(sessions: list[Session]) -> None:
    families = Counter(one["family"] for one in sessions)
    assert set(families) == set(FAMILIES) and sum(families.values()) == 321
    assert max(families.values()) - min(families.values()) <= 1


def test_every_seed_is_used_and_every_card_is_spoken_of(sessions: list[Session], cards: tuple[Card, ...]) -> None:
    assert {one["dimensions"]["seed"] for one in sessions} == {seed.id for seed in load_seeds()}
    by_card = Counter(one["card"] for one in sessions)
    assert len(by_card) == min(len(cards), len(sessions))
    assert max(by_card.values()) <= 3 * len(sessions) / len(cards) + 1


def test_every_row_is_a_session_nobody_has_to_repair(sessions: list[Session], cards: tuple[Card, ...]) -> None:
    by_id = {card.id: card for card in cards}
    for one in sessions:
        assert not session_faults(one), one["id"]
        found = [*form_findings(one), *personal_findings(one), *tone_findings(one), *consistency_findings(one, by_id)]
        assert not found, turn_texts(one)
    assert len({" / ".join(turn_texts(one)) for one in sessions}) == len(sessions)


def test_goldens_and_hints_score_full_marks_together(sessions: list[Session]) -> None:
    for one, at, turn in asked(sessions):
        golden, hint = parse_golden(turn["golden"]), turn["plan"]
        plan = {
            "category": golden["category"],
            "domains": golden["domains"],
            "budget_amount": golden["budget_amount"],
            "clear_budget": golden["clear_budget"],
            "keywords": hint["keywords"],
            "exclude_terms": hint["exclude_terms"],
        }
        titles = [f"{' '.join(golden['must_have'][:1])} {golden['category_anchor']}"] * 20
        scored = compute_reward(plan, golden, turn["text"], titles)
        assert scored.total >= 0.9, (one["id"], at, turn["text"], scored)
        assert 2 <= len(valid_keywords(plan)) <= 6
        assert golden["exclude_expected"] == bool(hint["exclude_terms"])


def test_no_attribute_that_the_card_holds_out_is_asked(sessions: list[Session], cards: tuple[Card, ...]) -> None:
    by_anchor = {card.anchor: card for card in cards}
    for one, _, turn in asked(sessions):
        card = by_anchor[turn["golden"]["category_anchor"]]
        open_terms = {term for item in card.attributes if not item.held_out for term in item.must_have}
        assert set(turn["golden"]["must_have"]) <= open_terms, one["id"]


def seeded(sessions: list[Session], seed: str) -> list[Session]:
    found = [one for one in sessions if one["dimensions"]["seed"] == seed]
    assert found, seed
    return found


def goldens(session: Session) -> list[dict[str, Any]]:
    return [turn["golden"] for turn in session["turns"]]


def test_retracted_constraints(sessions: list[Session]) -> None:
    for one in seeded(sessions, "retracted_constraint-01"):  # the limit is lifted, the attribute stays
        first, second = goldens(one)
        assert first["budget_amount"] and not first["clear_budget"]
        assert second["budget_amount"] is None and second["clear_budget"]
        assert first["must_have"] == second["must_have"] != []
    for one in seeded(sessions, "retracted_constraint-02"):  # replaced by a larger sum, not lifted
        first, second = goldens(one)
        assert second["budget_amount"] > first["budget_amount"] and not second["clear_budget"]
    for one in seeded(sessions, "retracted_constraint-03"):  # the exclusion is taken back
        first, second = goldens(one)
        assert first["exclude_expected"] and not second["exclude_expected"]
    for one in seeded(sessions, "retracted_constraint-04"):  # one of two attributes is given up
        first, second = goldens(one)
        assert set(second["must_have"]) < set(first["must_have"])
    for one in seeded(sessions, "retracted_constraint-08"):  # talk in between is asked nothing
        assert [bool(golden) for golden in goldens(one)] == [True, False, True]


def test_another_category_leaves_the_first_ones_attributes_behind(sessions: list[Session]) -> None:
    for one in seeded(sessions, "domain_drift-06"):
        first, second = goldens(one)
        assert first["must_have"] and not second["must_have"]
        assert not set(first["domains"]) & set(second["domains"])
        assert first["category_anchor"] != second["category_anchor"]


def test_numbers_that_are_no_money_are_no_budget(sessions: list[Session]) -> None:
    for one in seeded(sessions, "numeric_specification-04") + seeded(sessions, "numeric_specification-07"):
        assert goldens(one)[-1]["budget_amount"] is None
    for one in seeded(sessions, "numeric_specification-03"):
        assert goldens(one)[-1]["budget_amount"] not in (None, 42)


def test_the_wearer_decides_not_the_speaker(sessions: list[Session]) -> None:
    for one in seeded(sessions, "gender_age-01"):
        assert "女生" in turn_texts(one)[0] and goldens(one)[0]["must_have"] == ["men"]
    for one in seeded(sessions, "gender_age-10"):  # said in the second turn only
        assert goldens(one)[0]["must_have"] == [] and "women" in goldens(one)[1]["must_have"]


def test_exclusions_never_contradict_what_is_asked(cards: tuple[Card, ...]) -> None:
    unwanted = load_unwanted(UNWANTED)
    for card in cards:
        for attribute in card.attributes:
            for thing in fitting_exclusions(card, [attribute], unwanted, cards):
                assert not set(thing.zh) & set(attribute.zh), (card.id, attribute.en, thing.en)
                assert attribute.en not in COVERS.get(thing.en, ()), (card.id, attribute.en, thing.en)


def test_neighbours_are_other_things(cards: tuple[Card, ...]) -> None:
    for card in cards:
        for other in neighbours(card, cards):
            assert other.id != card.id and not set(card.names) & set(other.names)


def test_the_same_seed_gives_the_same_bytes(sessions: list[Session], cards: tuple[Card, ...]) -> None:
    again = build(cards, load_seeds(), load_unwanted(UNWANTED), DEFAULT_SESSIONS, 7)
    assert json.dumps(again) == json.dumps(sessions)
    assert build(cards, load_seeds(), load_unwanted(UNWANTED), 16, 8) != again[:16]


# ----------------------------------------------------------------------------------------------------- seeds


def test_every_family_has_its_seeds() -> None:
    counts = Counter(seed.family for seed in load_seeds())
    assert all(counts[family] >= FEWEST_SEEDS for family in FAMILIES)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"family": "accessories"}, "family 'accessories' is none of"),
        ({"trap": " "}, "trap must say"),
        ({"turns": [{"text": "想买{thing}"}]}, "unknown slots thing"),
        ({"turns": [{"text": "{cat}，[不要配件]"}]}, "belong together"),
        ({"turns": [{"text": "{cat}", "exclude": "accessories"}]}, "belong together"),
        ({"turns": [{"text": "贵点也行", "clear": True}]}, "must name what is wanted"),
        ({"turns": [{"text": "{cat}，{n}以内", "clear": True}]}, "lifts the limit and sets one"),
        ({"turns": [{"text": "{cat}", "golden": False}]}, "needs a golden"),
        ({"turns": [{"text": "{cat}", "colour": "red"}]}, "unknown turn keys colour"),
        ({"note": "x"}, "unknown keys note"),
    ],
)
def test_a_wrong_seed_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    first, *rest = DEFAULT_SEEDS.read_text(encoding="utf-8").splitlines()
    path = tmp_path / "seeds.jsonl"
    path.write_text("\n".join([json.dumps({**json.loads(first), **change}), *rest]), encoding="utf-8")
    with pytest.raises(ValueError, match="seeds.jsonl:1") as caught:
        load_seeds(path)
    assert said in str(caught.value)


def test_seeds_may_hold_blank_lines_and_must_be_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "seeds.jsonl"
    whole = DEFAULT_SEEDS.read_text(encoding="utf-8")
    path.write_text(whole.replace("\n", "\n\n"), encoding="utf-8")
    assert load_seeds(path) == load_seeds()
    path.write_bytes(whole.encode("gbk", "replace"))
    with pytest.raises(ValueError, match="seeds.jsonl:1: no UTF-8"):
        load_seeds(path)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "data" / "build_planner_adversarial.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_writes_sessions_and_a_report(tmp_path: Path) -> None:
    out = tmp_path / "data" / "adversarial.jsonl"
    done = run("--sessions", "24", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert len(out.read_text(encoding="utf-8").splitlines()) == 24
    assert json.loads((out.parent / "adversarial.report.json").read_text(encoding="utf-8"))["sessions"] == 24


@pytest.mark.parametrize(
    ("arguments", "said"), [(("--sessions", "3"), "at least 8"), (("--cards", "no.jsonl"), "no.jsonl")]
)
def test_wrong_use_is_explained(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments, "--out", str(tmp_path / "out.jsonl"))
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_place_that_takes_no_file_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "file" / "out.jsonl"):
        done = run("--out", str(out), "--cards", "no.jsonl")
        assert done.returncode == 2 and "argument --out" in done.stderr and "Traceback" not in done.stderr
