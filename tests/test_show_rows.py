"""The rows printed before training are the tokens that swift trains, with the loss mask."""

import json
from pathlib import Path

import pytest

from scripts.train.dataset_check import load
from scripts.train.show_rows import BETWEEN, CONTEXT, TRAINED, main, pick, show
from scripts.train.swift_args import parse
from scripts.train.swift_template import RowEncoder
from tests.launch_world import row, write_rows
from tests.small_world import TEXT, golden, plan

ANSWER = plan("waterproof running shoes")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from scripts.train.build_nano_model import build

    made = tmp_path_factory.mktemp("rows")
    write_rows(made / "sft.jsonl", [row(n, answer=ANSWER) for n in range(9)])
    build(made / "sft.jsonl", made / "model", seed=1)
    return made


def line(folder: Path) -> list[str]:
    model = ["--model", str(folder / "model"), "--model_type", "qwen3", "--template", "qwen3_nothinking"]
    return [*model, "--dataset", str(folder / "sft.jsonl")]


def trained_parts(text: str) -> list[str]:
    return [part.split(CONTEXT)[0].replace(BETWEEN, "") for part in text.split(TRAINED)[1:]]


def test_sft_shows_the_answer_as_trained(folder: Path) -> None:
    text = show("sft", line(folder))
    shown = trained_parts(text.split("\n", 1)[1])  # the first line explains the brackets
    assert shown == [f"{ANSWER}<|im_end|>\n"] * 3
    assert TEXT in text.replace(BETWEEN, "")
    assert text.count(f"golden: {json.dumps(json.loads(golden()), ensure_ascii=False)}") == 3
    assert all(f"line {number}, id train-{number - 1}" in text for number in (1, 5, 9)), "first, middle, last"


def test_grpo_shows_the_prompt_and_no_answer(folder: Path) -> None:
    text = show("rlhf", ["--rlhf_type", "grpo", *line(folder)])
    assert ANSWER not in text.replace(BETWEEN, "")
    assert trained_parts(text.split("\n", 1)[1]) == ["... the completion ..."] * 3
    assert "in the loss: the completion" in text


def test_the_grpo_prompt_is_the_context_of_the_sft_row(folder: Path) -> None:
    """What SFT conditions on is what GRPO generates from, token for token, without a think block in between."""
    item = load(str(folder / "sft.jsonl")).rows[0]
    encoder = RowEncoder(parse("sft", line(folder)))
    sft = encoder.encode(item)
    prompt = RowEncoder(parse("rlhf", ["--rlhf_type", "grpo", *line(folder)])).encode(item).ids
    assert sft.ids[: len(prompt)] == prompt
    assert sft.trained == (False,) * len(prompt) + (True,) * (len(sft.ids) - len(prompt))
    assert "<think>" not in encoder.tokenizer.decode(list(sft.ids))


def test_rows_are_spread_over_the_set() -> None:
    rows = [{"id": n} for n in range(10)]
    assert [number for number, _ in pick(rows, 3)] == [1, 5, 10]
    assert [number for number, _ in pick(rows[:2], 3)] == [1, 2], "fewer rows than asked for"
    assert [number for number, _ in pick(rows, 1)] == [1]


def test_the_command_prints_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sft", "--rows", "1", "--", *line(folder)]) == 0
    assert "1 of 9 rows" in capsys.readouterr().out
