"""Who plans: the switch LLM_PLANNER, the other channel, and the name under which a model's calls are counted.

A planner is written as `local:URL` (the kit's own server, run_planner_server.sh; `local:URL#NAME` where it serves the
model under another name) or as the name of a model behind the chat endpoint PLANNER_API_URL.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from scripts.chat import KEY_VARIABLE
from scripts.eval.endpoint import Endpoint
from swift_plugin.settings import Settings, public_url

SWITCH = "LLM_PLANNER"
FALLBACK = "PLANNER_FALLBACK"
API_URL = "PLANNER_API_URL"
SERVER_KEY = "PLANNER_SERVER_API_KEY"
SERVER_PORT = "PLANNER_SERVER_PORT"

API, LOCAL = "api", "local"
LOCAL_PREFIX = "local:"
DEFAULT_PORT = 8010  # of run_planner_server.sh
SERVED_NAME = "planner"  # the name run_planner_server.sh serves its model under
DEFAULT_API_MODEL = "qwen-flash"
API_PROMPT = "full"  # the short prompt says nothing to a model that was not trained on it


@dataclass(frozen=True)
class Channel:
    """One planner that can be asked: `kind` is API or LOCAL, `prompt` the style of its system prompt."""

    kind: str
    endpoint: Endpoint
    prompt: str

    @property
    def label(self) -> str:
        """As it stands in reasons: kind and model.

        >>> read_channels({})[0].label
        'local planner'
        """
        return f"{self.kind} {self.endpoint.model}"


def normalised_model(name: str) -> str:
    """The name under which calls to a model are counted: without a provider's prefix and without case.

    >>> normalised_model("dashscope/Qwen-Flash"), normalised_model("qwen-flash")
    ('qwen-flash', 'qwen-flash')
    """
    return name.strip().rpartition("/")[2].lower()


def default_local(environ: Mapping[str, str]) -> str:
    """The planner of run_planner_server.sh on this machine, as LLM_PLANNER writes it."""
    port = environ.get(SERVER_PORT, "").strip() or str(DEFAULT_PORT)
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ValueError(f"{SERVER_PORT}={port!r} is no port: give a number from 1 to 65535")
    return f"{LOCAL_PREFIX}http://127.0.0.1:{port}/v1"


def read_channels(environ: Mapping[str, str] = os.environ) -> tuple[Channel, Channel | None]:
    """The planner asked first, and the one of the other kind that is asked once where the first gives no plan.

    LLM_PLANNER unset is the local planner on PLANNER_SERVER_PORT. The other one is PLANNER_FALLBACK, by default the
    local planner behind an API model, and DEFAULT_API_MODEL behind the local one. Without PLANNER_API_URL there is no
    API channel: a shopper's words leave the machine only where that variable says so.

    Raises ValueError naming the variable and the remedy, never a key.
    """
    settings = Settings.from_env(environ)
    switch = environ.get(SWITCH, "").strip() or default_local(environ)
    first = _channel(SWITCH, switch, settings, environ)
    other = environ.get(FALLBACK, "").strip()
    if other:
        second = _channel(FALLBACK, other, settings, environ)
        if second.kind == first.kind:
            raise ValueError(
                f"{SWITCH}={switch} and {FALLBACK}={other} are both {first.kind}: the second channel is of "
                f"the other kind; give {FALLBACK} as {'an API model' if first.kind == LOCAL else f'{LOCAL_PREFIX}URL'}"
            )
        return first, second
    if first.kind == API:
        return first, _channel(FALLBACK, default_local(environ), settings, environ)
    if environ.get(API_URL, "").strip():
        return first, _channel(FALLBACK, DEFAULT_API_MODEL, settings, environ)
    return first, None


def _channel(variable: str, value: str, settings: Settings, environ: Mapping[str, str]) -> Channel:
    if value.startswith(LOCAL_PREFIX):
        url, _, name = value.removeprefix(LOCAL_PREFIX).partition("#")
        endpoint = Endpoint.from_settings(
            url, name or SERVED_NAME, settings, key_variable=SERVER_KEY, environ=environ
        )
        return Channel(LOCAL, endpoint, settings.prompt)
    if "://" in value:
        raise ValueError(f"{variable}={public_url(value)} is a URL: write a planner of your own as {LOCAL_PREFIX}URL")
    url = environ.get(API_URL, "").strip()
    if not url:
        raise ValueError(
            f"{variable}={value!r} names an API model, and {API_URL} is unset: give the base URL of its chat endpoint, "
            f"as https://host/v1 (the key goes into {KEY_VARIABLE})"
        )
    endpoint = Endpoint.from_settings(url, value, settings, key_variable=KEY_VARIABLE, environ=environ)
    return Channel(API, endpoint, API_PROMPT)
