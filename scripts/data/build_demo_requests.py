"""Write the demo's sessions: sft_sessions.jsonl, and grpo_sessions.jsonl with watch and test.

Training requests come from templates_train.json and never use a card's held-out attributes; watch and test have
templates of their own and mostly ask for held-out attributes. Training requests close to a text of dev92 (the anchors,
written by hand) are dropped. build_planner_golden.py reads the sessions. The same cards, templates and seed give the
same bytes.
"""

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, only this file's folder is on the path

from scripts.data.demo_requests import FAMILIES, Request, Shopper, Unwanted, golden_record, target_plan  # noqa: E402
from scripts.data.demo_templates import load_templates  # noqa: E402
from scripts.data.dev_from_anchors import load_dev  # noqa: E402
from scripts.data.gate_splits import WATCH_ROWS  # noqa: E402
from scripts.data.near_duplicates import HeldTexts, normalised  # noqa: E402
from scripts.data.prompt_rows import prompt_row  # noqa: E402
from scripts.data.sessions import PLAN_HINT_KEYS, Session, turn, write_rows  # noqa: E402
from swift_plugin.cards import Card, load_cards  # noqa: E402
from swift_plugin.settings import PROMPT_STYLES  # noqa: E402

DATA = ROOT / "data"
TEST_ROWS = 96
HELD_OUT_SHARE = 0.75  # of the watch and test requests; the rest shows what training has seen, worded anew
SHARED_SHARE = 1 / 3  # of the GRPO prompts stand in the SFT set too; rollouts explore the others unseen
ANY_STYLE = PROMPT_STYLES[0]  # sessions hold no prompt; the set builders write it
MOST_TRIES = 200  # draws for one new request before the templates count as exhausted

Record = dict[str, Any]


def load_unwanted(path: Path) -> list[Unwanted]:
    """Read the table of things that shoppers exclude; ValueError names the line."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            found.append(Unwanted(tuple(row["zh"]), row["en"], frozenset(row["domains"]), row["held_out"]))
        except (json.JSONDecodeError, KeyError) as error:
            raise ValueError(f"{path}:{number}: needs zh, en, domains and held_out: {error}") from error
    return found


def shares(rows: int, weights: Mapping[str, float]) -> dict[str, int]:
    """`rows` split by weight with largest remainders, so that the counts add up and do not depend on chance."""
    total = sum(weights.values())
    exact = {name: rows * weight / total for name, weight in weights.items()}
    counts = {name: int(value) for name, value in exact.items()}
    by_rest = sorted(exact, key=lambda name: (counts[name] - exact[name], name))
    for name in by_rest[: rows - sum(counts.values())]:
        counts[name] += 1
    return counts


def draw(
    shopper: Shopper, rows: int, weights: Mapping[str, float], seen: set[str], held: HeldTexts, label: str
) -> list[Request]:
    """`rows` new requests in random order. `seen` holds the keys of all requests drawn so far and is added to."""
    requests = []
    for family, count in tqdm(shares(rows, weights).items(), desc=label, unit="family", disable=None):
        for _ in range(count):
            for _ in range(MOST_TRIES):
                request = shopper.request(family)
                turns = (*request.prior_context, request.text)
                key = " ".join(normalised(turn) for turn in turns)
                if key not in seen and not held.near_duplicate(turns):
                    break
            else:
                raise ValueError(f"{label}: no new request of family {family} in {MOST_TRIES} draws; add templates")
            seen.add(key)
            requests.append(request)
    shopper.rng.shuffle(requests)
    return requests


def record(request: Request, identity: str, split: str, style: str) -> Record:
    """A request as a line of a data set, without an answer."""
    golden = golden_record(request.facts)
    return prompt_row(
        identity, request.text, request.prior_context, family=request.family, split=split, golden=golden, style=style
    )


def with_answer(row: Record, answer: str) -> Record:
    """The SFT row of a record: the plan as the assistant's turn."""
    return {**row, "messages": [*row["messages"], {"role": "assistant", "content": answer}]}


def first_of_each_family(rows: Sequence[Record], counts: Mapping[str, int]) -> list[Record]:
    """The first rows of each family, as many as `counts` asks for and the set holds."""
    left = Counter(counts)
    found = []
    for row in rows:
        if left[row["family"]] > 0:
            left[row["family"]] -= 1
            found.append(row)
    return found


