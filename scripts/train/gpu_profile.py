"""Where the memory wall of SFT and GRPO stands on a card: estimated from the model's configuration, measured on a GPU.

    python scripts/train/gpu_profile.py --model Qwen/Qwen3-4B-Instruct-2507 --card-gib 24

Printed are the LoRA parameters by target modules, a grid of batch x length x gradient checkpointing x rank against the
card's memory, what fills it, what a rollout server has room for, and what to cut in which order. `--measure` runs real
steps of that grid on this machine's GPU, with random weights of the same shape (memory does not depend on their
values). The measured part has not been run by this repository's tests, which have no GPU; each row says what it is.
"""

import argparse
import gc
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import product
from typing import Any

from tqdm import tqdm

from scripts.files import write_atomically
from scripts.train.memory_model import (
    ALL_LINEAR,
    GIB,
    TARGETS,
    Job,
    Shape,
    ShapeError,
    cuts,
    estimate,
    fits,
    kv_bytes,
    lora_parameters,
    lora_share,
    parameters,
    read_shape,
    rollout_tokens,
)
from scripts.train.result_file import writable_file

DEFAULT_MODEL = "Qwen/Qwen3-4B-Instruct-2507"
SFT_LENGTH = 583  # mean tokens of a row in the original's SFT set
GRPO_PROMPT = 510  # with the full prompt: 487 to 525 tokens of Qwen's vocabulary over the demo's 1,500 requests
CARD_GIB = 24.0  # a card of the original's box
LARGEST_CARD_GIB = 10_000  # beyond it the number is a mistake: a byte count, say
OUT_OF_MEMORY = "out of memory"
MEASURED_STEPS = 2  # the optimiser's moments exist from the first step on, so the second one is the peak


def grid(base: Job, batches: Sequence[int], lengths: Sequence[int], ranks: Sequence[int]) -> list[Job]:
    """Every combination, lengths (of an SFT row, of a GRPO completion) outermost; rank 0 trains all weights."""
    made = []
    for length, rank, checkpointing, batch in product(lengths, ranks, (False, True), batches):
        sized = replace(base, prompt=length) if base.kind == "sft" else replace(base, completion=length)
        made.append(replace(sized, rank=rank or None, checkpointing=checkpointing, batch=batch))
    return made


def lora_table(shape: Shape, ranks: Sequence[int]) -> list[dict[str, Any]]:
    """Parameters and share of all parameters for each rank and set of target modules."""
    return [
        {
            "rank": rank,
            "targets": name,
            "modules": list(modules),
            "parameters": lora_parameters(shape, rank, modules),
            "share": round(lora_share(shape, rank, modules), 6),
        }
        for rank in ranks
        if rank
        for name, modules in TARGETS.items()
    ]


def profile(shape: Shape, jobs: Sequence[Job], card_bytes: float) -> dict[str, Any]:
    """The estimates, JSON-ready; memory in GiB."""
    rows = []
    for job in jobs:
        made = estimate(shape, job)
        row = {"job": asdict(job), "estimate_gib": made.gib(), "fits": fits(made, card_bytes)}
        row["cuts"] = [
            {
                "change": cut.change,
                "why": cut.why,
                "total_gib": round(estimate(shape, cut.job).total / GIB, 2),
                "fits": fits(estimate(shape, cut.job), card_bytes),
            }
            for cut in cuts(shape, job, card_bytes)
        ]
        rows.append(row)
    return {
        "card_gib": round(card_bytes / GIB, 2),
        "shape": asdict(shape),
        "parameters": parameters(shape),
        "lora": lora_table(shape, sorted({job.rank or 0 for job in jobs})),
        "kv_bytes_a_token": kv_bytes(shape),
        "rollout_kv_tokens": rollout_tokens(shape, card_bytes),
        "rows": rows,
    }


def build_model(shape: Shape, job: Job, device: str) -> Any:
    """A model of this shape with random weights, LoRA on all linear layers as ms-swift sets it up, ready to train."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    sizes = {name: value for name, value in asdict(shape).items() if name != "qk_norm"}
    config, kind = (Qwen3Config, Qwen3ForCausalLM) if shape.qk_norm else (LlamaConfig, LlamaForCausalLM)
    with torch.device(device):
        model = kind(config(**sizes, attn_implementation="sdpa", use_cache=False))
    model = model.to(torch.bfloat16 if job.width == 2 else torch.float32)
    if job.rank is not None:
        modules = list(ALL_LINEAR)
        lora = LoraConfig(r=job.rank, lora_alpha=2 * job.rank, target_modules=modules, task_type="CAUSAL_LM")
        model = get_peft_model(model, lora)
    if job.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    return model.train()


def batch_of(shape: Shape, job: Job, device: str) -> dict[str, Any]:
    """Random rows of the job's length; the first one a token shorter, so that the batch carries a mask as real ones."""
    import torch

    ids = torch.randint(0, shape.vocab_size, (job.batch, job.length), device=device)
    mask = torch.ones_like(ids)
    if job.batch > 1:
        mask[0, -1] = 0
    return {"input_ids": ids, "attention_mask": mask}


