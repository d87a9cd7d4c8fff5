"""Effective arguments: every spelling that swift accepts, read as swift reads it."""

import json
import subprocess
import sys
from typing import Any

import pytest

from scripts.train import swift_args
from scripts.train.swift_args import SwiftArgsError, mask_secrets, parse, split_at_dashes

SPELLINGS: list[tuple[list[str], str, Any, str]] = [
    (["--beta", "0.01"], "beta", 0.01, "a value after its flag"),
    (["--beta=0.01"], "beta", 0.01, "a value joined by ="),
    (["--beta", "0.1", "--beta=0"], "beta", 0.0, "the last one wins, whatever the spelling"),
    (["--beta=0.1", "--beta", "0"], "beta", 0.0, "the last one wins the other way round"),
    (["--learning-rate", "2e-5"], "learning_rate", 2e-5, "hyphens for underscores"),
    (["--learning-rate=1e-6", "--learning_rate=2e-5"], "learning_rate", 2e-5, "both spellings are one option"),
    (["--dynamic_samp", "true"], "dynamic_sample", True, "an unambiguous abbreviation counts"),
    (["--dynamic_sample"], "dynamic_sample", True, "a bare boolean is true"),
    (["--dynamic_sample", "false"], "dynamic_sample", False, "a boolean takes a value"),
    (["--dynamic_sample", "No"], "dynamic_sample", False, "no, in any case, is false"),
    (["--dynamic_sample", "1"], "dynamic_sample", True, "1 is true"),
    (["--no_check_model"], "check_model", False, "booleans that default to true have a --no_ form"),
    (["--no-check-model"], "check_model", False, "also with hyphens"),
    (["--reward_weights", "1", "0", "0.5"], "reward_weights", [1.0, 0.0, 0.5], "a list ends at the next flag"),
    (
        ["--reward_weights", "1", "0", "--reward_weights", "2"],
        "reward_weights",
        [2.0],
        "a later list replaces",
    ),
    (["--reward-funcs=planner_reward"], "reward_funcs", ["planner_reward"], "a list of one by ="),
    (["--vllm_server_port", "8001"], "vllm_server_port", [8001], "ports are a list of whole numbers"),
    (["--scale_rewards", "none"], "scale_rewards", "none", "a choice, not Python's None"),
    (["--learning_rate", "-1"], "learning_rate", -1.0, "a negative number is a value, no flag"),
    ([], "num_generations", 8, "ms-swift's own default where the line is silent"),
    ([], "output_dir", None, "unset stays unset"),
]


@pytest.mark.parametrize(("line", "name", "value", "reason"), SPELLINGS)
def test_a_line_is_read_as_swift_reads_it(line: list[str], name: str, value: Any, reason: str) -> None:
    assert parse("rlhf", line)[name] == value, reason


@pytest.mark.parametrize(
    ("line", "said", "reason"),
    [
        (["--betta", "1"], "did you mean --beta?", "a typo would otherwise end the run minutes later, on every rank"),
        (["--num_generatio=4"], "ambiguous", "two options begin like that"),
        (["--beta", "much"], "--beta", "no number"),
        (["--dynamic_sample", "perhaps"], "true or false", "no truth value"),
        (["--scale_rewards", "median"], "scale_rewards", "not among the choices"),
        (["--beta"], "--beta", "the value is missing"),
        (["settings.yaml"], "config file only as its first argument", "swift would not read it here"),
        (["--beta", "0", "stray"], "'stray'", "a value that belongs to no flag"),
    ],
)
def test_what_swift_would_refuse_is_refused(line: list[str], said: str, reason: str) -> None:
    with pytest.raises(SwiftArgsError, match=".*") as error:
        parse("rlhf", line)
    assert said in str(error.value), reason


def test_given_tells_the_line_from_the_defaults() -> None:
    parsed = parse("rlhf", ["--beta=0.04", "--no_check_model"])
    assert parsed.given == {"beta", "check_model"}
    with pytest.raises(KeyError):
        parsed["no_such_option"]


