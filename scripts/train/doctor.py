"""One page on the environment: what is there, what is missing, and the command that fixes it. Changes nothing.

    python scripts/train/doctor.py

It imports the path that GRPO takes (in a process of its own, some 15 seconds), compares versions with the tested pins,
and asks GPUs, ports, proxies, store, encoder and disk with the same checks as the launchers' preflight.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scripts.swift_names import is_hub_id
from scripts.train.launch_facts import Findings, Launch, processes
from scripts.train.manifest import git_state, hardware, package_versions, variables
from scripts.train.preflight_services import (
    PROXY_VARIABLES,
    check_gpus,
    check_ports,
    check_proxy,
    check_reward_settings,
    check_rollout_env,
    check_server,
)
from scripts.train.swift_args import CHECKOUT, SwiftArgs
from swift_plugin.reward_loader import Reward, load_reward
from swift_plugin.settings import MASK, Settings, known_variables, public_url

OK, NOTE, MISSING = "ok", "note", "MISSING"
OLDEST_PYTHON = (3, 10)
DISK_GIB = {"cpu": 3, "gpu": 30}  # nano demo; the 4B model (8 GB) with its SFT and GRPO checkpoints
IMPORT_SECONDS = 300
GPU_ONLY = ("vllm", "deepspeed")
OPTIONAL = ("FlagEmbedding",)  # wanted only where it encodes in process
# What `swift rlhf --rlhf_type grpo --external_plugins ...` imports before it loads a model.
GRPO_PATH = """
import json, sys
from swift.rlhf_trainers import GRPOTrainer
from swift.arguments import RLHFArguments
import swift_plugin.grpo_planner_plugin
import torch
facts = {"torch_cuda": torch.version.cuda, "gpus": torch.cuda.device_count()}
print("FACTS " + json.dumps(facts))
"""


@dataclass(frozen=True)
class Line:
    """One thing that was looked at: `state` is ok, note or MISSING; `fix` is a command where one helps."""

    section: str
    name: str
    state: str
    found: str
    fix: str = ""


def read_pins(path: Path) -> dict[str, str]:
    """Package (lower case) -> version of a constraints file; markers and comments are left out."""
    pins = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        name, equals, version = text.split("#")[0].split(";")[0].strip().partition("==")
        if equals:
            pins[name.strip().lower()] = version.strip()
    return pins


def launcher_defaults() -> dict[str, str]:
    """The launchers' own defaults, read where they stand: NAME=value or NAME=${ANY:-value} in launch_common.sh."""
    text = (CHECKOUT / "scripts" / "train" / "launch_common.sh").read_text(encoding="utf-8")
    found = re.findall(r'^\s*([A-Z_]+)="?(?:\$\{\w+:-([^}]+)\}|([\w./:-]+))"?(?=\s|$)', text, re.MULTILINE)
    defaults: dict[str, str] = {}
    for name, default, plain in found:
        defaults.setdefault(name, default or plain)
    return defaults


