"""Every acceptance line and every diagnosis: a run that shows it, and a near miss that does not."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpo_runs import ARGUMENTS, Metric, rows, trace_line, write_jsonl, write_run

from scripts.eval.grpo_diagnoses import diagnose
from scripts.eval.grpo_held_out import best_checkpoint
from scripts.eval.grpo_lines import BASE, OTHER, START, Line, acceptance, kl_reference
from scripts.eval.grpo_log import GrpoRun, read_run

HELD_OUT = "reward rising, held-out evaluation not"
WITH_KL = {**ARGUMENTS, "beta": 0.01}
AGAINST_SFT = {**WITH_KL, "ref_adapters": ["sft"]}


def read(folder: Path) -> GrpoRun:
    run = read_run(folder / "logging.jsonl")
    assert run is not None
    return run


def names(run: GrpoRun) -> set[str]:
    return {item.name for item in diagnose(run)[0]}


def line_of(run: GrpoRun, name: str, band: tuple[float, float] | None = None) -> Line:
    return next(line for line in acceptance(run, band) if line.name.startswith(name))


Plugin = Callable[[int], Mapping[str, Any]]
CASES: list[tuple[str, dict[str, Metric], Plugin | None, dict[str, Any], str | None]] = [
    ("a healthy run", {}, lambda s: {}, {}, None),
    ("most groups tied", {"frac_reward_zero_std": 0.7}, None, {}, "groups tied"),
    ("a third tied", {"frac_reward_zero_std": 0.3}, None, {}, None),
    ("sigma, no gradient", {"grad_norm": 0.0}, None, {}, "not updating"),
    ("a small gradient is one", {"grad_norm": 1e-4}, None, {}, None),
    ("no gradient, no sigma: tied", {"grad_norm": 0.0, "reward_std": 0.0}, None, {}, None),
    ("sigma, rate 0", {"learning_rate": 0.0}, None, {}, "not updating"),
    ("failures jump", {}, lambda s: {"parse_failures": 0.3 if s >= 45 else 0.01 * (s % 2)}, {}, "collapse"),
    ("failures of one step", {}, lambda s: {"parse_failures": 0.9 if s == 45 else 0.01 * (s % 2)}, {}, None),
    ("failures jump by 3 points", {}, lambda s: {"parse_failures": 0.04 if s >= 45 else 0.01}, {}, None),
    ("failures high from the start", {}, lambda s: {"parse_failures": 0.3 + 0.01 * (s % 2)}, {}, None),
    ("reward drops, no plugin lines", {"reward": lambda t: 0.8 if t < 0.6 else -0.5}, None, {}, "collapse"),
    ("length doubles", {"completions__mean_length": lambda t: 40 * (1 + t)}, None, {}, "length explosion"),
    ("length grows by a third", {"completions__mean_length": lambda t: 40 * (1 + t / 3)}, None, {}, None),
    ("a tenth is cut", {"completions__clipped_ratio": 0.1}, None, {}, "truncation"),
    ("two percent are cut", {"completions__clipped_ratio": 0.02}, None, {}, None),
    ("entropy to a quarter", {"entropy__mean": lambda t: 0.5 * 0.2**t}, None, {}, "entropy falling"),
    ("entropy to two thirds", {"entropy__mean": lambda t: 0.5 * 0.67**t}, None, {}, None),
    ("domains paid for the rest", {"rewards__PlannerDomainsF1__mean": lambda t: 0.8 - 0.1 * t}, None, {},
     "one dimension bought with another"),
    ("domains fell by a hundredth", {"rewards__PlannerDomainsF1__mean": lambda t: 0.8 - 0.01 * t}, None, {}, None),
    ("batch not in whole groups", {}, None, {"per_device_train_batch_size": 12}, "batch arithmetic"),
    ("two prompts under one id", {}, lambda s: {"groups": 4}, {}, "batch arithmetic"),
    ("one odd step", {}, lambda s: {"groups": 7 if s == 5 else 8}, {}, None),
    ("engine KL", {"rollout_correction__kl": 0.2, "rollout_correction__ess": 0.9}, None, {}, "mismatch"),
    ("engine chi2", {"rollout_correction__chi2_seq": 2.0}, None, {}, "mismatch"),
    ("engine ess", {"rollout_correction__ess": 0.3}, None, {}, "mismatch"),
    ("engine clip", {"rollout_correction__clipped_frac": 0.1}, None, {}, "mismatch"),
    ("engine well", {"rollout_correction__kl": 0.002, "rollout_correction__chi2_token": 0.01,
                     "rollout_correction__ess": 0.98, "rollout_correction__clipped_frac": 0.001}, None, {}, None),
    ("KL runs away", {"kl": lambda t: 0.01 + 2 * t**4}, None, AGAINST_SFT, "KL explosion"),
    ("the same KL against the base", {"kl": lambda t: 0.6 + 2 * t}, None, WITH_KL, None),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "metrics", "plugin", "arguments", "wanted"), CASES, ids=[c[0] for c in CASES])
def test_diagnoses(
    tmp_path: Path,
    reason: str,
    metrics: dict[str, Metric],
    plugin: Plugin | None,
    arguments: dict[str, Any],
    wanted: str | None,
) -> None:
    found, _ = diagnose(read(write_run(tmp_path, rows(60, **metrics), {**ARGUMENTS, **arguments}, plugin)))
    if wanted is None:
        assert not found, reason
    else:
        assert [item.name.startswith(wanted) for item in found] == [True], reason
        assert any(letter.isdigit() for letter in found[0].evidence) and found[0].remedy


def test_remedies_that_depend_on_the_cause(tmp_path: Path) -> None:
    unparsed = read(write_run(tmp_path / "a", rows(60, frac_reward_zero_std=1.0, reward=-1.0, reward_std=0.0)))
    assert "qwen3_nothinking" in diagnose(unparsed)[0][0].remedy
    for name, given, asked in (("tied", {}, True), ("sampled again", {"dynamic_sample": True}, False)):
        tied = read(write_run(tmp_path / name, rows(60, frac_reward_zero_std=0.7), {**ARGUMENTS, **given}))
        assert ("--dynamic_sample" in diagnose(tied)[0][0].remedy) is asked, name
    metrics: dict[str, Metric] = {"rollout_correction__ess": 0.2}
    off = read(write_run(tmp_path / "b", rows(60, **metrics)))
    assert "--rollout_importance_sampling_mode token_truncate" in diagnose(off)[0][0].remedy
    on = {**ARGUMENTS, "rollout_importance_sampling_mode": "token_truncate"}
    assert "on already" in diagnose(read(write_run(tmp_path / "c", rows(60, **metrics), on)))[0][0].remedy


def test_what_cannot_be_judged_is_said(tmp_path: Path) -> None:
    _, missing = diagnose(read(write_run(tmp_path, rows(60), {"use_vllm": True})))
    said = {item.name for item in missing}
    assert {"collapse", "learning rate too small", "batch arithmetic"} <= said
    assert "mismatch between training and rollout engine" in said


@pytest.mark.parametrize(
    ("held_out", "wanted"), [(lambda t: 0.6, True), (lambda t: 0.6 - 0.1 * t, True), (lambda t: 0.6 + 0.2 * t, False)]
)
def test_held_out_by_the_log_alone(tmp_path: Path, held_out: Callable[[float], float], wanted: bool) -> None:
    wiggle = (0.001, -0.001, 0.0005, -0.0004)
    evaluations = [
        {"eval_reward": held_out(i / 3) + wiggle[i], "global_step/max_steps": f"{15 * (i + 1)}/60"} for i in range(4)
    ]
    run = read(write_run(tmp_path, rows(60) + evaluations))
    assert (HELD_OUT in names(run)) is wanted


def test_held_out_by_record(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    for name, rise, wanted in (("flat", 0.0, True), ("rising", 0.1, False)):
        write_run(tmp_path / name, rows(60))
        lines = [
            trace_line(step, "watch", f"w{i}", 0.5 + i / 100 + rise * (step == 60) + random.normal(0, 0.01))
            for step in (20, 60)
            for i in range(16)
        ]
        write_jsonl(tmp_path / name / "reward_trace.rank0.jsonl", lines)
        assert (HELD_OUT in names(read(tmp_path / name))) is wanted


def test_a_reward_that_does_not_rise_is_not_compared_with_held_out(tmp_path: Path) -> None:
    evaluations = [{"eval_reward": 0.6, "global_step/max_steps": f"{20 * i}/60"} for i in (1, 2, 3)]
    assert names(read(write_run(tmp_path, rows(60, reward=0.6) + evaluations))) == set()


def test_weights(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    start = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    for name, share, wanted in (("still", 0.0023, True), ("moved", 0.03, False)):
        run = write_run(tmp_path / name, rows(60), {**ARGUMENTS, "adapters": [str(tmp_path / name / "sft")]})
        for folder, factor in (("sft", 1.0), ("checkpoint-30", 1 + share / 2), ("checkpoint-60", 1 + share)):
            (run / folder).mkdir()
            save_file({"lora_A": start * factor}, run / folder / "adapter_model.safetensors")
        found = {item.name: item for item in diagnose(read(run))[0]}
        assert ("learning rate too small" in found) is wanted
        if wanted:
            assert "0.23%" in found["learning rate too small"].evidence


def test_weights_in_bfloat16_and_of_a_full_model(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    from scripts.eval.weight_change import NotComparable, weight_change

    start = torch.ones(8, 8, dtype=torch.bfloat16)
    for folder, tensor in (("base", start), ("checkpoint-9", start * 1.25), ("checkpoint-10", start * 1.5)):
        (tmp_path / folder).mkdir()
        save_file({"w": tensor, "ids": torch.arange(3)}, tmp_path / folder / "model.safetensors")
    change = weight_change(tmp_path, {"tuner_type": "full", "model": str(tmp_path / "base")})
    assert (change.share, change.end.name, change.kind) == (pytest.approx(0.5), "checkpoint-10", "model")
    hub = weight_change(tmp_path, {"tuner_type": "full", "model": "Qwen/Qwen3-4B"})  # not on this disk
    assert (hub.start.name, hub.share) == ("checkpoint-9", pytest.approx(0.2))
    with pytest.raises(NotComparable, match="no checkpoint"):
        weight_change(tmp_path / "base", {})


@pytest.mark.parametrize(
    ("arguments", "reference", "reason"),
    [
        ({"tuner_type": "lora", "adapters": ["sft"]}, BASE, "the adapter switched off"),
        ({"tuner_type": "lora", "adapters": ["sft"], "ref_adapters": ["sft"]}, START, "the SFT adapter"),
        ({"tuner_type": "lora", "adapters": ["sft"], "ref_adapters": ["r3"]}, OTHER, "another adapter"),
        ({"tuner_type": "lora", "adapters": []}, START, "fresh LoRA on the SFT model"),
        ({"tuner_type": "full", "model": "sft"}, START, "a copy of the model"),
        ({"tuner_type": "full", "model": "sft", "ref_model": "base"}, OTHER, "a model named"),
        ({"tuner_type": "full", "model": "sft", "sync_ref_model": True}, OTHER, "it moves"),
        ({}, None, "nobody says"),
    ],
)
def test_kl_reference(arguments: dict[str, Any], reference: str | None, reason: str) -> None:
    assert kl_reference(arguments) == reference, reason


@pytest.mark.parametrize(
    ("kl", "arguments", "band", "status", "reason"),
    [
        (0.05, ARGUMENTS, None, "not applicable", "beta 0 wins over a stray metric"),
        (0.05, AGAINST_SFT, None, "ok", "in the band of SFT"),
        (0.05, WITH_KL, None, "warn", "the same is below the band of the base"),
        (1.5, WITH_KL, None, "ok", "in the band of the base"),
        (1.5, AGAINST_SFT, None, "fail", "the same is an alarm against SFT"),
        (0.2, AGAINST_SFT, None, "fail", "above the band, below the alarm"),
        (0.005, AGAINST_SFT, None, "warn", "below the band"),
        (0.0005, AGAINST_SFT, None, "warn", "the policy stays at home"),
        (0.2, AGAINST_SFT, (0.1, 0.4), "ok", "another band was asked for"),
        (0.2, None, None, "unknown", "nobody says what the reference is"),
        (9.0, None, None, "fail", "above every band"),
        (0.2, None, (0.1, 0.4), "ok", "a band makes the reference needless"),
    ],
)
def test_kl_line(
    tmp_path: Path,
    kl: float,
    arguments: dict[str, Any] | None,
    band: tuple[float, float] | None,
    status: str,
    reason: str,
) -> None:
    line = line_of(read(write_run(tmp_path, rows(30, kl=kl), arguments)), "KL", band)
    assert line.status == status, reason
    if line.status == "fail":
        assert "third" in line.remedy and "beta" in line.remedy
    if kl < 0.001:
        assert "0.001" in line.evidence


@pytest.mark.parametrize(
    ("reward", "steps", "status"),
    [
        (lambda t: 0.6 + 0.2 * t, 60, "ok"),
        (0.6, 60, "fail"),
        (lambda t: 0.8 - 0.2 * t, 60, "fail"),
        (lambda t: 0.9 if t == 1 else 0.6, 60, "fail"),  # one step is no rise
        (lambda t: 0.6 + 0.2 * t, 9, "unknown"),
    ],
)
def test_reward_line(tmp_path: Path, reward: Metric, steps: int, status: str) -> None:
    assert line_of(read(write_run(tmp_path, rows(steps, reward=reward))), "reward").status == status


def test_format_line(tmp_path: Path) -> None:
    """By the traces exactly; by mean scores only as far as they bound it."""
    for name, exact_of_20, status in (("good", 20, "ok"), ("bad", 19, "fail")):
        write_run(tmp_path / name, rows(20))
        lines = [trace_line(step, "train", f"p{i}", 0.5, i < exact_of_20) for step in range(20) for i in range(20)]
        write_jsonl(tmp_path / name / "reward_trace.rank0.jsonl", lines)
        assert line_of(read(tmp_path / name), "format").status == status
    for name, score, plugin, status in (
        ("a", 0.9995, lambda s: {"parse_failures": 0.0}, "ok"),
        ("b", 0.9995, lambda s: {"parse_failures": 0.1}, "fail"),
        ("c", 0.99, lambda s: {"parse_failures": 0.0}, "unknown"),
        ("d", 0.9995, None, "unknown"),
        ("e", 0.90, None, "fail"),
    ):
        lines = [{**row, "rewards/PlannerFormat/mean": score} for row in rows(20)]
        assert line_of(read(write_run(tmp_path / name, lines, ARGUMENTS, plugin)), "format").status == status, name


def test_best_checkpoint(tmp_path: Path) -> None:
    assert best_checkpoint(read(write_run(tmp_path / "none", rows(12)))) is None
    evaluations = [
        {"eval_reward": value, "global_step/max_steps": f"{step}/12"} for step, value in ((4, 0.5), (8, 0.7), (12, 0.6))
    ]
    run = write_run(tmp_path / "some", rows(12) + evaluations)
    (run / "checkpoint-8").mkdir()
    lines = [
        trace_line(step, "watch", f"w{i}", value + (i % 4) / 100 * (step == 12))
        for step, value in ((4, 0.5), (8, 0.7), (12, 0.695))
        for i in range(8)
    ]
    write_jsonl(run / "reward_trace.rank0.jsonl", lines)
    found = best_checkpoint(read(run))
    assert found is not None
    assert (found["step"], found["checkpoint"], found["tied_with"]) == (8, "checkpoint-8", [12])
    write_jsonl(run / "reward_trace.rank0.jsonl", [line for line in lines if line["id"] < "w4"])
    found = best_checkpoint(read(run))
    assert found is not None and found["tied_with"] == [4, 12], "four records tell nothing apart"
