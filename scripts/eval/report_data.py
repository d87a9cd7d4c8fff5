"""What a report shows, gathered from files: evaluations, GRPO runs, comparisons, samples. No HTML here."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.eval.compare_runs import compare_evaluations
from scripts.eval.evaluation_files import MODES, check_comparable, load, read_json
from scripts.eval.grpo_log import GrpoRun, NoRun, find_runs, read_run

EVALUATIONS = "eval"  # folder of a run that holds its evaluations
LOG_VERDICT = "grpo_log.json"  # what analyze_grpo_log.py leaves in a run folder
FLAGS = ("copycat", "evidence_faked", "empty_keywords", "domain_miss", "overcommit", "exclusion_missed")
UNPARSABLE, ISSUES = "unparsable", "parse issue"
ALL_FLAGS = (UNPARSABLE, ISSUES, *FLAGS)
BASE, TRAINED = "sft", "grpo"  # what a demo run compares


@dataclass
class Gathered:
    """The material of a report: evaluations (what `load` returns) and GRPO runs by label."""

    evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: dict[str, GrpoRun] = field(default_factory=dict)
    log_verdicts: dict[str, dict[str, Any]] = field(default_factory=dict)


def gather(named: Sequence[str]) -> Gathered:
    """Read every RUN folder or LABEL=PREFIX. Raises ValueError or OSError naming what is not there."""
    found = Gathered()
    folders = [Path(item) for item in named if "=" not in item]
    for item in named:
        if "=" in item:
            label, _, prefix = item.partition("=")
            _add(found, label, prefix)
            continue
        folder = Path(item)
        if not folder.is_dir():
            raise ValueError(f"{item} is neither a run folder nor LABEL=PREFIX of an evaluation")
        before = len(found.evaluations) + len(found.runs)
        lead = f"{folder.resolve().name}/" if len(folders) > 1 else ""
        # Oldest first: untrained, SFT, GRPO, as they were made.
        summaries = sorted(folder.glob(f"{EVALUATIONS}/*.summary.json"), key=lambda p: (p.stat().st_mtime_ns, p.name))
        for summary in summaries:
            prefix = str(summary).removesuffix(".summary.json")
            _add(found, lead + Path(prefix).name, prefix)
        _add_runs(found, folder, lead)
        if len(found.evaluations) + len(found.runs) == before:
            raise ValueError(f"{folder} holds neither evaluations ({EVALUATIONS}/*.summary.json) nor a GRPO log")
    return found


def _add(found: Gathered, label: str, prefix: str) -> None:
    if not label or label in found.evaluations:
        raise ValueError(f"two evaluations are called {label!r}; name them LABEL=PREFIX")
    found.evaluations[label] = load(prefix)


def _add_runs(found: Gathered, folder: Path, lead: str) -> None:
    try:
        logs = find_runs(folder)
    except NoRun:  # evaluations alone are fine
        return
    for log in logs:
        run = read_run(log)
        if run is None:  # SFT
            continue
        inside = log.parent.resolve().relative_to(folder.resolve()).as_posix()
        label = lead + (inside if inside != "." else folder.resolve().name)
        found.runs[label] = run
        if (log.parent / LOG_VERDICT).is_file():
            found.log_verdicts[label] = read_json(log.parent / LOG_VERDICT)


def pairs_to_compare(labels: Sequence[str], asked: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    """The pairs asked for; else sft → grpo of every run; else the last two evaluations. ValueError: unknown label."""
    for pair in asked:
        for label in pair:
            if label not in labels:
                raise ValueError(f"--compare: no evaluation is called {label!r}; there are {', '.join(labels)}")
    if asked:
        return [(a, b) for a, b in asked]
    bases = [label for label in labels if label.rpartition("/")[2] == BASE]
    found = [(label, label[: -len(BASE)] + TRAINED) for label in bases if label[: -len(BASE)] + TRAINED in labels]
    return found or ([(labels[-2], labels[-1])] if len(labels) > 1 else [])


def comparisons(found: Gathered, pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Each pair compared: `{"a", "b", "modes"}`, or `"error"` in words where the two are not comparable."""
    results = []
    for a, b in pairs:
        entry: dict[str, Any] = {"a": a, "b": b}
        try:
            entry["modes"] = compare_evaluations(found.evaluations[a], found.evaluations[b])
        except ValueError as error:
            entry["error"] = str(error)
        results.append(entry)
    return results


def incomparable(found: Gathered) -> str | None:
    """Why the rows of one table must not be read against each other; None when they may."""
    try:
        check_comparable(found.evaluations)
    except ValueError as error:
        return str(error)
    return None


def samples(found: Gathered) -> Iterator[dict[str, Any]]:
    """What the browser shows: every greedy completion, and the best and the worst sample of each record."""
    for label, evaluation in found.evaluations.items():
        for mode in MODES:
            for record in evaluation.get(mode, []):
                ranked = sorted(record["samples"], key=lambda sample: sample["breakdown"]["total"])
                shown = [("", ranked[0])] if len(ranked) == 1 else [("worst", ranked[0]), ("best", ranked[-1])]
                for which, sample in shown:
                    yield _entry(label, mode, record, sample, f"{which} of {len(ranked)}" if which else "")


def _entry(label: str, mode: str, record: Mapping[str, Any], sample: Mapping[str, Any], which: str) -> dict[str, Any]:
    breakdown = sample["breakdown"]
    flags = [flag for flag in FLAGS if breakdown.get(flag)]
    flags += [UNPARSABLE] if sample["plan"] is None else [ISSUES] if sample["issues"] else []
    return {
        "evaluation": label,
        "mode": mode,
        "which": which,
        "id": record["id"],
        "family": record["family"],
        "text": record["text"],
        "context": record["prior_context"],
        "golden": record["golden"],
        "completion": sample["completion"],
        "plan": sample["plan"],
        "issues": sample["issues"],
        "search": sample["search"],
        "titles": sample["titles"],
        "total": breakdown["total"],
        "parts": {k: v for k, v in breakdown.items() if k != "total" and isinstance(v, float | int | None) and
                  not isinstance(v, bool)},
        "flags": flags,
    }  # fmt: skip


def embedded_json(value: Any) -> str:
    """JSON that may stand inside a <script> element: no `<`, `>` or `&`, ASCII only, whatever a model wrote."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
