"""README, pages, .env.example and Makefile say what the code does, and every command on a page is accounted for."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from commands import ROOT
from documents import SHELLS, Command, all_commands, anchors, blocks, inline_code, options_of, pages
from small_world import golden

from scripts.eval.online_log import REQUIRED, TITLES
from swift_plugin.reward_loader import REQUIRED_NAMES, load_reward
from swift_plugin.settings import Settings, known_variables
from tests.launch_world import LaunchWorld, build_world

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_environment_lists_every_variable_once() -> None:
    lines = (ROOT / ".env.example").read_text(encoding="utf-8").splitlines()
    listed = re.findall(r"^#([A-Z_]+)=", "\n".join(lines), flags=re.MULTILINE)
    assert sorted(listed) == sorted(known_variables())
    assert not [line for line in lines if line and not line.startswith("#")]  # an example sets nothing


def test_the_values_of_the_example_environment_are_the_defaults_but_where_it_says_example() -> None:
    """Who takes the lines one by one gets the reward and the store that the kit has without them."""
    text = (ROOT / ".env.example").read_text(encoding="utf-8")
    shown = {
        name: value for name, value, note in re.findall(r"(?m)^#([A-Z_]+)=(\S*)(.*)$", text) if "example" not in note
    }
    read = {**shown, "PLANNER_REWARD_FILE": str(ROOT / shown["PLANNER_REWARD_FILE"])}
    read |= {"PLANNER_STORE_DIR": str(ROOT / shown["PLANNER_STORE_DIR"]), "PLANNER_EMBED_MODEL": ""}
    assert Settings.from_env(read) == Settings.from_env({})
    reward = load_reward(Settings().reward_file)
    assert reward.weights_from_env(read) == reward.weights_from_env({}) and reward.gates_from_env(read) == ()
    headers = "\n".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("run_*.sh")))
    for name, value in shown.items():
        if (named := re.search(rf"(?m)^#   {name} .*\((\S+)\)$", headers)) is not None:
            assert value == {"none": ""}.get(named[1], named[1]), name


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


# ------------------------------------------------------------------------------- every page: commands, links, options

# The test that runs a script: a command on a page that starts a script not listed here has to be marked where it
# stands (documents.MARK), or fails the test below.
TESTED_BY = {
    "scripts/catalog/index_catalog.py": "test_index_catalog.py",
    "scripts/catalog/restore.py": "test_snapshot.py",
    "scripts/catalog/snapshot.py": "test_snapshot.py",
    "scripts/eval/accept_end_to_end.py": "test_acceptance.py",
    "scripts/eval/analyze_grpo_log.py": "test_analyze_grpo_log.py",
    "scripts/eval/calibrate_reward.py": "test_calibrate_reward.py",
    "scripts/eval/compare_runs.py": "test_compare_runs.py",
    "scripts/eval/eval_planner.py": "test_eval_planner.py",
    "scripts/eval/eval_planner_format.py": "test_eval_format.py",
    "scripts/eval/regression_guard.py": "test_regression_guard.py",
    "scripts/eval/report.py": "test_report.py",
    "scripts/eval/score_online_log.py": "test_score_online_log.py",
    "scripts/eval/should_i_train.py": "test_should_i_train.py",
    "scripts/labs/dataset_lab.py": "test_labs.py",
    "scripts/labs/grpo_lab.py": "test_labs.py",
    "scripts/labs/lora_lab.py": "test_labs.py",
    "scripts/labs/mdp_lab.py": "test_labs.py",
    "scripts/labs/reward_lab.py": "test_labs.py",
    "scripts/labs/reward_map.py": "test_labs.py",
    "scripts/online/load_test.py": "test_load_test.py",
    "scripts/online/merge_adapter.py": "test_merge_adapter.py",
    "scripts/train/doctor.py": "test_doctor.py",
    "scripts/train/embed_server.py": "test_embed_server.py",
    "scripts/train/gpu_profile.py": "test_gpu_profile.py",
    "scripts/train/rollout_profile.py": "test_rollout_profile.py",
}
# Commands that start no script of ours, run below as they stand or by what they do elsewhere.
OTHER = {
    "make demo": "test_stages.py",
    "make test": "this run",
    "cp reward/planner_reward.py build/my_reward.py": "test_the_example_of_the_reward_page_is_accepted",
}
# Pages whose launcher commands another test dry-runs.
PAGES_TESTED_BY = {"docs/more-than-one-box.md": "test_more_boxes.py", "docs/run-on-your-box.md": "test_more_boxes.py"}
LAUNCHERS_TESTED_BY = {"run_planner_server.sh": "test_serving.py", "scripts/train/box_check.sh": "test_box_check.py"}

COMMANDS = all_commands()


def named(command: Command) -> str:
    return f"{command.page}: {command.text}"


@pytest.mark.parametrize("command", COMMANDS, ids=named)
def test_every_command_is_run_by_a_test_or_marked(command: Command) -> None:
    if command.words[0] == "export":
        return  # its variables are checked below
    if command.launcher in LAUNCHERS:
        return  # dry-run below
    for name, table in ((command.script, TESTED_BY), (command.launcher, LAUNCHERS_TESTED_BY), (command.text, OTHER)):
        if name in table:
            assert name == command.text or Path(str(name)).stem in (ROOT / "tests" / table[name]).read_text("utf-8")
            return
    if command.marked:
        return
    pytest.fail(
        f"{named(command)}\nno test is listed for it in tests/test_documents.py, and nothing where it stands says that "
        "it needs a GPU, the network or a service (tests/documents.py, MARK)"
    )


@pytest.mark.parametrize("command", [one for one in COMMANDS if one.script or one.launcher], ids=named)
def test_scripts_and_their_options_exist(command: Command) -> None:
    script = command.script or command.launcher
    assert script is not None and (ROOT / script).is_file()
    if command.script:
        given = {word.split("=")[0] for word in command.words[2:] if re.fullmatch(r"--?[a-zA-Z][\w-]*(=.*)?", word)}
        assert given - {"--help"} <= options_of(script), given - options_of(script)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_inline_commands_have_their_scripts_and_options(page: Path) -> None:
    for code in inline_code(page):
        found = re.match(r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?python3? (scripts/\S+\.py)(.*)", code)
        if found:
            given = set(re.findall(r"(?<= )--[a-z][\w-]*", found.group(2)))
            assert (ROOT / found.group(1)).is_file(), code
            assert given - {"--help"} <= options_of(found.group(1)), code


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_commands_stand_in_blocks_that_say_so(page: Path) -> None:
    starts = re.compile(r"(?:[A-Z_]+=\S+ )*(?:\S*python3?|bash|make|docker|curl|pip|export|cp|git) ", re.MULTILINE)
    for block in blocks(page):
        if block.language not in SHELLS:
            assert not starts.match(block.text), f"{block.page}: label this block bash:\n{block.text}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_link_and_variable_of_a_page_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        linked = page.parent / file if file else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}"
    variables = set(re.findall(r"\b(?:PLANNER|QDRANT)_[A-Z_]*[A-Z]\b", text))
    assert variables <= known_variables().keys(), variables - known_variables().keys()


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_pages_name_nothing_outside_the_repository(page: Path) -> None:
    assert not re.search(r"(?:^|[\s`(])/(?:tmp|home|root|work)/", page.read_text(encoding="utf-8"))


READMES = ("README.md", "README.zh.md")  # dry-run above; that both hold the same commands is tested below
LAUNCHERS = ("run_sft_planner.sh", "run_grpo_planner.sh", "run_grpo_rollout_server.sh")
DRY = [one for one in COMMANDS if one.launcher in LAUNCHERS and one.page not in (*READMES, *PAGES_TESTED_BY)]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the checkout, whose build/ may be written to."""
    folder = tmp_path_factory.mktemp("checkout")
    for entry in ROOT.iterdir():
        if entry.name not in ("build", "runs", ".git"):
            (folder / entry.name).symlink_to(entry)
    (folder / "build").mkdir()
    return folder


