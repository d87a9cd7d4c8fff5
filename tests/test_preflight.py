"""Preflight: each fault is refused before a model loads, with its remedy, and what is fine passes."""

import json
import os
import re
import shlex
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.train import preflight, row_lengths
from scripts.train.preflight_arguments import LOSS_TYPES
from scripts.train.preflight_services import GROUP_PORT
from swift_plugin.encoders import unit_rows
from swift_plugin.flag_encoder import FlagEncoder
from swift_plugin.settings import Settings
from swift_plugin.stores import EdgeStore
from tests.launch_world import LaunchWorld, build_world, clean_environment, row, write_adapter, write_rows
from tests.small_world import build_store, encoder, golden, plan
from tests.tiny_bge import SIZE, build_bge_folder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> LaunchWorld:
    return build_world(tmp_path_factory.mktemp("preflight"))


@pytest.fixture(scope="module")
def lines(world: LaunchWorld) -> dict[str, list[str]]:
    """The launchers' own arguments, by kind; `box` is GRPO on four GPUs."""
    made = {}
    for kind, script, variables in (
        ("grpo", "run_grpo_planner.sh", {}),
        ("sft", "run_sft_planner.sh", {}),
        ("box", "run_grpo_planner.sh", {"TRAIN_GPUS": "0,1,2,3"}),
        ("rollout", "run_grpo_rollout_server.sh", {}),
    ):
        done = world.run(script, DRY_RUN="1", **variables)
        assert done.returncode == 0, done.stderr
        words = shlex.split(done.stdout.strip().splitlines()[-1])
        command = {"grpo": "rlhf", "box": "rlhf"}.get(kind, kind)
        made[kind] = words[words.index(command) + 1 :]
    return made


@pytest.fixture
def judge(
    world: LaunchWorld, lines: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str]]]:
    """judge(kind, *more arguments, options=[...], VARIABLE=...) -> exit code and what preflight printed."""

    def run(kind: str, *more: str, options: tuple[str, ...] = (), **variables: str) -> tuple[int, str]:
        with monkeypatch.context() as patch:
            for name in list(os.environ):
                if name not in clean_environment():
                    patch.delenv(name)
            for name, value in {**world.variables, **variables}.items():
                patch.setenv(name, value)
            if kind == "box":
                patch.setenv("NPROC_PER_NODE", variables.get("NPROC_PER_NODE", "4"))
            name = "grpo" if kind == "box" else kind
            gpus = {
                "box": ("--visible-gpus", "0,1,2,3,4,5", "--train-gpus", "0,1,2,3", "--rollout-gpus", "4"),
                "rollout": ("--visible-gpus", "4", "--train-gpus", "0,1", "--rollout-gpus", "4"),
            }.get(kind, ())
            ranks = ("--lora-cap", "16", "--lora-ranks", "1,8,16,32")
            code = preflight.main([name, *gpus, *ranks, *options, "--", *lines[kind], *more])
        return code, capsys.readouterr().err

    yield run


Judge = Callable[..., tuple[int, str]]


@pytest.mark.parametrize("kind", ["grpo", "sft", "rollout"])
def test_the_defaults_pass(judge: Judge, kind: str) -> None:
    code, said = judge(kind)
    assert (code, "refused" in said) == (0, False), said


def test_a_good_launch_is_summed_up(judge: Judge) -> None:
    _, said = judge("grpo", PLANNER_REWARD_WEIGHTS="field=0.40", PLANNER_REWARD_GATES="grounded")
    for fact in ("train rows 16", "watch rows 16", "64 completions = 8 prompts x 8", "gates grounded", "160 points"):
        assert fact in said
    assert "field=0.364" in said  # 0.40 of 1.10, normalised


def test_the_loss_types_are_those_of_the_installed_swift() -> None:
    """Compared with the source: every kind that its loss function tells apart, and no other."""
    from swift.rlhf_trainers import grpo_trainer

    source = Path(grpo_trainer.__file__).read_text(encoding="utf-8")
    named = re.findall(r"self\.loss_type == '(\w+)'", source)
    for several in re.findall(r"self\.loss_type in (\[[^\]]*\])", source):
        named += re.findall(r"'(\w+)'", several)
    assert set(named) == set(LOSS_TYPES)


# --- arguments --------------------------------------------------------------------------------------------------------

