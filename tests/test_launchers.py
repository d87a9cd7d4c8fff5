"""The launchers as a user calls them, in a copy of the checkout whose path holds a space."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from scripts.train.swift_args import parse
from swift_plugin.settings import VARIABLES
from tests.launch_world import CHECKOUT, LaunchWorld, build_world, write_adapter

SCRIPTS = ("run_sft_planner.sh", "run_grpo_planner.sh", "run_grpo_rollout_server.sh")
SFT, GRPO, ROLLOUT = SCRIPTS
COMMANDS = {SFT: "sft", GRPO: "rlhf", ROLLOUT: "rollout"}
BOX = {"TRAIN_GPUS": "0,1,2,3"}

# Stands for ms-swift's executable: says what it was called with, leaves a process in a session of its own behind (as
# torchrun leaves ranks), and ends as FAKE_SWIFT asks. Only the executable is a stand-in; the kit's own parts are real.
FAKE_SWIFT = """#!{python}
import json, os, subprocess, sys, time
names = ("CUDA_VISIBLE_DEVICES", "NPROC_PER_NODE", "PYTHONPATH", "ACCELERATE_USE_CPU")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
called = {{"argv": sys.argv[1:], "child": child.pid, "env": {{n: os.environ.get(n) for n in names}}}}
print("FAKE SWIFT TRAINS", flush=True)
with open(os.environ["FAKE_OUT"] + ".partial", "w") as out:
    json.dump(called, out)
os.replace(os.environ["FAKE_OUT"] + ".partial", os.environ["FAKE_OUT"])
if os.environ["FAKE_SWIFT"] == "wait":
    time.sleep(600)
