"""Rows encoded by ms-swift's own template, so that what is counted and shown is what is trained.

Everything here imports swift (some 15 seconds); callers that can decide without it should.
"""

import contextlib
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.train.swift_args import SwiftArgs

# The template's settings that an argument of the same meaning changes: template keyword -> swift argument.
TEMPLATE_ARGUMENTS = {
    "loss_scale": "loss_scale",
    "enable_thinking": "enable_thinking",
    "add_non_thinking_prefix": "add_non_thinking_prefix",
    "response_prefix": "response_prefix",
    "use_chat_template": "use_chat_template",
    "template_backend": "template_backend",
}
NO_LOSS = -100  # label of a token that is not trained


@dataclass(frozen=True)
class EncodedRow:
    """One row as token ids.

    `trained[i]` tells whether token i takes part in the loss. A GRPO row ends where the model starts to write.
    """

    ids: tuple[int, ...]
    trained: tuple[bool, ...]


class RowEncoder:
    """Encodes dataset rows as `swift sft` or `swift rlhf --rlhf_type grpo` would with these arguments.

    Args:
        args: the effective arguments; model, model_type and template decide.
    """

    def __init__(self, args: SwiftArgs):
        with contextlib.redirect_stdout(sys.stderr):  # swift logs its start-up to wherever stdout points
            from swift.model import get_processor
            from swift.template import get_template
            from swift.utils import get_logger

            get_logger().setLevel(logging.ERROR)  # the training run itself says all of it again
            processor = get_processor(args["model"], model_type=args["model_type"], revision=args["model_revision"])
            given = {
                keyword: args[name]
                for keyword, name in TEMPLATE_ARGUMENTS.items()
                if name in args.values and args[name] is not None
            }
            system = args["system"]
            if system is not None and system.endswith(".txt"):  # swift takes such a value for a file
                system = Path(system).read_text(encoding="utf-8")
            given["default_system"] = system
            self._template = get_template(processor, template_type=args["template"], max_length=sys.maxsize, **given)
        self._generates = args.command == "rlhf"
        self._template.set_mode("transformers" if self._generates else "train")
        self.tokenizer = self._template.tokenizer

    def encode(self, row: Mapping[str, Any]) -> EncodedRow:
        """The row's tokens: for SFT prompt and answer, for GRPO the prompt, where a last answer is dropped."""
        messages = [dict(message) for message in row["messages"]]
        if self._generates and messages[-1]["role"] == "assistant":
            messages.pop()
        encoded = self._template.encode({"messages": messages})
        ids = encoded["input_ids"]
        labels = encoded.get("labels") or [NO_LOSS] * len(ids)
        return EncodedRow(tuple(ids), tuple(label != NO_LOSS for label in labels))
