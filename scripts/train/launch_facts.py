"""What preflight judges: one launch, with its effective arguments and the machine it is meant for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scripts.train.swift_args import SwiftArgs
from swift_plugin.settings import Settings


@dataclass(frozen=True)
class Launch:
    """One launch, before anything of it has started.

    Attributes:
        kind: grpo, sft or rollout.
        args: the effective arguments of swift.
        settings: of the rollout environment.
        environ: the variables the launch will run with.
        processes: training processes over all nodes.
        dry_run: only print the command; what the machine lacks is then a warning.
        visible_gpus: what the machine offers, by the ids of CUDA_VISIBLE_DEVICES or nvidia-smi.
        train_gpus, rollout_gpus: what this kit would use of it; train_gpus is empty for training on a CPU.
        lora_cap: LoRA rank that the rollout server takes at most when both launchers are left to themselves.
        lora_ranks: values that vLLM allows for that cap.
    """

    kind: str
    args: SwiftArgs
    settings: Settings
    environ: Mapping[str, str]
    processes: int = 1
    dry_run: bool = False
    visible_gpus: tuple[str, ...] = ()
    train_gpus: tuple[str, ...] = ()
    rollout_gpus: tuple[str, ...] = ()
    lora_cap: int = 16
    lora_ranks: tuple[int, ...] = ()

    @property
    def first_node(self) -> bool:
        """Whether this is the node of rank 0, which alone talks to the rollout server."""
        return self.environ.get("NODE_RANK", "").strip() in ("", "0")

    @property
    def uses_rollout_server(self) -> bool:
        """Whether rollouts come from a vLLM server of their own."""
        return self.kind == "grpo" and bool(self.args["use_vllm"]) and self.args["vllm_mode"] == "server"


def processes(environ: Mapping[str, str]) -> int:
    """Training processes over all nodes, as swift counts them (NPROC_PER_NODE and NNODES); raises ValueError."""
    return _count(environ, "NPROC_PER_NODE") * _count(environ, "NNODES")


def _count(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "").strip() or "1"
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{name}={text!r} is no number of 1 or more: unset it or give one")
    return int(text)


@dataclass
class Findings:
    """What preflight found: each text says what is wrong and then the way out."""

    refusals: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # shown in one line when all is well

    def refuse(self, text: str) -> None:
        self.refusals.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def lacking(self, launch: Launch, text: str) -> None:
        """Something the machine lacks right now: a dry run on another machine may go on without it."""
        if launch.dry_run:
            self.warn(f"{text} (a real run would be refused)")
        else:
            self.refuse(text)
