"""The curves of a run as one PNG: reward, KL, loss, sigma, length, parse failures and every dimension."""

import os
from pathlib import Path

import numpy as np

from scripts.eval.grpo_log import PLUGIN, GrpoRun, Series

COLUMNS = 4
WINDOW = 10  # at most, steps of the running mean


def panels(run: GrpoRun) -> list[tuple[str, str]]:
    """Title and metric of every panel, the dimensions last."""
    sigma = PLUGIN + "sigma" if len(run.series(PLUGIN + "sigma")) else "reward_std"
    fixed = [
        ("reward", "reward"),
        ("KL to the reference", "kl"),
        ("loss", "loss"),
        ("σ within a group", sigma),
        ("length in tokens", "completions/mean_length"),
        ("parse failures", PLUGIN + "parse_failures"),
        ("entropy", "entropy/mean"),
        ("gradient norm", "grad_norm"),
    ]
    return fixed + list(run.dimensions.items())


def running_mean(series: Series) -> np.ndarray:
    """Mean over the last WINDOW steps (a fifth of a short run), of the length of the series."""
    width = max(1, min(WINDOW, len(series) // 5))
    sums = np.cumsum(np.insert(series.values, 0, 0.0))
    starts = np.maximum(np.arange(1, len(series) + 1) - width, 0)
    ends = np.arange(1, len(series) + 1)
    return (sums[ends] - sums[starts]) / (ends - starts)


def draw(run: GrpoRun, file: Path, title: str) -> None:
    """Write the PNG: thin every step, thick the running mean, dots the evaluations on the watch split."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = panels(run)
    rows = -(-len(shown) // COLUMNS)
    figure = Figure(figsize=(4 * COLUMNS, 2.6 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    for axis, (name, metric) in zip(axes, shown, strict=False):
        series, evaluations = run.series(metric), run.eval_series(metric)
        axis.set_title(name, fontsize=10)
        axis.tick_params(labelsize=8)
        if not len(series):
            axis.text(0.5, 0.5, "not in the log", ha="center", va="center", transform=axis.transAxes, color="0.5")
            continue
        axis.plot(series.steps, series.values, color="tab:blue", alpha=0.35, linewidth=0.8)
        axis.plot(series.steps, running_mean(series), color="tab:blue", linewidth=1.8, label="training")
        if len(evaluations) and metric != "loss":
            axis.plot(evaluations.steps, evaluations.values, "o", color="tab:red", markersize=4, label="watch split")
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    axes[0].legend(fontsize=8)
    figure.suptitle(title, fontsize=11)
    partial = file.with_name(file.name + ".partial")
    figure.savefig(partial, dpi=100, format="png")
    os.replace(partial, file)
