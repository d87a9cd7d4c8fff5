"""One try at an OpenAI-compatible chat endpoint, told apart by what a second try could cure.

The evaluation of API models and the votes on golden records both ask through here; how often they try again, and what
an answer means to them, is theirs (swift_plugin/retry.py).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from swift_plugin.encoders import retry_after_s
from swift_plugin.retry import TRANSIENT_STATUS, TransientError, is_loopback, whole_answer_hooks

KEY_VARIABLE = "PLANNER_API_KEY"
NO_KEY = "EMPTY"  # what servers that ask for no key are given by convention; the client insists on one


class Refused(Exception):
    """The endpoint answered with a status that no second try cures. `message` may quote the key: mask it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.message = status, message


class Reply(NamedTuple):
    """What one answer holds. `content` is "" where the model wrote no text; `elsewhere` names what it gave instead."""

    content: str
    finish_reason: str | None
    elsewhere: tuple[str, ...]  # of "refusal" and "tool_calls"
    prompt_tokens: int | None  # None: the server does not count
    completion_tokens: int | None


def read_reply(answer: Any) -> Reply:
    """The first choice of what `try_once` returned, whatever that is: the client checks nothing that it reads.

    Raises TransientError for what is no answer of a chat endpoint.
    """
    choices = getattr(answer, "choices", None)
    message = getattr(choices[0], "message", None) if isinstance(choices, list) and choices else None
    if not hasattr(message, "content"):
        raise TransientError("an answer without a message: is this a chat endpoint?")
    if not isinstance(message.content, str | None):
        raise TransientError("an answer whose content is no text: is this a chat endpoint?")
    reason, usage = getattr(choices[0], "finish_reason", None), getattr(answer, "usage", None)
    return Reply(
        message.content or "",
        None if reason is None else str(reason),
        tuple(name for name in ("refusal", "tool_calls") if getattr(message, name, None)),
        _count(usage, "prompt_tokens"),
        _count(usage, "completion_tokens"),
    )


def _count(usage: Any, name: str) -> int | None:
    value = getattr(usage, name, None)
    return value if isinstance(value, int) else None


def check_text(text: str) -> None:
    """Raises ValueError for a text that no request can carry: one with half a character (a lone surrogate)."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(_half(error)) from None


def _half(error: UnicodeEncodeError) -> str:
    half = error.object[error.start]
    return f"half a character, {half!r} at place {error.start}: the text was cut or decoded wrongly; decode it as UTF-8"


def open_client(base_url: str, key: str | None) -> Any:
    """An `openai.OpenAI` client that does not retry by itself and sends loopback traffic to no proxy."""
    import httpx
    import openai

    return openai.OpenAI(
        base_url=base_url,
        api_key=key or NO_KEY,
        max_retries=0,  # retries are ours: the library's own would multiply with them
        http_client=httpx.Client(trust_env=not is_loopback(base_url), event_hooks=whole_answer_hooks()),
    )


def try_once(client: Any, request: Mapping[str, Any], timeout_s: float) -> Any:
    """The answer to one request body, for `read_reply`.

    Raises TransientError for what time may cure, Refused for the rest, and ValueError for a text that cannot be sent.
    """
    import openai

    try:
        return client.chat.completions.create(**request, timeout=timeout_s)
    except openai.APITimeoutError:
        raise TransientError(f"no answer within {timeout_s:g} s") from None
    except openai.APIConnectionError as error:
        raise TransientError(f"connection failed: {error.__cause__ or error}") from None
    except openai.APIStatusError as error:
        if error.status_code in TRANSIENT_STATUS:
            raise TransientError(f"HTTP {error.status_code}", retry_after_s(error.response)) from None
        raise Refused(error.status_code, error.message) from None
    except UnicodeEncodeError as error:  # of the request; a ValueError as well
        raise ValueError(f"the request holds {_half(error)}") from None
    except (ValueError, RecursionError) as error:  # called JSON and none; a cut answer is a connection error above
        raise TransientError(f"the answer is no JSON: {error}") from None
