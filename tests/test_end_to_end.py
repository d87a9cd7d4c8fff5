"""The real commands on a small world: launchers, ms-swift, plugin on two ranks, evaluation, table.

One path, made once: SFT of a LoRA adapter, GRPO from it on two processes whose batches split every group.
"""

import json
import math
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from commands import World, run

from swift_plugin.step_stats import ScoredRow, step_stats

GROUP, STEPS, BETA = 8, 3, "0.04"
OBSERVERS = ("Retrieval", "Field", "Format", "Econ", "Category", "DomainsF1", "Budget")


@pytest.fixture(scope="module")
def grpo(world: World, base: Path, sft: Path) -> Path:
    """GRPO from that adapter on two processes; 4 completions a process, so that both ranks hold half of each group."""
    out = world.folder / "grpo"
    prompts = world.folder / "prompts.jsonl"
    rows = [{**row, "messages": row["messages"][:-1]} for row in world.rows("learnt.jsonl")]
    prompts.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    run(
        ["bash", "run_grpo_planner.sh", "--beta", BETA, "--max_steps", str(STEPS), "--num_generations", str(GROUP)]
        + ["--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "1"]
        + ["--per_device_eval_batch_size", "4", "--eval_steps", "3", "--save_steps", "3", "--max_length", "256"]
        + ["--max_completion_length", "48", f"--output_dir={out}"],
        {
            **world.environment,
            "PLANNER_MODEL": str(base),
            "PLANNER_SFT_ADAPTER": str(sft),
            "PLANNER_TRAIN_DATA": str(prompts),
            "PLANNER_WATCH_DATA": str(world.folder / "watch.jsonl"),
            "NPROC_PER_NODE": "2",
        },
    )
    return out


def log_rows(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "logging.jsonl").read_text(encoding="utf-8").splitlines()]


def trace_rows(run_dir: Path, rank: int) -> list[dict[str, Any]]:
    text = (run_dir / f"reward_trace.rank{rank}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_rollouts_differ_so_that_there_is_something_to_learn(grpo: Path) -> None:
    logged = [json.loads(line) for line in (grpo / "planner_steps.jsonl").read_text().splitlines()]
    assert any(line["sigma"] > 0 and line["parse_failures"] < 1 for line in logged)


def test_grpo_trains_with_finite_loss_and_gradient(grpo: Path) -> None:
    steps = [row for row in log_rows(grpo) if "loss" in row and "grad_norm" in row]
    assert len(steps) == STEPS
    assert all(math.isfinite(float(row["loss"])) and math.isfinite(float(row["grad_norm"])) for row in steps)


def test_the_sft_adapter_is_the_kl_reference(grpo: Path, base: Path, sft: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    kl = [float(row["kl"]) for row in log_rows(grpo) if "kl" in row and "loss" in row]
    assert kl[0] == pytest.approx(0.0, abs=1e-6)
    # The base model as the reference would have shown: the adapter's own distribution is measurably another one.
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), sft)
    tokens = AutoTokenizer.from_pretrained(base)("想买跑鞋", return_tensors="pt").input_ids
    with torch.no_grad():
        tuned = model(tokens).logits.log_softmax(-1)
        with model.disable_adapter():
            base = model(tokens).logits.log_softmax(-1)
    assert (tuned.exp() * (tuned - base)).sum(-1).mean() > 1e-4


def test_ranks_split_every_group_and_the_log_line_joins_them(grpo: Path) -> None:
    by_rank = [[line for line in trace_rows(grpo, rank) if line["split"] == "train"] for rank in (0, 1)]
    sizes = [Counter((line["step"], line["id"]) for line in lines) for lines in by_rank]
    assert all(0 < size < GROUP for counter in sizes for size in counter.values())
    logged = [line for line in map(json.loads, (grpo / "planner_steps.jsonl").read_text().splitlines())]
    train = [line for line in logged if line["split"] == "train"]
    assert [line["step"] for line in train] == list(range(STEPS))
    for line in train:
        rows = [ScoredRow.from_trace(t) for lines in by_rank for t in lines if t["step"] == line["step"]]
        expected = asdict(step_stats(rows))
        assert {key: line[key] for key in expected} == expected
        assert expected["completions"] == GROUP


def test_evaluation_has_a_line_of_its_own(grpo: Path) -> None:
    logged = [json.loads(line) for line in (grpo / "planner_steps.jsonl").read_text().splitlines()]
    (watch,) = [line for line in logged if line["split"] == "watch"]
    assert (watch["completions"], watch["groups"]) == (2 * GROUP, 2)


def test_best_points_to_the_checkpoint_that_watch_chose(grpo: Path) -> None:
    assert (grpo / "best").readlink() == Path("checkpoint-3")  # of the only evaluation