raise SystemExit(int(os.environ["FAKE_SWIFT"]))
"""


@dataclass(frozen=True)
class Copy:
    """A copy of the checkout, with a stand-in for the swift executable beside a real python."""

    root: Path
    world: LaunchWorld

    @property
    def python(self) -> Path:
        return self.root / "env" / "bin" / "python"

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        made = self.world.environment({"PLANNER_PYTHON": str(self.python), **variables})
        return {name: value for name, value in made.items() if value != "UNSET"}

    def run(self, script: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", str(self.root / script), *arguments],
            env=self.environment(variables), capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip

    def dry(self, script: str, *arguments: str, **variables: str) -> tuple[list[str], str]:
        """The command of a dry run as words, and what was said beside it."""
        done = self.run(script, *arguments, DRY_RUN="1", **variables)
        assert done.returncode == 0, done.stderr
        return shlex.split(done.stdout.strip().splitlines()[-1]), done.stderr

    def effective(self, script: str, *arguments: str, **variables: str) -> tuple[dict[str, str], dict[str, Any]]:
        """Variables and effective arguments of the command a dry run prints."""
        words, _ = self.dry(script, *arguments, **variables)
        at = words.index(COMMANDS[script])
        assert words[0] == "env" and words[at - 1].endswith("/bin/swift")
        given = dict(word.split("=", 1) for word in words[1 : at - 1])
        return given, parse(COMMANDS[script], words[at + 1 :]).values


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    base = tmp_path_factory.mktemp("launch")
    (base / "world").mkdir()
    world = build_world(base / "world")
    root = base / "check out"
    parse("sft", []), parse("rlhf", []), parse("rollout", [])  # the option tables travel along
    keep = shutil.ignore_patterns("__pycache__", "*.pyc", "row-lengths-*")
    for folder in ("scripts/train", "swift_plugin", "reward", "data/prompts", "build/cache"):
        shutil.copytree(CHECKOUT / folder, root / folder, ignore=keep)
    for name in ("scripts/__init__.py", *SCRIPTS):
        shutil.copy(CHECKOUT / name, root / name)
    made = Copy(root, world)
    made.python.parent.mkdir(parents=True)
    made.python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    swift = made.python.with_name("swift")
    swift.write_text(FAKE_SWIFT.format(python=sys.executable))
    for file in (made.python, swift):
        file.chmod(0o755)
    return made


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# --- the scripts themselves -------------------------------------------------------------------------------------------


def test_shellcheck_is_clean() -> None:
    files = [*SCRIPTS, "scripts/train/launch_common.sh"]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("shellcheck")), "-x", *files],
        cwd=CHECKOUT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_the_header(copy: Copy, script: str) -> None:
    done = copy.run(script, "--beta", "0", "--help")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].startswith(("Teach", "Train", "Serve"))
    assert "Variables" in done.stdout and "Hardware" in done.stdout and f"bash {script}" in done.stdout
    assert "set -euo" not in done.stdout


def test_every_launcher_variable_is_explained_in_a_header() -> None:
    headers = "".join((CHECKOUT / script).read_text().partition("set -euo")[0] for script in SCRIPTS)
    shell = "".join((CHECKOUT / name).read_text() for name in (*SCRIPTS, "scripts/train/launch_common.sh"))
    read = {variable.name for variable in VARIABLES if f"${{{variable.name}:-" in shell}
    assert {"PLANNER_MODEL", "PLANNER_SFT_ADAPTER", "TRAIN_GPUS", "DRY_RUN"} <= read
    assert {name for name in read if f"#   {name} " not in headers} == set()


# --- defaults and what wins over them ---------------------------------------------------------------------------------


def test_grpo_defaults_are_those_of_the_best_run(copy: Copy) -> None:
    given, args = copy.effective(GRPO)
    expected = {
        "rlhf_type": "grpo", "learning_rate": 2e-5, "beta": 0.0, "epsilon": 0.2, "num_generations": 8,
        "temperature": 1.0, "top_p": 0.95, "max_completion_length": 256, "lora_rank": 16, "lora_alpha": 32.0,
        "lora_dropout": 0.0, "target_modules": ["all-linear"], "tuner_type": "lora", "template": "qwen3_nothinking",
        "metric_for_best_model": "reward", "greater_is_better": True, "logging_steps": 1, "log_entropy": True,
        "save_steps": 20, "eval_steps": None, "report_to": ["tensorboard"], "check_model": False,
        "add_version": False, "split_dataset_ratio": 0.0, "use_vllm": False, "torch_dtype": "float32",
        "adapters": [str(copy.world.adapter)], "ref_adapters": [str(copy.world.adapter)],
        "dataset": [str(copy.world.train)], "val_dataset": [str(copy.world.watch)],
        "external_plugins": [str(copy.root / "swift_plugin" / "grpo_planner_plugin.py")],
        "reward_weights": [1.0] + [0.0] * 7,
    }  # fmt: skip
    assert {name: args[name] for name in expected} == expected
    assert args["reward_funcs"][0] == "planner_reward" and len(args["reward_funcs"]) == 8
    completions = args["per_device_train_batch_size"] * args["gradient_accumulation_steps"]
    assert completions == 64, "8 prompts of 8 completions"
    assert given["PYTHONPATH"].split(":")[0] == str(copy.root)
    assert given["CUDA_VISIBLE_DEVICES"] == "" and "NPROC_PER_NODE" not in given
    assert Path(args["output_dir"]).parent == copy.root / "runs"


def test_the_box_trains_on_four_gpus_against_the_server(copy: Copy) -> None:
    given, args = copy.effective(GRPO, "--beta", "0.01", **BOX, PLANNER_ROLLOUT_PORT="8123")
    expected = {
        "use_vllm": True, "vllm_mode": "server", "vllm_server_host": ["127.0.0.1"], "vllm_server_port": [8123],
        "torch_dtype": "bfloat16", "log_rollout_offpolicy_metrics": True, "beta": 0.01, "use_cpu": False,
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 8, "per_device_eval_batch_size": 8,
        "gradient_checkpointing": False, "device_map": None, "ddp_backend": None,
    }  # fmt: skip
    assert {name: args[name] for name in expected} == expected
    assert (given["CUDA_VISIBLE_DEVICES"], given["NPROC_PER_NODE"]) == ("0,1,2,3", "4")
    assert given["MASTER_PORT"].isdigit(), "two runs on one machine do not collide on torchrun's 29500"


VARIANTS: list[tuple[str, list[str], dict[str, str], dict[str, Any], str]] = [
    (GRPO, ["--learning_rate", "1e-6", "--beta", "0.03"], BOX, {"learning_rate": 1e-6, "beta": 0.03}, "r1"),
    (GRPO, ["--learning_rate=5e-6", "--beta=0"], BOX, {"learning_rate": 5e-6, "beta": 0.0}, "r4"),
    (GRPO, [], {**BOX, "PLANNER_REWARD_WEIGHTS": "field=0.40"}, {"learning_rate": 2e-5}, "r5, a mix experiment"),
    (GRPO, ["--loss_type", "dr_grpo", "--scale_rewards", "none"], BOX,
     {"loss_type": ["dr_grpo"], "scale_rewards": "none"}, "Dr. GRPO without sigma scaling"),
    (GRPO, ["--epsilon_high", "0.28", "--dynamic_sample", "true", "--overlong_filter", "true"], BOX,
     {"epsilon": 0.2, "epsilon_high": 0.28, "dynamic_sample": True, "overlong_filter": True}, "clip-higher, DAPO"),
    (GRPO, ["--scale_rewards", "gdpo"], BOX, {"scale_rewards": "gdpo"}, "GDPO"),
    (GRPO, ["--vllm_mode", "colocate"], {"TRAIN_GPUS": "0"},
     {"vllm_mode": "colocate", "vllm_server_host": None, "gradient_accumulation_steps": 32,
      "vllm_max_model_len": 2304}, "one GPU for both, room for one row's keys"),
    (GRPO, ["--use_vllm", "false"], {"TRAIN_GPUS": "0,1"}, {"use_vllm": False, "vllm_mode": None}, "GPUs, no vLLM"),
    (GRPO, [], {"TRAIN_GPUS": "0,1,2"}, {"gradient_accumulation_steps": 12}, "three GPUs: 72 are the next 9 x 8"),
    (GRPO, [], {"NPROC_PER_NODE": "2"},
     {"per_device_train_batch_size": 32, "ddp_backend": "gloo", "use_cpu": True}, "two processes on a CPU"),
    (GRPO, ["--tuner_type", "full"], {}, {"adapters": [], "ref_adapters": [], "tuner_type": "full"}, "full weights"),
    (GRPO, [], {"PLANNER_SFT_ADAPTER": "none"}, {"adapters": [], "tuner_type": "lora"}, "LoRA on a full SFT model"),
    (GRPO, ["--output-dir=/tmp/some where"], {}, {"output_dir": "/tmp/some where"}, "a path with a space"),
    (GRPO, [], {"PLANNER_MODEL": "UNSET", **BOX}, {"model": "Qwen/Qwen3-4B-Instruct-2507"}, "the box's own model"),
    (SFT, [], {}, {"learning_rate": 1e-4, "num_train_epochs": 3.0, "template": "qwen3_nothinking", "lora_rank": 16,
                   "lora_alpha": 32.0, "torch_dtype": "float32", "per_device_train_batch_size": 16}, "SFT, CPU"),
    (SFT, ["--num_train_epochs", "2"], BOX, {"num_train_epochs": 2.0, "torch_dtype": "bfloat16",
                                              "per_device_train_batch_size": 2}, "SFT, four GPUs"),
    (ROLLOUT, [], {}, {"host": "127.0.0.1", "port": 8000, "vllm_enable_lora": True, "vllm_max_lora_rank": 16,
                       "vllm_enable_prefix_caching": True, "vllm_data_parallel_size": 1}, "the server"),
    (ROLLOUT, [], {"PLANNER_LORA_RANK": "24"}, {"vllm_max_lora_rank": 32}, "the next rank that vLLM allows"),
    (ROLLOUT, ["--vllm_tensor_parallel_size", "2"], {"ROLLOUT_GPUS": "4,5"},
     {"vllm_data_parallel_size": 1, "vllm_tensor_parallel_size": 2}, "two GPUs for one copy"),
    (ROLLOUT, ["--port", "8100"], {"ROLLOUT_GPUS": "4,5"}, {"vllm_data_parallel_size": 2, "port": 8100}, "two copies"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "arguments", "variables", "expected", "reason"), VARIANTS)
def test_variants(
    copy: Copy, script: str, arguments: list[str], variables: dict[str, str], expected: dict[str, Any], reason: str
) -> None:
    _, args = copy.effective(script, *arguments, **variables)
    assert {name: args[name] for name in expected} == expected, reason


def test_a_rank_chosen_once_reaches_all_three(copy: Copy, tmp_path: Path) -> None:
    wide = str(write_adapter(tmp_path / "wide", r=64))
    ranks = {script: copy.effective(script, PLANNER_LORA_RANK="64", PLANNER_SFT_ADAPTER=wide)[1] for script in SCRIPTS}
    assert (ranks[SFT]["lora_rank"], ranks[SFT]["lora_alpha"]) == (64, 128.0)
    assert (ranks[GRPO]["lora_rank"], ranks[GRPO]["lora_alpha"]) == (64, 128.0)
    assert ranks[ROLLOUT]["vllm_max_lora_rank"] == 64


def test_the_users_arguments_come_last_and_unchanged(copy: Copy) -> None:
    mine = ["--beta", "0.01", "--system", "a 'b' $c", "--learning_rate=3e-5"]
    words, _ = copy.dry(GRPO, *mine)
    assert words[-len(mine) :] == mine


def test_a_secret_is_not_printed(copy: Copy) -> None:
    words, said = copy.dry(GRPO, "--hub_token", "helium-3")
    assert "helium-3" not in " ".join(words) + said


# --- hardware ---------------------------------------------------------------------------------------------------------


def nvidia_smi(folder: Path, text: str, code: int = 0) -> str:
    """A PATH on which nvidia-smi prints `text`: the machine's GPUs, without the machine."""
    folder.mkdir()
    file = folder / "nvidia-smi"
    file.write_text(f"#!/bin/sh\nprintf '%b' '{text}'\nexit {code}\n")
    file.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_gpus_are_detected(copy: Copy, tmp_path: Path) -> None:
    six = "".join(f"GPU {n}: NVIDIA GeForce RTX 4090 D (UUID: GPU-{n})\\n" for n in range(6))
    path = nvidia_smi(tmp_path / "six", six)
    given, args = copy.effective(GRPO, PATH=path)
    assert (given["CUDA_VISIBLE_DEVICES"], args["use_vllm"]) == ("0,1,2,3", True)
    given, args = copy.effective(GRPO, PATH=path, CUDA_VISIBLE_DEVICES="")
    assert (args["use_vllm"], args["torch_dtype"]) == (False, "float32"), "hidden GPUs are no GPUs"
    given, args = copy.effective(GRPO, PATH=path, CUDA_VISIBLE_DEVICES="-1")
    assert args["torch_dtype"] == "float32", "nor are those hidden by -1"
    given, args = copy.effective(GRPO, PATH=nvidia_smi(tmp_path / "broken", "No devices were found\\n", 9))
    assert args["torch_dtype"] == "float32", "a driver without GPUs is a CPU"


