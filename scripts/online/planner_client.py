"""One shopper's sentence in, one plan out: from the planner that LLM_PLANNER names, else once from the other channel.

    from scripts.online.planner_client import plan
    answer = plan("要防水的，三百块以内", ["想买双跑鞋"])
    answer.plan, answer.channel, answer.reason

The prompt is the one of training (swift_plugin/prompts.py), the answer is read by the parser of PLANNER_REWARD_FILE,
and a call is made once a channel: a failed, slow or unparseable answer goes to the other channel instead of being tried
again.
PLANNER_REQUEST_SECONDS is the time a channel gets, its wait for PLANNER_RATE_LIMITS included.
"""

import argparse
import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from scripts.chat import Refused, check_text, open_client, read_reply, try_once
from scripts.eval.endpoint import sampling
from scripts.eval.generate import MAX_NEW_TOKENS
from scripts.online.channels import SWITCH, Channel, read_channels
from scripts.online.rate_limits import RateLimits
from swift_plugin.per_process import PerProcess
from swift_plugin.prompts import build_messages
from swift_plugin.retry import TransientError
from swift_plugin.reward_loader import load_reward
from swift_plugin.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True)
class Attempt:
    """What one channel made of the request. `fault` is None where it gave a plan, else says why it gave none.

    `completion` is the model's text, None where none came; `issues` are the parser's; `seconds` includes a wait for
    the rate limit.
    """

    channel: str
    model: str
    completion: str | None
    plan: dict[str, Any] | None
    issues: tuple[str, ...]
    fault: str | None
    seconds: float


@dataclass(frozen=True)
class Plan:
    """The answer to one request. `plan` and `channel` are None where neither channel gave a plan.

    `reason` says in words why `channel` answered. `attempts` holds what each asked channel did, in order.
    """

    plan: dict[str, Any] | None
    channel: str | None
    reason: str
    attempts: tuple[Attempt, ...]

    @property
    def completion(self) -> str | None:
        """The text the plan was read from; without a plan the last text that came, None where no model answered."""
        texts = [attempt.completion for attempt in self.attempts if attempt.completion is not None]
        return texts[-1] if texts else None

    def to_dict(self) -> dict[str, Any]:
        """The same, JSON-ready."""
        return {**dataclasses.asdict(self), "completion": self.completion}


