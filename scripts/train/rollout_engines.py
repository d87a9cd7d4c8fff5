"""The two engines that write rollouts, with the reuse of prompt prefixes switched on or off.

Both take prompts as token ids and give token ids, so what is compared is the engine and nothing else. Reuse in
transformers: the common prefix of all prompts is computed once a run, the rest of each prompt once a batch, and the
keys and values are repeated for the completions of its group. vLLM does the same by itself (prefix caching).
"""

import copy
import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from scripts.eval.generate import (
    BACKENDS,
    SAMPLE_TEMPERATURE,
    SAMPLE_TOP_K,
    SAMPLE_TOP_P,
    LocalModel,
    vllm_lora_rank,
)
from scripts.train.prefix_sharing import common_prefix

TRANSFORMERS, VLLM = BACKENDS
Prompt = Sequence[int]


@dataclass(frozen=True)
class Generation:
    """One batch: the tokens written for each prompt, in order, and what it took.

    `computed` counts the prompt tokens that were computed and not taken from the cache; None where the engine does not
    say.
    """

    tokens: tuple[tuple[int, ...], ...]
    seconds: float
    computed: int | None


class Engine(Protocol):
    """Writes one completion for each prompt of a batch."""

    def start(self, prompts: Sequence[Prompt]) -> None:
        """Begin a run over these prompts with an empty cache."""

    def generate(self, batch: Sequence[Prompt], seed: int) -> Generation:
        """One completion for each prompt of the batch, all at once."""


class TransformersEngine:
    """transformers' own `generate`, on the GPU where there is one.

    Args:
        model: a causal language model, with its adapter if any; `generate` must accept `past_key_values`.
        pad: id of the padding token.
        reuse: whether keys and values of shared prefixes are reused.
    """

    def __init__(self, model: Any, pad: int, *, reuse: bool, max_new_tokens: int) -> None:
        self.model = model.eval()
        self.pad = pad
        self.reuse = reuse
        self.max_new_tokens = max_new_tokens
        self._shared: Prompt = ()
        self._shared_cache: Any = None

    def start(self, prompts: Sequence[Prompt]) -> None:
        # The last token of a prompt is never taken from the cache: generation begins with it.
        length = min(common_prefix(prompts), min(map(len, prompts)) - 1) if self.reuse else 0
        self._shared, self._shared_cache = list(prompts[0][:length]), None

    def generate(self, batch: Sequence[Prompt], seed: int) -> Generation:
        import torch

        torch.manual_seed(seed)
        started = time.perf_counter()
        with torch.inference_mode():
            cache, computed = self._prefill(batch) if self.reuse else (None, sum(map(len, batch)) - len(batch))
            computed += len(batch)  # the last token of each, by `generate`
            ids, mask = self._padded(batch)
            written = self.model.generate(
                input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, do_sample=True,
                temperature=SAMPLE_TEMPERATURE, top_p=SAMPLE_TOP_P, top_k=SAMPLE_TOP_K["transformers"],
                max_new_tokens=self.max_new_tokens, pad_token_id=self.pad,
            )  # fmt: skip
            rows = written[:, ids.shape[1] :].tolist()
        return Generation(tuple(map(self._until_the_end, rows)), time.perf_counter() - started, computed)

    def _until_the_end(self, row: list[int]) -> tuple[int, ...]:
        """The tokens up to the first that ends a completion, that one included."""
        ends = self.model.generation_config.eos_token_id
        ends = {ends} if isinstance(ends, int) else set(ends or ())
        cut = next((at + 1 for at, token in enumerate(row) if token in ends), len(row))
        return tuple(row[:cut])

    def _padded(self, batch: Sequence[Prompt]) -> tuple[Any, Any]:
        """Ids and mask, (batch, longest): the shared prefix, then padding, then the rest, so that all end together."""
        import torch

        shared = len(self._shared)
        longest = max(map(len, batch))
        ids = torch.full((len(batch), longest), self.pad)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(batch):
            ids[row, :shared], mask[row, :shared] = torch.tensor(prompt[:shared]), 1
            rest = longest - (len(prompt) - shared)
            ids[row, rest:], mask[row, rest:] = torch.tensor(prompt[shared:]), 1
        return ids.to(self.model.device), mask.to(self.model.device)

    def _prefill(self, batch: Sequence[Prompt]) -> tuple[Any, int]:
        """Keys and values of all but each prompt's last token, a row a completion; and the prompt tokens computed."""
        import torch
        from transformers import DynamicCache

        computed = 0
        if self._shared and self._shared_cache is None:
            ids = torch.tensor([self._shared], device=self.model.device)
            self._shared_cache = self.model(
                input_ids=ids, past_key_values=DynamicCache(config=self.model.config), use_cache=True, logits_to_keep=1
            ).past_key_values
            computed += len(self._shared)
        distinct = list(dict.fromkeys(map(tuple, batch)))
        cache = copy.deepcopy(self._shared_cache) if self._shared else DynamicCache(config=self.model.config)
        if self._shared:
            cache.batch_repeat_interleave(len(distinct))
        ids, mask = self._padded(distinct)
        rest = ids[:, len(self._shared) : -1]
        if rest.shape[1]:
            # Positions as if there were no padding, as generate counts them.
            positions = (mask.cumsum(dim=-1) - 1).clamp(min=0)[:, len(self._shared) : -1]
            cache = self.model(
                input_ids=rest, attention_mask=mask[:, :-1], position_ids=positions, past_key_values=cache,
                use_cache=True, logits_to_keep=1,
            ).past_key_values  # fmt: skip
            computed += int(mask[:, len(self._shared) : -1].sum())
        elif not self._shared:
            return None, 0  # prompts of one token: there is nothing to keep
        place = {prompt: row for row, prompt in enumerate(distinct)}
        rows = torch.tensor([place[tuple(prompt)] for prompt in batch], device=self.model.device)
        cache.batch_select_indices(rows)
        return cache, computed


