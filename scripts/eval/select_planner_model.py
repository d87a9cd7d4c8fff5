"""Choose the online planner's model: several endpoints over one dev set, scored by the reward, and what they cost.

Every candidate is asked greedily, once a record. Its calls stand in OUT/NAME.calls.jsonl: a run that was stopped goes
on from there, and what was asked is not asked again. --retry-failures asks failed calls once more, and the table then
still counts the earlier failures. Each candidate also leaves the files of an evaluation (OUT/NAME.summary.json and
.greedy.jsonl); OUT/planner_model_eval.json holds the table and the choice.

A candidate below 95 % coverage is not ranked. One whose interval overlaps the leader's is tied with it; a tie is broken
by over-commitment (fewer invented categories), then by latency (lower median). Exit 1 when none could be ranked.
"""

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.chat import KEY_VARIABLE
from scripts.eval.endpoint import DEFAULT_CONCURRENCY, Endpoint
from scripts.eval.endpoint_calls import CallsFile, header
from scripts.eval.eval_planner import DEFAULT_SEED, NoCompletion, endpoint_answers, evaluate, open_env, read_rows
from scripts.eval.evaluation_files import json_text, read_json, summary_path
from scripts.eval.generate import MAX_NEW_TOKENS
from scripts.eval.summary import PARTS, share
from scripts.files import write_atomically
from swift_plugin.encoders import EncoderError
from swift_plugin.rollout_env import RolloutEnv
from swift_plugin.settings import Settings, public_url
from swift_plugin.stores import StoreError

LEAST_COVERAGE = 0.95
PRICE_TOKENS = 1_000_000  # prices are for a million tokens
ABSTENTIONS = ("abstentions_of_all_records", "correct_abstentions_of_those_that_should")
REQUIRED, OPTIONAL = ("name", "base_url", "model"), ("key_env", "price_in", "price_out")


@dataclass(frozen=True)
class Candidate:
    """One model to choose from. Prices are for a million tokens, all candidates' in one currency; None: unknown."""

    name: str
    base_url: str
    model: str
    key_env: str = KEY_VARIABLE
    price_in: float | None = None
    price_out: float | None = None


def read_candidates(given: Sequence[str], file: Path | None) -> list[Candidate]:
    """The candidates of NAME=URL#MODEL arguments and of a JSON list; ValueError names the one that is wrong.

    >>> read_candidates(["flash=https://host/v1#qwen-flash"], None)[0].model
    'qwen-flash'
    """
    found = [_from_argument(item) for item in given]
    listed = read_json(file) if file else []
    if not isinstance(listed, list):
        raise ValueError(f"{file} holds no JSON list of candidates")
    found += [_from_object(item, f"{file}, candidate {number}") for number, item in enumerate(listed, 1)]
    if not found:
        raise ValueError("no candidates: give --candidate NAME=URL#MODEL or --candidates FILE")
    names = [candidate.name for candidate in found]
    for name in names:
        # The name becomes a file's: nothing but letters, digits, dot, dash and underscore, and no leading dot.
        if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or name.startswith("."):
            raise ValueError(f"candidate name {name!r}: letters, digits, '-', '_' and '.' only; it names a file")
        if names.count(name) > 1:
            raise ValueError(f"candidate name {name!r} stands twice")
    return found


def _from_argument(item: str) -> Candidate:
    name, equals, rest = item.partition("=")
    url, mark, model = rest.rpartition("#")
    if not (name and equals and url and mark and model):
        raise ValueError(f"--candidate {public_url(item)!r} is not NAME=URL#MODEL")
    return Candidate(name, url, model)


def _from_object(item: Any, where: str) -> Candidate:
    if not isinstance(item, dict) or any(not isinstance(item.get(key), str) or not item[key] for key in REQUIRED):
        raise ValueError(f"{where}: needs {', '.join(REQUIRED)} as strings, may have {', '.join(OPTIONAL)}")
    unknown = sorted(set(item) - {*REQUIRED, *OPTIONAL})
    if unknown:
        raise ValueError(f"{where}: unknown key {', '.join(unknown)}; known are {', '.join((*REQUIRED, *OPTIONAL))}")
    for key in ("price_in", "price_out"):
        price = item.get(key)
        if price is not None and (isinstance(price, bool) or not isinstance(price, int | float) or not price >= 0):
            raise ValueError(f"{where}: {key} is {price!r}, wanted a number of 0 or more for a million tokens")
    if not isinstance(item.get("key_env", KEY_VARIABLE), str):
        raise ValueError(f"{where}: key_env names an environment variable; never write a key into the file")
    return Candidate(**item)


