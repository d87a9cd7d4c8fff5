"""Catalogues of any size and an embeddings endpoint of eight numbers a text: for the tests of scripts/catalog."""

import csv
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ROOT, clean_environment
from embeddings_server import EmbeddingsServer
from faulty_http import Fault

from swift_plugin.encoders import unit_rows

DIM = 8
Rows = list[dict[str, Any]]


class TinyEncoder:
    """A text's vector comes from its sha256: the same everywhere, and no two texts alike."""

    name = "tiny"
    dim = DIM

    def __init__(self, salt: str = "") -> None:
        self._salt = salt

    def encode(self, texts: Sequence[str]) -> Any:
        digests = [hashlib.sha256((self._salt + text).encode()).digest()[:DIM] for text in texts]
        return unit_rows(np.array([list(digest) for digest in digests], dtype=np.float32) - 127.5)


class TinyEmbeddings(EmbeddingsServer):
    """The endpoint; another `salt` is another model of the same size."""

    def __init__(self, salt: str = "") -> None:
        super().__init__()
        self._encoder = TinyEncoder(salt)  # type: ignore[assignment]

    def texts(self) -> list[str]:
        """Every text it was asked for, less the client's question for the size."""
        asked = [text for request in self.requests for text in request.body["input"]]
        return [text for text in asked if text != "size"]


def rows(count: int) -> Rows:
    """So many different items: every third without a price, every fifth without a category."""
    made: Rows = []
    for number in range(count):
        row: dict[str, Any] = {"title": f'item {number}, 27" wide'}
        if number % 5:
            row["category"] = f"c{number % 7}"
        if number % 3:
            row["price"] = number + 0.5
        made.append(row)
    return made


def write_csv(path: Path, items: Rows) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["title", "category", "price"])
        writer.writeheader()
        writer.writerows(items)
    return path


def write_jsonl(path: Path, items: Rows) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in items), encoding="utf-8")
    return path


def set_environment(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """The kit's variables as given, and no others of the person who runs the tests."""
    for name in os.environ:
        if name.startswith(("PLANNER_", "QDRANT_")):
            monkeypatch.delenv(name)
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def start(script: str, *arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
    """One of the catalogue's commands as a process."""
    command = [sys.executable, f"scripts/catalog/{script}", *map(str, arguments)]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**clean_environment(), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_at_request(process: subprocess.Popen[str], server: EmbeddingsServer, number: int) -> None:
    """`kill -9` while the endpoint holds back its answer number `number`. Call `stall_at` before the start."""
    deadline = time.monotonic() + 60
    while len(server.requests) < number:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, f"only {len(server.requests)} requests"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def stall_at(server: EmbeddingsServer, number: int) -> None:
    """Answer `number` - 1 requests and hold back the next one."""
    server.fail(*[Fault()] * (number - 1), Fault(stall_s=60))
