"""Make the demo's nano model: a BPE tokenizer trained on the SFT text and an untrained Qwen3-architecture model.

The folder it writes is an ordinary Hugging Face model folder: ms-swift, transformers and vLLM load it like
Qwen3-4B-Instruct-2507, with the same special tokens and chat template (no think block).
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

# Qwen's own special tokens: ms-swift's template `qwen3_nothinking` writes them, the model must know them as one token.
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# What BPE never merges across: a JSON key with its punctuation, one Chinese character, one Latin word, one digit. Whole
# Chinese phrases as tokens would be learned by heart, and a request in other words would fall apart into bytes.
PIECE = (
    r'["\]},{]*"[a-z_]+":[\["]*|\p{Han}| ?[^\P{L}\p{Han}]+|\p{N}'
    r'|[^\p{L}\p{N}]+?(?=["\]},{]*"[a-z_]+":|\p{L}|\p{N}|$)'
)
VOCAB_SIZE = 3600  # a ceiling: the demo's text runs out of merges near 3,300; a plan is 26 tokens, not 53 as with 1,500
HIDDEN, LAYERS, HEADS, KV_HEADS, INTERMEDIATE = 192, 4, 4, 2, 576  # 2.4 M parameters with the tied embedding
MAX_POSITIONS = 512  # the longest demo prompt and plan together stay under 300 tokens


def training_texts(path: Path) -> Iterator[str]:
    """The contents of all messages of a JSONL set, one by one."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            for message in json.loads(line)["messages"]:
                yield message["content"]


def build(sft_file: Path, out: Path, seed: int) -> int:
    """Write tokenizer and model to `out` (atomically) and return the number of parameters."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    bpe = Tokenizer(models.BPE())
    # Digits stand alone (as in Qwen), so that a budget is copied digit by digit; a JSON key may merge with the
    # punctuation around it into one token.
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(Regex(PIECE), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(training_texts(sft_file), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT_TEMPLATE
    )
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HIDDEN // HEADS,
        intermediate_size=INTERMEDIATE,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    scratch = out.with_name(out.name + ".partial")
    shutil.rmtree(scratch, ignore_errors=True)
    model.save_pretrained(scratch)
    tokenizer.save_pretrained(scratch)
    shutil.rmtree(out, ignore_errors=True)
    os.replace(scratch, out)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/train/build_nano_model.py --sft build/demo/sft.jsonl --out build/demo/nano",
    )
    parser.add_argument("--sft", type=Path, required=True, help="SFT set (JSONL with messages) to learn the BPE from")
    parser.add_argument("--out", type=Path, required=True, help="folder to write; replaced if it exists")
    parser.add_argument("--seed", type=int, default=42, help="seed of the initial weights (default 42)")
    args = parser.parse_args()
    if not args.sft.is_file():
        print(f"--sft {args.sft} does not exist; make it with scripts/data/build_planner_sft.py", file=sys.stderr)
        return 2
    parameters = build(args.sft, args.out, args.seed)
    print(json.dumps({"out": str(args.out), "parameters": parameters, "seed": args.seed}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