def distinct(found: list[Command]) -> list[Command]:
    """One of the commands that say the same."""
    return list({(one.variables, one.words): one for one in found}.values())


@pytest.mark.parametrize("command", distinct(DRY), ids=named)
def test_launcher_commands_of_the_pages_are_accepted(
    command: Command, launch_world: LaunchWorld, checkout: Path
) -> None:
    variables = dict(command.variables)
    if "PLANNER_REWARD_FILE" in variables:
        subprocess.run(shlex.split(REWARD_COPY), cwd=checkout, check=True)
    done = subprocess.run(
        [*command.words], cwd=checkout, capture_output=True, text=True, timeout=240, check=False,
        env=launch_world.environment({**variables, "DRY_RUN": "1", "TRAIN_GPUS": "0,1,2,3"}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = shlex.split(done.stdout.strip().splitlines()[-1])
    assert all(word in printed for word in command.words[2:])


REWARD_COPY = "cp reward/planner_reward.py build/my_reward.py"


def test_the_example_of_the_reward_page_is_accepted(checkout: Path) -> None:
    page = ROOT / "docs" / "write-your-reward.md"
    assert REWARD_COPY in page.read_text(encoding="utf-8")
    subprocess.run(shlex.split(REWARD_COPY), cwd=checkout, check=True)
    copied = load_reward(checkout / "build" / "my_reward.py")
    for name in REQUIRED_NAMES:
        assert f"`{name}`" in page.read_text(encoding="utf-8")
    (example,) = [block.text for block in blocks(page) if block.language == "python"]
    names = {"plan": None, "golden": golden(), "text": "想买跑鞋", "titles": []}
    exec(example, {**vars(copied), **names})  # the page's own lines, on a completion without a plan


def test_the_log_line_on_the_page_is_one() -> None:
    (example,) = [b.text for b in blocks(ROOT / "docs" / "read-a-run.md") if b.language == "json"]
    row = json.loads(example)
    assert set(REQUIRED) <= row.keys() and TITLES in row


# --------------------------------------------------------------------------------------------- the Chinese README

CHINESE = ROOT / "README.zh.md"


def sections(text: str) -> list[str]:
    """What stands between headings of the second level, without the heading lines."""
    return [part.split("\n", 1)[1] for part in re.split(r"^(?=## )", text, flags=re.MULTILINE)]


def numbers(text: str) -> list[str]:
    return sorted(re.findall(r"\d+(?:[.,]\d+)*", text))


def test_both_readmes_have_the_same_structure_and_numbers() -> None:
    english, chinese = sections(README), sections(CHINESE.read_text(encoding="utf-8"))
    assert len(english) == len(chinese)
    for number, (one, other) in enumerate(zip(english, chinese, strict=True)):
        assert numbers(one) == numbers(other), f"section {number}: the figures of README.zh.md are not README.md's"
        shapes = [[len(re.findall(shape, part, re.MULTILINE)) for shape in (r"^\|", r"^- ", r"^```")]
                  for part in (one, other)]  # fmt: skip
        assert shapes[0] == shapes[1], f"section {number}: table rows, points and blocks"


def test_both_readmes_have_the_same_commands() -> None:
    found = {name: [one for one in COMMANDS if one.page == name] for name in READMES}
    pairs = [[(one.variables, one.words) for one in side] for side in found.values()]
    assert pairs[0] == pairs[1] and len(pairs[0]) > 10
