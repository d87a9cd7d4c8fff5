"""Several boxes: the commands of the documents are accepted, and a launch on two nodes is what it should be."""

import os
import re
import shlex
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from commands import World, clean_environment

from scripts.train import preflight
from scripts.train.doctor import launcher_defaults, launches
from scripts.train.launch_facts import Findings, Launch
from scripts.train.preflight_nodes import check_scaling, check_server_lists
from scripts.train.preflight_services import check_ports
from scripts.train.swift_args import parse
from swift_plugin.settings import Settings
from tests.launch_world import CHECKOUT, LaunchWorld, build_world

SFT, GRPO, ROLLOUT = "run_sft_planner.sh", "run_grpo_planner.sh", "run_grpo_rollout_server.sh"
COMMANDS = {SFT: "sft", GRPO: "rlhf", ROLLOUT: "rollout"}
NODES = {"NNODES": "2", "MASTER_ADDR": "box1", "MASTER_PORT": "29500", "TRAIN_GPUS": "0,1,2,3"}
FIRST, SECOND = {**NODES, "NODE_RANK": "0"}, {**NODES, "NODE_RANK": "1"}
NO_SERVER = "no rollout server answers"


@pytest.fixture(scope="module")
def world_of_launches(tmp_path_factory: pytest.TempPathFactory) -> LaunchWorld:
    return build_world(tmp_path_factory.mktemp("boxes"))


def calls(document: str) -> list[tuple[dict[str, str], str, list[str]]]:
    """Variables, script and arguments of every launcher call of a document, exports of its block included."""
    text = (CHECKOUT / "docs" / document).read_text(encoding="utf-8")
    found = []
    inline = re.findall(r"`([^`\n]*\bbash (?:run_|scripts/)[^`\n]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    for block in [*re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL), *inline]:
        exported: dict[str, str] = {}
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["export"]:
                exported |= dict(word.split("=", 1) for word in words[1:])
            elif "bash" in words:
                at = words.index("bash")
                own = dict(word.split("=", 1) for word in words[:at])
                found.append(({**exported, **own}, words[at + 1], words[at + 2 :]))
    return found


DOCUMENTED = [
    pytest.param(document, *call, id=f"{document} {number}", marks=marks)
    for document, marks in (("more-than-one-box.md", ()), ("run-on-your-box.md", pytest.mark.slow))  # a second a call
    for number, call in enumerate(calls(document))
]


def test_the_documents_name_what_they_are_about() -> None:
    scaling = [" ".join([*(f"{k}={v}" for k, v in made.items()), *words]) for made, _, words in calls(
        "more-than-one-box.md")]  # fmt: skip
    for piece in ("NODE_RANK=1", "--vllm_server_host box2 box3", "QDRANT_URL=", "--deepspeed zero", "--use_ray true"):
        assert any(piece in call for call in scaling), piece
    ours = [script for _, script, _ in calls("run-on-your-box.md")]
    order = [ours.index(script) for script in ("scripts/train/box_check.sh", SFT, ROLLOUT, GRPO)]
    assert order == sorted(order), "in the order in which they are started"


@pytest.mark.parametrize(("document", "variables", "script", "arguments"), DOCUMENTED)
def test_every_launcher_command_of_the_documents_is_accepted(
    document: str, variables: dict[str, str], script: str, arguments: list[str], world_of_launches: LaunchWorld
) -> None:
    given = {"TRAIN_GPUS": "0,1,2,3", **variables, "DRY_RUN": "1"}
    if script == ROLLOUT and "TRAIN_GPUS" not in variables:
        del given["TRAIN_GPUS"]  # the launcher's own default
    done = world_of_launches.run(script, *arguments, **given)
    assert done.returncode == 0, done.stderr
    if script in COMMANDS:
        printed = shlex.split(done.stdout.strip().splitlines()[-1])
        assert all(word in printed for word in arguments)
        nodes = [f"{name}={value}" for name, value in variables.items() if name in FIRST and name != "TRAIN_GPUS"]
        assert all(word in printed for word in nodes), "the printed command starts the same node when copied"


@pytest.mark.parametrize("path", sorted(
    {match for name in ("more-than-one-box.md", "run-on-your-box.md")
     for match in re.findall(r"\b(?:scripts|docs|swift_plugin)/[\w./-]+\.\w+", (CHECKOUT / "docs" / name).read_text())}
))  # fmt: skip
def test_every_file_the_documents_name_exists(path: str) -> None:
    assert (CHECKOUT / path).is_file()


def effective(
    world: LaunchWorld, script: str, *arguments: str, **variables: str
) -> tuple[list[str], dict[str, Any], str]:
    """Words before swift, effective arguments, and what was said, of a dry run."""
    done = world.run(script, *arguments, DRY_RUN="1", **variables)
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout.strip().splitlines()[-1])
    at = words.index(COMMANDS[script])
    return words[:at], parse(COMMANDS[script], words[at + 1 :]).values, done.stderr


