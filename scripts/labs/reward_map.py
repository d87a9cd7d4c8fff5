"""Lab: what judges what. For every field of the plan, line of the rubric and part of the reward: code, judge or person.

Nothing here is believed: reward_probes.py plants faults, the reward and the rubric's lines are run on them, and the map
shows what moved. The names come from the code (PLAN_KEYS, LINES, RewardBreakdown), so a new one without a probe, and a
fault that no signal notices, show as gaps.

A signal gap is a fault that the training reward does not see: no training mends it. An ability gap is a fault that the
reward sees and the model still makes: --evaluation counts both.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, cast

from reward import planner_reward
from reward.planner_reward import GATES, PLAN_KEYS, RewardBreakdown, compute_reward, parse_golden
from scripts.eval.acceptance_search import Product, Rates
from scripts.eval.evaluation_files import MODES, load
from scripts.eval.rubric import LINES, Case, Judging, Line
from scripts.labs.reward_probes import (
    KEPT,
    LINE_PROBES,
    METHODS,
    PROBES,
    REQUEST,
    UNWANTED,
    LineProbe,
    Probe,
    Situation,
)
from scripts.labs.tables import table
from swift_plugin.reward_loader import Reward

DETERMINISTIC, GAP = "deterministic", "GAP"
FIELDS: tuple[str, ...] = RewardBreakdown._fields
FLAGS = tuple(name for name, kind in RewardBreakdown.__annotations__.items() if kind in (bool, "bool"))


@dataclass(frozen=True)
class Row:
    """One line of the map. `kind` is DETERMINISTIC, judge, person or GAP; `signal` says what notices, or what lacks."""

    name: str
    fault: str
    kind: str
    signal: str
    trains: bool  # the training reward, as it stands by default, falls


def moved(
    situation: Situation, plan: Mapping[str, Any] | None, titles: Sequence[str], gates: Sequence[str] = ()
) -> set[str]:
    """The fields of the breakdown that differ between the right plan and `plan`."""
    right = compute_reward(situation.plan, situation.golden, situation.text, situation.titles, gates=gates)
    wrong = compute_reward(plan, situation.golden, situation.text, titles, gates=gates)
    return {name for name in right._fields if getattr(right, name) != getattr(wrong, name)}


def probe_row(probe: Probe) -> Row:
    """What notices the fault: the default reward, a flag, a gate, or nobody."""
    plan = {**probe.situation.plan, **probe.change}
    titles = probe.situation.titles if probe.titles is None else probe.titles
    plain = moved(probe.situation, plan, titles)
    by_gate = [gate for gate in GATES if "total" in moved(probe.situation, plan, titles, (gate,))]
    seen = [name for name in FIELDS if name in plain and name != "total"]
    if "total" in plain:
        kind, signal = DETERMINISTIC, ", ".join(seen)
    elif seen or by_gate:
        found = ([f"flag {', '.join(seen)}"] if seen else []) + ([f"gate {', '.join(by_gate)}"] if by_gate else [])
        kind, signal = DETERMINISTIC, "; ".join(found)
    elif probe.needs is not None:
        return Row(probe.key, probe.fault, probe.needs, "nothing moves", False)
    else:
        kind, signal = GAP, "nothing moves"
    if probe.needs is not None:
        kind, signal = GAP, f"the probe says {probe.needs}, yet code notices: {signal}"
    return Row(probe.key, probe.fault, kind, signal, "total" in plain)


def plan_rows(keys: Sequence[str], probes: Sequence[Probe] = PROBES) -> list[Row]:
    """The plan's fields in order, each with its probes; GAP for a field without one and a probe without its field."""
    rows = []
    for key in keys:
        of_key = [probe_row(probe) for probe in probes if probe.key == key]
        rows += of_key or [Row(key, "", GAP, "no probe: add one to reward_probes.py", False)]
    rows += [Row(p.key, p.fault, GAP, "the plan has no such field", False) for p in probes if p.key not in keys]
    return rows


# ---------------------------------------------------------------------------------------------- the rubric


def _passes(line: Line, situation: Situation, shown: tuple[Product, ...]) -> bool | None:
    golden = parse_golden(situation.golden)
    case = Case("probe", situation.text, golden, shown, exclusion_stated=True, unwanted=UNWANTED)
    return line.judge(case, Judging(cast(Reward, planner_reward), Rates())).passed


def line_rows(lines: Sequence[Line], probes: Sequence[LineProbe] = LINE_PROBES) -> list[Row]:
    """The rubric's lines in order: run on items that keep it and items that break it."""
    by_line = {probe.line: probe for probe in probes}
    rows = []
    for line in lines:
        fault = f"{line.says}{' [P0]' if line.p0 else ''}"
        probe = by_line.get(line.name)
        if probe is None:
            rows.append(Row(line.name, fault, GAP, "no probe: add one to reward_probes.py", False))
            continue
        if _passes(line, probe.situation, KEPT) is not True or _passes(line, probe.situation, probe.shown) is not False:
            rows.append(Row(line.name, fault, GAP, "its code does not tell the probe's items apart", False))
            continue
        found = [product.title for product in probe.shown]
        trains = "total" in moved(probe.situation, probe.situation.plan, found)
        signal = "code" if probe.needs is None else f"code; {probe.needs} for {probe.limit}"
        rows.append(Row(line.name, fault, DETERMINISTIC, signal, trains))
    names = {line.name for line in lines}
    return rows + [Row(p.line, "", GAP, "the rubric has no such line", False) for p in probes if p.line not in names]


