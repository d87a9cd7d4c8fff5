"""What ms-swift must be told of a model, its type and its template: the same in training, evaluation and merging.

A local folder does not tell ms-swift which of its Qwen3 types it is, and a wrong template asks for plans with another
prompt than the model was trained on: scores fall, and nothing says why. A trained folder says itself what it was
trained with (ms-swift writes args.json beside the weights); the rest is the launchers' defaults.
"""

import json
from pathlib import Path

TEMPLATE = "qwen3_nothinking"  # `qwen3` would train an empty think block that GRPO's prompt does not open
# model_type of config.json -> ms-swift's model type and template for it.
KNOWN = {"qwen3": ("qwen3", TEMPLATE), "llama": ("llama", "chatml")}
ARGUMENTS = "args.json"


def trained_names(folder: str | Path) -> tuple[str, str] | None:
    """ms-swift's model type and template that the weights in `folder` were trained with; None without an args.json.

    Raises ValueError for an args.json that is none.
    """
    file = Path(folder).expanduser() / ARGUMENTS
    if not file.is_file():
        return None
    try:
        arguments = json.loads(file.read_text(encoding="utf-8"))
        names = arguments["model_type"], arguments["template"]
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"model_type and template are {names}")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is no args.json of ms-swift ({error!r}); train again, or take it away") from None
    return names


def swift_names(model: str, adapter: str | None = None) -> tuple[str | None, str]:
    """ms-swift's model type (None: a hub id tells it) and template for `model` with `adapter` on it.

    Raises ValueError for a folder that no training left and whose architecture the kit does not know.
    """
    for folder in (adapter, model):
        names = trained_names(folder) if folder else None
        if names:
            return names
    if not Path(model).is_dir():
        return None, TEMPLATE
    config = Path(model) / "config.json"
    architecture = json.loads(config.read_text(encoding="utf-8"))["model_type"]
    if architecture not in KNOWN:
        raise ValueError(
            f"{config} says model_type {architecture!r}, and no {ARGUMENTS} beside it says with which template it was"
            f" trained; the kit knows the template of {' and '.join(KNOWN)}. Ways out: name the folder a launcher"
            " trained (the adapter's decides), or serve the model and name it with --endpoint"
        )
    return KNOWN[architecture]
