"""Write planner_manifest.json into the run folder: what exactly is about to be trained, on what, and how it is scored.

    python -m scripts.train.manifest grpo --out runs/r3 -- <the arguments of swift rlhf>

It is written before training starts. A manifest already there (a resumed run) is kept as planner_manifest.1.json, ...
"""

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from scripts.files import write_atomically
from scripts.train.dataset_check import load
from scripts.train.swift_args import (
    CHECKOUT,
    SECRET_FLAG,
    SwiftArgs,
    mask_secrets,
    parse,
    split_at_dashes,
    without_password,
)
from swift_plugin.encoders import make_encoder
from swift_plugin.reward_loader import load_reward
from swift_plugin.settings import MASK, Settings, known_variables, public_url
from swift_plugin.stores import make_store

MANIFEST = "planner_manifest.json"
FORMAT = 1
COMMANDS = {"grpo": "rlhf", "sft": "sft"}  # the launcher's name -> swift's command
PACKAGES = (
    "torch", "ms-swift", "transformers", "trl", "peft", "accelerate", "tokenizers", "datasets", "vllm", "deepspeed",
    "qdrant-client", "qdrant-edge-py", "FlagEmbedding", "numpy",
)  # fmt: skip
# Not the kit's own, but they decide how a run is laid out, and in which order a CPU adds up.
LAYOUT_VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "NPROC_PER_NODE", "NNODES", "NODE_RANK", "OMP_NUM_THREADS", "USE_HF",
    "ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA",
)  # fmt: skip


def git_state(checkout: Path) -> dict[str, Any]:
    """Commit and whether tracked or unignored files differ from it; None where this is no git checkout."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(checkout), *arguments], capture_output=True, text=True, timeout=30, check=False
            )
        except FileNotFoundError:  # no git on this machine
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    status = git("status", "--porcelain")
    return {"commit": git("rev-parse", "HEAD"), "dirty": None if status is None else bool(status)}


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Every variable of the kit that is set, and those that lay out the processes; secrets masked, also in URLs."""
    shown = {
        name: MASK if variable.secret else _without_secrets(name, environ[name])
        for name, variable in known_variables().items()
        if environ.get(name, "").strip()
    }
    return dict(sorted({**shown, **{name: environ[name] for name in LAYOUT_VARIABLES if name in environ}}.items()))


def _without_secrets(name: str, value: str) -> str:
    # A URL whose scheme was left out may hold a password all the same; a path may hold @ and ?.
    return public_url(value) if "://" in value or name.endswith("_URL") else value


def package_versions() -> dict[str, str | None]:
    """Versions of the packages that decide a result; None where one is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def hardware() -> dict[str, Any]:
    """Processor, memory and GPUs of this machine."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        gpus = listed.stdout.strip().splitlines() if listed.returncode == 0 else []
    except FileNotFoundError:
        gpus = []
    return {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": gpus,
    }


def retrieval(settings: Settings, words: Any) -> dict[str, Any]:
    """Store and encoder as they answer now; null entries with retrieval switched off."""
    if not settings.retrieval:
        return {"store": None, "encoder": None}
    store = make_store(settings)
    try:
        info = store.describe()
    finally:
        store.close()
    return {
        "store": {
            "kind": info.kind,
            "name": info.name,
            "collection": settings.collection if info.kind == "qdrant" else None,
            "points": info.points,
            "vector_size": info.vector_size,
            "built_with": info.encoder,
        },
        "encoder": make_encoder(settings, words).name,
    }


def build(kind: str, line: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """The manifest of one run, JSON-ready.

    Args:
        kind: grpo or sft.
        line: the arguments of swift, in order.
        environ: the variables the run gets.
    """
    command = COMMANDS[kind]
    args = parse(command, line)
    settings = Settings.from_env(environ)
    reward = load_reward(settings.reward_file)
    manifest = {
        "format": FORMAT,
        "kind": kind,
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(["swift", command, *mask_secrets(command, line)]),
        "arguments": _shown_arguments(args),
        "git": git_state(CHECKOUT),
        "prompt": settings.prompt,
        "variables": variables(environ),
        "settings": settings.public(),
        "datasets": {
            role: [load(argument).facts() for argument in args[name] or []]
            for role, name in (("train", "dataset"), ("watch", "val_dataset"))
        },
        "reward": {
            "file": str(settings.reward_file),
            "sha256": reward.sha256,
            "weights": dict(reward.weights_from_env(environ)),
            "gates": list(reward.gates_from_env(environ)),
        },
        "packages": package_versions(),
        "hardware": hardware(),
    }
    if kind == "grpo":  # SFT asks neither store nor encoder
        manifest["retrieval"] = retrieval(settings, reward.words)
    return manifest


def _shown_arguments(args: SwiftArgs) -> dict[str, Any]:
    """The arguments the line gives, as they take effect; ms-swift writes all of them to args.json beside."""
    return {name: (MASK if SECRET_FLAG.search(name) else _shown(args[name])) for name in sorted(args.given)}


def _shown(value: Any) -> Any:
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return without_password(value) if isinstance(value, str) else value


def write(folder: Path, manifest: Mapping[str, Any]) -> Path:
    """Write the manifest atomically; an older one keeps its content under the next free number."""
    path = folder / MANIFEST
    if path.exists():
        number = 1
        while (folder / f"planner_manifest.{number}.json").exists():
            number += 1
        os.replace(path, folder / f"planner_manifest.{number}.json")
    write_atomically(path, json.dumps(manifest, ensure_ascii=False, indent=2) + "\n")
    return path


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python -m scripts.train.manifest sft --out runs/sft-1 -- --dataset build/demo/sft.jsonl",
    )
    parser.add_argument("kind", choices=sorted(COMMANDS), help="which launcher asks")
    parser.add_argument("--out", type=Path, required=True, help="run folder; made if missing")
    own, line = split_at_dashes(sys.argv[1:] if argv is None else argv)
    options = parser.parse_args(own)
    path = write(options.out, build(options.kind, line, os.environ))
    print(f"manifest: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
