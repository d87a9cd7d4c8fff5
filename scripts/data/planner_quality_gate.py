"""The quality gate: sessions of every source go in, usable ones come out with their split, and a report says why.

Seven checks: form, duplicates, leakage into dev and test, personal data, template tone, coverage and balance, and
whether card, text and turns agree. Every row that is flagged is reported with the reason; only unusable ones are
dropped. Anchors (handwritten or from a log) go to dev92 and are never trained on: a check only reports on them, and
left out are those alone that only greet, come near another anchor, or are no session. The same files give the same
bytes.

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
from scripts.train.result_file import writable_file
from swift_plugin.cards import DEFAULT_CARDS, Card, load_cards
from swift_plugin.rollout_env import SPLITS
from swift_plugin.settings import CHECKOUT

DEFAULT_ANCHORS = CHECKOUT / "data" / "anchors.jsonl"

MOST_DROPPED = 0.15  # of a source's rows; above it the source wants repair, not filtering
MOST_SHOWN = 20  # findings of one kind in the text report; the JSON holds all


class Row(NamedTuple):
    """A line of an input file: where it stands, and what JSON it holds (not yet known to be a session).

    `file` is the same for all lines of a file and for no other file's.
    """

    file: str
    where: str
    raw: Any


class Outcome(NamedTuple):
    """What the gate decided. `rows`: the kept sessions with their splits, in input order."""

    rows: list[Session]
    findings: list[Finding]
    report: dict[str, Any]
    reasons: list[str]


def read_rows(path: Path, name: str = "") -> list[Row]:
    """Every line of a JSONL file, called by `name` (default: the file's); ValueError names a line that is no JSON."""
    file = name or path.name
    rows = [Row(file, f"{file}:{number}", raw) for number, raw in json_lines(path)]
    if not rows:
        raise ValueError(f"{file} holds no row: build it first")
    return rows


def read_files(paths: Sequence[Path]) -> list[Row]:
    """The lines of all files; files of one name are called by their paths. Raises ValueError as `read_rows` does."""
    names = Counter(path.name for path in paths)
    if twice := [path for path, count in Counter(paths).items() if count > 1]:
        raise ValueError(f"{twice[0]} is given twice: name each file once")
    return [row for path in paths for row in read_rows(path, path.name if names[path.name] == 1 else str(path))]


def formed(rows: Sequence[Row]) -> tuple[list[Row], list[Finding]]:
    """The rows that are sessions, and findings for the others and for ids that stand twice in a file.

    These findings go by the line: the id may be that of another, sound session. Raises ValueError for an id that
    stands in two files: neither of them is to blame.
    """
    sessions: dict[str, Row] = {}
    findings: list[Finding] = []
    for row in rows:
        schema = [one for one in form_findings(row.raw, "no id") if one.kind == "schema"]
        findings += [one._replace(id=row.where, reason=f"{one.id}: {one.reason}") for one in schema]
        if schema:
            continue
        identity = row.raw["id"]
        first = sessions.setdefault(identity, row)
        if first.file != row.file:
            raise ValueError(
                f"session {identity} stands in {first.where} and in {row.where}: give the sessions of each file ids"
                " of their own"
            )
        if first is not row:
            reason = f"{identity}: the id stands in {first.where} already"
            findings.append(Finding("form", "schema", row.where, reason, unusable=True))
    return list(sessions.values()), findings


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


def judged_texts(session: Session) -> list[str]:
    """The turns whose plan a held-out session may be judged by: the last, and the last one with a golden.

    They differ where a session ends in chatter, which gets no golden row: the set then asks the turn before it.
    """
    texts = turn_texts(session)
    known = [text for text, one in zip(texts, session["turns"], strict=True) if one["golden"] is not None]
    return list(dict.fromkeys([texts[-1], *known[-1:]]))


def leaks(sessions: Sequence[Session]) -> list[Finding]:
    """What training sessions share with the texts of dev92, watch and test."""

    def judged(*splits: str) -> list[tuple[str, str]]:
        return [(one["id"], text) for one in sessions if one["split"] in splits for text in judged_texts(one)]

    held = HeldOut(judged("dev92"), judged("test", "watch"))
    train = [one for one in sessions if one["split"] == "train"]
    return [found for one in tqdm(train, desc="leakage", unit="session", disable=None) for found in held.findings(one)]


def gate(rows: Sequence[Row], cards: Sequence[Card]) -> Outcome:
    """Run every check and assign the splits. Pure: the same rows and cards give the same outcome.

    Raises ValueError for an id that stands in two files.
    """
    by_id = {card.id: card for card in cards}
    located, malformed = formed(rows)
    files = {row.raw["id"]: row.file for row in located}
    anchors, filtered = keep([row.raw for row in located if is_anchor(row.raw)])
    generated = [row.raw for row in located if not is_anchor(row.raw)]
    shares = opening_shares(generated)
    flagged = list[Finding]()
    for session in tqdm([*anchors, *generated], desc="rows", unit="session", disable=None):
        flagged += row_findings(session, by_id, shares.get(session["id"], 0.0))
    findings = malformed + flagged
    bad = dropped_ids(flagged)
    kept, duplicates = without_duplicates([one for one in generated if one["id"] not in bad])
    findings += duplicates
    split = assign_splits([*anchors, *kept])
    leaked = leaks(split)
    findings += leaked
    gone = dropped_ids(leaked)
    final = [one for one in split if one["id"] not in gone]

    coverage = coverage_findings([one for one in final if not is_anchor(one)], cards, frozenset(ADVERSARIAL))
    findings += coverage
    rows_in = Counter(row.file for row in rows)
    dropped = rows_in - Counter(files[one["id"]] for one in final)
    unusable = dropped - Counter(files[one["id"]] for one in filtered)
    reasons = verdict(rows_in, unusable, final, findings)
    report = {
        "verdict": "bad" if reasons else "fine",
        "reasons": reasons,
        "rows_in": len(rows),
        "rows_out": len(final),
        "anchors_filtered": filtered,
        "splits": {name: sum(one["split"] == name for one in final) for name in SPLITS},
        "families": family_table(final),
        "findings": {check: _kinds(findings, check) for check in CHECKS},
        "dropped": dict(dropped),
        "profiles": profiles(final, files),
        "flagged": [one._asdict() for one in findings],
    }
    return Outcome(final, findings, report, reasons)


def verdict(
    rows_in: Mapping[str, int], unusable: Mapping[str, int], final: Sequence[Session], findings: Sequence[Finding]
) -> list[str]:
    """Why the set will not do, a line each; empty when it will.

    Args:
        rows_in, unusable: lines by file, and those of them that were dropped, but for anchors that the filter left out.
    """
    reasons = [one.reason for one in findings if one.unusable and not one.id]
    anchor_ids = {one["id"] for one in final if is_anchor(one)}
    exposed = sorted({one.id for one in findings if one.check == PERSONAL and one.id in anchor_ids})
    if exposed:
        reasons.append(f"anchors hold personal data, mask them with build_planner_anchors.py: {', '.join(exposed)}")
    for file, lost in unusable.items():
        count = rows_in[file]
        if lost > MOST_DROPPED * count:
            reasons.append(f"{file}: {lost} of {count} rows are unusable, more than {MOST_DROPPED:.0%}: repair it")
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
    parser.add_argument("--anchors", type=Path, default=DEFAULT_ANCHORS, help="anchors; dev92 is made of them alone")
    parser.add_argument("--cards", type=Path, default=DEFAULT_CARDS, help="category cards (JSONL)")
    written = "file to write; reports go beside it (.report.json)"
    parser.add_argument("--out", type=writable_file, required=True, help=written)
    args = parser.parse_args()
    try:
        outcome = gate(read_files([args.anchors, *args.sessions]), load_cards(args.cards))
        text = report_text(outcome)
        write_rows(args.out, outcome.rows)
        write_report(args.out.with_suffix(".report.json"), outcome.report, text)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(text, end="")
    return 1 if outcome.reasons else 0


if __name__ == "__main__":
    sys.exit(main())
