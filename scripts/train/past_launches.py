"""What the launches into one run folder were, by the manifests they left, and whether two of them scored alike."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.files import json_object
from scripts.train.manifest import MANIFEST


def launches(folder: Path) -> list[dict[str, Any]]:
    """The manifests of every launch into a run folder, oldest first; ValueError names a file that is no JSON object."""
    older = [path for path in folder.glob("planner_manifest.*.json") if path.name.split(".")[1].isdigit()]
    older.sort(key=lambda path: int(path.name.split(".")[1]))
    return [json_object(path) for path in (*older, folder / MANIFEST) if path.is_file()]


def reward_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What two `reward` entries do not share, in words; empty where they score alike (a file may have moved)."""
    words = []
    if before.get("sha256") != after.get("sha256"):
        shas = (str(entry.get("sha256"))[:12] for entry in (before, after))
        words.append("the reward file with sha256 {} became {}".format(*shas))
    weights = (before.get("weights") or {}, after.get("weights") or {})
    if weights[0] != weights[1]:
        words.append("the weights {} became {}".format(*(_shown_weights(entry) for entry in weights)))
    gates = (before.get("gates") or [], after.get("gates") or [])
    if sorted(gates[0]) != sorted(gates[1]):
        words.append("the gates {} became {}".format(*(",".join(entry) or "none" for entry in gates)))
    return words


def _shown_weights(weights: Mapping[str, float]) -> str:
    return " ".join(f"{name}={weight:.3g}" for name, weight in weights.items()) or "unknown"
