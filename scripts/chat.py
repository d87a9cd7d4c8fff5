"""One try at an OpenAI-compatible chat endpoint, told apart by what a second try could cure.

The evaluation of API models and the votes on golden records both ask through here; how often they try again, and what
an answer means to them, is theirs (swift_plugin/retry.py).
"""

from collections.abc import Mapping
from typing import Any

from swift_plugin.encoders import retry_after_s
from swift_plugin.retry import TRANSIENT_STATUS, TransientError, is_loopback

KEY_VARIABLE = "PLANNER_API_KEY"
NO_KEY = "EMPTY"  # what servers that ask for no key are given by convention; the client insists on one


class Refused(Exception):
    """The endpoint answered with a status that no second try cures. `message` may quote the key: mask it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.message = status, message


def open_client(base_url: str, key: str | None) -> Any:
    """An `openai.OpenAI` client that does not retry by itself and sends loopback traffic to no proxy."""
    import httpx
    import openai

    return openai.OpenAI(
        base_url=base_url,
        api_key=key or NO_KEY,
        max_retries=0,  # retries are ours: the library's own would multiply with them
        http_client=httpx.Client(trust_env=not is_loopback(base_url)),
    )


def try_once(client: Any, request: Mapping[str, Any], timeout_s: float) -> Any:
    """The reply to one request body. Raises TransientError for what time may cure, Refused for the rest."""
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
    except ValueError as error:  # what calls itself JSON and is none; a cut answer is a connection error above
        raise TransientError(f"the answer is no JSON: {error}") from None