ARGUMENTS: list[tuple[str, list[str], int, str, str]] = [
    ("grpo", ["--num_generations", "7"], 2, "do not divide into groups of 7", "64 completions are no groups of 7"),
    ("grpo", ["--num_generations=1"], 2, "group of one", "no advantage in a group of one"),
    ("grpo", ["--num-generations", "4"], 0, "below 8", "a small group is a warning"),
    ("grpo", ["--per_device_train_batch_size", "0"], 2, "--per_device_train_batch_size 0: give 1", "no batch"),
    ("grpo", ["--per_device_eval_batch_size", "0"], 2, "--per_device_eval_batch_size 0: give 1", "no batch"),
    ("grpo", ["--gradient_accumulation_steps", "-32"], 2, "--gradient_accumulation_steps -32: give 1", "negative"),
    ("grpo", ["--rlhf_type", "dpo"], 2, "trains by GRPO", "another algorithm"),
    ("grpo", ["--beta", "nan"], 2, "--beta nan: give 0", "no number"),
    ("grpo", ["--temperature", "0"], 2, "--temperature 0", "eight times the same completion"),
    ("grpo", ["--top_p", "1.5"], 2, "--top_p 1.5", "no share"),
    ("grpo", ["--learning_rate=-1e-5"], 2, "--learning_rate -1e-05", "torch would say so after the model is loaded"),
    ("sft", ["--learning_rate", "0"], 2, "--learning_rate 0", "nothing would be learned"),
    ("grpo", ["--loss_type", "drgrpo"], 2, "--loss_type drgrpo: GRPO has grpo", "swift fails after the first rollouts"),
    ("grpo", ["--use_vllm", "true"], 0, "--use_vllm true without a GPU", "another machine may have one"),
    ("box", ["--vllm_mode", "colocate", "--vllm_tensor_parallel_size", "3"], 2, "must divide the 4", "swift's rule"),
    ("grpo", ["--output_dir", ""], 2, "--output_dir is empty", "log and manifest would go to the root and here"),
    ("sft", ["--lora_rank", "32"], 0, "--lora_rank 32 with --lora_alpha 32", "the scale of the update halves"),
    ("sft", ["--model_type", "llama"], 2, "config.json of", "swift would load Qwen3 weights as another model"),
    ("box", ["--vllm_server_host", "::1"], 0, "answers at http://[::1]:8000", "an IPv6 address is no port"),
    ("grpo", ["--num_generations", "8"], 0, "may start", "8 is fine and no warning"),
    ("grpo", ["--per_device_train_batch_size", "4"], 2, "(4 a device x 1 processes x 1)", "the last flag counts"),
    ("grpo", ["--per_device_train_batch_size=4", "--gradient_accumulation_steps=2"], 0, "= 1 prompts x 8", "2 x 4"),
    ("grpo", ["--generation_batch_size", "96"], 2, "multiple of 64", "generation batches are whole global batches"),
    ("grpo", ["--generation_batch_size", "128"], 0, "128 completions = 16 prompts", "two batches a generation"),
    ("grpo", ["--steps_per_generation", "2"], 0, "128 completions", "the other way to say the same"),
    ("grpo", ["--generation_batch_size", "192"], 2, "fewer than the 24 prompts", "the set has 16 rows"),
    ("grpo", ["--per_device_eval_batch_size", "1"], 2, "multiple of 8", "swift's default of 1 cannot evaluate groups"),
    ("grpo", ["--per_device_eval_batch_size", "24"], 0, "1 of the 16 watch rows", "swift drops the last partial batch"),
    ("grpo", ["--per_device_eval_batch_size", "160"], 2, "lower --per_device_eval", "a batch of 20 prompts, 16 rows"),
    ("grpo", ["--per_device_eval_batch_size", "1", "--eval_strategy", "no"], 0, "no best checkpoint", "none to check"),
    ("grpo", ["--num_generations_eval", "4", "--per_device_eval_batch_size", "4"], 0, "may start", "its own group"),
    ("grpo", ["--eval_steps", "15"], 0, "differ", "a best step that was never saved"),
    ("grpo", ["--template", "qwen3"], 2, "empty think block", "SFT and GRPO would differ"),
    ("grpo", ["--template=qwen3_thinking"], 0, "untried", "someone's own business"),
    ("sft", ["--template", "qwen3"], 2, "qwen3_nothinking", "the same template everywhere"),
    ("rollout", ["--template", "qwen3"], 2, "qwen3_nothinking", "the same template everywhere"),
    ("grpo", ["--lora_rank", "8"], 2, "PLANNER_LORA_RANK=16", "the adapter's rank would be kept without a word"),
    ("box", ["--tuner_type", "full"], 2, "PLANNER_SFT_ADAPTER=none", "full training takes no adapter"),
    ("grpo", ["--beta", "0.04"], 0, "may start", "the SFT adapter is the reference by default"),
    ("grpo", ["--beta", "0.04", "--ref_adapters", "elsewhere"], 0, "not against the SFT adapter", "KL elsewhere"),
    ("grpo", ["--push_to_hub", "true"], 2, "hub_private_repo", "nothing is published by accident"),
    ("grpo", ["--push_to_hub"], 2, "hub_private_repo", "the bare flag publishes too"),
    ("sft", ["--push_to_hub", "--hub_private_repo", "false"], 2, "hub_private_repo", "public on purpose is still no"),
    ("grpo", ["--push_to_hub", "true", "--hub-private-repo=true"], 0, "may start", "private is fine"),
    ("grpo", ["--push_to_hub", "--no_push_to_hub"], 2, "no option --no_push_to_hub", "it defaults to false"),
    ("grpo", ["--add_version", "true"], 2, "--output_dir", "the manifest would lie elsewhere"),
    ("grpo", ["--reward_weights", "1", "0"], 2, "2 --reward_weights for 8", "weights and functions go in pairs"),
    ("grpo", ["--reward_weights", *"01000000"], 2, "0 beats -1", "an observer alone never punishes a parse failure"),
    ("grpo", ["--reward_weights", *"11000000"], 0, "PLANNER_REWARD_WEIGHTS", "a mix belongs into the reward"),
    ("grpo", ["--reward_funcs", "planner_field", "--reward_weights", "1"], 2, "0 beats -1", "no planner_reward at all"),
    ("grpo", ["--reward_funcs", "planner_reward", "--reward_weights", "1"], 0, "may start", "without observers"),
    ("grpo", ["--external_plugins", "other.py"], 2, "grpo_planner_plugin.py", "nobody would define the reward"),
    ("grpo", ["--scale_rewards", "gdpo"], 0, "may start", "observers of weight 0 add nothing, see the test below"),
    ("grpo", ["--loss_type", "dr_grpo", "--scale_rewards", "none"], 0, "may start", "Dr. GRPO"),
    ("grpo", ["--resume_from_checkpoint", "/no/such"], 2, "checkpoint-N", "nothing to resume from"),
    ("grpo", ["--model", "/no/such/model"], 2, "no model folder", "a path that is none"),
    ("grpo", ["--model", "Qwen/Qwen3-0.6B"], 0, "meant for the demo's nano model", "a hub id on a CPU"),
    ("grpo", ["--val_dataset", "/no/watch.jsonl"], 2, "/no/watch.jsonl is no file", "the watch set counts as well"),
    ("grpo", ["--betta", "0"], 2, "did you mean --beta?", "swift would say so after half a minute"),
    ("rollout", ["--vllm_max_lora_rank", "24"], 2, "none that vLLM allows", "vLLM knows a fixed list"),
    ("rollout", ["--vllm_max_lora_rank=8"], 2, "below the 16", "the trainer's rank would not fit"),
    ("rollout", ["--vllm_max_lora_rank", "32"], 0, "may start", "a larger cap is fine"),
    ("rollout", ["--vllm_tensor_parallel_size", "2"], 2, "make them equal", "two GPUs wanted, one given"),
    ("rollout", ["--host", "0.0.0.0"], 0, "--api_key", "open to the network"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "more", "code", "said", "reason"), ARGUMENTS)
