"""Preflight of what surrounds a run: reward settings, store and encoder, GPUs, ports, proxies, rollout server."""

import dataclasses
import http.client
import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from scripts.catalog.filled_by import check_before_search
from scripts.train.launch_facts import Findings, Launch
from scripts.train.parity_file import load_report, report_faults, utc_now
from swift_plugin.encoders import EncoderError, make_encoder
from swift_plugin.flag_encoder import FlagEncoder
from swift_plugin.retry import RetryBudgetError, is_loopback
from swift_plugin.reward_loader import Reward
from swift_plugin.stores import StoreError, check_store, make_store

GROUP_PORT = 51216  # where the first rollout server takes the trainer's weights, unless the trainer says otherwise
LAST_PORT = 65535
STORE_SECONDS = 5.0  # preflight waits this long for a store or an encoder; the run has its own budget
SERVER_SECONDS = 3.0
PARITY_FILE = "PLANNER_PARITY_FILE"
PROXY_VARIABLES = ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


def check_reward_settings(launch: Launch, reward: Reward, found: Findings) -> None:
    """Weights and gates, as the plugin will read them."""
    for name, read in (("weights", reward.weights_from_env), ("gates", reward.gates_from_env)):
        try:
            found.facts[name] = read(launch.environ)
        except ValueError as error:
            found.refuse(str(error))


def check_rollout_env(launch: Launch, reward: Reward, found: Findings) -> None:
    """Store and encoder answer and belong together."""
    settings = launch.settings
    if not settings.retrieval:
        found.warn("PLANNER_RETRIEVAL=off: nothing is searched, and the retrieval dimension takes no part")
        return
    brief = dataclasses.replace(
        settings,
        retry_budget_s=min(settings.retry_budget_s, STORE_SECONDS),
        request_timeout_s=min(settings.request_timeout_s, STORE_SECONDS),
    )
    store = make_store(brief)
    points = None
    try:
        encoder = make_encoder(brief, reward.words)
        info = check_store(store, encoder)
        points = info.points
        found.facts["store"] = f"{info.kind} {info.name} ({info.points:,} points of size {info.vector_size})"
        found.facts["encoder"] = encoder.name
        loads = isinstance(encoder, FlagEncoder) and launch.dry_run  # a dry run loads no model
        if not loads and (remark := check_before_search(encoder, store)):
            found.warn(remark)
    except (StoreError, EncoderError) as error:
        if isinstance(error.__cause__, RetryBudgetError):  # a service that is not up
            found.lacking(launch, str(error))
        else:
            found.refuse(str(error))
    finally:
        store.close()
    check_parity(launch, points, found)


def check_parity(launch: Launch, points: int | None, found: Findings) -> None:
    """PLANNER_PARITY_FILE demands a fresh report of verify_embed_parity.py on this run's encoder and collection.

    `points` is what the collection holds now, None where it did not answer.
    """
    name = launch.environ.get(PARITY_FILE, "").strip()
    if not name:
        return
    path = Path(name).expanduser()
    try:
        report = load_report(path)
    except (OSError, ValueError) as error:
        found.refuse(f"{PARITY_FILE}: {error}")
        return
    faults = report_faults(report, launch.settings, utc_now())
    for fault in faults:
        found.refuse(f"{PARITY_FILE}={name}: {fault}")
    then = report["collection"].get("points")
    if not faults and points is not None and points != then:
        found.warn(f"{PARITY_FILE}={name}: the collection held {then} points then and holds {points} now")
    found.facts["parity"] = f"{report['verdict']} of {report['made'].date()}"


def check_gpus(launch: Launch, found: Findings) -> None:
    """The GPUs exist, and no GPU has two tasks."""
    wanted = launch.rollout_gpus if launch.kind == "rollout" else launch.train_gpus
    variable = "ROLLOUT_GPUS" if launch.kind == "rollout" else "TRAIN_GPUS"
    if len(set(wanted)) < len(wanted):
        found.refuse(f"{variable}={','.join(wanted)} names a GPU twice: each process needs one of its own")
    missing = [gpu for gpu in wanted if gpu not in launch.visible_gpus]
    if missing:
        have = ", ".join(launch.visible_gpus) or "none"
        found.lacking(launch, f"{variable}={','.join(wanted)}, but this machine's GPUs are: {have}; choose among these")
    if launch.kind == "rollout" or _serves_here(launch):
        both = [gpu for gpu in launch.train_gpus if gpu in launch.rollout_gpus]
        if both:
            found.refuse(
                f"GPU {', '.join(both)} stands in TRAIN_GPUS={','.join(launch.train_gpus)} and in "
                f"ROLLOUT_GPUS={','.join(launch.rollout_gpus)}: training and rollout need GPUs of their own; set both "
                "variables for both launchers"
            )
    if launch.kind == "rollout":
        used = int(launch.args["vllm_data_parallel_size"]) * int(launch.args["vllm_tensor_parallel_size"])
        if used != len(wanted):
            found.refuse(
                f"ROLLOUT_GPUS={','.join(wanted)} are {len(wanted)} GPUs, but --vllm_data_parallel_size x "
                f"--vllm_tensor_parallel_size is {used}: make them equal"
            )
    elif launch.train_gpus and not launch.args["use_ray"]:
        local = int(launch.environ.get("NPROC_PER_NODE") or 1)
        if local != len(launch.train_gpus):
            found.refuse(
                f"NPROC_PER_NODE={local}, but TRAIN_GPUS={','.join(launch.train_gpus)} are {len(launch.train_gpus)} "
                "GPUs: leave NPROC_PER_NODE unset, or give one process a GPU"
            )


