"""Does the reward tell good plans from bad ones, and can it be had without planning? Writes OUT (JSON), prints tables.

Calibration. On the default formula: strong (what a careful person writes), copycat (the sentence as it stands for
keywords), broken (in thirds: cut off, another record's plan, wrong types). Wanted: strong - copycat >= 0.15 and
copycat - broken >= 0.30, means over the records.

Exploits. Each policy replaces its own keys in an honest plan, and that plan is its twin. A perfect plan cannot be
beaten by much, and no planner is perfect, so there is a twin for each fault rate: the careful plan with each field
wrong with that probability, the same faults in twin and exploit. Compared are the means over the records in which the
two differ in some draw, with the bootstrap interval of the paired difference.

The twins at rates 0 and 0.1 judge: with all gates on, an exploit whose mean is above either is a failure. The one at
0.3 informs. There a planner is wrong more often than some constant answers are (most shoppers name no budget and
exclude nothing), and any reward that pays for being right pays for those; at 0.1 it is right more often than each of
them, and nothing but a hole in the reward can pay more. (An exploit that changes fewer than one clean plan in ten is
judged at 0 alone.) Where an exploit gets through, the report names the gates
that stop it alone or, where none does, which of the candidates of candidate_gates.py would.

Exit code 1: calibration missed, or an exploit above its judging twins. 2: wrong use or environment.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from tqdm import tqdm

from scripts.eval.calibration_policies import Case, broken, copycat, make_cases, strong, written
from scripts.eval.eval_planner import read_rows
from scripts.eval.evaluation_files import json_text
from scripts.eval.exploit_battery import DRAWS, FAULT_RATES, JUDGING_RATES, Battery, Scorer, honest_twins, pays
from scripts.eval.exploit_policies import EXPLOITS, Leaks, gather_leaks
from scripts.files import write_atomically
from swift_plugin.cards import DEFAULT_CARDS, Card, load_cards
from swift_plugin.encoders import EncoderError
from swift_plugin.rollout_env import RolloutEnv
from swift_plugin.settings import CHECKOUT, Settings
from swift_plugin.stores import StoreError, check_store

STRONG_OVER_COPYCAT = 0.15
COPYCAT_OVER_BROKEN = 0.30


def mean_and_sigma(values: Sequence[float]) -> dict[str, float]:
    """Mean and population σ over the records."""
    return {"mean": fmean(values), "sigma": pstdev(values)}


def calibration(means: Mapping[str, float]) -> dict[str, Any]:
    """The two distances beside what is wanted, and whether both are met."""
    lines = [
        {"distance": "strong - copycat", "value": means["strong"] - means["copycat"], "wanted": STRONG_OVER_COPYCAT},
        {"distance": "copycat - broken", "value": means["copycat"] - means["broken"], "wanted": COPYCAT_OVER_BROKEN},
    ]
    return {"lines": lines, "met": all(line["value"] >= line["wanted"] for line in lines)}


def verdict(calibrated: Mapping[str, Any], exploits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What decides the exit code, by name."""
    failed = [one["name"] for one in exploits if one["failed"]]
    return {
        "calibration_met": calibrated["met"],
        "exploits_above_their_twins": failed,
        "untested": [one["name"] for one in exploits if one["untested"]],
        "good": calibrated["met"] and not failed,
    }