def run_candidate(
    env: RolloutEnv,
    rows: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
    candidate: Candidate,
    endpoint: Endpoint,
    out: Path,
    retry_failures: bool,
) -> dict[str, Any]:
    """Ask (or resume), score, write the candidate's evaluation files; its row of the table."""
    calls = CallsFile(out / f"{candidate.name}.calls.jsonl", header(endpoint, facts["data_sha256"], DEFAULT_SEED))
    answers = endpoint_answers(calls, endpoint, rows, 0, DEFAULT_SEED, candidate.name, retry_failures)
    about = {"model": endpoint.model, "adapter": None, **facts, "seed": DEFAULT_SEED}
    about |= {"backend": "endpoint", "endpoint": endpoint.public_url, "max_new_tokens": MAX_NEW_TOKENS}
    prefix = out / candidate.name
    try:
        summary, _ = evaluate(env, rows, about, answers, {"greedy": 1}, prefix)
    except NoCompletion as error:
        print(f"{candidate.name}: {error}", file=sys.stderr)
        return {**unanswered(candidate, len(rows)), "failures": error.failures, "failed_calls_ever": calls.failed}
    write_atomically(summary_path(prefix), json_text(summary))
    return {**table_row(candidate, summary), "failures": summary["failures"], "failed_calls_ever": calls.failed}


def unanswered(candidate: Candidate, asked: int) -> dict[str, Any]:
    """The row of a candidate that answered nothing: no figure at all, and coverage 0."""
    empty = dict.fromkeys(("reward", "parts", "latency_s", "tokens", "cost", "over_commitment", *ABSTENTIONS))
    return {"name": candidate.name, "model": candidate.model, "coverage": share(0, asked), **empty}