def _serves_here(launch: Launch) -> bool:
    """Whether this machine runs the rollout server as well."""
    return launch.uses_rollout_server and launch.first_node and any(map(is_loopback, server_urls(launch)))


def check_lora_cap(launch: Launch, found: Findings) -> None:
    """The rollout server's LoRA cap is one that vLLM knows, and not below the rank that will be trained."""
    args = launch.args
    if not args["vllm_enable_lora"]:
        return
    cap = int(args["vllm_max_lora_rank"])
    if launch.lora_ranks and cap not in launch.lora_ranks:
        found.refuse(
            f"--vllm_max_lora_rank {cap} is none that vLLM allows: take one of {', '.join(map(str, launch.lora_ranks))}"
        )
    elif cap < launch.lora_cap:
        found.refuse(
            f"--vllm_max_lora_rank {cap} is below the {launch.lora_cap} that the trained LoRA rank needs: raise it, or "
            "lower PLANNER_LORA_RANK for both launchers"
        )


def check_ports(launch: Launch, found: Findings) -> None:
    """What the rollout server listens on: its own port, and the trainer's weights'."""
    host = str(launch.args["host"])
    check_own_port(launch, found, "PLANNER_ROLLOUT_PORT for both launchers")
    if port_taken(GROUP_PORT, reuse=True):
        found.warn(
            f"port {GROUP_PORT} is taken, where a trainer's weights arrive unless it says otherwise: a second run"
            f" on this machine needs another one, bash run_grpo_planner.sh --vllm_server_group_port {GROUP_PORT + 1}"
        )
    if launch.args["api_key"]:
        found.refuse(
            "--api_key: ms-swift's trainer sends none to its rollout server and would be turned away (HTTP 401): leave "
            "it out, and keep the port in a private network"
        )
    if not is_loopback(f"http://{host}"):
        found.warn(
            f"--host {host} opens the server to the network, and --api_key cannot guard it (the trainer sends none): "
            "whoever reaches the port can change its weights, so keep it in a private network"
        )


def check_own_port(launch: Launch, found: Findings, variable: str) -> None:
    """--port is free: a busy one silently moves swift's servers to the next, where no client looks for it.

    Args:
        variable: what sets another port, in words.
    """
    port = int(launch.args["port"])
    if not 1 <= port <= LAST_PORT:
        found.refuse(f"--port {port} is no port: give 1 to {LAST_PORT}")
    elif port_taken(port, reuse=False):
        found.lacking(
            launch,
            f"port {port} is taken, and swift would silently serve on another one: end what listens there (a server's "
            f"port stays taken for a minute after its end), or set {variable}",
        )


def port_taken(port: int, *, reuse: bool) -> bool:
    """Whether a server could not bind `port`; `reuse` tells whether that server sets SO_REUSEADDR (swift does not)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False


def server_urls(launch: Launch) -> list[str]:
    """Where the trainer will look for its rollout servers."""
    args = launch.args
    if args["vllm_server_base_url"]:
        return list(args["vllm_server_base_url"])
    pairs = zip(args["vllm_server_host"] or [], args["vllm_server_port"], strict=False)
    return [f"http://{f'[{host}]' if ':' in host else host}:{port}" for host, port in pairs]


def check_proxy(launch: Launch, found: Findings) -> None:
    """ms-swift's client of the rollout server obeys the proxy variables (the kit's own clients know loopback)."""
    proxies = [name for name in PROXY_VARIABLES if launch.environ.get(name, "").strip()]
    if not proxies or not launch.uses_rollout_server:
        return
    for url in server_urls(launch):
        host = urlsplit(url).hostname or ""
        if is_loopback(url) and not _bypassed(host, launch.environ):
            found.refuse(
                f"{proxies[0]} is set and NO_PROXY does not hold {host}: requests to the rollout server would go to "
                f"the proxy; export NO_PROXY={host},localhost no_proxy={host},localhost"
            )


def _bypassed(host: str, environ: Mapping[str, str]) -> bool:
    # requests reads the lower-case name first, and one of the two decides alone.
    listed = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    names = [name.strip().lstrip(".") for name in listed.replace(" ", ",").split(",") if name.strip()]
    return "*" in names or any(host == name or host.endswith(f".{name}") for name in names)


def check_group_ports(launch: Launch, found: Findings) -> None:
    """The ports on which the rollout servers of this machine will take the weights: bound when the trainer asks."""
    urls = server_urls(launch)
    ports = launch.args["vllm_server_group_port"] or [GROUP_PORT + number for number in range(len(urls))]
    for url, port in zip(urls, ports, strict=False):
        if not 1 <= port <= LAST_PORT:
            found.refuse(f"--vllm_server_group_port {port} is no port: give 1 to {LAST_PORT}")
        elif is_loopback(url) and port_taken(port, reuse=True):
            # No refusal: a run that was killed leaves it to its server, which gives it up when the next run asks.
            found.warn(
                f"port {port} is taken, where {url} would take this run's weights: if another run holds it, give "
                f"--vllm_server_group_port another one ({port + len(urls)})"
            )


def check_server(launch: Launch, found: Findings) -> None:
    """The rollout server is up: without it the trainer waits 240 seconds in silence."""
    for url in server_urls(launch):
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=SERVER_SECONDS)
        try:
            connection.request("GET", f"{parts.path.rstrip('/')}/health/")
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            found.lacking(
                launch,
                f"no rollout server answers at {url} ({type(error).__name__}): start run_grpo_rollout_server.sh and "
                "wait for 'Application startup complete', or correct PLANNER_ROLLOUT_PORT",
            )
            continue
        finally:
            connection.close()
        if status != 200:
            found.lacking(launch, f"{url}/health/ answers HTTP {status}: no rollout server? See PLANNER_ROLLOUT_PORT")
