"""Comparison of two evaluations: verdicts on built files, and on simulated pairs whose truth is known."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from built_evaluations import PLAN, RECORDS, record, sample, simulated_pair, true_changes, write
from commands import ROOT

from scripts.eval.compare_runs import main
from scripts.eval.comparison import (
    BETTER,
    FEWEST_RECORDS,
    MIXED,
    NO_DIFFERENCE,
    TRADE_OFF,
    UNPROVEN,
    WORSE,
    Change,
    compare,
    detectable_difference,
    verdict_of,
)
from scripts.eval.evaluation_files import COMPARED
from scripts.eval.summary import FLIPS, holm, sign_flip_p


def noise(mean: float, sigma: float, count: int, seed: int = 1) -> np.ndarray:
    """Draws with exactly this mean and σ."""
    draws = np.random.default_rng(seed).normal(size=count)
    return mean + sigma * (draws - draws.mean()) / draws.std()


def files(tmp_path: Path, before: list[Any], after: list[Any], **changes: Any) -> list[str]:
    a = write(tmp_path / "a", {"greedy": before})
    return [a, write(tmp_path / "b", {"greedy": after}, **changes)]


def bought(part: str, loss: float, gain: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A total that rose by `gain` while `part` lost `loss`, over noise as in real evaluations."""
    gains, losses = noise(gain, 0.08, RECORDS), noise(-loss, 0.25, RECORDS, seed=2)
    before = [record(str(i), sample(0.70, format=1.0, **{part: 0.5})) for i in range(RECORDS)]
    after = [record(str(i), sample(0.70 + gains[i], format=1.0, **{part: 0.5 + losses[i]})) for i in range(RECORDS)]
    return before, after


def test_a_total_bought_with_domain_judgement_is_mixed(tmp_path: Path) -> None:
    a, b = files(tmp_path, *bought("domains_f1", 0.078, 0.023))
    command = [sys.executable, "scripts/eval/compare_runs.py", a, b, "--json", str(tmp_path / "out.json")]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False, timeout=300)
    assert done.returncode == 1, done.stderr
    result = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["modes"]["greedy"]
    assert result["verdict"] == MIXED
    assert result["total"]["mean"] == pytest.approx(0.023) and result["total"]["low"] > 0
    domains = result["tested"]["domains_f1"]
    assert domains["mean"] == pytest.approx(-0.078) and domains["high"] < 0
    assert result["fell"] == ["domains_f1"]
    assert "mixed" in done.stdout and "domains_f1 fell by 0.078" in done.stdout and "Holm" in done.stdout


def test_two_seeds_of_one_model_are_no_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = files(tmp_path, *simulated_pair(5, {}))
    assert main([a, b]) == 0
    printed = capsys.readouterr().out
    assert NO_DIFFERENCE in printed and "would have been seen with 80% probability" in printed


# Twenty pairs: the truth by part (over endless records), with gains that make the total rise over each loss.
GAINS = {"retrieval": 0.12, "econ": 0.30}
LOST = (("domains_f1", 0.05), ("domains_f1", 0.08), ("category", 0.06), ("category", 0.12), ("budget", 0.05),
        ("budget", 0.10))  # fmt: skip
TRUTHS: list[Mapping[str, float]] = [
    *({**GAINS, part: -loss} for part, loss in LOST),
    {"category": 0.15, "domains_f1": 0.15, "econ": 0.2, "retrieval": -0.06},
    {"retrieval": 0.2, "econ": -0.10},
    {**GAINS, "category": -0.05, "budget": -0.05},
    {**GAINS, "domains_f1": -0.2},
    *([{"retrieval": 0.12, "econ": 0.2, "category": 0.08, "domains_f1": 0.08, "budget": 0.03}] * 4),
    *([{}] * 4),
    {"retrieval": -0.15, "category": -0.10},
    {"econ": 0.05, "domains_f1": -0.05},
]


