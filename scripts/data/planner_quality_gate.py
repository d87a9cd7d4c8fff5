"""The quality gate: sessions of every source go in, usable ones come out with their split, and a report says why.

Seven checks: form, duplicates, leakage into dev and test, personal data, template tone, coverage and balance, and
whether card, text and turns agree. Every row that is flagged is reported with the reason; only unusable ones are
dropped. Anchors (handwritten or from a log) go to dev92 whole: they are reported on, never dropped, never trained on.
The same files give the same bytes.

Exit codes: 0 the set will do; 1 it will not (the text says why; the files are written all the same); 2 wrong use.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from scripts.data.adversarial_seeds import FAMILIES as ADVERSARIAL
from scripts.data.anchor_filter import keep
from scripts.data.gate_checks import (
    CHECKS,
    FEWEST_FOR_SHARES,
    PERSONAL,
    ROW_CHECKS,
    Finding,
    form_findings,
    opening,
    tone_findings,
)
from scripts.data.gate_corpus import HeldOut, Seen, coverage_findings
from scripts.data.gate_profile import profile, profile_table
from scripts.data.gate_splits import assign_splits
from scripts.data.sessions import Session, is_anchor, turn_texts, write_report, write_rows
from scripts.files import json_lines
from swift_plugin.cards import DEFAULT_CARDS, Card, load_cards
from swift_plugin.rollout_env import SPLITS
from swift_plugin.settings import CHECKOUT

DEFAULT_ANCHORS = CHECKOUT / "data" / "anchors.jsonl"

MOST_DROPPED = 0.15  # of a source's rows; above it the source wants repair, not filtering
MOST_SHOWN = 20  # findings of one kind in the text report; the JSON holds all


class Row(NamedTuple):
    """A line of an input file: where it stands, and what JSON it holds (not yet known to be a session)."""

    file: str
    where: str
    raw: Any


class Outcome(NamedTuple):
    """What the gate decided. `rows`: the kept sessions with their splits, in input order."""

    rows: list[Session]
    findings: list[Finding]
    report: dict[str, Any]
    reasons: list[str]


def read_rows(path: Path) -> list[Row]:
    """Every line of a JSONL file; ValueError names a line that is no JSON."""
    rows = [Row(path.name, f"{path.name}:{number}", raw) for number, raw in json_lines(path)]
    if not rows:
        raise ValueError(f"{path.name} holds no row: build it first")
    return rows


def formed(rows: Sequence[Row]) -> tuple[list[tuple[str, Session]], list[Finding]]:
    """The rows that are sessions, each with its file, and findings for the others and for ids that stand twice."""
    sessions: list[tuple[str, Session]] = []
    findings: list[Finding] = []
    seen: set[str] = set()
    for row in rows:
        found = [one for one in form_findings(row.raw, row.where) if one.kind == "schema"]
        if not found and row.raw["id"] in seen:
            found = [Finding("form", "schema", row.raw["id"], f"{row.where}: the id stands twice", unusable=True)]
        findings += found
        if not found:
            seen.add(row.raw["id"])
            sessions.append((row.file, row.raw))
    return sessions, findings


def opening_shares(sessions: Sequence[Session]) -> dict[str, float]:
    """By id: how many of its source's sessions begin alike, in [0, 1]; 0 in sources too small to say."""
    sources = Counter(one["source"] for one in sessions)
    openings = Counter((one["source"], opening(one)) for one in sessions)
    return {
        one["id"]: openings[one["source"], opening(one)] / sources[one["source"]]
        if sources[one["source"]] >= FEWEST_FOR_SHARES
        else 0.0
        for one in sessions
    }


def row_findings(session: Session, cards: Mapping[str, Card], opening_share: float) -> list[Finding]:
    """The findings of the checks that need one row alone."""
    return [one for check in ROW_CHECKS for one in check(session, cards)] + tone_findings(session, opening_share)


def dropped_ids(findings: Iterable[Finding]) -> set[str]:
    """The rows that findings make unusable."""
    return {one.id for one in findings if one.unusable and one.id}


def without_duplicates(sessions: Sequence[Session]) -> tuple[list[Session], list[Finding]]:
    """The sessions that say something new; the first of equals stays."""
    seen, kept, findings = Seen(), list[Session](), list[Finding]()
    for session in tqdm(sessions, desc="duplicates", unit="session", disable=None):
        found = seen.findings(session)
        findings += found
        if not dropped_ids(found):
            seen.add(session)
            kept.append(session)
    return kept, findings


def leaks(sessions: Sequence[Session]) -> list[Finding]:
    """What training sessions share with the texts of dev92, watch and test."""

    def judged(*splits: str) -> list[tuple[str, str]]:
        return [(one["id"], turn_texts(one)[-1]) for one in sessions if one["split"] in splits]

    held = HeldOut(judged("dev92"), judged("test", "watch"))
    train = [one for one in sessions if one["split"] == "train"]
    return [found for one in tqdm(train, desc="leakage", unit="session", disable=None) for found in held.findings(one)]


