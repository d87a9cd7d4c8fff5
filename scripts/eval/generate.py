"""Completions for evaluation from a local model, through ms-swift's own engine and template.

The engine encodes prompts exactly as training does (template `qwen3_nothinking`, DESIGN section 9), so a figure on dev
speaks of the model that was trained and not of another prompt.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEMPLATE = "qwen3_nothinking"
MAX_NEW_TOKENS = 256
# What the GRPO launcher samples with, so that "mean of 8" is about the policy that was trained. ms-swift leaves top_k
# open there, and transformers then takes 50.
SAMPLE_TEMPERATURE, SAMPLE_TOP_P, SAMPLE_TOP_K = 1.0, 0.95, 50
SEQUENCES_PER_BATCH = 64

logger = logging.getLogger("planner")


@dataclass(frozen=True)
class LocalModel:
    """A model folder, with or without a LoRA adapter folder."""

    model: str
    adapter: str | None = None

    def load(self) -> Any:
        """The ms-swift engine; raises FileNotFoundError for a folder that is not there."""
        from swift.infer_engine import TransformersEngine

        for folder in (self.model, self.adapter):
            if folder and ("/" in folder or folder.startswith(".")) and not Path(folder).exists():
                raise FileNotFoundError(f"{folder} does not exist; train it first, or name a model of the hub")
        return TransformersEngine(
            self.model,
            adapters=[self.adapter] if self.adapter else None,
            max_batch_size=0,
            template_type=TEMPLATE,
            model_type=_model_type(self.model),
        )


def _model_type(model: str) -> str | None:
    """ms-swift cannot tell Qwen3 variants apart by the config of a local folder: the kit's template decides."""
    return "qwen3" if Path(model).is_dir() else None


def generate(
    engine: Any, prompts: Sequence[list[dict[str, str]]], *, samples: int, seed: int, label: str
) -> list[list[str]]:
    """`samples` completions a prompt: samples = 0 means one greedy completion.

    Args:
        engine: what `LocalModel.load` returned.
        prompts: chat messages without an answer.
        seed: seeds torch before the first batch; greedy decoding does not depend on it.
        label: text of the progress bar.

    Returns: a list per prompt, in order.
    """
    import torch
    from swift.infer_engine import InferRequest, RequestConfig
    from tqdm import tqdm

    torch.manual_seed(seed)
    greedy = samples == 0
    config = RequestConfig(
        max_tokens=MAX_NEW_TOKENS,
        temperature=0.0 if greedy else SAMPLE_TEMPERATURE,
        top_p=1.0 if greedy else SAMPLE_TOP_P,
        top_k=SAMPLE_TOP_K,
        n=max(1, samples),
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
