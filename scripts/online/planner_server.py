"""Serve a planner with `swift deploy`, behind a guard: key, health check, manifest, and no other door.

Started by run_planner_server.sh, which fills in the arguments of `swift deploy`. The key is read from
PLANNER_SERVER_API_KEY: `swift deploy --api_key` would show it in the list of processes and in the log.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.online.channels import SERVER_KEY, SERVER_PORT
from scripts.train.launch_facts import Findings, Launch
from scripts.train.manifest import MANIFEST
from scripts.train.preflight import report
from scripts.train.preflight_arguments import check_model, check_model_type, check_template
from scripts.train.preflight_services import check_own_port
from scripts.train.swift_args import SwiftArgs, SwiftArgsError, parse, split_at_dashes
from swift_plugin.retry import is_loopback
from swift_plugin.settings import Settings, check_key

COMMAND = "deploy"
ADAPTER_FILE = "adapter_config.json"


def find_manifest(args: SwiftArgs) -> Path | None:
    """The manifest of the run that made what is served: in the adapter's or model's folder, or in the one above."""
    folder = Path(str((args["adapters"] or [args["model"]])[0])).expanduser()
    found = [home / MANIFEST for home in (folder, folder.parent) if (home / MANIFEST).is_file()]
    return found[0] if found else None


def read_key(environ: Mapping[str, str]) -> str | None:
    """The key clients must send; None where the variable is unset. Raises ValueError, never with the key."""
    value = environ.get(SERVER_KEY, "").strip()
    return check_key(SERVER_KEY, value) if value else None


def check(launch: Launch) -> Findings:
    """All findings about a server that is about to start; nothing is loaded but small files."""
    found = Findings()
    args = launch.args
    if args["api_key"] is not None:
        found.refuse(f"--api_key stands in the list of processes and in the log: set {SERVER_KEY} instead")
    host = str(args["host"])
    if read_key(launch.environ) is None and not is_loopback(f"http://{f'[{host}]' if ':' in host else host}"):
        found.refuse(f"--host {host} opens the server to the network, and anyone could use it: set {SERVER_KEY}")
    check_served(launch, found)
    check_model_type(launch, found)
    check_template(launch, found)
    check_backend(launch, found)
    check_own_port(launch, found, SERVER_PORT)
    found.facts["address"] = f"http://{host}:{args['port']}/v1"
    found.facts["key"] = f"from {SERVER_KEY}" if read_key(launch.environ) else "none"
    manifest = find_manifest(args)
    if manifest is None:
        found.warn(f"no {MANIFEST} beside {(args['adapters'] or [args['model']])[0]}: /manifest will say 404")
    else:
        found.facts["manifest"] = str(manifest)
        _check_prompt(launch, manifest, found)
    return found


def check_served(launch: Launch, found: Findings) -> None:
    """A model folder or hub id, and on top of it at most one LoRA adapter."""
    args = launch.args
    model, adapters = str(args["model"] or ""), list(args["adapters"] or [])
    if (Path(model).expanduser() / ADAPTER_FILE).is_file():
        found.refuse(f"the model {model} is a LoRA adapter: give it as --adapters, and its base as PLANNER_MODEL")
        return
    check_model(launch, found)
    if len(adapters) > 1:
        found.refuse(f"--adapters names {len(adapters)} adapters: one planner is served at a time")
    for adapter in adapters[:1]:
        file = Path(adapter).expanduser() / ADAPTER_FILE
        if not file.is_file():
            found.refuse(f"--adapters {adapter} holds no {ADAPTER_FILE}: serve whole weights as PLANNER_MODEL")
            continue
        config = json.loads(file.read_text(encoding="utf-8"))
        trained_on = str(config.get("base_model_name_or_path") or "")
        if trained_on and Path(trained_on).name != Path(model).name:
            found.warn(f"the adapter {adapter} was trained on {trained_on}, and {model} is served: set PLANNER_MODEL")
        cap = int(args["vllm_max_lora_rank"])
        if args["infer_backend"] == "vllm" and int(config.get("r", 0)) > cap:
            found.refuse(f"the adapter's rank {config['r']} is above --vllm_max_lora_rank {cap}: set PLANNER_LORA_RANK")


def check_backend(launch: Launch, found: Findings) -> None:
    """vLLM needs its package and its GPUs."""
    args = launch.args
    if args["infer_backend"] != "vllm":
        return
    if importlib.util.find_spec("vllm") is None:
        found.lacking(
            launch, "vllm is not installed: pip install the extra 'gpu', or give --infer_backend transformers"
        )
    needed = int(args["vllm_data_parallel_size"]) * int(args["vllm_tensor_parallel_size"])
    if needed > len(launch.visible_gpus):
        have = ", ".join(launch.visible_gpus) or "none"
        found.lacking(launch, f"{needed} GPUs are asked for, and this machine's are: {have}; see CUDA_VISIBLE_DEVICES")


def _check_prompt(launch: Launch, manifest: Path, found: Findings) -> None:
    trained = json.loads(manifest.read_text(encoding="utf-8")).get("prompt")
    if trained and trained != launch.settings.prompt:
        found.warn(
            f"the model was trained on the prompt {trained!r}, and here PLANNER_PROMPT is {launch.settings.prompt!r}: "
            "clients must send the prompt of training"
        )


def is_alive(engine: Any) -> bool:
    """Whether ms-swift's engine still works off requests: its worker thread lives, and vLLM reports no dead core."""
    worker = getattr(engine, "_task_thread", None)  # of the transformers engine, made at the first request
    if worker is not None and not worker.is_alive():
        return False
    return not getattr(getattr(engine, "engine", None), "errored", False)