def visible_gpus(listed: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Ids of the GPUs a launcher would use: CUDA_VISIBLE_DEVICES if set, else nvidia-smi's rows ("0, NVIDIA ...")."""
    given = environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return tuple(row.split(",")[0].strip() for row in listed)
    return () if given.strip() == "-1" else _ids(given)


def _ids(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def install_command(*, gpu: bool) -> str:
    """The command that installs the tested versions: the box's, or those that make takes on a CPU."""
    pins, extras = ("constraints-gpu.txt", "gpu,bge") if gpu else ("constraints.txt", "dev,bge,pretrained")
    return f"{sys.executable} -m pip install -c {pins} -e '.[{extras}]'"


def check_python(packages: Mapping[str, str | None], environ: Mapping[str, str]) -> list[Line]:
    """Interpreter, the swift command beside it, and the commit."""
    old = sys.version_info[:2] < OLDEST_PYTHON
    lines = [
        Line("python", "python", MISSING if old else OK, f"{packages['python']} ({sys.executable})",
             "make PYTHON=python3.12 setup" if old else "")
    ]  # fmt: skip
    swift = Path(sys.executable).with_name("swift")
    lines.append(
        Line("python", "swift", OK, str(swift)) if os.access(swift, os.X_OK)
        else Line("python", "swift", MISSING, f"none beside {sys.executable}", "make setup")
    )  # fmt: skip
    state = git_state(CHECKOUT)
    commit = state["commit"]
    found = f"{commit[:12]}{', with changes' if state['dirty'] else ''}" if commit else "no git checkout"
    lines.append(Line("python", "checkout", OK if commit else NOTE, found))
    return lines


def check_packages(
    packages: Mapping[str, str | None], pins: Mapping[str, str], pin_file: str, *, gpu: bool, flag_encoder: bool
) -> list[Line]:
    """Every package that decides a result, against the tested version."""
    install = install_command(gpu=gpu)
    lines = []
    for name, version in packages.items():
        if name == "python":
            continue
        pin = pins.get(name.lower())
        unneeded = (name in GPU_ONLY and not gpu) or (name in OPTIONAL and not flag_encoder)
        if version is None:
            why = "not installed, not needed here" if unneeded else "not installed"
            lines.append(Line("packages", name, OK if unneeded else MISSING, why, "" if unneeded else install))
        elif pin is None or version.split("+")[0] == pin:
            lines.append(Line("packages", name, OK, version + ("" if pin else " (no pin)")))
        else:
            lines.append(Line("packages", name, NOTE, f"{version}, tested with {pin} ({pin_file})", install))
    return lines


def check_grpo_path(*, gpu: bool) -> list[Line]:
    """Import what GRPO imports; a GPU that torch cannot use counts as missing."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")]).strip(":")}
    try:
        done = subprocess.run(
            [sys.executable, "-c", GRPO_PATH], env=env, capture_output=True, text=True, timeout=IMPORT_SECONDS,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        late = f"not done after {IMPORT_SECONDS} s"
        return [Line("grpo", "import", MISSING, late, "run doctor again when the machine is idle")]
    if done.returncode != 0:
        last = next((text.strip() for text in reversed(done.stderr.splitlines()) if text.strip()), "no message")
        return [Line("grpo", "import", MISSING, last[:300], import_fix(last, gpu=gpu))]
    facts = json.loads(done.stdout.rsplit("FACTS ", 1)[1])
    lines = [Line("grpo", "import", OK, "GRPOTrainer, RLHFArguments and the planner's plugin load")]
    if gpu and not facts["gpus"]:
        build = f"CUDA {facts['torch_cuda']}" if facts["torch_cuda"] else "a CPU build"
        lines.append(
            Line("grpo", "torch", MISSING, f"torch ({build}) sees no GPU, the machine has some",
                 f"{install_command(gpu=True)}, or update the driver")
        )  # fmt: skip
    return lines


def import_fix(last: str, *, gpu: bool) -> str:
    """The command for a failed import, told from the last line of its traceback."""
    named = re.search(r"No module named '([A-Za-z0-9_]+)", last)
    if named and named[1] not in ("reward", "swift_plugin", "scripts", "swift"):
        return f"{sys.executable} -m pip install -c constraints{'-gpu' if gpu else ''}.txt {named[1]}"
    return install_command(gpu=gpu)


def check_hardware(facts: Mapping[str, Any]) -> list[Line]:
    """Cores, memory and every GPU with its memory."""
    found = f"{facts['cpu_cores']} cores, {facts['memory_gib']:g} GiB memory, {facts['platform']}"
    lines = [Line("hardware", "machine", OK, found)]
    lines += [Line("hardware", f"GPU {row.split(',')[0]}", OK, row.partition(",")[2].strip()) for row in facts["gpus"]]
    if not facts["gpus"]:
        lines.append(
            Line("hardware", "GPU", NOTE, "none (no nvidia-smi, or it lists none): training runs on the CPU",
                 "the nano demo needs none: make demo")
        )  # fmt: skip
    return lines


def check_disk(folder: Path, need_gib: float) -> Line:
    """Room where runs are written (the checkout's file system)."""
    free = shutil.disk_usage(folder).free / 2**30
    found = f"{free:.1f} GiB free at {folder}"
    if free >= need_gib:
        return Line("disk", "free", OK, found)
    return Line("disk", "free", MISSING, f"{found}, a run needs some {need_gib:g}", "du -sh build runs/* | sort -h")


def check_model(environ: Mapping[str, str], default: str) -> Line:
    """A folder must be one with a configuration; a hub id is loaded at the first start."""
    model = environ.get("PLANNER_MODEL", "").strip() or default
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file():
        return Line("model", "PLANNER_MODEL", OK, str(folder))
    if folder.is_dir() or not is_hub_id(model):
        fix = "set PLANNER_MODEL to a downloaded model's folder or a hub id org/name; make demo makes a nano model"
        return Line("model", "PLANNER_MODEL", MISSING, f"{model} is no folder with a config.json", fix)
    hub = "Hugging Face" if environ.get("USE_HF", "").strip() == "1" else "ModelScope (USE_HF=1: Hugging Face)"
    return Line("model", "PLANNER_MODEL", NOTE, f"{model}: swift loads it from {hub} at its first start, if not cached")


def proxies(environ: Mapping[str, str]) -> Line:
    """The proxy variables that are set, hosts only: a proxy's URL may carry a password."""
    names = (*PROXY_VARIABLES, "HTTPS_PROXY", "https_proxy")
    shown = [f"{name}={_host(environ[name])}" for name in names if environ.get(name, "").strip()]
    if not shown:
        return Line("network", "proxies", OK, "none set")
    if unreadable := [name for name in names if not _readable(environ.get(name, ""))]:
        return Line(
            "network", "proxies", MISSING, f"{', '.join(shown)}: {unreadable[0]} is no URL", f"unset {unreadable[0]}"
        )
    bypass = environ.get("no_proxy") or environ.get("NO_PROXY") or "nothing"
    return Line("network", "proxies", NOTE, f"{', '.join(shown)}; bypassed for {bypass}")


def _readable(url: str) -> bool:
    try:
        urlsplit(url)
    except ValueError:
        return False
    return True


def _host(url: str) -> str:
    # The user may have left out the scheme, and may have written no URL at all.
    return public_url(url).rpartition("://")[2].lstrip("/").split("/")[0] or "(unreadable)"


def lines_of(section: str, name: str, found: Findings, fine: str) -> list[Line]:
    """Findings of preflight as lines; their texts carry the way out themselves."""
    lines = [Line(section, name, MISSING, *_split(text)) for text in found.refusals]
    lines += [Line(section, name, NOTE, *_split(text)) for text in found.warnings]
    facts = "; ".join(f"{key} {value}" for key, value in found.facts.items())
    return lines or [Line(section, name, OK, facts or fine)]


def _split(text: str) -> tuple[str, str]:
    """The finding, and the command that its text names, if any."""
    command = re.search(r"python scripts/[\w/]+\.py|run_\w+\.sh", text)
    if command is None:
        return text, ""
    return text, f"bash {command[0]}" if command[0].startswith("run_") else command[0]


def _port(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit()) or not 1 <= int(text) <= 65535:
        raise ValueError(f"PLANNER_ROLLOUT_PORT={text!r} is no port: give a number from 1 to 65535")
    return int(text)


def launches(
    settings: Settings, environ: Mapping[str, str], gpus: tuple[str, ...], defaults: Mapping[str, str]
) -> tuple[Launch, Launch]:
    """GRPO and rollout server as the launchers would start them with their defaults on this machine."""
    chosen = environ.get("TRAIN_GPUS") or defaults["TRAIN_GPUS"]
    train = _ids(chosen) if gpus and chosen != "none" else ()  # none: a machine that only serves rollouts
    rollout = _ids(environ.get("ROLLOUT_GPUS") or defaults["ROLLOUT_GPUS"])
    host = defaults["ROLLOUT_HOST"]
    port = _port(environ.get("PLANNER_ROLLOUT_PORT") or defaults["ROLLOUT_PORT"])
    trainer = {
        "use_vllm": bool(gpus), "vllm_mode": "server", "vllm_server_base_url": None, "vllm_server_host": [host],
        "vllm_server_port": [port], "use_ray": False,
    }  # fmt: skip
    server = {
        "host": host, "port": port, "api_key": None, "vllm_data_parallel_size": len(rollout),
        "vllm_tensor_parallel_size": 1,
    }  # fmt: skip
    grpo = Launch(
        kind="grpo",
        args=SwiftArgs("rlhf", trainer, frozenset()),
        settings=settings,
        environ={**environ, "NPROC_PER_NODE": environ.get("NPROC_PER_NODE") or str(max(1, len(train)))},
        processes=processes(environ),
        visible_gpus=gpus,
        train_gpus=train,
        rollout_gpus=rollout,
    )
    return grpo, replace(grpo, kind="rollout", args=SwiftArgs("rollout", server, frozenset()))


def check_services(grpo: Launch, server: Launch, reward: Reward) -> list[Line]:
    """Reward settings, store and encoder, GPU lists, proxy, rollout server or the ports it needs."""
    lines = []
    found = Findings()
    check_reward_settings(grpo, reward, found)
    lines += lines_of("reward", "settings", Findings(found.refusals, found.warnings), str(grpo.settings.reward_file))
    found = Findings()
    check_rollout_env(grpo, reward, found)
    lines += lines_of("retrieval", "store and encoder", found, "")
    if grpo.uses_rollout_server:
        found = Findings()
        check_gpus(grpo, found)
        check_gpus(server, found)
        unique = Findings(list(dict.fromkeys(found.refusals)), found.warnings)
        lines += lines_of("hardware", "GPU lists", unique, "train and rollout GPUs exist and are apart")
        found = Findings()
        check_proxy(grpo, found)
        lines += lines_of("network", "proxy and rollout server", found, "no proxy between trainer and server")
        up = Findings()
        check_server(grpo, up)
        if not up.refusals:  # then its ports are taken, and rightly
            return [*lines, Line("network", "rollout server", OK, "answers")]
        lines.append(Line("network", "rollout server", NOTE, up.refusals[0], "bash run_grpo_rollout_server.sh"))
    found = Findings()
    check_ports(replace(server, dry_run=not grpo.uses_rollout_server), found)
    free = f"{server.args['port']} and the weights' port are free"
    return [*lines, *lines_of("network", "ports", found, free)]


def examine(environ: Mapping[str, str], *, import_path: bool = True) -> list[Line]:
    """All lines, in the order of the page; a secret's value stands in none of them."""
    return [_masked(line, environ) for line in _examine(environ, import_path=import_path)]


def _masked(line: Line, environ: Mapping[str, str]) -> Line:
    found, fix = line.found, line.fix
    for name, variable in known_variables().items():
        secret = environ.get(name, "").strip()
        if variable.secret and secret:
            found, fix = found.replace(secret, MASK), fix.replace(secret, MASK)
    return replace(line, found=found, fix=fix)


def _reward(settings: Settings) -> Reward:
    """The reward file loaded. ValueError says what it raised: it is a program, and may raise and exit as it likes."""
    try:
        return load_reward(settings.reward_file)
    except (Exception, SystemExit) as error:
        fault = f"{type(error).__name__}: {error}"
        raise ValueError(f"PLANNER_REWARD_FILE {settings.reward_file} cannot be loaded: {fault}") from error


def _examine(environ: Mapping[str, str], *, import_path: bool) -> list[Line]:
    facts = hardware()
    gpus = visible_gpus(facts["gpus"], environ)
    defaults = launcher_defaults()
    packages = package_versions()
    pin_file = "constraints-gpu.txt" if facts["gpus"] else "constraints.txt"
    try:
        settings, fault = Settings.from_env(environ), ""
        reward = _reward(settings)
        grpo, server = launches(settings, environ, gpus, defaults)
    except (FileNotFoundError, ValueError) as error:
        settings, fault = Settings(), str(error)
    flag_encoder = bool(settings.embed_model and not settings.embed_url)
    lines = check_python(packages, environ)
    lines += check_packages(
        packages, read_pins(CHECKOUT / pin_file), pin_file, gpu=bool(facts["gpus"]), flag_encoder=flag_encoder
    )
    lines += check_grpo_path(gpu=bool(gpus)) if import_path else [Line("grpo", "import", NOTE, "not tried")]
    lines += check_hardware(facts)
    lines.append(check_disk(CHECKOUT, DISK_GIB["gpu" if facts["gpus"] else "cpu"]))
    shown = ", ".join(f"{name}={value}" for name, value in variables(environ).items())
    lines.append(Line("settings", "variables", OK, shown or "none set: the defaults hold"))
    lines.append(check_model(environ, defaults["MODEL"]))
    lines.append(proxies(environ))
    if fault:
        lines.append(Line("settings", "variables", MISSING, fault, "correct or unset it; see .env.example"))
    else:
        lines += check_services(grpo, server, reward)
    return lines


def page(lines: Iterable[Line]) -> str:
    """The page for people: a section a paragraph, then what is missing with its fix."""
    lines = list(lines)
    out = []
    for section in dict.fromkeys(line.section for line in lines):
        out.append(section)
        for line in lines:
            if line.section == section:
                out.append(f"  {line.state:<8}{line.name:<26}{line.found}")
                if line.fix and line.state == NOTE:
                    out.append(f"{'':36}{line.fix}")
    missing = [line for line in lines if line.state == MISSING]
    out.append("")
    for line in missing:
        out.append(f"fix {line.section}, {line.name}: {line.fix or 'as the line above says'}")
    out.append(f"{len(missing)} missing" if missing else "all there")
    return "\n".join(out)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  QDRANT_URL=http://127.0.0.1:6333 python scripts/train/doctor.py --json > doctor.json\n"
        "exit code: 0 all there, 1 something is missing",
    )
    parser.add_argument("--json", action="store_true", help="print the lines as JSON instead of the page")
    parser.add_argument("--no-import", action="store_true", help="do not import the GRPO path (saves 15 seconds)")
    options = parser.parse_args(argv)
    lines = examine(os.environ, import_path=not options.no_import)
    bad = any(line.state == MISSING for line in lines)
    if options.json:
        print(json.dumps({"fine": not bad, "lines": [asdict(line) for line in lines]}, ensure_ascii=False, indent=2))
    else:
        print(page(lines))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
