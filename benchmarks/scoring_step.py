"""One step of 256 completions on the embedded store: the whole `score()` against the search alone.

Texts are those of a real run's first and last steps. The search alone is the store's `search_batch`, and also the
engine's bare `query_batch`, both on the very vectors that `score()` searches; encoding is left out of all of them.
Parsing and scoring are timed once more by themselves, on twenty long titles that no completion before has seen.
"""

import argparse
import sys
import time
from statistics import median

import qdrant_edge as edge
from bench import Line, Measured, in_turn, main, ratio
from inputs import Step, environment, forget, real_step, reward, searches_of, store, titles

from swift_plugin.settings import VECTOR_NAME
from swift_plugin.stores import EdgeStore

ITEMS = 20_000
ROUNDS = 9
TITLES_JOINED = 3  # a long title is three of the catalogue's: some 170 characters, 26 words


def whole_step(phase: str, over: EdgeStore, rounds: int, prompts: int) -> dict[str, float]:
    """Milliseconds of `score()` without its encoding, of the two searches alone, and their ratios."""
    step = real_step(phase, prompts)
    shard = edge.EdgeShard.load(str(over.path))
    with environment(over) as env:
        step.scored_by(env)
        vectors = env.encoder.encode(searches_of(env))
        limit = env.reward.TOP_TITLES
        requests = edge.QueryBatchRequest([_request(row, limit) for row in vectors.tolist()])
        encoded: list[float] = []

        def score() -> None:
            forget(env)
            step.scored_by(env)
            encoded.append(env.last_stats["encode_ms"])

        taken = in_turn(
            rounds,
            {
                "score": score,
                "store": lambda: over.search_batch(vectors, limit),
                "engine": lambda: shard.query_batch(requests),
            },
        )
    shard.close()
    without = [whole - encoding for whole, encoding in zip(taken["score"], encoded[1:], strict=True)]
    return {
        "completions": len(step),
        "distinct_searches": len(vectors),
        "score_ms": median(without),
        "store_ms": median(taken["store"]),
        "engine_ms": median(taken["engine"]),
        "encode_ms": median(encoded[1:]),
        "score_to_store": ratio(without, taken["store"]),
        "score_to_engine": ratio(without, taken["engine"]),
    }


def _request(vector: list[float], limit: int) -> "edge.QueryRequest":
    return edge.QueryRequest(
        limit=limit,
        query=edge.Query.Nearest(vector, using=VECTOR_NAME),
        with_payload=edge.PayloadSelector.Include(["title"]),
        params=edge.SearchParams(exact=True),
    )


def long_titles(count: int) -> list[list[str]]:
    """Twenty long titles for each of `count` completions, all different."""
    wanted = reward().TOP_TITLES
    short = titles(count * wanted * TITLES_JOINED)
    joined = [" ".join(short[at : at + TITLES_JOINED]) for at in range(0, len(short), TITLES_JOINED)]
    return [joined[at : at + wanted] for at in range(0, len(joined), wanted)]


def scoring_alone(step: Step, rounds: int) -> dict[str, float]:
    """Milliseconds of CPU time a completion of parsing and scoring, and how they grow with the record's terms."""
    made = reward()
    goldens = [made.parse_golden(golden) for golden in step.goldens]
    many = [{**golden, "must_have": [*golden["must_have"], *(f"term {n}" for n in range(8))]} for golden in goldens]
    found = long_titles(len(step))  # 5,120: more than the reward remembers, so that each is new to it every time

    def score(records: list[dict[str, object]]) -> None:
        for completion, record, text, hits in zip(step.completions, records, step.texts, found, strict=True):
            made.compute_reward(made.parse_plan(completion), record, text, hits, weights=made.DEFAULT_WEIGHTS, gates=())

    taken = in_turn(
        rounds,
        {
            "as_it_is": lambda: score(goldens),
            "eight_more_terms": lambda: score(many),
            "parse": lambda: [made.parse_plan(completion) for completion in step.completions],
        },
        time.thread_time,
    )
    return {
        "long_title_characters": median(len(title) for hits in found for title in hits),
        "parse_and_score_ms": median(taken["as_it_is"]) / len(step),
        "parse_ms": median(taken["parse"]) / len(step),
        "with_eight_more_terms": ratio(taken["eight_more_terms"], taken["as_it_is"]),
    }


def measure(args: argparse.Namespace) -> Measured:
    items, rounds, prompts = (600, 1, 4) if args.quick else (ITEMS, ROUNDS, 32)
    over = store(args.work, items)
    figures: dict[str, object] = {"items": items, "rounds": rounds}
    lines = []
    for phase in ("early", "late"):
        found = whole_step(phase, over, rounds, prompts)
        figures[phase] = found
        lines.append(Line(f"whole score() to the store's batch call, {phase} steps", found["score_to_store"], 1.3))
    alone = scoring_alone(real_step("early", prompts), rounds)
    figures["alone"] = alone
    lines.append(Line("parsing and scoring with 20 long titles, ms a completion", alone["parse_and_score_ms"], 1.0))
    return Measured(figures, lines)


if __name__ == "__main__":
    sys.exit(main("scoring_step", __doc__, measure))