def test_two_nodes_share_one_step(world_of_launches: LaunchWorld) -> None:
    words, args, said = effective(world_of_launches, GRPO, "--output_dir", "runs/two", **FIRST)
    assert {"NNODES=2", "NODE_RANK=0", "MASTER_ADDR=box1", "MASTER_PORT=29500", "NPROC_PER_NODE=4"} <= set(words)
    assert args["per_device_train_batch_size"] * args["gradient_accumulation_steps"] * 8 == 64
    assert "64 completions = 8 prompts x 8" in said
    assert NO_SERVER in said, "rank 0 talks to the rollout server"
    words, args, said = effective(world_of_launches, GRPO, "--output_dir", "runs/two", **SECOND)
    assert "NODE_RANK=1" in words and NO_SERVER not in said, "no other node does"


def test_two_nodes_of_one_process_on_cpus_talk_gloo(world_of_launches: LaunchWorld) -> None:
    nodes = {name: value for name, value in FIRST.items() if name != "TRAIN_GPUS"}
    words, args, _ = effective(
        world_of_launches, GRPO, "--output_dir", "runs/two", **nodes, CUDA_VISIBLE_DEVICES=""
    )  # fmt: skip
    assert args["ddp_backend"] == "gloo" and args["per_device_train_batch_size"] == 32
    assert "NPROC_PER_NODE=1" in words


def test_servers_elsewhere_leave_all_gpus_to_training(world_of_launches: LaunchWorld) -> None:
    six = {"TRAIN_GPUS": "0,1,2,3,4,5"}
    elsewhere = ("--vllm_server_host", "box2", "box3", "--vllm_server_port", "8000", "8000")
    _, args, said = effective(world_of_launches, GRPO, *elsewhere, **six)
    assert args["vllm_server_host"] == ["box2", "box3"] and args["vllm_server_port"] == [8000, 8000]
    assert "http://box2:8000" in said and "http://box3:8000" in said, "both are looked for"
    done = world_of_launches.run(GRPO, DRY_RUN="1", **six)
    assert done.returncode == 2 and "GPU 4 stands in TRAIN_GPUS" in done.stderr, "the server would be here"


def test_a_machine_that_only_serves(world_of_launches: LaunchWorld) -> None:
    six = {"ROLLOUT_GPUS": "0,1,2,3,4,5", "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5"}
    _, args, _ = effective(world_of_launches, ROLLOUT, "--host", "0.0.0.0", **six, TRAIN_GPUS="none")
    assert args["vllm_data_parallel_size"] == 6
    done = world_of_launches.run(ROLLOUT, DRY_RUN="1", **six)
    assert done.returncode == 2 and "TRAIN_GPUS" in done.stderr, "the default trains on 0 to 3"


def test_doctor_knows_a_machine_that_only_serves() -> None:
    def trained(environ: dict[str, str]) -> tuple[str, ...]:
        return launches(Settings(), environ, ("0", "1"), launcher_defaults())[0].train_gpus

    assert trained({"TRAIN_GPUS": "none", "ROLLOUT_GPUS": "0,1"}) == ()
    assert trained({"TRAIN_GPUS": "1"}) == ("1",)


def test_ray_is_given_one_driver_and_no_torchrun(world_of_launches: LaunchWorld) -> None:
    ray = ("--use_ray", "true", "--device_groups", '{"nproc_per_node": 4}')
    words, args, said = effective(world_of_launches, SFT, *ray, TRAIN_GPUS="0,1,2,3")
    assert args["use_ray"] is True
    assert not [word for word in words if word.startswith(("NPROC_PER_NODE", "MASTER_PORT"))]
    assert "ray is not installed here" in said


@pytest.mark.parametrize(
    ("script", "arguments", "variables", "said", "reason"),
    [
        *(
            (GRPO, ["--output_dir", "runs/two"], {k: v for k, v in SECOND.items() if k != name}, f"needs {name}",
             "torchrun's default would let every node wait for itself")
            for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
        ),
        (GRPO, [], SECOND, "--output_dir", "the default folder holds the time"),
        (SFT, [], SECOND, "--output_dir", "for SFT as well"),
        (GRPO, ["--output_dir", "x"], {**SECOND, "NODE_RANK": "2"}, "they are 0 to 1", "no such node"),
        (GRPO, ["--output_dir", "x"], {**SECOND, "NODE_RANK": "one"}, "NODE_RANK=one", "no number"),
        (GRPO, [], {"TRAIN_GPUS": "none"}, "TRAIN_GPUS=none", "a trainer trains on something"),
        (GRPO, ["--use_ray", "true"], {"TRAIN_GPUS": "0"}, "starts no Ray", "what preflight refuses stops the launch"),
    ],
)  # fmt: skip
def test_a_launcher_refuses_with_the_remedy(
    script: str, arguments: list[str], variables: dict[str, str], said: str, reason: str, world_of_launches: LaunchWorld
) -> None:
    done = world_of_launches.run(script, *arguments, DRY_RUN="1", **variables)
    assert done.returncode == 2, reason
    assert said in done.stderr, reason