def test_gpus_asked_for_must_be_there(copy: Copy) -> None:
    done = copy.run(SFT, TRAIN_GPUS="0", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2 and "TRAIN_GPUS=0, but this machine's GPUs are: none" in done.stderr
    done = copy.run(SFT, TRAIN_GPUS="0", CUDA_VISIBLE_DEVICES="", DRY_RUN="1")
    assert done.returncode == 0 and "a real run would be refused" in done.stderr


# --- wrong use --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "arguments", "variables", "said", "reason"),
    [
        (GRPO, [], {"PLANNER_LORA_RANK": "sixteen"}, "PLANNER_LORA_RANK=sixteen", "no number"),
        (GRPO, [], {"PLANNER_LORA_RANK": "0"}, "PLANNER_LORA_RANK=0", "no rank"),
        (ROLLOUT, [], {"PLANNER_LORA_RANK": "1024"}, "above every rank vLLM serves", "nothing could serve it"),
        (ROLLOUT, [], {"PLANNER_ROLLOUT_PORT": "80a"}, "PLANNER_ROLLOUT_PORT=80a", "no port"),
        (GRPO, [], {"PLANNER_ROLLOUT_PORT": "65536"}, "PLANNER_ROLLOUT_PORT=65536", "no port either"),
        (GRPO, [], {"DRY_RUN": "yes"}, "give 1 to print", "a dry run misspelt must not train"),
        (GRPO, [], {"PLANNER_PYTHON": "/no/python"}, "PLANNER_PYTHON", "no Python there"),
        (GRPO, [], {"PLANNER_PYTHON": "/bin/sh"}, "no swift beside /bin/sh", "an environment without ms-swift"),
        (GRPO, [], {"NPROC_PER_NODE": "0"}, "NPROC_PER_NODE=0 is no whole number", "no process"),
        (GRPO, [], {"NNODES": "x"}, "NNODES=x is no whole number", "no number of nodes"),
        (GRPO, [], {"PLANNER_SFT_ADAPTER": "UNSET"}, "run_sft_planner.sh first", "no SFT run to continue from"),
        (GRPO, [], {"PLANNER_TRAIN_DATA": "/no/set.jsonl"}, "/no/set.jsonl is no file", "what preflight refuses"),
        (GRPO, ["--lerning_rate", "1"], {}, "did you mean --learning_rate?", "a typo in a flag"),
        (SFT, ["--num_train_epochs", "three"], {}, "num_train_epochs", "a value of the wrong kind"),
        (GRPO, [], {"PLANNER_BATCH": "1"}, "PLANNER_BATCH is set, but nothing reads it", "an unknown variable"),
    ],
)  # fmt: skip
def test_wrong_use_exits_2_with_the_remedy(
    copy: Copy, script: str, arguments: list[str], variables: dict[str, str], said: str, reason: str
) -> None:
    done = copy.run(script, *arguments, **variables)
    assert done.returncode == 2, (reason, done.stderr)
    assert said in done.stderr, reason
    assert "FAKE SWIFT" not in done.stdout


