"""The one settings object: every variable the kit reads, its default and its meaning stand here only.

`Settings.from_env()` validates what the rollout environment needs and refuses unknown `PLANNER_` variables,
so a typo stops a run before it starts instead of silently training with a default.
"""

import dataclasses
import difflib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CHECKOUT = Path(__file__).resolve().parent.parent
DEMO_DIR = CHECKOUT / "build" / "demo"  # everything the demo generates; git-ignored
DEMO_CATALOG = DEMO_DIR / "catalog.jsonl"
VECTOR_NAME = "dense"  # the named vector in every store
DEFAULT_COLLECTION = "products"
DEFAULT_EMBED_MODEL = "bge-m3"
DEFAULT_EMBED_BATCH = 64  # texts a request; some endpoints take less (DashScope 10, TEI 32)
DEFAULT_RETRY_SECONDS = 60.0
DEFAULT_REQUEST_SECONDS = 20.0
MOST_SECONDS = 86_400  # a day
PROMPT_STYLES = ("full", "short")
MASK = "***"


@dataclass(frozen=True)
class Variable:
    """One environment variable: its name, a line of help, whether its value is a secret."""

    name: str
    help: str
    secret: bool = False


VARIABLES: tuple[Variable, ...] = (
    Variable("PLANNER_REWARD_FILE", "reward file, loaded by path (reward/planner_reward.py)"),
    Variable("PLANNER_REWARD_WEIGHTS", "mix experiment: field=0.40 or a JSON object (default: no change)"),
    Variable("PLANNER_REWARD_GATES", "comma list of gates to switch on, as domain,grounded (default: none)"),
    Variable("PLANNER_RETRIEVAL", "on (default), or off to score without any search"),
    Variable("PLANNER_PROMPT", "system prompt: full (default, real models) or short (the demo's nano model)"),
    Variable("PLANNER_EMBED_URL", "OpenAI-compatible embeddings endpoint, as http://127.0.0.1:8081/v1"),
    Variable("PLANNER_EMBED_MODEL", "with the URL its model (bge-m3); without, FlagEmbedding loads this"),
    Variable("PLANNER_EMBED_API_KEY", "bearer key of the embeddings endpoint", secret=True),
    Variable("PLANNER_EMBED_BATCH", f"texts a request to the embeddings endpoint ({DEFAULT_EMBED_BATCH})"),
    Variable("QDRANT_URL", "Qdrant over HTTP, as http://127.0.0.1:6333; unset: the embedded store"),
    Variable("QDRANT_API_KEY", "key of that Qdrant", secret=True),
    Variable("QDRANT_COLLECTION", f"collection with the named vector {VECTOR_NAME} ({DEFAULT_COLLECTION})"),
    Variable("PLANNER_STORE_DIR", "embedded store, used without QDRANT_URL (build/demo/catalog.edge)"),
    Variable("PLANNER_RETRY_SECONDS", f"retry budget of one store or encoder call ({DEFAULT_RETRY_SECONDS:g})"),
    Variable("PLANNER_REQUEST_SECONDS", f"timeout of one try within it ({DEFAULT_REQUEST_SECONDS:g})"),
    Variable("PLANNER_API_KEY", "bearer key of a chat endpoint: the model scored, the judge, the voters", secret=True),
    # Who plans in service; their defaults stand in scripts/online/channels.py.
    Variable("LLM_PLANNER", "planner in service: an API model or local:URL (local:http://127.0.0.1:8010/v1)"),
    Variable("PLANNER_FALLBACK", "the other channel, written likewise and of the other kind (local, or qwen-flash)"),
    Variable("PLANNER_API_URL", "chat endpoint of the API model, as https://host/v1; unset: no API channel"),
    Variable("PLANNER_RATE_LIMITS", "requests a minute by model, as qwen-flash=60 (default: none)"),
    Variable("PLANNER_SERVER_API_KEY", "bearer key of the planner's own server, for server and client", secret=True),
    Variable("PLANNER_SERVER_PORT", "port of the planner's own server, for server and client"),
    # Read by the launchers alone; their defaults stand in scripts/train/launch_common.sh and the launchers' headers.
    Variable("PLANNER_MODEL", "model folder or hub id, for SFT, GRPO and the rollout server alike"),
    Variable("PLANNER_SFT_ADAPTER", "SFT adapter GRPO continues from; none: PLANNER_MODEL is the SFT model"),
    Variable("PLANNER_SFT_DATA", "SFT set (split train, answers in the rows)"),
    Variable("PLANNER_TRAIN_DATA", "GRPO set (split train)"),
    Variable("PLANNER_WATCH_DATA", "split watch, which chooses the checkpoint"),
    Variable("PLANNER_LORA_RANK", "LoRA rank, for SFT, GRPO and the rollout server alike; alpha is twice that"),
    Variable("PLANNER_ROLLOUT_PORT", "port of the rollout server"),
    Variable("PLANNER_PARITY_FILE", "parity report that GRPO's preflight demands, at most 7 days old"),
    Variable("PLANNER_ALLOW_OVERLONG", "1: train although rows exceed --max_length"),
    Variable("PLANNER_PYTHON", "python of the environment with ms-swift (.venv/bin/python, else python3)"),
    Variable("TRAIN_GPUS", "GPUs that train, by the ids of nvidia-smi"),
    Variable("ROLLOUT_GPUS", "GPUs of the rollout server"),
    Variable("DRY_RUN", "1: the launchers judge and print the command, and run nothing"),
)


