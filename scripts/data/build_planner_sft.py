"""Golden rows to SFT rows: the definite fields from the golden record, keywords and exclusions from the teacher.

Only training rows that are not in review. An answer has to parse without an issue and to reach 0.9 of the reward with
the best titles that its own keywords find in the store (PLANNER_STORE_DIR or QDRANT_URL, and the encoder, as for
training); a row that does not is reported and left out. The teacher is the row's own plan, or --endpoint for rows
that have none (key from PLANNER_API_KEY). Exclusions are counted in and out.
"""

import argparse
import os
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scripts.chat import KEY_VARIABLE
from scripts.data.best_titles import POOL, Scored, Scorer
from scripts.data.golden_file import REVIEW, GoldenRow, Record, last_turns, named, read_golden, set_row
from scripts.data.qwen_tokens import VocabularyMissing, token_report
from scripts.data.sessions import write_report, write_rows
from scripts.data.teacher import NOTHING, Hint, answer_of, ask_hints, needs_teacher
from scripts.data.vote_client import Cache, EndpointError, VoteClient
from scripts.train.result_file import writable_file
from swift_plugin.encoders import EncoderError, make_encoder
from swift_plugin.reward_loader import Reward, load_reward
from swift_plugin.settings import PROMPT_STYLES, Settings
from swift_plugin.stores import StoreError, check_store, make_store

LEAST_REWARD = 0.9
TRAIN = "train"


class LeftOut(NamedTuple):
    """A row that does not become an SFT row. `kind`: review, no_teacher, exclusion, parse, reward."""

    id: str
    kind: str
    reason: str
    text: str


class Sets(NamedTuple):
    """What came of the golden rows; `scores` belong to `rows`, in order."""

    rows: list[Record]
    left_out: list[LeftOut]
    scores: list[Scored]


def exclusion_fault(golden: Mapping[str, Any], hint: Hint, text: str) -> str | None:
    """What is wrong between the golden record's exclusion and the teacher's; None when they agree."""
    terms = hint["exclude_terms"]
    if golden["exclude_expected"] and not terms:
        return "the golden record expects an exclusion, the teacher names none"
    if terms and not golden["exclude_expected"]:
        return f"the teacher excludes {terms[0]['word']!r}, the golden record expects no exclusion"
    missing = [one["evidence"] for one in terms if one["evidence"] not in text]
    return f"evidence {missing[0]!r} does not stand in the turn" if missing else None


def build(
    rows: Sequence[GoldenRow], hints: Mapping[str, Hint | None], reward: Reward, scorer: Scorer, style: str
) -> Sets:
    """The SFT rows of named training rows, in order. `hints` by id."""
    left_out: list[LeftOut] = []
    answered: list[tuple[GoldenRow, str]] = []
    for row in rows:
        hint, golden = hints[row["id"]], row["golden"]
        if golden["status"] == REVIEW:
            left_out.append(LeftOut(row["id"], "review", "a person has yet to rule on it", row["text"]))
            continue
        if hint is None:
            reason = "no plan of its own and no usable answer of the teacher (--endpoint)"
            left_out.append(LeftOut(row["id"], "no_teacher", reason, row["text"]))
            continue
        if fault := exclusion_fault(golden, hint, row["text"]):
            left_out.append(LeftOut(row["id"], "exclusion", fault, row["text"]))
            continue
        answer = answer_of(golden, hint)
        if (parsed := reward.parse_plan(answer)).issues or parsed.plan is None:
            left_out.append(LeftOut(row["id"], "parse", ", ".join(parsed.issues), row["text"]))
            continue
        answered.append((row, answer))
    plans = [reward.parse_plan(answer) for _, answer in answered]
    scores = scorer.score(plans, [row["golden"] for row, _ in answered], [row["text"] for row, _ in answered])
    made, kept = [], []
    for (row, answer), score in zip(answered, scores, strict=True):
        if score.best < LEAST_REWARD:
            reason = f"reward {score.best:.3f} with the best titles its keywords find, below {LEAST_REWARD}"
            left_out.append(LeftOut(row["id"], "reward", reason, row["text"]))
            continue
        record = set_row(row, style)
        made.append({**record, "messages": [*record["messages"], {"role": "assistant", "content": answer}]})
        kept.append(score)
    return Sets(made, left_out, kept)


