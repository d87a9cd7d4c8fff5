"""Golden rows to prompt sets: grpo.jsonl (split train), watch.jsonl, dev92.jsonl and test.jsonl.

The prompt is byte for byte that of the SFT rows and holds nothing of the golden record, which stands beside it as a
JSON string. Training takes every turn, those under review too (their field score counts half); the other sets take the
last turn of each session, nothing under review and no prompt that training has. With --difficulty, prompts whose eight
samples from the SFT model all scored alike are left out or thinned: a tied group has no advantage to learn from.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scripts.data.build_planner_sft import TRAIN, tokens_of
from scripts.data.gate_splits import WATCH_ROWS
from scripts.data.golden_file import REVIEW, GoldenRow, Record, last_turns, named, read_golden, set_row
from scripts.data.sessions import write_report, write_rows
from scripts.files import json_lines
from swift_plugin.cards import DEFAULT_CARDS, Card, load_cards
from swift_plugin.settings import PROMPT_STYLES, Settings

FILES = {"train": "grpo.jsonl", "watch": "watch.jsonl", "dev92": "dev92.jsonl", "test": "test.jsonl"}  # by split
WATCH = "watch"
TIED = 1e-9  # rewards closer than this are equal: they are sums of few hundredths
THINNED = 4  # of this many tied prompts one is kept
FEWEST_SAMPLES = 2


def with_look_alikes(row: GoldenRow, cards: Mapping[str, Card]) -> GoldenRow:
    """The row with the `must_not` of the card that its anchor names, where the golden record has none.

    What passes for the thing in the catalogue stands on its card; people and votes do not list it. `cards` by anchor.
    """
    golden = row["golden"]
    card = cards.get(golden["category_anchor"])
    if card is None or golden["must_not"]:
        return row
    return {**row, "golden": {**golden, "must_not": list(card.must_not)}}


class Prompt(NamedTuple):
    """What a row asks: this turn's words after the earlier turns. Rows that agree in it have the same messages."""

    text: str
    prior_context: tuple[str, ...]


def prompt_of(row: Mapping[str, Any]) -> Prompt:
    """The prompt of a golden row or of a line of a samples file."""
    return Prompt(row["text"], tuple(row["prior_context"]))


class Sets(NamedTuple):
    """The rows of each set in order, and how many judged rows its split lost for what reason; both by split."""

    rows: dict[str, list[GoldenRow]]
    left_out: dict[str, dict[str, int]]


def split_rows(rows: Sequence[GoldenRow], last_only: bool) -> Sets:
    """The sets. `last_only`: training takes the sessions' last turns alone.

    The gate has checked the turn that a session ends with. Where that one got no golden row (a voter failed), an
    earlier turn is judged, which training may have word for word: such a row is in no set (`in_training`).
    """
    ready = named(rows)
    trained = {prompt_of(row) for row in ready if row["split"] == TRAIN}
    sets: dict[str, list[GoldenRow]] = {split: [] for split in FILES}
    left_out: dict[str, Counter[str]] = {split: Counter() for split in FILES}
    sets[TRAIN] = [row for row in (last_turns(ready) if last_only else ready) if row["split"] == TRAIN]
    for row in (row for row in last_turns(ready) if row["split"] != TRAIN):
        if row["golden"]["status"] == REVIEW:
            left_out[row["split"]]["review"] += 1
        elif prompt_of(row) in trained:
            left_out[row["split"]]["in_training"] += 1
        else:
            sets[row["split"]].append(row)
    return Sets(sets, {split: dict(counts) for split, counts in left_out.items()})


def set_faults(sets: Sets) -> list[str]:
    """Why the sets will not do, a line each; empty when they will. A set that no row was meant for is no fault."""
    faults = [] if sets.rows[TRAIN] else ["no training prompt is left"]
    for split, rows in sets.rows.items():
        lost = f"; left out of it: {sets.left_out[split]}" if sets.left_out[split] else ""
        if split == WATCH and len(rows) != WATCH_ROWS:
            faults.append(f"{FILES[split]} has {len(rows)} rows, the checkpoint is chosen by {WATCH_ROWS}{lost}")
        elif lost and not rows:
            faults.append(f"{FILES[split]} is empty{lost}")
    return faults


class Sampled(NamedTuple):
    """What was asked, and the reward of each sample."""

    prompt: Prompt
    rewards: tuple[float, ...]


def read_difficulty(path: Path) -> dict[str, Sampled]:
    """The samples of each prompt, by id. Raises ValueError naming the line and what it lacks."""
    found: dict[str, Sampled] = {}
    for number, row in json_lines(path):
        try:
            rewards = tuple(float(one["breakdown"]["total"]) for one in row["samples"])
            found[row["id"]] = Sampled(prompt_of(row), rewards)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path.name}:{number}: no line of eval_planner.py's samples file: {error!r}") from None
        if len(rewards) < FEWEST_SAMPLES:
            raise ValueError(f"{path.name}:{number} ({row['id']}): one sample is no group; sample eight a prompt")
    if not found:
        raise ValueError(f"{path.name} is empty: sample the GRPO prompts from the SFT model with eval_planner.py")
    return found


def is_tied(rewards: Sequence[float]) -> bool:
    """Whether all samples of a group have the same reward."""
    return max(rewards) - min(rewards) < TIED


def kept_when_thinned(identity: str) -> bool:
    """Whether a tied prompt stays: decided by its id, so that a rerun keeps the same ones."""
    return int(hashlib.sha256(identity.encode()).hexdigest(), 16) % THINNED == 0


