"""Lab: what LoRA trains. A matrix of out × in stays as it is; A (r × in) and B (out × r) are learned beside it.

    parameters of a full matrix   out · in
    parameters of its LoRA        r · (in + out)

Then the count for the model at hand (its config.json, by default the demo's nano model), with peft's own beside it.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.labs.tables import table
from scripts.train.build_nano_model import HEADS, HIDDEN, INTERMEDIATE, KV_HEADS, LAYERS, VOCAB_SIZE

WIDTH = 4096
RANKS = (4, 8, 16, 64)
EXAMPLE_LAYERS, EXAMPLE_PROJECTIONS, EXAMPLE_RANK = 32, 4, 8
DEFAULT_RANK = 16  # the launchers' (scripts/train/launch_common.sh)
NANO: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HIDDEN // HEADS,
    "intermediate_size": INTERMEDIATE,
    "tie_word_embeddings": True,
}
SUPPORTED = ("qwen3", "qwen2", "llama")  # a dense decoder: these seven projections in every layer, and no others

SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")


def lora_parameters(inputs: int, outputs: int, rank: int) -> int:
    """The parameters of A and B.

    >>> lora_parameters(4096, 4096, 8)
    65536
    """
    return rank * (inputs + outputs)


def compression(width: int, rank: int) -> float:
    """How many times fewer parameters than the square matrix: width / (2 · rank).

    >>> compression(4096, 8)
    256.0
    """
    return width * width / lora_parameters(width, width, rank)


def projections(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of each linear map of one layer: what `--target_modules all-linear` adapts.

    Raises ValueError for an architecture whose layers are built otherwise, or a config without a size.
    """
    if config.get("model_type") not in SUPPORTED:
        raise ValueError(f"model_type {config.get('model_type')!r}: the lab counts {', '.join(SUPPORTED)}")
    try:
        hidden, inner, heads, _ = (config[key] for key in SIZES)
    except KeyError as error:
        raise ValueError(f"the config has no {error}") from error
    # Qwen3's heads may be wider than hidden / heads; older configs leave both keys out.
    head = config.get("head_dim") or hidden // heads
    queries, keys = heads * head, (config.get("num_key_value_heads") or heads) * head
    return {
        "q_proj": (hidden, queries),
        "k_proj": (hidden, keys),
        "v_proj": (hidden, keys),
        "o_proj": (queries, hidden),
        "gate_proj": (hidden, inner),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }


def model_parameters(config: Mapping[str, Any], rank: int) -> int:
    """The LoRA parameters over all layers at this rank."""
    one_layer = sum(lora_parameters(*sizes, rank) for sizes in projections(config).values())  # checks the config
    return int(config["num_hidden_layers"]) * one_layer


def peft_parameters(config: Mapping[str, Any], rank: int) -> int:
    """What peft itself counts as trainable, with the launchers' LoRA; on the meta device, so nothing is allocated."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **settings))
    lora = LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=rank, lora_alpha=2 * rank)
    trainable, _ = get_peft_model(model, lora, low_cpu_mem_usage=True).get_nb_trainable_parameters()
    return int(trainable)


def read_config(model: Path) -> dict[str, Any]:
    """The model folder's config.json; ValueError or FileNotFoundError says what is wrong with it."""
    file = model / "config.json"
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist: --model is the folder of a Hugging Face model")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{file} holds no JSON object")
    return config


def matrix_table() -> str:
    rows = [
        (str(rank), f"{lora_parameters(WIDTH, WIDTH, rank):,}", f"{compression(WIDTH, rank):g}×") for rank in RANKS
    ]
    return table(f"{WIDTH} × {WIDTH} = {WIDTH * WIDTH:,} parameters", ("r", "LoRA", "fewer"), rows)


def example_total() -> int:
    """32 layers, four projections of 4096 × 4096 each, r 8."""
    return EXAMPLE_LAYERS * EXAMPLE_PROJECTIONS * lora_parameters(WIDTH, WIDTH, EXAMPLE_RANK)


def model_table(config: Mapping[str, Any], rank: int) -> str:
    """Each projection's sizes and LoRA parameters, summed over the layers."""
    maps = projections(config)
    layers = int(config["num_hidden_layers"])
    rows = [
        (name, str(inputs), str(outputs), f"{layers * lora_parameters(inputs, outputs, rank):,}")
        for name, (inputs, outputs) in maps.items()
    ]
    rows.append(("all", "", "", f"{model_parameters(config, rank):,}"))
    return table(f"the model at hand: {layers} layers, r {rank}", ("projection", "in", "out", "LoRA"), rows)


def main(argv: Sequence[str] | None = None) -> int:
    """0 when the count equals peft's, 1 when it does not, 2 for wrong use or a model that the lab cannot count."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/labs/lora_lab.py\n"
        "  python scripts/labs/lora_lab.py --model runs/demo-seed42/nano --rank 8",
    )
    parser.add_argument("--model", type=Path, help="model folder (default: the demo's nano model, by its sizes)")
    parser.add_argument("--rank", type=int, default=DEFAULT_RANK, help="LoRA rank (default: %(default)s)")
    args = parser.parse_args(argv)
    try:
        if args.rank < 1:
            raise ValueError(f"--rank {args.rank}: 1 or more is expected")
        config = NANO if args.model is None else read_config(args.model)
        at_hand = model_table(config, args.rank)
    except (ValueError, FileNotFoundError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    print(matrix_table())
    print(
        f"{EXAMPLE_LAYERS} layers × {EXAMPLE_PROJECTIONS} projections at r {EXAMPLE_RANK}:"
        f" {example_total():,} parameters\n"
    )
    print(at_hand)
    counted, theirs = model_parameters(config, args.rank), peft_parameters(config, args.rank)
    print(f"peft counts {theirs:,}: {'equal' if counted == theirs else f'NOT the {counted:,} counted here'}")
    return 0 if counted == theirs else 1


if __name__ == "__main__":
    sys.exit(main())
