"""Score a log of real requests and plans with the reward file of training, by day, and say whether the service drifted.

Requests whose golden record is known (--golden: any prompt set; a row counts for what it says, this turn and the turns
before it) get the whole reward. All others get the signals that need none: parsed, format, invented evidence, copied
sentence, titles found, a category invented for a fragment, money and exclusions by rule. The reward file is the one
PLANNER_REWARD_FILE names, loaded by path, with the default weights and no gates, as in every evaluation.

Titles come from the log where it holds them, else from the store and encoder that the variables name
(PLANNER_RETRIEVAL=off: from nowhere). scripts/eval/online_log.py describes a line of the log.

Writes OUT.json (facts, overall, by day, drift) and OUT.rows.jsonl (a line a request: plan, breakdown, signals). The
OUT.json of a good week is the --baseline of the next: the last 7 days of the log are compared with it, signal by
signal, and must be scored with the same reward file, cards and --golden (or again without). Plans quote the shopper, so
keep both files where the log is kept.

Exit codes: 0 fine; 1 a signal got worse than the baseline; 2 wrong use, log or environment.
"""

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.eval.drift import LEAST_DRIFT, LEAST_REQUESTS, STEADY, TOO_FEW, WORSE, Drift, as_dict, drifts
from scripts.eval.eval_planner import NOTICE
from scripts.eval.evaluation_files import json_text, jsonl, read_json
from scripts.eval.online_log import read_goldens, read_log
from scripts.eval.online_scoring import score_log
from scripts.eval.online_signals import SIGNALS, Scored, tally, values_of
from scripts.files import write_atomically
from scripts.labs.tables import table
from swift_plugin.cards import DEFAULT_CARDS, load_cards
from swift_plugin.encoders import EncoderError
from swift_plugin.reward_loader import load_reward
from swift_plugin.rollout_env import RolloutEnv
from swift_plugin.settings import Settings
from swift_plugin.stores import StoreError, check_store

RECENT_DAYS = 7
# Two summaries that differ in one of these were measured with different rulers. The number of items in the store is no
# ruler: a live catalogue grows.
COMPARED = ("reward_sha256", "golden_sha256", "titles_from", "encoder", "cards_sha256")
NOT_RECORDED = "not recorded"  # by a summary older than the fact


def summarise(scored: Sequence[Scored]) -> dict[str, Any]:
    """`overall`, `recent` (the last RECENT_DAYS days that the log holds) and `days`, each a tally of the signals."""
    values = [(one.request.day, values_of(one)) for one in scored]
    days = sorted({day for day, _ in values})
    recent = days[-RECENT_DAYS:]
    return {
        "golden_known": sum(one.golden_known for one in scored),
        "overall": tally(row for _, row in values),
        "recent": {"days": recent, **tally(row for day, row in values if day in recent)},
        "days": {day: tally(row for at, row in values if at == day) for day in days},
    }


def row_lines(scored: Sequence[Scored]) -> str:
    """The line of every request: what it scored and why; its words stay in the log."""
    return jsonl(
        [
            {
                "id": one.request.id,
                "day": one.request.day,
                "golden": "known" if one.golden_known else "by rule",
                "plan": one.plan,
                "issues": list(one.issues),
                "search": one.search,
                "titles": None if one.titles is None else list(one.titles),
                "breakdown": one.breakdown,
                "signals": values_of(one),
            }
            for one in scored
        ]
    )


def check_baseline(baseline: Any, facts: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The baseline's overall tally; ValueError where it is none of ours or was measured otherwise."""
    if not isinstance(baseline, dict) or "overall" not in baseline or "facts" not in baseline:
        raise ValueError(f"{path} is no summary of this script: give the OUT.json of an earlier run")
    measured = {key: baseline["facts"].get(key, NOT_RECORDED) for key in COMPARED}
    differing = [key for key in COMPARED if measured[key] != facts[key]]
    if differing:
        shown = "; ".join(f"{key} {measured[key]!r} there, {facts[key]!r} here" for key in differing)
        raise ValueError(f"{path} cannot be compared ({shown}): score the baseline's log again under the same")
    missing = set(SIGNALS) - set(baseline["overall"]["signals"])
    if missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}: score the baseline's log again")
    return dict(baseline["overall"])


def _cell(signal: Mapping[str, Any]) -> str:
    return "-" if signal["mean"] is None else f"{signal['mean']:.3f}"


