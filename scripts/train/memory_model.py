"""How much GPU memory a training step takes, estimated from the model's configuration: pure arithmetic, no torch.

The model is a decoder of the Qwen3 family (grouped-query attention, gated MLP, RMSNorm on queries and keys), trained by
ms-swift under autocast: LoRA weights in float32, frozen weights in the run's type. What counts is what autograd keeps
for the backward pass; tests/test_gpu_profile.py compares the formula with a real model's saved tensors.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

GIB = 2**30
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL_LINEAR = (*ATTENTION, "gate_proj", "up_proj", "down_proj")  # ms-swift's `--target_modules all-linear`
TARGETS = {"all-linear": ALL_LINEAR, "attention": ATTENTION, "q,v": ("q_proj", "v_proj")}
FLOAT32 = 4
# Bytes a logit costs at the peak of the backward pass. SFT: the logits that leave the autocast region in float32 (4),
# their log-softmax (4), the float32 gradient (4), logits and gradient in bfloat16 (2 + 2). GRPO takes the log-softmax
# row by row, but divides by the temperature and keeps the entropy's inputs: the same order.
LOGIT_BYTES = 16
CONTEXT_BYTES = 0.6 * GIB  # CUDA context, cuBLAS workspace, NCCL buffers
FRAGMENTATION = 0.10  # of what comes and goes in a step: batches differ in length, the allocator keeps holes
ROLLOUT_SHARE = 0.9  # vLLM's gpu_memory_utilization as ms-swift sets it


class ShapeError(ValueError):
    """This configuration cannot be estimated; the message names the key or the model type and the remedy."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder, under the names that config.json gives them."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool
    qk_norm: bool = True  # Qwen3 normalises queries and keys; Llama (SmolLM2) and Qwen2 do not

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_key_value_heads * self.head_dim

    def linear(self, name: str) -> tuple[int, int]:
        """Inputs and outputs of one layer's projection."""
        sizes = {
            "q_proj": (self.hidden_size, self.query_size),
            "k_proj": (self.hidden_size, self.kv_size),
            "v_proj": (self.hidden_size, self.kv_size),
            "o_proj": (self.query_size, self.hidden_size),
            "gate_proj": (self.hidden_size, self.intermediate_size),
            "up_proj": (self.hidden_size, self.intermediate_size),
            "down_proj": (self.intermediate_size, self.hidden_size),
        }
        return sizes[name]


# huggingface.co/Qwen/Qwen3-4B-Instruct-2507, config.json, written down here for boxes without a network.
QWEN3_4B = Shape(
    hidden_size=2560,
    intermediate_size=9728,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=151936,
    tie_word_embeddings=True,
)
BUILT_IN = {"Qwen3-4B-Instruct-2507": QWEN3_4B}
EXPERTS = ("num_experts", "num_local_experts")  # keys that say how many stand side by side
LARGEST = 2**31 - 1  # of a size; a larger one is a slip
MODEL_TYPES = {"qwen3": True, "llama": False}  # model_type -> whether queries and keys are normalised


def read_shape(model: str) -> Shape:
    """The shape of a model folder, or of a built-in model by its name or hub id.

    Raises ShapeError for a folder without a usable config.json and for an id whose numbers are not built in.
    """
    path = Path(model).expanduser() / "config.json"
    try:
        there = path.is_file()
    except OSError as error:  # a name too long for the system, a folder that may not be looked into
        raise ShapeError(f"{model!r:.100}: {error.strerror}: give the folder of the downloaded model") from None
    if there:
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, a number too long, brackets without end
            raise ShapeError(
                f"{path} cannot be read as JSON ({str(error):.100}): copy it again from the model's page"
            ) from None
        return shape_of(config, str(path))
    known = BUILT_IN.get(model.rstrip("/").rsplit("/", 1)[-1])
    if known is None:
        raise ShapeError(
            f"{model!r:.100} is no folder with a config.json, and built in are only {', '.join(BUILT_IN)}: "
            "give the folder of the downloaded model"
        )
    return known