def report_of(
    rows: Sequence[GoldenRow], hints: Mapping[str, Hint | None], sets: Sets, reward: Reward
) -> dict[str, Any]:
    """Rows in, out and left out by kind, rewards, exclusions in and out, abstentions, family shares, tokens.

    Raises AssertionError when an exclusion came in and neither went out nor is among the rows left out.
    """
    by_id = {row["id"]: row for row in rows}
    gone = [one.id for one in sets.left_out]

    def terms(ids: Iterable[str]) -> int:
        return sum(len(hint["exclude_terms"]) for name in ids if (hint := hints[name]) is not None)

    out = sum(len((reward.parse_plan(row["messages"][-1]["content"]).plan or {})["exclude_terms"]) for row in sets.rows)
    counted = {"in": terms(by_id), "out": out, "in_rows_left_out": terms(gone)}
    if counted["in"] != counted["out"] + counted["in_rows_left_out"]:
        raise AssertionError(f"exclusions were lost on the way: {counted}")
    families = Counter(row["family"] for row in sets.rows)
    goldens = [by_id[row["id"]]["golden"] for row in sets.rows]
    return {
        "rows_in": len(rows),
        "rows_out": len(sets.rows),
        "left_out": dict(sorted(Counter(one.kind for one in sets.left_out).items())),
        "exclusions": counted,
        "reward": {
            "least": LEAST_REWARD,
            "pool": POOL,
            "mean_best_titles": _mean(score.best for score in sets.scores),
            "mean_as_searched": _mean(score.searched for score in sets.scores),
        },
        "category_abstains": sum(one["category"] is None for one in goldens),
        "budget_uncertain": sum(one["budget_uncertain"] for one in goldens),
        "family_shares": {name: round(n / max(1, len(sets.rows)), 4) for name, n in sorted(families.items())},
        "qwen_tokens": tokens_of(sets.rows),
        "rows_left_out": [one._asdict() for one in sets.left_out],
    }


def tokens_of(rows: Sequence[Record]) -> dict[str, Any] | str:
    """Token counts, or the line that says how to get the vocabulary."""
    try:
        return token_report(rows)
    except VocabularyMissing as error:
        return str(error)


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return round(statistics.fmean(found), 4) if found else None


def report_text(report: Mapping[str, Any]) -> str:
    """The report for people: counts, then every row left out on a line of its own."""
    left_out = report["left_out"] or "none"
    lines = [f"{report['rows_in']} training rows in, {report['rows_out']} SFT rows out; left out: {left_out}"]
    lines += [f"{key}: {report[key]}" for key in ("exclusions", "reward", "qwen_tokens")]
    lines.append(f"category abstains {report['category_abstains']}, budget uncertain {report['budget_uncertain']}")
    lines.append("families: " + ", ".join(f"{name} {share:.1%}" for name, share in report["family_shares"].items()))
    lines += [f"  {one['kind']} {one['id']}: {one['reason']}: {one['text']}" for one in report["rows_left_out"]]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """0 when the set is written, 1 when no row is left for it, 2 for wrong use or an endpoint or store that is down."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  PLANNER_STORE_DIR=build/data/catalog.edge python scripts/data/build_planner_sft.py"
        " build/data/golden.jsonl --out build/data/sft.jsonl",
    )
    parser.add_argument("golden", type=Path, help="golden rows (build_planner_golden.py)")
    written = "file to write; reports go beside it (.report.json)"
    parser.add_argument("--out", type=writable_file, required=True, help=written)
    parser.add_argument("--last-turns", action="store_true", help="take the last turn of each session alone")
    parser.add_argument("--prompt-style", choices=PROMPT_STYLES, help="system prompt (default: PLANNER_PROMPT)")
    parser.add_argument("--endpoint", metavar="URL", help="OpenAI-compatible endpoint that teaches rows without a plan")
    parser.add_argument("--model", help="its model; needed with --endpoint")
    args = parser.parse_args(argv)
    if bool(args.endpoint) != bool(args.model):
        parser.error("--endpoint and --model go together")
    try:
        report = run(args)
    except (OSError, ValueError, EndpointError, StoreError, EncoderError) as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(line for line in report_text(report).splitlines() if not line.startswith("  ")))
    if not report["rows_out"]:
        print("no row is left to train on; the report says why", file=sys.stderr)
        return 1
    return 0


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Read, ask, score, write the rows and the report; returns the report."""
    settings = Settings.from_env()
    if not settings.retrieval:
        raise ValueError("PLANNER_RETRIEVAL=off: answers are checked with titles of the store; unset it")
    ready = named(read_golden(args.golden))
    rows = [row for row in (last_turns(ready) if args.last_turns else ready) if row["split"] == TRAIN]
    reward = load_reward(settings.reward_file)
    encoder, store = make_encoder(settings, reward.words), make_store(settings)
    check_store(store, encoder)
    hints: dict[str, Hint | None] = {
        row["id"]: row["plan"] if row["plan"] is not None else None if needs_teacher(row) else NOTHING for row in rows
    }
    usage = None
    if args.endpoint:
        untaught = [row for row in rows if needs_teacher(row) and row["golden"]["status"] != REVIEW]
        cache = Cache(args.out.with_suffix(".answers"))
        client = VoteClient(args.endpoint, args.model, cache, api_key=os.environ.get(KEY_VARIABLE))
        hints.update(zip((row["id"] for row in untaught), ask_hints(client, untaught), strict=True))
        usage = client.usage.report(None, None)
    sets = build(rows, hints, reward, Scorer(reward, encoder, store), args.prompt_style or settings.prompt)
    store.close()
    report = {**report_of(rows, hints, sets, reward), "teacher_usage": usage}
    write_rows(args.out, sets.rows)
    write_report(args.out.with_suffix(".report.json"), report, report_text(report))
    return report


if __name__ == "__main__":
    sys.exit(main())