@pytest.fixture(scope="module")
def judged() -> list[tuple[Mapping[str, float], dict[str, Any]]]:
    assert len(TRUTHS) == 20
    return [(true_changes(truth), compare(*simulated_pair(seed, truth))) for seed, truth in enumerate(TRUTHS)]


def test_every_trade_off_of_a_twentieth_is_named(judged: list[tuple[Mapping[str, float], dict[str, Any]]]) -> None:
    for number, (truth, result) in enumerate(judged):
        lost = {part for part, change in truth.items() if change <= -TRADE_OFF and part != "total"}
        lost |= {part for part, change in result["tested"].items() if change["mean"] <= -TRADE_OFF}
        assert lost <= {*result["fell"], *result["possible"]}, (number, result["words"])
        assert all(part in result["words"] for part in lost), (number, result["words"])


def test_none_is_called_better_that_is_not(judged: list[tuple[Mapping[str, float], dict[str, Any]]]) -> None:
    for number, (truth, result) in enumerate(judged):
        is_better = truth["total"] > 0 and min(truth.values()) > -TRADE_OFF
        assert result["verdict"] != BETTER or is_better, (number, result["words"])
    verdicts = [result["verdict"] for _, result in judged]
    assert verdicts[10:14].count(BETTER) >= 2, "what is better everywhere is found to be, or the word says nothing"
    assert verdicts[14:18].count(NO_DIFFERENCE) >= 3, "nothing changed"
    assert verdicts[18] == WORSE


def change(name: str, mean: float, half: float, p_holm: float = 1.0, records: int = 90) -> Change:
    return Change(mean, mean - half, mean + half, p_holm, name, records, 0.5, 0.5 + mean, p_holm)


ROSE, FELL = (change("total", mean, 0.02, 0.01) for mean in (0.03, -0.03))
FLAT = change("total", 0.01, 0.02)


@pytest.mark.parametrize(
    ("total", "tested", "verdict", "reason"),
    [
        (ROSE, [change("econ", 0.0, 0.04)], BETTER, "a loss of 0.05 lies outside the interval"),
        (ROSE, [change("econ", 0.0, 0.05)], UNPROVEN, "the interval reaches a loss of 0.05"),
        (ROSE, [change("econ", -0.049, 0.0005)], BETTER, "a loss below 0.05, and surely so"),
        (ROSE, [change("econ", -0.049, 0.0005, 0.01)], MIXED, "a small loss, but a certain one"),
        (ROSE, [change("econ", -0.05, 0.04)], MIXED, "0.05 and off zero by its own interval"),
        (ROSE, [change("econ", -0.06, 0.07)], UNPROVEN, "0.06, which this set cannot tell from no change"),
        (ROSE, [change("exclusions_where_expected", 0.0, 0.1, records=13)], BETTER, "a rate over too few to tell"),
        (ROSE, [change("exclusions_where_expected", -0.1, 0.15, records=13)], UNPROVEN, "the same rate, seen to fall"),
        (ROSE, [change("parse_rate", 0.0, 0.06)], UNPROVEN, "a rate over enough records"),
        (FLAT, [change("econ", -0.06, 0.05)], NO_DIFFERENCE, "one of many quantities off zero, not after correction"),
        (FLAT, [change("econ", -0.06, 0.02, 0.01)], WORSE, "a certain loss and no gain"),
        (FLAT, [change("econ", -0.06, 0.02, 0.01), change("budget", 0.1, 0.02, 0.01)], MIXED, "one for the other"),
        (FLAT, [change("budget", 0.1, 0.02, 0.01)], NO_DIFFERENCE, "the total did not move: not better"),
        (FELL, [change("econ", 0.0, 0.01)], WORSE, "the total fell"),
        (change("total", 0.03, 0.02, 0.06), [], NO_DIFFERENCE, "off zero by its interval, but chance reaches it"),
        (change("total", -0.03, 0.02, 0.06), [], NO_DIFFERENCE, "the same downwards"),
        (FELL, [change("econ", 0.1, 0.02, 0.01)], MIXED, "the total fell, a part rose"),
    ],
)
def test_the_verdict(total: Change, tested: list[Change], verdict: str, reason: str) -> None:
    assert verdict_of(total, tested) == verdict, reason