class VllmEngine:
    """vLLM's offline `LLM`, its prefix caching on or off. Needs a GPU and the extra `gpu`.

    Every completion is a request of its own with a seed of its own, as `swift rollout` asks for them.
    """

    def __init__(self, local: LocalModel, *, reuse: bool, max_new_tokens: int, longest_prompt: int) -> None:
        from swift.utils.hub_utils import safe_snapshot_download
        from vllm import LLM

        # vLLM would look on Hugging Face where ms-swift looks on ModelScope: both shall serve the same files.
        folder = local.model if Path(local.model).is_dir() else safe_snapshot_download(local.model)
        given: dict[str, Any] = {}
        if local.adapter:
            given = {"enable_lora": True, "max_lora_rank": vllm_lora_rank(local.adapter)}
        self._adapter = local.adapter
        self.max_new_tokens = max_new_tokens
        self._llm = LLM(
            model=folder, enable_prefix_caching=reuse, max_model_len=longest_prompt + max_new_tokens, seed=0,
            **given,
        )  # fmt: skip

    def start(self, prompts: Sequence[Prompt]) -> None:
        self._llm.reset_prefix_cache()

    def generate(self, batch: Sequence[Prompt], seed: int) -> Generation:
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        sampling = [
            SamplingParams(
                temperature=SAMPLE_TEMPERATURE, top_p=SAMPLE_TOP_P, top_k=SAMPLE_TOP_K["vllm"],
                max_tokens=self.max_new_tokens, seed=seed + number,
            )
            for number in range(len(batch))
        ]  # fmt: skip
        lora = LoRARequest("planner", 1, self._adapter) if self._adapter else None
        started = time.perf_counter()
        outputs = self._llm.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in batch], sampling, lora_request=lora, use_tqdm=False
        )
        seconds = time.perf_counter() - started
        cached = [output.num_cached_tokens for output in outputs]
        known = all(count is not None for count in cached)
        return Generation(
            tuple(tuple(output.outputs[0].token_ids) for output in outputs),
            seconds,
            sum(map(len, batch)) - sum(cached) if known else None,
        )


def choose_backend(wanted: str) -> tuple[str, str]:
    """The backend, and what to say when it is not the one a box would use. Raises ValueError for --backend vllm."""
    import torch

    lacking = ""
    if importlib.util.find_spec("vllm") is None:
        lacking = "vllm is not installed here (the extra 'gpu')"
    elif not torch.cuda.is_available():
        lacking = "vllm is installed, but torch sees no GPU"
    if wanted == VLLM and lacking:
        raise ValueError(f"--backend vllm: {lacking}; leave it out to profile the transformers path")
    if wanted == TRANSFORMERS or not lacking:
        return (VLLM if wanted == "auto" else wanted), ""
    return TRANSFORMERS, f"{lacking}: the transformers path is profiled"


def load_transformers(local: LocalModel) -> tuple[Any, int]:
    """Model and id of its padding token, as evaluation loads them."""
    engine = local.load()
    return engine.model, int(engine.tokenizer.pad_token_id)