def shape_of(config: Any, where: str) -> Shape:
    """The shape a config.json states.

    What would make the estimate another one is refused: quantised weights, experts.
    Llama's head_dim and key-value heads have transformers' defaults; Qwen3's must be stated, as it always states them.
    """
    kind = config.get("model_type") if isinstance(config, Mapping) else config
    if not isinstance(config, Mapping) or not isinstance(kind, str) or kind not in MODEL_TYPES:
        raise ShapeError(f"{where}: model_type {kind!r:.40} is none that is estimated ({', '.join(MODEL_TYPES)})")
    if config.get("quantization_config"):
        raise ShapeError(
            f"{where}: quantization_config: its weights are no bfloat16; estimate the model it was made from"
        )
    for name in EXPERTS:
        if config.get(name) not in (None, 0, 1):
            raise ShapeError(
                f"{where}: {name}={config[name]!r:.40}: a mixture of experts is not estimated, only a dense one"
            )
    values = {"tie_word_embeddings": False, **config, "qk_norm": MODEL_TYPES[kind]}
    llama = kind == "llama"
    if llama and not values.get("num_key_value_heads"):
        values["num_key_value_heads"] = values.get("num_attention_heads")
    sized = all(isinstance(values.get(name), int) for name in ("hidden_size", "num_attention_heads"))
    if llama and not values.get("head_dim") and sized:
        values["head_dim"] = values["hidden_size"] // max(1, values["num_attention_heads"])
    for item in fields(Shape):
        value = values.get(item.name)
        fine = type(value) is item.type and (item.type is bool or 1 <= value <= LARGEST)
        if not fine:
            what = "neither true nor false" if item.type is bool else "no size"
            raise ShapeError(f"{where}: {item.name}={value!r:.40} is {what}; is this a model's config.json?")
    heads, pairs = values["num_attention_heads"], values["num_key_value_heads"]
    if heads % pairs:
        raise ShapeError(f"{where}: num_key_value_heads={pairs} does not divide num_attention_heads={heads}")
    return Shape(**{item.name: values[item.name] for item in fields(Shape)})


def parameters(shape: Shape) -> int:
    """Parameters of the model; a tied embedding counts once.

    >>> parameters(QWEN3_4B)
    4022468096
    """
    linears = sum(rows * columns for rows, columns in map(shape.linear, ALL_LINEAR))
    norms = 2 * shape.hidden_size + (2 * shape.head_dim if shape.qk_norm else 0)
    embeddings = (1 if shape.tie_word_embeddings else 2) * shape.vocab_size * shape.hidden_size
    return shape.num_hidden_layers * (linears + norms) + embeddings + shape.hidden_size


def lora_parameters(shape: Shape, rank: int, targets: Sequence[str] = ALL_LINEAR) -> int:
    """Parameters of the LoRA matrices A (inputs x rank) and B (rank x outputs) over all layers.

    >>> lora_parameters(QWEN3_4B, 16)
    33030144
    """
    return shape.num_hidden_layers * rank * sum(sum(shape.linear(name)) for name in targets)


def lora_share(shape: Shape, rank: int, targets: Sequence[str] = ALL_LINEAR) -> float:
    """Trained share of all parameters, adapter included, as PEFT prints it: 0.0081 for rank 16 on Qwen3-4B."""
    trained = lora_parameters(shape, rank, targets)
    return trained / (parameters(shape) + trained)


@dataclass(frozen=True)
class Job:
    """One training process.

    Attributes:
        kind: sft or grpo.
        batch: rows of one forward pass (`per_device_train_batch_size`).
        prompt: tokens of the prompt; for SFT of the whole row.
        completion: tokens written (GRPO); 0 for SFT.
        accumulation: forward passes an optimiser step.
        processes: data-parallel processes, one GPU each.
        group: completions a prompt (GRPO).
        rank: LoRA rank on all linear layers; None trains all weights.
        width: bytes of a frozen weight and of an autocast activation: 2 for bfloat16, 4 for float32.
        reference: whether a KL is taken (beta above 0).
        rollout_here: completions are written by the trainer's own model (transformers), not by a vLLM server.
    """

    kind: str
    batch: int
    prompt: int
    completion: int = 0
    accumulation: int = 1
    processes: int = 1
    group: int = 8
    checkpointing: bool = False
    rank: int | None = 16
    width: int = 2
    reference: bool = False
    rollout_here: bool = False

    @property
    def length(self) -> int:
        return self.prompt + self.completion


