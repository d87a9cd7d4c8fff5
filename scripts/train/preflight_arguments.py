"""Preflight of the effective swift arguments: model, adapter, template, batches, rewards, run folder."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.swift_names import KNOWN, QWEN3, TEMPLATE, architecture, is_hub_id, trained_names
from scripts.train.checkpoints import STATE, is_whole, whole_checkpoints
from scripts.train.launch_facts import Findings, Launch
from scripts.train.past_launches import launches, reward_differences
from swift_plugin.reward_loader import load_reward

GROUP_ADVISED = 8
REWARD = "planner_reward"
BATCHES = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size",
)  # fmt: skip
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "fipo", "real")  # what swift's GRPO loss computes
PLUGIN_FILE = "grpo_planner_plugin.py"


def check_arguments(launch: Launch, found: Findings) -> None:
    """All checks that need nothing but the arguments and small files beside the model."""
    check_model(launch, found)
    check_model_type(launch, found)
    check_template(launch, found)
    if launch.kind == "rollout":
        return
    check_adapter(launch, found)
    check_run_folder(launch, found)
    check_publishing(launch, found)
    check_learning_rate(launch, found)
    if launch.kind == "grpo":
        check_resumed_reward(launch, found)
        check_sampling(launch, found)
        check_batches(launch, found)
        check_rewards(launch, found)


def check_model(launch: Launch, found: Findings) -> None:
    """A folder must hold a model; a hub id is left to swift, which downloads it."""
    name = str(launch.args["model"] or "")
    folder = Path(name).expanduser()
    if not name:
        found.refuse("no model: set PLANNER_MODEL to a folder or a hub id")
    elif folder.is_dir():
        if (folder / "adapter_config.json").is_file():
            found.refuse(
                f"the model {name} is a LoRA adapter: set PLANNER_MODEL to its base, PLANNER_SFT_ADAPTER to it"
            )
        elif not (folder / "config.json").is_file():
            found.refuse(f"the folder {name} holds no config.json: set PLANNER_MODEL to a Hugging Face model folder")
    elif not is_hub_id(name):
        found.refuse(f"there is no model folder {name}: set PLANNER_MODEL to one that exists, or to a hub id org/name")
    elif launch.kind != "rollout" and not launch.train_gpus:
        found.warn(f"{name} would be downloaded and trained on this CPU, which is meant for the demo's nano model")


def _is_qwen3(launch: Launch) -> bool:
    model = str(launch.args["model"])
    found = architecture(model)
    return bool(QWEN3.search(model)) if found is None else found.startswith("qwen3")


def check_model_type(launch: Launch, found: Findings) -> None:
    """The launchers say Qwen3 unless told otherwise; swift would load another model by that name without a word."""
    model, said = str(launch.args["model"]), launch.args["model_type"]
    kind = architecture(model)
    if kind is None:
        if said == KNOWN["qwen3"][0] and is_hub_id(model) and not QWEN3.search(model):
            found.warn(
                f"{model} is not named as a Qwen3 model, and the arguments say --model_type {said}: for another family"
                " give its --model_type and --template"
            )
        return
    of_type = {model_type: name for name, (model_type, _) in KNOWN.items()}
    if said in of_type and kind != of_type[said]:
        way = "its --model_type and --template"
        if kind in KNOWN:
            way = "--model_type {} --template {}".format(*KNOWN[kind])
        found.refuse(f"config.json of {model} says {kind}, the arguments say --model_type {said}: give {way}")


def check_template(launch: Launch, found: Findings) -> None:
    """The template is that of the weights; for Qwen3 the one whose SFT and GRPO agree on the think block."""
    template = launch.args["template"]
    resumed = launch.args.values.get("resume_from_checkpoint")  # serving and the rollout server have none
    for folder in filter(None, [launch.args["model"], *(launch.args["adapters"] or []), resumed]):
        names = trained_names(str(folder))
        if names and names[1] != template:
            say = found.warn if launch.kind == "sft" else found.refuse  # SFT may teach another one
            say(
                f"{folder} was trained with --template {names[1]}, the arguments say {template}: the prompts would not"
                " be those it knows; give the template it was trained with, or train it again with this one"
            )
    if not _is_qwen3(launch) or template == TEMPLATE:
        return
    if template in (None, "qwen3"):
        found.refuse(
            f"--template {template or 'unset'}: qwen3 puts an empty think block into the SFT target but not into the "
            "GRPO prompt, so every rollout would fail to parse (reward -1 and no gradient, with nothing in the log to "
            f"say why); use --template {TEMPLATE}"
        )
    else:
        found.warn(f"--template {template} is untried here; SFT, GRPO and serving must all use the same one")


def check_adapter(launch: Launch, found: Findings) -> None:
    """The adapter to continue from, its rank against the flag and the server, and the KL reference."""
    args = launch.args
    adapters = list(args["adapters"] or [])
    if args["tuner_type"] == "full":
        if adapters:
            found.refuse(
                "--tuner_type full trains all weights, so it cannot continue from an adapter: set "
                "PLANNER_SFT_ADAPTER=none and PLANNER_MODEL to the SFT model"
            )
        return
    rank = int(args["lora_rank"])
    if not adapters and int(args["lora_alpha"]) != 2 * rank:
        found.warn(
            f"--lora_rank {rank} with --lora_alpha {args['lora_alpha']}: the kit's learning rates are for an alpha of"
            f" twice the rank; PLANNER_LORA_RANK={rank} sets both"
        )
    if launch.kind == "grpo":
        if not adapters:
            found.warn(
                "no SFT adapter: training starts with a fresh one on the model itself, which must be an SFT model then"
            )
        for adapter in adapters:
            rank = _adapter_rank(launch, adapter, found) or rank
        if adapters:
            found.facts["from"] = adapters
        references = list(args["ref_adapters"] or [])
        if adapters and float(args["beta"] or 0) > 0 and not args["resume_from_checkpoint"] and references != adapters:
            found.warn(
                f"beta is {args['beta']}, and --ref_adapters is {references or 'unset'}: the KL is taken against "
                f"{'another adapter' if references else 'the base model'}, not against the SFT adapter"
            )
    if launch.uses_rollout_server and rank > launch.lora_cap:
        found.refuse(
            f"the LoRA rank {rank} is above the rollout server's cap of {launch.lora_cap}: start both launchers with "
            f"PLANNER_LORA_RANK={rank}"
        )


def _adapter_rank(launch: Launch, adapter: str, found: Findings) -> int | None:
    folder = Path(adapter).expanduser()
    file = folder / "adapter_config.json"
    if not folder.is_dir():
        found.refuse(
            f"there is no SFT adapter at {adapter}: train it with run_sft_planner.sh, or set PLANNER_SFT_ADAPTER"
        )
        return None
    if not file.is_file():
        whole = (folder / "config.json").is_file()
        found.refuse(
            f"{adapter} is "
            + (
                "a whole model, no adapter: set PLANNER_MODEL to it and PLANNER_SFT_ADAPTER=none"
                if whole
                else "no adapter (it holds no adapter_config.json): set PLANNER_SFT_ADAPTER to a checkpoint-N folder"
            )
        )
        return None
    config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    rank = int(config.get("r", 0))
    if rank != int(launch.args["lora_rank"]):
        found.refuse(
            f"the adapter {adapter} has rank {rank}, the arguments say {launch.args['lora_rank']}: swift would keep "
            f"the adapter's without a word; set PLANNER_LORA_RANK={rank}"
        )
    if float(config.get("lora_dropout") or 0) > 0:
        found.warn(
            f"the adapter {adapter} was made with lora_dropout {config['lora_dropout']}: dropout makes the policy "
            "differ from itself, so ratios and KL are noisy; run_sft_planner.sh trains without it"
        )
    return rank


def check_run_folder(launch: Launch, found: Findings) -> None:
    """A finished or broken run is continued on purpose or left alone."""
    args = launch.args
    if args["add_version"]:
        found.refuse(
            "--add_version true moves the checkpoints away from the manifest and the log: leave it false and name the "
            "folder with --output_dir"
        )
    if not str(args["output_dir"] or "").strip():
        found.refuse("--output_dir is empty: name the run's folder, or leave the option out")
        return
    folder = Path(str(args["output_dir"])).expanduser()
    resume = args["resume_from_checkpoint"]
    whole = whole_checkpoints(folder)
    if any(folder.glob("checkpoint-*")) and not resume:
        way = f"continue with --resume_from_checkpoint {whole[-1]}" if whole else "delete them: none of them is whole"
        found.refuse(f"the run folder {folder} already holds checkpoints: name another one with --output_dir, or {way}")
    if not resume:
        return
    start = Path(str(resume)).expanduser()
    if not start.is_dir():
        found.refuse(f"--resume_from_checkpoint {resume} is no folder: name a checkpoint-N folder")
    elif not is_whole(start) and not args["resume_only_model"]:
        others = whole_checkpoints(start.parent)
        found.refuse(
            f"--resume_from_checkpoint {resume} is not whole (no readable {STATE}): the run ended while it was saved; "
            + (f"the newest that is: {others[-1]}" if others else "none beside it is, so start anew")
        )


def check_resumed_reward(launch: Launch, found: Findings) -> None:
    """A run goes on under the reward it began with: its log, its trend and its traces are of one reward."""
    folder = str(launch.args["output_dir"] or "").strip()
    resume = launch.args["resume_from_checkpoint"]
    if not folder or not resume:
        return
    past = [manifest["reward"] for manifest in launches(Path(folder).expanduser()) if "reward" in manifest]
    if not past:
        return
    reward = load_reward(launch.settings.reward_file)
    try:
        weights, gates = reward.weights_from_env(launch.environ), reward.gates_from_env(launch.environ)
    except ValueError:  # refused by check_reward_settings
        return
    changed = reward_differences(past[-1], {"sha256": reward.sha256, "weights": weights, "gates": list(gates)})
    if changed:
        start = "PLANNER_MODEL" if launch.args["tuner_type"] == "full" else "PLANNER_SFT_ADAPTER"
        found.refuse(
            f"{folder} would go on under another reward: {'; '.join(changed)}. Resume it with PLANNER_REWARD_WEIGHTS, "
            f"PLANNER_REWARD_GATES and PLANNER_REWARD_FILE as they were, or begin a run of its own: {start}={resume}, "
            "a new --output_dir and no --resume_from_checkpoint"
        )


def check_publishing(launch: Launch, found: Findings) -> None:
    """Nothing is published by accident."""
    if launch.args["push_to_hub"] and launch.args["hub_private_repo"] is not True:
        found.refuse("--push_to_hub would publish the model: add --hub_private_repo true, or drop it")


def check_learning_rate(launch: Launch, found: Findings) -> None:
    """torch refuses a negative rate after the model is loaded, and nobody refuses 0, which trains nothing."""
    rate = launch.args["learning_rate"]
    if rate is not None and not (math.isfinite(float(rate)) and float(rate) > 0):
        found.refuse(f"--learning_rate {rate}: give a number above 0")


def check_sampling(launch: Launch, found: Findings) -> None:
    """What makes a GRPO run no GRPO, and what swift would notice late or never."""
    args = launch.args
    if args["rlhf_type"] != "grpo":
        found.refuse(f"--rlhf_type {args['rlhf_type']}: this launcher trains by GRPO; leave the option out")
    beta, temperature = float(args["beta"] or 0), float(args["temperature"])
    if not (math.isfinite(beta) and beta >= 0):
        found.refuse(f"--beta {args['beta']}: give 0 (no KL), or a small positive number")
    if not (math.isfinite(temperature) and temperature > 0):
        found.refuse(f"--temperature {args['temperature']}: a group sampled without chance has no advantage; give 1.0")
    if not 0 < float(args["top_p"]) <= 1:
        found.refuse(f"--top_p {args['top_p']}: give a share above 0, at most 1")
    for loss in args["loss_type"] or ():
        if loss not in LOSS_TYPES:
            found.refuse(f"--loss_type {loss}: GRPO has {', '.join(LOSS_TYPES)}; swift would fail at the first loss")
    if args["use_vllm"] and not launch.train_gpus:
        found.lacking(launch, "--use_vllm true without a GPU to train on: leave it out, or set TRAIN_GPUS")
    parts = int(args["vllm_tensor_parallel_size"])
    if args["use_vllm"] and args["vllm_mode"] == "colocate" and (parts < 1 or launch.processes % parts):
        found.refuse(f"--vllm_tensor_parallel_size {parts} must divide the {launch.processes} training processes")


def check_batches(launch: Launch, found: Findings) -> None:
    """Groups must fill the batches of training and evaluation exactly (DESIGN section 9)."""
    args, processes = launch.args, launch.processes
    if _below_1(launch, found, BATCHES):
        return
    group = int(args["num_generations"])
    if group < 2:
        found.refuse(f"--num_generations {group}: a group of one has no advantage; give 8 (2 at least)")
        return
    if group < GROUP_ADVISED:
        found.warn(f"--num_generations {group}: below {GROUP_ADVISED} the group's mean and sigma are mostly noise")
    per_device = int(args["per_device_train_batch_size"])
    step = per_device * processes
    accumulation = int(args["gradient_accumulation_steps"] or 1)
    batch = int(args["generation_batch_size"] or step * int(args["steps_per_generation"] or accumulation))
    shown = f"{batch} completions a generation batch ({per_device} a device x {processes} processes"
    shown += ")" if args["generation_batch_size"] else f" x {batch // step})"
    if batch % step:
        found.refuse(f"{shown}: --generation_batch_size must be a multiple of {step}")
    if batch % group:
        found.refuse(
            f"{shown} do not divide into groups of {group}: change --per_device_train_batch_size, "
            "--gradient_accumulation_steps or --num_generations so that they do"
        )
    prompts = batch // group
    found.facts["batch"] = f"{batch} completions = {prompts} prompts x {group}"
    rows = found.facts.get("train rows")
    if isinstance(rows, int) and rows < prompts:
        found.refuse(f"the train set has {rows} rows, fewer than the {prompts} prompts of one batch: lower the batch")
    _check_evaluation(launch, found, group)


def _below_1(launch: Launch, found: Findings, names: Sequence[str]) -> bool:
    """Refuse counts that are given and no count."""
    given = {name: launch.args[name] for name in names}
    below = [f"--{name} {value}" for name, value in given.items() if value is not None and int(value) < 1]
    if below:
        found.refuse(f"{', '.join(below)}: give 1 or more")
    return bool(below)


def _check_evaluation(launch: Launch, found: Findings, group: int) -> None:
    args = launch.args
    if not args["val_dataset"] or args["eval_strategy"] == "no":
        if args["metric_for_best_model"]:
            found.warn("there is no evaluation, so no best checkpoint is chosen: give --val_dataset, the watch split")
        return
    if _below_1(launch, found, ("per_device_eval_batch_size", "num_generations_eval")):
        return
    eval_group = int(args["num_generations_eval"] or group)
    batch = int(args["per_device_eval_batch_size"]) * launch.processes
    if batch % eval_group:
        fitting = eval_group // math.gcd(eval_group, launch.processes)
        found.refuse(
            f"evaluation takes {batch} completions at once ({args['per_device_eval_batch_size']} a device x "
            f"{launch.processes} processes), which do not divide into groups of {eval_group}: set "
            f"--per_device_eval_batch_size to a multiple of {fitting}"
        )
        return
    rows = found.facts.get("watch rows")
    if isinstance(rows, int):
        if rows < batch // eval_group:
            found.refuse(
                f"the watch set has {rows} rows, one evaluation batch takes {batch // eval_group}: lower "
                "--per_device_eval_batch_size"
            )
        elif rows * eval_group % batch:
            dropped = rows * eval_group % batch // eval_group
            found.warn(
                f"{dropped} of the {rows} watch rows would not be evaluated: swift drops the last partial batch; let "
                f"--per_device_eval_batch_size x {launch.processes} divide {rows * eval_group}"
            )
    save, evaluate = args["save_steps"], args["eval_steps"] or args["save_steps"]
    if args["save_strategy"] == "steps" and args["eval_strategy"] in (None, "steps") and save != evaluate:
        found.warn(
            f"--save_steps {save} and --eval_steps {evaluate} differ: the best checkpoint can be one that was not saved"
        )


def check_rewards(launch: Launch, found: Findings) -> None:
    """planner_reward trains; observers watch."""
    args = launch.args
    names = list(args["reward_funcs"] or [])
    weights = [float(weight) for weight in args["reward_weights"] or [1.0] * len(names)]
    if not any(Path(str(file)).name == PLUGIN_FILE for file in args["external_plugins"] or []):
        found.refuse(f"--external_plugins does not load {PLUGIN_FILE}, which defines the rewards: add it")
    if len(weights) != len(names) + len(args["reward_model"] or []):
        found.refuse(f"{len(weights)} --reward_weights for {len(names)} --reward_funcs: give one for each, in order")
        return
    by_name = dict(zip(names, weights, strict=False))
    if not by_name.get(REWARD, 0.0) > 0:
        found.refuse(
            f"{REWARD} is not among --reward_funcs with a weight above 0: the observers give nothing for a completion "
            "that does not parse, swift counts that as 0, and 0 beats -1; change the mix with PLANNER_REWARD_WEIGHTS"
        )
    weighted = [name for name, weight in by_name.items() if name != REWARD and name.startswith("planner_") and weight]
    if weighted:
        found.warn(
            f"the observers {', '.join(weighted)} count on top of {REWARD}: a mix belongs into PLANNER_REWARD_WEIGHTS, "
            "where traces and the manifest record it"
        )