def table_row(candidate: Candidate, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What the choice is made of, from the summary of one candidate's evaluation."""
    greedy = summary["greedy"]
    calls, wrong = greedy["calls"], greedy["error_classes"]["over_commitment"]
    return {
        "name": candidate.name,
        "model": candidate.model,
        "coverage": greedy["coverage"],
        "reward": greedy["reward"],
        "parts": greedy["parts"],
        "format_rate": greedy["format_rate"],
        "latency_s": calls["latency_s"],
        "tokens": calls["tokens"],
        "cost": cost(candidate, calls["tokens"]),
        "cut_by_the_token_limit": calls["cut_by_the_token_limit"],
        "over_commitment": share(wrong["count"], wrong["of"]),
        **{name: greedy[name] for name in ABSTENTIONS},
    }


def cost(candidate: Candidate, tokens: Mapping[str, int | None]) -> float | None:
    """The price of all answered calls; None where a price or a token count is unknown, never a part of it."""
    paid = [(candidate.price_in, tokens["prompt"]), (candidate.price_out, tokens["completion"])]
    if any(price is None or count is None for price, count in paid):
        return None
    return sum(price * count / PRICE_TOKENS for price, count in paid if price is not None and count is not None)


def choose(table: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The order, the ties and the choice, in words.

    `ranked`: names by reward, those tied with the leader put in the order of the tie break; `tied`: the names whose
    intervals overlap the leader's, the leader included; `not_ranked`: `{name: reason}`; `choice`: a name or None.
    """
    low = [row for row in table if (row["coverage"]["share"] or 0.0) < LEAST_COVERAGE]
    not_ranked = {
        row["name"]: f"coverage {row['coverage']['count']}/{row['coverage']['of']} is below {LEAST_COVERAGE:.0%}"
        for row in low
    }
    by_reward = sorted((row for row in table if row not in low), key=lambda row: -row["reward"]["mean"])
    if not by_reward:
        words = "No candidate is ranked: " + "; ".join(f"{name}: {why}" for name, why in not_ranked.items())
        return {"choice": None, "ranked": [], "tied": [], "not_ranked": not_ranked, "words": words}
    leader = by_reward[0]
    tied = sorted((row for row in by_reward if row["reward"]["high"] >= leader["reward"]["low"]), key=_tie_break)
    rest = [row for row in by_reward if row not in tied]
    return {
        "choice": tied[0]["name"],
        "ranked": [row["name"] for row in (*tied, *rest)],
        "tied": [row["name"] for row in tied] if len(tied) > 1 else [],
        "not_ranked": not_ranked,
        "words": _words(leader, tied, not_ranked),
    }


def _tie_break(row: Mapping[str, Any]) -> tuple[float, float, str]:
    return row["over_commitment"]["share"] or 0.0, row["latency_s"]["median"], row["name"]


def _words(leader: Mapping[str, Any], tied: Sequence[Mapping[str, Any]], not_ranked: Mapping[str, str]) -> str:
    first = tied[0]
    if len(tied) == 1:
        text = f"{first['name']} is best: no other interval reaches its own."
    else:
        names = ", ".join(row["name"] for row in tied)
        second = tied[1]
        if _tie_break(first)[0] < _tie_break(second)[0]:
            why = f"over-commitment, {_ratio(first)} against {_ratio(second)} of {second['name']}"
        elif _tie_break(first)[1] < _tie_break(second)[1]:
            medians = f"{first['latency_s']['median']:.2f} s against {second['latency_s']['median']:.2f} s"
            why = f"latency, median {medians} of {second['name']}, at equal over-commitment"
        else:
            why = "name alone: over-commitment and latency are equal"
        text = (
            f"{names} are tied: their intervals overlap that of the highest reward ({leader['name']}), so this set "
            f"cannot tell them apart. {first['name']} is chosen by {why}."
        )
    for name, reason in not_ranked.items():
        text += f" {name} is not ranked: {reason}."
    return text


def _ratio(row: Mapping[str, Any]) -> str:
    return f"{row['over_commitment']['count']}/{row['over_commitment']['of']}"


def table_text(table: Sequence[Mapping[str, Any]]) -> str:
    """The table in Markdown; a dash where there is no figure."""
    header = ["model", "coverage", "reward [95 %]", *PARTS, "median s", "p95 s", "tokens in / out", "cost"]
    header += ["abstained of all", "right of those that should", "over-committed"]
    lines = [header, ["---"] * len(header), *(_cells(row) for row in table)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _cells(row: Mapping[str, Any]) -> list[str]:
    coverage = f"{row['coverage']['count']}/{row['coverage']['of']}"
    if row["reward"] is None:
        return [row["name"], coverage, *["–"] * (len(PARTS) + 8)]
    reward, tokens = row["reward"], row["tokens"]
    parts = [row["parts"][part]["mean"] for part in PARTS]
    counted = [row[name] for name in (*ABSTENTIONS, "over_commitment")]
    return [
        row["name"],
        coverage,
        f"{reward['mean']:.4f} [{reward['low']:.4f}, {reward['high']:.4f}]",
        *("–" if mean is None else f"{mean:.3f}" for mean in parts),
        f"{row['latency_s']['median']:.2f}",
        f"{row['latency_s']['p95']:.2f}",
        "–" if None in tokens.values() else f"{tokens['prompt']} / {tokens['completion']}",
        "–" if row["cost"] is None else f"{row['cost']:.4f}",
        *(f"{item['count']}/{item['of']}" for item in counted),
    ]


def run(args: argparse.Namespace) -> bool:
    """Ask, score, write and print; whether a model was chosen."""
    settings = Settings.from_env()
    candidates = read_candidates(args.candidate, args.candidates)
    endpoints = [
        Endpoint.from_settings(
            candidate.base_url,
            candidate.model,
            settings,
            key_variable=candidate.key_env,
            concurrency=args.concurrency,
        )
        for candidate in candidates
    ]
    rows = read_rows(args.data)
    args.out.mkdir(parents=True, exist_ok=True)
    env, facts = open_env(settings, args.data, rows)
    table = [
        run_candidate(env, rows, facts, candidate, endpoint, args.out, args.retry_failures)
        for candidate, endpoint in zip(candidates, endpoints, strict=True)
    ]
    choice = choose(table)
    result = {**facts, "records": len(rows), "candidates": table, **choice}
    write_atomically(args.out / "planner_model_eval.json", json_text(result))
    print(f"\n{table_text(table)}\n\n{choice['words']}")
    return choice["choice"] is not None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  PLANNER_API_KEY=... python scripts/eval/select_planner_model.py "
        "--data build/demo/dev92.jsonl --out runs/select \\\n"
        "    --candidate flash=https://host/v1#qwen-flash --candidate local=http://127.0.0.1:8000/v1#planner\n"
        'or a file: [{"name": "flash", "base_url": "https://host/v1", "model": "qwen-flash", "key_env": "HOST_API_KEY",'
        ' "price_in": 0.15, "price_out": 1.5}]',
    )
    parser.add_argument("--candidate", action="append", default=[], metavar="NAME=URL#MODEL", help="may be repeated")
    parser.add_argument(
        "--candidates", type=Path, help="JSON list; key_env names a key's variable, prices are for a million tokens"
    )
    parser.add_argument("--data", type=Path, required=True, help="prompt set with golden_json (dev92.jsonl)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to, and to resume from")
    parser.add_argument(
        "--concurrency",
        type=int,
        default=DEFAULT_CONCURRENCY,
        help=f"calls at a time (default {DEFAULT_CONCURRENCY}; 1 measures latency without a queue)",
    )
    parser.add_argument("--retry-failures", action="store_true", help="ask failed calls again")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        return 0 if run(args) else 1
    except (OSError, ValueError, StoreError, EncoderError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
