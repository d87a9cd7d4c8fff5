"""How cost grows: with the completions of a step, with the catalogue, with the length of junk that exploits write.

Writes growth.png beside the JSON. The exponent of a curve is its slope on two logarithmic axes, over its larger half:
1 is linear. Junk is parsed and scored with twenty titles found, whatever it searches for.
"""

import argparse
import json
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from bench import Line, Measured, in_turn, main
from inputs import Step, environment, forget, real_step, reward, store, titles, with_keywords

COMPLETIONS = (64, 128, 256, 512, 1024, 2048, 4096)
CATALOGUES = (20_000, 50_000, 100_000, 300_000)
LENGTHS = (512, 1024, 2048, 4096, 8192)  # characters of a completion; 8,192 is the most that is read
QUICK = ((16, 32), (300, 600), (256, 512))
ITEMS = 20_000
ROUNDS = 5
JUNK_ROUNDS = 15
LINEAR = 1.25  # the exponent up to which a curve counts as linear: small sizes have a fixed part

PLAN = {
    "category": "跑鞋", "domains": ["footwear"], "budget_amount": None, "clear_budget": False,
    "keywords": ["running shoes", "trail shoes"], "exclude_terms": [],
}  # fmt: skip


def _plan(**changes: object) -> str:
    return json.dumps({**PLAN, **changes}, ensure_ascii=False)


# Each makes junk of so many of its parts.
JUNK: dict[str, Callable[[int], str]] = {
    "many keywords": lambda parts: _plan(keywords=[f"k{n}" for n in range(parts)]),
    "one long keyword": lambda parts: _plan(keywords=["shoe " * parts]),
    "long Chinese keyword": lambda parts: _plan(keywords=["防水跑鞋" * parts]),
    "one keyword again and again": lambda parts: _plan(keywords=["running shoes"] * parts),
    "exclusions of everything": lambda parts: _plan(
        exclude_terms=[{"word": "leather", "evidence": "不要皮的"}] * parts
    ),
    "one long evidence": lambda parts: _plan(exclude_terms=[{"word": "x", "evidence": "不要" * parts}]),
    "every domain again and again": lambda parts: _plan(domains=["footwear", "global"] * parts),
    "unknown keys": lambda parts: _plan(**{f"key{n}": n for n in range(parts)}),
    "letters that unfold": lambda parts: _plan(keywords=["\ufdfa" * parts]),
    "open brackets": lambda parts: "[" * parts,
    "open string": lambda parts: '{"category": "' + "\\n" * parts,
    "prose": lambda parts: "a plan would be nice " * parts + _plan(),
    "closed think block": lambda parts: f"<think>{'hm ' * parts}</think>{_plan()}",
    "think blocks that never close": lambda parts: "<think>" * parts,
}


def junk(name: str, size: int) -> str:
    """The longest of this kind with at most `size` characters: the reward reads the largest size to its end."""
    parts = bisect_right(range(1, size + 1), size, key=lambda count: len(JUNK[name](count)))
    return JUNK[name](parts)


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Slope on two logarithmic axes over the larger half of the sizes."""
    half = len(sizes) // 2 if len(sizes) > 3 else 0
    return float(np.polyfit(np.log(sizes[half:]), np.log(costs[half:]), 1)[0])


def by_completions(work: Path, counts: Sequence[int], items: int, rounds: int) -> dict[str, float]:
    """Milliseconds of a first step of so many completions, each with a search of its own."""
    over = store(work, items)
    steps = {}
    for count in counts:
        step = real_step("early", max(1, count // 8))
        steps[str(count)] = step.with_completions(
            with_keywords(completion, f"no {number}") for number, completion in enumerate(step.completions)
        )
    with environment(over) as env:

        def first(step: Step) -> None:
            forget(env)
            step.scored_by(env)

        taken = in_turn(rounds, {name: (lambda step=step: first(step)) for name, step in steps.items()})
    return {name: median(values) for name, values in taken.items()}


def by_catalogue(work: Path, sizes: Sequence[int], rounds: int) -> dict[str, float]:
    """Milliseconds of the store's batch of 256 searches; above 50,000 items its index answers."""
    step = real_step("early")
    stores = {str(size): store(work, size) for size in sizes}
    with environment(stores[str(sizes[0])], traced=False) as env:
        step.with_completions(
            with_keywords(completion, f"no {number}") for number, completion in enumerate(step.completions)
        ).scored_by(env)
        vectors = env.encoder.encode([row["search"] for row in env.last_rows if row["search"]])
    taken = in_turn(rounds, {name: (lambda over=over: over.search_batch(vectors, 20)) for name, over in stores.items()})
    for over in stores.values():
        over.close()
    return {name: median(values) for name, values in taken.items()}