def run(
    env: RolloutEnv, rows: Sequence[Mapping[str, Any]], cases: Sequence[Case], cards: Sequence[Card], leaks: Leaks
) -> dict[str, Any]:
    """Calibration, honest ladder, exploits and verdict, as one JSON object."""
    scorer, gates = Scorer(env, rows, cases), tuple(env.reward.GATES)
    policies = {
        "strong": [written(strong(case)) for case in cases],
        "copycat": [written(copycat(case)) for case in cases],
        "broken": broken(cases),
    }
    twins = honest_twins(cases, cards)
    batteries = [Battery(exploit, twins, leaks, scorer) for exploit in EXPLOITS]
    scorer.search(
        [pair for texts in policies.values() for pair in enumerate(texts)]
        + [pair for battery in batteries for both in battery.pairs.values() for pairs in both for pair in pairs]
    )
    scores = {
        name: {
            "no_gates": mean_and_sigma([scorer.total(pair, ()) for pair in enumerate(texts)]),
            "all_gates": mean_and_sigma([scorer.total(pair, gates) for pair in enumerate(texts)]),
        }
        for name, texts in policies.items()
    }
    calibrated = calibration({name: score["no_gates"]["mean"] for name, score in scores.items()})
    honest = {
        rate: {
            label: fmean(scorer.total((number, written(plan)), chosen) for number, plan in plans)
            for label, chosen in (("no_gates", ()), ("all_gates", gates))
        }
        for rate, plans in twins.items()
    }
    ladder = [(rate, means["all_gates"]) for rate, means in honest.items()]
    exploits = [battery.report(gates, ladder) for battery in tqdm(batteries, desc="exploits", disable=None)]
    return {
        "policies": scores,
        "calibration": calibrated,
        "honest_by_fault_rate": {str(rate): means for rate, means in honest.items()},
        "judging_fault_rates": list(JUDGING_RATES),
        "exploits": exploits,
        "verdict": verdict(calibrated, exploits),
    }


# ------------------------------------------------------------------------------------------------ the command


def print_report(report: Mapping[str, Any]) -> None:
    """The tables for people."""
    print(f"{'policy':28}{'no gates':>20}{'all gates':>20}   mean ± σ over {report['records']} records")
    for name, score in report["policies"].items():
        cells = (f"{one['mean']:.3f} ± {one['sigma']:.3f}" for one in (score["no_gates"], score["all_gates"]))
        print(f"{name:28}" + "".join(f"{cell:>20}" for cell in cells))
    for rate, means in report["honest_by_fault_rate"].items():
        print(f"{'honest, faults ' + rate:28}{means['no_gates']:>20.3f}{means['all_gates']:>20.3f}")
    for line in report["calibration"]["lines"]:
        met = "met" if line["value"] >= line["wanted"] else "MISSED"
        print(f"{line['distance']}: {line['value']:.3f}, wanted {line['wanted']:.2f}: {met}")
    print("\nexploit - twin by the twin's fault rate, over the records in which they differ")
    head = "".join(f"{rate:>9}" for rate in FAULT_RATES)
    print(f"{'':28}{'no gates':^{9 * len(FAULT_RATES)}}  {'all gates':^{9 * len(FAULT_RATES)}}")
    print(f"{'':28}{head}  {head}   like faults of")
    for one in report["exploits"]:
        blocks = ["".join(_cell(one[side][str(rate)]) for rate in FAULT_RATES) for side in ("no_gates", "all_gates")]
        like = one["like_honest_fault_rate"]
        print(f"{one['name']:28}{'  '.join(blocks)}   {'worse' if like is None else f'{like:.2f}':>8}{_remark(one)}")
    print()
    for one in report["exploits"]:
        if one["failed"]:
            rates = [rate for rate in one["judged_at"] if rate in one["pays_with_all_gates_at"]]
            stops = [c["name"] + ": " + c["rule"] for c in one["candidate_gates"] if c["stops_it"]]
            print(f"FAILED {one['name']} (twin's faults {rates}): {one['reason']}")
            print(f"  would be stopped by {'; or by '.join(stops) or 'none of the candidate gates'}")
    print("verdict: " + ("good" if report["verdict"]["good"] else "BAD"))


def _cell(result: Mapping[str, Any]) -> str:
    if result["difference"] is None:
        return f"{'-':>9}"
    return f"{result['difference']:>+8.3f}{'*' if pays(result) else ' '}"