def test_effective_arguments(judge: Judge, kind: str, more: list[str], code: int, said: str, reason: str) -> None:
    got, printed = judge(kind, *more, options=("--dry-run",))
    assert got == code, printed
    assert said in printed, reason


def test_the_batch_counts_every_process(judge: Judge) -> None:
    batches = ("--per_device_train_batch_size", "3", "--per_device_eval_batch_size", "1")
    code, said = judge("grpo", *batches, NPROC_PER_NODE="2", NNODES="4")
    assert code == 0 and "24 completions = 3 prompts x 8" in said, said
    code, said = judge("grpo", "--per_device_train_batch_size", "3", NPROC_PER_NODE="3")
    assert code == 2 and "3 a device x 3 processes" in said, said
    code, said = judge("grpo", NPROC_PER_NODE="two")
    assert code == 2 and "NPROC_PER_NODE='two'" in said, said


# --- model, adapter, run folder ---------------------------------------------------------------------------------------


def test_adapters_are_looked_into(judge: Judge, world: LaunchWorld, tmp_path: Path) -> None:
    wide = write_adapter(tmp_path / "wide", r=64, lora_dropout=0.05)
    whole = str(world.model)
    for adapter, code, said, reason in (
        (str(tmp_path / "none"), 2, "run_sft_planner.sh", "there is none"),
        (whole, 2, "PLANNER_SFT_ADAPTER=none", "a whole model is no adapter"),
        (str(tmp_path), 2, "adapter_config.json", "some folder is no adapter"),
        (str(wide), 2, "PLANNER_LORA_RANK=64", "its rank is not the one in the arguments"),
    ):
        got, printed = judge("grpo", "--adapters", adapter, "--ref_adapters", adapter)
        assert (got, said in printed) == (code, True), (reason, printed)
    got, printed = judge("grpo", "--adapters", str(wide), "--lora_rank", "64")
    assert got == 0 and "lora_dropout 0.05" in printed and f"; from {wide};" in printed, printed
    got, printed = judge("box", "--adapters", str(wide), "--lora_rank", "64", options=("--dry-run",))
    assert got == 2 and "above the rollout server's cap of 16" in printed, printed


