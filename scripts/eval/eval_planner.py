"""Score a planner on a dev set with the reward's default weights: one greedy pass and, with --samples, n samples.

The planner is a local model (--model, with or without --adapter; transformers, or vLLM with --backend vllm) or an
OpenAI-compatible endpoint (--endpoint with --model; its key in PLANNER_API_KEY, its timeout and retry budget in
PLANNER_REQUEST_SECONDS and PLANNER_RETRY_SECONDS). A call that fails is listed and never scored, and coverage counts
what is left, records and completions; calls are kept in OUT.calls.jsonl, from which an interrupted evaluation goes on.

Writes OUT.greedy.jsonl and OUT.samples.jsonl (a line a record: completions, plans, breakdowns, titles found) and
OUT.summary.json, which holds the sha256 of both. Existing ones are never overwritten.
"""

import argparse
import hashlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from scripts.catalog.filled_by import check_before_search
from scripts.eval.endpoint import DEFAULT_CONCURRENCY, Endpoint
from scripts.eval.endpoint_calls import (
    CallsFile,
    call_statistics,
    completions_by_row,
    failures,
    header,
    jobs,
    run_jobs,
)
from scripts.eval.error_classes import error_classes
from scripts.eval.evaluation_files import MODES, STORE_TITLES, json_text, jsonl, records_path, summary_path
from scripts.eval.generate import BACKENDS, MAX_NEW_TOKENS, SAMPLE_TOP_K, LocalModel, generate
from scripts.eval.store_titles import titles_digest
from scripts.eval.summary import share, spread, summarise
from scripts.eval.tiers import tiers
from scripts.files import json_lines, write_atomically
from swift_plugin.encoders import Encoder, EncoderError
from swift_plugin.prompts import system_prompt
from swift_plugin.rollout_env import RolloutEnv
from swift_plugin.settings import PROMPT_STYLES, Settings
from swift_plugin.stores import EdgeStore, QdrantStore, StoreError, StoreInfo, check_store

DEFAULT_SEED = 42
SAMPLE_KEYS = ("completion", "plan", "issues", "search", "titles", "breakdown")
# What evaluation needs of a row, and when it will do; the golden record is judged by the reward.
COLUMNS: Mapping[str, Callable[[Any], bool]] = {
    "id": lambda value: isinstance(value, str) and value != "",
    "messages": lambda value: True,  # who needs them judges them
    "text": lambda value: isinstance(value, str),
    "family": lambda value: isinstance(value, str),
    "split": lambda value: isinstance(value, str),
    "golden_json": lambda value: value is not None,
}
NOTICE = "scored with the default weights and no gates, whatever PLANNER_REWARD_WEIGHTS and PLANNER_REWARD_GATES say"

Row = Mapping[str, Any]
# Completions of every row in one decoding mode (an empty list where every call failed), and the facts about the calls.
Answers = tuple[list[list[str]], dict[str, Any]]


class NoCompletion(ValueError):
    """Every call failed: coverage is 0, and there is nothing to score. `failures` says why, call by call."""

    def __init__(self, asked: int, failures: list[dict[str, Any]]) -> None:
        reasons = sorted({failure["reason"] for failure in failures})
        super().__init__(f"coverage 0: all {asked} records failed ({'; '.join(reasons[:3])})")
        self.failures = failures


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a prompt set; raises ValueError naming line and column when one lacks what evaluation needs."""
    rows = []
    for number, row in json_lines(path):
        if not isinstance(row, dict):
            raise ValueError(f"{path}:{number}: no JSON object; make the set with scripts/data/")
        missing = [name for name in COLUMNS if name not in row]
        if missing:
            raise ValueError(f"{path}:{number}: no column {', '.join(missing)}; make the set with scripts/data/")
        wrong = [name for name, right in COLUMNS.items() if not right(row[name])]
        if wrong:
            raise ValueError(f"{path}:{number}: {wrong[0]} is {row[wrong[0]]!r:.60}; make the set with scripts/data/")
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} is empty")
    if len({row["id"] for row in rows}) < len(rows):
        raise ValueError(f"{path} holds an id twice: records could not be told apart")
    return rows


def prompt_of(rows: Sequence[Row]) -> str:
    """The prompt style the rows were rendered with; for a text of one's own, its sha256.

    Raises ValueError naming a row without messages.
    """
    for row in rows:
        messages = row["messages"]
        if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
            raise ValueError(f"row {row['id']!r}: messages is {messages!r:.60}; make the set with scripts/data/")
    systems = {row["messages"][0]["content"] for row in rows}
    for style in PROMPT_STYLES:
        if systems == {system_prompt(style)}:
            return style
    return "sha256:" + hashlib.sha256("\n".join(sorted(systems)).encode()).hexdigest()


def score_records(env: RolloutEnv, rows: Sequence[Row], completions: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """One record a row with its scored samples; every completion of a row is judged by the row's golden."""
    flat = [(row, text) for row, texts in zip(rows, completions, strict=True) for text in texts]
    env.score(
        [text for _, text in flat],
        [row["golden_json"] for row, _ in flat],
        [row["text"] for row, _ in flat],
        ids=[row["id"] for row, _ in flat],
        splits=[row["split"] for row, _ in flat],
        step=None,
    )
    scored = iter(env.last_rows)
    return [
        {
            "id": row["id"],
            "family": row["family"],
            "text": row["text"],
            "prior_context": list(row.get("prior_context", [])),
            "context_rendered": context_rendered(row),
            "golden": env.reward.parse_golden(row["golden_json"], where=row["id"]),
            "samples": [{key: line[key] for key in SAMPLE_KEYS} for line in islice(scored, len(texts))],
        }
        for row, texts in zip(rows, completions, strict=True)
    ]


