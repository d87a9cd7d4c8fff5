"""Calibration and exploits: every policy changes its own keys only, the judging is exact, the command tells the truth.

The end-to-end run is the real command on the small world. What it has to find there is what the reward is known to
do: careful plans above copies above broken ones, and evidence that is verified only by standing in the sentence.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_world
from commands import World, run

from reward.planner_reward import PLAN_KEYS, compute_reward, parse_golden, parse_plan, valid_keywords
from scripts.eval.calibrate_reward import calibration
from scripts.eval.calibration_policies import (
    FAULTS,
    Case,
    broken,
    copycat,
    make_cases,
    strong,
    with_faults,
    written,
)
from scripts.eval.candidate_gates import CANDIDATES, total_without_field
from scripts.eval.exploit_battery import fault_rate_like, judging_rates, paired, pays
from scripts.eval.exploit_policies import EXPLOITS, Leaks, gather_leaks
from swift_plugin.cards import load_cards

CARDS = load_cards()
CARD = next(card for card in CARDS if card.anchor == "running shoes")
TEXT = "想买一双防水的跑鞋，三百块以内，别给我网面的"
ENGLISH = "I want to buy waterproof running shoes below three hundred and do not give me the mesh ones"
EXCLUSION = {"word": "mesh", "evidence": "别给我网面的"}
GOLDEN = json.loads(small_world.golden(budget_amount=300, exclude_expected=True))
UNKNOWN = {
    **GOLDEN,
    "category": None,
    "domains": None,
    "budget_amount": None,
    "must_have": [],
    "category_anchor": "",
    "exclude_expected": False,
    "status": "context_missing",
}
ASKED = Case("asked", TEXT, parse_golden(GOLDEN), CARD, ENGLISH, (EXCLUSION,))
FOLLOW_UP = Case("follow-up", "再便宜点的有吗", parse_golden(UNKNOWN), None, None, ())
LEAKS = Leaks(
    category_names=("跑鞋", "雨衣"),
    popular_words=("pack", "new"),
    common_terms=("waterproof", "men"),
    terms_of={"running shoes": ("waterproof", "wide")},
    constant={**strong(ASKED), "category": "雨衣", "keywords": ["rain jacket"]},
)
BY_NAME = {exploit.name: exploit for exploit in EXPLOITS}


def exploited(name: str, case: Case = ASKED) -> str:
    return BY_NAME[name].completion(case, strong(case), LEAKS)


# ------------------------------------------------------------------------------------------------ honest plans


def test_the_careful_plan() -> None:
    assert strong(ASKED) == {
        "category": "跑鞋",
        "domains": ["footwear"],
        "budget_amount": 300,
        "clear_budget": False,
        "keywords": ["waterproof running shoes", CARD.synonyms[0]],
        "exclude_terms": [EXCLUSION],
    }
    assert strong(FOLLOW_UP)["category"] == "" and strong(FOLLOW_UP)["keywords"] == []


@pytest.mark.parametrize("case", [ASKED, FOLLOW_UP], ids=lambda case: case.id)
def test_the_careful_plan_has_no_fault_that_the_fields_show(case: Case) -> None:
    gates = ("domain", "overcommit", "exclusion")
    scored = compute_reward(parse_plan(written(strong(case))), case.golden, case.text, None, gates=gates)
    assert (scored.field_score, scored.format) == (1.0, 1.0)


def test_the_copycat_changes_keywords_only() -> None:
    assert copycat(ASKED) == {**strong(ASKED), "keywords": [TEXT]}


def test_broken_thirds() -> None:
    cut, foreign, wrong = broken([ASKED, ASKED, FOLLOW_UP])
    assert parse_plan(cut).plan is None
    assert parse_plan(foreign).plan == strong(FOLLOW_UP), "the other record asks for another category"
    scored = compute_reward(parse_plan(wrong), GOLDEN, TEXT, [])
    assert scored.format == 0.0 and scored.empty_keywords


def test_faults_are_drawn_field_by_field_and_repeat() -> None:
    assert with_faults(ASKED, CARDS, 0.0, 0) == strong(ASKED)
    for draw in range(20):
        worst = with_faults(ASKED, CARDS, 1.0, draw)
        assert [key for key in PLAN_KEYS if worst[key] == strong(ASKED)[key]] == [], "every field is wrong at rate 1"
        some, more = with_faults(ASKED, CARDS, 0.1, draw), with_faults(ASKED, CARDS, 0.3, draw)
        wrong = [key for key in PLAN_KEYS if some[key] != strong(ASKED)[key]]
        assert all(more[key] == some[key] for key in wrong), "the faults of 0.1 are among those of 0.3"
    assert with_faults(ASKED, CARDS, 0.3, 1) == with_faults(ASKED, CARDS, 0.3, 1)
    with pytest.raises(ValueError, match="fault rate 1.5"):
        with_faults(ASKED, CARDS, 1.5, 0)


@pytest.mark.parametrize("key", FAULTS)
def test_about_one_field_in_ten_is_wrong(key: str) -> None:
    plans = [with_faults(ASKED, CARDS, 0.1, draw) for draw in range(2000)]
    assert 0.07 < sum(plan[key] != strong(ASKED)[key] for plan in plans) / 2000 < 0.13


ROW = {"id": "asked", "text": TEXT}
CASE_ERRORS = [
    ({**GOLDEN, "category_anchor": "space ship"}, {"asked": [EXCLUSION]}, "space ship", "an anchor without a card"),
    (GOLDEN, {}, "asked.*exclude_expected is True", "an exclusion nobody wrote down"),
    ({**GOLDEN, "exclude_expected": False}, {"asked": [EXCLUSION]}, "exclude_expected is False", "one too many"),
    (GOLDEN, {"asked": [{"word": "mesh", "evidence": "不要网"}]}, "from the text", "a careful person quotes verbatim"),
]


@pytest.mark.parametrize(("golden", "exclusions", "message", "reason"), CASE_ERRORS)
def test_case_errors(golden: Any, exclusions: Any, message: str, reason: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_cases([ROW], [parse_golden(golden)], CARDS, {}, exclusions)


# ------------------------------------------------------------------------------------------------ the battery

LISTED = """no_keywords blank_keywords six_synonyms sentence_in_two category_six_times popular_words every_domain
no_domain null_everything budget_null whole_sentence_as_evidence exclusions_of_everything keys_added json_in_prose
constant_plan leaked_must_have never_excluding english_whole english_pieces all_category_names accessory_name
letter_in_copy rotated_pieces punctuation_keyword""".split()


def test_every_listed_exploit_is_in_the_table_once() -> None:
    names = [exploit.name for exploit in EXPLOITS]
    assert set(LISTED) <= set(names) and len(names) == len(set(names)) >= 16
    assert all(exploit.reason for exploit in EXPLOITS)


@pytest.mark.parametrize("exploit", EXPLOITS, ids=lambda one: one.name)
@pytest.mark.parametrize("case", [ASKED, FOLLOW_UP], ids=lambda case: case.id)
@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_only_its_own_keys_change_and_it_parses(exploit: Any, case: Case, rate: float) -> None:
    honest = with_faults(case, CARDS, rate, 0)
    kept = json.dumps(honest)
    parsed = parse_plan(exploit.completion(case, honest, LEAKS))
    assert json.dumps(honest) == kept, "the twin itself was changed"
    assert parsed.plan is not None
    assert {key: parsed.plan[key] for key in PLAN_KEYS if key not in exploit.keys} == {
        key: honest[key] for key in PLAN_KEYS if key not in exploit.keys
    }
    assert set(parsed.plan) <= {*PLAN_KEYS, *exploit.keys}
    assert parsed.issues == (("prose",) if exploit.name == "json_in_prose" else ())


@pytest.mark.parametrize("exploit", EXPLOITS, ids=lambda one: one.name)
def test_it_changes_an_ordinary_plan(exploit: Any) -> None:
    assert exploit.completion(ASKED, strong(ASKED), LEAKS) != written(strong(ASKED))


def plan_of(name: str) -> dict[str, Any]:
    plan = parse_plan(exploited(name)).plan
    assert plan is not None
    return plan


CONTENT: list[tuple[str, Callable[[dict[str, Any]], bool], str]] = [
    ("no_keywords", lambda p: p["keywords"] == [], "none"),
    ("blank_keywords", lambda p: len(p["keywords"]) > 1 and not valid_keywords(p), "there, and none counts"),
    ("punctuation_keyword", lambda p: bool("".join(p["keywords"])) and not valid_keywords(p), "no letter, no digit"),
    ("six_synonyms", lambda p: 4 <= len(set(p["keywords"])) <= 6, "distinct names"),
    ("six_synonyms", lambda p: "waterproof" not in " ".join(p["keywords"]), "and not what is asked"),
    ("category_six_times", lambda p: p["keywords"] == ["running shoes"] * 6, "six times"),
    ("sentence_in_two", lambda p: len(p["keywords"]) == 2 and "".join(p["keywords"]) == TEXT, "all of it"),
    ("letter_in_copy", lambda p: p["keywords"][0].replace("x", "") == TEXT, "one letter more"),
    ("rotated_pieces", lambda p: sorted("".join(p["keywords"])) == sorted(TEXT), "all of it, turned"),
    ("english_whole", lambda p: p["keywords"] == [ENGLISH], "whole"),
    ("english_pieces", lambda p: " ".join(p["keywords"]) == ENGLISH, "nothing left out"),
    ("english_pieces", lambda p: max(len(k.split()) for k in p["keywords"]) == 4, "no keyword is long"),
    ("leaked_must_have", lambda p: p["keywords"] == ["running shoes", "waterproof", "wide"], "of its category"),
    ("accessory_name", lambda p: set(p["keywords"]) <= set(CARD.accessories), "the card's accessories"),
    ("every_domain", lambda p: len(p["domains"]) == 21 and "global" not in p["domains"], "all that are legal"),
    ("all_category_names", lambda p: p["category"] == "跑鞋雨衣", "joined"),
    ("whole_sentence_as_evidence", lambda p: p["exclude_terms"] == [{"word": "mesh", "evidence": TEXT}], "word kept"),
    ("exclusions_of_everything", lambda p: len(p["exclude_terms"]) >= 6, "many"),
    ("null_everything", lambda p: set(p.values()) == {None}, "null"),
]


@pytest.mark.parametrize(("name", "holds", "reason"), CONTENT)
def test_content(name: str, holds: Callable[[dict[str, Any]], bool], reason: str) -> None:
    assert holds(plan_of(name)), (reason, plan_of(name))


COPIES = [
    ("sentence_in_two", True, "two pieces hold all Words but one"),
    ("letter_in_copy", True, "one letter hides one Word"),
    ("letters_through_copy", False, "no pair of characters is left"),
    ("rotated_pieces", False, "under 0.6 of the pairs are left"),
    ("english_pieces", False, "a copy in another language is none to the reward"),
]


@pytest.mark.parametrize(("name", "caught", "reason"), COPIES)
def test_which_copies_the_reward_sees(name: str, caught: bool, reason: str) -> None:
    assert compute_reward(plan_of(name), GOLDEN, TEXT, []).copycat is caught, reason


def test_leaks_are_counted() -> None:
    goldens = [parse_golden(GOLDEN)] * 2 + [parse_golden({**GOLDEN, "must_have": ["wide", "waterproof"]})]
    leaks = gather_leaks(CARDS, ["Red Shoe Pack", "Blue Pack Pack", "Blue Sock"], [*goldens, parse_golden(UNKNOWN)])
    assert leaks.popular_words[:2] == ("blue", "pack"), "by the number of titles, then by name"
    assert leaks.common_terms == ("waterproof", "wide")
    assert leaks.terms_of == {"running shoes": ("waterproof", "wide")}
    assert (leaks.constant["category"], leaks.constant["keywords"][0]) == ("跑鞋", "running shoes")
    with pytest.raises(ValueError, match="0 must_have terms"):
        gather_leaks(CARDS, ["Red Shoe"], [parse_golden(UNKNOWN)])


# ------------------------------------------------------------------------------------------------ candidate gates

MESH = "别给我网面的"
ACTS = [
    ("evidence_span", {"exclude_terms": [{"word": "mesh", "evidence": TEXT}]}, True, "the whole sentence"),
    ("evidence_span", {"exclude_terms": [{"word": "mesh", "evidence": TEXT[1:]}]}, True, "nearly all of it"),
    ("evidence_span", {"exclude_terms": [EXCLUSION]}, False, "a piece"),
    ("evidence_span", {"exclude_terms": "mesh"}, False, "no list: the format charges that"),
    ("golden_evidence", {"exclude_terms": [EXCLUSION]}, False, "the very words"),
    ("golden_evidence", {"exclude_terms": [{"word": "mesh", "evidence": MESH[2:]}]}, False, "most of them"),
    ("golden_evidence", {"exclude_terms": [{"word": "mesh", "evidence": TEXT[:6]}]}, True, "other words"),
    ("golden_evidence", {"exclude_terms": [{"word": "mesh", "evidence": TEXT}]}, True, "much more than these"),
    ("missed_exclusion", {"exclude_terms": []}, True, "none stated"),
    ("missed_exclusion", {"exclude_terms": [{"word": " ", "evidence": MESH}]}, True, "a blank word excludes nothing"),
    ("missed_exclusion", {"exclude_terms": [EXCLUSION]}, False, "stated"),
    ("domain_count", {"domains": []}, True, "none"),
    ("domain_count", {"domains": ["footwear", "sports", "apparel"]}, False, "as many as a card may have"),
    ("domain_count", {"domains": ["footwear", "sports", "apparel", "bags"]}, True, "more"),
]


@pytest.mark.parametrize(("name", "changes", "acts", "reason"), ACTS)
def test_candidate_gates(name: str, changes: dict[str, Any], acts: bool, reason: str) -> None:
    candidate = next(one for one in CANDIDATES if one.name == name)
    assert candidate.acts(ASKED, {**strong(ASKED), **changes}) is acts, reason


@pytest.mark.parametrize("status", ["agree", "review"])
@pytest.mark.parametrize("golden", [GOLDEN, UNKNOWN], ids=["asked", "follow-up"])
def test_a_field_of_zero_is_what_made_up_evidence_gets(golden: dict[str, Any], status: str) -> None:
    record = {**golden, "status": status}
    weights = {"retrieval": 0.45, "field": 0.30, "format": 0.15, "econ": 0.10}
    honest = compute_reward(strong(ASKED), record, TEXT, ["Waterproof Running Shoes", "Sock"])
    faked = {**strong(ASKED), "exclude_terms": [{"word": "mesh", "evidence": "nobody said this"}]}
    expected = compute_reward(faked, record, TEXT, ["Waterproof Running Shoes", "Sock"]).total
    assert total_without_field(honest.to_dict(), status, weights) == pytest.approx(expected, abs=1e-12)


# ------------------------------------------------------------------------------------------------ judging

DISTANCES = [
    ({"strong": 0.84, "copycat": 0.60, "broken": 0.14}, True, "the original's figures"),
    ({"strong": 0.70, "copycat": 0.60, "broken": 0.14}, False, "copies are as good as plans"),
    ({"strong": 0.84, "copycat": 0.60, "broken": 0.31}, False, "broken plans are as good as copies"),
    ({"strong": 1.00, "copycat": 0.75, "broken": 0.25}, True, "further apart than wanted"),
]


@pytest.mark.parametrize(("means", "met", "reason"), DISTANCES)
def test_calibration(means: dict[str, float], met: bool, reason: str) -> None:
    assert calibration(means)["met"] is met, reason


JUDGED = [
    ([[0.5], [0.5]], [[0.5], [0.6]], True, "above on average"),
    ([[0.5], [0.5]], [[0.4], [0.5]], False, "below"),
    ([[0.5], [0.5]], [[0.5 + 1e-12], [0.5]], False, "a rounding error is no gain"),
    ([[0.5], [0.5]], [[0.5], [0.5]], False, "equal"),
    ([[0.5, 0.5]], [[0.9, 0.2]], True, "a record is the mean of its draws"),
    ([], [], False, "nothing differs: nothing is gained"),
]


@pytest.mark.parametrize(("twins", "exploits", "paying", "reason"), JUDGED)
def test_judging(twins: Any, exploits: Any, paying: bool, reason: str) -> None:
    assert pays(paired(twins, exploits)) is paying, reason


def test_paired_figures() -> None:
    result = paired([[0.2, 0.4], [0.5, 0.5]], [[0.4, 0.6], [0.9, 0.9]])
    assert result["records"] == 2
    assert (result["twin"], result["exploit"]) == (pytest.approx(0.4), pytest.approx(0.7))
    assert result["difference"] == pytest.approx(0.3)
    assert (result["low"], result["high"]) == (pytest.approx(0.2), pytest.approx(0.4))


JUDGES = [
    (0, 92, [0.0], "an exploit that changes nothing"),
    (9, 90, [0.0], "wrong as often as the twin"),
    (10, 90, [0.0, 0.1], "wrong more often than the twin"),
]


@pytest.mark.parametrize(("changed", "records", "rates", "reason"), JUDGES)
def test_a_twin_wrong_more_often_is_no_judge(changed: int, records: int, rates: list[float], reason: str) -> None:
    assert judging_rates(changed, records) == rates, reason


def test_fault_rate_is_read_off_the_ladder() -> None:
    ladder = [(0.0, 1.0), (0.1, 0.9), (0.3, 0.7)]
    assert [fault_rate_like(mean, ladder) for mean in (1.2, 1.0, 0.95, 0.9, 0.8, 0.7, 0.6)] == [
        0.0, 0.0, 0.05, 0.1, 0.2, 0.3, None,
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------ end to end


def command(world: World, data: Path, out: Path, *more: str) -> list[str]:
    return [
        sys.executable,
        "scripts/eval/calibrate_reward.py",
        *("--data", str(data)),
        *("--catalog", str(world.folder / "catalog.jsonl")),
        *("--train", str(world.folder / "grpo.jsonl")),
        *("--out", str(out)),
        *more,
    ]


@pytest.fixture(scope="module")
def report(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The command on a quarter of dev92 and the world's index: its JSON file and what it printed."""
    folder = tmp_path_factory.mktemp("calibration")
    data = folder / "dev.jsonl"
    lines = (world.folder / "dev92.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    data.write_text("".join(lines[::4]), encoding="utf-8")
    printed = run(command(world, data, folder / "calibration.json"), world.environment, code=1)
    return json.loads((folder / "calibration.json").read_text(encoding="utf-8")), printed


def test_the_command_on_the_small_world(report: tuple[dict[str, Any], str]) -> None:
    result, printed = report
    assert result["verdict"]["calibration_met"], printed
    assert result["records"] == 23
    assert len(result["exploits"]) == len(EXPLOITS)
    rungs = [means["all_gates"] for means in result["honest_by_fault_rate"].values()]
    assert rungs == sorted(rungs, reverse=True) and rungs[0] > rungs[-1] + 0.1, "more faults, less reward"
    for one in result["exploits"]:
        assert one["name"] in printed
        assert one["all_gates"]["0.0"]["difference"] is None or not pays(one["all_gates"]["0.0"]), one


def test_it_says_which_exploits_get_through_and_what_stops_them(report: tuple[dict[str, Any], str]) -> None:
    result, printed = report
    by_name = {one["name"]: one for one in result["exploits"]}
    failed = result["verdict"]["exploits_above_their_twins"]
    assert failed == [one["name"] for one in result["exploits"] if one["failed"]] != []
    assert not result["verdict"]["good"] and "verdict: BAD" in printed
    quoted = by_name["whole_sentence_as_evidence"]
    assert quoted["failed"] and "FAILED whole_sentence_as_evidence" in printed
    stops = [one["name"] for one in quoted["candidate_gates"] if one["stops_it"]]
    assert "evidence_span" in stops
    assert by_name["english_pieces"]["all_gates"]["0.0"]["difference"] < by_name["english_pieces"]["no_gates"]["0.0"][
        "difference"
    ], "the grounded gate acts"


WRONG_USE = [
    ({"PLANNER_RETRIEVAL": "off"}, (), "PLANNER_RETRIEVAL=off"),
    ({}, ("--exclusions", "tests/data/no_such_file.jsonl"), "no_such_file.jsonl"),
    ({}, ("--exclusions", "data/demo/dev92_english.jsonl"), "no column exclude_terms"),
]


@pytest.mark.parametrize(("variables", "more", "message"), WRONG_USE)
def test_wrong_use_ends_with_2(
    world: World, tmp_path: Path, variables: dict[str, str], more: tuple[str, ...], message: str
) -> None:
    out = tmp_path / "calibration.json"
    printed = run(
        command(world, world.folder / "dev92.jsonl", out, *more), {**world.environment, **variables}, code=2
    )
    assert message in printed and "Traceback" not in printed
    assert not out.exists()
