"""Reads a GRPO run as it really comes: ms-swift's logging.jsonl, the plugin's step lines, the traces, the arguments.

Known oddities of `logging.jsonl`, all met here and counted in `Oddities`: a run that was resumed goes back in its
steps (the later pass wins, and what the first one did beyond is dropped); a killed run leaves half a line, sometimes
with the resumed run's first row on the same line; numbers may be strings; NaN and infinity are no numbers; evaluation
rows (`eval_`) stand between the steps; `train_runtime` and a row with the whole history come last. ms-swift's v0-*/
and v1-*/ folders are runs of their own. A step is an optimiser step, counted from 1.

The plugin counts the updates done before the rollout, so its train step 0 is ms-swift's step 1; its evaluations have
ms-swift's number.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from scripts.files import json_object
from scripts.swift_names import ARGUMENTS
from scripts.train.manifest import MANIFEST
from scripts.train.past_launches import launches, reward_differences
from swift_plugin.step_stats import ScoredRow, step_stats
from swift_plugin.trace import open_trace, trace_files

LOG = "logging.jsonl"
STEP_LOG = "planner_steps.jsonl"
TRAIN = "train"
STEP_KEY = "global_step/max_steps"
# The plugin's numbers stand beside ms-swift's under this prefix: sigma, tied, parse_failures, format_rate ...
PLUGIN = "planner/"
NO_NUMBERS = ("step", "split", "started")  # of a line in planner_steps.jsonl
COUNTS = ("completions", "groups", "searches_total", "cache_hits", "ms")  # add up over the lines of a step
DIMENSION = re.compile(r"rewards/(?!PlannerReward/)(\w+)/mean")
SUMMARY_KEYS = ("train_runtime", "log_history", "model_parameter_info")
VERSION_FOLDER = re.compile(r"v\d+-")


class NoRun(ValueError):
    """A path holds no GRPO run; the message names it and says what would do."""


@dataclass(frozen=True)
class Step:
    """One step, or one evaluation after that step: its finite numbers by metric name (`eval_` taken off)."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Oddities:
    """What the files held beside sound rows. `left_out`: numbers that are none (NaN, infinity), by metric."""

    torn: int = 0
    replaced: int = 0
    without_step: int = 0
    left_out: Mapping[str, int] | None = None
    summary_rows: int = 0
    history_steps: int = 0

    def sentences(self) -> list[str]:
        """The oddities in words; empty when there were none."""
        said = []
        if self.torn:
            said.append(f"{self.torn} torn line(s) left out")
        if self.replaced:
            said.append(f"resumed: {self.replaced} row(s) replaced by a later pass")
        if self.without_step:
            said.append(f"{self.without_step} row(s) without {STEP_KEY} left out")
        if self.left_out:
            shown = ", ".join(f"{name} {count}" for name, count in sorted(self.left_out.items()))
            said.append(f"{sum(self.left_out.values())} value(s) that are no finite number left out ({shown})")
        return said


@dataclass(frozen=True)
class Series:
    """One metric over the run: `steps` and `values` of equal length, finite, in order."""

    steps: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class RewardChange:
    """The first step that was scored by another reward than those before it (None: not known), and what changed."""

    step: int | None
    what: str

    def sentence(self) -> str:
        at = "a step that is not known" if self.step is None else f"step {self.step}"
        return f"the training reward changed at {at}: {self.what}"


@dataclass(frozen=True)
class GrpoRun:
    """One run.

    Attributes:
        folder: where logging.jsonl stands, or should.
        steps: ms-swift's train rows with the plugin's numbers of the same step.
        evaluations: ms-swift's evaluation rows.
        watch: step -> record id -> mean total of its completions, from the traces of the evaluations.
        arguments: ms-swift's effective arguments (args.json; else those of the manifest); empty where both are gone.
        manifest: planner_manifest.json, empty where there is none.
        reward_change: by the manifests of all launches and the traces; None where one reward scored every step.
        max_steps: steps planned; None where the log does not say.
    """

    folder: Path
    steps: tuple[Step, ...]
    evaluations: tuple[Step, ...]
    watch: Mapping[int, Mapping[str, float]]
    arguments: Mapping[str, Any]
    manifest: Mapping[str, Any]
    reward_change: RewardChange | None
    oddities: Oddities
    max_steps: int | None

    @cached_property
    def trained(self) -> int:
        """Rows of trained steps in logging.jsonl."""
        return sum("reward" in step.metrics or "loss" in step.metrics for step in self.steps)

    def series(self, metric: str) -> Series:
        return _series(self.steps, metric)

    def eval_series(self, metric: str) -> Series:
        return _series(self.evaluations, metric)

    @cached_property
    def dimensions(self) -> dict[str, str]:
        """Name of each observed dimension -> its metric, in the log's order: {"PlannerEcon": "rewards/…/mean"}."""
        names: dict[str, str] = {}
        for step in self.steps:
            for metric in step.metrics:
                if (match := DIMENSION.fullmatch(metric)) is not None:
                    names[match[1]] = metric
        return names