# ----------------------------------------------------------------------------------- the parts of the reward


def part_rows(parts: Sequence[str], probes: Sequence[Probe] = PROBES) -> list[Row]:
    """For each part of the breakdown, which planted faults move it; GAP where none does."""
    moves: dict[str, list[str]] = {part: [] for part in parts}
    for probe in probes:
        titles = probe.situation.titles if probe.titles is None else probe.titles
        for part in moved(probe.situation, {**probe.situation.plan, **probe.change}, titles):
            if part in moves and probe.key not in moves[part]:
                moves[part].append(probe.key)
    for part in moved(REQUEST, None, ()):
        if part in moves:
            moves[part].append("a completion without a plan")
    if "abstained" in moves and not moves["abstained"]:
        # By design no plan moves it: the golden record decides what takes part.
        plain = compute_reward(REQUEST.plan, REQUEST.golden, REQUEST.text, None).abstained
        moves["abstained"] = ["the golden record and the run alone"] if plain == ("retrieval",) else []
    return [
        Row(part, ", ".join(keys), DETERMINISTIC if keys else GAP, "" if keys else "no probe moves it", bool(keys))
        for part, keys in moves.items()
    ]


# ---------------------------------------------------------------------------------------------- the gaps


def gaps(rows: Iterable[Row]) -> list[Row]:
    """Names without a probe, and faults that nothing notices though nobody has said who should."""
    return [row for row in rows if row.kind == GAP]


def signal_gaps(rows: Iterable[Row]) -> list[Row]:
    """What the default training reward does not see."""
    return [row for row in rows if not row.trains]


def ability_rows(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Part, its mean, completions below 1 and completions in which it took part: what training can still mend."""
    samples = [sample["breakdown"] for record in records for sample in record["samples"]]
    rows = []
    for part in FIELDS:
        if part in FLAGS or part in ("total", "abstained"):
            continue
        values = [one[part] for one in samples if one[part] is not None]
        mean = f"{fmean(values):.3f}" if values else "-"
        rows.append((part, mean, str(sum(value < 1 for value in values)), str(len(values))))
    return rows


def flag_rows(records: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Flags raised, and whether the default reward falls with them."""
    samples = [sample["breakdown"] for record in records for sample in record["samples"]]
    unpaid = {flag for flag in FLAGS for row in rows if not row.trains and flag in row.signal}
    paid = {flag for flag in FLAGS for row in rows if row.trains and flag in row.signal}
    return [
        (flag, str(sum(one[flag] for one in samples)), "signal" if flag in unpaid - paid else "ability")
        for flag in FLAGS
    ]


# ---------------------------------------------------------------------------------------------- the tables


def _rows_table(heading: str, label: str, what: str, rows: Sequence[Row]) -> str:
    cells = [(row.name, row.fault, row.kind, row.signal, "yes" if row.trains else "no") for row in rows]
    return table(heading, (label, what, "judged by", "signal", "trains"), cells)


def report() -> str:
    plan, lines, parts = plan_rows(PLAN_KEYS), line_rows(LINES), part_rows(FIELDS)
    missing = gaps([*plan, *lines, *parts])
    unseen = [(row.name, row.fault, row.signal) for row in signal_gaps([*plan, *lines]) if row.kind != GAP]
    methods = [
        (one.name, one.reward, "yes" if one.critic else "no", str(len(one.copies)), ", ".join(one.copies), one.remark)
        for one in METHODS
    ]
    return "\n".join(
        [
            _rows_table("fields of the plan", "field", "fault", plan),
            _rows_table("lines of the rubric", "line", "passes when", lines),
            table(
                "parts of the reward",
                ("part", "moved by", "judged by"),
                [(row.name, row.fault, row.kind) for row in parts],
            ),
            table("signal gaps: the training reward does not see", ("name", "fault", "seen by"), unseen),
            table("methods", ("method", "reward from", "critic", "copies", "resident", "remark"), methods),
            f"without a signal: {', '.join(f'{row.name} ({row.signal})' for row in missing) or 'none'}",
        ]
    )


def ability_report(prefix: str) -> str:
    """The evaluation's counts, ability apart from signal."""
    evaluation = load(prefix)
    mode = next(mode for mode in MODES if mode in evaluation)
    records = evaluation[mode]
    return "\n".join(
        [
            table(f"ability gaps ({mode})", ("part", "mean", "below 1", "of"), ability_rows(records)),
            table(f"flags ({mode})", ("flag", "raised", "gap of"), flag_rows(records, plan_rows(PLAN_KEYS))),
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every name has a signal or says who judges it, 1 when one is a gap, 2 for a broken evaluation file."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/labs/reward_map.py --evaluation runs/demo-seed42/eval/sft",
    )
    parser.add_argument("--evaluation", metavar="PREFIX", help="evaluation files (eval_planner.py): count ability gaps")
    args = parser.parse_args(argv)
    print(report())
    if args.evaluation is not None:
        try:
            print(f"\n{ability_report(args.evaluation)}", end="")
        except (ValueError, FileNotFoundError) as error:
            print(f"refused: {error}", file=sys.stderr)
            return 2
    return 1 if gaps([*plan_rows(PLAN_KEYS), *line_rows(LINES), *part_rows(FIELDS)]) else 0


if __name__ == "__main__":
    sys.exit(main())
