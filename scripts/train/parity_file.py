"""The report of verify_embed_parity.py as preflight judges it: of which encoders and collection it speaks, how old."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from swift_plugin.encoders import embeddings_url
from swift_plugin.settings import Settings, public_url

FORMAT = 1
PASS, FAIL = "pass", "fail"
MAX_AGE_DAYS = 7
CLOCK_SKEW = timedelta(hours=1)
COMMAND = "python scripts/train/verify_embed_parity.py A B --texts FILE"

Identity = dict[str, str | None]


def encoder_identity(settings: Settings) -> Identity:
    """What tells encoders apart: the kind, the model (a folder by its full path) and the address; no secret.

    >>> encoder_identity(Settings())
    {'kind': 'hashed', 'model': None, 'url': None}
    """
    if settings.embed_url:
        url = public_url(embeddings_url(settings.embed_url))
        return {"kind": "endpoint", "model": settings.embed_model, "url": url}
    if settings.embed_model:
        folder = Path(settings.embed_model).expanduser()
        return {
            "kind": "FlagEmbedding",
            "model": str(folder.resolve()) if folder.is_dir() else settings.embed_model,
            "url": None,
        }
    return {"kind": "hashed", "model": None, "url": None}


def collection_identity(settings: Settings) -> Identity:
    """What tells collections apart: the store's kind, its address or folder, and the collection's name."""
    if settings.qdrant_url:
        return {"kind": "qdrant", "where": public_url(settings.qdrant_url), "name": settings.collection}
    return {"kind": "edge", "where": str(settings.store_dir.resolve()), "name": None}


def shown(identity: Identity) -> str:
    """An identity in one line."""
    return " ".join(value for value in identity.values() if value)


def load_report(path: Path) -> dict[str, Any]:
    """The report at `path`; raises FileNotFoundError or ValueError naming the remedy."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no parity report at {path}: make it with {COMMAND} --json {path}")
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        if report["format"] != FORMAT:
            raise ValueError(f"format {report['format']}")
        identities = (report["a"]["encoder"], report["b"]["encoder"], report["collection"]["identity"])
        if not all(isinstance(identity, dict) for identity in identities) or not isinstance(report["verdict"], str):
            raise ValueError("the verdict is no text, or an identity no object")
        made = datetime.fromisoformat(report["made"])
        if made.tzinfo is None:
            raise ValueError(f"{report['made']} names no time zone")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no parity report ({error!r}): make it again with {COMMAND}") from None
    return {**report, "made": made}


def report_faults(report: Mapping[str, Any], settings: Settings, now: datetime) -> list[str]:
    """Why this report (of `load_report`) does not vouch for a run with these settings; empty if it does."""
    faults = []
    if report["verdict"] != PASS:
        faults.append(f"its verdict is {report['verdict']}: encode with what filled the store")
    age = now - report["made"]
    if age > timedelta(days=MAX_AGE_DAYS):
        faults.append(f"it was made on {report['made'].date()}, more than {MAX_AGE_DAYS} days ago: make it again")
    elif age < -CLOCK_SKEW:
        faults.append(f"it was made in the future ({report['made'].isoformat()}): correct the clock, make it again")
    encoder = encoder_identity(settings)
    if encoder not in (report["a"]["encoder"], report["b"]["encoder"]):
        compared = " and ".join(shown(report[side]["encoder"]) for side in "ab")
        faults.append(f"it compares {compared}, but this run encodes with {shown(encoder)}: compare that one")
    collection = collection_identity(settings)
    if collection != report["collection"]["identity"]:
        searched = shown(report["collection"]["identity"])
        faults.append(f"it searched {searched}, but this run searches {shown(collection)}: compare on that one")
    return faults


def utc_now() -> datetime:
    """Now, with its time zone."""
    return datetime.now(timezone.utc)
