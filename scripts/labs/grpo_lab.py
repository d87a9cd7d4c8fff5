"""Lab: beta, learning rate and group size on a policy of one number, and which reward faults the group mean removes.

The policy writes a number x ~ N(θ, 1); the reference is N(0, 1), so KL = θ²/2. The reward that trains is x itself: it
can be raised for ever, as a proxy can. True quality is x·(8 − x)/16: it rises with the reward up to θ 4 and falls
after. One step of GRPO on GROUPS groups, advantages by reward.group_stats, on-policy (no clipping needed):

    θ ← θ + lr · (mean of advantage · (x − θ)  −  beta · θ)

The gradient of the reward is about 1, so θ rests near 1/beta: a large beta plateaus early, beta 0 never rests. Above
lr · beta = 2 the pull to the reference overshoots and θ oscillates away.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reward.group_stats import group_advantages
from scripts.labs.tables import table

Rewards = NDArray[np.float64]
Schedule = Callable[[int, float], float]  # (step, KL now) -> beta

STEPS = 400
GROUPS = 16
GROUP = 8
LR = 0.05
BETA = 0.25
SEED = 42
RUNAWAY = 1e6  # a θ beyond it has diverged; the run is cut there
TARGET_KL = 6.0
ADAPT_GAIN, ADAPT_CLIP = 0.1, 0.2  # beta ← beta · (1 + gain · clip(KL / target − 1, ±0.2)), arXiv 1909.08593


def true_quality(theta: float) -> float:
    """E[x·(8 − x)/16] under N(θ, 1): what the shopper gets, against the reward's θ."""
    return (8 * theta - theta**2 - 1) / 16


def kl(theta: float) -> float:
    """KL(N(θ, 1) ‖ N(0, 1))."""
    return theta**2 / 2


