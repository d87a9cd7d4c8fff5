"""What a step costs when its groups repeat searches, as late training does, and when it comes a second time.

Each step has 256 completions in groups of 8, and 1, 2, 4 or 8 distinct searches a group. The cost of distinct searches
is the slope of a straight line through the four; what remains at none is parsing, scoring and the trace.
"""

import argparse
import sys
from itertools import cycle, islice
from statistics import median

import numpy as np
from bench import Line, Measured, in_turn, main, ratio
from inputs import Step, environment, forget, real_step, searches_of, store, with_keywords

ITEMS = 20_000
ROUNDS = 9
GROUP = 8
DISTINCT = (1, 2, 4, 8)


def step_with(distinct: int, prompts: int) -> Step:
    """A step whose groups hold `distinct` searches each: real completions, told apart by one more keyword."""
    step = real_step("early", prompts)
    parsed = [completion for completion in step.completions if with_keywords(completion, "x") != completion]
    chosen = list(islice(cycle(parsed), len(step)))
    return step.with_completions(
        with_keywords(chosen[at // GROUP * GROUP + at % distinct], f"no {at // GROUP} {at % distinct}")
        for at in range(len(step))
    )


def measure(args: argparse.Namespace) -> Measured:
    items, rounds, prompts = (600, 1, 4) if args.quick else (ITEMS, ROUNDS, 32)
    over = store(args.work, items)
    steps = {str(distinct): step_with(distinct, prompts) for distinct in DISTINCT}
    late = real_step("late", prompts)
    with environment(over) as env:
        counts = {}
        for name, step in steps.items():
            step.scored_by(env)
            counts[name] = len(searches_of(env))

        def first(step: Step) -> None:
            forget(env)
            step.scored_by(env)

        taken = in_turn(rounds, {name: (lambda step=step: first(step)) for name, step in steps.items()})
        twice = in_turn(rounds, {"first": lambda: first(late), "second": lambda: late.scored_by(env)})
    milliseconds = {name: median(values) for name, values in taken.items()}
    slope, rest = np.polyfit(list(counts.values()), list(milliseconds.values()), 1)
    again = ratio(twice["second"], twice["first"])
    return Measured(
        {
            "items": items,
            "completions": len(late),
            "rounds": rounds,
            "distinct_searches": counts,
            "step_ms": milliseconds,
            "ms_a_distinct_search": float(slope),
            "ms_of_the_rest": float(rest),
            "correlation": float(np.corrcoef(list(counts.values()), list(milliseconds.values()))[0, 1]),
            "first_ms": median(twice["first"]),
            "second_ms": median(twice["second"]),
            "second_to_first": again,
        },
        [Line("second identical step to the first", again, 0.15)],
    )


if __name__ == "__main__":
    sys.exit(main("repeated_searches", __doc__, measure))
