"""Runs a row of stages of known length and says before each one how much time is left."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.demo.stages import Stage, run_stage


@dataclass(frozen=True)
class Planned:
    """A stage, where its stamp lies, and the minutes it takes on 2 quiet cores."""

    stage: Stage
    stamps: Path
    minutes: float


def time_left(minutes: Sequence[float], measured: Sequence[tuple[float, float]]) -> float:
    """Minutes that the remaining stages take on this machine.

    Args:
        minutes: what they take on 2 quiet cores.
        measured: for every stage that has run here from its start to its end, what it took there and here.

    >>> time_left([60, 10], [(2, 3), (8, 12)])
    105.0
    """
    pace = sum(here for _, here in measured) / sum(there for there, _ in measured) if measured else 1.0
    return pace * sum(minutes)


def run_planned(planned: Sequence[Planned]) -> dict[str, int]:
    """Run the stages in order; returns their exit codes by name. Raises StageFailed."""
    codes: dict[str, int] = {}
    measured: list[tuple[float, float]] = []
    for place, item in enumerate(planned):
        left = time_left([later.minutes for later in planned[place:]], measured)
        print(f"-- stage {place + 1} of {len(planned)}; at most some {left:.0f} minutes left", flush=True)
        stamp = item.stamps / f"{item.stage.name}.json"
        kept, begun = stamp_time(stamp), (item.stamps / f"{item.stage.name}.begun").exists()
        started = time.monotonic()
        codes[item.stage.name] = run_stage(item.stage, item.stamps)
        if not begun and stamp_time(stamp) != kept:
            measured.append((item.minutes, (time.monotonic() - started) / 60))
    return codes


def stamp_time(stamp: Path) -> int | None:
    """When a stamp was written, in ns; None without one."""
    return stamp.stat().st_mtime_ns if stamp.exists() else None