def known_variables() -> dict[str, Variable]:
    """Every variable of the kit by its name."""
    return {variable.name: variable for variable in VARIABLES}


def check_names(environ: Mapping[str, str]) -> None:
    """Raise ValueError for a `PLANNER_` variable that nothing reads, naming the nearest one that is read."""
    known = known_variables()
    for name in sorted(environ):
        if name.startswith("PLANNER_") and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}."
            raise ValueError(f"{name} is set, but nothing reads it: {hint} Otherwise unset it.")


def public_url(url: str) -> str:
    """The URL as it may stand in a log: without user, password, query and fragment; whatever text is taken.

    A password that holds / is cut off with its user: what stands before the last @ is never shown. One that holds ? or
    # cannot be told from a query, and nothing but the scheme is shown. What stands before the scheme stays.

    >>> public_url("local:http://bob:pass/word@host/v1?key=k"), public_url("http://bob:pass#word@host")
    ('local:http://host/v1', 'http://***')
    """
    scheme, mark, rest = url.rpartition("://") if url.count("://") == 1 else ("", "", url)
    shown, _, hidden = rest.replace("#", "?").partition("?")
    place = MASK if "@" in hidden else shown.rpartition("@")[2].rstrip("/")
    return f"{scheme}{mark}{place}"


@dataclass(frozen=True)
class Settings:
    """What the rollout environment needs, validated. Build it with `Settings.from_env()`.

    Fields: `reward_file` and `store_dir` absolute paths; `retry_budget_s`, `request_timeout_s` in seconds;
    `embed_url` / `qdrant_url` None where the embedded default serves; `retrieval` False scores without a
    search.
    """

    reward_file: Path = CHECKOUT / "reward" / "planner_reward.py"
    embed_url: str | None = None
    embed_model: str | None = None
    embed_api_key: str | None = field(default=None, repr=False)
    embed_batch: int = DEFAULT_EMBED_BATCH
    qdrant_url: str | None = None
    qdrant_api_key: str | None = field(default=None, repr=False)
    collection: str = DEFAULT_COLLECTION
    store_dir: Path = DEMO_DIR / "catalog.edge"
    retry_budget_s: float = DEFAULT_RETRY_SECONDS
    request_timeout_s: float = DEFAULT_REQUEST_SECONDS
    retrieval: bool = True
    prompt: str = "full"

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> "Settings":
        """Read and validate the variables; one that is empty or blank counts as unset.

        Raises ValueError naming the variable, its value (never a secret's) and the remedy.

        >>> Settings.from_env({"PLANNER_RETRIEVAL": "off"}).retrieval
        False
        """
        check_names(environ)
        values = {name: environ[name].strip() for name in known_variables() if environ.get(name, "").strip()}

        def read(name: str, parse: Callable[[str, str], Any], default: Any) -> Any:
            return parse(name, values[name]) if name in values else default

        embed_url = read("PLANNER_EMBED_URL", partial(check_url, key_variable="PLANNER_EMBED_API_KEY"), None)
        return cls(
            reward_file=read("PLANNER_REWARD_FILE", _path, cls.reward_file),
            embed_url=embed_url,
            embed_model=values.get("PLANNER_EMBED_MODEL", DEFAULT_EMBED_MODEL if embed_url else None),
            embed_api_key=read("PLANNER_EMBED_API_KEY", check_key, None),
            embed_batch=read("PLANNER_EMBED_BATCH", _count, cls.embed_batch),
            qdrant_url=read("QDRANT_URL", partial(check_url, key_variable="QDRANT_API_KEY"), None),
            qdrant_api_key=read("QDRANT_API_KEY", check_key, None),
            collection=read("QDRANT_COLLECTION", _collection, cls.collection),
            store_dir=read("PLANNER_STORE_DIR", _path, cls.store_dir),
            retry_budget_s=read("PLANNER_RETRY_SECONDS", _seconds, cls.retry_budget_s),
            request_timeout_s=read("PLANNER_REQUEST_SECONDS", _positive_seconds, cls.request_timeout_s),
            retrieval=read("PLANNER_RETRIEVAL", _on_off, cls.retrieval),
            prompt=read("PLANNER_PROMPT", _prompt, cls.prompt),
        )

    def public(self) -> dict[str, Any]:
        """The effective settings for a manifest: JSON-ready, secrets masked (None where unset)."""
        shown: dict[str, Any] = {}
        for name, value in dataclasses.asdict(self).items():
            if name.endswith("_api_key"):
                shown[name] = MASK if value else None
            else:
                shown[name] = str(value) if isinstance(value, Path) else value
        return shown


