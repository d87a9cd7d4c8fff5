"""Lab: one question as a bandit and as an agent's MDP: what counts as state, action, reward, and what γ does to it.

The question is answered once in one step, as SFT and GRPO see it (the whole completion is one action), and once by an
agent that thinks, calls a calculator twice and then answers. The agent is paid 0.1 for each intermediate result that
the calculator gives it and 0.8 for the right answer. A reward at step t is worth γ^t of itself at the start.
"""

import argparse
import ast
import math
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scripts.labs.tables import table

# ------------------------------------------------------------------------------------------ the calculator

LONGEST_EXPRESSION = 100  # characters: bounds the depth, the time and the size of every result
Number = int | float
_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def calculate(expression: str) -> Number:
    """The value of + - * / ( ) over numbers. What is not on the whitelist is refused, and nothing is ever evaluated.

    Powers are left out: 9**9**9 is short and never ends. Raises ValueError naming what is refused.

    >>> calculate("48 * 17")
    816
    >>> calculate("__import__('os')")
    Traceback (most recent call last):
    ...
    ValueError: "__import__('os')": Call is not on the calculator's whitelist
    """
    if len(expression) > LONGEST_EXPRESSION:
        raise ValueError(f"an expression of {len(expression)} characters: {LONGEST_EXPRESSION} at most")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
        finite = math.isfinite(value)
    except (SyntaxError, ZeroDivisionError, OverflowError, ValueError) as error:
        raise ValueError(f'"{expression}": {error}') from error
    if not finite:
        raise ValueError(f'"{expression}": the result is not finite')
    return value


def _value(node: ast.expr) -> Number:
    # type(), not isinstance: True is an int, and no number.
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand))
    refused = node.op if isinstance(node, (ast.BinOp, ast.UnaryOp)) else node
    raise ValueError(f"{type(refused).__name__} is not on the calculator's whitelist")


# --------------------------------------------------------------------------------------------- the problem

CALL_REWARD = 0.1
ANSWER_REWARD = 0.8
WHOLE_REWARD = 1.0  # one step: everything is paid at once


@dataclass(frozen=True)
class Problem:
    """A question, the results that lead to its answer in order, and the answer."""

    question: str
    needed: tuple[Number, ...]
    answer: Number


PROBLEM = Problem(
    "A crate holds 48 mugs. A shop buys 17 crates, and 29 mugs break. How many mugs are left?", (816, 787), 787
)


@dataclass(frozen=True)
class State:
    """What the next action may depend on: the question and the results so far. A thought changes neither."""

    question: str
    results: tuple[Number, ...] = ()


@dataclass(frozen=True)
class Action:
    """`kind` is think, calculate (content: an expression) or answer (content: a number)."""

    kind: str
    content: str


@dataclass(frozen=True)
class Step:
    state: State
    action: Action
    reward: float
    after: State


def act(problem: Problem, state: State, action: Action, *, answer_reward: float = ANSWER_REWARD) -> Step:
    """One transition. A call pays once for each needed result, so calling again earns nothing; a broken one nothing.

    Raises ValueError for an unknown kind of action.
    """
    if action.kind == "think":
        return Step(state, action, 0.0, state)
    if action.kind == "answer":
        right = action.content.strip() == str(problem.answer)
        return Step(state, action, answer_reward if right else 0.0, state)
    if action.kind != "calculate":
        raise ValueError(f"action kind {action.kind!r}: think, calculate or answer is expected")
    try:
        result = calculate(action.content)
    except ValueError:
        return Step(state, action, 0.0, state)
    if result in state.results:
        return Step(state, action, 0.0, state)
    after = State(state.question, (*state.results, result))
    return Step(state, action, CALL_REWARD if result in problem.needed else 0.0, after)


def episode(problem: Problem, actions: Sequence[Action], *, answer_reward: float = ANSWER_REWARD) -> list[Step]:
    """The steps of a run from the bare question; it ends with the first answer."""
    steps: list[Step] = []
    state = State(problem.question)
    for action in actions:
        steps.append(act(problem, state, action, answer_reward=answer_reward))
        state = steps[-1].after
        if action.kind == "answer":
            break
    return steps


