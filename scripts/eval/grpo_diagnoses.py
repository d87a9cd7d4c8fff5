"""What is wrong with a GRPO run: each diagnosis with its evidence and what to do. Pure functions of a run.

A diagnosis is `bad` (the verdict is bad) or `warn`. A check whose evidence is missing says so in `not_judged`, so that
silence always means that the check was made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from scripts.eval.grpo_held_out import held_out_change
from scripts.eval.grpo_lines import LOWER_RATE, Line, in_words, kl_band, kl_line
from scripts.eval.grpo_log import PLUGIN, GrpoRun
from scripts.eval.grpo_segments import (
    ALPHA,
    MIN_STEPS,
    Trend,
    change_point,
    last_mean,
    segments,
    trend,
)
from scripts.eval.summary import holm
from scripts.eval.weight_change import NotComparable, weight_change
from scripts.train.launch_facts import Findings, Launch, processes
from scripts.train.preflight_arguments import check_batches
from scripts.train.swift_args import SwiftArgs
from swift_plugin.settings import Settings
from swift_plugin.step_stats import TIED_SIGMA

TIED_SHARE = 0.5  # of the groups: half of every batch is computed for nothing
NO_GRADIENT = 1e-9
NOT_UPDATING_SHARE = 0.5  # of the steps
PARSE_JUMP = 0.05  # of the completions, from before a change point to after it
REWARD_DROP = 0.2  # the same for the reward, where parse failures are not known
LENGTH_FACTOR = 1.5
CLIPPED_SHARE = 0.05
ENTROPY_FACTOR = 0.5
DIMENSION_CHANGE = 0.02
HELD_OUT_SHARE = 0.25  # of the training's rise: a held-out change below it is bad, above it only lags behind
WEIGHTS_MOVED = 0.01  # the original's r1 moved its adapter by 0.23 % in 202 steps and learned nothing; r3 moved on
# Mismatch of rollout engine and trainer, ms-swift's names: limit, and whether it is an upper one. A token ratio with a
# standard deviation of 0.3 has a KL of 0.05 and a chi2 of 0.1; heavy tails lift chi2 first.
ENGINE = {"kl": (0.05, True), "chi2_token": (0.5, True), "chi2_seq": (0.5, True), "ess": (0.5, False),
          "clipped_frac": (0.05, True)}  # fmt: skip
ENGINE_PREFIX = "rollout_correction/"
# Without these nothing is judged; args.json holds all arguments, a manifest those that the launcher gave.
BATCH_NEEDS = ("num_generations", "per_device_train_batch_size")
# ms-swift's own defaults of the others that check_batches reads.
BATCH_DEFAULTS = {
    "num_generations_eval": None, "gradient_accumulation_steps": 1, "generation_batch_size": None,
    "steps_per_generation": None, "val_dataset": [], "eval_strategy": None, "metric_for_best_model": None,
    "save_steps": None, "eval_steps": None, "save_strategy": "steps",
}  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    name: str
    severity: str
    evidence: str
    remedy: str


@dataclass(frozen=True)
class NotJudged:
    name: str
    missing: str


Found = Diagnosis | NotJudged | None


def diagnose(run: GrpoRun, band: tuple[float, float] | None = None) -> tuple[list[Diagnosis], list[NotJudged]]:
    """All checks on one run: what was found, and what could not be judged."""
    checks: tuple[Callable[[GrpoRun], Found], ...] = (
        groups_tied, not_updating, collapse, length_explosion, truncation, entropy_falling, dimension_traded,
        held_out, weights_still, batch_arithmetic, engine_mismatch,
    )  # fmt: skip
    results = [*(check(run) for check in checks), kl_explosion(run, kl_line(run, band), band)]
    found = [item for item in results if isinstance(item, Diagnosis)]
    return found, [item for item in results if isinstance(item, NotJudged)]


def groups_tied(run: GrpoRun) -> Found:
    """Groups whose rewards are all alike: no advantage, no gradient."""
    tied = run.series(PLUGIN + "tied") if len(run.series(PLUGIN + "tied")) else run.series("frac_reward_zero_std")
    if not len(tied):
        return NotJudged("groups tied", "frac_reward_zero_std")
    share = last_mean(tied)
    if share < TIED_SHARE:
        return None
    reward = last_mean(run.series("reward")) if len(run.series("reward")) else None
    evidence = f"{share:.0%} of the groups of the last fifth have sigma 0"
    remedy = "raise the temperature or --num_generations, or take harder prompts"
    if not run.arguments.get("dynamic_sample"):
        remedy += "; --dynamic_sample true draws other prompts in their place"
    if reward is not None and reward <= -0.9:
        evidence += f", at a mean reward of {reward:.2f}: nothing parses"
        remedy = "look at a completion: with template qwen3 the prompt opens no think block; take qwen3_nothinking"
    elif reward is not None and reward >= 0.95:
        evidence += f", at a mean reward of {reward:.2f}: these prompts are solved"
        remedy = "take harder prompts; there is nothing left to learn from these"
    return Diagnosis("groups tied", "bad", evidence, remedy)


def not_updating(run: GrpoRun) -> Found:
    """Rewards differ inside the groups, and yet the gradient or the learning rate is zero."""
    name = "not updating"
    steps = [s.metrics for s in run.steps if "grad_norm" in s.metrics and _sigma(s.metrics) is not None]
    if not steps:
        return NotJudged(name, "grad_norm or reward_std")
    spread = [m for m in steps if (_sigma(m) or 0) > TIED_SIGMA]
    flat = [m for m in spread if m["grad_norm"] <= NO_GRADIENT]
    # a schedule may start or end at a rate of zero; half of the steps is no schedule's end
    idle = [m for m in spread if m.get("learning_rate", 1.0) <= 0]
    for which, remedy in (
        (flat, "nothing trainable is reached: check --target_modules, frozen parameters, that the adapter is loaded "
               "trainable, and that planner_reward has the weight 1"),
        (idle, "the learning rate is 0: check --learning_rate, warm-up and --lr_scheduler_type"),
    ):  # fmt: skip
        if len(which) >= max(MIN_STEPS // 2, NOT_UPDATING_SHARE * len(steps)):
            what = "a gradient norm of 0" if which is flat else "a learning rate of 0"
            return Diagnosis(name, "bad", f"{len(which)} of {len(steps)} steps have sigma above 0 and {what}", remedy)
    return None


def _sigma(metrics: Mapping[str, float]) -> float | None:
    return metrics.get(PLUGIN + "sigma", metrics.get("reward_std"))


def collapse(run: GrpoRun) -> Found:
    """A jump in parse failures that stays; without the plugin's lines, a lasting drop of the reward."""
    name = "collapse"
    failures = run.series(PLUGIN + "parse_failures")
    remedy = "go back to the last checkpoint before it; set the learning rate to a third, and give beta 0.01 or more"
    if len(failures):
        point = change_point(failures)
        if point is None or point.p >= ALPHA or point.after - point.before < PARSE_JUMP:
            return None
        evidence = (
            f"from step {point.step} on {point.after:.1%} of the completions do not parse, "
            f"{point.before:.1%} before (p = {point.p:.2g})"
        )
        return Diagnosis(name, "bad", evidence, remedy)
    if run.reward_change is not None:
        return NotJudged(name, f"parse failures, and one reward over the whole run: {run.reward_change.sentence()}")
    reward = run.series("reward")
    point = change_point(reward) if len(reward) else None
    if point is not None and point.p < ALPHA and point.before - point.after >= REWARD_DROP:
        evidence = (
            f"from step {point.step} on the reward is {point.after:.3f}, {point.before:.3f} before "
            f"(p = {point.p:.2g}); parse failures are not known: no planner_steps.jsonl, no trace"
        )
        return Diagnosis(name, "bad", evidence, remedy)
    return NotJudged(name, "parse failures: planner_steps.jsonl or reward_trace.rank*.jsonl") if reward else None


