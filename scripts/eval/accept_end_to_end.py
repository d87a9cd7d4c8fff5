"""Accept a planner by what shoppers get: seed requests through plan, search, filters and the items shown.

Plans are the greedy completions of eval_planner.py on the test split; search and encoder are those of the settings.
Every request is judged by the lines of scripts/eval/rubric.py; with --judge-url a chat model is asked as well. The last
evaluation named is the one to accept, an earlier one is what it is compared with. Writes OUT.json, which is never
overwritten, and with a judge OUT.judge.jsonl, from which a stopped judging goes on.

The verdict is bad (exit 1) when the evaluation to accept
  - has more P0 failures than --p0-line (default 0): requests shown an item for another gender or age than asked;
  - passes none of the requests that could be judged;
  - is worse than the first beyond chance (paired), by the rubric, or by the judge and beyond the judge's own spread.
"""

import argparse
import dataclasses
import hashlib
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.chat import KEY_VARIABLE
from scripts.data.build_demo_requests import load_unwanted
from scripts.eval import acceptance_search as pipeline
from scripts.eval.endpoint import Endpoint
from scripts.eval.eval_planner import read_rows
from scripts.eval.evaluation_files import json_text, load
from scripts.eval.llm_judge import Scores, ask_judge, compare_judge, questions, summarise_judge
from scripts.eval.rubric import LINES, Case, Judged, Judging, compare, judge, summarise, unwanted_word
from scripts.files import write_atomically
from swift_plugin.encoders import EncoderError, make_encoder
from swift_plugin.reward_loader import Reward, load_reward
from swift_plugin.settings import CHECKOUT, DEMO_DIR, Settings
from swift_plugin.stores import StoreError, check_store, make_store

SPLIT = "test"
DEFAULT_REQUESTS = 90
EXCLUSIONS = CHECKOUT / "data" / "demo" / "exclusions.jsonl"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Accepted:
    """One evaluation with what its plans led to, request by request."""

    label: str
    planned: Sequence[pipeline.Planned]
    results: Sequence[pipeline.Results]
    cases: Sequence[Case]
    judged: Sequence[Judged]


def seed_requests(path: Path, count: int) -> list[dict[str, Any]]:
    """The first `count` rows of the test split. ValueError for another split or too few rows."""
    rows = read_rows(path)
    foreign = sorted({str(row["split"]) for row in rows} - {SPLIT})
    if foreign:
        raise ValueError(f"{path} holds rows of split {', '.join(foreign)}; acceptance reads split {SPLIT} alone")
    if len(rows) < count:
        raise ValueError(f"{path} holds {len(rows)} requests, asked are {count}; lower --requests or add requests")
    return rows[:count]


def completions_of(prefix: str, rows: Sequence[Row], data_sha256: str) -> list[str]:
    """The greedy completion of each row. ValueError where the evaluation is of another data file or lacks a row."""
    evaluation = load(prefix)
    made_on = evaluation["summary"].get("data_sha256")
    if made_on != data_sha256:
        raise ValueError(f"{prefix} was evaluated on other data (sha256 {made_on}, not {data_sha256}); evaluate again")
    if "greedy" not in evaluation:
        raise ValueError(f"{prefix} holds no greedy completions; evaluate again")
    by_id = {record["id"]: record["samples"] for record in evaluation["greedy"]}
    missing = [row["id"] for row in rows if not by_id.get(row["id"])]
    if missing:
        raise ValueError(f"{prefix} has no completion for {', '.join(missing[:5])}; evaluate again")
    return [by_id[row["id"]][0]["completion"] for row in rows]


