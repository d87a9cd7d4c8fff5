"""The same completion, scored in other company, gets the same reward to the bit: in batches of any size and order."""

import json
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from swift_plugin.rollout_env import RolloutEnv
from swift_plugin.settings import Settings

Row = Mapping[str, Any]


def compare_rewards(
    settings: Settings, scored: Sequence[tuple[int, Sequence[tuple[Row, str]]]], seed: int
) -> dict[str, Any]:
    """Score every run in batches of its own size and all of them once more, shuffled: equal completions, equal bits.

    Args:
        scored: for each run its batch size, and the row and the text of every completion.
        seed: shuffles the second pass.

    Returns: `compared` (prompt and completion that were scored more than once), `unequal`, `mean_reward`.
    """
    everything = [item for _, items in scored for item in items]
    shuffled = random.Random(seed).sample(everything, len(everything))
    seen: dict[tuple[str, str], set[str]] = {}
    counts: dict[tuple[str, str], int] = {}
    total = 0.0
    passes = [*scored, (len(shuffled), shuffled)]
    with tqdm(total=sum(len(items) for _, items in passes), desc="rewards", unit="completion", file=sys.stderr) as bar:
        for size, items in passes:
            env = RolloutEnv.from_settings(settings, environ={})  # a cache of its own; the default weights
            try:
                for start in range(0, len(items), size):
                    part = items[start : start + size]
                    for (row, text), breakdown in zip(part, _score(env, part), strict=True):
                        key = (row["id"], text)
                        # repr of a float, as json writes it, differs exactly where a bit does.
                        seen.setdefault(key, set()).add(json.dumps(breakdown, sort_keys=True))
                        counts[key] = counts.get(key, 0) + 1
                        total += breakdown["total"]
                    bar.update(len(part))
            finally:
                env.close()
    return {
        "distinct_completions": len(seen),
        "compared": sum(count > 1 for count in counts.values()),
        "unequal": sum(len(values) > 1 for values in seen.values()),
        "mean_reward": total / sum(counts.values()),
    }


def _score(env: RolloutEnv, part: Sequence[tuple[Row, str]]) -> list[dict[str, Any]]:
    breakdowns = env.score(
        [text for _, text in part],
        [row["golden_json"] for row, _ in part],
        [row["text"] for row, _ in part],
        ids=[row["id"] for row, _ in part],
        splits=[row["split"] for row, _ in part],
        step=None,
    )
    return [breakdown.to_dict() for breakdown in breakdowns]