@dataclass(frozen=True)
class Run:
    """θ and beta after each step, θ 0 first; shorter than the steps asked for when θ ran away."""

    thetas: tuple[float, ...]
    betas: tuple[float, ...]

    @property
    def final(self) -> float:
        """θ averaged over the last tenth of the run, which the noise of single steps does not move."""
        return float(np.mean(self.thetas[-max(1, len(self.thetas) // 10) :]))

    @property
    def slope(self) -> float:
        """θ gained per step over the last quarter: about 0 where the run rests."""
        tail = self.thetas[-max(2, len(self.thetas) // 4) :]
        return float((tail[-1] - tail[0]) / (len(tail) - 1))


def constant(beta: float) -> Schedule:
    return lambda step, now: beta


def ramped(beta: float, steps: int = STEPS) -> Schedule:
    """From 0 up to `beta` over the first half: explore first, then hold."""
    return lambda step, now: beta * min(1.0, 2 * step / steps)


class Adaptive:
    """Beta that steers the KL to a target, from wherever it starts."""

    def __init__(self, beta: float, target: float = TARGET_KL) -> None:
        self.beta, self.target = beta, target

    def __call__(self, step: int, now: float) -> float:
        error = min(ADAPT_CLIP, max(-ADAPT_CLIP, now / self.target - 1))
        self.beta *= 1 + ADAPT_GAIN * error
        return self.beta


def train(schedule: Schedule, *, lr: float = LR, group: int = GROUP, steps: int = STEPS, seed: int = SEED) -> Run:
    """Train θ from 0 under the schedule of beta."""
    draw = np.random.default_rng(seed)
    thetas, betas = [0.0], [schedule(0, 0.0)]
    for step in range(steps):
        theta = thetas[-1]
        beta = schedule(step, kl(theta))
        noise = draw.standard_normal((GROUPS, group))
        gain = float(np.mean(group_advantages(theta + noise) * noise))
        thetas.append(theta + lr * (gain - beta * theta))
        betas.append(beta)
        if abs(thetas[-1]) > RUNAWAY:
            break
    return Run(tuple(thetas), tuple(betas))


SETTLED_SHARE = 0.1


def verdict(run: Run) -> str:
    """Where the run stands, by its second half: resting early or near the best θ, still on its way, or running away.

    Beyond θ 8 the true quality is below 0, where it began.
    """
    half = run.thetas[len(run.thetas) // 2]
    settled = abs(run.final - half) <= SETTLED_SHARE * abs(run.final)
    if abs(run.final) > 8 and not settled:
        return "diverges"
    if run.final < 2:
        return "plateaus early" if settled else "barely moved"
    return "near the best"


# ---------------------------------------------------------------------------------------------- experiments

BETAS = (2.0, 1.0, BETA, 0.02, 0.0)
LEARNING_RATES = (1e-5, LR, 9.0)
GROUP_SIZES = (2, 4, 8, 16, 32)
BASELINE_GROUPS = 20_000


def beta_runs() -> dict[str, Run]:
    return {f"{beta:g}": train(constant(beta)) for beta in BETAS}


def lr_runs() -> dict[str, Run]:
    return {f"{lr:g}": train(constant(BETA), lr=lr) for lr in LEARNING_RATES}


def schedule_runs() -> dict[str, Run]:
    """The adaptive one starts from a beta that, held constant, plateaus."""
    return {
        f"constant {BETA:g}": train(constant(BETA)),
        f"ramped 0 to {BETA:g}": train(ramped(BETA)),
        "constant 2": train(constant(2.0)),
        "adaptive from 2": train(Adaptive(2.0)),
    }


def baseline_sigma(group: int, seed: int = SEED) -> float:
    """σ of the group's mean, the baseline, over many groups of rewards with σ 1."""
    rewards = np.random.default_rng(seed).standard_normal((BASELINE_GROUPS, group))
    return float(rewards.mean(axis=1).std())


@dataclass(frozen=True)
class Fault:
    """What a fault in the reward does to the advantages of a batch.

    moved: the largest change of any advantage. long: mean advantage of the completions longer than their group's mean.
    drift: θ_length after the training steps, where the policy chooses length alone and quality does not depend on it.
    """

    moved: float
    long: float
    drift: float


SHIFT = 5.0
LENGTH_PAY = 0.5  # of reward per σ of length


def reward_faults(seed: int = SEED) -> dict[str, Fault]:
    """A constant added to every reward, and pay for length, against the honest reward."""
    faults: dict[str, Callable[[Rewards, Rewards], Rewards]] = {
        "honest": lambda quality, length: quality,
        "constant shift": lambda quality, length: quality + SHIFT,
        "length bias": lambda quality, length: quality + LENGTH_PAY * length,
    }
    draw = np.random.default_rng(seed)
    quality, length = draw.standard_normal((2, 2_000, GROUP))
    longer = length > length.mean(axis=1, keepdims=True)
    honest = group_advantages(quality)
    found = {}
    for name, fault in faults.items():
        advantages = group_advantages(fault(quality, length))
        found[name] = Fault(
            moved=float(np.abs(advantages - honest).max()),
            long=float(advantages[longer].mean()),
            drift=_length_drift(fault, seed),
        )
    return found


def _length_drift(fault: Callable[[Rewards, Rewards], Rewards], seed: int) -> float:
    draw = np.random.default_rng(seed)
    theta = 0.0
    for _ in range(STEPS):
        quality, noise = draw.standard_normal((2, GROUPS, GROUP))
        theta += LR * float(np.mean(group_advantages(fault(quality, theta + noise)) * noise))
    return theta


# ---------------------------------------------------------------------------------------------- the tables


def _number(value: float) -> str:
    return f"{round(value, 3) + 0.0:.3f}" if abs(value) < 1e4 else f"{value:.0e}"  # + 0.0: no minus zero


def _run_table(heading: str, label: str, runs: dict[str, Run]) -> str:
    rows = [
        (
            name,
            _number(run.final),
            _number(run.slope),
            _number(kl(run.final)),
            _number(true_quality(run.final)),
            f"{run.betas[-1]:.3f}",
            verdict(run),
        )
        for name, run in runs.items()
    ]
    return table(heading, (label, "reward θ", "per step", "KL", "true quality", "last beta", "verdict"), rows)


def report() -> str:
    groups = [
        (str(group), f"{baseline_sigma(group):.3f}", f"{group**-0.5:.3f}", _number(run.final))
        for group, run in ((group, train(constant(BETA), group=group)) for group in GROUP_SIZES)
    ]
    faults = [
        (name, f"{fault.moved:.3f}", f"{fault.long + 0.0:+.3f}", f"{fault.drift + 0.0:+.3f}")
        for name, fault in reward_faults().items()
    ]
    return "\n".join(
        [
            _run_table(f"beta (lr {LR:g}, {STEPS} steps)", "beta", beta_runs()),
            _run_table(f"learning rate (beta {BETA:g})", "lr", lr_runs()),
            _run_table(f"schedules of beta (adaptive: KL target {TARGET_KL:g})", "schedule", schedule_runs()),
            table("group size", ("group", "σ of the baseline", "1/√group", "reward θ"), groups),
            table("faults of the reward", ("reward", "advantage moved", "of the long", "length after"), faults),
            "A constant added to every reward leaves no trace: the group's mean takes it away. Pay for length differs"
            "\nwithin the group, so it survives the mean and the policy grows longer.",
        ]
    )


def plot(folder: Path) -> list[Path]:
    """Write beta.png, lr.png, schedules.png and groups.png to `folder`; returns their paths."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    written = []

    def save(figure: Any, name: str) -> None:
        partial = folder / f"{name}.partial"
        figure.savefig(partial, format="png", dpi=110, bbox_inches="tight")
        plt.close(figure)
        os.replace(partial, folder / name)
        written.append(folder / name)

    for name, runs in (("beta", beta_runs()), ("lr", lr_runs()), ("schedules", schedule_runs())):
        figure, axes = plt.subplots(figsize=(7, 4))
        for label, run in runs.items():
            axes.plot(run.thetas, label=label)
        axes.axhline(4, color="grey", linestyle=":", label="best true quality")
        axes.set(xlabel="step", ylabel="reward θ", title=name, ylim=(-4, 20))
        axes.legend()
        save(figure, f"{name}.png")
    figure, axes = plt.subplots(figsize=(7, 4))
    axes.plot(GROUP_SIZES, [baseline_sigma(group) for group in GROUP_SIZES], "o", label="measured")
    axes.plot(GROUP_SIZES, [group**-0.5 for group in GROUP_SIZES], label="1/√group")
    axes.set(xlabel="group size", ylabel="σ of the baseline", title="groups")
    axes.legend()
    save(figure, "groups.png")
    return written


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/labs/grpo_lab.py --plots build/labs",
    )
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="also draw the runs there, as PNG")
    args = parser.parse_args(argv)
    print(report())
    if args.plots is not None:
        try:
            written = plot(args.plots)
        except OSError as error:
            print(f"refused: --plots {args.plots}: {error}", file=sys.stderr)
            return 2
        print("plots: " + ", ".join(map(str, written)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
