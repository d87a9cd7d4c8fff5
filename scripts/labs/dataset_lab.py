"""Lab: what SFT and RL learn from: the same problem as a raw record, an SFT row and an RL row.

SFT imitates an answer, so its row ends with one. RL writes its own answers and is told what they are worth, so its row
ends with the prompt and carries what the reward function compares with. Both must show the model the very same prompt:
what is trained in one wording does not answer in the other.
"""

import argparse
import json
import random
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.data.build_demo_requests import record, with_answer
from scripts.data.demo_requests import Facts, Request, Unwanted, target_plan
from scripts.labs.mdp_lab import PROBLEM, calculate
from scripts.labs.reward_lab import answer_of
from swift_plugin.cards import DEFAULT_CARDS, Card, load_cards
from swift_plugin.settings import PROMPT_STYLES

Row = dict[str, Any]
SEED = 42

# ---------------------------------------------------------------------------------------- a worked problem

MATH_SYSTEM = "Solve the problem step by step. End with a line: #### number"
# As GSM8K writes it: a calculator mark <<expression=result>> before each result, and the answer after ####.
MATH_RAW: Row = {
    "question": PROBLEM.question,
    "answer": "The shop buys 48 * 17 = <<48*17=816>>816 mugs.\n816 - 29 = <<816-29=787>>787 mugs are left.\n#### 787",
}
_MARK = re.compile(r"<<([^<>=]*)=([^<>=]*)>>")


def without_marks(answer: str) -> str:
    """The answer without its calculator marks: a model that learns them writes them, and no calculator reads them.

    A mark whose result is not its expression's, or that is torn, is a broken record: ValueError names it.

    >>> without_marks("2 + 3 = <<2+3=5>>5")
    '2 + 3 = 5'
    """
    for expression, result in _MARK.findall(answer):
        if calculate(expression) != calculate(result):
            raise ValueError(f"calculator mark <<{expression}={result}>>: {expression} is {calculate(expression)}")
    cleaned = _MARK.sub("", answer)
    if "<<" in cleaned or ">>" in cleaned:
        raise ValueError(f"a torn calculator mark is left in {cleaned!r}")
    return cleaned


def math_rows(raw: Mapping[str, str]) -> tuple[Row, Row]:
    """The SFT row and the RL row of a raw record; ValueError for one without `#### number`."""
    answer = without_marks(raw["answer"])
    if answer_of(answer) is None:
        raise ValueError(f"the answer has no line '#### number': {answer!r}")
    prompt = [{"role": "system", "content": MATH_SYSTEM}, {"role": "user", "content": raw["question"]}]
    sft = {"messages": [*prompt, {"role": "assistant", "content": answer}]}
    return sft, {"messages": prompt, "solution": answer}


# ------------------------------------------------------------------------------------- a planner's request


def planner_request(cards: Sequence[Card]) -> Request:
    """Waterproof running shoes up to 300, no mesh: facts first, words second, as the demo's sets are made."""
    card = next(card for card in cards if card.id == "running_shoes")
    waterproof = next(one for one in card.attributes if one.en == "waterproof")
    mesh = Unwanted(("网面",), "mesh", frozenset(card.domains), held_out=False)
    return Request(
        family="exclusion_hard",
        text="想买双跑鞋，要防水的，三百块以内，别给我网面的",
        facts=Facts(card=card, attributes=(waterproof,), budget_amount=300, unwanted=mesh),
        evidence="别给我网面的",
    )


def planner_rows(request: Request, style: str) -> tuple[Row, Row, Row]:
    """The raw record (words and facts), the SFT row and the GRPO row, made by the builder of the demo's sets."""
    facts = request.facts
    raw = {
        "text": request.text,
        "card": facts.card.id if facts.card else None,
        "attributes": [attribute.en for attribute in facts.attributes],
        "budget_amount": facts.budget_amount,
        "unwanted": facts.unwanted.en if facts.unwanted else None,
    }
    rl = record(request, "lab-0", "train", style)
    return raw, with_answer(rl, target_plan(random.Random(SEED), request)), rl


# ---------------------------------------------------------------------------------------------- the tables


def same_prompt(sft: Row, rl: Row) -> bool:
    """Whether the SFT row's messages are the RL row's and an answer."""
    *prompt, last = sft["messages"]
    return bool(prompt == rl["messages"] and last["role"] == "assistant" and prompt[-1]["role"] == "user")


def examples(style: str) -> dict[str, tuple[Row, Row, Row]]:
    """Raw, SFT and RL record of each problem."""
    return {
        "worked problem": (MATH_RAW, *math_rows(MATH_RAW)),
        "planner request": planner_rows(planner_request(load_cards(DEFAULT_CARDS)), style),
    }


def report(style: str) -> str:
    parts = []
    for name, (raw, sft, rl) in examples(style).items():
        for kind, row in (("raw", raw), ("SFT", sft), ("RL", rl)):
            parts.append(f"{name}, {kind}\n{json.dumps(row, ensure_ascii=False, indent=2)}\n")
        parts.append(f"{name}: prompts of SFT and RL {'identical' if same_prompt(sft, rl) else 'DIFFER'}\n")
    return "\n".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every pair of prompts is identical, 1 when one differs, 2 for wrong use."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/labs/dataset_lab.py --prompt-style short",
    )
    parser.add_argument("--prompt-style", choices=PROMPT_STYLES, default="full", help="system prompt (default: full)")
    args = parser.parse_args(argv)
    print(report(args.prompt_style))
    return 0 if all(same_prompt(sft, rl) for _, sft, rl in examples(args.prompt_style).values()) else 1


if __name__ == "__main__":
    sys.exit(main())