def _series(steps: Iterable[Step], metric: str) -> Series:
    pairs = [(step.step, step.metrics[metric]) for step in steps if metric in step.metrics]
    return Series(np.array([p[0] for p in pairs], dtype=int), np.array([p[1] for p in pairs], dtype=float))


def find_runs(path: Path) -> list[Path]:
    """The folders of all runs under `path` (a logging.jsonl, a run folder, or a folder of runs), in order.

    A folder with a GRPO manifest and no log is a run too: it died before its first step.
    Raises NoRun when there is none.
    """
    if path.is_file():
        if path.suffix != ".jsonl":
            raise NoRun(f"{path} is no {LOG}: give the log, a run folder, or runs/*/")
        return [path]
    if not path.is_dir():
        raise NoRun(f"{path} does not exist: give a {LOG}, a run folder, or runs/*/")
    found = sorted(file for file in path.rglob(LOG) if not file.parent.name.startswith("checkpoint-"))
    for manifest in sorted(path.rglob(MANIFEST)):
        started = any(file.is_relative_to(manifest.parent) for file in found)
        if not started and json_object(manifest).get("kind") == "grpo":
            found.append(manifest.parent / LOG)
    if not found:
        raise NoRun(f"no {LOG} in or under {path}: give a run folder of run_grpo_planner.sh")
    return found


def read_run(log: Path) -> GrpoRun | None:
    """The run whose log is `log`; None when it is the log of another kind of training (SFT logs no reward).

    A log that is gone or empty gives a run without steps. Raises ValueError, naming the file, for arguments or a
    manifest that are no JSON object.
    """
    folder = log.parent
    manifest_file = folder / MANIFEST
    if not manifest_file.is_file() and VERSION_FOLDER.match(folder.name):
        manifest_file = folder.parent / MANIFEST  # ms-swift made the v0-*/ folder inside the launcher's
    manifest = json_object(manifest_file) if manifest_file.is_file() else {}
    given = json_object(folder / ARGUMENTS) if (folder / ARGUMENTS).is_file() else {}
    arguments = given or manifest.get("arguments", {})
    torn: Counter[str] = Counter()
    rows = list(_rows(log, torn)) if log.is_file() else []
    trains, evaluations, oddities, max_steps = _split(rows, torn)
    of_kind = "grpo" in (manifest.get("kind"), arguments.get("rlhf_type"))
    rewarded = any("reward" in row for row in (*trains.values(), *evaluations.values()))
    if trains and not rewarded and not of_kind:
        return None
    if manifest.get("kind", "grpo") != "grpo":
        return None
    plugin = _plugin_steps(folder)
    watch, rewards = _add_traces(folder, plugin)
    steps = {
        step: {**trains.get(step, {}), **plugin.get(step, {})}
        for step in sorted(trains.keys() | (plugin.keys() if trains else set()))
    }
    return GrpoRun(
        folder=folder,
        steps=tuple(Step(step, metrics) for step, metrics in steps.items()),
        evaluations=tuple(Step(step, evaluations[step]) for step in sorted(evaluations)),
        watch=watch,
        arguments=arguments,
        manifest=manifest,
        reward_change=_reward_change(launches(folder), rewards, max(steps, default=0)),
        oddities=oddities,
        max_steps=max_steps,
    )


def _rows(file: Path, torn: Counter[str]) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file that may hold torn lines; each torn line is counted under the file's name."""
    size = file.stat().st_size if file.suffix != ".gz" else None  # of the text, which is what the bar counts
    bar = tqdm(total=size, desc=file.name, unit="B", unit_scale=True, disable=None, delay=2, leave=False)
    with open_trace(file) as lines, bar:
        for line in lines:
            bar.update(len(line))
            text = line.decode("utf-8", errors="replace").strip()
            if not text:
                continue
            row = _row(text)
            if row is None:
                torn[file.name] += 1
                row = _after_tear(text)
            if row is not None:
                yield row


def _row(text: str) -> dict[str, Any] | None:
    try:
        row = json.loads(text)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _after_tear(text: str) -> dict[str, Any] | None:
    """The whole row that a resumed run wrote behind half a line: `{"loss": 0.1, "gr{"loss": 0.2, ...}`."""
    start = text.find('{"', 1)
    while start > 0:
        if (row := _row(text[start:])) is not None:
            return row if STEP_KEY in row or "step" in row else None
        start = text.find('{"', start + 1)
    return None


