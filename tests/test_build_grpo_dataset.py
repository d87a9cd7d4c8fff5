"""Prompt sets: byte-equal to SFT's prompts, nothing of the golden record in them, tied groups left out or thinned."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_build_planner_sft import ROWS, row, write

from reward.planner_reward import parse_golden
from scripts.data.build_grpo_dataset import (
    FILES,
    THINNED,
    is_tied,
    kept_when_thinned,
    read_difficulty,
    split_rows,
    with_look_alikes,
    without_tied,
)
from scripts.data.dev_from_anchors import load_dev
from scripts.data.golden_file import set_row
from scripts.train.dataset_check import load, problems
from swift_plugin.cards import DEFAULT_CARDS, load_cards
from swift_plugin.prompts import build_messages
from swift_plugin.reward_loader import load_reward
from swift_plugin.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
HELD = [
    row("w-1#0", "有跑鞋吗", must_have=[], split="watch"),
    row("w-1#1", "要防水的", prior=("有跑鞋吗",), split="watch"),
    row("d-1#0", "防水跑鞋，急", None, split="dev92"),
    row("t-1#0", "防水跑鞋，投票没定", status="review", split="test"),
]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, "scripts/data/build_grpo_dataset.py", *arguments]
    return subprocess.run(script, cwd=ROOT, capture_output=True, text=True, env={**os.environ})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("grpo")
    done = command(str(write(made / "golden.jsonl", ROWS + HELD)), "--out-dir", str(made))
    assert done.returncode == 0, done.stderr
    return made


def rows_of(folder: Path, split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FILES[split]).read_text(encoding="utf-8").splitlines()]


def test_each_split_has_its_file_and_its_rows(folder: Path) -> None:
    found = {split: [one["id"] for one in rows_of(folder, split)] for split in FILES}
    assert found == {
        "train": ["q-1", "q-2#0", "q-2", "q-3", "q-4", "q-5", "q-6", "q-7", "q-9"],  # every turn, q-3 under review
        "watch": ["w-1"],  # the last turn alone
        "dev92": ["d-1"],
        "test": ["q-8"],  # t-1 is under review
    }


def test_the_prompt_is_build_messages_and_the_golden_record_stands_beside_it(folder: Path) -> None:
    for split in FILES:
        for one in rows_of(folder, split):
            assert one["messages"] == build_messages(one["text"], one["prior_context"], "full")
            record = parse_golden(one["golden_json"])
            prompt = one["messages"][-1]["content"]
            for secret in (record["category_anchor"], *record["must_have"], record["status"]):
                assert not secret or secret not in prompt, (one["id"], secret)


def test_training_may_start_with_the_sets(folder: Path) -> None:
    reward = load_reward(Settings().reward_file)
    assert problems(load(str(folder / "grpo.jsonl")), "train", reward, "full") == []
    assert problems(load(str(folder / "watch.jsonl")), "watch", reward, "full") == []


def test_last_turns_alone_on_demand(tmp_path: Path) -> None:
    done = command(str(write(tmp_path / "golden.jsonl", ROWS)), "--out-dir", str(tmp_path), "--last-turns")
    assert done.returncode == 0 and "q-2#0" not in {one["id"] for one in rows_of(tmp_path, "train")}


def test_the_shipped_anchors_give_the_dev92_of_the_demo() -> None:
    cards = load_cards(DEFAULT_CARDS)
    by_anchor = {card.anchor: card for card in cards}
    dev = load_dev(ROOT / "data" / "anchors.jsonl", cards, "full")
    rows = [
        {
            "id": f"{one['id']}#{len(one['prior_context'])}",
            "session": one["id"],
            "family": one["family"],
            "split": "dev92",
            "text": one["text"],
            "prior_context": one["prior_context"],
            "golden": {**parse_golden(one["golden_json"]), "must_not": []},  # as people and votes leave it
        }
        for one in dev
    ]
    found = split_rows([with_look_alikes(one, by_anchor) for one in rows], last_only=False)["dev92"]
    assert [set_row(one, "full") for one in found] == dev


# -------------------------------------------------------------------------------------------------- difficulty


def samples(name: str, *totals: float) -> dict[str, Any]:
    return {"id": name, "samples": [{"breakdown": {"total": total}} for total in totals]}


@pytest.mark.parametrize(
    ("totals", "tied"),
    [((1.0, 1.0), True), ((0.1 + 0.2, 0.3), True), ((-1.0,) * 8, True), ((0.9, 0.91), False)],
)
def test_a_group_is_tied_when_its_rewards_are_equal(totals: tuple[float, ...], tied: bool) -> None:
    assert is_tied(totals) == tied


def test_tied_prompts_are_left_out_and_counted() -> None:
    rows = split_rows(ROWS, last_only=False)["train"]
    rewards = {"q-1": (1.0,) * 8, "q-2": (0.5, 0.7) * 4, "q-4": (-1.0,) * 8, "other": (1.0, 1.0)}
    kept, counts = without_tied(rows, rewards, thin=False)
    assert {one["id"] for one in rows} - {one["id"] for one in kept} == {"q-1", "q-4"}
    assert counts == {
        "sampled": 3,
        "not_sampled": 6,
        "samples_a_prompt": {"8": 3},
        "tied": 2,
        "tied_perfect": 1,
        "tied_unparsed": 1,
        "left_out": 2,
        "kept": 7,
    }


def test_thinning_keeps_a_share_and_always_the_same_one() -> None:
    rows = [{**ROWS[0], "id": f"q-{number}"} for number in range(400)]
    kept, counts = without_tied(rows, {one["id"]: (0.9, 0.9) for one in rows}, thin=True)
    assert {one["id"] for one in kept} == {one["id"] for one in rows if kept_when_thinned(one["id"])}
    assert 400 / THINNED * 0.7 < len(kept) == counts["kept"] < 400 / THINNED * 1.3


def test_difficulty_through_the_command(folder: Path, tmp_path: Path) -> None:
    scored = [samples("q-1", *[1.0] * 8), samples("q-2", *[0.5, 0.7] * 4)]
    sampled = str(write(tmp_path / "s.jsonl", scored))
    done = command(str(folder / "golden.jsonl"), "--out-dir", str(tmp_path), "--difficulty", sampled)
    assert done.returncode == 0, done.stderr
    ids = {one["id"] for one in rows_of(tmp_path, "train")}
    assert "q-1" not in ids and {"q-2", "q-5"} <= ids
    report = json.loads((tmp_path / "grpo.report.json").read_text(encoding="utf-8"))
    assert (report["difficulty"]["tied"], report["sets"]["train"]["rows"]) == (1, 8)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([samples("q-1", 1.0)], "one sample is no group"),
        ([{"id": "q-1"}], "no line of eval_planner.py"),
        ([], "is empty"),
    ],
)
def test_a_samples_file_that_will_not_do_is_named(tmp_path: Path, rows: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_difficulty(write(tmp_path / "s.jsonl", rows))


def test_samples_of_another_set_are_an_error() -> None:
    with pytest.raises(ValueError, match="another set"):
        without_tied(split_rows(ROWS, last_only=False)["train"], {"x": (1.0, 1.0)}, thin=False)


@pytest.mark.parametrize("arguments", [("no.jsonl", "--out-dir", "x"), ("setup.cfg", "--out-dir", "x")])
def test_wrong_use_ends_with_2(arguments: tuple[str, ...]) -> None:
    done = command(*arguments)
    assert done.returncode == 2 and arguments[0] in done.stderr and "Traceback" not in done.stderr
