"""May encoder B stand in for encoder A? Both encode the same texts and search the same collection.

A is the encoder that filled the collection. An encoder is spelled as the settings spell it: a FlagEmbedding folder or
hub name (PLANNER_EMBED_MODEL), an address (PLANNER_EMBED_URL; #MODEL behind it names another model than the setting),
or `hashed`. The collection is that of QDRANT_URL and QDRANT_COLLECTION, or PLANNER_STORE_DIR. PLANNER_EMBED_API_KEY is
sent to the address that PLANNER_EMBED_URL names and to no other.

B passes with a mean cosine of at least 0.999, a mean top-20 overlap of at least 95 % and the same first title for at
least 99 % of the texts. Exit codes: 0 it passes; 1 it does not; 2 nothing could be compared.

PLANNER_PARITY_FILE set to the JSON file makes GRPO's preflight demand it.
"""

import argparse
import dataclasses
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from scripts.catalog.catalog_items import SURROGATE
from scripts.catalog.filled_by import check_related
from scripts.files import write_atomically
from scripts.train.embed_parity import Compared, acceptance, compare, figures, worst
from scripts.train.parity_file import (
    FAIL,
    FORMAT,
    PASS,
    collection_identity,
    encoder_identity,
    shown,
    utc_now,
)
from swift_plugin.encoders import Encoder, EncoderError, Vectors, embeddings_url, make_encoder
from swift_plugin.reward_loader import load_reward
from swift_plugin.settings import CHECKOUT, DEFAULT_EMBED_MODEL, Settings, check_url
from swift_plugin.stores import EdgeStore, QdrantStore, Store, StoreError, StoreInfo, check_store, make_store
from swift_plugin.trace import is_trace, open_trace

HASHED = "hashed"
TEXT_KEYS = ("search", "title", "text")  # of a reward trace, a catalogue, a request set; the first one present counts
FEWEST_TEXTS = 100  # with fewer a single text decides the line of 99 %
DEFAULT_TEXTS = 1000
logger = logging.getLogger("verify_embed_parity")
BATCH = 256  # texts between two moves of the progress bar


class Side(NamedTuple):
    """One of the two encoders and what identifies it."""

    encoder: Encoder
    identity: dict[str, str | None]


def side_settings(settings: Settings, spelled: str) -> Settings:
    """The settings that make the encoder `spelled` on the command line. Raises ValueError for a bad address."""
    if spelled == HASHED:
        return dataclasses.replace(settings, embed_url=None, embed_model=None, embed_api_key=None)
    if "://" not in spelled:
        return dataclasses.replace(settings, embed_url=None, embed_model=spelled, embed_api_key=None)
    address, _, model = spelled.partition("#")
    url = check_url("the encoder", address, "PLANNER_EMBED_API_KEY")
    is_set = settings.embed_url is not None and embeddings_url(settings.embed_url) == embeddings_url(url)
    return dataclasses.replace(
        settings,
        embed_url=url,
        embed_model=model or (settings.embed_model if is_set else None) or DEFAULT_EMBED_MODEL,
        embed_api_key=settings.embed_api_key if is_set else None,  # one service's key is not another's
    )


def read_texts(path: Path, limit: int) -> list[str]:
    """At most `limit` distinct texts of a file, evenly spread over it: JSON lines, or plain text with one a line.

    Raises ValueError for a row without a text and for a file with too few. Of a reward trace half a line, as a killed
    run leaves, is left out with a warning.
    """
    texts = list(dict.fromkeys(text for text in _all_texts(path) if text and text.strip()))
    if len(texts) > limit:
        texts = [texts[round(place)] for place in np.linspace(0, len(texts) - 1, limit)]
    if len(texts) < FEWEST_TEXTS:
        raise ValueError(f"{path} holds {len(texts)} distinct texts; {FEWEST_TEXTS} are the least that can be judged")
    return texts


