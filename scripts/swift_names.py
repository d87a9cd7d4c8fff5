"""What ms-swift must be told of a model, its type and its template: the same in training, evaluation and merging.

A local folder does not tell ms-swift which of its Qwen3 types it is, and a wrong template asks for plans with another
prompt than the model was trained on: scores fall, and nothing says why. A trained folder says itself what it was
trained with (ms-swift writes args.json beside the weights); the rest is the launchers' defaults.
"""

import json
import re
from pathlib import Path

TEMPLATE = "qwen3_nothinking"  # `qwen3` would train an empty think block that GRPO's prompt does not open
# model_type of config.json -> ms-swift's model type and template for it.
KNOWN = {"qwen3": ("qwen3", TEMPLATE), "llama": ("llama", "chatml")}
QWEN3 = re.compile("qwen3(?![.])", re.IGNORECASE)  # in a hub id; Qwen3.5 is another architecture
ARGUMENTS = "args.json"


def is_hub_id(model: str) -> bool:
    """Whether `model` is org/name of a hub and not a folder, there or not.

    >>> is_hub_id("Qwen/Qwen3-4B-Instruct-2507"), is_hub_id("/models/Qwen3-4B"), is_hub_id("runs/sft-1/checkpoint-9")
    (True, False, False)
    """
    looks_so = model.count("/") == 1 and not model.startswith((".", "/", "~"))
    return looks_so and not Path(model).parent.is_dir()  # runs/sft-1 is meant for a folder, also when it is missing


def architecture(model: str | Path) -> str | None:
    """`model_type` of the folder's config.json; None without that file. Raises ValueError for one that is none."""
    file = Path(model).expanduser() / "config.json"
    if not file.is_file():
        return None
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["model_type"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is no model's configuration ({error!r}); copy it from the model's page") from None


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

    Raises FileNotFoundError for a folder that is not there, and ValueError for a model that no training left and whose
    architecture the kit does not know, or whose hub id does not tell it.
    """
    for folder in (adapter, model):
        if folder and not Path(folder).expanduser().is_dir() and (folder == adapter or not is_hub_id(folder)):
            raise FileNotFoundError(f"{folder} does not exist; train it first, or name a model of the hub as org/name")
    for folder in (adapter, model):
        names = trained_names(folder) if folder else None
        if names:
            return names
    if is_hub_id(model) and not Path(model).is_dir():
        if not QWEN3.search(model):
            raise ValueError(
                f"{model} is not named as a Qwen3 model, and a hub id does not tell its template. Ways out: download it"
                " and name its folder; name the adapter a launcher trained on it; serve it, and name it with --endpoint"
            )
        return None, TEMPLATE
    found = architecture(model)
    if found not in KNOWN:
        raise ValueError(
            f"{Path(model) / 'config.json'} says model_type {found!r}, and no {ARGUMENTS} beside it says with which"
            f" template it was trained; the kit knows that of {' and '.join(KNOWN)}. Ways out: name the folder a"
            " launcher trained (the adapter's decides), or serve the model and name it with --endpoint"
        )
    return KNOWN[found]
