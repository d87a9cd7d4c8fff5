"""Lab: reward functions for a worked answer, and what a badly placed penalty teaches.

Three parts: accuracy (1 or 0), a length penalty (0.001 a character over 200) and a step bonus (0.05 a step, five at
most). The last two act on right answers only. Left to itself the penalty pays silence better than an honest mistake.
Each part is a function of the kind ms-swift and TRL call: a batch of completions and the dataset's columns in, one
float a completion out.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from reward.group_stats import exact_match, group_advantages
from scripts.labs.tables import table
from swift_plugin.completions import completion_text

FREE_CHARACTERS = 200
CHARACTER_COST = 0.001
STEP_REWARD = 0.05
MOST_STEPS = 5

Completion = str | Sequence[Mapping[str, str]]
RewardFunction = Callable[..., list[float]]

# A number as an answer writes it: 1,234.5 and -3/4; bounded, so that a mile of digits is no work.
_NUMBER = r"-?[0-9]{1,3}(?:,[0-9]{3}){1,6}(?:\.[0-9]{1,20})?|-?[0-9]{1,20}(?:\.[0-9]{1,20}|/[0-9]{1,20})?"
_ANSWER = re.compile(rf"^####[ \t]*\$?({_NUMBER})[ \t]*$", re.MULTILINE)
_STEP = re.compile(r"^Step [0-9]{1,3}:", re.MULTILINE)


def answer_of(text: str) -> str | None:
    """The number of the last line `#### number` in lowest terms, None without one. Read by a pattern, never `eval`.

    >>> answer_of("48 * 17 = 816\\n#### 1,632/2"), answer_of("#### 1,632"), answer_of("#### 2/4")
    (None, '1632', '1/2')
    >>> answer_of("#### __import__('os')") is None
    True
    """
    found = _ANSWER.findall(text)
    if not found:
        return None
    try:
        return str(Fraction(found[-1].replace(",", "")))
    except ZeroDivisionError:
        return None


def accuracy_reward(completions: Sequence[Completion], *, solution: Sequence[str], **columns: Any) -> list[float]:
    """1 for the reference's number, else 0. `solution`: the references, one a completion, ending in `#### number`.

    Raises ValueError for a reference without an answer: with it every completion would be wrong.
    """
    wanted = [answer_of(one) for one in solution]
    if None in wanted:
        raise ValueError(f"solution[{wanted.index(None)}] has no line '#### number': {solution[wanted.index(None)]!r}")
    given = [answer_of(completion_text(one)) or "" for one in completions]
    return [float(score) for score in exact_match(given, [one or "" for one in wanted])]


def length_penalty(completions: Sequence[Completion], **columns: Any) -> list[float]:
    """Minus 0.001 a character over 200, whether the answer is right or not: alone, it pays silence best."""
    return [min(0.0, -CHARACTER_COST * (len(completion_text(one)) - FREE_CHARACTERS)) for one in completions]


def step_bonus(completions: Sequence[Completion], **columns: Any) -> list[float]:
    """0.05 for each line that begins `Step N:`, five at most."""
    return [STEP_REWARD * min(MOST_STEPS, len(_STEP.findall(completion_text(one)))) for one in completions]


def only_when_right(part: RewardFunction) -> RewardFunction:
    """The part where the answer is right, 0 elsewhere: it ranks right answers and cannot make a wrong one attractive.

    Taken with accuracy in a sum, a right answer of over 1,200 characters would fall below a wrong one: the combined
    reward is therefore floored at 0 (`worked_answer_reward`).
    """

    def gated(completions: Sequence[Completion], **columns: Any) -> list[float]:
        right = accuracy_reward(completions, **columns)
        return [score if ok else 0.0 for ok, score in zip(right, part(completions, **columns), strict=True)]

    gated.__name__ = f"{part.__name__}_when_right"  # TRL names a reward function by this
    return gated


def worked_answer_reward(completions: Sequence[Completion], **columns: Any) -> list[float]:
    """Accuracy, length and steps together, never below 0; in [0, 1.25].

    >>> worked_answer_reward(["#### 787", "#### 788", ""], solution=["#### 787"] * 3)
    [1.0, 0.0, 0.0]
    """
    parts = [part(completions, **columns) for part in PARTS.values()]
    return [max(0.0, sum(scores)) for scores in zip(*parts, strict=True)]


PARTS: dict[str, RewardFunction] = {
    "accuracy": accuracy_reward,
    "length": only_when_right(length_penalty),
    "steps": only_when_right(step_bonus),
}

# ---------------------------------------------------------------------------------------------- the tables

SOLUTION = "48 * 17 = 816 mugs, 816 - 29 = 787 are left.\n#### 787"


def _padded(text: str, answer: str, characters: int) -> str:
    tail = f"\n#### {answer}"
    return (text * characters)[: characters - len(tail)] + tail


STEPS = "\n".join(f"Step {n}: one of the six." for n in range(1, 7))
CASES: dict[str, str] = {
    "right and short": SOLUTION,
    "right, 630 characters": _padded("48 times 17, again and again. ", "787", 630),
    "wrong, 611 characters": _padded("I carry the one and go on. ", "788", 611),
    "none": "",
    "right, six steps": f"{STEPS}\n#### 787",
    "wrong, six steps": f"{STEPS}\n#### 788",
    "right, 3,000 characters": _padded("48 times 17, again and again. ", "787", 3000),
}
GROUP = (1.0, 1.0, 0.0, 0.8)


def scores() -> dict[str, dict[str, float]]:
    """Each case's parts, their sum as `total`, and the ungated penalty as `length alone`."""
    completions = list(CASES.values())
    columns = {"solution": [SOLUTION] * len(completions)}
    found = {name: part(completions, **columns) for name, part in PARTS.items()}
    found |= {
        "total": worked_answer_reward(completions, **columns),
        "length alone": length_penalty(completions, **columns),
    }
    return {case: {name: values[place] for name, values in found.items()} for place, case in enumerate(CASES)}


def report() -> str:
    found = scores()
    columns = list(next(iter(found.values())))
    rows = [(case, *(f"{value + 0.0:.4f}" for value in values.values())) for case, values in found.items()]
    advantages = group_advantages(GROUP, scale=False)
    wrong, silent = (found[case]["length alone"] for case in ("wrong, 611 characters", "none"))
    group = [(f"{reward:g}", f"{advantage:+.1f}") for reward, advantage in zip(GROUP, advantages, strict=True)]
    return "\n".join(
        [
            table("rewards", ("completion", *columns), rows),
            table("a group's advantages (reward less the group's mean)", ("reward", "advantage"), group),
            f"The length penalty alone pays {wrong:.4f} for an honest wrong answer and {silent + 0.0:.0f} for silence:"
            "\na model that is often wrong learns to say nothing. Gated by accuracy, the two are equal, and only right"
            "\nanswers compete on length.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/labs/reward_lab.py",
    )
    parser.parse_args(argv)
    print(report())
    return 0


if __name__ == "__main__":
    sys.exit(main())