def serve(line: Sequence[str], environ: Mapping[str, str]) -> None:
    """Load the model and serve it until a signal ends the process."""
    args = parse(COMMAND, line)
    path = find_manifest(args)
    manifest = path.read_text(encoding="utf-8") if path else None
    key = read_key(environ)

    from swift.pipelines.infer import SwiftDeploy

    from scripts.online.server_guard import Guard

    deploy = SwiftDeploy(list(line))
    engine = deploy.infer_engine
    # Requests are answered in batches. A strict engine fails the whole batch for one bad request, and a prompt that
    # leaves no room for a plan shortens the plans of all: refuse it alone, when it is encoded.
    engine.strict = False
    room = engine.max_model_len - int(args["max_new_tokens"])
    engine.template.max_length = min(engine.template.max_length or room, room)
    deploy.app.add_middleware(
        Guard,
        key=key,
        manifest=manifest,
        healthy=lambda: is_alive(engine),
        about={
            "model": args["served_model_name"],
            "manifest_sha256": hashlib.sha256(manifest.encode()).hexdigest() if manifest else None,
        },
    )
    print(f"planner: serving {args['served_model_name']} at http://{args['host']}:{args['port']}/v1", flush=True)
    deploy.main()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  DRY_RUN=1 bash run_planner_server.sh --adapters runs/grpo-NAME/best   # fills it all in",
    )
    parser.add_argument("--check", action="store_true", help="judge the launch and end")
    parser.add_argument("--dry-run", action="store_true", help="with --check: what the machine lacks is a warning")
    parser.add_argument("--visible-gpus", default="", help="GPUs of this machine, comma-separated")
    own, line = split_at_dashes(sys.argv[1:] if argv is None else argv)
    options = parser.parse_args(own)
    if not options.check:
        serve(line, os.environ)
        return 0
    try:
        launch = Launch(
            kind="rollout",  # like it, a server that trains nothing
            args=parse(COMMAND, line),
            settings=Settings.from_env(os.environ),
            environ=os.environ,
            dry_run=options.dry_run,
            visible_gpus=tuple(filter(None, options.visible_gpus.split(","))),
        )
        found = check(launch)
    except (SwiftArgsError, ValueError) as error:
        print(f"preflight: refused: {error}", file=sys.stderr)
        return 2
    return report(found, "the server")


if __name__ == "__main__":
    sys.exit(main())