def length_explosion(run: GrpoRun) -> Found:
    """Completions that grow by half and more."""
    name, series = "length explosion", run.series("completions/mean_length")
    if len(series) < MIN_STEPS:
        return NotJudged(name, f"completions/mean_length of {MIN_STEPS} steps")
    first, last = segments(series)[0].mean, last_mean(series)
    found = trend(series)
    if found.direction != "rises" or last < LENGTH_FACTOR * first:
        return None
    evidence = f"{first:.0f} tokens in the first fifth, {last:.0f} in the last (p = {found.p:.2g})"
    remedy = "read the longest completions: what repeats is being paid for; --overlong_filter true, or raise beta"
    return Diagnosis(name, "bad", evidence, remedy)


def truncation(run: GrpoRun) -> Found:
    """Completions cut at the token limit."""
    name, series = "truncation", run.series("completions/clipped_ratio")
    if not len(series):
        return NotJudged(name, "completions/clipped_ratio")
    share = last_mean(series)
    if share < CLIPPED_SHARE or len(series) < MIN_STEPS // 2:
        return None
    limit = run.arguments.get("max_completion_length", "the limit")
    evidence = f"{share:.1%} of the completions of the last fifth are cut at {limit} tokens"
    remedy = "raise --max_completion_length, or find out why they do not end (template, stop token, repetition)"
    return Diagnosis(name, "bad", evidence, remedy)