def through_the_pipeline(
    label: str,
    rows: Sequence[Row],
    planned: Sequence[pipeline.Planned],
    found: Mapping[str, Sequence[pipeline.Product]],
    table: Sequence[tuple[Sequence[str], str]],
    judging: Judging,
) -> Accepted:
    """Filters and judgement of one evaluation; `found` holds the candidates of every search."""
    reward = judging.reward
    results, cases = [], []
    for row, one in zip(rows, planned, strict=True):
        golden = reward.parse_golden(row["golden_json"], where=row["id"])
        result = pipeline.results(reward, golden, row["text"], one, found.get(one.search or "", ()), judging.rates)
        stated = one.plan is not None and bool(pipeline.exclusions(reward, golden, row["text"], one.plan))
        unwanted = unwanted_word(row["text"], golden, table, reward.term_hits)
        results.append(result)
        cases.append(Case(row["id"], row["text"], golden, result.shown, stated, unwanted))
    return Accepted(label, planned, results, cases, [judge(case, judging) for case in cases])


def accept_all(
    plans: Mapping[str, Sequence[str]],
    rows: Sequence[Row],
    settings: Settings,
    table: Sequence[tuple[Sequence[str], str]],
    judging: Judging,
) -> list[Accepted]:
    """Every evaluation (label -> completions) through one search of all its plans together."""
    reward = judging.reward
    encoder, store = make_encoder(settings, reward.words), make_store(settings)
    try:
        check_store(store, encoder)
        planned = {label: pipeline.read_plans(reward, rows, texts) for label, texts in plans.items()}
        found = pipeline.find(encoder, store, [one.search or "" for each in planned.values() for one in each])
    finally:
        store.close()
    return [through_the_pipeline(label, rows, each, found, table, judging) for label, each in planned.items()]


# ------------------------------------------------------------------------------------------------- the report


def verdict(accepted: Sequence[Accepted], p0_line: int, scores: Scores | None) -> dict[str, Any]:
    """What the last evaluation is charged with (nothing: it is accepted), and the comparison with the first."""
    last = accepted[-1]
    summary = summarise(last.judged)
    charges = []
    if len(summary["p0_failures"]) > p0_line:
        charges.append(f"{last.label} has {len(summary['p0_failures'])} P0 failures, the line is {p0_line}")
    if not summary["passes"]:
        charges.append(f"{last.label} passes none of {summary['judged']} judged requests")
    comparisons: dict[str, Any] = {}
    if len(accepted) > 1:
        first = accepted[0]
        comparisons["rubric"] = compare(first.judged, last.judged)
        if scores is not None:
            comparisons["judge"] = compare_judge(scores, first.label, last.label)
        charges += [
            f"{last.label} is worse than {first.label} by the {name} ({one['mean']:+.3f})"
            for name, one in comparisons.items()
            if one["verdict"] == "worse"
        ]
    return {"accepted": not charges, "charges": charges, "comparisons": comparisons}


def request_rows(rows: Sequence[Row], one: Accepted) -> list[dict[str, Any]]:
    """A JSON-ready row a request: what was planned, found and shown, and every finding."""
    return [
        {
            "id": row["id"],
            "family": row["family"],
            "text": row["text"],
            "plan": planned.plan,
            "search": planned.search,
            **{key: value for key, value in dataclasses.asdict(result).items() if key != "shown"},
            "shown": [dataclasses.asdict(product) for product in result.shown],
            "score": judged.score,
            "passed": judged.passed,
            "p0": list(judged.p0),
            "findings": {name: dataclasses.asdict(finding) for name, finding in judged.findings.items()},
        }
        for row, planned, result, judged in zip(rows, one.planned, one.results, one.judged, strict=True)
    ]


def _number(value: float | None, form: str = ".3f") -> str:
    return "–" if value is None else format(value, form)


