"""The memory estimate: exact parameter counts, the measured wall of the original box, and real saved tensors."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.train.gpu_profile import OUT_OF_MEMORY, grid, profile, some_row_fits
from scripts.train.memory_model import (
    ALL_LINEAR,
    ATTENTION,
    GIB,
    QWEN3_4B,
    Job,
    Shape,
    ShapeError,
    cuts,
    estimate,
    fits,
    kv_bytes,
    layer_bytes,
    lora_parameters,
    lora_share,
    parameters,
    read_shape,
    rollout_tokens,
    shape_of,
)
from tests.commands import ROOT, clean_environment

CARD = 24 * GIB
SFT = Job("sft", batch=2, prompt=583, processes=4)
GRPO = Job("grpo", batch=2, prompt=480, completion=256, accumulation=8, processes=4)
TINY = Shape(
    hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=32, vocab_size=64, tie_word_embeddings=True,
)  # fmt: skip
QWEN_CONFIG = {
    "model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "tie_word_embeddings": True,
}  # fmt: skip


def test_qwen3_4b_has_the_published_parameters_and_lora_share() -> None:
    assert parameters(QWEN3_4B) == 4_022_468_096
    assert lora_parameters(QWEN3_4B, 16) == 33_030_144
    assert f"{lora_share(QWEN3_4B, 16):.2%}" == "0.81%"


@pytest.mark.parametrize(
    ("rank", "targets", "expected"),
    [
        (16, ATTENTION, 36 * 16 * (2 * (2560 + 4096) + 2 * (2560 + 1024))),
        (16, ("q_proj", "v_proj"), 36 * 16 * ((2560 + 4096) + (2560 + 1024))),
        (32, ALL_LINEAR, 2 * 33_030_144),  # linear in the rank
        (8, ALL_LINEAR, 33_030_144 // 2),
    ],
)
def test_lora_parameters_by_targets(rank: int, targets: tuple[str, ...], expected: int) -> None:
    assert lora_parameters(QWEN3_4B, rank, targets) == expected


def test_untied_embeddings_count_twice() -> None:
    untied = replace(QWEN3_4B, tie_word_embeddings=False)
    assert parameters(untied) - parameters(QWEN3_4B) == 151936 * 2560


@pytest.mark.parametrize(
    ("job", "expected", "why"),
    [
        (SFT, True, "the original trained with batch 2 and no checkpointing"),
        (replace(SFT, batch=3), False, "the original ran out of memory with batch 3"),
        (replace(SFT, batch=3, checkpointing=True), True, "checkpointing moves the wall"),
        (replace(SFT, processes=1), True, "one card alone"),
        (GRPO, True, "the launcher's default"),
        (replace(GRPO, batch=3), False, "what the launcher's comment says"),
        (replace(SFT, batch=1, rank=None, prompt=16), False, "all weights of a 4B model with Adam"),
        (replace(SFT, width=4), False, "float32 doubles the weights"),
    ],
)
def test_the_wall_stands_where_the_original_measured_it(job: Job, expected: bool, why: str) -> None:
    made = estimate(QWEN3_4B, job)
    assert fits(made, CARD) is expected, f"{why}: {made.gib()}"


def test_the_reference_costs_an_adapter_with_lora_and_a_model_without() -> None:
    without = estimate(QWEN3_4B, GRPO)
    assert without.reference == 0
    assert estimate(QWEN3_4B, replace(GRPO, reference=True)).reference == 4 * 33_030_144
    assert estimate(QWEN3_4B, replace(GRPO, reference=True, rank=None)).reference == 2 * 4_022_468_096
    assert estimate(QWEN3_4B, replace(SFT, reference=True)).reference == 0, "SFT takes no KL"


def test_keys_and_values() -> None:
    assert kv_bytes(QWEN3_4B) == 2 * 36 * 8 * 128 * 2 == 147_456
    assert 80_000 < rollout_tokens(QWEN3_4B, CARD) < 110_000
    assert rollout_tokens(QWEN3_4B, 8 * GIB) == 0, "the weights alone fill the card"
    many = replace(GRPO, rollout_here=True, batch=1, accumulation=256, checkpointing=True)
    assert estimate(QWEN3_4B, many).kv_cache == 147_456 * 256 * 736, "generation is the peak, not the backward pass"
    assert estimate(QWEN3_4B, replace(many, accumulation=1)).kv_cache == 0


def test_cuts_come_in_the_stated_order() -> None:
    job = replace(GRPO, batch=8, completion=4096, prompt=2000, accumulation=2, width=4)
    made = cuts(QWEN3_4B, job, 8 * GIB)
    flags = [cut.change.split()[0] for cut in made]
    assert flags == [
        "--num_generations",
        "--per_device_train_batch_size",
        "--max_completion_length",
        "--gradient_checkpointing",
        "--torch_dtype",
    ]
    last = made[-1].job
    assert (last.group, last.batch, last.completion, last.checkpointing, last.width) == (4, 1, 256, True, 2)


@pytest.mark.parametrize(
    ("job", "flags"),
    [
        (SFT, []),  # fits: nothing to cut
        (replace(SFT, batch=3), ["--per_device_train_batch_size"]),
        (replace(SFT, batch=1, prompt=4000), ["--gradient_checkpointing"]),  # nothing smaller than batch 1
        (replace(GRPO, batch=3, group=4), ["--per_device_train_batch_size"]),  # the group is small already
    ],
)
def test_cuts_stop_where_it_fits(job: Job, flags: list[str]) -> None:
    made = cuts(QWEN3_4B, job, CARD)
    assert [cut.change.split()[0] for cut in made] == flags
    assert fits(estimate(QWEN3_4B, made[-1].job if made else job), CARD)


@given(
    batch=st.integers(1, 16),
    completion=st.integers(1, 1024),
    accumulation=st.integers(1, 16),
    group=st.sampled_from([2, 4, 6, 7, 8, 16]),
    processes=st.integers(1, 8),
)
def test_a_cut_never_costs_memory_and_leaves_whole_groups(
    batch: int, completion: int, accumulation: int, group: int, processes: int
) -> None:
    job = replace(GRPO, batch=batch, completion=completion, accumulation=accumulation, group=group, processes=processes)
    before = estimate(QWEN3_4B, job).total
    for cut in cuts(QWEN3_4B, job, CARD):
        after = estimate(QWEN3_4B, cut.job).total
        assert after <= before, cut
        before = after
        if cut.job.batch < batch or cut.job.group < group:
            assert cut.job.batch * cut.job.accumulation * processes % cut.job.group == 0, cut


@given(
    st.integers(1, 8), st.integers(1, 4096), st.booleans(), st.sampled_from([None, 8, 16, 64]), st.sampled_from([2, 4])
)
def test_memory_grows_with_batch_and_length(
    batch: int, length: int, checkpointing: bool, rank: int | None, width: int
) -> None:
    job = Job("sft", batch=batch, prompt=length, checkpointing=checkpointing, rank=rank, width=width)
    total = estimate(QWEN3_4B, job).total
    assert estimate(QWEN3_4B, replace(job, batch=batch + 1)).total > total
    assert estimate(QWEN3_4B, replace(job, prompt=length + 1)).total > total
    assert estimate(QWEN3_4B, replace(job, checkpointing=True)).total <= total


def test_the_grid_holds_every_combination_once() -> None:
    jobs = grid(GRPO, [1, 2], [128, 256], [0, 16])
    assert len(jobs) == len(set(jobs)) == 16
    assert {job.rank for job in jobs} == {None, 16} and {job.completion for job in jobs} == {128, 256}
    assert {job.prompt for job in grid(SFT, [1], [100, 200], [16])} == {100, 200}
    assert all(row["lora"] for row in [profile(QWEN3_4B, jobs, CARD)])


@pytest.mark.parametrize(
    ("measured", "expected", "reason"),
    [
        ([None, None], True, "as estimated: batch 2 fits, batch 3 does not"),
        ([OUT_OF_MEMORY, OUT_OF_MEMORY], False, "what ran out of memory does not fit, whatever was estimated"),
        ([OUT_OF_MEMORY, 21.5], True, "what ran fits, whatever was estimated"),
    ],
)
def test_what_was_measured_outweighs_the_estimate(measured: list[Any], expected: bool, reason: str) -> None:
    made = profile(QWEN3_4B, [SFT, replace(SFT, batch=3)], CARD)
    for row, used in zip(made["rows"], measured, strict=True):
        if used is not None:
            row["measured_gib"] = used
    assert some_row_fits(made) is expected, reason


def test_a_folder_and_the_built_in_numbers_agree(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_CONFIG), encoding="utf-8")
    assert read_shape(str(tmp_path)) == read_shape("Qwen/Qwen3-4B-Instruct-2507") == QWEN3_4B


def test_transformers_defaults_are_filled_in() -> None:
    config = {**QWEN_CONFIG, "model_type": "llama"}
    del config["head_dim"], config["num_key_value_heads"], config["tie_word_embeddings"]
    shape = shape_of(config, "here")
    assert (shape.head_dim, shape.num_key_value_heads) == (80, 32)
    assert (shape.tie_word_embeddings, shape.qk_norm) == (False, False)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"hidden_size": None}, "hidden_size"),
        ({"head_dim": None}, "head_dim"),  # Qwen3's is 128, whatever hidden size and heads say
        ({"num_key_value_heads": None}, "num_key_value_heads"),
        ({"hidden_size": "2560"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"vocab_size": True}, "vocab_size"),
        ({"vocab_size": 10**400}, "vocab_size"),
        ({"tie_word_embeddings": 7}, "tie_word_embeddings"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),  # each head of keys serves as many heads of queries
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),  # it is no bfloat16 model
        ({"model_type": "llama", "num_local_experts": 8}, "num_local_experts"),
        ({"num_experts": 128}, "num_experts"),
        ({"model_type": ["qwen3"]}, "model_type"),
        ({"model_type": {"qwen3": 1}}, "model_type"),
        ({"model_type": "llama", "head_dim": None, "hidden_size": None}, "hidden_size"),
        ({"model_type": "llama", "head_dim": None, "hidden_size": "2560"}, "hidden_size"),
        ({"model_type": "llama", "head_dim": None, "num_attention_heads": "32"}, "num_attention_heads"),
    ],
)
def test_a_strange_config_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ShapeError, match=named):
        shape_of({**QWEN_CONFIG, **change}, "config.json")


@pytest.mark.parametrize(
    "data",
    [b"{", json.dumps(QWEN_CONFIG).encode("utf-16"), b"[" * 100_000, b'{"hidden_size": ' + b"9" * 5000 + b"}"],
    ids=["half a file", "UTF-16", "deeply nested", "a number without end"],
)
def test_a_damaged_config_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(ShapeError, match="config.json cannot be read as JSON"):
        read_shape(str(tmp_path))


def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "scripts/train/gpu_profile.py", *arguments],
        cwd=ROOT, env={**clean_environment(), "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def test_the_command_prints_the_page_and_writes_json(tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    done = command("--batch", "2,3", "--json", str(out))
    assert done.returncode == 0, done.stderr
    assert "33,030,144   0.81%   all-linear" in done.stdout
    assert "nothing here was measured" in done.stdout
    made = json.loads(out.read_text(encoding="utf-8"))
    walls = {(row["job"]["batch"], row["job"]["checkpointing"]): row["fits"] for row in made["rows"]}
    assert walls == {(2, False): True, (3, False): False, (2, True): True, (3, True): True}
    assert not any("measured_gib" in row for row in made["rows"])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--card-gib", "6"], 1, "does not fit yet"),  # the verdict: no row fits
        (["--card-gib", "1e308"], 2, "at most 10,000 GiB"),
        (["--card-gib", "0"], 2, "--card-gib 0: a card has above 0"),
        (["--model", "no/such-model"], 2, "no/such-model"),
        (["--model", "a" * 5000], 2, "File name too long"),
        (["--batch", "0"], 2, "above 0"),
        (["--batch", "two"], 2, "--batch"),
        (["--json", "/proc/no/profile.json"], 2, "argument --json: /proc/no/profile.json cannot be written"),
        (["--json", "scripts"], 2, "argument --json: scripts is a folder"),
    ],
)
def test_exit_codes(arguments: list[str], code: int, said: str) -> None:
    done = command(*arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow  # imports torch, transformers and peft
def test_measuring_without_a_gpu_is_refused() -> None:
    done = command("--measure")
    assert done.returncode == 2 and "needs a GPU" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("shape", [TINY, replace(TINY, qk_norm=False)], ids=["qwen3", "llama"])
@pytest.mark.parametrize(
    "job",
    [
        Job("sft", batch=8, prompt=32),
        Job("sft", batch=8, prompt=32, width=4),
        Job("sft", batch=8, prompt=32, rank=None),
        Job("grpo", batch=8, prompt=16, completion=16),
    ],
    ids=["lora", "float32", "all weights", "grpo"],
)
def test_the_activation_formula_counts_what_autograd_keeps(shape: Shape, job: Job) -> None:
    deeper = replace(shape, num_hidden_layers=shape.num_hidden_layers + 1)
    layer = saved_bytes(deeper, job) - saved_bytes(shape, job)
    if job.rank is not None and job.width == 2:  # autocast's copies of the LoRA weights stand under `adapter`
        layer -= 2 * lora_parameters(replace(shape, num_hidden_layers=1), job.rank)
    assert layer / (job.batch * job.length) == pytest.approx(layer_bytes(shape, job), rel=0.03)


@pytest.mark.slow
def test_checkpointing_keeps_each_layers_input() -> None:
    job = Job("sft", batch=8, prompt=32, checkpointing=True)
    layer = saved_bytes(replace(TINY, num_hidden_layers=3), job) - saved_bytes(TINY, job)
    assert layer == 8 * 32 * TINY.hidden_size * 2


def saved_bytes(shape: Shape, job: Job) -> int:
    """Bytes of all tensors that the forward pass keeps for the backward pass, the model's own weights left out."""
    import torch

    from scripts.train.gpu_profile import batch_of, build_model, forward

    model = build_model(shape, job, "cpu")
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = forward(model, batch_of(shape, job, "cpu"), job, "cpu")
        assert loss.requires_grad
    return sum(storage.nbytes() for storage in kept.values())