@pytest.mark.parametrize(
    ("line", "masked", "reason"),
    [
        (["--hub_token", "abc"], ["--hub_token", "***"], "the value after the flag"),
        (["--hub_token=abc"], ["--hub_token=***"], "the value joined by ="),
        (["--hub-tok", "abc"], ["--hub-tok", "***"], "an abbreviation in the other spelling"),
        (["--swanlab_secret", "s", "--beta", "0"], ["--swanlab_secret", "***", "--beta", "0"], "only the secret goes"),
        (["--max_new_tokens", "5"], ["--max_new_tokens", "5"], "tokens of text are no secret"),
        (["--vllm_server_base_url", "http://u:p@h:1"], ["--vllm_server_base_url", "http://h:1"], "nor is the host"),
        (["--new_special_tokens", "a", "b"], ["--new_special_tokens", "a", "b"], "nor are special tokens"),
    ],
)
def test_secrets_never_reach_a_log(line: list[str], masked: list[str], reason: str) -> None:
    assert mask_secrets("rlhf", line) == masked, reason


def test_the_server_key_is_a_secret_too() -> None:
    assert mask_secrets("rollout", ["--api_key=k", "--port", "1"]) == ["--api_key=***", "--port", "1"]


def test_the_line_begins_after_the_first_dashes() -> None:
    assert split_at_dashes(["grpo", "--", "--beta", "0", "--", "x"]) == (["grpo"], ["--beta", "0", "--", "x"])
    assert split_at_dashes(["grpo"]) == (["grpo"], [])


def test_the_command_line_prints_one_value_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--", "--beta=0.5", "--reward_weights", "1", "0"]
    assert swift_args.main(["rlhf", "--print", "beta", "output_dir", "log_entropy", "reward_weights", *line]) == 0
    assert capsys.readouterr().out == "0.5\n\nfalse\n1.0 0.0\n"
    assert swift_args.main(["rlhf", "--given", "beta", "log_entropy", *line]) == 0
    assert capsys.readouterr().out == "0.5\n\n"
    assert swift_args.main(["rlhf", "--quote", "--", "--system", "a b", "--hub_token", "t"]) == 0
    assert capsys.readouterr().out == "--system 'a b' --hub_token '***'\n"
    assert swift_args.main(["rlhf", "--print", "beta", "--", "--betta", "1"]) == 2
    assert "refused" in capsys.readouterr().err


def test_the_run_folder_is_printed_where_swift_puts_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", "/home/me")  # bash leaves the ~ of --output_dir=~/x alone, swift expands it
    for what in ("--print", "--given"):
        assert swift_args.main(["rlhf", what, "output_dir", "--", "--output_dir=~/runs/x"]) == 0
        assert capsys.readouterr().out == "/home/me/runs/x\n"


def test_an_environment_without_swift_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swift_args, "KEYED_BY", ("no-such-distribution-here",))
    swift_args.options.cache_clear()
    try:
        with pytest.raises(SwiftArgsError, match="PLANNER_PYTHON"):
            parse("rlhf", [])
    finally:
        swift_args.options.cache_clear()


AGREEMENT = """
import json, sys, dataclasses
import swift.arguments
from swift.utils.utils import _patch_get_type_hints
from transformers import HfArgumentParser
with _patch_get_type_hints():
    parser = HfArgumentParser([swift.arguments.RLHFArguments])
lines = json.loads(sys.argv[1])
print("ANSWER" + json.dumps([vars(parser.parse_known_args(line)[0])[name] for line, name in lines]))
"""


@pytest.mark.slow
def test_ms_swifts_own_parser_agrees() -> None:
    """The table above against the real thing, so that a new ms-swift cannot drift away from it."""
    cases = [(line, name) for line, name, _, _ in SPELLINGS]
    done = subprocess.run(
        [sys.executable, "-c", AGREEMENT, json.dumps(cases)], capture_output=True, text=True, check=True, timeout=300
    )
    answer = json.loads(done.stdout.rpartition("ANSWER")[2])
    assert answer == [parse("rlhf", line)[name] for line, name in cases]