def test_weights_keep_the_template_they_were_trained_with(judge: Judge, world: LaunchWorld, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "chatml")
    (adapter / "args.json").write_text(json.dumps({"model_type": "qwen3", "template": "chatml"}))
    chatml = ("--adapters", str(adapter), "--ref_adapters", str(adapter))
    got, printed = judge("grpo", *chatml)
    assert got == 2 and "was trained with --template chatml, the arguments say qwen3_nothinking" in printed, printed
    got, printed = judge("grpo", *chatml, "--template", "chatml")
    assert got == 0 and "was trained with" not in printed, printed
    got, printed = judge("sft", "--adapters", str(adapter))
    assert got == 0 and "was trained with --template chatml" in printed, printed  # SFT may teach another one
    got, printed = judge("grpo", *chatml, "--template", "chatml", "--resume_from_checkpoint", str(adapter))
    assert "was trained with" not in printed, printed


def test_a_model_folder_must_hold_a_model(judge: Judge, world: LaunchWorld, tmp_path: Path) -> None:
    got, printed = judge("grpo", "--model", str(tmp_path))
    assert got == 2 and "holds no config.json" in printed
    got, printed = judge("grpo", "--model", str(world.adapter))
    assert got == 2 and "is a LoRA adapter" in printed


def write_checkpoint(folder: Path, state: str = '{"global_step": 1}') -> Path:
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(state, encoding="utf-8")
    return folder