def entropy_falling(run: GrpoRun) -> Found:
    """The policy grows sure of itself: nothing new is tried, sigma dries up."""
    name, series = "entropy falling", run.series("entropy/mean")
    if len(series) < MIN_STEPS:
        return NotJudged(name, "entropy/mean: train with --log_entropy true")
    first, last, found = segments(series)[0].mean, last_mean(series), trend(series)
    if found.direction != "falls" or last > ENTROPY_FACTOR * first:
        return None
    evidence = f"{first:.3f} in the first fifth, {last:.3f} in the last (p = {found.p:.2g})"
    remedy = "--epsilon_high 0.28, a higher temperature, a lower learning rate or some beta; stop while sigma lasts"
    return Diagnosis(name, "warn", evidence, remedy)


def dimension_trends(run: GrpoRun) -> dict[str, Trend]:
    """The trend of every observed dimension; p adjusted by Holm for their number, the direction with it."""
    names = [name for name, metric in run.dimensions.items() if len(run.series(metric)) >= MIN_STEPS]
    trends = [trend(run.series(run.dimensions[name])) for name in names]
    adjusted = holm({name: item.p for name, item in zip(names, trends, strict=True)})
    return {
        name: Trend(t.steps, t.slope, t.change, t.low, t.high, p, t.direction if p < ALPHA else "none")
        for t, (name, p) in zip(trends, adjusted.items(), strict=True)
    }


def dimension_traded(run: GrpoRun) -> Found:
    """A dimension fell while another, or the total, rose: a total alone would call that a success."""
    name = "one dimension bought with another"
    if run.reward_change is not None:
        return NotJudged(name, f"one reward over the whole run: {run.reward_change.sentence()}")
    found = dimension_trends(run)
    if len(found) < 2:
        return NotJudged(name, f"the observers (rewards/<name>/mean) over {MIN_STEPS} steps: --reward_funcs")
    fell = {key: t for key, t in found.items() if t.direction == "falls" and t.change <= -DIMENSION_CHANGE}
    rose = {key: t for key, t in found.items() if t.direction == "rises" and t.change >= DIMENSION_CHANGE}
    total = run.series("reward")
    if not rose and len(total) and (whole := trend(total)).direction == "rises":
        rose = {"the total": whole}
    if not fell or not rose:
        return None
    evidence = "fell: " + "; ".join(f"{key} {in_words(t)}" for key, t in fell.items())
    evidence += ". Rose: " + "; ".join(f"{key} {in_words(t)}" for key, t in rose.items())
    evidence += f". p by Holm for {len(found)} dimensions, over what parsed"
    remedy = "compare both models by every part before choosing; gates domain, overcommit and grounded close known ways"
    return Diagnosis(name, "bad", evidence, remedy)


def held_out(run: GrpoRun) -> Found:
    """The training reward rises; the held-out reward cannot be told from no rise, and is below the training's."""
    name = "reward rising, held-out evaluation not"
    if run.reward_change is not None:
        return NotJudged(name, f"one reward over the whole run: {run.reward_change.sentence()}")
    reward = run.series("reward")
    if len(reward) < MIN_STEPS or trend(reward).direction != "rises":
        return None
    found = held_out_change(run)
    if found is None:
        return NotJudged(name, "two evaluations in the trace, or three in the log: --val_dataset, the watch split")
    if found.rose or found.high >= found.training:
        return None
    evidence = (
        f"training {found.training:+.3f} over the same steps, held out {found.change:+.3f} "
        f"[{found.low:+.3f}, {found.high:+.3f}] ({found.basis})"
    )
    remedy = "take the best checkpoint by evaluation, not the last; more prompts, fewer epochs; look for an exploit"
    severity = "bad" if found.change <= HELD_OUT_SHARE * found.training else "warn"
    return Diagnosis(name, severity, evidence, remedy)


