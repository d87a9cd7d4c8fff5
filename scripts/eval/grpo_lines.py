"""The acceptance lines of a GRPO run: the reward rises, the KL stays in the band of its reference, the format holds.

Status of a line: ok; fail (the verdict is bad); warn; unknown (the files do not say, and the evidence names what is
missing); not applicable.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scripts.eval.grpo_log import PLUGIN, GrpoRun, Series
from scripts.eval.grpo_segments import MIN_STEPS, Trend, last_mean, segments, trend

REWARD_LINE, KL_LINE, FORMAT_LINE = "reward rises", "KL in its band", "format at least 96 %"
MIN_FORMAT_RATE = 0.96
SMALLEST_VIOLATION = 0.1  # DESIGN section 6: the least that a fault takes off the format dimension
STILL = 0.001  # KL below which the policy has hardly left its reference
ALARM = 5  # times the band's upper end: 0.5 for a band of 0.01-0.1

BASE, START, OTHER = "the base model", "the SFT model that training began with", "another reference"
BANDS = {BASE: (0.5, 3.0), START: (0.01, 0.1)}
LOWER_RATE = "set the learning rate to a third; if the KL still runs away, raise beta"


@dataclass(frozen=True)
class Line:
    name: str
    status: str
    evidence: str
    remedy: str = ""
    value: float | None = None


@dataclass(frozen=True)
class KlBand:
    """The band that a KL is judged by: `alarm` is ALARM times its upper end."""

    low: float
    high: float
    reference: str

    @property
    def alarm(self) -> float:
        return ALARM * self.high


def acceptance(run: GrpoRun, band: tuple[float, float] | None = None) -> list[Line]:
    """The three lines; `band` overrides the KL band that the reference gives."""
    return [reward_line(run), kl_line(run, band), format_line(run)]


def in_words(found: Trend) -> str:
    """`+0.081 over the run [+0.031, +0.132], p = 0.003`."""
    return f"{found.change:+.3f} over the run [{found.low:+.3f}, {found.high:+.3f}], p = {found.p:.2g}"


def reward_line(run: GrpoRun) -> Line:
    """ok only for a rise that the noise of the steps does not explain; unknown where two rewards scored the run."""
    series = run.series("reward")
    if run.reward_change is not None:
        remedy = "compare checkpoints by evaluation (eval_planner.py, compare_runs.py), which one reward scores"
        return Line(REWARD_LINE, "unknown", f"{run.reward_change.sentence()}; no trend across it", remedy)
    if len(series) < MIN_STEPS:
        return Line(REWARD_LINE, "unknown", f"{len(series)} steps with a reward: a trend needs {MIN_STEPS}")
    found = trend(series)
    means = [part.mean for part in segments(series)]
    evidence = f"{means[0]:.3f} in the first fifth, {means[-1]:.3f} in the last; {in_words(found)}"
    if found.direction == "rises":
        return Line(REWARD_LINE, "ok", evidence, value=found.change)
    if found.direction == "falls":
        remedy = "stop; set the learning rate to a third and begin again from the best checkpoint"
        return Line(REWARD_LINE, "fail", f"it falls: {evidence}", remedy, found.change)
    seen = (found.high - found.low) / 2
    remedy = "see the diagnoses; with none, train longer or raise the learning rate by two to three times"
    return Line(
        REWARD_LINE, "fail", f"no rise beyond noise (about {seen:.3f} would show): {evidence}", remedy, found.change
    )


def kl_reference(arguments: Mapping[str, Any]) -> str | None:
    """What the KL is taken against (DESIGN section 9): BASE, START or OTHER; None where the arguments do not tell.

    With LoRA and `adapters` alone it is the base model; `ref_adapters` makes it the adapter training began with. A
    fully trained model, or fresh LoRA, is compared with `model`, where training began.
    """
    if "tuner_type" not in arguments and "adapters" not in arguments and "ref_adapters" not in arguments:
        return None
    if arguments.get("sync_ref_model"):
        return OTHER
    adapters, reference = arguments.get("adapters") or [], arguments.get("ref_adapters") or []
    if reference:
        return START if not adapters or list(reference) == list(adapters) else OTHER
    model = arguments.get("ref_model")
    if model and model != arguments.get("model"):
        return OTHER
    return BASE if adapters else START


def kl_band(run: GrpoRun, given: tuple[float, float] | None) -> KlBand | None:
    """The band that counts for the run; None where nobody said what the reference is."""
    reference = kl_reference(run.arguments)
    if given is not None:
        return KlBand(*given, reference or OTHER)
    return KlBand(*BANDS[reference], reference) if reference in BANDS else None


def kl_line(run: GrpoRun, given: tuple[float, float] | None) -> Line:
    """The KL against its band: above it fails, below it warns (a policy that stays home learns nothing)."""
    name, beta, series = KL_LINE, run.arguments.get("beta"), run.series("kl")
    if beta is not None and float(beta) == 0:
        return Line(name, "not applicable", "beta 0: no KL is computed (eval_planner.py --kl-to measures it)")
    if not len(series):
        if beta is None:
            return Line(name, "not applicable", "the log holds no KL, as at beta 0 (no arguments to tell)")
        return Line(name, "unknown", f"beta {beta}, and the log holds no KL")
    if run.arguments.get("kl_in_reward"):
        return Line(name, "unknown", "--kl_in_reward logs the KL of whole completions; the bands are per token")
    last, highest = last_mean(series), max(part.mean for part in segments(series))
    band = kl_band(run, given)
    if band is None:
        widest = max(high for _, high in BANDS.values())
        shown = f"{last:.4g} in the last fifth; its reference is not known"
        if highest > widest:
            return Line(name, "fail", f"{shown}, but {highest:.4g} is above every band", LOWER_RATE, highest)
        status = "warn" if last < STILL else "unknown"
        return Line(name, status, shown, "say which band counts: --kl-band LOW,HIGH", last)
    shown = f"{last:.4g} in the last fifth, highest fifth {highest:.4g}; band {band.low:g}-{band.high:g} against "
    shown += band.reference
    if highest > band.alarm:
        return Line(name, "fail", f"ALARM above {band.alarm:g}: {shown}", LOWER_RATE, highest)
    if highest > band.high:
        return Line(name, "fail", f"above the band: {shown}", LOWER_RATE, highest)
    if last < STILL:
        remedy = "raise the learning rate, or lower beta"
        return Line(name, "warn", f"below {STILL}: the policy has hardly left its reference: {shown}", remedy, last)
    if last < band.low:
        return Line(name, "warn", f"below the band: {shown}", "train on, or raise the learning rate", last)
    return Line(name, "ok", shown, value=last)


def format_line(run: GrpoRun) -> Line:
    """Share of completions of the last fifth whose format is exactly 1; unparsable ones count against it."""
    name, remedy = FORMAT_LINE, "more or cleaner SFT before GRPO; if it was there at the start, see collapse"
    exact = run.series(PLUGIN + "format_rate")
    if len(exact):
        rate = last_mean(exact)
        status = "ok" if rate >= MIN_FORMAT_RATE else "fail"
        return Line(name, status, f"{rate:.1%} of the completions of the last fifth", remedy * (status != "ok"), rate)
    scores, failures = run.series("rewards/PlannerFormat/mean"), run.series(PLUGIN + "parse_failures")
    if not len(scores):
        return Line(name, "unknown", "neither a trace nor the observer planner_format is there")
    low, high = _format_bounds(scores, failures)
    shown = f"between {low:.1%} and {high:.1%} in the last fifth, by the mean format score (no trace is there)"
    if high < MIN_FORMAT_RATE:
        return Line(name, "fail", shown, remedy, high)
    if low >= MIN_FORMAT_RATE and len(failures):
        return Line(name, "ok", shown, value=low)
    missing = "" if len(failures) else "; parse failures are not in logging.jsonl"
    return Line(name, "unknown", shown + missing, "keep reward_trace.rank*.jsonl beside the log", low)


def _format_bounds(scores: Series, failures: Series) -> tuple[float, float]:
    """What the format rate can be, given the mean format score of what parsed and the share that did not."""
    mean = last_mean(scores)
    parsed = 1 - last_mean(failures) if len(failures) else 1.0
    return parsed * max(0.0, 1 - (1 - mean) / SMALLEST_VIOLATION), parsed * mean
