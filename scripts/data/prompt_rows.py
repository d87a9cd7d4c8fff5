"""A line of a data set: the prompt with what judges its answer. Every builder makes its rows here."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from swift_plugin.prompts import build_messages


def prompt_row(
    identity: str,
    text: str,
    prior_context: Sequence[str],
    *,
    family: str,
    split: str,
    golden: Mapping[str, Any],
    style: str,
) -> dict[str, Any]:
    """The row without an answer; the golden record stands beside the prompt as a JSON string (DESIGN section 4)."""
    return {
        "id": identity,
        "messages": build_messages(text, prior_context, style),
        "text": text,
        "prior_context": list(prior_context),
        "family": family,
        "split": split,
        "golden_json": json.dumps(golden, ensure_ascii=False),
    }