def log_row(identity: str, text: str, prior_context: Sequence[str], answer: Plan) -> dict[str, Any]:
    """One line of the log that scripts/eval/score_online_log.py reads; add `titles` once the search is done."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"time": now, "id": identity, "text": text, "prior_context": list(prior_context), **answer.to_dict()}


class Planner:
    """Both channels with their connections and limits. Safe to share between threads; made again after a fork.

    Args:
        first: the channel that is asked.
        second: the one asked once where the first gives no plan; None: nobody is.
        limits: requests a minute; give two planners of one process the same object.
        reward_file: whose `parse_plan` decides what a plan is, the file that training scored with.
    """

    def __init__(
        self, first: Channel, second: Channel | None, limits: RateLimits, reward_file: Path = Settings.reward_file
    ) -> None:
        self.channels = (first,) if second is None else (first, second)
        self._limits = limits
        self._reward = load_reward(reward_file)
        self._lock = threading.Lock()
        self._clients = [PerProcess(_opener(channel)) for channel in self.channels]

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> "Planner":
        """What the variables say. Raises ValueError naming the variable and the remedy."""
        return cls(*read_channels(environ), RateLimits.from_env(environ), Settings.from_env(environ).reward_file)

    def plan(self, text: str, prior_context: Sequence[str] = ()) -> Plan:
        """The plan for this turn's words.

        Args:
            text: this turn's words, verbatim.
            prior_context: the shopper's earlier turns, oldest first.

        Raises ValueError for a blank text, a context that is no list of texts, and half a character in one of them.
        Whatever goes wrong behind a channel is no exception: it stands in the answer.
        """
        if not text.strip():
            raise ValueError("the text is blank: there is nothing to plan")
        if isinstance(prior_context, str) or not all(isinstance(turn, str) for turn in prior_context):
            raise ValueError(f"prior_context is a list of earlier turns, not {prior_context!r}")
        for words in (text, *prior_context):
            check_text(words)
        attempts: list[Attempt] = []
        for place in range(len(self.channels)):
            attempts.append(self._attempt(place, text, prior_context))
            if attempts[-1].fault is None:
                break
        last = attempts[-1]
        channel = last.channel if last.fault is None else None
        return Plan(last.plan, channel, self._reason(attempts), tuple(attempts))

    def _reason(self, attempts: Sequence[Attempt]) -> str:
        faults = "; ".join(
            f"{self.channels[place].label}: {attempt.fault}" for place, attempt in enumerate(attempts) if attempt.fault
        )
        if attempts[-1].fault is None:
            return f"{faults}; asked the other channel" if faults else "first choice"
        return faults if len(self.channels) > 1 else f"{faults}; there is no other channel (PLANNER_API_URL is unset)"

    def _attempt(self, place: int, text: str, prior_context: Sequence[str]) -> Attempt:
        channel = self.channels[place]
        started = time.monotonic()
        completion, plan, issues, fault = None, None, (), None
        try:
            completion = self._answer(place, build_messages(text, prior_context, channel.prompt))
            plan, issues = self._reward.parse_plan(completion)
            if plan is None:
                fault = f"unparseable answer ({', '.join(issues)})"
        except (TransientError, Refused) as failure:
            fault = str(failure)  # without the server's own words: some quote the key in them
        seconds = round(time.monotonic() - started, 4)
        return Attempt(channel.kind, channel.endpoint.model, completion, plan, issues, fault, seconds)

    def _answer(self, place: int, messages: list[dict[str, str]]) -> str:
        """The text of one answer. Raises TransientError or Refused."""
        endpoint = self.channels[place].endpoint
        with self._lock:
            client = self._clients[place].get()
        deadline = time.monotonic() + endpoint.timeout_s
        if not self._limits.take(endpoint.model, endpoint.timeout_s):
            raise TransientError(f"its rate limit leaves no turn within {endpoint.timeout_s:g} s")
        request = {
            "model": endpoint.model,
            "messages": messages,
            "max_tokens": MAX_NEW_TOKENS,
            **sampling("greedy", seed=0),
        }
        left = max(0.0, deadline - time.monotonic())
        reply = within(left, lambda: try_once(client, request, left), f"no answer within {endpoint.timeout_s:g} s")
        content = read_reply(reply).content
        if not content.strip():
            raise TransientError("an answer without text: is this a chat endpoint?")
        return content


def _opener(channel: Channel) -> Callable[[], Any]:
    def make() -> Any:
        client = open_client(channel.endpoint.base_url, channel.endpoint.key)
        _ = client.chat.completions  # imported at its first use: not in the seconds of the first request
        return client

    return make


def within(seconds: float, ask: Callable[[], T], late: str) -> T:
    """What `ask` returns or raises, if it does so in time; else TransientError(late), and its result is dropped.

    The client's own timeout counts from the last byte: a server that sends one now and then would never run into it.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(ask())
        except BaseException as error:  # raised again where the result is awaited
            result.set_exception(error)

    threading.Thread(target=run, name="planner-call", daemon=True).start()
    try:
        return result.result(timeout=seconds)
    except NotInTime:
        raise TransientError(late) from None


_default: PerProcess[Planner] = PerProcess(Planner.from_env)
_default_lock = threading.Lock()


def plan(text: str, prior_context: Sequence[str] = ()) -> Plan:
    """The plan for this turn's words, by the planner that the environment names (read at the first call).

    See `Planner.plan`; raises ValueError also for wrong variables.
    """
    with _default_lock:
        planner = _default.get()
    return planner.plan(text, prior_context)


def main(argv: Sequence[str] | None = None) -> int:
    """Ask once and print the answer as JSON: 0 with a plan, 1 without one, 2 for wrong use."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  PLANNER_PROMPT=short python scripts/online/planner_client.py 要防水的 --prior 想买双跑鞋\n"
        f"  {SWITCH}=qwen-flash PLANNER_API_URL=https://host/v1 PLANNER_API_KEY=... \\\n"
        "    python scripts/online/planner_client.py 想买双跑鞋",
    )
    parser.add_argument("text", help="this turn's words")
    parser.add_argument("--prior", action="append", default=[], metavar="TURN", help="an earlier turn, oldest first")
    args = parser.parse_args(argv)
    try:
        answer = plan(args.text, args.prior)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(answer.to_dict(), ensure_ascii=False, indent=1))
    return 0 if answer.plan is not None else 1


if __name__ == "__main__":
    sys.exit(main())