def test_a_run_folder_with_checkpoints_is_not_overwritten(judge: Judge, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (100, 20):  # by name 20 would be the later one
        write_checkpoint(run / f"checkpoint-{step}")
    got, printed = judge("grpo", f"--output-dir={run}")
    assert got == 2 and f"--resume_from_checkpoint {run}/checkpoint-100" in printed
    got, printed = judge("grpo", "--output_dir", str(run), "--resume_from_checkpoint", f"{run}/checkpoint-20")
    assert got == 0, printed


@pytest.mark.parametrize("state", [None, '{"global_step": 1', "[]"])
def test_a_checkpoint_that_was_not_saved_to_its_end_is_refused(judge: Judge, tmp_path: Path, state: str | None) -> None:
    run = tmp_path / "run"
    torn = write_checkpoint(run / "checkpoint-30", state or "")
    if state is None:
        (torn / "trainer_state.json").unlink()
    got, printed = judge("grpo", "--output_dir", str(run))
    assert got == 2 and "none of them is whole" in printed and "checkpoint-30" not in printed
    resume = ("--output_dir", str(run), "--resume_from_checkpoint", str(torn))
    got, printed = judge("grpo", *resume)
    assert got == 2 and "checkpoint-30 is not whole" in printed and "start anew" in printed
    write_checkpoint(run / "checkpoint-20")
    got, printed = judge("grpo", *resume)
    assert got == 2 and f"the newest that is: {run}/checkpoint-20" in printed
    got, printed = judge("grpo", *resume, "--resume_only_model", "true")
    assert got == 0, printed  # weights alone are enough then


# --- datasets ---------------------------------------------------------------------------------------------------------

ROWS: list[tuple[str, dict[str, Any], str, str]] = [
    ("train", {"golden_json": None}, "the column golden_json", "no golden record"),
    ("train", {"text": "  "}, "the column text", "blank counts as missing"),
    ("train", {"id": None}, "the column id", "traces name the prompt by it"),
    ("train", {"golden_json": {"category": None}}, "the column golden_json", "a nested column breaks the schema"),
    ("train", {"golden_json": "{"}, "no strict JSON", "does not parse"),
    ("train", {"golden_json": golden(status="fine")}, "'status'", "unknown status"),
    ("train", {"golden_json": golden(must_have="waterproof")}, "'must_have'", "a string where terms are wanted"),
    ("train", {"split": "dev92"}, "never used to train", "dev92 is only reported"),
    ("train", {"split": "watch"}, "only 'train' may stand", "watch rows are not trained on"),
    ("watch", {"split": "train"}, "only 'watch' may stand", "a checkpoint is not chosen on training rows"),
    ("watch", {"split": "test"}, "read once a release", "nor on the test split"),
    ("watch", {"golden_json": golden(status="review")}, "only train may hold one", "unreviewed goldens choose nothing"),
    ("train", {"messages": []}, "must be a list", "no messages"),
    ("train", {"messages": [{"role": "user"}]}, "must be a list", "a message without content"),
    ("train", {"messages": [{"role": "system", "content": "x"}]}, "does not end with a user", "nobody asks"),
    ("train", {"text": "别的话"}, "not part of the last user message", "evidence would be judged by other words"),
    ("sft", {"messages": row()["messages"]}, "nothing would be learnt", "no answer"),
    ("sft", {"messages": row(answer="{}")["messages"][:-1] + [{"role": "assistant", "content": "跑鞋"}]},
     "does not parse as a plan", "the fault would be learnt"),
    ("sft", {"messages": row(answer=f"```json\n{plan('a')}\n```")["messages"]}, "does not parse", "fences are faults"),
    ("sft", {"split": "test"}, "only 'train' may stand", "SFT obeys the splits too"),
    ("sft", {"golden_json": "[]"}, "a JSON object is expected", "a golden that is there must be right"),
]  # fmt: skip


@pytest.mark.parametrize(("which", "changes", "said", "reason"), ROWS)
def test_a_bad_row_is_named(
    judge: Judge, tmp_path: Path, which: str, changes: dict[str, Any], said: str, reason: str
) -> None:
    split = "watch" if which == "watch" else "train"
    answer = plan("waterproof running shoes") if which == "sft" else None
    rows = [row(n, split=split, answer=answer) for n in range(16)]
    rows[2] = {**rows[2], **changes}
    path = write_rows(tmp_path / "set.jsonl", rows)
    flag = "--val_dataset" if which == "watch" else "--dataset"
    code, printed = judge("sft" if which == "sft" else "grpo", flag, str(path))
    assert code == 2 and f"{path}:3: " in printed and said in printed, (reason, printed)


def test_a_bad_row_is_named_by_its_line_behind_blank_ones(judge: Judge, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "set.jsonl", [{**row(n), **({"text": " "} if n == 2 else {})} for n in range(16)])
    data.write_text("\n\n" + data.read_text(encoding="utf-8"), encoding="utf-8")
    code, printed = judge("grpo", "--dataset", str(data))
    assert code == 2 and f"{data}:5: the column text" in printed, printed


def test_review_records_may_be_trained_on(judge: Judge, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "set.jsonl", [row(n, golden_json=golden(status="review")) for n in range(16)])
    assert judge("grpo", "--dataset", str(path))[0] == 0


def test_many_bad_rows_are_counted_not_listed(judge: Judge, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "set.jsonl", [row(n, text=None) for n in range(16)])
    _, printed = judge("grpo", "--dataset", str(path))
    assert printed.count("the column text") == 5 and "11 more problems" in printed


@pytest.mark.parametrize(
    ("content", "said"), [("", "is empty"), ("{]\n", ":1: no JSON"), ("[1]\n", "no JSON object but list")]
)
def test_a_file_that_is_no_set_is_refused(judge: Judge, tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(content, encoding="utf-8")
    code, printed = judge("grpo", "--dataset", str(path))
    assert code == 2 and said in printed, printed


def test_a_hub_dataset_cannot_be_checked(judge: Judge) -> None:
    code, printed = judge("grpo", "--dataset", "someone/planner-set")
    assert code == 2 and "a hub id cannot be checked" in printed


LLAMA = {"model_type": "llama", "hidden_size": 64}


@pytest.mark.parametrize(
    ("config", "more", "said"),
    [
        (LLAMA, (), "says llama, the arguments say --model_type qwen3: give --model_type llama --template chatml"),
        ({"model_type": "qwen2"}, (), "says qwen2, the arguments say --model_type qwen3: give its --model_type and"),
        ("{", (), "config.json is no model's configuration"),
        (LLAMA, ("--model_type", "llama", "--template", "chatml"), ""),
        ({"model_type": "qwen2"}, ("--model_type", "qwen2_5", "--template", "qwen2_5"), ""),
    ],
)
def test_a_model_of_another_family_is_not_taken_for_qwen3(
    judge: Judge, tmp_path: Path, config: Any, more: tuple[str, ...], said: str
) -> None:
    (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    _, printed = judge("rollout", "--model", str(tmp_path), *more)
    assert ("the arguments say --model_type" in printed or "no model's configuration" in printed) == bool(said)
    assert said in printed, printed


def test_a_hub_id_of_another_family_is_warned_of(judge: Judge) -> None:
    assert "is not named as a Qwen3 model" in judge("rollout", "--model", "Qwen/Qwen2.5-7B-Instruct")[1]
    assert "is not named" not in judge("rollout", "--model", "Qwen/Qwen3-4B-Instruct-2507")[1]


def test_a_damaged_args_json_is_a_refusal(judge: Judge, world: LaunchWorld, tmp_path: Path) -> None:
    shutil.copytree(world.adapter, tmp_path / "adapter")
    (tmp_path / "adapter" / "args.json").write_text("{")
    code, printed = judge("grpo", "--adapters", str(tmp_path / "adapter"))
    assert code == 2 and "refused: " in printed and "no args.json of ms-swift" in printed


def test_a_gpu_is_named_once(judge: Judge) -> None:
    given = ("--visible-gpus", "0,1", "--train-gpus", "0,0")
    code, printed = judge("grpo", options=given, NPROC_PER_NODE="2")
    assert code == 2 and "TRAIN_GPUS=0,0 names a GPU twice" in printed


def test_swifts_row_limit_names_a_file(judge: Judge, world: LaunchWorld) -> None:
    code, printed = judge("grpo", "--dataset", f"{world.train}#8", "--num_generations", "8")
    assert code == 0 and "train rows 8;" in printed
    code, printed = judge("grpo", "--dataset", f"{world.train}#4", "--num_generations", "8")
    assert code == 2 and "the train set has 4 rows, fewer than the 8 prompts" in printed
    code, printed = judge("grpo", "--dataset", f"{world.train}#some")
    assert code == 2 and "how many rows to take" in printed


def test_the_prompt_of_the_rows_is_the_configured_one(judge: Judge, tmp_path: Path) -> None:
    code, printed = judge("grpo", PLANNER_PROMPT="short")
    assert code == 2 and "rendered with the full prompt: set PLANNER_PROMPT=full" in printed
    messages = row()["messages"]
    own = [{**messages[0], "content": "你是助手"}, *messages[1:]]
    path = write_rows(tmp_path / "set.jsonl", [row(n, messages=own) for n in range(16)])
    code, printed = judge("grpo", "--dataset", str(path))
    assert code == 0 and "another system prompt" in printed  # someone's own prompt: said, not refused


# --- overlong rows ----------------------------------------------------------------------------------------------------


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(row_lengths, "CACHE_DIR", tmp_path / "cache")
    return tmp_path / "cache"


def test_overlong_rows_are_counted_and_allowed_on_purpose(
    judge: Judge, world: LaunchWorld, own_cache: Path, tmp_path: Path
) -> None:
    rows = [row(n, answer=plan("waterproof running shoes")) for n in range(16)]
    long = row(99, answer=plan("waterproof running shoes", category="跑" * 60))
    path = write_rows(tmp_path / "set.jsonl", [*rows[:4], long, *rows[4:], {**long, "id": "b"}])
    lengths = {name: _tokens(world, item) for name, item in (("short", rows[0]), ("long", long))}
    assert lengths["short"] < lengths["long"]

    code, printed = judge("sft", "--dataset", str(path), "--max_length", str(lengths["long"] - 1))
    assert code == 2, printed
    assert f"2 of 18 rows have more than {lengths['long'] - 1} tokens (the longest {lengths['long']}" in printed
    assert "the first in line 5" in printed and "PLANNER_ALLOW_OVERLONG=1" in printed
    assert list(own_cache.glob("row-lengths-*.json")), "counted once for these bytes"

    code, printed = judge(
        "sft", "--dataset", str(path), "--max_length", str(lengths["long"] - 1), PLANNER_ALLOW_OVERLONG="1"
    )
    assert code == 0 and "2 of 18 rows" in printed, printed
    code, printed = judge("sft", "--dataset", str(path), "--max_length", str(lengths["long"]))
    assert (code, "rows have more" in printed) == (0, False), "a row of exactly the limit is kept"


def _tokens(world: LaunchWorld, item: dict[str, Any]) -> int:
    """Tokens of an SFT row in ChatML, counted without swift."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(world.model / "tokenizer.json"))
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in item["messages"])
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


def test_a_grpo_prompt_is_measured_without_the_answer(judge: Judge, own_cache: Path, tmp_path: Path) -> None:
    answered = [row(n, answer="很长" * 4000) for n in range(16)]
    path = write_rows(tmp_path / "set.jsonl", answered)
    assert judge("grpo", "--dataset", str(path))[0] == 0
    assert not own_cache.exists(), "an upper bound decides without swift"


def test_a_dry_run_downloads_no_tokenizer_to_count_with(judge: Judge, own_cache: Path) -> None:
    more = ("--model", "Qwen/Qwen3-0.6B", "--max_length", "64")
    code, printed = judge("grpo", *more, options=("--dry-run",))
    assert code == 0 and "a real run loads it and counts" in printed, printed
    assert "would be refused" not in printed


# --- reward, store, encoder -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "said", "reason"),
    [
        ({"PLANNER_REWARD_WEIGHTS": "felid=0.4"}, "PLANNER_REWARD_WEIGHTS", "unknown name"),
        ({"PLANNER_REWARD_WEIGHTS": "field=-1"}, "PLANNER_REWARD_WEIGHTS", "negative"),
        ({"PLANNER_REWARD_WEIGHTS": "field"}, "name=number", "malformed"),
        ({"PLANNER_REWARD_GATES": "grounded,domian"}, "PLANNER_REWARD_GATES", "unknown gate"),
        ({"PLANNER_REWARD_FILE": "/no/reward.py"}, "PLANNER_REWARD_FILE", "no such file"),
        ({"PLANNER_REWARD_WIEGHTS": "field=0.4"}, "did you mean PLANNER_REWARD_WEIGHTS", "a typo in a name"),
        ({"PLANNER_STORE_DIR": "/no/store"}, "build_demo_index.py", "no store"),
        ({"PLANNER_PROMPT": "long"}, "PLANNER_PROMPT", "no such style"),
    ],
)
def test_a_malformed_setting_stops_the_run(judge: Judge, variables: dict[str, str], said: str, reason: str) -> None:
    code, printed = judge("grpo", **variables)
    assert code == 2 and said in printed, (reason, printed)


def test_an_empty_store_is_refused(judge: Judge, tmp_path: Path) -> None:
    code, printed = judge("grpo", PLANNER_STORE_DIR=str(build_store(tmp_path / "empty", [])))
    assert code == 2 and "is empty" in printed, printed


def test_store_and_encoder_must_fit(judge: Judge, tmp_path: Path) -> None:
    store = EdgeStore.create(tmp_path / "other", 8, encoder="hashed-8")
    store.add(np.ones((1, 8), dtype=np.float32), [{"title": "running shoes"}])
    store.finish()
    code, printed = judge("grpo", PLANNER_STORE_DIR=str(tmp_path / "other"))
    assert code == 2 and "vectors of size 8" in printed and "hashed-480" in printed, printed


@pytest.mark.parametrize(
    ("share", "code", "said"),
    [(0.0, 2, "the vectors in the store are not those of hashed-480"), (0.7, 0, "another version of it"), (1.0, 0, "")],
)
def test_the_vectors_in_the_store_must_be_the_encoders(
    judge: Judge, tmp_path: Path, share: float, code: int, said: str
) -> None:
    """A store filled elsewhere does not name its encoder; its size alone would let another model's vectors through."""
    titles = [f"running shoes of kind {number}" for number in range(30)]
    own = encoder().encode(titles)
    foreign = np.roll(own, 7, axis=1)
    store = EdgeStore.create(tmp_path / "other", encoder().dim, encoder="?")
    store.add(unit_rows(share * own + (1 - share) * foreign), [{"title": title} for title in titles])
    store.finish()
    (tmp_path / "other" / EdgeStore.MANIFEST).unlink()
    found, printed = judge("grpo", PLANNER_STORE_DIR=str(tmp_path / "other"))
    assert found == code and said in printed, printed
    assert ("mean cosine" in printed) == (share < 1)


@pytest.mark.slow  # imports FlagEmbedding
def test_a_model_of_the_trainers_own_process_is_compared_with_the_store_as_well(judge: Judge, tmp_path: Path) -> None:
    """On the CPU, and in a dry run not at all: it loads no model."""
    titles = [f"running shoes of kind {number}" for number in range(30)]
    own, other = (build_bge_folder(tmp_path / str(seed) / "bge-m3", titles, seed=seed) for seed in (1, 2))
    store = EdgeStore.create(tmp_path / "store", SIZE, encoder="?")
    store.add(FlagEncoder(str(own), device="cpu").encode(titles), [{"title": title} for title in titles])
    store.finish()
    (tmp_path / "store" / EdgeStore.MANIFEST).unlink()
    variables = {"PLANNER_STORE_DIR": str(tmp_path / "store"), "PLANNER_EMBED_MODEL": str(own)}
    code, printed = judge("grpo", **variables)
    assert code == 0 and "loading bge-m3 on the CPU" in printed and "cosine" not in printed, printed
    variables["PLANNER_EMBED_MODEL"] = str(other)
    code, printed = judge("grpo", **variables)
    assert code == 2 and "the vectors in the store are not those of bge-m3" in printed, printed
    code, printed = judge("grpo", options=("--dry-run",), **variables)
    assert code == 0 and "loading" not in printed, printed


def test_a_store_that_is_down_stops_a_run_but_not_a_dry_run(judge: Judge) -> None:
    variables = {"QDRANT_URL": f"http://127.0.0.1:{_free_port()}", "PLANNER_RETRY_SECONDS": "1"}
    code, printed = judge("grpo", **variables)
    assert code == 2 and "does not answer" in printed, printed
    code, printed = judge("grpo", options=("--dry-run",), **variables)
    assert code == 0 and "a real run would be refused" in printed, printed


def test_a_run_without_retrieval_asks_no_store(judge: Judge) -> None:
    code, printed = judge("grpo", PLANNER_RETRIEVAL="off", PLANNER_STORE_DIR="/no/store")
    assert code == 0 and "PLANNER_RETRIEVAL=off" in printed, printed


# --- GPUs, ports, proxies ---------------------------------------------------------------------------------------------


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("kind", "options", "said", "reason"),
    [
        ("box", ("--visible-gpus", "0,1"), "TRAIN_GPUS=0,1,2,3", "two of them are not here"),
        ("box", ("--visible-gpus", ""), "GPUs are: none", "none at all"),
        ("rollout", ("--visible-gpus", "0"), "ROLLOUT_GPUS=4", "the fifth is not here"),
    ],
)
def test_missing_gpus(judge: Judge, kind: str, options: tuple[str, ...], said: str, reason: str) -> None:
    code, printed = judge(kind, options=options)
    assert code == 2 and said in printed, (reason, printed)
    code, printed = judge(kind, options=(*options, "--dry-run"))
    assert code == 0 and "a real run would be refused" in printed, printed


@pytest.mark.parametrize("kind", ["box", "rollout"])
def test_training_and_rollout_share_no_gpu(judge: Judge, kind: str) -> None:
    options = ("--train-gpus", "3,4", "--rollout-gpus", "4", "--visible-gpus", "3,4", "--dry-run")
    code, printed = judge(kind, options=options, NPROC_PER_NODE="2")
    assert code == 2 and "GPU 4 stands in TRAIN_GPUS=3,4 and in ROLLOUT_GPUS=4" in printed, printed


def test_one_process_a_gpu(judge: Judge) -> None:
    code, printed = judge("box", options=("--dry-run",), NPROC_PER_NODE="2")
    assert code == 2 and "leave NPROC_PER_NODE unset" in printed, printed


def test_a_busy_port_is_refused(judge: Judge) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        code, printed = judge("rollout", "--port", port)
        assert code == 2 and f"port {port} is taken" in printed and "PLANNER_ROLLOUT_PORT" in printed, printed
        assert judge("rollout", "--port", port, options=("--dry-run",))[0] == 0
    assert judge("rollout", "--port", port)[0] == 0


def test_a_second_run_on_one_machine_needs_another_port_for_its_weights(judge: Judge) -> None:
    """The trainer chooses the port, so its server is only warned; ms-swift binds it at the first weights."""
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", GROUP_PORT))
        busy.listen()
        code, printed = judge("rollout")
        after_a_killed_run, trainer = judge("box", options=("--dry-run",))
        _, elsewhere = judge("box", "--vllm_server_group_port", str(_free_port()))
        _, remote = judge("box", "--vllm_server_host", "10.0.0.2", options=("--dry-run",))
    assert code == 0 and f"--vllm_server_group_port {GROUP_PORT + 1}" in printed, printed
    assert after_a_killed_run == 0 and f"port {GROUP_PORT} is taken, where http://127.0.0.1" in trainer, trainer
    assert "would take this run's weights" not in elsewhere + remote


def test_a_port_ends_at_65535(judge: Judge) -> None:
    for kind, flag in (("rollout", "--port"), ("box", "--vllm_server_group_port")):
        code, printed = judge(kind, flag, "65536")
        assert code == 2 and f"{flag} 65536 is no port: give 1 to 65535" in printed, printed


PROXIES: list[tuple[dict[str, str], int, str]] = [
    ({"HTTP_PROXY": "http://proxy:3128"}, 2, "nothing exempts loopback"),
    ({"http_proxy": "http://proxy:3128"}, 2, "the lower-case name counts"),
    ({"ALL_PROXY": "socks5://proxy:1080"}, 2, "so does the one for all schemes"),
    ({"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.1, example.org"}, 2, "the exemptions are others"),
    ({"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "localhost"}, 2, "the launcher asks for 127.0.0.1"),
    ({"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "localhost,127.0.0.1"}, 0, "exempt"),
    ({"HTTP_PROXY": "http://proxy:3128", "no_proxy": "*"}, 0, "everything is exempt"),
    ({"HTTP_PROXY": "http://p:3128", "NO_PROXY": "127.0.0.1", "no_proxy": "x"}, 2, "the lower-case name wins"),
    ({"HTTP_PROXY": ""}, 0, "an empty variable is no proxy"),
    ({"HTTPS_PROXY": "http://proxy:3128"}, 0, "the server speaks plain HTTP"),
]


@pytest.mark.parametrize(("variables", "code", "reason"), PROXIES)
def test_a_proxy_before_the_rollout_server(judge: Judge, variables: dict[str, str], code: int, reason: str) -> None:
    got, printed = judge("box", options=("--dry-run",), **variables)
    assert got == code, (reason, printed)
    assert ("NO_PROXY" in printed) == (code == 2), reason


def test_a_proxy_matters_only_with_a_rollout_server(judge: Judge) -> None:
    assert judge("grpo", HTTP_PROXY="http://proxy:3128")[0] == 0


def test_the_rollout_server_must_answer(judge: Judge) -> None:
    code, printed = judge("box", "--vllm_server_port", str(_free_port()))
    assert code == 2 and "run_grpo_rollout_server.sh" in printed, printed


# --- what swift does with weight-0 observers under GDPO ---------------------------------------------------------------


def test_gdpo_is_untouched_by_observers_of_weight_0() -> None:
    """GDPO normalises each reward by itself; abstaining observers are NaN there and must not reach the advantage."""
    torch = pytest.importorskip("torch")
    from swift.rl_core.advantage import compute_advantages

    totals = torch.tensor([0.9, 0.1, -1.0, 0.5, 0.2, 0.2, 0.2, 0.2])
    nan = float("nan")
    observers = torch.tensor(
        [[0.9, nan], [0.1, nan], [nan, nan], [0.5, nan], [nan, 1.0], [0.3, nan], [nan, nan], [0.2, nan]]
    )
    for scaling in ("group", "gdpo"):
        alone, _ = compute_advantages(totals[:, None], torch.tensor([1.0]), 4, scale_rewards=scaling)
        watched, rewards = compute_advantages(
            torch.cat([totals[:, None], observers], dim=1), torch.tensor([1.0, 0.0, 0.0]), 4, scale_rewards=scaling
        )
        assert torch.isfinite(watched).all()
        assert torch.allclose(watched, alone, atol=1e-6)
        assert torch.equal(rewards, totals)


def test_settings_know_every_variable_of_the_launchers(world: LaunchWorld) -> None:
    Settings.from_env(world.variables)  # raises for a PLANNER_ variable that the table does not name
    assert json.loads(golden())["status"] == "agree"