@dataclass(frozen=True)
class Estimate:
    """Bytes on one GPU at the peak of a step, by cause."""

    weights: float
    adapter: float
    gradients: float
    optimizer: float
    reference: float
    activations: float
    logits: float
    kv_cache: float
    overhead: float

    @property
    def total(self) -> float:
        return sum(getattr(self, item.name) for item in fields(self))

    def gib(self) -> dict[str, float]:
        parts = {item.name: round(getattr(self, item.name) / GIB, 2) for item in fields(self)}
        return {**parts, "total": round(self.total / GIB, 2)}


def layer_bytes(shape: Shape, job: Job) -> int:
    """Bytes that one layer keeps for the backward pass, a token, without checkpointing.

    185,864 for rank 16 on Qwen3-4B in bfloat16. A tensor that two operations keep counts once.
    """
    hidden, query, inner, width = shape.hidden_size, shape.query_size, shape.intermediate_size, job.width
    normed = 2 * hidden + ((query + shape.kv_size) if shape.qk_norm else 0)
    normed_rows = 2 + ((shape.num_attention_heads + shape.num_key_value_heads) if shape.qk_norm else 0)
    if job.rank is not None and width < FLOAT32:
        # PEFT casts each adapted layer's input for its own float32 A: q, k and v keep three copies of one tensor.
        inputs = sum(rows for rows, _ in map(shape.linear, ALL_LINEAR))
    else:
        inputs = 2 * hidden + inner  # o_proj's input is the attention's output, counted there
    if job.rank is None:
        inputs += normed  # the norms' own weights train and keep what they scale
    else:
        inputs += len(ALL_LINEAR) * job.rank  # B keeps A's output
    attention = 4 * query  # queries, output, and keys and values repeated for every head: batches carry a mask
    mlp = 3 * inner  # the gate, its silu, the up projection
    in_float32 = normed + normed_rows + shape.num_attention_heads  # norms' inputs and scales, softmax's sums
    return (inputs + attention + mlp) * width + in_float32 * FLOAT32


def adapter_bytes(shape: Shape, job: Job) -> int:
    """The LoRA weights in float32, and the bfloat16 copies that autocast keeps for the backward pass."""
    if job.rank is None:
        return 0
    return lora_parameters(shape, job.rank) * (FLOAT32 + (job.width if job.width < FLOAT32 else 0))


def kv_bytes(shape: Shape, width: int = 2) -> int:
    """Bytes of keys and values of one token over all layers: 147,456 for Qwen3-4B in bfloat16."""
    return 2 * shape.num_hidden_layers * shape.kv_size * width


def estimate(shape: Shape, job: Job) -> Estimate:
    """Peak memory of one training process.

    Generation by the trainer itself and the backward pass do not happen at once: only the larger one counts.
    """
    model = parameters(shape)
    trained = model if job.rank is None else lora_parameters(shape, job.rank)
    trained_width = job.width if job.rank is None else FLOAT32
    reference = 0
    if job.kind == "grpo" and job.reference:
        # A second copy of what trains: the model, or only the SFT adapter (--ref_adapters).
        reference = trained * trained_width
    tokens = job.batch * job.length
    every_layer = layer_bytes(shape, job) * shape.num_hidden_layers * tokens
    if job.checkpointing:  # each layer's input, and one layer computed again
        inputs = shape.hidden_size * job.width * shape.num_hidden_layers * tokens
        activations = inputs + layer_bytes(shape, job) * tokens
    else:
        activations = every_layer
    # ms-swift may keep fewer logits of an SFT row (use_logits_to_keep); all of them agree with the measured wall.
    logits = LOGIT_BYTES * shape.vocab_size * job.batch * (job.completion or job.prompt)
    kv = 0
    if job.kind == "grpo" and job.rollout_here:
        kv = kv_bytes(shape, job.width) * job.batch * job.accumulation * job.length
    if kv > activations + logits:
        activations, logits = 0, 0
    else:
        kv = 0
    buckets = trained * trained_width if job.processes > 1 else 0  # DDP sums gradients in buffers of its own
    return Estimate(
        weights=model * job.width,
        adapter=adapter_bytes(shape, job),
        gradients=trained * trained_width + buckets,
        optimizer=2 * trained * trained_width,  # Adam's two moments
        reference=reference,
        activations=activations,
        logits=logits,
        kv_cache=kv,
        overhead=CONTEXT_BYTES + FRAGMENTATION * (activations + logits + kv),
    )