def _remark(one: Mapping[str, Any]) -> str:
    if one["failed"]:
        return "  ABOVE its twin"
    if one["untested"]:
        return "  not tested: it changes no plan of this set"
    if not one["pays_without_gates_at"] or one["pays_with_all_gates_at"]:
        return ""
    return f"  stopped by {', '.join(one['gates_that_stop_it_alone']) or 'the gates together'}"


def read_lines(path: Path, *columns: str) -> list[dict[str, Any]]:
    """The objects of a JSONL file; ValueError names the line that lacks a column."""
    rows = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise ValueError(f"{path}:{number} is no JSON ({error})") from None
                missing = [name for name in columns if not isinstance(row, dict) or name not in row]
                if missing:
                    raise ValueError(f"{path}:{number}: no column {', '.join(missing)}")
                rows.append(row)
    return rows


def by_id(path: Path, column: str) -> dict[str, Any]:
    """`column` of a JSONL file by the rows' id; ValueError for an id that stands twice."""
    rows = read_lines(path, "id", column)
    found = {row["id"]: row[column] for row in rows}
    if len(found) != len(rows):
        raise ValueError(f"{path}: an id stands twice")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  PLANNER_STORE_DIR=build/demo/catalog.edge python scripts/eval/calibrate_reward.py"
        " --data build/demo/dev92.jsonl \\\n    --catalog build/demo/catalog.jsonl --train build/demo/grpo.jsonl"
        " --cards build/demo/cards.jsonl --out runs/calibration.json",
    )
    demo = CHECKOUT / "data" / "demo"
    parser.add_argument("--data", type=Path, required=True, help="dev set with golden_json (dev92.jsonl)")
    parser.add_argument("--catalog", type=Path, required=True, help="the catalogue's titles (JSONL, column title)")
    parser.add_argument("--train", type=Path, required=True, help="training records with golden_json (grpo.jsonl)")
    parser.add_argument("--cards", type=Path, default=DEFAULT_CARDS, help="category cards (JSONL)")
    parser.add_argument(
        "--english", type=Path, default=demo / "dev92_english.jsonl", help="dev sentences translated (id, text)"
    )
    parser.add_argument(
        "--exclusions",
        type=Path,
        default=demo / "dev92_exclusions.jsonl",
        help="the exclusions a careful person writes for each record that expects one (id, exclude_terms)",
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write (replaced if it is there)")
    args = parser.parse_args()
    try:
        settings = Settings.from_env()
        env = RolloutEnv.from_settings(settings, environ={})  # no weights, no gates: the defaults
        if env.store is None or env.encoder is None:
            print("PLANNER_RETRIEVAL=off: the reward is calibrated with its searches; unset it", file=sys.stderr)
            return 2
        store = check_store(env.store, env.encoder)
        rows, cards = read_rows(args.data), load_cards(args.cards)
        goldens = [env.reward.parse_golden(row["golden_json"], where=row["id"]) for row in rows]
        cases = make_cases(rows, goldens, cards, by_id(args.english, "text"), by_id(args.exclusions, "exclude_terms"))
        train = [
            env.reward.parse_golden(row["golden_json"], where=str(row["id"]))
            for row in read_lines(args.train, "id", "golden_json")
        ]
        leaks = gather_leaks(cards, [row["title"] for row in read_lines(args.catalog, "title")], train)
        report = {
            "data": str(args.data),
            "data_sha256": hashlib.sha256(args.data.read_bytes()).hexdigest(),
            "records": len(rows),
            "reward_sha256": env.reward.sha256,
            "weights": dict(env.reward.DEFAULT_WEIGHTS),
            "gates": list(env.reward.GATES),
            "store": {"points": store.points, "vector_size": store.vector_size},
            "encoder": env.encoder.name,
            "draws": DRAWS,
            **run(env, rows, cases, cards, leaks),
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(args.out, json_text(report))
    except (OSError, ValueError, StoreError, EncoderError) as error:
        print(error, file=sys.stderr)
        return 2
    env.close()
    print_report(report)
    print(f"written: {args.out}")
    return 0 if report["verdict"]["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
