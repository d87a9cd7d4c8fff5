"""Rollout profile: tokens shared by prompts, the reuse of keys and values, rewards equal to the bit, the command."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.eval.generate import LocalModel
from scripts.train.dataset_check import check_prompt_style
from scripts.train.prefix_sharing import Sharing, common_prefix, sharing
from scripts.train.reward_repeats import compare_rewards
from scripts.train.rollout_engines import Generation, TransformersEngine, choose_backend, load_transformers
from scripts.train.rollout_profile import Plan, Run, comparisons, identical, measure, shared_tokens, speed_rows
from swift_plugin.settings import Settings
from tests import damaged
from tests.commands import ROOT
from tests.launch_world import build_world, row
from tests.small_world import REWARD_FILE, build_store, plan

# --- shared tokens ----------------------------------------------------------------------------------------------------

SHARED: list[tuple[list[list[int]], int, int, int, str]] = [
    ([[1, 2, 3]], 1, 1, 3, "one prompt is computed whole"),
    ([[1, 2, 3]], 4, 1, 3 + 3, "each further completion computes the last token alone"),
    ([[1, 2, 3], [1, 2, 4]], 1, 1, 4, "the common prefix once"),
    ([[1, 2, 3], [1, 2, 3]], 1, 1, 4, "the same prompt twice is like a group of two"),
    ([[1, 2], [1, 2, 3]], 1, 1, 3, "one prompt is another's beginning"),
    ([[1, 2, 3], [4, 5]], 1, 1, 5, "nothing in common"),
    ([[1, 2, 3], [4, 1], [1, 2, 5]], 1, 1, 6, "neighbours need not stand together"),
    ([[7]], 3, 1, 3, "the last token is always computed"),
    ([[1, 2, 3, 4, 5]], 2, 4, 5 + 1, "one whole block of four is reused"),
    ([[1, 2, 3, 4]], 2, 4, 4 + 4, "the last token's block is computed again"),
    ([[1, 2, 3, 9, 9], [1, 2, 3, 8, 8]], 1, 4, 10, "three tokens are no block of four"),
]


@pytest.mark.parametrize(("prompts", "copies", "block", "computed", "reason"), SHARED)
def test_what_a_perfect_cache_computes(
    prompts: list[list[int]], copies: int, block: int, computed: int, reason: str
) -> None:
    assert sharing(prompts, copies, block) == Sharing(copies * sum(map(len, prompts)), computed), reason


PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=6)


@given(PROMPTS, st.integers(1, 3), st.sampled_from([1, 2, 4]))
def test_sharing_agrees_with_a_cache_that_is_looked_up(prompts: list[list[int]], copies: int, block: int) -> None:
    cached: set[tuple[int, ...]] = set()
    computed = 0
    for prompt in sorted(prompts * copies):  # a prompt that is another's beginning comes before it
        reused = 0
        while reused + block < len(prompt) and tuple(prompt[: reused + block]) in cached:
            reused += block
        computed += len(prompt) - reused
        cached |= {tuple(prompt[:end]) for end in range(block, len(prompt) + 1, block)}
    assert sharing(prompts, copies, block).computed == computed


@given(PROMPTS)
def test_the_common_prefix_is_the_longest(prompts: list[list[int]]) -> None:
    length = common_prefix(prompts)
    assert len({tuple(prompt[:length]) for prompt in prompts}) == 1
    longer = [tuple(prompt[: length + 1]) for prompt in prompts]
    assert len(set(longer)) > 1 or min(map(len, prompts)) == length


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="without tokens"):
        sharing([[1], []])


# --- what is made of the runs -----------------------------------------------------------------------------------------


def made_plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "prompts": ((1, 2, 3), (1, 2, 4)), "group": 2, "batch_sizes": (2,), "repeats": 2, "seed": 1,
        "max_new_tokens": 4,
    }  # fmt: skip
    return Plan(**{**values, **changes})


def run_of(caching: bool, repeat: int, seconds: float, last: int, computed: int | None) -> Run:
    """Two batches of two completions; `last` is the last token of the last one."""
    half = computed if computed is None else computed // 2
    batches = (Generation(((5,), (6,)), seconds / 2, half), Generation(((7,), (8, last)), seconds / 2, half))
    return Run(2, caching, repeat, batches)


def test_speed_counts_the_fastest_repeat_and_all_tokens() -> None:
    runs = [run_of(False, 0, 4.0, 9, 12), run_of(False, 1, 2.0, 9, 12), run_of(True, 0, 1.0, 9, 6),
            run_of(True, 1, 1.5, 1, 6)]  # fmt: skip
    off, on = speed_rows(runs, made_plan())
    assert (off["seconds"], off["completions_per_s"], off["tokens_written_per_s"]) == ([4.0, 2.0], 2.0, 2.5)
    assert (off["prompt_tokens"], off["hit_rate"], on["hit_rate"]) == (12, 0.0, 0.5)
    assert (off["identical_when_repeated"], on["identical_when_repeated"]) == (1.0, 0.75)
    (row,) = comparisons(runs, made_plan())
    assert (row["times_faster"], row["identical_off_and_on"]) == (2.0, 1.0)


def test_an_engine_that_does_not_count_has_no_hit_rate() -> None:
    runs = [run_of(caching, 0, 1.0, 9, None) for caching in (False, True)]
    row = speed_rows(runs, made_plan(repeats=1))[0]
    assert row["hit_rate"] is None and row["identical_when_repeated"] is None


def test_identical_is_place_by_place() -> None:
    assert identical([(1,), (2,)], [(2,), (1,)]) == 0.0
    assert identical([(1,), (2,)], [(1,), (2, 3)]) == 0.5


def test_the_shares_of_the_prompts() -> None:
    shared = shared_tokens(made_plan())
    assert (shared["common_prefix_tokens"], shared["common_prefix_share"]) == (2, pytest.approx(4 / 6))
    assert shared["prompts_share"] == pytest.approx(1 - 4 / 6)
    assert shared["groups_share"] == pytest.approx(1 - 6 / 12)
    assert shared["groups_share_in_blocks_of_16"] == 0.0


def test_vllm_is_told_to_be_missing_and_never_demanded_silently() -> None:
    backend, note = choose_backend("auto")
    assert backend == "transformers" and "vllm is not installed here" in note
    assert choose_backend("transformers") == ("transformers", "")
    with pytest.raises(ValueError, match="--backend vllm"):
        choose_backend("vllm")


# --- the transformers path, on a real model of random weights ---------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, vocab_size=40, eos_token_id=39, pad_token_id=0, tie_word_embeddings=True, initializer_range=0.3,
    )  # fmt: skip
    # In double precision rounding cannot choose another token, so off and on must agree exactly.
    return Qwen3ForCausalLM(config).double()


PROMPT_SETS: list[tuple[list[list[int]], str]] = [
    ([[1, 2, 3, 4], [1, 2, 3, 5]], "the same length"),
    ([[1, 2, 3, 4, 6, 7], [1, 2, 3, 5], [1, 2, 3, 5, 9]], "padding between the shared part and the rest"),
    ([[1, 2, 3], [1, 2, 3, 4]], "one prompt is another's beginning"),
    ([[5, 6, 7], [8, 9]], "nothing is shared but within a group"),
    ([[3], [4]], "prompts of one token: nothing to keep"),
    ([[1, 2, 3]], "one prompt alone"),
]


@pytest.mark.parametrize("size", [2, 9])  # a batch that cuts groups in two, all at once
@pytest.mark.parametrize(("prompts", "reason"), PROMPT_SETS)
def test_reuse_changes_what_is_computed_and_not_what_is_written(
    model: Any, prompts: list[list[int]], reason: str, size: int
) -> None:
    asked = made_plan(prompts=tuple(map(tuple, prompts)), group=3, batch_sizes=(size,), repeats=1, max_new_tokens=4)
    off, on = (
        measure(TransformersEngine(model, 0, reuse=reuse, max_new_tokens=4), asked, caching=reuse)[0]
        for reuse in (False, True)
    )
    assert on.completions == off.completions, reason
    assert len({tuple(tokens) for tokens in off.completions}) > 1, "they are samples"
    tokens = 3 * sum(map(len, prompts))
    assert off.computed == tokens
    assert on.computed is not None and on.computed == expected_computed(prompts, size), reason
    assert on.computed <= tokens


def expected_computed(prompts: Sequence[Sequence[int]], size: int) -> int:
    """Shared prefix once a run, the rest of a distinct prompt once a batch, each completion's last token."""
    shared = min(common_prefix(prompts), min(map(len, prompts)) - 1)
    requests = [tuple(prompt) for prompt in prompts for _ in range(3)]
    computed = shared + len(requests)
    for start in range(0, len(requests), size):
        computed += sum(len(prompt) - shared - 1 for prompt in set(requests[start : start + size]))
    return computed