def forward(model: Any, batch: dict[str, Any], job: Job, device: str) -> Any:
    """The loss of one forward pass: cross-entropy for SFT, mean log probability of the completions for GRPO."""
    import torch

    autocast = torch.autocast(device, torch.bfloat16) if job.width == 2 else nullcontext()
    if job.kind == "sft":
        with autocast:
            return model(**batch, labels=batch["input_ids"]).loss
    with autocast:
        logits = model(**batch, logits_to_keep=job.completion + 1).logits[:, :-1]
    written = batch["input_ids"][:, -job.completion :]
    return -torch.stack(
        [row.float().log_softmax(-1).gather(-1, ids[:, None]).mean() for row, ids in zip(logits, written, strict=True)]
    ).mean()


def measured_gib(shape: Shape, job: Job) -> float | None:
    """Reserved memory of MEASURED_STEPS real steps on the first GPU, in GiB; None if they run out of memory.

    The forward pass is repeated once an optimiser step: accumulation does not change the peak. A GRPO job is measured
    without its generation, its reference and its processes' DDP buffers.
    """
    import torch

    model = optimizer = None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    try:
        model = build_model(shape, job, "cuda")
        optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-6)
        batch = batch_of(shape, job, "cuda")
        for _ in range(MEASURED_STEPS):
            forward(model, batch, job, "cuda").backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return round(torch.cuda.max_memory_reserved() / GIB, 2)
    except torch.cuda.OutOfMemoryError:
        return None
    finally:
        del model, optimizer
        gc.collect()
        torch.cuda.empty_cache()


def measure(shape: Shape, made: dict[str, Any], jobs: Sequence[Job]) -> None:
    """Add to every row `measured_gib` ("out of memory" where it ran out) and how many times that the estimate is."""
    for row, job in zip(made["rows"], tqdm(jobs, desc="measured", file=sys.stderr), strict=True):
        used = measured_gib(shape, job)
        row["measured_gib"] = OUT_OF_MEMORY if used is None else used
        row["estimate_to_measured"] = None if used is None else round(row["estimate_gib"]["total"] / used, 3)


def some_row_fits(made: dict[str, Any]) -> bool:
    """Whether a row fits the card: as measured where it was measured, else as estimated."""
    return any(row["measured_gib"] != OUT_OF_MEMORY if "measured_gib" in row else row["fits"] for row in made["rows"])


def text(made: dict[str, Any], model: str) -> Iterator[str]:
    """The page for people."""
    yield f"{model}: {made['parameters']:,} parameters; card {made['card_gib']:g} GiB"
    yield ""
    yield "LoRA            parameters   share   targets"
    for row in made["lora"]:
        yield f"  rank {row['rank']:<4}  {row['parameters']:>13,}  {row['share']:>6.2%}   {row['targets']}"
    yield ""
    yield "estimated GiB (weights / trained, its gradients and Adam / activations / logits / KV / overhead = total)"
    for row in made["rows"]:
        yield "  " + _row(row)
    yield ""
    yield (
        f"rollout server on one such card: room for {made['rollout_kv_tokens']:,} tokens of keys and values "
        f"({made['kv_bytes_a_token']:,} bytes each, bfloat16)"
    )
    heavy = next((row for row in made["rows"] if row["cuts"]), None)
    if heavy is not None:
        yield ""
        yield f"what to cut, in this order, for the first row that does not fit ({_name(heavy['job'])}):"
        for cut in heavy["cuts"]:
            state = "fits" if cut["fits"] else "does not fit yet"
            yield f"  {cut['change']}  ->  {cut['total_gib']:.1f} GiB, {state} ({cut['why']})"
        if not heavy["cuts"][-1]["fits"]:
            yield "  after all cuts it still does not fit: a smaller model, a larger card, or DeepSpeed ZeRO-3"
    yield ""
    if any("measured_gib" in row for row in made["rows"]):
        yield "measured: real steps on this machine's GPU, random weights of the same shape, reserved memory."
    else:
        yield "nothing here was measured: estimates, for rows of one length. Leave 1-2 GiB free; --measure on a GPU."


