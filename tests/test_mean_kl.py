"""The mean token KL of a real small model: to itself, to a changed one, to an adapter, against a sum taken by hand."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_world import TEXT, golden, plan

from scripts.eval.generate import MAX_NEW_TOKENS
from scripts.eval.mean_kl import Tokens, load_pair, measure_kl, token_kls
from scripts.train.build_nano_model import build
from swift_plugin.prompts import build_messages

COMPLETIONS = (plan("waterproof running shoes"), "", plan("shoes", category=""))
ROWS = [
    {"id": f"dev-{n}", "messages": build_messages(text, (), "short"), "golden_json": golden()}
    for n, text in enumerate((TEXT, "要防水的", "想买跑鞋，防水的，宽一点"))
]
RECORDS = [
    {"id": row["id"], "samples": [{"completion": text}]} for row, text in zip(ROWS, COMPLETIONS, strict=True)
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The nano model, one of another seed, and a LoRA adapter on the first whose weights are not zero."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("kl")
    answers = [{"role": "assistant", "content": text} for text in COMPLETIONS]
    lines = [json.dumps({"messages": [*row["messages"], answer]}) for row, answer in zip(ROWS, answers, strict=True)]
    (folder / "sft.jsonl").write_text("\n".join(lines), encoding="utf-8")
    for name, seed in (("nano", 1), ("other", 2)):
        build(folder / "sft.jsonl", folder / name, seed)
    torch.manual_seed(3)
    lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(folder / "nano"), lora).save_pretrained(folder / "adapter")
    return {name: folder / name for name in ("nano", "other", "adapter")}


def kl(models: dict[str, Path], adapter: str | None, reference: str) -> dict[str, Any]:
    policy = str(models[adapter]) if adapter else None
    found = measure_kl(str(models["nano"]), policy, str(models[reference]), ROWS, {"greedy": RECORDS})
    return found["modes"]["greedy"]


@pytest.mark.parametrize(
    ("adapter", "reference", "same"),
    [
        (None, "nano", True),
        ("adapter", "adapter", True),
        (None, "other", False),
        ("adapter", "nano", False),
        (None, "adapter", False),
    ],
)
def test_kl_is_zero_to_itself_and_positive_to_another(
    models: dict[str, Path], adapter: str | None, reference: str, same: bool
) -> None:
    found = kl(models, adapter, reference)
    if same:
        assert abs(found["mean_token_kl"]) < 1e-6
    else:
        assert found["mean_token_kl"] > 1e-4
    assert found["completions"] == 3


def test_a_copied_model_folder_is_the_same_model(models: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(models["nano"], tmp_path / "copy")
    assert abs(kl({**models, "copy": tmp_path / "copy"}, None, "copy")["mean_token_kl"]) < 1e-6


def test_it_is_the_exact_sum_over_the_vocabulary(models: dict[str, Path]) -> None:
    """Batched and padded as against one sequence, one position at a time, summed in float64."""
    import torch
    from transformers import AutoModelForCausalLM

    policy, other, encode = load_pair(str(models["nano"]), None, str(models["other"]))
    batch = [encode(row["messages"], text) for row, text in zip(ROWS, COMPLETIONS, strict=True)]
    assert [one.choices for one in batch] == [len(one.completion) + 1 for one in batch]
    found = token_kls(policy, other, batch)
    expected: list[float] = []
    pair = [AutoModelForCausalLM.from_pretrained(models[name]).eval() for name in ("nano", "other")]
    for one in batch:
        ids = torch.tensor([one.prompt + one.completion])
        with torch.inference_mode():
            p, q = (torch.log_softmax(model(ids).logits[0].double(), dim=-1) for model in pair)
        for position in range(len(one.prompt) - 1, len(one.prompt) + len(one.completion)):
            expected.append(math.fsum((p[position].exp() * (p[position] - q[position])).tolist()))
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_completion_that_met_the_token_limit_has_no_stop_to_choose() -> None:
    assert Tokens((1,), (2,) * MAX_NEW_TOKENS).choices == MAX_NEW_TOKENS
    assert Tokens((1,), (2,) * (MAX_NEW_TOKENS - 1)).choices == MAX_NEW_TOKENS