def discounted(rewards: Sequence[float], gamma: float) -> float:
    """Σ γ^t · r_t from t = 0. Raises ValueError for a γ outside [0, 1].

    >>> round(discounted([0, 0.1, 0.1, 0.8], 0.9), 4)
    0.7542
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma={gamma!r}: a number from 0 to 1 is expected")
    return math.fsum(gamma**t * reward for t, reward in enumerate(rewards))


# ---------------------------------------------------------------------------------------------- the tables

GAMMAS = (0.0, 0.5, 0.9, 0.99, 1.0)
THOUGHT = Action("think", "First all mugs, then the broken ones.")
ANSWER = Action("answer", "787")
CALLS = (Action("calculate", "48 * 17"), Action("calculate", "816 - 29"))

ONE_STEP = episode(PROBLEM, [ANSWER], answer_reward=WHOLE_REWARD)
AGENT = episode(PROBLEM, [THOUGHT, *CALLS, ANSWER])
TWO_MORE_THOUGHTS = episode(PROBLEM, [THOUGHT, THOUGHT, THOUGHT, *CALLS, ANSWER])
GUESS = episode(PROBLEM, [ANSWER])
SAME_CALL_AGAIN = episode(PROBLEM, [THOUGHT, CALLS[0], CALLS[0], CALLS[0], ANSWER])


def counts(steps: Sequence[Step]) -> dict[str, int]:
    """What the run consists of: distinct states, kinds of action, changes of state, rewards above 0, steps."""
    states = {state for step in steps for state in (step.state, step.after)}
    return {
        "states": len(states),
        "action kinds": len({step.action.kind for step in steps}),
        "changes of state": sum(step.after != step.state for step in steps),
        "rewards": sum(step.reward > 0 for step in steps),
        "steps": len(steps),
    }


def returns(steps: Sequence[Step]) -> dict[float, float]:
    """The return at the start of the run for each γ of GAMMAS."""
    return {gamma: discounted([step.reward for step in steps], gamma) for gamma in GAMMAS}


def break_even_gamma() -> float:
    """The γ at which the agent's run is worth as much as a right guess; below it, guessing pays better."""
    guess = discounted([step.reward for step in GUESS], 1.0)
    rewards = [step.reward for step in AGENT]
    low, high = 0.0, 1.0  # the return grows with γ
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if discounted(rewards, middle) < guess else (low, middle)
    return high


def report() -> str:
    one, agent = counts(ONE_STEP), counts(AGENT)
    trajectory = [
        (str(t), str(list(step.state.results)), step.action.kind, step.action.content, f"{step.reward:.1f}")
        for t, step in enumerate(AGENT)
    ]
    runs = {
        "one step": ONE_STEP,
        "agent": AGENT,
        "agent, two more thoughts": TWO_MORE_THOUGHTS,
        "right guess, no tool": GUESS,
        "the same call three times": SAME_CALL_AGAIN,
    }
    rows = [(name, *(f"{value:.4f}" for value in returns(steps).values())) for name, steps in runs.items()]
    return "\n".join(
        [
            f"question: {PROBLEM.question}\n",
            table("the agent's run", ("t", "results so far", "action", "content", "reward"), trajectory),
            table("one step and agent", ("", "one step", "agent"), [(k, str(one[k]), str(agent[k])) for k in one]),
            table("return at the start", ("run", *(f"γ {gamma:g}" for gamma in GAMMAS)), rows),
            f"Below γ {break_even_gamma():.4f} a right guess is worth more than the same answer with proof: γ under 1"
            "\ncharges for every thought. GRPO pays a whole completion once, which is γ 1.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """0 always; 2 for wrong use or an expression that is refused."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  python scripts/labs/mdp_lab.py\n"
        "  python scripts/labs/mdp_lab.py --calculate '48 * 17 - 29'",
    )
    parser.add_argument("--calculate", metavar="EXPRESSION", help="only ask the agent's calculator")
    args = parser.parse_args(argv)
    if args.calculate is None:
        print(report())
        return 0
    try:
        print(calculate(args.calculate))
    except ValueError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
