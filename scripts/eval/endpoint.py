"""Completions from an OpenAI-compatible chat endpoint: each call ends as an answer or as a failure with its reason.

A failed call is never turned into text, so it can never be scored: an outage must not look like a bad plan. Retries
follow swift_plugin/retry.py, with the budget and the timeout of the settings (PLANNER_RETRY_SECONDS,
PLANNER_REQUEST_SECONDS). What the model ended itself or the token limit cut (`finish_reason` "stop" or "length") is an
answer, be it empty: a local model that writes nothing is scored for it as well.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

from scripts.chat import KEY_VARIABLE, Refused, Reply, open_client, read_reply, try_once
from scripts.eval.generate import MAX_NEW_TOKENS, SAMPLE_TEMPERATURE, SAMPLE_TOP_P
from swift_plugin.retry import RetryBudgetError, TransientError, with_retries
from swift_plugin.settings import MASK, Settings, check_key, check_url, public_url

DEFAULT_CONCURRENCY = 8
REASON_CHARACTERS = 200
ANSWERED = ("stop", "length")  # finish reasons of an answer that is the model's own, whatever stands in it

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Endpoint:
    """One model behind one base URL (the part before /chat/completions); times in seconds."""

    base_url: str
    model: str
    key: str | None = field(repr=False)
    timeout_s: float
    retry_budget_s: float
    concurrency: int = DEFAULT_CONCURRENCY

    @classmethod
    def from_settings(
        cls,
        base_url: str,
        model: str,
        settings: Settings,
        *,
        key_variable: str = KEY_VARIABLE,
        concurrency: int = DEFAULT_CONCURRENCY,
        environ: Mapping[str, str] = os.environ,
    ) -> "Endpoint":
        """The endpoint with the key that `key_variable` holds (unset: none). Raises ValueError, never with the key."""
        if concurrency < 1:
            raise ValueError(f"--concurrency {concurrency}: at least one call at a time")
        key = environ.get(key_variable, "").strip()
        return cls(
            check_url("the endpoint's URL", base_url, key_variable),
            model,
            check_key(key_variable, key) if key else None,
            settings.request_timeout_s,
            settings.retry_budget_s,
            concurrency,
        )

    @property
    def public_url(self) -> str:
        return public_url(self.base_url)


@dataclass(frozen=True)
class Job:
    """One call to make: the record's id, the decoding mode, the sample's number within the record, and the prompt."""

    id: str
    mode: str
    sample: int
    messages: Messages
    seed: int


@dataclass(frozen=True)
class Call:
    """How one call ended. Exactly one of `completion` and `reason` is a string.

    `latency_s` is the seconds of the try that was answered, without earlier tries and waits; None for a failure.
    Token counts are the server's, None where it gives none.
    """

    id: str
    mode: str
    sample: int
    completion: str | None
    reason: str | None
    finish_reason: str | None
    latency_s: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    tries: int

    @property
    def key(self) -> tuple[str, str, int]:
        return self.mode, self.id, self.sample

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class _Failed(Exception):
    """A failure that no second try cures; the message is the reason."""


def sampling(mode: str, seed: int) -> dict[str, Any]:
    """Request arguments of a decoding mode. `top_k` is left out: the interface has none, and servers take their own."""
    if mode == "greedy":
        return {"temperature": 0.0}
    return {"temperature": SAMPLE_TEMPERATURE, "top_p": SAMPLE_TOP_P, "seed": seed}


def ask(client: Any, endpoint: Endpoint, job: Job) -> Call:
    """Make one call, with retries. Every failure of the endpoint comes back as a Call with a reason."""
    tries = 0

    def attempt(timeout_s: float) -> tuple[Any, float]:
        nonlocal tries
        tries += 1
        return _try_once(client, endpoint, job, timeout_s)

    made = dataclasses.replace(_FAILED, id=job.id, mode=job.mode, sample=job.sample)
    what = f"{endpoint.model} on {job.id}"
    try:
        answer, latency_s = with_retries(
            attempt, budget_s=endpoint.retry_budget_s, timeout_s=endpoint.timeout_s, what=what
        )
        reply = read_reply(answer)
        completion = _text(reply)
    except (RetryBudgetError, TransientError, _Failed) as failure:
        return dataclasses.replace(made, reason=_without_key(str(failure), endpoint.key), tries=tries)
    return dataclasses.replace(
        made,
        completion=completion,
        finish_reason=reply.finish_reason,
        latency_s=round(latency_s, 4),
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        tries=tries,
    )


_FAILED = Call("", "", 0, None, None, None, None, None, None, 0)


def _try_once(client: Any, endpoint: Endpoint, job: Job, timeout_s: float) -> tuple[Any, float]:
    request = {
        "model": endpoint.model,
        "messages": [dict(message) for message in job.messages],
        "max_tokens": MAX_NEW_TOKENS,
        **sampling(job.mode, job.seed),
    }
    started = time.perf_counter()
    try:
        answer = try_once(client, request, timeout_s)
    except Refused as error:
        raise _Failed(_refusal(error)) from None
    return answer, time.perf_counter() - started


def _refusal(error: Refused) -> str:
    if error.status in (401, 403):  # the body may quote the key
        return f"{error}: the key is missing, wrong or may not use this model"
    return f"{error}: {error.message}"


def _text(reply: Reply) -> str:
    """What the model wrote, "" if it wrote nothing; _Failed where something other than the model emptied the answer.

    That is a filter, or an answer that went elsewhere: a refusal or a tool call, which are no text of a plan.
    """
    if reply.content.strip():
        return reply.content
    if reply.elsewhere or reply.finish_reason not in ANSWERED:
        beside = f", with {' and '.join(reply.elsewhere)}" if reply.elsewhere else ""
        raise _Failed(f"empty answer (finish_reason {reply.finish_reason}{beside})")
    return reply.content


def _without_key(text: str, key: str | None) -> str:
    masked = text.replace(key, MASK) if key else text
    return masked if len(masked) <= REASON_CHARACTERS else masked[: REASON_CHARACTERS - 1] + "…"


def ask_all(endpoint: Endpoint, jobs: Sequence[Job], *, label: str, keep: Callable[[Call], None]) -> None:
    """Make all calls, `concurrency` at a time, and hand each to `keep` (in this thread) as soon as it has ended."""
    if not jobs:
        return
    from tqdm import tqdm

    client = open_client(endpoint.base_url, endpoint.key)
    with client, ThreadPoolExecutor(endpoint.concurrency) as pool:
        try:
            with tqdm(total=len(jobs), desc=label, unit="call") as bar:
                for call in _finished(pool, client, endpoint, jobs):
                    keep(call)
                    bar.update()
        except BaseException:  # Ctrl-C too: what is not yet asked is not asked
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _finished(pool: ThreadPoolExecutor, client: Any, endpoint: Endpoint, jobs: Sequence[Job]) -> Iterator[Call]:
    for future in as_completed([pool.submit(ask, client, endpoint, job) for job in jobs]):
        yield future.result()