def weights_still(run: GrpoRun) -> Found:
    """Learning rate too small: the weights moved by less than 1 % (relative Frobenius norm)."""
    name = "learning rate too small"
    if not run.trained:
        return None
    try:
        change = weight_change(run.folder, run.arguments)
    except NotComparable as error:
        return NotJudged(name, f"the change of the weights: {error}")
    if change.share >= WEIGHTS_MOVED:
        return None
    rate = run.arguments.get("learning_rate", "unknown")
    evidence = (
        f"the {change.kind}'s weights moved by {change.share:.2%} from {change.start.name} to {change.end.name} "
        f"in {run.trained} steps at a rate of {rate}; below {WEIGHTS_MOVED:.0%} nothing was learned in the original"
    )
    return Diagnosis(name, "warn", evidence, "raise the learning rate by three to ten times, or train longer")


def batch_arithmetic(run: GrpoRun) -> Found:
    """Groups that do not fill the batches, by the arguments and by what the plugin saw."""
    name, remedy = "batch arithmetic", "see DESIGN section 9: per device x accumulation x processes is whole groups"
    if any(key not in run.arguments for key in BATCH_NEEDS):
        return NotJudged(name, f"{' and '.join(BATCH_NEEDS)} in args.json or planner_manifest.json")
    values = {**BATCH_DEFAULTS, **run.arguments}
    if "per_device_eval_batch_size" not in values:
        values["val_dataset"] = []
    arguments = SwiftArgs("rlhf", values, frozenset(run.arguments))
    variables = run.manifest.get("variables", {})
    world = int(run.arguments.get("global_world_size") or 0) or processes(variables)
    found = Findings()
    for role, sets in run.manifest.get("datasets", {}).items():
        found.facts[f"{role} rows"] = sum(item.get("taken", item["rows"]) for item in sets)
    check_batches(Launch("grpo", arguments, Settings.from_env({}), variables, world), found)
    if found.refusals:
        return Diagnosis(name, "bad", "; ".join(found.refusals), remedy)
    group = int(arguments["num_generations"])
    sizes = [
        step.metrics[PLUGIN + "completions"] / step.metrics[PLUGIN + "groups"]
        for step in run.steps
        if step.metrics.get(PLUGIN + "groups")
    ]
    odd = [size for size in sizes if size != group]
    if len(odd) > len(sizes) / 2:
        evidence = f"{len(odd)} of {len(sizes)} steps had {np.mean(odd):.3g} completions a prompt id, not {group}"
        remedy = "give every prompt an id of its own, and let the batch hold whole groups"
        return Diagnosis(name, "bad", evidence, remedy)
    if found.warnings and arguments["val_dataset"] and arguments["eval_strategy"] != "no":
        return Diagnosis(name, "warn", "; ".join(found.warnings), remedy)
    return None


def engine_mismatch(run: GrpoRun) -> Found:
    """The rollout engine samples from another distribution than the trainer computes."""
    name = "mismatch between training and rollout engine"
    seen = {key: last_mean(series) for key in ENGINE if len(series := run.series(ENGINE_PREFIX + key))}
    if not seen:
        if run.arguments.get("use_vllm"):
            return NotJudged(name, "rollout_correction/*: train with --log_rollout_offpolicy_metrics true")
        return None
    over = {
        key: value
        for key, value in seen.items()
        for limit, upper in [ENGINE[key]]
        if (value > limit if upper else value < limit)
    }
    if not over:
        return None
    evidence = "last fifth: " + ", ".join(
        f"{key} {value:.3g} ({'above' if upper else 'below'} {limit:g})"
        for key, value in over.items()
        for limit, upper in [ENGINE[key]]
    )
    mode = run.arguments.get("rollout_importance_sampling_mode")
    remedy = (
        "truncate the importance weights: --rollout_importance_sampling_mode token_truncate "
        "--rollout_importance_sampling_threshold 2"
        if mode is None
        else f"{mode} is on already: look for its cause (dtype, quantisation, a stale weight sync, --async_generate)"
    )
    return Diagnosis(name, "bad", evidence, remedy)


def kl_explosion(run: GrpoRun, line: Line, band: tuple[float, float] | None) -> Found:
    """The KL above the alarm of its band."""
    counted = kl_band(run, band)
    if line.status != "fail" or counted is None or line.value is None or line.value <= counted.alarm:
        return None
    return Diagnosis("KL explosion", "bad", line.evidence, LOWER_RATE)
