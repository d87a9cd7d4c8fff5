"""The plugin's log line: every figure against a hand-computed case."""

import pytest

from swift_plugin.step_stats import ScoredRow, step_stats


def row(group: str, total: float, *, parsed: bool = True, empty: bool = False, search: str | None = "x") -> ScoredRow:
    return ScoredRow(group, total, parsed, empty, search)


def test_groups_are_joined_across_ranks() -> None:
    # Two ranks hold one half of each group: per rank every σ would be 0 and both groups would look tied.
    rank0 = [row("a", 1.0), row("b", 0.5, search="y")]
    rank1 = [row("a", 0.0, search="z"), row("b", 0.5, search="y")]
    stats = step_stats(rank0 + rank1)
    assert (stats.completions, stats.groups) == (4, 2)
    assert stats.mean == pytest.approx(0.5)
    assert stats.sigma == pytest.approx(0.25)  # (0.5 + 0) / 2, population σ
    assert stats.tied == 0.5
    assert stats.searches == pytest.approx(1.5)  # group a asks x and z, group b asks y


def test_rates_and_searches_of_rows_without_a_plan() -> None:
    stats = step_stats([row("a", -1.0, parsed=False, search=None), row("a", 0.4, empty=True, search="")])
    assert stats.parse_failures == 0.5
    assert stats.empty_keywords == 0.5
    assert stats.searches == 0  # neither no plan nor no keyword is a search
    assert stats.tied == 0


def test_rounding_noise_counts_as_tied() -> None:
    assert step_stats([row("a", 0.3), row("a", 0.1 + 0.2)]).tied == 1


def test_an_empty_step_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty batch"):
        step_stats([])


def test_a_trace_line_is_a_row() -> None:
    line = {"id": "r1", "plan": None, "search": None, "breakdown": {"total": -1.0, "empty_keywords": False}}
    assert ScoredRow.from_trace(line) == ScoredRow("r1", -1.0, False, False, None)