def _split(
    rows: Sequence[Mapping[str, Any]], torn: Mapping[str, int]
) -> tuple[dict[int, dict[str, float]], dict[int, dict[str, float]], Oddities, int | None]:
    """Train rows and evaluation rows by step, the later pass winning; what was odd; the steps planned."""
    trains: dict[int, dict[str, float]] = {}
    evaluations: dict[int, dict[str, float]] = {}
    left_out: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    max_steps = None
    last = 0
    for row in rows:
        if any(key in row for key in SUMMARY_KEYS):
            counts["summary"] += 1
            counts["history"] += sum("reward" in old for old in row.get("log_history") or ())
            continue
        is_eval = any(key.startswith("eval_") for key in row)
        if not is_eval and "loss" not in row and "reward" not in row:
            continue
        step, planned = _step(row)
        if step is None:
            counts["without_step"] += 1
            continue
        max_steps = planned or max_steps
        if not is_eval and step <= last:  # the run went back: what it did from here on is history no longer
            gone = [(kept, old) for kept in (trains, evaluations) for old in kept if old >= step]
            for kept, old in gone:
                del kept[old]
            counts["replaced"] += len(gone)
        numbers = _numbers(row, left_out, "eval_" if is_eval else "")
        if is_eval:
            counts["replaced"] += step in evaluations
            evaluations[step] = numbers
        else:
            trains[step], last = numbers, step
    oddities = Oddities(
        torn=sum(torn.values()),
        replaced=counts["replaced"],
        without_step=counts["without_step"],
        left_out=dict(left_out),
        summary_rows=counts["summary"],
        history_steps=counts["history"],
    )
    return trains, evaluations, oddities, max_steps


