"""Judge a launch before any model is loaded: every fault with its remedy, exit code 2 if there is one.

    python -m scripts.train.preflight grpo [options] -- <the arguments of swift rlhf>

What is judged are the effective arguments: the last of repeated ones, in every spelling that swift accepts.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from scripts.train.dataset_check import Dataset, DatasetError, load, problems, system_text
from scripts.train.launch_facts import Findings, Launch, processes
from scripts.train.preflight_arguments import check_arguments
from scripts.train.preflight_nodes import check_scaling, check_server_lists
from scripts.train.preflight_services import (
    check_gpus,
    check_group_ports,
    check_lora_cap,
    check_ports,
    check_proxy,
    check_reward_settings,
    check_rollout_env,
    check_server,
)
from scripts.train.row_lengths import CannotCount, overlong
from scripts.train.swift_args import SwiftArgs, SwiftArgsError, parse, split_at_dashes
from swift_plugin.prompts import system_prompt
from swift_plugin.reward_loader import Reward, load_reward
from swift_plugin.settings import Settings

KINDS = {"grpo": "rlhf", "sft": "sft", "rollout": "rollout"}  # preflight's name -> swift's command
ALLOW_OVERLONG = "PLANNER_ALLOW_OVERLONG"


def check(launch: Launch, reward: Reward) -> Findings:
    """All findings about a launch; nothing is started, written or loaded but small files."""
    found = Findings()
    if launch.kind == "rollout":
        check_lora_cap(launch, found)
        check_ports(launch, found)
    else:
        check_datasets(launch, reward, found)
    check_arguments(launch, found)
    check_gpus(launch, found)
    if launch.kind != "rollout":
        check_scaling(launch, found)
        check_reward_settings(launch, reward, found)
    if launch.kind == "grpo":
        check_rollout_env(launch, reward, found)
        if launch.uses_rollout_server:
            check_server_lists(launch, found)
            if launch.first_node:
                check_proxy(launch, found)
                check_server(launch, found)
                check_group_ports(launch, found)
    return found


def check_datasets(launch: Launch, reward: Reward, found: Findings) -> None:
    """Columns, goldens, answers, splits and lengths of the training and watch sets."""
    train, watch = list(launch.args["dataset"] or []), list(launch.args["val_dataset"] or [])
    if not train:
        found.refuse("no --dataset: set PLANNER_TRAIN_DATA (GRPO) or PLANNER_SFT_DATA (SFT)")
    sft = launch.kind == "sft"
    for purpose, arguments in (("sft" if sft else "train", train), ("sft watch" if sft else "watch", watch)):
        for argument in arguments:
            try:
                dataset = load(argument)
            except DatasetError as error:
                found.refuse(str(error))
                continue
            key = "train rows" if arguments is train else "watch rows"
            found.facts[key] = found.facts.get(key, 0) + dataset.drawn
            bad = problems(dataset, purpose, reward, launch.settings.prompt)
            for text in bad:
                found.refuse(text)
            if not bad:
                _check_prompt(launch, dataset, found)
                _check_lengths(launch, dataset, found)


def _check_prompt(launch: Launch, dataset: Dataset, found: Findings) -> None:
    style = launch.settings.prompt
    texts = {system_text(row) for row in dataset.rows}
    if texts != {system_prompt(style)}:
        carried = "several system prompts" if len(texts) > 1 else "another system prompt"
        found.warn(
            f"{dataset.path}: the rows carry {carried} than data/prompts/{style}.txt as it stands now: evaluation and "
            "serving would ask differently; make the set again if that file was edited"
        )


def _check_lengths(launch: Launch, dataset: Dataset, found: Findings) -> None:
    try:
        long = overlong(dataset, launch.args, import_swift=not launch.dry_run or _is_local(launch.args))
    except CannotCount as error:
        found.warn(f"{dataset.path}: {error}; a real run loads it and counts")
        return
    if long is None or long.rows == 0:
        return
    fate = "dropped without a word" if launch.kind == "sft" else "trained on prompts cut from the left"
    text = (
        f"{dataset.path}: {long.rows} of {len(dataset.rows)} rows have more than {long.limit} tokens (the longest "
        f"{long.longest}, the first in line {long.first_line}) and would be {fate}"
    )
    if launch.environ.get(ALLOW_OVERLONG) == "1":
        found.warn(f"{text}; {ALLOW_OVERLONG}=1 allows it")
    else:
        found.refuse(f"{text}: raise --max_length, shorten them, or set {ALLOW_OVERLONG}=1")


def _is_local(args: SwiftArgs) -> bool:
    return os.path.isdir(os.path.expanduser(str(args["model"])))


def report(found: Findings, kind: str) -> int:
    """Print the findings to stderr and return the exit code."""
    for text in found.warnings:
        print(f"preflight: warning: {text}", file=sys.stderr)
    for text in found.refusals:
        print(f"preflight: refused: {text}", file=sys.stderr)
    if found.refusals:
        return 2
    facts = "; ".join(f"{name} {_fact(value)}" for name, value in found.facts.items())
    print(f"preflight: {kind} may start{': ' + facts if facts else ''}", file=sys.stderr)
    return 0


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={number:.3g}" for name, number in value.items())
    return (",".join(value) or "none") if isinstance(value, (list, tuple)) else str(value)


def _ids(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  DRY_RUN=1 bash run_grpo_planner.sh    # runs it with everything filled in",
    )
    parser.add_argument("kind", choices=sorted(KINDS), help="which launcher asks")
    parser.add_argument("--visible-gpus", default="", help="GPUs of this machine, comma-separated")
    parser.add_argument("--train-gpus", default="", help="GPUs to train on; empty: the CPU")
    parser.add_argument("--rollout-gpus", default="", help="GPUs of the rollout server")
    parser.add_argument("--lora-cap", type=int, default=16, help="LoRA rank the rollout server takes by default")
    parser.add_argument("--lora-ranks", default="", help="values vLLM allows for that cap, comma-separated")
    parser.add_argument("--dry-run", action="store_true", help="what the machine lacks is a warning")
    own, line = split_at_dashes(sys.argv[1:] if argv is None else argv)
    options = parser.parse_args(own)
    try:
        launch = Launch(
            kind=options.kind,
            args=parse(KINDS[options.kind], line),
            settings=Settings.from_env(os.environ),
            environ=os.environ,
            processes=processes(os.environ),
            dry_run=options.dry_run,
            visible_gpus=_ids(options.visible_gpus),
            train_gpus=_ids(options.train_gpus),
            rollout_gpus=_ids(options.rollout_gpus),
            lora_cap=options.lora_cap,
            lora_ranks=tuple(int(rank) for rank in _ids(options.lora_ranks)),
        )
        reward = load_reward(launch.settings.reward_file)
        found = check(launch, reward)  # a damaged file beside the model ends here, too
    except (SwiftArgsError, FileNotFoundError, ValueError) as error:
        print(f"preflight: refused: {error}", file=sys.stderr)
        return 2
    return report(found, options.kind)


if __name__ == "__main__":
    sys.exit(main())
