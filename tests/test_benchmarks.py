"""Every benchmark runs at its smallest size and writes the figures that the README quotes; none is judged here."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, clean_environment
from grpo_runs import rows, write_run

sys.path.append(str(ROOT / "benchmarks"))
import run_all  # noqa: E402
from bench import Line, in_turn, ratio, rounded  # noqa: E402
from growth import JUNK, LENGTHS, exponent, junk  # noqa: E402
from inputs import PROMPTS, real_step, reward, with_keywords  # noqa: E402

RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
README = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
# Per benchmark: how many lines it judges, and figures that must be there (a dot goes into an object).
FIELDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "scoring_step": (3, ("early.score_ms", "late.store_ms", "late.score_to_engine", "alone.parse_and_score_ms")),
    "http_batching": (2, ("server", "early.distinct_searches", "late.step_times_faster", "late.search_times_faster")),
    "repeated_searches": (1, ("distinct_searches.8", "step_ms.1", "ms_a_distinct_search", "second_to_first")),
    "reward_share": (1, ("steps", "reward_ms", "share_of_all", "share_worst_step")),
    "growth": (2, ("completions_ms", "catalogue_ms", "junk_ms", "junk_exponents", "slowest_junk_ms")),
    "embedded_store": (1, ("points", "inserts_a_second", "index_s", "batch_s", "recall_at_20", "peak_memory_gb")),
    "start_up": (2, ("import_ms", "import_from_source_ms", "launch_ms", "first_ms")),
    "long_run": (4, ("steps", "memory_mb_last_third", "trace_files", "samples")),
    "store_latency": (1, ("without_faults.completions_a_second", "with_faults", "retries", "rewards_that_differ")),
}
SLOW = {"growth", "start_up"}  # twice as much CPU time as all the others


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores built by one benchmark serve the next."""
    return tmp_path_factory.mktemp("bench")


def run(name: str, work: Path, *options: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"benchmarks/{name}.py", "--quick", "--work", str(work), *options]
    done = subprocess.run(
        command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == code, done.stderr[-3000:]
    return done


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict | list):
        return [n for item in (value.values() if isinstance(value, dict) else value) for n in numbers(item)]
    return [value] if isinstance(value, int | float) else []


def figure(result: dict[str, Any], path: str) -> Any:
    value = result["figures"]
    for name in path.split("."):
        value = value[name]
    return value


def check_fields(result: dict[str, Any], name: str) -> None:
    lines, figures = FIELDS[name]
    assert len(result["lines"]) == lines
    assert all(set(line) == {"name", "measured", "line", "holds"} for line in result["lines"])
    for path in figures:
        assert figure(result, path) not in (None, [], {}), path
    found = numbers([result["figures"], [line["measured"] for line in result["lines"]]])
    assert found and all(map(math.isfinite, found))
    assert {"python", "machine", "niceness", "reward_sha256", "packages"} <= set(result["conditions"])


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in FIELDS])
def test_a_benchmark_runs_at_its_smallest_size(name: str, work: Path) -> None:
    options = []
    if name == "reward_share":
        lines = rows(6, step_time=2.0)
        options = ["--run", str(write_run(work / "run" / "grpo", lines, plugin=lambda step: {"ms": 100.0 + step}))]
    done = run(name, work, *options)
    result = json.loads((work / "quick" / f"{name}.json").read_text(encoding="utf-8"))
    assert result["quick"] is True and result["benchmark"] == name
    check_fields(result, name)
    assert done.stdout.count("not judged") == len(result["lines"])
    if name == "reward_share":
        assert figure(result, "share_of_all") == pytest.approx(0.05125, rel=0.05)  # 100 to 105 ms of about 2 s
        assert figure(result, "run") == "run"
    if name == "store_latency":
        assert figure(result, "rewards_that_differ") == 0 and figure(result, "retries") > 0
    if name == "long_run":
        assert figure(result, "trace_files") > 2 and figure(result, "trace_lines") == figure(result, "completions")
        assert max(sample["cached_searches"] for sample in figure(result, "samples")) == figure(result, "cache_bound")
    if name == "growth":
        assert (work / "quick" / "growth.png").stat().st_size > 10_000