def _all_texts(path: Path) -> Iterator[str | None]:
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    text_of_line = _json_text if suffixes[-1:] in ([".jsonl"], [".ndjson"]) else _plain_text
    with open_trace(path) as file:
        for number, raw in enumerate(file, 1):
            where = f"{path.name}:{number}"
            try:
                yield text_of_line(raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n"), where)
            except (UnicodeDecodeError, json.JSONDecodeError) as error:
                if not is_trace(path):
                    raise ValueError(f"{where}: {error}") from None
                logger.warning("%s is left out: half a line of a run that was killed (%s)", where, error)


def _plain_text(line: str, where: str) -> str:
    if line.startswith("{") and line.endswith("}"):
        raise ValueError(f"{where} is a JSON line in a file of plain text: name the file .jsonl")
    return line


def _json_text(line: str, where: str) -> str | None:
    if not line.strip():
        return None
    row = json.loads(line)
    key = next((key for key in TEXT_KEYS if isinstance(row, dict) and key in row), None)
    if key is None:
        raise ValueError(f"{where} has none of the keys {', '.join(TEXT_KEYS)}")
    text = row[key]
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{where}: {key} is no text ({text!r:.60})")
    if text is not None and not text.isascii() and SURROGATE.search(text):
        raise ValueError(f"{where}: {key} holds half a surrogate pair, which cannot be encoded ({text!a:.60})")
    return text  # a trace's search is null where nothing was parsed


def search(store: Store, vectors: Vectors, limit: int) -> list[list[str]]:
    """Titles for each row, best first; none for a zero row, which is near to nothing (as in the rollout)."""
    asked = np.flatnonzero(vectors.any(axis=1))
    found = dict(zip(asked.tolist(), store.search_batch(vectors[asked], limit) if len(asked) else [], strict=True))
    return [found.get(row, []) for row in range(len(vectors))]


def compare_encoders(a: Encoder, b: Encoder, store: Store, texts: Sequence[str], limit: int) -> list[Compared]:
    """Every text under both encoders; texts that neither can encode are left out."""
    compared: list[Compared] = []
    with tqdm(total=len(texts), unit="text", desc="parity") as bar:
        for start in range(0, len(texts), BATCH):
            chunk = texts[start : start + BATCH]
            rows_a, rows_b = a.encode(chunk), b.encode(chunk)
            known = rows_a.any(axis=1) | rows_b.any(axis=1)
            rows_a, rows_b = rows_a[known], rows_b[known]
            kept = [text for text, keep in zip(chunk, known, strict=True) if keep]
            compared += compare(kept, rows_a, rows_b, search(store, rows_a, limit), search(store, rows_b, limit))
            bar.update(len(chunk))
    return compared


def check_sides(a: Side, b: Side, store: EdgeStore | QdrantStore) -> tuple[StoreInfo, str | None]:
    """A belongs to the store, and B's vectors have its size; the store, and a remark on A's vectors in it.

    Raises StoreError, EncoderError or ValueError.
    """
    if a.identity == b.identity:
        raise ValueError(f"A and B are both {shown(a.identity)}: an encoder agrees with itself")
    info = check_store(store, a.encoder)
    remark = check_related(a.encoder, store)
    if b.encoder.dim != info.vector_size:
        raise ValueError(f"B makes vectors of size {b.encoder.dim}, the collection holds size {info.vector_size}")
    return info, remark


def text_of(report: Mapping[str, Any]) -> str:
    """The report for people."""
    found, limit = report["figures"], report["top"]
    cosine, tau = found["cosine"], found["kendall_tau"]
    order = "unknown" if tau["mean"] is None else f"mean {tau['mean']:.4f}"
    lines = [f"CAUTION: {report['collection']['remark']}", ""] if report["collection"]["remark"] else []
    lines += [
        f"A {shown(report['a']['encoder'])}",
        f"B {shown(report['b']['encoder'])}",
        f"collection {shown(report['collection']['identity'])}, {report['collection']['points']:,} points",
        f"{found['texts']} texts of {report['texts']['file']}",
        "",
        f"cosine            mean {cosine['mean']:.5f}   p1 {cosine['p1']:.5f}   min {cosine['min']:.5f}",
        f"top-{limit} overlap    mean {found['overlap']['mean']:.2%}   min {found['overlap']['min']:.2%}",
        f"top-1 agreement   {found['top1']['count']} of {found['top1']['of']} ({found['top1']['share']:.2%})",
        f"Kendall's tau     {order} ({tau['texts']} texts with two common titles)",
        "",
    ]
    for line in report["acceptance"]:
        lines.append(f"{'ok  ' if line['passed'] else 'FAIL'} {line['name']} {line['value']:.5f} >= {line['at_least']}")
    if report["worst"]:
        lines += ["", f"the {len(report['worst'])} texts that differ most:"]
    for one in report["worst"]:
        lines.append(f"  overlap {one['overlap']:.0%}  cosine {one['cosine']:.5f}  {one['text'][:80]!r}")
        if not one["same_first"]:
            lines.append(f"    first title A {one['first_a']!r}, B {one['first_b']!r}")
    return "\n".join([*lines, "", f"verdict: {report['verdict']}"])


def make_report(args: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """Compare and return the report, JSON-ready. Raises OSError, ValueError, StoreError or EncoderError."""
    reward = load_reward(settings.reward_file)
    texts = read_texts(args.texts, args.limit)
    a, b = (
        Side(make_encoder(made, reward.words), encoder_identity(made))
        for made in (side_settings(settings, spelled) for spelled in (args.a, args.b))
    )
    store = make_store(settings)
    try:
        info, remark = check_sides(a, b, store)
        compared = compare_encoders(a.encoder, b.encoder, store, texts, reward.TOP_TITLES)
    finally:
        store.close()
    found = figures(compared)
    lines = acceptance(found)
    return {
        "format": FORMAT,
        "verdict": PASS if all(line["passed"] for line in lines) else FAIL,
        "made": utc_now().isoformat(timespec="seconds"),
        "a": {"encoder": a.identity, "dim": a.encoder.dim},
        "b": {"encoder": b.identity, "dim": b.encoder.dim},
        "collection": {"identity": collection_identity(settings), "points": info.points, "remark": remark},
        "texts": {"file": str(args.texts), "asked": len(texts), "left_out": len(texts) - len(compared)},
        "top": reward.TOP_TITLES,
        "figures": found,
        "acceptance": lines,
        "worst": [dataclasses.asdict(one) for one in worst(compared)],
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/train/verify_embed_parity.py https://api.example.com/v1#bge-m3 "
        "http://127.0.0.1:8081/v1 \\\n    --texts runs/NAME/reward_trace.rank0.jsonl",
    )
    parser.add_argument("a", metavar="A", help="the encoder that filled the collection")
    parser.add_argument("b", metavar="B", help="the one to put in its place")
    parser.add_argument(
        "--texts", type=Path, required=True, metavar="FILE",
        help=f"JSON lines with {' or '.join(TEXT_KEYS)} (a reward trace holds real searches), or a text a line",
    )  # fmt: skip
    parser.add_argument("--limit", type=_limit, default=DEFAULT_TEXTS, help="texts at most (default: %(default)s)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", default=CHECKOUT / "build" / "embed_parity.json",
        help="report for preflight and for machines (default: build/embed_parity.json)",
    )  # fmt: skip
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s", stream=sys.stderr)
    try:
        report = make_report(args, Settings.from_env())
        write_atomically(args.json, json.dumps(report, ensure_ascii=False, indent=2) + "\n")
    except (OSError, ValueError, StoreError, EncoderError) as error:
        print(f"verify_embed_parity: {error}", file=sys.stderr)
        return 2
    print(f"{text_of(report)}\nreport: {args.json}")
    return 0 if report["verdict"] == PASS else 1


def _limit(text: str) -> int:
    if not text.isdecimal() or int(text) < FEWEST_TEXTS:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of {FEWEST_TEXTS} or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
