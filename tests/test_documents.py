"""README, .env.example and Makefile say what the code does."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from commands import ROOT

from swift_plugin.settings import known_variables
from tests.launch_world import LaunchWorld, build_world

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


def launcher_commands() -> list[str]:
    """Every launcher call of the README's code blocks, and the flags of the rounds' table on the GRPO launcher."""
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL))
    calls = re.findall(r"^((?:[A-Z_]+=\S+ )*bash run_\w+\.sh[^#\n]*)", blocks, flags=re.MULTILINE)
    rounds = re.findall(r"^\| r\d \| `(--[^`]*)`", README, flags=re.MULTILINE)
    return [call.strip() for call in calls] + [f"bash run_grpo_planner.sh {flags}" for flags in rounds]


@pytest.fixture(scope="module")
def launch_world(tmp_path_factory: pytest.TempPathFactory) -> LaunchWorld:
    return build_world(tmp_path_factory.mktemp("launch"))


def test_the_readme_has_the_rounds_the_variants_and_the_launchers() -> None:
    calls = launcher_commands()
    assert len(calls) >= 10
    for piece in ("--beta 0.03", "field=0.40", "dr_grpo", "--epsilon_high", "run_sft_planner", "rollout_server"):
        assert any(piece in call for call in calls), piece


@pytest.mark.parametrize("call", launcher_commands())
def test_every_launcher_command_of_the_readme_is_accepted(call: str, launch_world: LaunchWorld) -> None:
    words = shlex.split(call)
    at = words.index("bash")
    variables = dict(word.split("=", 1) for word in words[:at])
    done = launch_world.run(words[at + 1], *words[at + 2 :], DRY_RUN="1", TRAIN_GPUS="0,1,2,3", **variables)
    assert done.returncode == 0, done.stderr
    printed = shlex.split(done.stdout.strip().splitlines()[-1])
    assert all(word in printed for word in words[at + 2 :])  # the user's flags stand in the command