def _path(name: str, value: str) -> Path:
    return Path(value).expanduser().absolute()


def check_url(name: str, value: str, key_variable: str) -> str:
    """The URL without a last slash; ValueError names the variable and where a key belongs, never one in the value."""
    remedy = "give it as http://host:port or https://host"
    if not value.isprintable() or any(map(str.isspace, value)):
        raise ValueError(f"{name} holds a space or a control character; {remedy}")
    if any(mark in value for mark in "@?#"):  # before urllib looks: it takes part of some passwords for a path
        raise ValueError(
            f"{name} carries a user, password, query or fragment ({public_url(value)}); put the key into {key_variable}"
        )
    try:
        parts = urlsplit(value)
        host = parts.hostname
        _ = parts.port  # raises for a port that is no number
        _ = (host or "").encode("idna")  # as a client will: an empty label, one that is too long
    except ValueError:  # its text quotes what may be a password; UnicodeError among them
        raise ValueError(f"{name} is not a URL: its host or port cannot be read; {remedy}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(f"{name}={value!r} is not an http(s) URL; {remedy}")
    return value.rstrip("/")


def check_key(name: str, value: str) -> str:
    """The key as it is; ValueError names the variable and never the key."""
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError(f"{name} holds a space, a control or a non-ASCII character; copy the key again")
    return value


def _collection(name: str, value: str) -> str:
    if value in (".", "..") or "/" in value or len(value) > 255:
        raise ValueError(f"{name}={value!r} cannot be a collection's name; give the name Qdrant lists")
    return value


def _number(name: str, value: str) -> float:
    try:
        number = math.nan if "_" in value else float(value)  # 1_0 is ten to Python, and a slip to everybody else
    except ValueError:
        number = math.nan
    if not 0 <= number <= MOST_SECONDS:
        raise ValueError(f"{name}={value!r:.60} is not a number of seconds; give 0 to {MOST_SECONDS:,}, as 60")
    return number


def _seconds(name: str, value: str) -> float:
    return _number(name, value)


def _positive_seconds(name: str, value: str) -> float:
    number = _number(name, value)
    if number < 1:
        raise ValueError(f"{name}={value!r} is too short for a request; give at least 1 second")
    return number


def _count(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()) or len(value) > 9 or not 1 <= int(value) <= 4096:
        raise ValueError(f"{name}={value!r:.60} is not a batch size; give a whole number from 1 to 4096")
    return int(value)


def _on_off(name: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise ValueError(f"{name}={value!r} is unknown; give on or off")
    return value == "on"


def _prompt(name: str, value: str) -> str:
    if value not in PROMPT_STYLES:
        raise ValueError(f"{name}={value!r} is no prompt style; give one of {', '.join(PROMPT_STYLES)}")
    return value