SERVER = ["--use_vllm", "true", "--vllm_mode", "server"]
BY_PREFLIGHT: list[tuple[str, list[str], tuple[str, ...], str, str]] = [
    ("grpo", [*SERVER, "--vllm_server_host", "a", "b"], ("0",), "2 --vllm_server_host but 1 --vllm_server_port",
     "swift would say so after loading"),
    ("grpo", [*SERVER, "--vllm_server_host", "a", "b", "--vllm_server_port", "1", "2"], ("0",), "", "in pairs"),
    ("grpo", [*SERVER, "--vllm_server_base_url", "http://a:1", "http://b:1"], ("0",), "", "URLs carry their ports"),
    ("grpo", [*SERVER, "--vllm_server_host", "a", "--vllm_server_group_port", "1", "2"], ("0",),
     "2 --vllm_server_group_port for 1 rollout servers", "a weights' port for each server"),
    ("grpo", ["--use_ray", "true"], ("0",), "starts no Ray", "swift would train without Ray, unsaid"),
    ("sft", ["--use_ray", "true"], ("0",), "--device_groups", "swift would fail on json.loads(None)"),
    ("sft", ["--deepspeed", "zero2"], (), "needs GPUs", "DeepSpeed on a CPU"),
    ("sft", ["--deepspeed", "zero2"], ("0",), "", "by flag, where it is installed"),
    ("rollout", ["--api_key", "k"], (), "HTTP 401", "the trainer sends none"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "line", "gpus", "said", "reason"), BY_PREFLIGHT)
def test_preflight_judges_what_several_boxes_add(
    kind: str, line: list[str], gpus: tuple[str, ...], said: str, reason: str
) -> None:
    args = parse(preflight.KINDS[kind], line)
    launch = Launch(kind=kind, args=args, settings=Settings(), environ={}, dry_run=True, train_gpus=gpus)
    found = Findings()
    if kind == "rollout":
        check_ports(launch, found)
    else:
        check_scaling(launch, found)
    if kind == "grpo":
        check_server_lists(launch, found)
    assert (said in " ".join(found.refusals)) if said else (found.refusals == []), (reason, found)


def test_what_is_not_installed_is_told_with_its_command() -> None:
    args = parse("sft", ["--deepspeed", "zero2"])
    found = Findings()
    check_scaling(Launch(kind="sft", args=args, settings=Settings(), environ={}, train_gpus=("0",)), found)
    assert [text for text in found.refusals if "pip install deepspeed" in text], "this machine has none"


@pytest.mark.slow
def test_two_nodes_train_together(world: World, base: Path, sft: Path, tmp_path: Path) -> None:
    """Two launchers, as on two boxes, each with its own run folder (no shared file system), meet and train."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {
        **clean_environment(), **world.environment, "PLANNER_MODEL": str(base), "PLANNER_SFT_ADAPTER": str(sft),
        "PLANNER_TRAIN_DATA": str(world.folder / "grpo.jsonl"),
        "PLANNER_WATCH_DATA": str(world.folder / "watch.jsonl"), "NNODES": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    flags = ["--max_steps", "2", "--num_generations", "4", "--per_device_train_batch_size", "4", "--max_length", "256"]
    flags += ["--per_device_eval_batch_size", "4", "--max_completion_length", "48", "--save_steps", "2"]
    nodes = []
    try:
        for rank in ("0", "1"):
            nodes.append(
                subprocess.Popen(
                    ["bash", GRPO, *flags, "--output_dir", str(tmp_path / f"node{rank}" / "run")],
                    cwd=CHECKOUT, env={**shared, "NODE_RANK": rank}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    text=True, start_new_session=True,
                )  # fmt: skip
            )
        printed = [node.communicate(timeout=400)[0] for node in nodes]
    finally:
        for node in nodes:
            if node.poll() is None:
                os.killpg(node.pid, signal.SIGKILL)
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(text[-3000:] for text in printed)
    first, second = (tmp_path / f"node{rank}" / "run" for rank in (0, 1))
    assert (first / "checkpoint-2").is_dir() and (first / "planner_manifest.json").is_file()
    assert (first / "train.log").is_file() and (second / "train.node1.log").is_file()
    assert (first / "reward_trace.rank0.jsonl").is_file() and (second / "reward_trace.rank1.jsonl").is_file()
    assert not (second / "planner_manifest.json").exists(), "the first node's alone"
