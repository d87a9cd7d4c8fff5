"""The guard: its questions, its normalisation, its line, and what it refuses to judge."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, Reply
from commands import World, run
from hypothesis import given
from hypothesis import strategies as st

from reward.planner_reward import PLAN_KEYS
from scripts.eval.guard_items import COUNTS, DEFAULT_ITEMS, flipped, is_right, normalise, points_lost, read_items, score
from scripts.eval.regression_guard import TooWeak, judge

SCRIPT = "scripts/eval/regression_guard.py"
ITEMS = read_items(DEFAULT_ITEMS)


# --------------------------------------------------------------------------------------------------- questions


def test_the_questions_are_twenty_general_and_ten_of_code() -> None:
    assert COUNTS == {"general": 20, "code": 10} and len(ITEMS) == 30
    assert len({item.question for item in ITEMS}) == 30
    said = " ".join(item.question for item in ITEMS).lower()
    for word in (*PLAN_KEYS, "json", "buy", "price", "shop", "买", "预算", "不要"):
        assert word not in said, word  # nothing of planning


@pytest.mark.parametrize("item", [item for item in ITEMS if item.kind == "code"], ids=lambda item: item.id)
def test_every_program_prints_its_answer(item: Any) -> None:
    program = item.question.partition("```python\n")[2].partition("\n```")[0]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert is_right(item, done.stdout) and not is_right(item, program)


def test_no_answer_is_right_twice_by_chance() -> None:
    # One constant answer must not reach the line of 20 %.
    answers = {normalise(answer) for item in ITEMS for answer in item.answers}
    best = max(sum(is_right(item, answer) for item in ITEMS) for answer in answers)
    assert best <= 3


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Paris", "paris"),
        (" Paris.\n", "paris"),
        ("**Paris**", "paris"),
        ("`42`", "42"),
        ("“Paris”", "paris"),
        ("ＰＡＲＩＳ", "paris"),
        ("1,024", "1024"),
        ("1,02", "1,02"),  # no grouped digits
        ("Pacific   Ocean", "pacific ocean"),
        ("<think>Berlin?</think>\n\nParis", "paris"),
        ("<think></think>Paris", "paris"),
        ("<think>Paris", "<think>paris"),  # never closed: no answer was given
        ("Paris <think>x</think>", "paris <think>x</think>"),  # only in front
        ("The capital is Paris.", "the capital is paris"),  # a sentence is not the answer alone
        ("-5", "-5"),
        ("...", ""),
        ("", ""),
    ],
)
def test_normalisation(text: str, normal: str) -> None:
    assert normalise(text) == normal


@given(st.text(max_size=40))
def test_normalisation_is_settled_after_one_pass(text: str) -> None:
    if "<think>" not in normalise(text):
        assert normalise(normalise(text)) == normalise(text)


def right_answers() -> list[str]:
    return [item.answers[-1] for item in ITEMS]


def test_scores_points_and_flips() -> None:
    answers = right_answers()
    before = score(ITEMS, answers)
    assert before["all"] == {"count": 30, "of": 30, "share": 1.0} and before["code"]["of"] == 10
    worse = score(ITEMS, ["no idea", *answers[1:-1], ""])
    assert (worse["all"]["count"], worse["general"]["count"], worse["code"]["count"]) == (28, 19, 9)
    assert points_lost(before, worse) == pytest.approx(200 / 30) and points_lost(worse, before) < 0
    assert flipped(before, worse, False) == [ITEMS[0].id, ITEMS[-1].id] and flipped(before, worse, True) == []


@pytest.mark.parametrize(
    ("lost", "warning"), [(0, False), (1, False), (2, True), (-1, False)], ids=["same", "3.3", "6.7", "rose"]
)
def test_more_than_five_points_is_a_warning(lost: int, warning: bool) -> None:
    given = {"before": 20, "after": 20 - lost}
    result = judge(ITEMS, "before", ["after"], lambda name: first_right(given[name]))
    assert result["checkpoints"][0]["warning"] is warning


def first_right(count: int) -> list[str]:
    return [*right_answers()[:count], *["?"] * (30 - count)]


@pytest.mark.parametrize(("right", "refused"), [(5, True), (6, False), (0, True), (30, False)])
def test_below_a_fifth_nothing_is_judged(right: int, refused: bool) -> None:
    asked = []

    def answers(name: str) -> list[str]:
        asked.append(name)
        return first_right(right)

    if refused:
        with pytest.raises(TooWeak, match=f"starts with {right} of 30 right, below 20%"):
            judge(ITEMS, "before", ["after"], answers)
        assert asked == ["before"]
    else:
        assert judge(ITEMS, "before", ["after"], answers)["checkpoints"][0]["points_lost"] == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:-1], r"holds \{'general': 20, 'code': 9\} items"),
        (lambda rows: [{**rows[0], "answers": []}, *rows[1:]], "items.jsonl:1:"),
        (lambda rows: [{**rows[0], "answers": ["..."]}, *rows[1:]], "items.jsonl:1:"),  # nothing is left of it
        (lambda rows: [{**rows[0], "question": None}, *rows[1:]], "items.jsonl:1:"),
        (lambda rows: [rows[1], *rows[1:]], "holds an id twice"),
    ],
)
def test_items_that_will_not_do(change: Callable[[list[Any]], list[Any]], message: str, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in DEFAULT_ITEMS.read_text(encoding="utf-8").splitlines()]
    path = tmp_path / "items.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in change(rows)), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_items(path)


# --------------------------------------------------------------------------------------------- over an endpoint


def served(wrong: dict[str, set[str]]) -> Callable[[str, str, int], Reply | str]:
    """Models that answer right but for the items named."""
    known = {item.question: item for item in ITEMS}

    def script(model: str, text: str, count: int) -> Reply | str:
        item = known[text]
        return "I do not know" if item.id in wrong[model] else f"{item.answers[0]}."

    return script


def test_the_command_judges_models_of_an_endpoint(tmp_path: Path) -> None:
    ids = [item.id for item in ITEMS]
    wrong = {"base": set(ids[:3]), "step-20": set(ids[:4]), "step-40": set(ids[1:6])}
    command = [sys.executable, SCRIPT, "--model", "base", "--out", f"{tmp_path}/guard.json"]
    with ChatServer(served(wrong), api_key="secret-key") as server:
        environment = {"PLANNER_API_KEY": "secret-key"}
        common = [*command, "--endpoint", server.base_url]
        assert "base: all 27/30, general 17/20, code 10/10" in run(common, environment)
        printed = run([*common, "--after", "step-20", "step-40"], environment, code=1)
        assert server.asked["base", ITEMS[0].question] == 2
    assert "after   step-20: all 26/30" in printed and "-3.3 points" in printed
    assert f"became wrong: {', '.join(ids[3:6])}; became right: {ids[0]}" in printed
    assert printed.count("WARNING") == 1 and "WARNING step-40 fell by 6.7 points, more than 5" in printed
    made = json.loads((tmp_path / "guard.json").read_text(encoding="utf-8"))
    assert [one["warning"] for one in made["checkpoints"]] == [False, True]
    assert made["before"]["answers"][ids[0]] == {"answer": "I do not know", "right": False}
    assert "secret-key" not in printed + (tmp_path / "guard.json").read_text(encoding="utf-8")


def test_an_outage_is_no_wrong_answer(tmp_path: Path) -> None:
    def script(model: str, text: str, count: int) -> Reply | str:
        return Reply(status=400) if text == ITEMS[7].question else "x"

    command = [sys.executable, SCRIPT, "--model", "base", "--out", f"{tmp_path}/guard.json"]
    with ChatServer(script) as server:
        printed = run([*command, "--endpoint", server.base_url], {}, code=2)
    assert "base: 1 of 30 calls failed (HTTP 400" in printed and not (tmp_path / "guard.json").exists()


def test_wrong_use(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--model", "base", "--out", f"{tmp_path}/guard.json"]
    assert "--adapter is for local models" in run(
        [*command, "--endpoint", "http://127.0.0.1:9/v1", "--adapter", "a"], {}, code=2
    )
    said = run([*command, "--items", f"{tmp_path}/none.jsonl"], {}, code=2)
    assert "none.jsonl" in said and "Traceback" not in said
    assert "examples:\n  python scripts/eval/regression_guard.py" in run([sys.executable, SCRIPT, "--help"], {})


# ------------------------------------------------------------------------------------------------ a local model


@pytest.mark.slow
def test_the_nano_model_is_too_weak_to_be_judged(world: World, sft: Path, tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--model", str(world.folder / "nano"), "--out", f"{tmp_path}/guard.json"]
    printed = run([*command, "--after", str(sft)], world.environment, code=2)
    assert "starts with 0 of 30 right, below 20%" in printed and "cannot judge it" in printed
    assert "Traceback" not in printed and not (tmp_path / "guard.json").exists()


LEARN = (
    "--model_type qwen3 --template qwen3_nothinking --tuner_type full --learning_rate 2e-3 --max_steps 250 "
    "--max_length 256 --torch_dtype float32 --device_map cpu --use_cpu true --per_device_train_batch_size 16 "
    "--gradient_accumulation_steps 1 --dataloader_num_workers 0 --split_dataset_ratio 0 --load_from_cache_file false "
    "--save_strategy steps --save_steps 250 --save_only_model true --check_model false --add_version false"
).split()


@pytest.mark.slow
def test_a_local_model_is_judged_before_and_after(world: World, base: Path, sft: Path, tmp_path: Path) -> None:
    """A nano model that learned the answers by heart, and the planner it was before: all that it knew is gone."""
    rows = [{"messages": [*item.messages, {"role": "assistant", "content": item.answers[0]}]} for item in ITEMS]
    learnt = tmp_path / "answers.jsonl"
    learnt.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    # swift itself: the launcher's preflight refuses answers that are no plans.
    run([str(Path(sys.executable).parent / "swift"), "sft", *LEARN, "--model", str(world.folder / "nano")]
        + ["--dataset", str(learnt), "--output_dir", f"{tmp_path}/run"],
        {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"})  # fmt: skip
    scholar = tmp_path / "run" / "checkpoint-250"
    command = [sys.executable, SCRIPT, "--model", str(scholar), "--out", f"{tmp_path}/guard.json"]
    # `base` is a model folder of its own, `sft` an adapter that was made for another model of the same shape.
    printed = run([*command, "--after", str(base), str(sft)], world.environment, code=1)
    made = json.loads((tmp_path / "guard.json").read_text(encoding="utf-8"))
    assert made["before"]["all"]["count"] >= 25, printed
    assert made["checkpoints"][0]["score"]["all"]["count"] <= 3 and made["checkpoints"][0]["warning"]
    assert len(made["checkpoints"]) == 2
