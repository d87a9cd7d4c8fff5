"""Scoring a log of requests: as training scores, without golden records too, by day, and against a baseline."""

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from commands import clean_environment, run
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import REWARD_FILE, TEXT, build_store, golden, plan, reward

from scripts.eval import score_online_log
from scripts.eval.drift import BETTER, LEAST_REQUESTS, MOVED, STEADY, TOO_FEW, WORSE, difference_p, drifts
from scripts.eval.online_log import read_goldens, read_log
from scripts.eval.online_scoring import score_log
from scripts.eval.online_signals import SIGNALS, rule_golden, tally, words_in_titles
from scripts.eval.score_online_log import COMPARED
from swift_plugin.cards import DEFAULT_CARDS, load_cards
from swift_plugin.rollout_env import SEARCH_CHARS, RolloutEnv
from swift_plugin.settings import Settings

SCRIPT = "scripts/eval/score_online_log.py"
FRAGMENT = "有没有便宜点的"
GOOD = plan("waterproof running shoes", "waterproof trainers")
# Completions of one request with its golden record: what the reward can say about a plan, each at least once.
COMPLETIONS = {
    "good": GOOD,
    "fenced": f"```json\n{GOOD}\n```",
    "other goods": plan("desk lamp", "waterproof rain jacket"),
    "no keywords": plan(),
    "wrong types": plan("running shoes", budget_amount="200", clear_budget="no"),
    "wrong domain": plan("running shoes", "wide running shoes", domains=["pet", "global"]),
    "made-up evidence": plan("running shoes", exclude_terms=[{"word": "mesh", "evidence": "不要网面"}]),
    "true evidence": plan("running shoes", exclude_terms=[{"word": "dry", "evidence": "防水"}]),
    "copied": plan("想买一双防水的跑鞋"),
    "long": plan(*["waterproof running shoes " * 40] * 7),
    "think": f"<think>hm</think>{GOOD}",
    "no plan": "sure, here are some shoes",
    "torn": GOOD[:-5],
    "surrogate": plan("running shoes").replace("footwear", "\\ud800"),
}
GOLDENS = {
    "asked": golden(),
    "review": golden(status="review", must_have=["waterproof", "gore tex"], budget_amount=0.1 + 0.2),
    "abstains": golden(category=None, domains=None, must_have=[], category_anchor="", budget_uncertain=True),
}


def row(name: str, completion: str | None, text: str = TEXT, **more: Any) -> dict[str, Any]:
    made = {"id": name, "time": "2026-03-02T09:00:00+08:00", "text": text, "prior_context": []}
    return {**made, "completion": completion, **more}


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in rows), encoding="utf-8")
    return path


def score(folder: Path, rows: Sequence[Mapping[str, Any]], *arguments: str, code: int = 0, **variables: str) -> str:
    """What the command prints for these rows, in this process; OUT is folder/out."""
    given = ["--log", str(write(folder / "log.jsonl", rows)), "--out", str(folder / "out"), *arguments]
    printed = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(printed):
        for name in set(os.environ) - set(clean_environment()):
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", [SCRIPT, *given])
        assert score_online_log.main() == code, printed.getvalue()
    return printed.getvalue()


def scored(folder: Path) -> dict[str, dict[str, Any]]:
    lines = (folder / "out.rows.jsonl").read_text(encoding="utf-8").splitlines()
    return {one["id"]: one for one in map(json.loads, lines)}


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "out.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_store(tmp_path_factory.mktemp("store") / "items.edge")


# ------------------------------------------------------------------------------- training and log are one reward