def test_swift_logged_what_the_traces_say(grpo: Path) -> None:
    rewards = [float(row["reward"]) for row in log_rows(grpo) if "reward" in row and "loss" in row]
    traces = trace_rows(grpo, 0) + trace_rows(grpo, 1)
    for step, reward in enumerate(rewards):
        totals = [t["breakdown"]["total"] for t in traces if t["split"] == "train" and t["step"] == step]
        assert reward == pytest.approx(sum(totals) / len(totals), abs=1e-5)


def test_tensorboard_holds_every_observer(grpo: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tags: set[str] = set()
    for events in grpo.rglob("events.out.tfevents.*"):
        accumulator = EventAccumulator(str(events))
        accumulator.Reload()
        tags |= set(accumulator.Tags()["scalars"])
    for name in OBSERVERS:
        assert any(tag.endswith(f"rewards/Planner{name}/mean") for tag in tags), (name, sorted(tags))


def test_the_manifest_says_how_the_run_was_made(grpo: Path, sft: Path) -> None:
    text = (grpo / "planner_manifest.json").read_text(encoding="utf-8")
    manifest = json.loads(text)
    assert "--beta" in text and BETA in text
    assert str(sft) in text
    assert manifest


@pytest.fixture(scope="module")
def evaluations(world: World, base: Path, sft: Path, grpo: Path) -> dict[str, str]:
    prefixes = {}
    for label, adapter in (("sft", sft), ("grpo", grpo / "best")):
        prefixes[label] = str(world.folder / "eval" / label)
        run(
            [sys.executable, "scripts/eval/eval_planner.py", "--model", str(base)]
            + ["--adapter", str(adapter), "--data", str(world.folder / "dev.jsonl"), "--samples", "2"]
            + ["--out", prefixes[label]],
            # A mix experiment of the training run must not reach the evaluation.
            {**world.environment, "PLANNER_REWARD_WEIGHTS": "field=0.40", "PLANNER_REWARD_GATES": "grounded"},
        )
    return prefixes


def test_evaluation_uses_the_default_weights(evaluations: dict[str, str]) -> None:
    from reward.planner_reward import DEFAULT_WEIGHTS

    summary = json.loads(Path(f"{evaluations['grpo']}.summary.json").read_text(encoding="utf-8"))
    assert summary["weights"] == dict(DEFAULT_WEIGHTS)
    assert summary["gates"] == []
    assert (summary["greedy"]["completions"], summary["samples"]["completions"]) == (6, 12)


def test_an_evaluation_is_never_overwritten(world: World, evaluations: dict[str, str]) -> None:
    printed = run(
        [sys.executable, "scripts/eval/eval_planner.py", "--model", str(world.folder / "nano")]
        + ["--data", str(world.folder / "dev.jsonl"), "--out", evaluations["sft"]],
        world.environment,
        code=2,
    )
    assert "never overwritten" in printed


def test_the_table_compares_them_and_says_that_nothing_rose(evaluations: dict[str, str], tmp_path: Path) -> None:
    printed = run(
        [sys.executable, "scripts/eval/result_table.py", *(f"{k}={v}" for k, v in evaluations.items())]
        + ["--before", "sft", "--after", "grpo", "--json", str(tmp_path / "result.json")],
        {},
        code=1,
    )
    assert "| sft | greedy | " in printed and "| grpo | samples | " in printed
    # three steps at 2e-5 change nothing that six records could show
    assert "no rise beyond chance" in printed
    assert json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["verdicts"]["greedy"]["rose"] is False


def test_sft_and_grpo_encode_one_prompt_to_the_same_tokens(world: World) -> None:
    """The template question of DESIGN section 9: with `qwen3` the SFT row would open a think block GRPO never sees."""
    from swift.model import get_processor
    from swift.template import get_template

    processor = get_processor(str(world.folder / "nano"), model_type="qwen3")
    template = get_template(processor, template_type="qwen3_nothinking")
    row = world.rows("sft.jsonl")[0]
    template.set_mode("train")
    trained = template.encode({"messages": row["messages"]})
    template.set_mode("vllm")
    prompt = template.encode({"messages": row["messages"][:-1]})["input_ids"]
    context = [token for token, label in zip(trained["input_ids"], trained["labels"], strict=True) if label == -100]
    assert context[: len(prompt)] == prompt
    answer = [label for label in trained["labels"] if label != -100]
    decoded = processor.decode(answer)
    assert decoded.startswith(row["messages"][-1]["content"]) and "<think>" not in decoded
    # transformers and vLLM servers use the tokenizer's own chat template: it must say the same
    text = processor.apply_chat_template(row["messages"][:-1], tokenize=False, add_generation_prompt=True)
    assert processor(text)["input_ids"] == prompt
