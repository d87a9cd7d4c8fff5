"""Evaluation summaries and the result table, on records built by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from built_evaluations import write

from scripts.demo.run_seeds import judged
from scripts.eval.evaluation_files import COMPARED, MODES, check_comparable, json_text, load
from scripts.eval.result_table import main, table, verdict
from scripts.eval.summary import (
    PARTS,
    abstains_on_category,
    bootstrap_interval,
    earlier_category_kept,
    needs_keywords,
    paired_change,
    paired_difference,
    part_values,
    spread,
    summarise,
)

GOLDEN = {"category": "跑鞋", "must_have": ["waterproof"], "category_anchor": "running shoes", "exclude_expected": True}
UNKNOWN = {"category": None, "must_have": [], "category_anchor": "", "exclude_expected": False}


def sample(total: float, plan: dict[str, Any] | None = None, **breakdown: Any) -> dict[str, Any]:
    flags = {"empty_keywords": False, "exclusion_missed": False, "evidence_faked": False}
    parts = {**dict.fromkeys(PARTS, None), **flags, **breakdown, "total": total}
    return {"plan": plan, "breakdown": parts}


def record(name: str, *samples: dict[str, Any], golden: dict[str, Any] = GOLDEN) -> dict[str, Any]:
    return {"id": name, "family": "attribute", "golden": golden, "samples": list(samples)}


PLAN = {"category": "跑鞋"}


def test_counts_and_denominators() -> None:
    records = [
        record("a", sample(0.8, PLAN, format=1.0, retrieval=0.6), sample(-1.0)),
        record("b", sample(0.5, PLAN, format=0.9, retrieval=0.2, empty_keywords=True)),
        record("c", sample(0.9, {"category": ""}, format=1.0), golden=UNKNOWN),
    ]
    summary = summarise(records)
    assert summary["reward"]["mean"] == pytest.approx((-0.1 + 0.5 + 0.9) / 3)  # records weigh alike, not samples
    assert summary["parts"]["retrieval"] == {"mean": pytest.approx(0.4), "completions": 2}  # abstained: not a zero
    assert summary["parts"]["budget"] == {"mean": None, "completions": 0}
    assert summary["format_rate"] == {"count": 2, "of": 4, "share": 0.5}  # exactly 1, unparsable counts against
    assert summary["parse_rate"]["count"] == 3
    assert summary["keywords_where_needed"] == {"count": 1, "of": 3, "share": pytest.approx(1 / 3)}
    assert summary["exclusions_where_expected"] == {"count": 2, "of": 3, "share": pytest.approx(2 / 3)}
    assert summary["abstentions_of_all_records"] == {"count": 1, "of": 4, "share": 0.25}
    assert summary["correct_abstentions_of_those_that_should"] == {"count": 1, "of": 1, "share": 1.0}


@pytest.mark.parametrize(
    ("plan", "abstains", "reason"),
    [
        ({"category": None}, True, "null abstains"),
        ({"category": ""}, True, "the empty string abstains"),
        ({"category": " "}, True, "blank is empty"),
        ({}, False, "a missing key is a fault, not an abstention"),
        ({"category": []}, False, "a wrong type is a fault"),
        ({"category": "跑鞋"}, False, "a category"),
        (None, False, "nothing was parsed"),
    ],
)
def test_what_counts_as_an_abstention(plan: dict[str, Any] | None, abstains: bool, reason: str) -> None:
    assert abstains_on_category(plan) is abstains, reason


def test_the_interval_covers_the_mean_at_its_nominal_rate() -> None:
    draw = np.random.default_rng(1)
    hits = 0
    for _ in range(60):
        low, high = bootstrap_interval(list(draw.normal(0.5, 0.2, 92)))
        hits += low <= 0.5 <= high
    assert 52 <= hits <= 60  # 95 % of 60 is 57; a 90 % or one-sided interval falls below


def test_the_interval_is_reproducible_and_needs_values() -> None:
    assert bootstrap_interval([0.1, 0.9, 0.4]) == bootstrap_interval([0.1, 0.9, 0.4])
    with pytest.raises(ValueError, match="no values"):
        bootstrap_interval([])


def test_pairing_removes_what_the_records_differ_in() -> None:
    a = [record(str(i), sample(i / 100, PLAN)) for i in range(90)]
    b = [record(str(i), sample(i / 100 + 0.05, PLAN)) for i in range(90)]
    difference = paired_difference(a, b)
    assert (difference.mean, difference.low, difference.high) == pytest.approx((0.05, 0.05, 0.05))
    assert difference.moved == 1
    with pytest.raises(ValueError, match="different records"):
        paired_difference(a, b[:-1])


def evaluation(records: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    summary = {"reward_sha256": "r", "data_sha256": "d", "weights": {"field": 0.3}, "gates": []}
    summary |= {"store": {"points": 9, "vector_size": 4}, "encoder": "hashed", "max_new_tokens": 64}
    return {"summary": {**summary, "greedy": summarise(records), **changes}, "greedy": records}


def test_a_part_that_fell_is_named_although_the_total_rose() -> None:
    before = evaluation([record(str(i), sample(0.70, PLAN, domains_f1=0.8, format=1.0)) for i in range(40)])
    after = evaluation([record(str(i), sample(0.75, PLAN, domains_f1=0.7, format=1.0)) for i in range(40)])
    result = verdict(before, after, "greedy")
    assert result["rose"]
    assert result["fell"] == ["domains_f1 fell by 0.100 [-0.100, -0.100]"]


def test_exclusions_that_got_lost_are_named_although_no_part_shows_them() -> None:
    before = evaluation([record(str(i), sample(0.70, PLAN)) for i in range(40)])
    after = evaluation([record(str(i), sample(0.75, PLAN, exclusion_missed=i < 30)) for i in range(40)])
    assert verdict(before, after, "greedy")["fell"] == ["exclusions where expected fell from 40 to 10 of 40"]


def test_shares_are_compared_where_the_counts_have_other_denominators() -> None:
    whole, half = ([record(str(i), *[sample(0.7, PLAN, format=1.0)] * n) for i in range(92)] for n in (8, 4))
    assert verdict(evaluation(whole), evaluation(half), "greedy")["fell"] == []
    worse = [record(str(i), *[sample(0.7, PLAN, format=float(i < 57))] * 8) for i in range(92)]
    (words,) = (words for words in verdict(evaluation(half), evaluation(worse), "greedy")["fell"] if "rate" in words)
    assert words == "format rate fell from 368 of 368 to 456 of 736"
    lacking = evaluation([record("0", sample(0.7, PLAN), golden=UNKNOWN)])  # no exclusion to state on one side
    assert verdict(evaluation([record("0", sample(0.7, PLAN))]), lacking, "greedy")["fell"] == []


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [((3, 2), (3, 4), "A has 2, B has 4"), ((40, 1), (39, 1), "different records")],
)
def test_a_table_whose_verdict_would_not_compare_like_with_like_is_wrong_use(
    before: tuple[int, int], after: tuple[int, int], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        f"{label}=" + write(tmp_path / label, {"samples": [record(str(i), *[sample(0.7, PLAN)] * n) for i in range(k)]})
        for label, (k, n) in (("A", before), ("B", after))
    ]
    assert main([*given, "--before", "A", "--after", "B", "--json", str(tmp_path / "out.json")]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "out.json").exists()


def test_no_rise_is_no_rise() -> None:
    same = [record(str(i), sample(0.7, PLAN)) for i in range(40)]
    assert not verdict(evaluation(same), evaluation(same), "greedy")["rose"]


@pytest.mark.parametrize(
    ("differences", "moved", "reason"),
    [
        ([0.2] * 5, 0, "all signs alike by chance: 2 of 32"),
        ([0.2] * 6, 1, "2 of 64"),
        ([-0.2] * 6, -1, "in either direction"),
        ([0.0] * 90, 0, "nothing changed"),
        ([0.2] * 45 + [-0.2] * 45, 0, "as often up as down"),
    ],
)
def test_a_change_is_beyond_chance_by_interval_and_sign_flip(differences: list[float], moved: int, reason: str) -> None:
    assert paired_change(differences).moved == moved, reason


def test_few_records_do_not_make_a_rise() -> None:
    before, after = ([record(str(i), sample(total, PLAN)) for i in range(5)] for total in (0.7, 0.75))
    result = verdict(evaluation(before), evaluation(after), "greedy")
    assert result["difference"]["low"] > 0 and not result["rose"]


def seeds(*gains: tuple[float, bool], format_rate: float = 1.0) -> dict[int, dict[str, Any]]:
    """The result files of one seed a gain, (mean, whether it is beyond chance), alike in both modes."""
    of_mode = {"format_rate": {"share": format_rate}}
    return {
        seed: {
            "table": f"table of {seed}",
            "summaries": {"sft": {mode: of_mode for mode in MODES}},
            "verdicts": {
                mode: {"difference": {"mean": mean, "low": mean - 0.01, "high": mean + 0.01}, "rose": rose}
                for mode in MODES
            },
        }
        for seed, (mean, rose) in enumerate(gains, 42)
    }


@pytest.mark.parametrize(
    ("results", "good", "reason"),
    [
        (seeds((0.01, False), (0.05, True), (0.09, True)), True, "the median seed counts"),
        (seeds((0.01, True), (0.02, True), (0.09, True)), False, "its gain is below the line"),
        (seeds((0.01, True), (0.05, False), (0.09, True)), False, "its gain may be chance"),
        (seeds((0.05, True), (0.05, True), (0.09, True), format_rate=0.97), False, "SFT has not learnt the format"),
    ],
)
def test_three_seeds_are_judged_by_the_median_one(results: dict[int, dict[str, Any]], good: bool, reason: str) -> None:
    text, verdict_of_all = judged(results)
    assert verdict_of_all is good, reason
    assert "table of 43" in text and "median: +0.0" in text


@pytest.mark.parametrize("key", COMPARED)
def test_evaluations_scored_differently_are_refused(key: str) -> None:
    records = [record("a", sample(0.7, PLAN))]
    with pytest.raises(ValueError, match=key):
        check_comparable({"x": evaluation(records), "y": evaluation(records, **{key: "other"})})


def test_the_table_shows_counts_beside_means() -> None:
    text = table({"sft": evaluation([record("a", sample(0.7, PLAN, retrieval=0.25, format=1.0))])})
    assert "| sft | greedy | 0.7000 [0.7000, 0.7000] | 0.250 (1) |" in text


def test_a_part_that_never_took_part_has_no_value() -> None:
    assert part_values([record("a", sample(-1.0))], "retrieval") == [None]


def test_a_file_that_is_not_the_summarys_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.summary.json").write_text(json.dumps({"greedy": {"records_sha256": "0" * 64}}), encoding="utf-8")
    (tmp_path / "a.greedy.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="evaluate again"):
        load(str(tmp_path / "a"))


@pytest.mark.parametrize(
    ("must_have", "anchor", "needed"), [([], None, False), ([], "", False), ([], "shoes", True), (["wide"], None, True)]
)
def test_a_golden_without_an_anchor_asks_for_keywords_only_by_its_terms(
    must_have: list[str], anchor: str | None, needed: bool
) -> None:
    assert needs_keywords({"must_have": must_have, "category_anchor": anchor}) is needed


@pytest.mark.parametrize(
    ("totals", "unable", "unsteady", "reading"),
    [
        ([[0.9, 0.9]], 0, 0, "neither"),
        ([[0.9, 0.5]], 0, 1, "unsteady more"),
        ([[0.5, 0.6]], 1, 0, "unable more"),
        ([[0.5, 0.5], [0.9, -1.0]], 1, 1, "as often"),
        ([[0.9, 0.75]], 0, 0, "neither"),  # the mean lies 0.075 below: that is steady
        ([[0.8, 0.6]], 0, 1, "unsteady more"),  # 0.8 is reached, and the mean lies 0.1 below
    ],
)
def test_the_best_of_k_tells_unable_from_unsteady(
    totals: list[list[float]], unable: int, unsteady: int, reading: str
) -> None:
    records = [record(str(i), *(sample(total, PLAN) for total in given)) for i, given in enumerate(totals)]
    found = spread(records)
    assert (found["unable"]["count"], found["unsteady"]["count"]) == (unable, unsteady)
    assert reading in found["reading"]
    assert found["best_of_k"]["mean"] == pytest.approx(sum(max(given) for given in totals) / len(totals))
    assert found["mean_of_k"] == summarise(records)["reward"]["mean"]


def test_records_with_fewer_samples_are_counted() -> None:
    found = spread([record("a", sample(0.9, PLAN), sample(0.9, PLAN)), record("b", sample(0.9, PLAN))])
    assert (found["k"], found["short"]) == (2, 1)


@pytest.mark.parametrize(
    ("text", "rendered", "golden", "kept", "reason"),
    [
        ("要防水的", True, GOLDEN, (1, 2), "one of two samples keeps what only the earlier turn says"),
        ("要防水的", False, GOLDEN, (0, 0), "the prompt did not show the earlier turn"),
        ("换成跑鞋", True, GOLDEN, (0, 0), "this turn says it itself"),
        ("要防水的", True, UNKNOWN, (0, 0), "the earlier turns do not tell"),
    ],
)
def test_keeping_the_earlier_category(
    text: str, rendered: bool, golden: dict[str, Any], kept: tuple[int, int], reason: str
) -> None:
    one = record("a", sample(0.9, PLAN, category=1.0), sample(0.5, {"category": ""}, category=0.0), golden=golden)
    found = earlier_category_kept([{**one, "text": text, "context_rendered": rendered}])
    assert (found["count"], found["of"]) == kept, reason


def test_a_lone_surrogate_of_a_model_is_written_as_an_escape(tmp_path: Path) -> None:
    value = {"completion": "跑\ud800鞋"}
    (tmp_path / "x.json").write_text(json_text(value), encoding="utf-8")
    assert "跑" in json_text(value)
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == value
