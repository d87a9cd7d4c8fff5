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
    Sampled,
    is_tied,
    kept_when_thinned,
    prompt_of,
    read_difficulty,
    split_rows,
    with_look_alikes,
    without_tied,
)
from scripts.data.dev_from_anchors import load_dev
from scripts.data.gate_splits import WATCH_ROWS
from scripts.data.golden_file import set_row
from scripts.train.dataset_check import load, problems
from swift_plugin.cards import DEFAULT_CARDS, load_cards
from swift_plugin.prompts import build_messages
from swift_plugin.reward_loader import load_reward
from swift_plugin.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
WATCH = [row(f"w-{n}#0", f"防水跑鞋，第{n}双", split="watch") for n in range(2, WATCH_ROWS + 1)]
HELD = [
    row("w-1#0", "找双跑鞋", must_have=[], split="watch"),
    row("w-1#1", "要防水的", prior=("找双跑鞋",), split="watch"),
    *WATCH,
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
        "watch": ["w-1", *(one["session"] for one in WATCH)],  # of w-1 the last turn alone
        "dev92": ["d-1"],
        "test": ["q-8"],  # t-1 is under review
    }


def test_what_judged_sets_lose_is_reported(folder: Path) -> None:
    report = json.loads((folder / "grpo.report.json").read_text(encoding="utf-8"))["sets"]
    assert {split: one["left_out"] for split, one in report.items()} == {
        "train": {},
        "watch": {},
        "dev92": {},
        "test": {"review": 1},
    }


def reviewed(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "golden": {**one["golden"], "status": "review"}, "status": "review"}


@pytest.mark.parametrize(
    ("rows", "code", "said", "reason"),
    [
        ([*ROWS, *HELD], 0, None, "every set has its rows"),
        ([*ROWS, *map(reviewed, HELD)], 1, "watch.jsonl has 0 rows, the checkpoint is chosen by 32; left out of it: "
            "{'review': 32}", "all of watch under review"),
        ([*ROWS, *HELD[:-3], *HELD[-2:]], 1, "watch.jsonl has 31 rows", "a record short"),
        ([*ROWS, *HELD[:-2], *map(reviewed, HELD[-2:])], 1, "dev92.jsonl is empty", "all of dev92 under review"),
        ([*ROWS, *HELD[:-2]], 0, None, "no row was meant for dev92"),
        (HELD, 1, "no training prompt", "nothing to train on"),
        ([*ROWS, {**HELD[0], "split": "Watch"}], 2, "split 'Watch' is none of train, watch, dev92, test", "no set"),
        ([*ROWS, *HELD, ROWS[0]], 2, "golden.jsonl:46 (q-1#0): the id stands in line 1 already", "a line twice"),
    ],
)  # fmt: skip
def test_sets_that_will_not_do_are_named(
    tmp_path: Path, rows: list[dict[str, Any]], code: int, said: str | None, reason: str
) -> None:
    done = command(str(write(tmp_path / "golden.jsonl", rows)), "--out-dir", str(tmp_path))
    assert done.returncode == code and "Traceback" not in done.stderr, (reason, done.stderr)
    assert said in done.stderr if said else done.stderr == "", (reason, done.stderr)


def test_a_judged_prompt_is_in_no_set_when_training_has_it() -> None:
    # a voter failed on the session's last turn, so its first one would be judged
    held = [row("d-1#0", ROWS[0]["text"], split="dev92"), row("d-2#0", ROWS[0]["text"], prior=("你好",), split="dev92")]
    sets = split_rows([*ROWS, *held], last_only=True)
    assert [one["id"] for one in sets.rows["dev92"]] == ["d-2"]  # the same words after others are another prompt
    assert sets.left_out["dev92"] == {"in_training": 1}


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
    done = command(str(write(tmp_path / "golden.jsonl", ROWS + HELD)), "--out-dir", str(tmp_path), "--last-turns")
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
    found = split_rows([with_look_alikes(one, by_anchor) for one in rows], last_only=False).rows["dev92"]
    assert [set_row(one, "full") for one in found] == dev


# -------------------------------------------------------------------------------------------------- difficulty


