"""Preflight of what several boxes add: lists of rollout servers, DeepSpeed and Ray."""

import importlib.util

from scripts.train.launch_facts import Findings, Launch


def check_server_lists(launch: Launch, found: Findings) -> None:
    """Hosts, ports and weight ports of the rollout servers go in pairs."""
    args = launch.args
    urls = args["vllm_server_base_url"]
    hosts, ports = list(args["vllm_server_host"] or []), list(args["vllm_server_port"] or [])
    servers = len(urls or hosts)
    if not urls and len(hosts) != len(ports):
        found.refuse(
            f"{len(hosts)} --vllm_server_host but {len(ports)} --vllm_server_port: give a port for each host, in order"
        )
    group_ports = list(args["vllm_server_group_port"] or [])
    if group_ports and len(group_ports) != servers:
        found.refuse(
            f"{len(group_ports)} --vllm_server_group_port for {servers} rollout servers: give one for each, or none"
        )


def check_scaling(launch: Launch, found: Findings) -> None:
    """DeepSpeed and Ray are installed where they are asked for, and Ray is asked for where ms-swift starts it."""
    args = launch.args
    if args["deepspeed"]:
        _check_installed(launch, "deepspeed", f"--deepspeed {args['deepspeed']}", found)
        if not launch.train_gpus:
            found.refuse(f"--deepspeed {args['deepspeed']} needs GPUs: leave it out to train on the CPU")
    if not args["use_ray"]:
        return
    if launch.kind == "grpo":
        found.refuse(
            "--use_ray: `swift rlhf` takes the flag and starts no Ray (ms-swift does for sft and `megatron rlhf`): use "
            "NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT, see docs/more-than-one-box.md"
        )
        return
    if not args["device_groups"]:
        found.refuse("--use_ray needs --device_groups, which places the workers: see docs/more-than-one-box.md")
    _check_installed(launch, "ray", "--use_ray", found)


def _check_installed(launch: Launch, package: str, flag: str, found: Findings) -> None:
    if importlib.util.find_spec(package) is None:
        found.lacking(launch, f"{flag}: {package} is not installed here; pip install {package}")