def test_the_newest_sft_adapter_is_taken(copy: Copy) -> None:
    """By time and then by step; a run with a name of its own, which sorts last, is no newer for it."""
    runs = copy.root / "runs"
    saved = ["sft-two/checkpoint-90", "sft-20260101-000000/checkpoint-9", "sft-20260101-000000/checkpoint-100"]
    try:
        for age, name in enumerate(reversed(saved)):
            config = write_adapter(runs / name) / "adapter_config.json"
            os.utime(config, (1_700_000_000 - age, 1_700_000_000 - age))
        (runs / "sft-20270101-000000").mkdir()  # started and broken off: nothing to continue from
        _, args = copy.effective(GRPO, PLANNER_SFT_ADAPTER="UNSET")
    finally:
        shutil.rmtree(runs)
    assert args["adapters"] == args["ref_adapters"] == [str(runs / saved[-1])]


def test_a_dry_run_leaves_nothing_behind(copy: Copy) -> None:
    copy.dry(GRPO)
    assert not (copy.root / "runs").exists()


# --- real runs, with a stand-in for the swift executable --------------------------------------------------------------


def test_a_run_leaves_manifest_rows_and_log_and_keeps_the_exit_code(copy: Copy, tmp_path: Path) -> None:
    out, run = tmp_path / "called.json", tmp_path / "the run"
    variables = {"FAKE_OUT": str(out), "FAKE_SWIFT": "7", "CUDA_VISIBLE_DEVICES": ""}
    arguments = ("--max_steps", "2", f"--output-dir={run}")
    words, _ = copy.dry(SFT, *arguments, **variables)
    done = copy.run(SFT, *arguments, **variables)
    assert done.returncode == 7, done.stderr
    called = json.loads(out.read_text())
    expected = words[words.index("sft") :]
    stamped = expected.index("--output_dir") + 1  # the launcher's own default carries the time
    assert [a for n, a in enumerate(called["argv"]) if n != stamped] == [
        a for n, a in enumerate(expected) if n != stamped
    ]
    assert called["env"]["PYTHONPATH"].split(":")[0] == str(copy.root)
    assert (called["env"]["CUDA_VISIBLE_DEVICES"], called["env"]["ACCELERATE_USE_CPU"]) == ("", "true")
    manifest = json.loads((run / "planner_manifest.json").read_text())
    assert manifest["kind"] == "sft" and manifest["arguments"]["max_steps"] == 2
    log = (run / "train.log").read_text()
    assert log.index("3 of 16 rows of") < log.index("golden: ") < log.index("FAKE SWIFT TRAINS")
    assert log in done.stdout, "the terminal saw what the log holds"
    assert "ended with exit code 7" in log.splitlines()[-1]
    assert is_gone(called["child"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_the_launcher_ends_the_whole_run(copy: Copy, tmp_path: Path, number: int, code: int) -> None:
    out = tmp_path / "called.json"
    variables = {"FAKE_OUT": str(out), "FAKE_SWIFT": "wait", "CUDA_VISIBLE_DEVICES": "4", "TRAIN_GPUS": "0"}
    run = subprocess.Popen(
        ["bash", str(copy.root / ROLLOUT), "--port", "18321"],
        env=copy.environment(variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not out.is_file():
        assert run.poll() is None and time.monotonic() < deadline, run.communicate(timeout=10)[0]
        time.sleep(0.1)
    called = json.loads(out.read_text())
    assert called["argv"][0] == "rollout" and called["env"]["CUDA_VISIBLE_DEVICES"] == "4"
    run.send_signal(number)
    printed, _ = run.communicate(timeout=60)
    assert run.returncode == code, printed
    assert f"stopped by {signal.Signals(number).name}" in printed.splitlines()[-1]
    assert is_gone(called["child"])
    (log,) = (copy.root / "runs").glob("rollout-*/rollout.log")
    assert "FAKE SWIFT TRAINS" in log.read_text()
    shutil.rmtree(copy.root / "runs")
