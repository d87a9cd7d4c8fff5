"""The report: one file, opened in headless Chromium where one is installed; what a model wrote stays text."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from built_evaluations import record, sample, simulated_pair, write
from commands import ROOT, clean_environment

from scripts.eval.report import main
from scripts.eval.report_data import embedded_json, gather, pairs_to_compare
from scripts.eval.report_pages import running_mean

ATTACK = "</script><script>document.title='RUN'</script><img src=x onerror=\"document.title='RUN'\">"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder: sft and grpo evaluated, a short GRPO log; one completion of grpo attacks its reader."""
    folder = tmp_path_factory.mktemp("runs") / "demo"
    before, after = simulated_pair(1, {"retrieval": 0.12, "econ": 0.3, "domains_f1": -0.1})
    after[0]["samples"][0] |= {"completion": ATTACK, "titles": [ATTACK, "\ud800"], "plan": {"category": ATTACK}}
    after[1]["samples"][0] |= {"completion": "nonsense", "plan": None}
    after[1]["samples"][0]["breakdown"] |= {"total": -1.0}
    after[2]["samples"][0]["breakdown"] |= {"copycat": True, "total": 2.0}
    after[2] |= {"family": "chitchat"}
    sampled = [record(str(i), sample(0.5, format=1.0), sample(0.9, format=1.0), sample(0.7)) for i in range(3)]
    write(folder / "eval" / "sft", {"greedy": before})
    write(folder / "eval" / "grpo", {"greedy": after, "samples": sampled})
    (folder / "grpo").mkdir()
    rows = [{"reward": 0.5 + i / 100, "loss": 0.1, "rewards/PlannerEcon/mean": 0.7, "global_step/max_steps": f"{i}/20"}
            for i in range(1, 21)]  # fmt: skip
    rows.insert(10, {"eval_reward": 0.6, "global_step/max_steps": "10/20"})
    (folder / "grpo" / "logging.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> Path:
    out = run / "report.html"
    assert main([str(run), "--out", str(out)]) == 0
    return out


def test_the_page_holds_every_section_and_loads_nothing(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "domains_f1 fell by" in text and 'class="bad"' in text  # a total that rose does not read as a success
    for section in ("result", "comparison", "samples", "curves", "dimensions", "exploits"):
        assert f'<section id="{section}">' in text
    assert "default-src 'none'" in text[:2000]  # the browser itself refuses the network
    assert '"text":"Econ"' in text and '"text":"Retrieval"' not in text  # a curve for each dimension that was logged


def test_model_output_is_data_only(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert ATTACK not in text and "<img src=x" not in text
    data = text.split('<script id="data" type="application/json">', 1)[1].split("</script>", 1)[0]
    samples = json.loads(data)["samples"]
    assert [s["completion"] for s in samples if ATTACK in s["completion"]] == [ATTACK]
    # the greedy completion of each record, and the worst and the best of its samples
    assert len(samples) == 92 + 92 + 3 * 2
    assert {(s["which"], s["total"]) for s in samples if s["mode"] == "samples"} == {
        ("worst of 3", 0.5),
        ("best of 3", 0.9),
    }


def test_labels_are_escaped(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    assert main([f"<b>x</b>={run / 'eval' / 'sft'}", "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert "<b>x</b>" not in text and "&lt;b&gt;x&lt;/b&gt;" in text and "nothing to compare" in text


def test_evaluations_under_another_reward_are_shown_with_a_warning(run: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", {"greedy": [record("dev-00", sample(0.7, format=1.0))]}, reward_sha256="other")
    out = tmp_path / "r.html"
    assert main([f"a={run / 'eval' / 'sft'}", f"b={tmp_path / 'other'}", "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert "Do not read these rows against each other" in text and "Not comparable" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gone"], "neither a run folder"),
        (["a=gone"], "gone.summary.json"),
        (["RUN", "--compare", "sft", "r9"], "no evaluation is called 'r9'"),
        (["RUN", "--calibration", "gone.json"], "gone.json"),
        (["RUN", "--calibration", "SUMMARY"], "holds no exploits"),
        (["EMPTY"], "holds neither evaluations"),
    ],
)
def test_wrong_use_is_told(
    arguments: list[str], said: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    paths = {"RUN": run, "EMPTY": tmp_path / "empty", "SUMMARY": run / "eval" / "sft.summary.json"}
    given = [str(paths.get(argument, argument)) for argument in arguments]
    assert main([*given, "--out", str(tmp_path / "r.html")]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "r.html").exists()


def test_which_pairs_are_compared() -> None:
    labels = ["a/untrained", "a/sft", "a/grpo", "b/sft", "b/grpo"]
    assert pairs_to_compare(labels, []) == [("a/sft", "a/grpo"), ("b/sft", "b/grpo")]
    assert pairs_to_compare(["r1", "r2", "r3"], []) == [("r2", "r3")]
    assert pairs_to_compare(["r1"], []) == []
    assert pairs_to_compare(["r1", "r2", "r3"], [["r1", "r3"]]) == [("r1", "r3")]


def test_several_runs_keep_their_names_apart(run: Path, tmp_path: Path) -> None:
    write(tmp_path / "second" / "eval" / "sft", {"greedy": [record("a", sample(0.7, format=1.0))]})
    found = gather([str(run), str(tmp_path / "second")])
    assert set(found.evaluations) == {"demo/sft", "demo/grpo", "second/sft"} and set(found.runs) == {"demo/grpo"}


def test_embedded_json_cannot_leave_its_element() -> None:
    value = {"a": ATTACK, "b": "<!--", "c": "&\u2028\ud800"}
    text = embedded_json(value)
    assert not set("<>&\u2028") & set(text) and json.loads(text) == value


def test_the_running_mean_is_cut_at_the_ends() -> None:
    assert running_mean([1.0] * 30) == [1.0] * 30
    assert running_mean([0.0, 10.0]) == [5.0, 5.0] and running_mean([]) == []


# ------------------------------------------------------------------------------------------------ in a browser


def has_chromium() -> bool:
    """Whether an engine that tests/browser.py can drive is installed."""
    return any(
        importlib.util.find_spec(name) and importlib.util.find_spec(f"{name}.QtWebEngineWidgets")
        for name in ("PyQt6", "PySide6")
    )


def select(name: str, value: str, then: str) -> str:
    """JavaScript: set a filter as a person would, then return an expression."""
    return (
        f"(() => {{ const f = document.getElementById('{name}'); f.value = {json.dumps(value)};"
        f" f.dispatchEvent(new Event('input')); return {then}; }})()"
    )


COUNT = "document.getElementById('count').textContent"
FIRST = "document.querySelector('.card').textContent"
STEPS = [
    "document.title",
    "document.documentElement.scrollWidth <= window.innerWidth",
    f"[{COUNT}, {FIRST}]",
    select("order", "low", FIRST),
    select("order", "fell:0", FIRST),
    select("order", "high", COUNT),
    select("flag", "copycat", f"[{COUNT}, {FIRST}]"),
    select("flag", "", COUNT),
    select("family", "chitchat", COUNT),
    select("family", "", COUNT),
    select("evaluation", "sft", COUNT),
    select("evaluation", "", COUNT),
    select("search", "onerror", f"[{COUNT}, document.querySelectorAll('#cards img, #cards script').length]"),
    select("search", "no such words", COUNT),
    select("search", "", "document.getElementById('more').click(), " + COUNT),
    "document.querySelectorAll('#curves .main-svg').length > 0",
    "document.title",
]


@pytest.mark.skipif(not has_chromium(), reason="no Chromium engine: pip install PyQt6-WebEngine to run this one")
def test_in_chromium_it_opens_from_disk_and_its_filters_work(page: Path, tmp_path: Path) -> None:
    (tmp_path / "steps.json").write_text(json.dumps(STEPS), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "browser.py"), str(page), str(tmp_path / "steps.json")],
        env=clean_environment(), text=True, capture_output=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert seen["console"] == [] and seen["requests"] == []
    (title, fits, highest, lowest, fell, everything, copycat, unflagged, family, families, sft, both, searched, none,
     more, curves, title_after) = seen["results"]  # fmt: skip
    assert title == title_after == "Planner report: demo"  # what the model wrote did not run
    assert fits and curves
    assert highest[0] == "190 found, 20 shown" and "reward 2.000" in highest[1]
    assert "reward -1.000" in lowest and "unparsable" in lowest
    assert "dev-01" in fell and "sft, greedy" in fell and "grpo, greedy" in fell
    assert copycat[0] == "1 found, 1 shown" and "copycat" in copycat[1]
    assert family == "1 found, 1 shown" and sft == "92 found, 20 shown"
    assert {everything, unflagged, families, both} == {"190 found, 20 shown"}
    assert searched == ["1 found, 1 shown", 0] and none == "0 found, 0 shown" and more == "190 found, 40 shown"