TRAINING = {one["id"]: one for one in split_rows(ROWS, last_only=False).rows["train"]}


def samples(name: str, *totals: float, **changes: Any) -> dict[str, Any]:
    asked = {key: TRAINING.get(name, ROWS[0])[key] for key in ("text", "prior_context")}
    return {"id": name, **asked, "samples": [{"breakdown": {"total": total}} for total in totals], **changes}


def sampled(rows: list[dict[str, Any]], *totals: float) -> dict[str, Sampled]:
    return {one["id"]: Sampled(prompt_of(one), totals) for one in rows}


@pytest.mark.parametrize(
    ("totals", "tied"),
    [((1.0, 1.0), True), ((0.1 + 0.2, 0.3), True), ((-1.0,) * 8, True), ((0.9, 0.91), False)],
)
def test_a_group_is_tied_when_its_rewards_are_equal(totals: tuple[float, ...], tied: bool) -> None:
    assert is_tied(totals) == tied


def test_tied_prompts_are_left_out_and_counted() -> None:
    rows = list(TRAINING.values())
    rewards = {"q-1": (1.0,) * 8, "q-2": (0.5, 0.7) * 4, "q-4": (-1.0,) * 8, "other": (1.0, 1.0)}
    found = {name: Sampled(prompt_of(TRAINING.get(name, ROWS[0])), totals) for name, totals in rewards.items()}
    kept, counts = without_tied(rows, found, thin=False)
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
    kept, counts = without_tied(rows, sampled(rows, 0.9, 0.9), thin=True)
    assert {one["id"] for one in kept} == {one["id"] for one in rows if kept_when_thinned(one["id"])}
    assert 400 / THINNED * 0.7 < len(kept) == counts["kept"] < 400 / THINNED * 1.3


def test_difficulty_through_the_command(folder: Path, tmp_path: Path) -> None:
    scored = [samples("q-1", *[1.0] * 8), samples("q-2", *[0.5, 0.7] * 4)]
    file = str(write(tmp_path / "s.jsonl", scored))
    done = command(str(folder / "golden.jsonl"), "--out-dir", str(tmp_path), "--difficulty", file)
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
        ([{"id": "q-1", "samples": samples("q-1", 1.0, 1.0)["samples"]}], "KeyError\\('text'\\)"),
        ([], "is empty"),
    ],
)
def test_a_samples_file_that_will_not_do_is_named(tmp_path: Path, rows: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_difficulty(write(tmp_path / "s.jsonl", rows))


@pytest.mark.parametrize(
    ("line", "said", "reason"),
    [
        (samples("x", 1.0, 1.0), "none of its ids", "other ids"),
        (samples("q-4", 1.0, 1.0, text="想买双靴子"), "its q-4 asks '想买双靴子'", "the same id for other words"),
        (samples("q-2", 1.0, 1.0, prior_context=["想买靴子"]), "its q-2 asks '想买靴子 / ", "after other words"),
    ],
)
def test_samples_of_another_set_are_an_error(
    folder: Path, tmp_path: Path, line: dict[str, Any], said: str, reason: str
) -> None:
    file = write(tmp_path / "s.jsonl", [*([] if line["id"] == "x" else [samples("q-1", 1.0, 1.0)]), line])
    done = command(str(folder / "golden.jsonl"), "--out-dir", str(tmp_path), "--difficulty", str(file))
    assert done.returncode == 2 and said in done.stderr and "another set" in done.stderr, (reason, done.stderr)
    assert not (tmp_path / "grpo.jsonl").exists()


@pytest.mark.parametrize("arguments", [("no.jsonl", "--out-dir", "x"), ("setup.cfg", "--out-dir", "x")])
def test_wrong_use_ends_with_2(arguments: tuple[str, ...]) -> None:
    done = command(*arguments)
    assert done.returncode == 2 and arguments[0] in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("where", ["taken", "taken/below"])
def test_a_folder_that_cannot_be_made_ends_with_2(folder: Path, tmp_path: Path, where: str) -> None:
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    done = command(str(folder / "golden.jsonl"), "--out-dir", str(tmp_path / where))
    assert done.returncode == 2 and "taken" in done.stderr and "Traceback" not in done.stderr