def test_a_seed_repeats_its_samples_and_another_does_not(model: Any) -> None:
    engine = TransformersEngine(model, 0, reuse=True, max_new_tokens=6)
    batch = [[1, 2, 3]] * 4
    engine.start(batch)
    first, again, other = (engine.generate(batch, seed).tokens for seed in (1, 1, 2))
    assert first == again != other


def test_a_completion_ends_with_its_end_token(model: Any) -> None:
    engine = TransformersEngine(model, 0, reuse=True, max_new_tokens=40)
    batch = [[1, 2, 3]] * 16
    engine.start(batch)
    written = engine.generate(batch, 5).tokens
    ended = [tokens for tokens in written if tokens[-1] == 39]
    assert ended, "some completion ends before its limit"
    assert all(39 not in tokens[:-1] for tokens in written)


# --- rewards ----------------------------------------------------------------------------------------------------------

COMPLETIONS = [
    plan("waterproof running shoes"), plan("running socks", "rain jacket"), "no plan", plan(),
    plan("waterproof running shoes"),
]  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_store(tmp_path_factory.mktemp("rewards") / "store")


def scored() -> list[tuple[int, list[tuple[dict[str, Any], str]]]]:
    items = [(row(number % 2), text) for number, text in enumerate(COMPLETIONS)]
    return [(2, items), (5, items)]