def _step(row: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Step and planned steps of a row: "3/60" -> (3, 60)."""
    match = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", str(row.get(STEP_KEY, "")))
    if match is not None:
        return int(match[1]), int(match[2]) or None
    step = row.get("step")
    return (step, None) if isinstance(step, int) else (None, None)


def _numbers(row: Mapping[str, Any], left_out: Counter[str], prefix: str) -> dict[str, float]:
    numbers = {}
    for key, value in row.items():
        if isinstance(value, bool) or not isinstance(value, int | float | str) or key == STEP_KEY:
            continue
        try:
            number = float(value)
        except ValueError:  # "2m 13s", a path: no number and none meant
            continue
        if math.isfinite(number):
            numbers[key.removeprefix(prefix)] = number
        else:
            left_out[key] += 1
    return numbers


Launch = tuple[float, int]  # when a process began, and its first training step
Rows = dict[int, list[Mapping[str, Any]]]


def _passes(rows: Iterable[Mapping[str, Any]]) -> tuple[Rows, Rows, list[Launch]]:
    """The plugin's rows by its own step, train and other splits apart; a resumed run's later pass wins. The launches.

    One process may score a step several times (`--dynamic_sample`): all of it counts. Another process, by `started`,
    scores the step that the first one was killed in again. Rows of older logs have no `started`: only a step that
    goes back tells the passes apart there.
    """
    trains: Rows = {}
    others: Rows = {}
    launches: list[Launch] = []
    last, started = -1, None
    for row in rows:
        step = row["step"]
        if row["split"] != TRAIN:
            others.setdefault(step, []).append(row)
            continue
        if step < last or row.get("started") != started:
            if row.get("started") not in (None, started):
                launches.append((row["started"], step))
            for old in [old for old in trains if old >= step]:
                del trains[old]
            for old in [old for old in others if old > step]:  # the evaluation after `step` updates still stands
                del others[old]
        trains.setdefault(step, []).append(row)
        last, started = step, row.get("started")
    return trains, others, launches


def _taken_back(launches: Sequence[Launch], row: Mapping[str, Any], step: int) -> bool:
    """Whether a later launch, by rank 0, began before `step`: a rank that this one lacks could not say so itself.

    The ranks of a launch begin within seconds of each other, so a row is of the launch begun nearest to its process.
    """
    if row["started"] is None or not launches:
        return False
    mine = min(range(len(launches)), key=lambda index: abs(launches[index][0] - row["started"]))
    return any(first <= step for _, first in launches[mine + 1 :])


def _plugin_steps(folder: Path) -> dict[int, dict[str, float]]:
    """planner_steps.jsonl by ms-swift's step, the lines of a step in one; empty where the file is gone."""
    file = folder / STEP_LOG
    if not file.is_file():
        return {}
    trains, _, _ = _passes(_rows(file, Counter()))
    return {step + 1: _one_line(rows) for step, rows in trains.items()}


def _one_line(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The lines of one step as one: counts and time add up, means are weighted by their completions."""
    names = [name for name in rows[-1] if name not in NO_NUMBERS]
    found = {}
    for name in names:
        held = [row for row in rows if name in row]
        values = [float(row[name]) for row in held]
        if name in COUNTS:
            found[PLUGIN + name] = sum(values)
        else:
            found[PLUGIN + name] = float(np.average(values, weights=[row["completions"] for row in held]))
    return found


def _add_traces(
    folder: Path, plugin: dict[int, dict[str, float]]
) -> tuple[dict[int, dict[str, float]], dict[int, set[str]]]:
    """Put each step's format rate (share of completions with format exactly 1) into `plugin`, and its step line where
    planner_steps.jsonl has none; return the watch totals (step -> record id -> mean total) and the sha256 of the
    reward files that scored each step."""
    trains: dict[int, list[tuple[ScoredRow, bool]]] = {}
    rewards: dict[int, set[str]] = {}
    totals: dict[int, dict[str, list[float]]] = {}
    launches: list[Launch] = []
    for rank, files in trace_files(folder).items():  # rank 0 first
        lines = (line for file in files for line in _rows(file, Counter()))
        by_step, others, begun = _passes(map(_slim, lines))
        launches = begun if rank == 0 else launches
        for step, rows in by_step.items():
            if standing := [row for row in rows if not _taken_back(launches, row, step)]:
                trains.setdefault(step + 1, []).extend((row["scored"], row["exact"]) for row in standing)
                rewards.setdefault(step + 1, set()).update(row["reward"] for row in standing if row["reward"])
        for step, rows in others.items():
            for row in rows:
                if not _taken_back(launches, row, step - 1):  # the evaluation after a launch's checkpoint still stands
                    totals.setdefault(step, {}).setdefault(row["scored"].group, []).append(row["scored"].total)
    for step, pairs in trains.items():
        stats = step_stats([scored for scored, _ in pairs])
        line = {PLUGIN + name: float(getattr(stats, name)) for name in stats.__dataclass_fields__}
        rate = sum(exact for _, exact in pairs) / len(pairs)
        plugin[step] = {**line, **plugin.get(step, {}), PLUGIN + "format_rate": rate}
    watch = {step: {name: float(np.mean(v)) for name, v in by_id.items()} for step, by_id in sorted(totals.items())}
    return watch, rewards


def _reward_change(
    manifests: Sequence[Mapping[str, Any]], traced: Mapping[int, set[str]], last: int
) -> RewardChange | None:
    """The earliest change that the manifests of the launches or the traces show, of the steps that still stand.

    A launch that resumed nothing, or from before where the one before it began, took that one's steps back. One whose
    first step is beyond `last` has trained nothing yet.
    """
    standing: list[tuple[int | None, Mapping[str, Any]]] = []  # steps before the launch's first, its reward
    for manifest in manifests:
        if "reward" not in manifest:
            continue
        begun = _resumed_after(manifest.get("arguments") or {})
        standing = [item for item in standing if begun is None or item[0] is None or item[0] < begun]
        standing.append((begun, manifest["reward"]))
    found = [
        RewardChange(None if begun is None else begun + 1, "; ".join(words))
        for (_, before), (begun, after) in pairwise(standing)
        if (begun is None or begun < last) and (words := reward_differences(before, after))
    ]
    for before, step in pairwise(sorted(traced)):
        if len(traced[before] | traced[step]) > 1:
            first = min(traced[before])[:12]
            other = min(traced[step] - {min(traced[before])} or traced[before] - {min(traced[before])})[:12]
            found.append(RewardChange(step, f"the reward file with sha256 {first} became {other}"))
            break
    return min(found, key=lambda change: math.inf if change.step is None else change.step, default=None)


def _resumed_after(arguments: Mapping[str, Any]) -> int | None:
    """Steps done before a launch began: 0 for one that resumed nothing, None where its checkpoint does not tell."""
    checkpoint = arguments.get("resume_from_checkpoint")
    if not checkpoint:
        return 0
    path = Path(str(checkpoint)).expanduser()
    for name in (path.name, path.resolve().name):  # last-checkpoint is a link
        if (match := re.fullmatch(r"checkpoint-(\d+)", name)) is not None:
            return int(match[1])
    return None


def _slim(line: Mapping[str, Any]) -> dict[str, Any]:
    """Of a trace line only what is counted: a long run's titles and completions need not stay in memory."""
    exact = line["breakdown"]["format"] == 1.0
    return {
        "step": line["step"],
        "split": line["split"],
        "started": line.get("started"),
        "scored": ScoredRow.from_trace(line),
        "exact": exact,
        "reward": line.get("reward_sha256"),
    }