def fits(made: Estimate, card_bytes: float) -> bool:
    return made.total <= card_bytes


def rollout_tokens(shape: Shape, card_bytes: float) -> int:
    """Tokens of keys and values that a bfloat16 vLLM server has room for on one card; 0 if the weights do not fit."""
    room = card_bytes * ROLLOUT_SHARE - parameters(shape) * 2 - CONTEXT_BYTES
    return max(0, int(room // kv_bytes(shape)))


@dataclass(frozen=True)
class Cut:
    """One step down: what to change, as swift's own flags, the job after it and why it helps."""

    change: str
    why: str
    job: Job


def _smaller_batch(job: Job, batch: int) -> Job:
    """The same rows an optimiser step (or the next more that GRPO's groups divide) with a smaller batch."""
    accumulation = -(-job.batch * job.accumulation // batch)
    while job.kind == "grpo" and (batch * accumulation * job.processes) % job.group:
        accumulation += 1
    return replace(job, batch=batch, accumulation=accumulation)


def cuts(shape: Shape, job: Job, card_bytes: float) -> list[Cut]:
    """What to cut, in order, until the job fits; empty if it fits as it is. The last cut may still not fit.

    The order follows what a cut costs: group and batch cost noise or nothing, shorter completions cost long plans,
    checkpointing costs a third of the speed, bfloat16 costs precision (a GPU run has it already).
    """
    made: list[Cut] = []

    def cut(change: str, why: str, to: Job) -> None:
        made.append(Cut(change, why, to))

    def current() -> Job:
        return made[-1].job if made else job

    def enough() -> bool:
        return fits(estimate(shape, current()), card_bytes)

    if not enough() and job.kind == "grpo" and job.group > 4:
        smaller = replace(job, group=4, accumulation=max(1, -(-job.accumulation * 4 // job.group)))
        while (smaller.batch * smaller.accumulation * smaller.processes) % smaller.group:
            smaller = replace(smaller, accumulation=smaller.accumulation + 1)
        saves = "halves the completions in flight" if job.rollout_here else "eases the rollout server, not the trainer"
        cut(f"--num_generations 4 --gradient_accumulation_steps {smaller.accumulation}", saves, smaller)
    if not enough() and current().batch > 1:
        smaller_jobs = [_smaller_batch(current(), batch) for batch in range(current().batch - 1, 0, -1)]
        smaller = next((it for it in smaller_jobs if fits(estimate(shape, it), card_bytes)), smaller_jobs[-1])
        cut(
            f"--per_device_train_batch_size {smaller.batch} --gradient_accumulation_steps {smaller.accumulation}",
            "fewer activations and logits at once, the same step",
            smaller,
        )
    if not enough() and current().completion > 256:
        cut("--max_completion_length 256", "fewer tokens in every row", replace(current(), completion=256))
    if not enough() and not current().checkpointing:
        cut("--gradient_checkpointing true", "keeps layer inputs only", replace(current(), checkpointing=True))
    if not enough() and current().width > 2:
        cut("--torch_dtype bfloat16", "halves weights and activations", replace(current(), width=2))
    return made