def _name(job: dict[str, Any]) -> str:
    length = f"prompt {job['prompt']} + {job['completion']}" if job["kind"] == "grpo" else f"length {job['prompt']}"
    rank = f"rank {job['rank']}" if job["rank"] else "all weights"
    return f"{job['kind']} batch {job['batch']}, {length}, {rank}{', checkpointing' if job['checkpointing'] else ''}"


def _row(row: dict[str, Any]) -> str:
    part = row["estimate_gib"]
    trained = part["adapter"] + part["gradients"] + part["optimizer"] + part["reference"]
    sizes = (part["weights"], trained, part["activations"], part["logits"], part["kv_cache"], part["overhead"])
    measured = f"  measured {row['measured_gib']}" if "measured_gib" in row else ""
    verdict = "fits" if row["fits"] else "OUT OF MEMORY"
    return f"{_name(row['job']):<52} {' / '.join(f'{x:.1f}' for x in sizes)} = {part['total']:.1f}  {verdict}{measured}"


def _numbers(given: str) -> list[int]:
    values = [int(part) for part in given.split(",")]
    if min(values) < 0:
        raise ValueError(given)
    return values


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/train/gpu_profile.py --kind grpo --batch 1,2,3 --length 256,512 --rank 16\n"
        "exit code: 0 a row fits the card, 1 none does, 2 wrong use or no GPU to measure on",
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="folder with a config.json, or a built-in model's id")
    parser.add_argument("--kind", choices=("sft", "grpo"), default="sft")
    parser.add_argument("--card-gib", type=float, help=f"memory of one card ({CARD_GIB:g}; with --measure this one's)")
    parser.add_argument("--batch", type=_numbers, default=[1, 2, 3, 4], help="rows of one forward pass (1,2,3,4)")
    parser.add_argument("--length", type=_numbers, help=f"tokens: SFT row ({SFT_LENGTH}), GRPO completion (256,512)")
    parser.add_argument("--prompt-length", type=int, default=GRPO_PROMPT, help=f"GRPO prompt tokens ({GRPO_PROMPT})")
    parser.add_argument("--rank", type=_numbers, default=[16], help="LoRA ranks; 0 trains all weights (16)")
    parser.add_argument("--processes", type=int, default=4, help="data-parallel processes (4)")
    parser.add_argument("--accumulation", type=int, default=8, help="forward passes an optimiser step (8)")
    parser.add_argument("--group", type=int, default=8, help="GRPO completions a prompt (8)")
    parser.add_argument("--beta", type=float, default=0.0, help="above 0 a KL reference is kept (GRPO, 0)")
    parser.add_argument("--use-vllm", choices=("true", "false"), default="true", help="false: the trainer generates")
    parser.add_argument("--torch-dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--measure", action="store_true", help="also run real steps on this machine's GPU")
    parser.add_argument("--json", type=writable_file, metavar="FILE", help="write everything to FILE as well")
    options = parser.parse_args(argv)
    lengths = options.length or ([SFT_LENGTH] if options.kind == "sft" else [256, 512])
    counts = (*options.batch, *lengths, options.prompt_length, options.processes, options.accumulation, options.group)
    if min(counts) < 1:
        parser.error("batch, lengths, processes, accumulation and group must be above 0")
    if options.card_gib is not None and not 0 < options.card_gib <= LARGEST_CARD_GIB:
        parser.error(f"--card-gib {options.card_gib:g}: a card has above 0 and at most {LARGEST_CARD_GIB:,} GiB")
    try:
        shape = read_shape(options.model)
    except ShapeError as error:
        print(f"gpu_profile: {error}", file=sys.stderr)
        return 2
    base = Job(
        kind=options.kind,
        batch=1,
        prompt=options.prompt_length,
        processes=options.processes,
        accumulation=options.accumulation,
        group=options.group,
        width=2 if options.torch_dtype == "bfloat16" else 4,
        reference=options.beta > 0,
        rollout_here=options.use_vllm == "false",
    )
    jobs = grid(base, options.batch, lengths, options.rank)
    card_bytes = (options.card_gib or CARD_GIB) * GIB
    if options.measure:
        import torch

        if not torch.cuda.is_available():
            print("gpu_profile: --measure needs a GPU, and torch sees none: leave it away to estimate", file=sys.stderr)
            return 2
        if options.card_gib is None:
            card_bytes = torch.cuda.get_device_properties(0).total_memory
    made = profile(shape, jobs, card_bytes)
    if options.measure:
        measure(shape, made, jobs)
    if options.json is not None:
        write_atomically(options.json, json.dumps(made, indent=2) + "\n")
    print("\n".join(text(made, options.model)))
    return 0 if some_row_fits(made) else 1


if __name__ == "__main__":
    sys.exit(main())