def test_a_run_that_is_none_is_refused_in_one_sentence(tmp_path: Path) -> None:
    done = run("reward_share", tmp_path, "--run", str(tmp_path), code=2)
    assert done.stderr.startswith("reward_share: ") and "Traceback" not in done.stderr


def test_every_benchmark_is_run_by_run_all() -> None:
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"bench", "inputs", "run_all"}
    assert scripts == set(run_all.BENCHMARKS) == set(FIELDS)


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_a_kept_result_is_whole_and_was_judged_at_full_size(file: Path) -> None:
    result = json.loads(file.read_text(encoding="utf-8"))
    assert (result["benchmark"], result["quick"]) == (file.stem, False)
    if file.stem in FIELDS:
        check_fields(result, file.stem)
    assert str(ROOT) not in file.read_text(encoding="utf-8")  # no path of the machine it ran on


def test_the_readme_quotes_the_kept_results() -> None:
    assert {file.stem for file in RESULTS} >= set(FIELDS)
    assert run_all.with_table(README, run_all.results(ROOT / "benchmarks" / "results")) == README


def test_a_readme_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="lost its marks"):
        run_all.with_table("# Speed\n", [])


def test_the_completions_are_whole_groups_of_real_steps() -> None:
    for phase in ("early", "late"):
        step = real_step(phase)
        assert len(step) == PROMPTS * 8 and len(set(step.ids)) == PROMPTS
        assert all(len(set(step.ids[at : at + 8])) == 1 for at in range(0, len(step), 8))
        parsed = [reward().parse_plan(completion).plan is not None for completion in step.completions]
        assert 0.8 < sum(parsed) / len(parsed) <= 1.0
    assert len(real_step("late", 512)) == 4096


def test_further_keywords_make_another_search_and_leave_junk_alone() -> None:
    completion = real_step("early", 1).completions[0]
    more = with_keywords(completion, "red", "12")
    plan, longer = reward().parse_plan(completion).plan, reward().parse_plan(more).plan
    assert plan is not None and longer == {**plan, "keywords": [*plan["keywords"], "red", "12"]}
    assert with_keywords("no plan", "red") == "no plan"


# What the reward refuses, by name; the rest of the junk has to be read, or its cost would be that of the refusal.
REFUSED = {"open brackets", "open string", "think blocks that never close"}


@pytest.mark.parametrize("name", JUNK)
def test_junk_has_the_length_it_claims_and_is_read_where_it_should_be(name: str) -> None:
    for length in LENGTHS:
        text = junk(name, length)
        assert 0.9 * length < len(text) <= length
        parsed = reward().parse_plan(text)
        assert (parsed.plan is None) == (name in REFUSED), (length, parsed.issues)
        assert "too_long" not in parsed.issues, length
    assert max(LENGTHS) == reward().MAX_CHARACTERS


def test_an_exponent_is_the_slope_of_the_larger_half() -> None:
    sizes = [1, 10, 100, 1_000, 10_000]
    assert exponent(sizes, [5, 5, 100, 1_000, 10_000]) == pytest.approx(1.0)
    assert exponent(sizes, [size**2 for size in sizes]) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("measured", "limit", "at_least", "holds"),
    [(1.3, 1.3, False, True), (1.31, 1.3, False, False), (15.0, 15.0, True, True), (14.9, 15.0, True, False)],
)
def test_a_line_holds_up_to_its_limit(measured: float, limit: float, at_least: bool, holds: bool) -> None:
    assert Line("x", measured, limit, at_least).to_dict()["holds"] is holds


def test_calls_are_timed_in_turn_and_their_ratio_is_of_each_round() -> None:
    order: list[str] = []
    taken = in_turn(2, {"a": lambda: order.append("a"), "b": lambda: order.append("b")})
    assert order == ["a", "b"] * 3  # the first round is not recorded
    assert [len(values) for values in taken.values()] == [2, 2]
    assert ratio([2.0, 40.0, 6.0], [1.0, 10.0, 3.0]) == 2.0
    assert rounded({"x": [1.23456, True, "a"], 8: 1 / 3}) == {"x": [1.235, True, "a"], "8": 0.3333}
