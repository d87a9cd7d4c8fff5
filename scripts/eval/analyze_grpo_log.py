"""Judge GRPO runs by their logs: segments, trends, acceptance lines, diagnoses with evidence and remedy, and curves.

Reads ms-swift's logging.jsonl, the plugin's planner_steps.jsonl and reward_trace.rank*.jsonl, args.json and
planner_manifest.json, as far as they are there. Writes grpo_log.json and grpo_curves.png into the run folder, or into
--out. The reward is that of training: a run with another mix, gates or prompts is compared by evaluation only.
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts.eval.evaluation_files import json_text
from scripts.eval.grpo_curves import draw
from scripts.eval.grpo_diagnoses import diagnose, dimension_trends
from scripts.eval.grpo_held_out import best_checkpoint
from scripts.eval.grpo_lines import FORMAT_LINE, KL_LINE, REWARD_LINE, acceptance
from scripts.eval.grpo_log import PLUGIN, GrpoRun, NoRun, find_runs, read_run
from scripts.eval.grpo_segments import segments, trend
from scripts.files import write_atomically

JSON_FILE, PNG_FILE = "grpo_log.json", "grpo_curves.png"
FINE, UNDECIDED, BAD, EMPTY = "fine", "undecided", "bad", "no step trained"
SHOWN = ("reward", "reward_std", PLUGIN + "sigma", PLUGIN + "tied", PLUGIN + "parse_failures", PLUGIN + "format_rate",
         PLUGIN + "empty_keywords", "kl", "loss", "grad_norm", "entropy/mean", "completions/mean_length",
         "completions/clipped_ratio")  # fmt: skip


def analyse(run: GrpoRun, band: tuple[float, float] | None) -> dict[str, Any]:
    """Everything there is to say about one run, JSON-ready but for infinite bounds.

    `steps`: metrics by step. `segments`: by metric, the five segments and the trend. `lines`, `diagnoses`,
    `not_judged`, `best_checkpoint`, `reward_change`, `dimensions` (trends, p by Holm), `oddities`, and `verdict` =
    {"status": fine | undecided | bad | no step trained, "because": [...]}.
    """
    found, not_judged = diagnose(run, band)
    lines = acceptance(run, band) if run.trained else []
    metrics = [name for name in (*SHOWN, *run.dimensions.values()) if len(run.series(name))]
    facts: dict[str, Any] = {
        "run": str(run.folder),
        "trained": run.trained,
        "max_steps": run.max_steps,
        "arguments": {key: run.arguments.get(key) for key in ("learning_rate", "beta", "num_generations")},
        "reward": run.manifest.get("reward"),
        "steps": [{"step": step.step, **step.metrics} for step in run.steps],
        "evaluations": [{"step": step.step, **step.metrics} for step in run.evaluations],
        "segments": {
            name: {"segments": [asdict(part) for part in segments(series)], "trend": asdict(trend(series))}
            for name in metrics
            for series in [run.series(name)]
        },
        "dimensions": {name: asdict(item) for name, item in dimension_trends(run).items()},
        "lines": [asdict(line) for line in lines],
        "diagnoses": [asdict(item) for item in found],
        "not_judged": [asdict(item) for item in not_judged],
        "best_checkpoint": best_checkpoint(run),
        "reward_change": None if run.reward_change is None else run.reward_change.sentence(),
        "oddities": run.oddities.sentences(),
    }
    facts["verdict"] = verdict(run, facts)
    return facts


def verdict(run: GrpoRun, facts: Mapping[str, Any]) -> dict[str, Any]:
    """One word and its reasons: every failed line and every bad diagnosis."""
    because = [item["name"] for item in facts["diagnoses"] if item["severity"] == "bad"]
    if not run.trained:
        reason = "no row of a training step is in the log"
        if run.oddities.summary_rows:
            reason += ", only a final summary"
        if run.oddities.history_steps:
            reason += f" (its history names {run.oddities.history_steps} steps: their rows are gone from this file)"
        return {"status": EMPTY, "because": [reason, *because]}
    because = [f"{line['name']}: {line['status']}" for line in facts["lines"] if line["status"] == "fail"] + because
    if because:
        return {"status": BAD, "because": because}
    unknown = [line for line in facts["lines"] if line["name"] == REWARD_LINE and line["status"] == "unknown"]
    if unknown:
        return {"status": UNDECIDED, "because": [f"{line['name']}: {line['evidence']}" for line in unknown]}
    return {"status": FINE, "because": ["every line that can be judged holds, and no diagnosis is bad"]}


def text_of(facts: Mapping[str, Any]) -> str:
    """The analysis of one run for people."""
    planned = f" of {facts['max_steps']}" if facts["max_steps"] else ""
    given = ", ".join(f"{key} {value}" for key, value in facts["arguments"].items() if value is not None)
    out = [f"{facts['run']}: {facts['trained']} steps{planned}" + (f" ({given})" if given else "")]
    out += [f"  note: {sentence}" for sentence in facts["oddities"]]
    mix = facts["reward"]
    if mix and mix.get("gates"):
        out.append(f"  note: the training reward has the gates {', '.join(mix['gates'])}")
    if facts["segments"]:
        heading = "five segments, mean ± half of the 95 % interval"
        out.append(f"\n  {'metric':<30}  {heading:<90}  trend over the run")
    for name, item in facts["segments"].items():
        cells = []
        for part in item["segments"]:
            half = "" if part["high"] is None else f" ±{part['high'] - part['mean']:.1g}"
            cells.append(f"{part['mean']:.3g}{half}".rjust(18))
        found = item["trend"]
        words = found["direction"] + ("" if found["direction"] == "short" else f" ({found['change']:+.3g})")
        out.append(f"  {name:<30}" + "".join(cells) + f"  {words}, p {found['p']:.2g}")
    for line in facts["lines"]:
        out.append(f"\n  [{line['status']}] {line['name']}: {line['evidence']}")
        if line["remedy"]:
            out.append(f"      do: {line['remedy']}")
    for item in facts["diagnoses"]:
        out.append(f"\n  {item['severity'].upper()} {item['name']}: {item['evidence']}\n      do: {item['remedy']}")
    if facts["not_judged"]:
        missing = "; ".join(f"{item['name']} (missing: {item['missing']})" for item in facts["not_judged"])
        out.append(f"\n  not judged: {missing}")
    best = facts["best_checkpoint"]
    if best is None:
        why = facts["reward_change"] or "the log holds no evaluation"
        out.append(f"\n  best checkpoint: not known, {why}")
    else:
        kept = best["checkpoint"] or "its checkpoint was not kept"
        tied = f", tied with {best['tied_with']}" if best["tied_with"] else ""
        out.append(
            f"\n  best checkpoint by evaluation reward: step {best['step']}, {best['reward']:.4f} ({kept}; "
            f"{best['evaluations']} evaluations{tied})"
        )
    result = facts["verdict"]
    return "\n".join([*out, f"\n  verdict: {result['status']}: {'; '.join(result['because'])}"])


def table(all_facts: Sequence[Mapping[str, Any]]) -> str:
    """One row a run, for several runs."""
    header = ["run", "steps", "lr", "beta", "reward first → last fifth", "KL", "format", "best eval", "verdict"]
    rows = [header, ["---"] * len(header)]
    for facts in all_facts:
        parts = facts["segments"].get("reward", {}).get("segments", [])
        lines = {line["name"]: line for line in facts["lines"]}
        best, arguments = facts["best_checkpoint"], facts["arguments"]
        rows.append(
            [
                facts["run"],
                f"{facts['trained']}/{facts['max_steps'] or '?'}",
                *("–" if arguments[key] is None else f"{arguments[key]}" for key in ("learning_rate", "beta")),
                f"{parts[0]['mean']:.3f} → {parts[-1]['mean']:.3f}" if parts else "–",
                *(lines[name]["status"] if name in lines else "–" for name in (KL_LINE, FORMAT_LINE)),
                "–" if best is None else f"{best['reward']:.4f} at {best['step']}",
                f"{facts['verdict']['status']}: {'; '.join(facts['verdict']['because'])}",
            ]
        )
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def _finite(value: Any) -> Any:
    """Strict JSON has no infinity: an unbounded interval end is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def _band(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        low = high = math.nan
    if not 0 <= low < high < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no band: give LOW,HIGH with 0 <= LOW < HIGH, as 0.01,0.1")
    return low, high


def _folders(runs: Sequence[GrpoRun], out: Path | None) -> list[Path]:
    """Where each run's files go: its own folder, or under --out (a subfolder a run when there are several)."""
    if out is None:
        return [run.folder for run in runs]
    if len(runs) == 1:
        return [out]
    return [out / "-".join(run.folder.resolve().parts[-2:]) for run in runs]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/eval/analyze_grpo_log.py runs/grpo-20260101-120000\n"
        "  python scripts/eval/analyze_grpo_log.py runs/*/\n\n"
        "exit codes: 0 fine; 1 the verdict of a run is not fine; 2 wrong use, or no GRPO run there",
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a logging.jsonl, a run folder, or runs/*/")
    parser.add_argument("--kl-band", type=_band, metavar="LOW,HIGH", help="KL band; default: by the run's reference")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"of {JSON_FILE} and {PNG_FILE}; default: the run's")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    args = parser.parse_args(argv)
    try:
        runs, skipped = _read(args.paths)
        analyses = [_finite(analyse(run, args.kl_band)) for run in runs]
        for run, facts, folder in zip(runs, analyses, _folders(runs, args.out), strict=True):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / JSON_FILE, json_text(facts))
            if run.trained:
                draw(run, folder / PNG_FILE, f"{facts['run']}: {facts['verdict']['status']}")
    except (ValueError, OSError) as error:
        print(f"no verdict: {error}", file=sys.stderr)
        return 2
    for log in skipped:
        print(f"left out: {log} is the log of another training (no reward in it)", file=sys.stderr)
    if args.json:
        whole = analyses[0] if len(analyses) == 1 else {"runs": analyses, "verdict": _worst(analyses)}
        print(json.dumps(whole, ensure_ascii=False, allow_nan=False))
    else:
        print("\n\n".join(text_of(facts) for facts in analyses))
        if len(analyses) > 1:
            print("\n" + table(analyses))
    return 0 if all(facts["verdict"]["status"] == FINE for facts in analyses) else 1


def _read(paths: Sequence[Path]) -> tuple[list[GrpoRun], list[Path]]:
    """The GRPO runs of all paths, each once, and the logs of other trainings; NoRun when there is no GRPO run."""
    logs: dict[Path, Path] = {}
    empty: list[str] = []
    for path in paths:
        try:
            logs.update({log.resolve(): log for log in find_runs(path)})
        except NoRun as error:
            if len(paths) == 1 or not path.is_dir():
                raise
            empty.append(str(error))  # runs/*/ holds folders of other kinds
    runs, skipped = [], []
    for log in logs.values():
        run = read_run(log)
        if run is None:
            skipped.append(log)
        else:
            runs.append(run)
    if not runs:
        reasons = [*empty, *(f"{log} logs no reward: it is no GRPO run" for log in skipped)]
        raise NoRun("; ".join(reasons))
    return runs, skipped


def _worst(analyses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    order = (EMPTY, BAD, UNDECIDED, FINE)
    status = min((facts["verdict"]["status"] for facts in analyses), key=order.index)
    which = [facts["run"] for facts in analyses if facts["verdict"]["status"] == status]
    return {"status": status, "because": which}


if __name__ == "__main__":
    sys.exit(main())