def daily_table(summary: Mapping[str, Any]) -> str:
    """One line a day, a column a signal that some request had; counts stand in OUT.json."""
    shown = [name for name in SIGNALS if summary["overall"]["signals"][name]["requests"]]
    tallies = {**summary["days"], "all": summary["overall"]}
    rows = [
        (day, str(one["requests"]), *(_cell(one["signals"][name]) for name in shown)) for day, one in tallies.items()
    ]
    return table("by day", ("day", "requests", *shown), rows)


def drift_table(found: Sequence[Drift]) -> str:
    rows = [
        (
            one.name,
            "-" if one.before is None else f"{one.before:.3f}",
            str(one.before_requests),
            "-" if one.now is None else f"{one.now:.3f}",
            str(one.now_requests),
            "-" if one.change is None else f"{one.change:+.3f}",
            "-" if one.p_holm is None else f"{one.p_holm:.3f}",
            one.state,
        )
        for one in found
    ]
    columns = ("signal", "baseline", "of", "now", "of", "change", "p (Holm)", "")
    return table("last days against the baseline", columns, rows)


def run(args: argparse.Namespace) -> int:
    out = Path(f"{args.out}.json")
    if args.baseline is not None and args.baseline.resolve() == out.resolve():
        raise ValueError(f"--baseline {args.baseline} would be overwritten by --out {args.out}: choose another")
    settings = Settings.from_env()
    requests, with_titles = read_log(args.log)
    goldens = read_goldens(args.golden) if args.golden else {}
    cards = load_cards(args.cards)
    print(NOTICE)
    facts, env = _open(settings, with_titles)
    reward = load_reward(settings.reward_file) if env is None else env.reward
    facts |= {
        "reward_sha256": reward.sha256,
        "golden_sha256": _sha256(args.golden) if args.golden else None,
        "cards_sha256": _sha256(args.cards),
        "log_sha256": _sha256(args.log),
    }
    baseline = check_baseline(read_json(args.baseline), facts, args.baseline) if args.baseline else None
    scored = score_log(requests, goldens, cards, reward, env)
    summary = {"facts": facts, **summarise(scored)}
    found = [] if baseline is None else drifts(baseline, summary["recent"])
    if baseline is not None:
        summary["drift"] = {"baseline": str(args.baseline), "signals": [as_dict(one) for one in found]}
    write_atomically(Path(f"{args.out}.rows.jsonl"), row_lines(scored))
    write_atomically(out, json_text(summary))
    known = summary["golden_known"]
    print(f"{len(scored)} requests, {known} with a known golden record; titles from {facts['titles_from']}")
    print(daily_table(summary))
    return report_drift(found, summary["recent"]["days"]) if baseline is not None else 0


def report_drift(found: Sequence[Drift], days: Sequence[str]) -> int:
    """Print the drift; 1 when a signal got worse."""
    print(drift_table(found))
    worse = [one.name for one in found if one.state == WORSE]
    other = [f"{one.name} {one.state}" for one in found if one.state not in (WORSE, STEADY, TOO_FEW)]
    print(f"{days[0]} to {days[-1]}: " + (f"worse: {', '.join(worse)}" if worse else "nothing got worse"))
    if other:
        print(f"also: {', '.join(other)}")
    print(f"judged where both sides have {LEAST_REQUESTS} requests; a change below {LEAST_DRIFT} is no drift")
    return 1 if worse else 0


def _open(settings: Settings, with_titles: bool) -> tuple[dict[str, Any], RolloutEnv | None]:
    """Where the titles come from, and the environment that searches (None: the log holds them)."""
    if with_titles:
        return {"titles_from": "log", "encoder": None, "store_points": None}, None
    env = RolloutEnv.from_settings(settings, environ={})  # no weights, no gates: the defaults
    if env.store is None or env.encoder is None:
        return {"titles_from": "nowhere (PLANNER_RETRIEVAL=off)", "encoder": None, "store_points": None}, env
    store = check_store(env.store, env.encoder)
    return {"titles_from": "store", "encoder": env.encoder.name, "store_points": store.points}, env


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/eval/score_online_log.py --log logs/2026-03.jsonl --golden "
        "build/demo/dev92.jsonl \\\n    --baseline runs/online/2026-02.json --out runs/online/2026-03",
    )
    parser.add_argument("--log", type=Path, required=True, help="JSONL, one request a line")
    parser.add_argument("--golden", type=Path, help="prompt set whose golden records are looked up by what was said")
    parser.add_argument("--baseline", type=Path, help="OUT.json of an earlier run, to compare the last days with")
    parser.add_argument("--cards", type=Path, default=DEFAULT_CARDS, help="cards that tell fragments (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="prefix of the files to write (overwritten)")
    args = parser.parse_args()
    try:
        return run(args)
    except (OSError, ValueError, StoreError, EncoderError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