def test_the_same_completion_gets_the_same_bits_in_any_batch(store: Path) -> None:
    made = compare_rewards(Settings(store_dir=store), scored(), seed=1)
    assert (made["unequal"], made["distinct_completions"], made["compared"]) == (0, 4, 4)
    assert -1.0 < made["mean_reward"] < 1.0


def test_a_reward_that_depends_on_its_company_is_found(store: Path, tmp_path: Path) -> None:
    loose = tmp_path / "planner_reward.py"
    text = REWARD_FILE.read_text(encoding="utf-8")
    loose.write_text(
        text + "\n\n_calls = [0]\n_exact = compute_reward\n\n\ndef compute_reward(*given, **named):\n"
        "    _calls[0] += 1\n    made = _exact(*given, **named)\n"
        "    return made._replace(total=made.total + 1e-16 * _calls[0])\n",
        encoding="utf-8",
    )
    made = compare_rewards(Settings(store_dir=store, reward_file=loose), scored(), seed=1)
    assert made["unequal"] > 0


def test_a_set_of_the_other_prompt_is_not_profiled() -> None:
    """The demo's rows, of 46 tokens, would say nothing about the prefix of the 4B model's prompt."""
    rows = [row(1), row(2)]
    check_prompt_style(Path("g.jsonl"), rows, "full")
    with pytest.raises(ValueError, match="g.jsonl: row 1 carries the full prompt, but PLANNER_PROMPT is short"):
        check_prompt_style(Path("g.jsonl"), rows, "short")


# --- the command ------------------------------------------------------------------------------------------------------


def command(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    from tests.launch_world import clean_environment

    return subprocess.run(
        [sys.executable, "scripts/train/rollout_profile.py", *arguments],
        cwd=ROOT, env={**clean_environment(), "CUDA_VISIBLE_DEVICES": "", **environment}, capture_output=True,
        text=True, timeout=240, check=False,
    )  # fmt: skip


@pytest.mark.slow  # imports swift and generates
def test_the_command_profiles_transformers_where_there_is_no_vllm(tmp_path: Path) -> None:
    world = build_world(tmp_path)
    out = tmp_path / "out" / "profile.json"
    done = command(
        "--model", str(world.model), "--data", str(world.train), "--prompts", "2", "--group", "2", "--batch-size",
        "2,4", "--max-new-tokens", "8", "--json", str(out), PLANNER_STORE_DIR=world.variables["PLANNER_STORE_DIR"],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "vllm is not installed here" in done.stderr and "all equal to the bit" in done.stdout
    made = json.loads(out.read_text(encoding="utf-8"))
    assert made["backend"] == "transformers" and "vllm is not installed" in made["note"]
    assert [(run["batch_size"], run["prefix_caching"]) for run in made["runs"]] == [
        (2, False), (2, True), (4, False), (4, True),
    ]  # fmt: skip
    off, on = made["runs"][:2]
    assert off["hit_rate"] == 0 and 0 < on["hit_rate"] < 1 and on["completions"] == 4
    assert made["shared_prefix"]["common_prefix_share"] == 1.0, "this world asks the same sentence in every row"
    assert made["rewards"]["unequal"] == 0 and made["rewards"]["compared"] > 0
    done = command("--model", "/no/model", "--data", str(world.train), "--prompts", "2")
    assert done.returncode == 2 and "Traceback" not in done.stderr


@pytest.mark.slow  # imports swift
@pytest.mark.parametrize("damage", [damaged.truncated, damaged.lfs_pointer])
def test_a_model_with_damaged_weights_is_no_model(tmp_path: Path, damage: damaged.Damage) -> None:
    folder = build_world(tmp_path).model
    damage(folder / "model.safetensors")
    with pytest.raises(ValueError, match="cannot load .*download it again"):
        load_transformers(LocalModel(str(folder)))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--data", "/no/set.jsonl"], "/no/set.jsonl"),
        (["--data", "{train}", "--prompts", "17"], "fewer than --prompts 17"),
        (["--data", "{train}", "--group", "0"], "must be 1 or more"),
        (
            ["--data", "{train}", "--json", "/proc/no/profile.json"],
            "argument --json: /proc/no/profile.json cannot be written",
        ),
        (["--data", "{train}", "--json", "scripts"], "argument --json: scripts is a folder"),
        (["--data", "{train}", "--prompts", "2"], "store"),
    ],
)
def test_wrong_use_is_said_before_a_model_is_loaded(tmp_path: Path, arguments: list[str], said: str) -> None:
    from tests.launch_world import write_rows

    train = write_rows(tmp_path / "grpo.jsonl", [row(number) for number in range(16)])
    done = command(
        "--model", "/no/model", *[argument.format(train=train) for argument in arguments],
        PLANNER_STORE_DIR=str(tmp_path / "none"),
    )  # fmt: skip
    assert done.returncode == 2, done.stdout
    assert said in done.stderr and "Traceback" not in done.stderr
