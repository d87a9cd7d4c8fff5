"""What a run's evaluations on the watch split say: did the held-out reward move, and which checkpoint is best."""

from dataclasses import dataclass

import numpy as np

from scripts.eval.grpo_log import GrpoRun, Series
from scripts.eval.grpo_segments import MIN_STEPS, trend
from scripts.eval.summary import paired_change


@dataclass(frozen=True)
class HeldOut:
    """Held-out change between early and late evaluations, with 95 % bounds, and what training did in that stretch.

    `rose`: beyond chance.
    """

    change: float
    low: float
    high: float
    rose: bool
    training: float
    basis: str


def held_out_change(run: GrpoRun) -> HeldOut | None:
    """By record where the traces hold the evaluations (two are enough), else a line through three or more of them."""
    reward = run.series("reward")
    if len(reward) < MIN_STEPS:
        return None
    slope = trend(reward).slope
    marks = [step for step in run.watch if step > 0]
    if len(marks) >= 2:
        half = len(marks) // 2
        early, late = marks[:half], marks[-half:]
        ids = sorted(set.intersection(*(set(run.watch[step]) for step in early + late)))
        if len(ids) >= 2:
            differences = [
                float(np.mean([run.watch[s][i] for s in late]) - np.mean([run.watch[s][i] for s in early])) for i in ids
            ]
            found = paired_change(differences)
            basis = f"{len(ids)} records, evaluations after {early} against {late}"
            gap = float(np.mean(late) - np.mean(early))
            return HeldOut(found.mean, found.low, found.high, found.moved > 0, slope * gap, basis)
    evaluations = run.eval_series("reward")
    if len(evaluations) < 3:
        return None
    line = trend(evaluations)
    span = float(evaluations.steps[-1] - evaluations.steps[0])
    basis = f"a line through {len(evaluations)} evaluations"
    return HeldOut(line.change, line.low, line.high, line.low > 0, slope * span, basis)


def best_checkpoint(run: GrpoRun) -> dict[str, object] | None:
    """The evaluation with the highest reward: its step, reward, checkpoint folder, and the steps it is tied with.

    `checkpoint` is None when that step was not kept. `tied_with`: evaluations from which the best cannot be told by
    record (known only with traces). None without evaluations, and where the reward changed on the way:
    evaluations by two rewards have no best.
    """
    series: Series = run.eval_series("reward")
    if not len(series) or run.reward_change is not None:
        return None
    index = int(series.values.argmax())
    step = int(series.steps[index])
    folder = run.folder / f"checkpoint-{step}"
    tied = []
    for other in (int(s) for s in series.steps if s != step):
        ids = sorted(run.watch.get(step, {}).keys() & run.watch.get(other, {}).keys())
        if len(ids) >= 2:
            if paired_change([run.watch[step][i] - run.watch[other][i] for i in ids]).moved <= 0:
                tied.append(other)
    return {
        "step": step,
        "reward": float(series.values[index]),
        "checkpoint": folder.name if folder.is_dir() else None,
        "evaluations": len(series),
        "tied_with": tied,
    }