def context_rendered(row: Row) -> bool:
    """Whether the prompt shows the earlier turns: then keeping their category is right, and abstaining is not."""
    prior = row.get("prior_context", [])
    return bool(prior) and all(turn in row["messages"][-1]["content"] for turn in prior)


def open_env(settings: Settings, data: Path, rows: Sequence[Row]) -> tuple[RolloutEnv, dict[str, Any]]:
    """The environment on default weights without gates, and the facts two evaluations must share to be compared.

    Raises StoreError or EncoderError when nothing could be searched, or when another encoder filled the store.
    """
    print(NOTICE)
    env = RolloutEnv.from_settings(settings, environ={})  # no weights, no gates: the defaults
    store, titles = check_search(env.store, env.encoder) if env.store and env.encoder else (None, None)
    if store is None:
        print("PLANNER_RETRIEVAL=off: retrieval takes no part, and the summary says so")
    return env, {
        "data": str(data),
        "data_sha256": hashlib.sha256(data.read_bytes()).hexdigest(),
        "reward_sha256": env.reward.sha256,
        "weights": env.weights,
        "gates": list(env.gates),
        # What was searched: two evaluations on different stores are not comparable.
        "store": None if store is None else {"points": store.points, "vector_size": store.vector_size},
        STORE_TITLES: titles,
        "encoder": None if env.encoder is None else env.encoder.name,
        "prompt": prompt_of(rows),
    }


def check_search(store: EdgeStore | QdrantStore, encoder: Encoder) -> tuple[StoreInfo, str]:
    """The store fits the encoder and was filled by it: what it holds, and the digest of its titles.

    Raises StoreError or EncoderError.
    """
    info = check_store(store, encoder)
    if remark := check_before_search(encoder, store):
        print(remark, file=sys.stderr)
    return info, titles_digest(store)


def mode_summary(records: Sequence[Mapping[str, Any]], asked: int, samples: int) -> dict[str, Any]:
    """All that is said of one decoding mode; `records` have a completion each, `asked` counts those without, too.

    `samples` is how many completions a record was to have: a record that lost some of its calls counts in `coverage`
    and falls short in `completion_coverage`.
    """
    return {
        "coverage": share(len(records), asked),
        "completion_coverage": share(sum(len(record["samples"]) for record in records), asked * samples),
        **summarise(records),
        "spread": spread(records),
        "tiers": tiers(records),
        "error_classes": error_classes(records),
    }


def gated_summary(env: RolloutEnv, records: Sequence[Mapping[str, Any]], gates: Sequence[str]) -> dict[str, Any]:
    """Reward and parts of the same completions and titles with `gates` on: a second column beside the figures."""
    gated = []
    for record in records:
        samples = []
        for sample in record["samples"]:
            plan = env.reward.parse_plan(sample["completion"])
            breakdown = env.reward.compute_reward(
                plan, record["golden"], record["text"], sample["titles"], weights=env.weights, gates=gates
            )
            samples.append({**sample, "breakdown": breakdown.to_dict()})
        gated.append({**record, "samples": samples})
    summary = summarise(gated)
    return {"reward": summary["reward"], "parts": summary["parts"]}