@pytest.mark.parametrize("count", [1, 3, 6])
def test_few_records_are_judged_at_the_level_that_is_stated(count: int) -> None:
    same = [record(str(i), sample(0.5)) for i in range(count)]
    draw = np.random.default_rng(count)
    alarms = 0
    for _ in range(100):
        after = [record(str(i), sample(0.5 + x)) for i, x in enumerate(draw.normal(0, 0.1, count))]
        alarms += compare(same, after)["verdict"] != NO_DIFFERENCE
    assert alarms <= 11  # 5 % of 100 is 5, 11 its 99 % quantile; by the interval alone 12 and more
    up = compare(same, [record(str(i), sample(0.6)) for i in range(count)])
    assert up["verdict"] == (NO_DIFFERENCE if count < FEWEST_RECORDS else BETTER)
    assert ("too few to judge" in up["words"]) is (count < FEWEST_RECORDS)
    assert "would have been seen" not in up["words"]


def test_exclusions_that_got_lost_are_worse_although_no_part_shows_them() -> None:
    before = [record(str(i), sample(0.7, format=1.0)) for i in range(40)]
    after = [record(str(i), sample(0.7, format=1.0, exclusion_missed=i < 30)) for i in range(40)]
    result = compare(before, after)
    assert result["verdict"] == WORSE and result["fell"] == ["exclusions_where_expected"]


def test_parts_lost_with_the_parse_are_noted_and_the_rate_itself_is_tested() -> None:
    before = [record(str(i), sample(0.7, format=1.0, category=1.0)) for i in range(40)]
    after = [record(str(i), sample(-1.0, None) if i < 10 else sample(0.7, format=1.0, category=1.0)) for i in range(40)]
    result = compare(before, after)
    assert {"parse_rate", "format_rate"} <= set(result["fell"])
    assert result["tested"]["category"]["records"] == 30
    assert "10 records parse on one side only" in result["notes"][0]


def test_records_whose_call_failed_are_left_out_up_to_a_twentieth() -> None:
    whole = [record(str(i), sample(0.7, format=1.0)) for i in range(100)]
    result = compare(whole, whole[5:])
    assert (result["records"], result["left_out"]) == (95, 5) and "left out" in result["notes"][0]
    with pytest.raises(ValueError, match="94 records"):
        compare(whole, whole[6:])


