"""The checkpoints of a run folder that training can go on from."""

import json
from pathlib import Path

STATE = "trainer_state.json"  # transformers writes it last: where it is whole, what comes before it is too


def is_whole(checkpoint: Path) -> bool:
    """Whether the checkpoint was written to its end; a run killed while saving leaves one that was not."""
    try:
        state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(state, dict) and "global_step" in state


def whole_checkpoints(run: Path) -> list[Path]:
    """The run's checkpoint-N folders that are whole, by step."""
    found = [path for path in run.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    return sorted(
        (path for path in found if is_whole(path)), key=lambda path: int(path.name.removeprefix("checkpoint-"))
    )
