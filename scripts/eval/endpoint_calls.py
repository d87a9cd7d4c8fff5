"""The calls made to one endpoint for one set, kept a line each: the state to resume from and the evidence of cost.

The first line says what was asked (endpoint, model, set, seed, token limit); a file that says something else is
refused, so that answers of two models never mix. Of two lines about one call the later one counts.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scripts.eval.endpoint import Call, Endpoint, Job, ask_all
from scripts.eval.evaluation_files import jsonl
from scripts.eval.generate import MAX_NEW_TOKENS
from scripts.eval.summary import share
from scripts.files import utf8_text, write_atomically

Row = Mapping[str, Any]


class CallsFile:
    """An append-only file of calls. `calls` holds the last one for each (mode, id, sample), `failed` counts failures.

    Raises ValueError when the file at `path` was made for something else, or holds a line that is none of ours.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.calls: dict[tuple[str, str, int], Call] = {}
        self.failed = 0
        if path.exists():
            self._read(header)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, jsonl([dict(header)]))

    def add(self, call: Call) -> None:
        """Write the call to disk, then remember it."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(jsonl([call.to_dict()]))
        self._remember(call)

    def _remember(self, call: Call) -> None:
        self.calls[call.key] = call
        self.failed += call.completion is None

    def _read(self, header: Mapping[str, Any]) -> None:
        text = utf8_text(self.path)
        whole = text[: text.rfind("\n") + 1]  # a killed run may leave half a line: that call is asked again
        if whole != text:
            write_atomically(self.path, whole)
        lines = whole.split("\n")[:-1]
        try:
            rows = [json.loads(line) for line in lines]
            calls = [Call(**row) for row in rows[1:]]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.path} is no file of calls ({error}); move it away") from None
        if not rows or rows[0] != dict(header):
            raise ValueError(
                f"{self.path} holds calls for {rows[0] if rows else 'nothing'}, asked is {dict(header)}; "
                "choose another output or move the file"
            )
        for call in calls:
            self._remember(call)


def header(endpoint: Endpoint, data_sha256: str, seed: int) -> dict[str, Any]:
    """What the calls of one file have in common."""
    return {
        "endpoint": endpoint.public_url,
        "model": endpoint.model,
        "data_sha256": data_sha256,
        "seed": seed,
        "max_tokens": MAX_NEW_TOKENS,
    }


def jobs(rows: Sequence[Row], mode: str, samples: int, seed: int) -> list[Job]:
    """The calls of a decoding mode: one a row for greedy, `samples` a row else, each with a seed of its own."""
    return [
        Job(row["id"], mode, sample, row["messages"], seed + sample)
        for row in rows
        for sample in range(1 if mode == "greedy" else samples)
    ]


def run_jobs(
    file: CallsFile, endpoint: Endpoint, wanted: Sequence[Job], *, retry_failures: bool, label: str
) -> list[Call]:
    """Make the calls that the file lacks (with `retry_failures` also those that failed); all calls, in order."""

    def open_job(job: Job) -> bool:
        known = file.calls.get((job.mode, job.id, job.sample))
        return known is None or (retry_failures and known.completion is None)

    ask_all(endpoint, [job for job in wanted if open_job(job)], label=label, keep=file.add)
    return [file.calls[(job.mode, job.id, job.sample)] for job in wanted]


def completions_by_row(rows: Sequence[Row], calls: Iterable[Call]) -> list[list[str]]:
    """The answers of each row, in order of their samples; failures are left out."""
    by_id: dict[str, list[str]] = {row["id"]: [] for row in rows}
    for call in calls:
        if call.completion is not None:
            by_id[call.id].append(call.completion)
    return [by_id[row["id"]] for row in rows]


def failures(calls: Iterable[Call]) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "mode": call.mode, "sample": call.sample, "reason": call.reason}
        for call in calls
        if call.completion is None
    ]


def call_statistics(calls: Sequence[Call]) -> dict[str, Any]:
    """Answered, failed and cut calls, seconds of the answered ones (median, p95), and tokens as the server counts them.

    Token sums are None when an answer came without a count: a sum over some would look like a low price.
    """
    answered = [call for call in calls if call.completion is not None]
    latencies = [call.latency_s for call in answered]
    return {
        "calls": len(calls),
        "answered": share(len(answered), len(calls)),
        "failed": len(calls) - len(answered),
        "cut_by_the_token_limit": sum(call.finish_reason == "length" for call in answered),
        "tries": sum(call.tries for call in calls),
        "latency_s": {
            "median": float(np.percentile(latencies, 50)) if latencies else None,
            "p95": float(np.percentile(latencies, 95)) if latencies else None,
        },
        "tokens": {
            "prompt": _total([call.prompt_tokens for call in answered]),
            "completion": _total([call.completion_tokens for call in answered]),
        },
    }


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None
