"""Completions for evaluation from a local model, through ms-swift's own engine and template.

The engine encodes prompts exactly as training does (the launchers' model type and template), so a figure on dev speaks
of the model that was trained and not of another prompt.
"""

import importlib.util
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.swift_names import swift_names
from swift_plugin.flag_encoder import damaged_weights, first_line

MAX_NEW_TOKENS = 256
# What the GRPO launcher samples with, so that "mean of 8" is about the policy that was trained. ms-swift leaves top_k
# open there: transformers then takes 50, vLLM is told -1, which takes all.
SAMPLE_TEMPERATURE, SAMPLE_TOP_P = 1.0, 0.95
SAMPLE_TOP_K = {"transformers": 50, "vllm": -1}
SEQUENCES_PER_BATCH = 64
BACKENDS = ("transformers", "vllm")
VLLM_SMALLEST_RANK = 8

logger = logging.getLogger("planner")


@dataclass(frozen=True)
class LocalModel:
    """A model folder, with or without a LoRA adapter folder, and what runs it: one of BACKENDS."""

    model: str
    adapter: str | None = None
    backend: str = "transformers"

    def load(self) -> Any:
        """The ms-swift engine; raises FileNotFoundError for a folder that is not there, ValueError without vLLM.

        A model whose template nothing tells raises ValueError, too (scripts/swift_names.py), as do damaged weights.
        """
        adapters = [self.adapter] if self.adapter else None
        model_type, template = swift_names(self.model, self.adapter)
        given: dict[str, Any] = {"template_type": template, "model_type": model_type}
        if self.backend == "vllm":
            if importlib.util.find_spec("vllm") is None:
                raise ValueError("vllm is not installed here: pip install the extra 'gpu', or leave out --backend vllm")
            from swift.infer_engine import VllmEngine

            rank = vllm_lora_rank(self.adapter) if self.adapter else VLLM_SMALLEST_RANK
            return VllmEngine(self.model, adapters=adapters, max_lora_rank=rank, **given)
        from swift.infer_engine import TransformersEngine

        try:
            return TransformersEngine(self.model, adapters=adapters, max_batch_size=0, **given)
        except damaged_weights() as error:
            shown = " with ".join([self.model, *(adapters or [])])
            raise ValueError(f"cannot load {shown}: {first_line(error)}. Copy it or download it again") from error


def vllm_lora_rank(adapter: str) -> int:
    """The smallest `max_lora_rank` vLLM allows that holds the adapter: powers of two, from 8 up."""
    config = json.loads((Path(adapter) / "adapter_config.json").read_text(encoding="utf-8"))
    return max(VLLM_SMALLEST_RANK, 1 << (int(config["r"]) - 1).bit_length())


def generate(
    engine: Any,
    prompts: Sequence[list[dict[str, str]]],
    *,
    samples: int,
    seed: int,
    label: str,
    max_new_tokens: int = MAX_NEW_TOKENS,
    top_k: int = SAMPLE_TOP_K["transformers"],
) -> list[list[str]]:
    """`samples` completions a prompt: samples = 0 means one greedy completion.

    Args:
        engine: what `LocalModel.load` returned.
        prompts: chat messages without an answer.
        seed: seeds torch before the first batch, and vLLM's requests; greedy decoding does not depend on it.
        label: text of the progress bar.
        max_new_tokens: where a completion that does not end is cut.
        top_k: SAMPLE_TOP_K of the engine's backend.

    Returns: a list per prompt, in order.
    """
    import torch
    from swift.infer_engine import InferRequest, RequestConfig
    from tqdm import tqdm

    torch.manual_seed(seed)
    greedy = samples == 0
    config = RequestConfig(
        max_tokens=max_new_tokens,
        temperature=0.0 if greedy else SAMPLE_TEMPERATURE,
        top_p=1.0 if greedy else SAMPLE_TOP_P,
        top_k=top_k,
        n=max(1, samples),
        seed=None if greedy else seed,
    )
    size = max(1, SEQUENCES_PER_BATCH // max(1, samples))
    completions: list[list[str]] = []
    with tqdm(total=len(prompts), desc=label, unit="prompt") as bar:
        for start in range(0, len(prompts), size):
            batch = [InferRequest(messages=[dict(m) for m in messages]) for messages in prompts[start : start + size]]
            for response in engine.infer(batch, config, use_tqdm=False):
                if isinstance(response, Exception):
                    raise response
                completions.append([choice.message.content for choice in response.choices])
            bar.update(len(batch))
    return completions
