"""README, .env.example and Makefile say what the code does."""

import re
import subprocess
from pathlib import Path

import pytest
from commands import ROOT

from swift_plugin.settings import known_variables

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_environment_lists_every_variable_once() -> None:
    lines = (ROOT / ".env.example").read_text(encoding="utf-8").splitlines()
    listed = re.findall(r"^#([A-Z_]+)=", "\n".join(lines), flags=re.MULTILINE)
    assert sorted(listed) == sorted(known_variables())
    assert not [line for line in lines if line and not line.startswith("#")]  # an example sets nothing


def test_the_environment_file_is_ignored() -> None:
    done = subprocess.run(["git", "check-ignore", "-q", ".env"], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_every_variable_the_readme_names_exists() -> None:
    named = set(re.findall(r"\b(?:PLANNER|QDRANT)_[A-Z_]+\b", README))
    assert named and named <= known_variables().keys()


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\b(?:scripts|swift_plugin|data|reward)/[\w./-]+\w", README))))
def test_every_file_the_readme_names_exists(path: str) -> None:
    if path in ("data/sft.jsonl", "data/grpo.jsonl", "data/watch.jsonl", "data/dev92.jsonl"):
        return  # the user's own sets on the box
    assert (ROOT / path).exists()


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z][a-z-]*)\b", README)) - {"and"} <= targets


def test_the_short_prompt_is_short() -> None:
    # One nano token is at least one character of these files, so the count of characters bounds the tokens.
    assert len(Path(ROOT / "data" / "prompts" / "short.txt").read_text(encoding="utf-8").strip()) <= 40
