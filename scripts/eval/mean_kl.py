"""How far a policy has moved from a reference: the mean token KL on the policy's own completions.

At every position of a completion the divergence KL(policy || reference) = sum over the vocabulary of p (log p − log q)
is taken exactly, from float32 logits at temperature 1, in nats. The position after the last token counts too (there the
policy chose to stop), unless the token limit ended the completion. Training at beta 0 logs no KL, and one against the
base model says nothing of the distance to SFT; this measures either.

Completions are read back as text and tokenised again, so a completion that was not sampled in the tokeniser's own
segmentation is measured on that segmentation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.eval.generate import MAX_NEW_TOKENS
from scripts.swift_names import swift_names

SEQUENCES_PER_BATCH = 8  # with 152,000 words in the vocabulary and 100 tokens a completion some 0.5 GB of logits

Row = Mapping[str, Any]
# (token ids, attention mask, positions to keep from the end) -> float32 logits (sequences, positions, vocabulary)
Forward = Callable[[Any, Any, int], Any]


@dataclass(frozen=True)
class Tokens:
    """Token ids of one prompt and its completion, and at how many positions the policy made a choice."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]

    @property
    def choices(self) -> int:
        return len(self.completion) + (len(self.completion) < MAX_NEW_TOKENS)


def measure_kl(
    model: str, adapter: str | None, reference: str, rows: Sequence[Row], records: Mapping[str, Sequence[Row]]
) -> dict[str, Any]:
    """The mean token KL of `model` (with `adapter`) to `reference` on the completions of each decoding mode.

    Args:
        reference: an adapter folder on the same model, or a model folder.
        rows: the prompt set; `records`: by mode, as evaluation files hold them.

    Returns: `{"reference", "modes": {mode: {"mean_token_kl", "largest_token_kl", "tokens", "completions"}}}`.
    Raises ValueError when the two do not share a vocabulary.
    """
    from tqdm import tqdm

    policy, other, encode = load_pair(model, adapter, reference)
    prompts = {row["id"]: row["messages"] for row in rows}
    modes = {}
    for mode, found in records.items():
        texts = [(record["id"], sample["completion"]) for record in found for sample in record["samples"]]
        sequences = sorted((encode(prompts[name], text) for name, text in texts), key=lambda s: len(s.prompt))
        kls: list[float] = []
        with tqdm(total=len(sequences), desc=f"KL {mode}", unit="completion") as bar:
            for start in range(0, len(sequences), SEQUENCES_PER_BATCH):
                batch = sequences[start : start + SEQUENCES_PER_BATCH]
                kls += token_kls(policy, other, batch)
                bar.update(len(batch))
        modes[mode] = {
            "mean_token_kl": sum(kls) / len(kls),
            "largest_token_kl": max(kls),
            "tokens": len(kls),
            "completions": len(sequences),
        }
    return {"reference": reference, "modes": modes}


def token_kls(policy: Forward, reference: Forward, batch: Sequence[Tokens]) -> list[float]:
    """KL(policy || reference) at every choice of the batch's completions, one after the other."""
    import torch

    longest = max(len(one.prompt) + len(one.completion) for one in batch)
    keep = max(len(one.completion) for one in batch) + 1
    ids = torch.zeros((len(batch), longest), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, one in enumerate(batch):  # padded on the left, so that all completions end together
        tokens = one.prompt + one.completion
        ids[row, longest - len(tokens) :] = torch.tensor(tokens)
        mask[row, longest - len(tokens) :] = 1
    with torch.inference_mode():
        log_p = torch.log_softmax(policy(ids, mask, keep), dim=-1)
        log_q = torch.log_softmax(reference(ids, mask, keep), dim=-1)
        if log_p.shape != log_q.shape:
            raise ValueError(
                f"the vocabularies differ ({log_p.shape[-1]} and {log_q.shape[-1]} entries): there is no KL between "
                "these models; give a reference of the same base model"
            )
        kl = (log_p.exp() * (log_p - log_q)).sum(dim=-1).cpu()
    values = []
    for row, one in enumerate(batch):
        first = keep - 1 - len(one.completion)  # the last prompt token's position chooses the first token
        values += kl[row, first : first + one.choices].tolist()
    return values


def load_pair(
    model: str, adapter: str | None, reference: str
) -> tuple[Forward, Forward, Callable[[Sequence[Mapping[str, str]], str], Tokens]]:
    """Policy, reference, and the encoder of (messages, completion). Adapters of one base share its weights."""
    from swift.model import get_processor
    from swift.template import get_template

    model_type, template_type = swift_names(model, adapter)
    base = _load_model(model, model_type)
    same_base = _is_adapter(reference) or Path(reference).resolve() == Path(model).resolve()
    if same_base:
        policy, other = _two_views(base, adapter, reference if _is_adapter(reference) else None)
    else:
        policy, other = _two_views(base, adapter, None)[0], _forward(_load_model(reference, swift_names(reference)[0]))
    template = get_template(get_processor(model, model_type=model_type), template_type=template_type)
    template.set_mode("transformers")

    def encode(messages: Sequence[Mapping[str, str]], completion: str) -> Tokens:
        prompt = template.encode({"messages": [dict(message) for message in messages]})["input_ids"]
        tokens = template.tokenizer(completion, add_special_tokens=False)["input_ids"]
        return Tokens(tuple(prompt), tuple(tokens))

    return policy, other, encode


def _is_adapter(folder: str) -> bool:
    return (Path(folder) / "adapter_config.json").is_file()


def _load_model(model: str, model_type: str | None) -> Any:
    """Weights in their own type on a GPU, in float32 on a CPU; the logits are float32 in either case."""
    import torch
    from swift.model import get_model_processor

    dtype = None if torch.cuda.is_available() else torch.float32
    return get_model_processor(model, torch_dtype=dtype, model_type=model_type)[0].eval()


def _two_views(base: Any, policy: str | None, reference: str | None) -> tuple[Forward, Forward]:
    """One base model seen through two adapters; None sees it without one."""
    if policy is None and reference is None:
        return _forward(base), _forward(base)
    from peft import PeftModel

    first = policy or reference
    model = PeftModel.from_pretrained(base, first, adapter_name="first")
    if policy and reference:
        model.load_adapter(reference, adapter_name="second")
    model.eval()
    plain = _forward(model)

    def through(name: str | None) -> Forward:
        def forward(ids: Any, mask: Any, keep: int) -> Any:
            if name is None:
                with model.disable_adapter():
                    return plain(ids, mask, keep)
            model.set_adapter(name)
            return plain(ids, mask, keep)

        return forward

    return through("first" if policy else None), through(("second" if policy else "first") if reference else None)


def _forward(model: Any) -> Forward:
    def forward(ids: Any, mask: Any, keep: int) -> Any:
        device = next(model.parameters()).device
        positions = (mask.cumsum(dim=-1) - 1).clamp(min=0)  # as if there were no padding
        output = model(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            position_ids=positions.to(device),
            logits_to_keep=keep,
            use_cache=False,
        )
        return output.logits.float()

    return forward