def table_text(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Models side by side, a Markdown table; in brackets what a line judged and failed."""
    body = [["", *summaries], ["---"] * (len(summaries) + 1)]
    body.append(
        ["score, mean [95 %]"]
        + [f"{_number(s['mean'])} [{_number(s['low'])}, {_number(s['high'])}]" for s in _scores(summaries)]
    )
    body.append(["score, σ"] + [_number(s["sd"]) for s in _scores(summaries)])
    body.append(["requests that pass"] + [f"{s['passes']}/{s['judged']}" for s in summaries.values()])
    body.append(["P0 failures"] + [str(len(s["p0_failures"])) for s in summaries.values()])
    body.append(["nothing to judge"] + [f"{s['nothing_to_judge']}/{s['requests']}" for s in summaries.values()])
    for line in LINES:
        cells = [s["lines"][line.name] for s in summaries.values()]
        name = f"{line.name}{' (P0)' if line.p0 else ''}"
        body.append([name] + [f"{_number(c['mean'])} ({c['judged']} judged, {c['failed']} failed)" for c in cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in body)


def _scores(summaries: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [summary["score"] for summary in summaries.values()]


def notes_text(accepted: Sequence[Accepted], summaries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What the lines did not judge and why, and each P0 failure with the items that caused it."""
    lines = []
    for one in accepted:
        for name, line in summaries[one.label]["lines"].items():
            reasons = ", ".join(f"{reason} {count}" for reason, count in line["not_judged"].items())
            lines += [f"{one.label}: {name} not judged: {reasons}"] if reasons else []
        for case, judged in zip(one.cases, one.judged, strict=True):
            for name in judged.p0:
                finding = judged.findings[name]
                shown = "; ".join(finding.wrong[:3])
                lines.append(f"{one.label}: P0 {case.id} {case.text!r}, {finding.note}, was shown: {shown}")
    return lines


def comparison_text(labels: Sequence[str], comparisons: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = []
    for name, one in comparisons.items():
        spread = f", judge's spread {_number(one['spread'])}" if "spread" in one else ""
        lines.append(
            f"{labels[-1]} − {labels[0]} by the {name}: {_number(one['mean'], '+.3f')} [{_number(one['low'], '+.3f')}, "
            f"{_number(one['high'], '+.3f')}] over {one['requests']} requests{spread}: {one['verdict']}"
        )
    return lines


# ------------------------------------------------------------------------------------------------ the command


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/eval/eval_planner.py --model runs/demo-seed42/sft/last-checkpoint"
        " --data build/demo/test.jsonl --out runs/eval/sft-test\n"
        "  python scripts/eval/accept_end_to_end.py --evaluation sft=runs/eval/sft-test"
        " --evaluation grpo=runs/eval/grpo-test \\\n    --data build/demo/test.jsonl --rate CNY=USD:0.1389"
        " --out runs/eval/acceptance",
    )
    parser.add_argument(
        "--evaluation",
        action="append",
        required=True,
        metavar="LABEL=PREFIX",
        help="files of eval_planner.py on --data; once, or twice to compare (the second is the one to accept)",
    )
    parser.add_argument("--data", type=Path, default=DEMO_DIR / "test.jsonl", help="test split (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=DEFAULT_REQUESTS, help="its first rows (default: %(default)s)")
    parser.add_argument(
        "--rate",
        action="append",
        default=[],
        metavar="CNY=USD:0.1389",
        help="dollars of one yuan; prices in a currency without a rate are not judged against a budget",
    )
    parser.add_argument("--p0-line", type=int, default=0, help="P0 failures still accepted (default: %(default)s)")
    parser.add_argument("--exclusions", type=Path, default=EXCLUSIONS, help="table of refused things (%(default)s)")
    parser.add_argument("--judge-url", help=f"OpenAI-compatible base URL of an LLM judge; its key in {KEY_VARIABLE}")
    parser.add_argument("--judge-model", help="model name of the judge")
    parser.add_argument("--out", type=Path, required=True, help="prefix of the files to write")
    args = parser.parse_args()
    args.prefixes = dict(item.split("=", 1) for item in args.evaluation if "=" in item)
    if len(args.prefixes) != len(args.evaluation) or len(args.prefixes) > 2 or "" in args.prefixes:
        parser.error("give --evaluation LABEL=PREFIX once or twice, under different labels")
    if bool(args.judge_url) != bool(args.judge_model):
        parser.error("give --judge-url and --judge-model together")
    if args.requests < 1 or args.p0_line < 0:
        parser.error("--requests takes 1 or more, --p0-line 0 or more")
    return args


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The whole acceptance as one JSON-ready object; prints the report. Wrong use raises ValueError and the like."""
    settings = Settings.from_env()
    if not settings.retrieval:
        raise ValueError("PLANNER_RETRIEVAL=off: acceptance needs the search; unset it")
    reward: Reward = load_reward(settings.reward_file)
    judging = Judging(reward, pipeline.parse_rates(args.rate))
    rows = seed_requests(args.data, args.requests)
    data_sha256 = hashlib.sha256(args.data.read_bytes()).hexdigest()
    plans = {label: completions_of(prefix, rows, data_sha256) for label, prefix in args.prefixes.items()}
    table = [(one.zh, one.en) for one in load_unwanted(args.exclusions)]
    accepted = accept_all(plans, rows, settings, table, judging)
    summaries: dict[str, dict[str, Any]] = {one.label: summarise(one.judged) for one in accepted}
    scores, asked = None, None
    if args.judge_url:
        endpoint = Endpoint.from_settings(args.judge_url, args.judge_model, settings)
        wanted = [question for one in accepted for question in questions(one.label, one.cases, reward)]
        scores, asked = ask_judge(endpoint, wanted, reward, Path(f"{args.out}.judge.jsonl"))
        for label, summary in summaries.items():
            summary["judge"] = summarise_judge(scores, label)
        asked |= {"endpoint": endpoint.public_url, "model": endpoint.model}
    result = verdict(accepted, args.p0_line, scores)
    print(f"{len(rows)} requests, {pipeline.SHOWN} items shown of {pipeline.CANDIDATES} found\n")
    print(table_text(summaries) + "\n")
    lines = notes_text(accepted, summaries)
    if asked is not None:
        lines += [_judge_text(label, summary["judge"]) for label, summary in summaries.items()]
        lines.append(
            f"judge: {asked['calls']} calls, {asked['asked_once_more']} of them second tries, "
            f"dropped {asked['dropped'] or 'none'}"
        )
    lines += comparison_text(list(args.prefixes), result["comparisons"])
    lines.append("accepted" if result["accepted"] else "not accepted: " + "; ".join(result["charges"]))
    print("\n".join(lines))
    return {
        "data": str(args.data),
        "data_sha256": data_sha256,
        "reward_sha256": reward.sha256,
        "requests": len(rows),
        "rates": dict(judging.rates.per_budget_unit),
        "p0_line": args.p0_line,
        "rubric": {line.name: {"says": line.says, "p0": line.p0} for line in LINES},
        "verdict": result,
        "judge": asked,
        "evaluations": {
            one.label: {
                "prefix": args.prefixes[one.label],
                "summary": summaries[one.label],
                "requests": request_rows(rows, one),
            }
            for one in accepted
        },
    }


def _judge_text(label: str, summary: Mapping[str, Any]) -> str:
    runs = ", ".join(_number(mean) for mean in summary["runs"])
    scored = summary["scored"]
    return (
        f"{label}: judge {_number(summary['mean'])} (runs {runs}; spread {_number(summary['spread'])}), "
        f"{scored['count']} of {scored['of']} scored"
    )


def main() -> int:
    args = parse_arguments()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    out = Path(f"{args.out}.json")
    if out.exists():
        print(f"{out} exists and is never overwritten; choose another --out or move it", file=sys.stderr)
        return 2
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        report = run(args)
    except (OSError, ValueError, StoreError, EncoderError) as error:
        print(f"no acceptance: {error}", file=sys.stderr)
        return 2
    write_atomically(out, json_text(report))
    return 0 if report["verdict"]["accepted"] else 1


if __name__ == "__main__":
    sys.exit(main())
