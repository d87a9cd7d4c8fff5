"""`make setup`: what it installs, once, and that it leaves the versions of a GPU environment alone."""

import subprocess
from pathlib import Path

import pytest

from tests.launch_world import CHECKOUT, clean_environment

# Stands for python: notes what it is called with; `-m venv FOLDER` puts a copy of it into FOLDER/bin.
FAKE_PYTHON = """#!/bin/sh
echo "$*" >>"$CALLS"
if [ "$1 $2" = "-m venv" ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; fi
"""


@pytest.mark.parametrize(
    ("made_by_hand", "installed"),
    [
        (None, "-c constraints.txt -e .[dev,bge,pretrained]"),
        ("numpy", "-c constraints.txt -e .[dev,bge,pretrained]"),  # what an interrupted set-up leaves
        ("vllm", "-c constraints-gpu.txt -e .[dev,bge,pretrained,gpu]"),
    ],
)
def test_the_versions_fit_what_is_there(tmp_path: Path, made_by_hand: str | None, installed: str) -> None:
    python, venv, calls = tmp_path / "python", tmp_path / "venv", tmp_path / "calls"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    if made_by_hand:
        (venv / "lib" / "python3.11" / "site-packages" / made_by_hand).mkdir(parents=True)
    command = ["make", "setup", f"PYTHON={python}", f"VENV={venv}"]
    for _ in range(2):  # the second finds it done
        done = subprocess.run(
            command, cwd=CHECKOUT, env={**clean_environment(), "CALLS": str(calls)}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    (line,) = [line for line in calls.read_text().splitlines() if "pip install" in line]
    assert line.endswith(installed)