def evaluate(
    env: RolloutEnv,
    rows: Sequence[Row],
    facts: Mapping[str, Any],
    answers: Callable[[str], Answers],
    modes: Mapping[str, int],
    prefix: Path,
    gates: Sequence[str] = (),
) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """Get the completions of every mode and score them; then write the record files. The summary and the records.

    `modes` says how many completions a record each mode asks for. The summary itself is not written: its caller may add
    to it. Raises NoCompletion when no record has a completion; whatever stops it before the last mode is scored,
    nothing has been written.
    """
    summary: dict[str, Any] = {**facts, "failures": []}
    kept: dict[str, list[dict[str, Any]]] = {}
    for mode, per_record in modes.items():
        completions, about = answers(mode)
        summary["failures"] += about.pop("failures", [])
        records = [record for record in score_records(env, rows, completions) if record["samples"]]
        if not records:
            raise NoCompletion(len(rows), summary["failures"])
        kept[mode] = records
        digest = hashlib.sha256(jsonl(records).encode()).hexdigest()
        summary[mode] = {**mode_summary(records, len(rows), per_record), **about, "records_sha256": digest}
        print_summary(f"{prefix.name} {mode}", summary[mode])
        if gates:
            extra = summary.setdefault("extra", {"label": f"with gates {', '.join(gates)}", "gates": list(gates)})
            extra[mode] = gated_summary(env, records, gates)
            print(f"  {extra['label']}: reward {extra[mode]['reward']['mean']:.4f} (a second column, not the figure)")
    summary["coverage"] = summary["greedy"]["coverage"]
    for mode, records in kept.items():
        write_atomically(records_path(prefix, mode), jsonl(records))
    return summary, kept


def print_summary(label: str, summary: Mapping[str, Any]) -> None:
    reward, covered = summary["reward"], summary["completion_coverage"]
    print(
        f"{label}: reward {reward['mean']:.4f} [{reward['low']:.4f}, {reward['high']:.4f}]  "
        f"format {summary['format_rate']['share']:.3f}  parse {summary['parse_rate']['share']:.3f}  "
        f"{summary['records']} records, {summary['completions']} completions"
    )
    if covered["count"] < covered["of"]:
        print(
            f"  coverage {_ratio(summary['coverage'])} records, {_ratio(covered)} completions: the other calls failed "
            "and have no score"
        )
    if summary["spread"]["k"] > 1:
        best = summary["spread"]["best_of_k"]["mean"]
        print(f"  best of {summary['spread']['k']}: {best:.4f}; {summary['spread']['reading']}")
    of_all, of_those = summary["abstentions_of_all_records"], summary["correct_abstentions_of_those_that_should"]
    print(
        f"  abstentions {of_all['count']} of all {of_all['of']}; right ones {of_those['count']} of the "
        f"{of_those['of']} that should; earlier category kept {_ratio(summary['earlier_category_kept'])}"
    )
    print("  errors: " + ", ".join(f"{name} {_ratio(kind)}" for name, kind in summary["error_classes"].items()))


def _ratio(counted: Mapping[str, Any]) -> str:
    return f"{counted['count']}/{counted['of']}"


def local_answers(args: argparse.Namespace, rows: Sequence[Row], model: LocalModel) -> Callable[[str], Answers]:
    """Completions of a local model, which is loaded at once."""
    engine = model.load()

    def answers(mode: str) -> Answers:
        samples = 0 if mode == "greedy" else args.samples
        prompts = [row["messages"] for row in rows]
        label = f"{args.out.name} {mode}"
        cut = args.max_new_tokens or MAX_NEW_TOKENS
        top_k = SAMPLE_TOP_K[model.backend]
        found = generate(engine, prompts, samples=samples, seed=args.seed, label=label, max_new_tokens=cut, top_k=top_k)
        return found, {}

    return answers