@pytest.fixture(scope="module")
def trained(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The trace of training, split train, for every pair of completion and golden record."""
    folder = tmp_path_factory.mktemp("training")
    rows = [(f"{kind}/{name}", text, kind) for kind in GOLDENS for name, text in COMPLETIONS.items()]
    environment = {"PLANNER_STORE_DIR": str(store)}
    env = RolloutEnv.from_settings(Settings.from_env(environment), trace_dir=folder, environ=environment)
    env.score(
        [text for _, text, _ in rows],
        [GOLDENS[kind] for *_, kind in rows],
        [f"{TEXT}，{kind}" for *_, kind in rows],
        ids=[name for name, *_ in rows],
        splits=["train"] * len(rows),
        step=1,
    )
    env.close()
    lines = (folder / "reward_trace.rank0.jsonl").read_text(encoding="utf-8").splitlines()
    return {one["id"]: one for one in map(json.loads, lines)}


@pytest.mark.parametrize("titles", ["searched again", "in the log"])
def test_the_log_scores_bit_for_bit_as_training_does(
    titles: str, trained: dict[str, dict[str, Any]], store: Path, tmp_path: Path
) -> None:
    rows, sets = [], []
    for kind, record in GOLDENS.items():
        text = f"{TEXT}，{kind}"
        sets.append({"text": text, "prior_context": [], "golden_json": record})
        for name, completion in COMPLETIONS.items():
            found = {"titles": trained[f"{kind}/{name}"]["titles"]} if titles == "in the log" else {}
            rows.append(row(f"{kind}/{name}", completion, text, **found))
    known = write(tmp_path / "goldens.jsonl", sets)
    # A mix of training must not reach the log's figures; the store is needed where the log has no titles.
    variables = {"PLANNER_STORE_DIR": str(store if titles == "searched again" else tmp_path / "none")}
    variables["PLANNER_REWARD_WEIGHTS"] = "field=0.9"
    score(tmp_path, rows, "--golden", str(known), **variables)
    online = scored(tmp_path)
    assert list(online) == [one["id"] for one in rows] and len(online) == len(trained) == 42
    for name, line in online.items():
        assert line["golden"] == "known"
        # JSON writes the shortest text that gives the float back, so equal values are equal bits.
        assert line["breakdown"] == trained[name]["breakdown"], name
        assert (line["plan"], line["issues"]) == (trained[name]["plan"], trained[name]["issues"])
        if titles == "searched again":
            assert (line["search"], line["titles"]) == (trained[name]["search"], trained[name]["titles"])
    assert len({line["breakdown"]["total"] for line in online.values()}) > 15
    assert summary(tmp_path)["facts"]["reward_sha256"] == trained["asked/good"]["reward_sha256"]


def test_a_search_is_cut_as_in_training(tmp_path: Path) -> None:
    words = [f"waterproof trail shoe {number}" for number in range(60)]
    path = write(tmp_path / "log.jsonl", [row("long", plan(*words), titles=["Trail Shoe"])])
    (one,) = score_log(read_log(path)[0], {}, CARDS, reward(), None)
    assert one.search == " ".join(words)[:SEARCH_CHARS]


def test_the_reward_file_is_the_one_named_by_path(tmp_path: Path) -> None:
    other = tmp_path / "another_reward.py"
    text = REWARD_FILE.read_text(encoding="utf-8")
    other.write_text(text.replace('"format": 0.15', '"format": 0.99'), encoding="utf-8")
    rows = [row("a", COMPLETIONS["fenced"], titles=["Nordvik Waterproof Running Shoes"])]
    known = str(write(tmp_path / "g.jsonl", [{"text": TEXT, "golden_json": golden()}]))
    score(tmp_path, rows, "--golden", known)
    ours, facts = scored(tmp_path)["a"]["breakdown"]["total"], summary(tmp_path)["facts"]
    score(tmp_path, rows, "--golden", known, PLANNER_REWARD_FILE=str(other))
    assert scored(tmp_path)["a"]["breakdown"]["total"] != ours
    assert summary(tmp_path)["facts"]["reward_sha256"] != facts["reward_sha256"] == reward().sha256


# ----------------------------------------------------------------------------------- without a golden record


@pytest.mark.parametrize(
    ("signal", "completion", "text", "value"),
    [
        ("answered", None, TEXT, 0.0),
        ("parse", None, TEXT, None),  # an outage is no bad plan
        ("format", None, TEXT, None),
        ("answered", "", TEXT, 1.0),  # an empty answer is an answer
        ("parse", "", TEXT, 0.0),
        ("parse", GOOD, TEXT, 1.0),
        ("format", GOOD, TEXT, 1.0),
        ("format", f"```json\n{GOOD}\n```", TEXT, 0.0),
        ("format", "no plan", TEXT, 0.0),
        ("invented_evidence", GOOD, TEXT, None),  # no exclusion
        ("invented_evidence", COMPLETIONS["made-up evidence"], TEXT, 1.0),
        ("invented_evidence", COMPLETIONS["true evidence"], TEXT, 0.0),
        ("copied_sentence", COMPLETIONS["copied"], TEXT, 1.0),
        ("copied_sentence", GOOD, TEXT, 0.0),
        ("copied_sentence", plan(), TEXT, None),
        ("no_keywords", plan(), TEXT, 1.0),
        ("no_keywords", plan(category=""), "你好", None),  # nothing to search for
        ("no_keywords", GOOD, TEXT, 0.0),
        ("over_commitment", GOOD, FRAGMENT, 1.0),
        ("over_commitment", plan(category=""), FRAGMENT, 0.0),
        ("over_commitment", GOOD, TEXT, None),  # names its category
        ("budget", plan("running shoes", budget_amount=300), "三百以内的跑鞋", 1.0),
        ("budget", plan("running shoes", budget_amount=200), "三百以内的跑鞋", 0.3),
        ("budget", GOOD, "十五六块的跑鞋", None),  # uncertain
        ("exclusion_missed", GOOD, "想买跑鞋，不要网面的", 1.0),
        ("exclusion_missed", GOOD, TEXT, None),
        ("exclusion_missed", "no plan", "想买跑鞋，不要网面的", None),
        ("fragments", GOOD, FRAGMENT, 1.0),
        ("fragments", GOOD, TEXT, 0.0),
        ("abstentions", plan(category=None), TEXT, 1.0),
        ("reward", GOOD, TEXT, None),  # nobody knows what was right
        ("category", GOOD, TEXT, None),
    ],
)  # fmt: skip
def test_signals(signal: str, completion: str | None, text: str, value: float | None, tmp_path: Path) -> None:
    from scripts.eval.online_signals import values_of

    path = write(tmp_path / "l", [row("a", completion, text, titles=["Nordvik Wide Running Shoes"])])
    (one,) = score_log(read_log(path)[0], {}, CARDS, reward(), None)
    assert values_of(one)[signal] == (None if value is None else pytest.approx(value))


CARDS = load_cards(DEFAULT_CARDS)


@pytest.mark.parametrize(
    ("keywords", "titles", "share"),
    [
        (["running shoes"], ["Wide Running Shoe"], 1.0),
        (["waterproof running shoes", "running shoes"], ["Running Shoes"], 2 / 3),
        (["desk lamp"], ["Running Shoes"], 0.0),
        (["desk"], ["Lamp", "Desk"], 1.0),
        ([], ["Lamp"], None),
        (["desk"], [], None),
        (["desk"], None, None),
    ],
)
def test_words_in_titles(keywords: list[str], titles: list[str] | None, share: float | None) -> None:
    assert words_in_titles(keywords, titles, reward()) == share


def test_a_context_that_names_the_category_makes_no_fragment(tmp_path: Path) -> None:
    rows = [row("a", GOOD, FRAGMENT), row("b", GOOD, FRAGMENT, prior_context=["想买双跑鞋"])]
    requests, with_titles = read_log(write(tmp_path / "l", rows))
    assert not with_titles
    assert [rule_golden(one, CARDS)["status"] for one in requests] == ["context_missing", "agree"]


def test_goldens_are_known_by_what_was_said(tmp_path: Path) -> None:
    rows = [
        row("same", GOOD, titles=[]),
        row("in another context", GOOD, prior_context=["你好"], titles=[]),
        row("other words", GOOD, TEXT + "吧", titles=[]),
    ]
    known = write(tmp_path / "g.jsonl", [{"text": TEXT, "prior_context": [], "golden_json": golden()}])
    score(tmp_path, rows, "--golden", str(known))
    assert [one["golden"] for one in scored(tmp_path).values()] == ["known", "by rule", "by rule"]
    assert summary(tmp_path)["golden_known"] == 1
    assert summary(tmp_path)["overall"]["signals"]["reward"]["requests"] == 1


# -------------------------------------------------------------------------------------------- days and drift


def test_the_daily_table_counts_by_the_day_as_written(tmp_path: Path) -> None:
    times = ["2026-03-01T23:59:59+08:00", "2026-03-02T00:00:00+08:00", "2026-03-02T01:00:00Z", "2026-03-04T12:00:00"]
    answers = [GOOD, "no plan", GOOD, None]
    rows = [row(f"r{n}", text, time=time, titles=[]) for n, (time, text) in enumerate(zip(times, answers, strict=True))]
    printed = score(tmp_path, rows)
    days = summary(tmp_path)["days"]
    assert {day: one["requests"] for day, one in days.items()} == {"2026-03-01": 1, "2026-03-02": 2, "2026-03-04": 1}
    assert days["2026-03-02"]["signals"]["parse"] == {"requests": 2, "mean": 0.5, "sd": 0.5}
    assert days["2026-03-04"]["signals"]["answered"]["mean"] == 0.0
    cells = [line.split() for line in printed.splitlines()]
    header = next(line for line in cells if line[:2] == ["day", "requests"])
    at = header.index("parse")
    assert [line[at] for line in cells if line and line[0].startswith("2026-03")] == ["1.000", "0.500", "-"]
    assert next(line for line in cells if line[:1] == ["all"])[:2] == ["all", "4"]
    assert "reward" not in header  # a column that no request fills is left out


def many(
    count: int, start: int = 0, day: str = "2026-03-02", answer: str = GOOD, text: str = TEXT
) -> list[dict[str, Any]]:
    return [row(f"{day}-{start + n}", answer, text, time=f"{day}T10:00:00", titles=["Shoes"]) for n in range(count)]


def test_drift_against_a_baseline(tmp_path: Path) -> None:
    base = tmp_path / "good"
    base.mkdir()
    score(base, [*many(90), *many(10, 90, answer="no plan")])
    baseline = ["--baseline", str(base / "out.json")]
    same = score(tmp_path, [*many(45), *many(5, 45, answer="no plan")], *baseline)
    assert "nothing got worse" in same
    torn = score(tmp_path, [*many(35), *many(15, 35, answer="no plan")], *baseline, code=1)
    assert "worse: parse, format" in torn
    drift = {one["name"]: one for one in summary(tmp_path)["drift"]["signals"]}
    assert drift["parse"]["state"] == WORSE and drift["parse"]["change"] == pytest.approx(-0.2)
    assert drift["answered"]["state"] == STEADY and drift["reward"]["state"] == TOO_FEW
    better = score(tmp_path, many(100), *baseline)
    assert "also: parse better, format better" in better
    moved = score(tmp_path, [*many(50), *many(50, 50, text=FRAGMENT, answer=plan(category=""))], *baseline, code=0)
    assert "fragments moved" in moved and "abstentions moved" in moved


def test_only_the_last_seven_days_are_compared(tmp_path: Path) -> None:
    base = tmp_path / "good"
    base.mkdir()
    score(base, many(60))
    old = many(300, day="2026-02-01", answer="no plan")
    new = [one for n in range(7) for one in many(10, day=f"2026-03-0{n + 1}")]
    score(tmp_path, [*old, *new], "--baseline", str(base / "out.json"))
    assert summary(tmp_path)["recent"]["requests"] == 70
    assert summary(tmp_path)["overall"]["requests"] == 370


Side = tuple[int, float, float]  # requests, mean, sd


def side(**signals: Side) -> dict[str, Any]:
    empty = {"requests": 0, "mean": None, "sd": None}
    given_ = {name: {"requests": n, "mean": mean, "sd": sd} for name, (n, mean, sd) in signals.items()}
    return {"requests": 0, "signals": {name: given_.get(name, empty) for name in SIGNALS}}


@pytest.mark.parametrize(
    ("name", "before", "now", "state"),
    [
        ("parse", (500, 1.0, 0.0), (500, 0.90, 0.3), WORSE),
        ("parse", (500, 0.90, 0.3), (500, 1.0, 0.0), BETTER),
        ("parse", (500, 1.0, 0.0), (500, 0.0, 0.0), WORSE),  # no spread on either side
        ("parse", (500, 1.0, 0.0), (500, 1.0, 0.0), STEADY),
        ("parse", (9_000, 0.99, 0.0995), (9_000, 0.95, 0.218), STEADY),  # sure, and below 0.05
        ("parse", (50, 0.9, 0.3), (50, 0.84, 0.367), STEADY),  # above 0.05, and not sure
        ("invented_evidence", (500, 0.1, 0.3), (500, 0.3, 0.458), WORSE),  # less is better
        ("invented_evidence", (500, 0.3, 0.458), (500, 0.1, 0.3), BETTER),
        ("fragments", (500, 0.1, 0.3), (500, 0.3, 0.458), MOVED),  # neither good nor bad
        ("parse", (LEAST_REQUESTS - 1, 1.0, 0.0), (500, 0.5, 0.5), TOO_FEW),
        ("parse", (500, 1.0, 0.0), (LEAST_REQUESTS, 0.5, 0.5), WORSE),
    ],
)
def test_states_of_drift(name: str, before: Side, now: Side, state: str) -> None:
    found = {one.name: one for one in drifts(side(**{name: before}), side(**{name: now}))}
    assert found[name].state == state
    assert {one.state for one in found.values() if one.name != name} == {TOO_FEW}


def test_chance_alone_seldom_drifts() -> None:
    import numpy as np

    draw = np.random.default_rng(7)
    alarms = 0
    for _ in range(400):
        rates = {name: draw.uniform(0.05, 0.95) for name in SIGNALS}
        sides = [
            side(**{k: (60, m := float(draw.binomial(60, p)) / 60, (m * (1 - m)) ** 0.5) for k, p in rates.items()})
            for _ in range(2)
        ]
        alarms += any(one.state not in (STEADY, TOO_FEW) for one in drifts(*sides))
    assert alarms <= 400 * 0.08  # family-wise 5 %, and the normal distribution is near


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=1, max_size=40))
def test_a_tally_is_mean_and_spread(values: list[float]) -> None:
    import numpy as np

    rows = [{**dict.fromkeys(SIGNALS), "budget": value} for value in values]
    one = tally(rows)["signals"]["budget"]
    assert one["mean"] == pytest.approx(np.mean(values)) and one["sd"] == pytest.approx(np.std(values))
    assert difference_p(one, one) == 1.0


# ------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": "yesterday"}, "log.jsonl:1: time 'yesterday' is no ISO 8601 time"),
        ({"completion": {"category": "跑鞋"}}, "completion is dict"),
        ({"titles": "Shoes"}, "titles is no list of strings"),
        ({"prior_context": None}, "prior_context is no list"),
        ({"id": 7}, "id is 7"),
        ({"text": None}, "text is None"),
    ],
)
def test_a_line_that_is_no_request(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="log.jsonl:1") as error:
        read_log(write(tmp_path / "log.jsonl", [{**row("a", GOOD), **change}]))
    assert message in str(error.value)


@pytest.mark.parametrize("key", ["time", "id", "text", "prior_context", "completion"])
def test_a_line_without_a_key(key: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"log.jsonl:2: no {key};"):
        read_log(write(tmp_path / "log.jsonl", [row("a", GOOD), {k: v for k, v in row("b", GOOD).items() if k != key}]))


def test_logs_and_sets_that_will_not_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="id 'a' stands in line 1 already"):
        read_log(write(tmp_path / "l", [row("a", GOOD), row("a", GOOD)]))
    with pytest.raises(ValueError, match="holds no request"):
        read_log(write(tmp_path / "l", []))
    two = [{"text": TEXT, "golden_json": golden()}, {"text": TEXT, "golden_json": golden(category="鞋")}]
    with pytest.raises(ValueError, match="another golden record in an earlier row"):
        read_goldens(write(tmp_path / "g", two))
    with pytest.raises(ValueError, match="g:1: text and golden_json"):
        read_goldens(write(tmp_path / "g", [{"text": TEXT}]))
    assert len(read_goldens(write(tmp_path / "g", [two[0], two[0]]))) == 1


def test_wrong_use_ends_with_2_and_one_message(tmp_path: Path) -> None:
    (tmp_path / "l.jsonl").write_text("{\n", encoding="utf-8")
    command = [sys.executable, SCRIPT, "--log", f"{tmp_path}/l.jsonl", "--out", f"{tmp_path}/out"]
    said = run(command, {}, code=2)
    assert "l.jsonl:1: no JSON" in said and "Traceback" not in said
    rows = [row("a", GOOD, titles=["Shoes"]), row("b", GOOD)]
    assert "request b has keywords and no titles" in score(tmp_path, rows, code=2)
    assert not (tmp_path / "out.json").exists()
    gone = score(tmp_path, [row("a", GOOD)], code=2, PLANNER_STORE_DIR=str(tmp_path / "gone"))
    assert "gone" in gone and "Traceback" not in gone
    bad = write(tmp_path / "g.jsonl", [{"text": TEXT, "golden_json": "{}"}])
    assert "golden record of request a" in score(tmp_path, rows[:1], "--golden", str(bad), code=2)
    score(tmp_path, [row("a", GOOD)], PLANNER_RETRIEVAL="off")
    assert "retrieval" in scored(tmp_path)["a"]["breakdown"]["abstained"]
    assert summary(tmp_path)["facts"]["titles_from"].startswith("nowhere")


def test_baselines_measured_otherwise_are_refused(tmp_path: Path) -> None:
    score(tmp_path, many(40))
    made = summary(tmp_path)
    shutil.copy(tmp_path / "out.json", tmp_path / "base.json")
    assert "would be overwritten" in score(tmp_path, many(40), "--baseline", f"{tmp_path}/out.json", code=2)
    for key in COMPARED:
        (tmp_path / "base.json").write_text(json.dumps({**made, "facts": {**made["facts"], key: "other"}}))
        said = score(tmp_path, many(40), "--baseline", f"{tmp_path}/base.json", code=2)
        assert f"cannot be compared ({key} 'other' there" in said
    unnamed = {key: value for key, value in made["facts"].items() if key != "golden_sha256"}
    (tmp_path / "base.json").write_text(json.dumps({**made, "facts": unnamed}))
    said = score(tmp_path, many(40), "--baseline", f"{tmp_path}/base.json", code=2)
    assert "golden_sha256 'not recorded' there, None here" in said
    (tmp_path / "base.json").write_text("[]")
    assert "no summary of this script" in score(tmp_path, many(40), "--baseline", f"{tmp_path}/base.json", code=2)


def test_a_baseline_of_other_goldens_is_refused(tmp_path: Path) -> None:
    sets = {
        name: write(tmp_path / f"{name}.jsonl", [{"text": TEXT, "prior_context": [], "golden_json": golden(**change)}])
        for name, change in (("one", {}), ("two", {"category": "商品"}))
    }
    baseline = ["--baseline", f"{tmp_path}/base.json"]
    score(tmp_path, many(40), "--golden", str(sets["one"]))
    shutil.copy(tmp_path / "out.json", tmp_path / "base.json")
    score(tmp_path, many(40), "--golden", str(sets["one"]), *baseline)
    for other in (["--golden", str(sets["two"])], []):
        assert "cannot be compared (golden_sha256" in score(tmp_path, many(40), *other, *baseline, code=2)


def test_help_has_an_example() -> None:
    assert "example:\n  python scripts/eval/score_online_log.py" in run([sys.executable, SCRIPT, "--help"], {})