def make_sets(
    cards: Sequence[Card], unwanted: Sequence[Unwanted], dev: list[Record], seed: int, rows: tuple[int, int], style: str
) -> dict[str, list[Record]]:
    """All sets by file stem.

    Args:
        rows: number of SFT rows and of GRPO prompts.
    """
    sft_rows, grpo_rows = rows
    held = HeldTexts(row["text"] for row in dev)
    nothing_held = HeldTexts(())
    sft_mix = {name: sft for name, (sft, _) in FAMILIES.items()}
    grpo_mix = {name: grpo for name, (_, grpo) in FAMILIES.items()}
    seen: set[str] = set()

    def shopper(name: str, held_out_share: float) -> Shopper:
        templates = load_templates(DATA / "demo" / f"templates_{name}.json")
        return Shopper(random.Random(f"{seed} {name}"), cards, unwanted, templates, held_out_share)

    train = shopper("train", 0.0)
    sft = draw(train, sft_rows, sft_mix, seen, held, "sft")
    sft_records = [record(one, f"train-{number:05d}", "train", style) for number, one in enumerate(sft)]
    grpo_records = first_of_each_family(sft_records, shares(round(grpo_rows * SHARED_SHARE), grpo_mix))
    fresh = draw(train, grpo_rows - len(grpo_records), grpo_mix, seen, held, "grpo")
    grpo_records += [record(one, f"train-{number:05d}", "train", style) for number, one in enumerate(fresh, len(sft))]
    train.rng.shuffle(grpo_records)
    answers = random.Random(f"{seed} answers")
    sets = {
        "sft": [with_answer(row, target_plan(answers, one)) for row, one in zip(sft_records, sft, strict=True)],
        "grpo": grpo_records,
        "dev92": dev,
    }
    for name, count in (("watch", WATCH_ROWS), ("test", TEST_ROWS)):
        drawn = draw(shopper(name, HELD_OUT_SHARE), count, sft_mix, seen, nothing_held, name)
        sets[name] = [record(one, f"{name}-{number:02d}", name, style) for number, one in enumerate(drawn)]
    return sets


def sessions_of(rows: Sequence[Record], cards: Sequence[Card]) -> list[Session]:
    """The rows of a set as sessions: golden record and, from an answer, the plan hint stand on the last turn."""
    by_anchor = {card.anchor: card.id for card in cards}
    sessions = []
    for row in rows:
        golden = json.loads(row["golden_json"])
        hint = None
        if row["messages"][-1]["role"] == "assistant":
            plan = json.loads(row["messages"][-1]["content"])
            hint = {key: plan[key] for key in PLAN_HINT_KEYS}
        sessions.append(
            {
                "id": row["id"],
                "source": "template",
                "family": row["family"],
                "card": by_anchor.get(golden["category_anchor"]),
                "split": row["split"],
                "dimensions": {},
                "turns": [*map(turn, row["prior_context"]), turn(row["text"], golden, hint)],
            }
        )
    return sessions


def counted(rows: Sequence[Record]) -> dict[str, Any]:
    """What a set holds: rows, families, golden domains, and how often each golden field abstains or asks."""
    goldens = [json.loads(row["golden_json"]) for row in rows]
    return {
        "rows": len(rows),
        "families": dict(sorted(Counter(row["family"] for row in rows).items())),
        "domains": dict(sorted(Counter(domain for one in goldens for domain in one["domains"] or ()).items())),
        "category_abstains": sum(one["category"] is None for one in goldens),
        "budget_uncertain": sum(one["budget_uncertain"] for one in goldens),
        "budget_given": sum(one["budget_amount"] is not None for one in goldens),
        "clear_budget": sum(one["clear_budget"] for one in goldens),
        "beyond_category": sum(bool(one["must_have"]) for one in goldens),
        "exclude_expected": sum(one["exclude_expected"] for one in goldens),
        "with_prior_context": sum(bool(row["prior_context"]) for row in rows),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/data/build_demo_requests.py --out build/demo --seed 7",
    )
    parser.add_argument("--cards", type=Path, default=DATA / "category_cards.jsonl", help="category cards (JSONL)")
    parser.add_argument("--dev", type=Path, default=DATA / "anchors.jsonl", help="anchors, which become dev92")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "demo", help="folder to write to")
    parser.add_argument("--seed", type=int, default=7, help="seed of all drawing (default 7)")
    parser.add_argument("--sft-rows", type=int, default=6000, help="SFT rows (default 6000)")
    parser.add_argument("--grpo-rows", type=int, default=1500, help="GRPO prompts (default 1500)")
    args = parser.parse_args()
    if args.sft_rows < 1 or args.grpo_rows < 1:
        print("--sft-rows and --grpo-rows must be at least 1", file=sys.stderr)
        return 2
    try:
        cards = load_cards(args.cards)
        unwanted = load_unwanted(DATA / "demo" / "exclusions.jsonl")
        dev = load_dev(args.dev, cards, ANY_STYLE)
        sets = make_sets(cards, unwanted, dev, args.seed, (args.sft_rows, args.grpo_rows), ANY_STYLE)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    write_rows(args.out / "sft_sessions.jsonl", sessions_of(sets["sft"], cards))
    prompts = [*sets["grpo"], *sets["watch"], *sets["test"]]
    write_rows(args.out / "grpo_sessions.jsonl", sessions_of(prompts, cards))
    report = {name: counted(rows) for name, rows in sets.items()}
    print(json.dumps({"out": str(args.out), "seed": args.seed, "sets": report}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