def by_junk(lengths: Sequence[int], rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of CPU time of parsing and scoring one completion of each kind, by its length."""
    made = reward()
    record = real_step("early", 1)
    golden = made.parse_golden(record.goldens[0])
    found = titles(600)[:20]

    def score(completion: str) -> None:
        parsed = made.parse_plan(completion)
        made.compute_reward(parsed, golden, record.texts[0], found, weights=made.DEFAULT_WEIGHTS, gates=made.GATES)

    texts = {f"{name}/{length}": junk(name, length) for name in JUNK for length in lengths}
    calls = {key: (lambda text=text: score(text)) for key, text in texts.items()}
    taken = in_turn(rounds, calls, time.thread_time)
    return {name: {str(length): median(taken[f"{name}/{length}"]) for length in lengths} for name in JUNK}


def plot(figures: dict[str, dict[str, float]], by_kind: dict[str, dict[str, float]], out: Path) -> None:
    """The three families of curves side by side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawing, axes = pyplot.subplots(1, 3, figsize=(16, 5))
    panels = (
        ("completions of a step, all searches new", {"score()": figures["completions"]}),
        ("titles in the embedded store, 256 searches", {"batch call": figures["catalogue"]}),
        ("characters of one completion of junk", by_kind),
    )
    for axis, (label, curves) in zip(axes, panels, strict=True):
        for name, curve in curves.items():
            axis.loglog([float(size) for size in curve], list(curve.values()), marker="o", label=name)
        axis.set_xlabel(label)
        axis.set_ylabel("milliseconds")
        axis.grid(True, which="both", alpha=0.3)
        axis.legend(fontsize=7)
    drawing.tight_layout()
    out.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(out, dpi=90)
    pyplot.close(drawing)


def measure(args: argparse.Namespace) -> Measured:
    counts, catalogues, lengths = QUICK if args.quick else (COMPLETIONS, CATALOGUES, LENGTHS)
    rounds, junk_rounds = (1, 1) if args.quick else (ROUNDS, JUNK_ROUNDS)
    figures = {
        "completions": by_completions(args.work, counts, catalogues[0] if args.quick else ITEMS, rounds),
        "catalogue": by_catalogue(args.work, catalogues, rounds),
    }
    kinds = by_junk(lengths, junk_rounds)
    plot(figures, kinds, args.out.with_suffix(".png"))
    exponents = {name: exponent([float(size) for size in curve], list(curve.values())) for name, curve in kinds.items()}
    grown = exponent(counts, list(figures["completions"].values()))
    worst = max(exponents, key=lambda name: exponents[name])
    slowest = max(kinds, key=lambda name: max(kinds[name].values()))
    return Measured(
        {
            "completions_ms": figures["completions"],
            "completions_exponent": grown,
            "catalogue_ms": figures["catalogue"],
            "junk_ms": kinds,
            "junk_exponents": exponents,
            "slowest_junk": slowest,
            "slowest_junk_ms": max(kinds[slowest].values()),
        },
        [
            Line("exponent of a step's cost by its completions (1 is linear)", grown, LINEAR),
            Line(f"exponent of the steepest junk ({worst})", exponents[worst], LINEAR),
        ],
    )


if __name__ == "__main__":
    sys.exit(main("growth", __doc__, measure))
