"""`make data`: the whole chain from category cards and anchors to training sets, offline, under build/data.

Catalogue and index, queries and adversarial sessions, gate, golden records, SFT and prompt sets, and a summary. Every
stage is a command that can be run alone; finished stages are kept, so the same command goes on after a stop.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.data.build_grpo_dataset import FILES
from scripts.data.sessions import write_report
from scripts.demo.stages import CHECKOUT, Stage, StageFailed, code_of, end_children_with_me, run_stage
from scripts.demo.world import REWARD, clean_environment
from swift_plugin.cards import DEFAULT_CARDS
from swift_plugin.settings import PROMPT_STYLES

DEFAULT_OUT = CHECKOUT / "build" / "data"
PYTHON = sys.executable
ANCHORS, SEEDS = CHECKOUT / "data" / "anchors.jsonl", CHECKOUT / "data" / "adversarial_seeds.jsonl"
WORDS = [
    CHECKOUT / "data" / name for name in ("query_wording.json", "demo/templates_train.json", "demo/exclusions.jsonl")
]
FEWEST_ROWS = 2154  # golden rows, a turn each, that the repository's own run gives


def stages(out: Path, cards: Path, sessions: int, style: str) -> list[Stage]:
    """The stages in order. `sessions`: generated sessions beside the adversarial ones."""
    files = {
        name: out / f"{name}.jsonl" for name in ("catalog", "queries", "adversarial", "gated", "golden", "sft")
    }
    store = out / "catalog.edge"

    def stage(
        name: str, script: str, arguments: list[Any], inputs: list[Path], outputs: list[Path], **env: str
    ) -> Stage:
        path = f"scripts/data/{script}.py"
        reads = [*inputs, *code_of(CHECKOUT / path)]
        return Stage(name, [PYTHON, path, *map(str, arguments)], reads, outputs, env)

    with_cards = ["--cards", cards]
    sets = [out / name for name in FILES.values()]
    return [
        stage(
            "catalogue",
            "build_demo_catalog",
            [*with_cards, "--out", files["catalog"]],
            [cards],
            [files["catalog"]],
        ),
        stage(
            "index",
            "build_demo_index",
            ["--catalog", files["catalog"], "--store", store],
            [files["catalog"], REWARD],
            [store],
        ),
        stage(
            "queries",
            "build_planner_queries",
            [*with_cards, "--sessions", sessions, "--out", files["queries"]],
            [cards, *WORDS],
            [files["queries"]],
        ),
        stage(
            "adversarial",
            "build_planner_adversarial",
            [*with_cards, "--out", files["adversarial"]],
            [cards, SEEDS, *WORDS],
            [files["adversarial"]],
        ),
        stage(
            "gate",
            "planner_quality_gate",
            [files["queries"], files["adversarial"], *with_cards, "--anchors", ANCHORS, "--out", files["gated"]],
            [files["queries"], files["adversarial"], ANCHORS, cards],
            [files["gated"]],
        ),
        stage(
            "golden",
            "build_planner_golden",
            [files["gated"], *with_cards, "--out", files["golden"], "--report", out / "golden.report.json"],
            [files["gated"], cards],
            [files["golden"], out / "golden.report.json"],
        ),
        stage(
            "sft",
            "build_planner_sft",
            [files["golden"], "--out", files["sft"], "--prompt-style", style],
            [files["golden"], out / "stages" / "index.json", CHECKOUT / "data" / "prompts"],
            [files["sft"], out / "sft.report.json"],
            PLANNER_STORE_DIR=str(store),
        ),
        stage(
            "grpo",
            "build_grpo_dataset",
            [files["golden"], "--out-dir", out, *with_cards, "--prompt-style", style],
            [files["golden"], cards, CHECKOUT / "data" / "prompts"],
            [*sets, out / "grpo.report.json"],
        ),
    ]


def summary(out: Path) -> dict[str, Any]:
    """What the run gave, from the stages' own reports."""

    def read(name: str) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((out / f"{name}.report.json").read_text(encoding="utf-8"))
        return loaded

    queries, adversarial, gate, golden, sft = map(read, ("queries", "adversarial", "gated", "golden", "sft"))
    grpo = read("grpo")["sets"]
    return {
        "sessions": {"queries": queries["sessions"], "adversarial": adversarial["sessions"], "kept": gate["rows_out"]},
        "cards": queries["cards"],
        "golden_rows": golden["rows"],
        "golden_rows_by_split": golden["split"],
        "votes": golden["votes"],
        "category_abstains": golden["category_abstains"],
        "budget_uncertain": golden["budget_uncertain"],
        "status": golden["status"],
        "sft_rows": sft["rows_out"],
        "sft_left_out": sft["left_out"],
        "exclusions": sft["exclusions"],
        "prompts": {FILES[split]: one["rows"] for split, one in grpo.items()},
        "family_shares": grpo["train"]["family_shares"],
        "qwen_tokens": {"sft": sft["qwen_tokens"], "grpo": grpo["train"]["qwen_tokens"]},
    }


def summary_text(found: Mapping[str, Any]) -> str:
    """The summary for people."""
    shares = ", ".join(f"{name} {share:.1%}" for name, share in found["family_shares"].items())
    lines = [f"{key}: {value}" for key, value in found.items() if key not in ("family_shares", "votes")]
    votes = found["votes"] or "nobody was asked (offline)"
    return "\n".join([*lines, f"votes: {votes}", f"families of the training prompts: {shares}"]) + "\n"


def main(argv: list[str] | None = None) -> int:
    """0 when all is made, 1 when there are too few rows, 2 for wrong use or a stage that failed."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/data/make_data.py --out build/data",
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder in the checkout (default: %(default)s)")
    parser.add_argument("--cards", type=Path, default=DEFAULT_CARDS, help="category cards (default: %(default)s)")
    parser.add_argument("--sessions", type=int, default=1200, help="generated sessions (default 1200)")
    parser.add_argument("--rows", type=int, default=FEWEST_ROWS, help="fewest golden rows (default %(default)s)")
    parser.add_argument("--prompt-style", choices=PROMPT_STYLES, default="full", help="system prompt (default: full)")
    args = parser.parse_args(argv)
    out = args.out.absolute()
    if not out.is_relative_to(CHECKOUT) or not args.cards.absolute().is_relative_to(CHECKOUT):
        parser.error(f"--out and --cards must lie inside {CHECKOUT}: stages are recognised by their paths in it")
    end_children_with_me()
    for name in clean_environment():
        print(f"data: {name} of your shell is not used")
    try:
        for stage in stages(out, args.cards.absolute(), args.sessions, args.prompt_style):
            run_stage(stage, out / "stages")
    except (FileNotFoundError, StageFailed) as error:
        print(f"data: {error}", file=sys.stderr)
        return 2
    found = summary(out)
    text = summary_text(found)
    write_report(out / "data.report.json", found, text)
    print(text, end="")
    if found["golden_rows"] < args.rows:
        print(f"data: only {found['golden_rows']} golden rows of {args.rows}: ask for more --sessions", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
