"""The product's real commands, run as a person would, and a nano world for them to run on."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def clean_environment() -> dict[str, str]:
    """This process's environment without the kit's own variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PLANNER_", "QDRANT_"))}


def run(command: list[str], environment: Mapping[str, str], *, code: int = 0) -> str:
    """Run a command of the product and return what it printed; fails showing the end of it."""
    env = {**clean_environment(), **environment}
    done = subprocess.run(command, cwd=ROOT, env=env, text=True, capture_output=True, timeout=900, check=False)
    printed = done.stdout + done.stderr
    assert done.returncode == code, f"{command} ended with {done.returncode}\n{printed[-4000:]}"
    return printed


@dataclass(frozen=True)
class World:
    """`folder` holds the request sets, `nano` and `store`; `environment` makes the commands use them."""

    folder: Path
    environment: dict[str, str]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of a JSONL file of the world."""
        return [json.loads(line) for line in (self.folder / name).read_text(encoding="utf-8").splitlines()]