def without_tied(
    rows: Sequence[GoldenRow], sampled: Mapping[str, Sampled], thin: bool
) -> tuple[list[GoldenRow], dict[str, Any]]:
    """The rows worth a rollout, and counts. Rows that were not sampled are kept.

    Raises ValueError when no row was sampled, or one asks something else than was sampled under its id (the builders'
    ids repeat from set to set): the file belongs to another set.
    """
    known = [row["id"] for row in rows if row["id"] in sampled]
    if not known:
        raise ValueError("--difficulty: none of its ids is a training row's: it was sampled from another set")
    for row in rows:
        if row["id"] in sampled and sampled[row["id"]].prompt != prompt_of(row):
            said = " / ".join([*sampled[row["id"]].prompt.prior_context, sampled[row["id"]].prompt.text])
            raise ValueError(
                f"--difficulty: its {row['id']} asks {said!r}, not what the training row asks: it was sampled from"
                " another set; sample this one with eval_planner.py"
            )
    rewards = {name: sampled[name].rewards for name in known}
    tied = {name for name in known if is_tied(rewards[name])}
    gone = {name for name in tied if not (thin and kept_when_thinned(name))}
    counts = {
        "sampled": len(known),
        "not_sampled": len(rows) - len(known),
        "samples_a_prompt": dict(Counter(str(len(rewards[name])) for name in known)),
        "tied": len(tied),
        "tied_perfect": sum(min(rewards[name]) >= 1 - TIED for name in tied),
        "tied_unparsed": sum(max(rewards[name]) < 0 for name in tied),
        "left_out": len(gone),
        "kept": len(rows) - len(gone),
    }
    return [row for row in rows if row["id"] not in gone], counts


def report_of(
    sets: Mapping[str, Sequence[Record]],
    left_out: Mapping[str, Mapping[str, int]],
    difficulty: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Counts of every set, what was left out of it, what abstains in it, family shares, tokens."""
    report: dict[str, Any] = {}
    for split, rows in sets.items():
        goldens = [json.loads(row["golden_json"]) for row in rows]
        families = Counter(row["family"] for row in rows)
        report[split] = {
            "rows": len(rows),
            "left_out": left_out[split],
            "statuses": dict(sorted(Counter(one["status"] for one in goldens).items())),
            "category_abstains": sum(one["category"] is None for one in goldens),
            "budget_uncertain": sum(one["budget_uncertain"] for one in goldens),
            "exclude_expected": sum(one["exclude_expected"] for one in goldens),
            "beyond_category": sum(bool(one["must_have"]) for one in goldens),
            "family_shares": {name: round(n / len(rows), 4) for name, n in sorted(families.items())},
            "qwen_tokens": tokens_of(rows) if rows else None,
        }
    return {"sets": report, "difficulty": difficulty}


def report_text(report: Mapping[str, Any]) -> str:
    """The report for people."""
    lines = []
    for split, one in report["sets"].items():
        counts = ", ".join(f"{key} {one[key]}" for key in one if key not in ("family_shares", "qwen_tokens"))
        lines.append(f"{split} ({FILES[split]}): {counts}")
        lines.append("  families: " + ", ".join(f"{name} {share:.1%}" for name, share in one["family_shares"].items()))
        lines.append(f"  Qwen tokens: {one['qwen_tokens']}")
    if report["difficulty"]:
        lines.append(f"difficulty: {report['difficulty']}")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """0 when the sets are written, 1 when they are and will not do (`set_faults`), 2 for wrong use."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  python scripts/data/build_grpo_dataset.py build/data/golden.jsonl --out-dir build/data\n"
        "  python scripts/eval/eval_planner.py --model SFT --data build/data/grpo.jsonl --samples 8 --out build/d\n"
        "  python scripts/data/build_grpo_dataset.py build/data/golden.jsonl --out-dir build/data \\\n"
        "    --difficulty build/d.samples.jsonl --tied thin",
    )
    parser.add_argument("golden", type=Path, help="golden rows (build_planner_golden.py)")
    parser.add_argument("--out-dir", type=Path, required=True, help=f"folder for {', '.join(FILES.values())}")
    parser.add_argument("--cards", type=Path, default=DEFAULT_CARDS, help="category cards (JSONL)")
    parser.add_argument("--prompt-style", choices=PROMPT_STYLES, help="system prompt (default: PLANNER_PROMPT)")
    parser.add_argument("--last-turns", action="store_true", help="train on the last turn of each session alone")
    parser.add_argument("--difficulty", type=Path, metavar="FILE", help="PREFIX.samples.jsonl of eval_planner.py")
    tied = f"tied prompts: drop all (default), or keep 1 of {THINNED}"
    parser.add_argument("--tied", choices=("drop", "thin"), default="drop", help=tied)
    args = parser.parse_args(argv)
    try:
        style = args.prompt_style or Settings.from_env().prompt
        by_anchor = {card.anchor: card for card in load_cards(args.cards)}
        sets = split_rows([with_look_alikes(row, by_anchor) for row in read_golden(args.golden)], args.last_turns)
        counts = None
        if args.difficulty:
            sampled = read_difficulty(args.difficulty)
            sets.rows[TRAIN], counts = without_tied(sets.rows[TRAIN], sampled, args.tied == "thin")
        records = {split: [set_row(row, style) for row in found] for split, found in sets.rows.items()}
        report = report_of(records, sets.left_out, counts)
        text = report_text(report)
        for split, found in records.items():
            write_rows(args.out_dir / FILES[split], found)
        write_report(args.out_dir / "grpo.report.json", report, text)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(text, end="")
    faults = set_faults(sets)
    print(*faults, sep="\n", end="\n" if faults else "", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