def gate(rows: Sequence[Row], cards: Sequence[Card]) -> Outcome:
    """Run every check and assign the splits. Pure: the same rows and cards give the same outcome."""
    by_id = {card.id: card for card in cards}
    located, findings = formed(rows)
    files = {session["id"]: file for file, session in located}
    anchors, filtered = keep([one for _, one in located if is_anchor(one)])
    generated = [one for _, one in located if not is_anchor(one)]
    shares = opening_shares(generated)
    for session in tqdm([*anchors, *generated], desc="rows", unit="session", disable=None):
        findings += row_findings(session, by_id, shares.get(session["id"], 0.0))
    bad = dropped_ids(findings)
    kept, duplicates = without_duplicates([one for one in generated if one["id"] not in bad])
    findings += duplicates
    split = assign_splits([*anchors, *kept])
    leaked = leaks(split)
    findings += leaked
    gone = dropped_ids(leaked)
    final = [one for one in split if one["id"] not in gone]

    coverage = coverage_findings([one for one in final if not is_anchor(one)], cards, frozenset(ADVERSARIAL))
    findings += coverage
    reasons = verdict(located, final, findings)
    report = {
        "verdict": "bad" if reasons else "fine",
        "reasons": reasons,
        "rows_in": len(rows),
        "rows_out": len(final),
        "anchors_filtered": filtered,
        "splits": {name: sum(one["split"] == name for one in final) for name in SPLITS},
        "families": family_table(final),
        "findings": {check: _kinds(findings, check) for check in CHECKS},
        "dropped": _dropped_by_file(located, final),
        "profiles": profiles(final, files),
        "flagged": [one._asdict() for one in findings],
    }
    return Outcome(final, findings, report, reasons)


def verdict(located: Sequence[tuple[str, Session]], final: Sequence[Session], findings: Sequence[Finding]) -> list[str]:
    """Why the set will not do, a line each; empty when it will."""
    reasons = [one.reason for one in findings if one.unusable and not one.id]
    anchor_ids = {one["id"] for one in final if is_anchor(one)}
    exposed = sorted({one.id for one in findings if one.check == PERSONAL and one.id in anchor_ids})
    if exposed:
        reasons.append(f"anchors hold personal data, mask them with build_planner_anchors.py: {', '.join(exposed)}")
    kept = {one["id"] for one in final}
    for file in dict.fromkeys(file for file, _ in located):
        mine = [one["id"] for name, one in located if name == file and not is_anchor(one)]
        lost = sum(identity not in kept for identity in mine)
        if lost > MOST_DROPPED * len(mine):
            reasons.append(f"{file}: {lost} of {len(mine)} rows are unusable, more than {MOST_DROPPED:.0%}: repair it")
    generated = [one for one in final if not is_anchor(one)]
    for family in sorted({one["family"] for one in generated}):
        if not any(one["family"] == family and one["split"] == "test" for one in generated):
            reasons.append(f"family {family} has no session in test: it needs more wordings")
    return reasons


def family_table(sessions: Sequence[Session]) -> dict[str, dict[str, int]]:
    """Sessions by family and split."""
    counts = Counter((one["family"], one["split"]) for one in sessions)
    families = sorted({one["family"] for one in sessions})
    return {family: {name: counts[family, name] for name in SPLITS if counts[family, name]} for family in families}


def profiles(sessions: Sequence[Session], files: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The profile of the anchors first, then of each file."""
    named: dict[str, list[Session]] = {"anchors": [one for one in sessions if is_anchor(one)]}
    for one in sessions:
        if not is_anchor(one):
            named.setdefault(f"{files[one['id']]} ({one['source']})", []).append(one)
    return {name: profile(rows) for name, rows in named.items()}


def _kinds(findings: Sequence[Finding], check: str) -> dict[str, int]:
    return dict(sorted(Counter(one.kind for one in findings if one.check == check).items()))


def _dropped_by_file(located: Sequence[tuple[str, Session]], final: Sequence[Session]) -> dict[str, int]:
    kept = {one["id"] for one in final}
    return dict(Counter(file for file, one in located if one["id"] not in kept))


def report_text(outcome: Outcome) -> str:
    """The report for people: verdict, splits, families, profiles, and the findings by check and kind."""
    report = outcome.report
    splits = ", ".join(f"{name} {count}" for name, count in report["splits"].items())
    lines = [f"{report['rows_in']} rows in, {report['rows_out']} out: {splits}", f"verdict: {report['verdict']}"]
    lines += [f"  {reason}" for reason in outcome.reasons]
    lines += ["", profile_table(report["profiles"]), "", "family: sessions by split"]
    lines += [f"  {family}: {_counts(counts)}" for family, counts in report["families"].items()]
    lines += [f"anchor {one['id']} left out: {one['reason']}" for one in report["anchors_filtered"]]
    for check in CHECKS:
        lines += ["", f"{check}: {_counts(report['findings'][check]) or 'nothing found'}"]
        shown: Counter[str] = Counter()
        for one in (one for one in outcome.findings if one.check == check):
            shown[one.kind] += 1
            if shown[one.kind] <= MOST_SHOWN:
                lines.append(f"  {'unusable' if one.unusable else 'kept'} {one.kind} {one.id}: {one.reason}")
        lines += [f"  {kind}: {n - MOST_SHOWN} more in the JSON" for kind, n in shown.items() if n > MOST_SHOWN]
    return "\n".join(lines) + "\n"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=(
            "example:\n  python scripts/data/planner_quality_gate.py build/data/queries.jsonl "
            "build/data/adversarial.jsonl --out build/data/gated.jsonl"
        ),
    )
    parser.add_argument("sessions", nargs="+", type=Path, help="session files (JSONL)")
    parser.add_argument("--anchors", type=Path, default=DEFAULT_ANCHORS, help="anchors; they become dev92 whole")
    parser.add_argument("--cards", type=Path, default=DEFAULT_CARDS, help="category cards (JSONL)")
    parser.add_argument("--out", type=Path, required=True, help="file to write; reports go beside it (.report.json)")
    args = parser.parse_args()
    try:
        rows = [row for path in (args.anchors, *args.sessions) for row in read_rows(path)]
        outcome = gate(rows, load_cards(args.cards))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    write_rows(args.out, outcome.rows)
    text = report_text(outcome)
    write_report(args.out.with_suffix(".report.json"), outcome.report, text)
    print(text, end="")
    return 1 if outcome.reasons else 0


if __name__ == "__main__":
    sys.exit(main())