@pytest.mark.parametrize(("kept", "code", "said"), [
    (190, 0, "B lacks 10 of 200 completions"), (189, 2, "B has 189 of 200 completions"),
])  # fmt: skip
def test_samples_whose_calls_failed_are_told_and_refused_beyond_a_twentieth(
    kept: int, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = sample(0.7, format=1.0)
    whole = [record(str(i), good, good) for i in range(100)]
    short = [record(str(i), *[good] * (1 if i < 200 - kept else 2)) for i in range(100)]
    a, b = (write(tmp_path / name, {"samples": side}) for name, side in (("a", whole), ("b", short)))
    assert main([a, b]) == code
    printed = capsys.readouterr()
    assert said in printed.out + printed.err


@pytest.mark.parametrize("key", COMPARED)
def test_files_scored_differently_are_refused(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [record("a", sample(0.7, format=1.0))]
    assert main(files(tmp_path, records, records, **{key: "other"})) == 2
    assert key in capsys.readouterr().err


def test_a_summary_that_does_not_say_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = files(tmp_path, *[[record("a", sample(0.7, format=1.0))]] * 2)
    summary = json.loads(Path(f"{b}.summary.json").read_text(encoding="utf-8"))
    Path(f"{b}.summary.json").write_text(json.dumps({**summary, "max_new_tokens": 24}), encoding="utf-8")
    assert main([a, b]) == 2 and "max_new_tokens" in capsys.readouterr().err
    del summary["max_new_tokens"]  # of an evaluation from before it was written down
    Path(f"{b}.summary.json").write_text(json.dumps(summary), encoding="utf-8")
    assert main([a, b]) == 2 and "B: the summary says nothing of max_new_tokens" in capsys.readouterr().err


def test_stores_of_one_size_with_other_titles_are_refused_and_unknown_ones_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = [record("a", sample(0.7, format=1.0))]
    a, b = files(tmp_path, same, same, store_titles="other")
    assert main([a, b]) == 2 and "hold other titles" in capsys.readouterr().err
    old = write(tmp_path / "old", {"greedy": same}, store_titles=None)
    assert main([old, b]) == 0 and "note: the summary of A is older than store_titles" in capsys.readouterr().out
    off = [write(tmp_path / name, {"greedy": same}, store=None, store_titles=None) for name in ("off", "off2")]
    assert main(off) == 0 and "older" not in capsys.readouterr().out  # nothing was searched


def test_another_backend_is_noted_of_greedy_passes_and_refused_of_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = [record("a", sample(0.7, format=1.0))]
    a = write(tmp_path / "a", {"greedy": one, "samples": one})
    assert main([a, write(tmp_path / "b", {"greedy": one, "samples": one}, backend="vllm")]) == 2
    assert "A transformers, B vllm" in capsys.readouterr().err
    assert main([a, write(tmp_path / "c", {"greedy": one}, backend="vllm")]) == 0
    assert "note: the backends differ (A transformers, B vllm)" in capsys.readouterr().out


def test_another_number_of_samples_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two, three = ([record("a", *[sample(0.7, format=1.0)] * n)] for n in (2, 3))
    assert main([write(tmp_path / "a", {"samples": two}), write(tmp_path / "b", {"samples": three})]) == 2
    assert "A has 2, B has 3" in capsys.readouterr().err
    assert main([str(tmp_path / "a"), str(tmp_path / "gone")]) == 2


def test_changed_records_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [record("a", sample(0.7, format=1.0))]
    a, b = files(tmp_path, records, records)
    Path(f"{b}.greedy.jsonl").write_text("", encoding="utf-8")
    assert main([a, b]) == 2 and "evaluate again" in capsys.readouterr().err


def test_holm_is_the_textbooks() -> None:
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert adjusted == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})  # Holm 1979, monotone
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0} and holm({}) == {}


def test_the_sign_flip_test_stays_honest_on_few_records() -> None:
    assert sign_flip_p([-0.5] * 5) == pytest.approx(2 / 32, abs=0.01)  # all signs alike: 2 of 32 assignments
    assert sign_flip_p([0.0] * 9) == 1.0
    assert sign_flip_p([0.1] * 92) == pytest.approx(1 / (FLIPS + 1))
    draw = np.random.default_rng(3)
    false_alarms = sum(sign_flip_p(list(draw.choice([-1.0, 0.0, 1.0], 13))) < 0.05 for _ in range(200))
    assert false_alarms <= 18  # 5 % of 200 is 10, 18 its 99 % quantile


def test_the_detectable_difference_is_seen_in_four_of_five() -> None:
    true = detectable_difference(1.96)  # an estimate of σ 1 has the half-width 1.96
    seen = np.mean(np.abs(np.random.default_rng(0).normal(true, 1, 20_000)) > 1.96)
    assert seen == pytest.approx(0.80, abs=0.01)


def test_both_modes_are_judged_and_one_bad_mode_decides(tmp_path: Path) -> None:
    good = [record(str(i), sample(0.7, PLAN, format=1.0)) for i in range(30)]
    bad = [record(str(i), sample(0.6, PLAN, format=1.0)) for i in range(30)]
    a = write(tmp_path / "a", {"greedy": good, "samples": good})
    b = write(tmp_path / "b", {"greedy": good, "samples": bad})
    assert main([a, b, "--json", str(tmp_path / "o.json")]) == 1
    modes = json.loads((tmp_path / "o.json").read_text(encoding="utf-8"))["modes"]
    assert {mode: result["verdict"] for mode, result in modes.items()} == {"greedy": NO_DIFFERENCE, "samples": WORSE}