def endpoint_answers(
    file: CallsFile, endpoint: Endpoint, rows: Sequence[Row], samples: int, seed: int, label: str, retry_failures: bool
) -> Callable[[str], Answers]:
    """Completions of an endpoint, resumed from the calls file, with latency, tokens and failures."""

    def answers(mode: str) -> Answers:
        wanted = jobs(rows, mode, samples, seed)
        calls = run_jobs(file, endpoint, wanted, retry_failures=retry_failures, label=f"{label} {mode}")
        about = {"calls": call_statistics(calls), "failures": failures(calls)}
        for failure in about["failures"]:
            print(f"  failed: {failure['id']} sample {failure['sample']}: {failure['reason']}", file=sys.stderr)
        return completions_by_row(rows, calls), about

    return answers


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/eval/eval_planner.py --model build/demo/nano --data build/demo/dev92.jsonl "
        "--samples 8 --out runs/eval/untrained\n"
        "  PLANNER_API_KEY=... python scripts/eval/eval_planner.py --endpoint https://host/v1 --model qwen-flash "
        "--data build/demo/dev92.jsonl --out runs/eval/qwen-flash",
    )
    parser.add_argument("--model", required=True, help="model folder or hub name; with --endpoint its name there")
    parser.add_argument("--adapter", help="LoRA adapter folder on top of a local model")
    parser.add_argument("--backend", choices=BACKENDS, help=f"what runs a local model (default {BACKENDS[0]})")
    parser.add_argument(
        "--endpoint", metavar="URL", help="base URL of an OpenAI-compatible API, as http://host:8000/v1"
    )
    parser.add_argument(
        "--concurrency", type=int, help=f"calls to the endpoint at a time (default {DEFAULT_CONCURRENCY})"
    )
    parser.add_argument("--data", type=Path, required=True, help="prompt set with golden_json (dev92.jsonl)")
    parser.add_argument("--samples", type=int, default=0, help="samples a record beside the greedy pass (default 0)")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help=f"sampling seed (default {DEFAULT_SEED})")
    parser.add_argument(
        "--max-new-tokens", type=int, help=f"where a local model's completion is cut (default {MAX_NEW_TOKENS})"
    )
    parser.add_argument("--gates", default="", help="comma list of gates for a second, labelled column in `extra`")
    parser.add_argument(
        "--kl-to", metavar="FOLDER", help="adapter or model folder: mean token KL of the local model to it"
    )
    parser.add_argument("--out", type=Path, required=True, help="prefix of the files to write")
    args = parser.parse_args()
    if args.samples < 0:
        parser.error(f"--samples {args.samples}: use 0 (greedy only) or more")
    if args.max_new_tokens is not None and args.max_new_tokens < 1:
        parser.error(f"--max-new-tokens {args.max_new_tokens}: use 1 or more")
    if args.max_new_tokens is not None and args.kl_to:
        parser.error(f"--kl-to reads completions cut at {MAX_NEW_TOKENS} tokens: leave out --max-new-tokens")
    if args.endpoint and (args.adapter or args.backend or args.kl_to or args.max_new_tokens):
        parser.error(
            "--endpoint goes with --model NAME alone: --adapter, --backend, --kl-to and --max-new-tokens are for local "
            "models"
        )
    if not args.endpoint and args.concurrency is not None:
        parser.error("--concurrency is for --endpoint")
    if args.kl_to and args.backend == "vllm":
        parser.error("--kl-to needs the logits over the whole vocabulary: leave out --backend vllm")
    return args


def run(args: argparse.Namespace) -> None:
    for file in (summary_path(args.out), *(records_path(args.out, mode) for mode in MODES)):
        if file.exists():
            raise ValueError(f"{file} exists and is never overwritten; choose another --out or move it")
    settings = Settings.from_env()
    rows = read_rows(args.data)
    if args.kl_to and not Path(args.kl_to).is_dir():
        raise ValueError(f"--kl-to {args.kl_to} is no folder: give an adapter or a model folder")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    env, facts = open_env(settings, args.data, rows)
    gates = env.reward.gates_from_env({"PLANNER_REWARD_GATES": args.gates})
    facts = {"model": args.model, "adapter": args.adapter, **facts, "seed": args.seed}
    if args.endpoint:
        concurrency = DEFAULT_CONCURRENCY if args.concurrency is None else args.concurrency
        endpoint = Endpoint.from_settings(args.endpoint, args.model, settings, concurrency=concurrency)
        calls = CallsFile(Path(f"{args.out}.calls.jsonl"), header(endpoint, facts["data_sha256"], args.seed))
        facts |= {"backend": "endpoint", "endpoint": endpoint.public_url, "max_new_tokens": MAX_NEW_TOKENS}
        answers = endpoint_answers(calls, endpoint, rows, args.samples, args.seed, args.out.name, retry_failures=True)
    else:
        model = LocalModel(args.model, args.adapter, args.backend or BACKENDS[0])
        facts |= {"backend": model.backend, "max_new_tokens": args.max_new_tokens or MAX_NEW_TOKENS}
        answers = local_answers(args, rows, model)
    modes = {"greedy": 1, "samples": args.samples} if args.samples else {"greedy": 1}
    summary, records = evaluate(env, rows, facts, answers, modes, args.out, gates)
    del answers  # a local engine's memory is needed below
    try:
        if args.kl_to:
            summary["kl"] = kl(args, rows, records)
    finally:  # the scores stand without it
        write_atomically(summary_path(args.out), json_text(summary))


def kl(args: argparse.Namespace, rows: Sequence[Row], records: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    from scripts.eval.mean_kl import measure_kl

    measured = measure_kl(args.model, args.adapter, args.kl_to, rows, records)
    for mode, found in measured["modes"].items():
        print(f"KL to {args.kl_to}, {mode}: {found['mean_token_kl']:.5f} a token over {found['tokens']} tokens")
    return measured


def main() -> int:
    args = parse_arguments()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line a call says nothing that the calls file does not
    try:
        run(args)
    except (OSError, ValueError, StoreError, EncoderError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
