"""The demo's pipeline as stages: paths, sizes and learning rates of the nano model stand here and nowhere else.

Everything a seed makes lies under runs/demo-seed{N}; the world (catalogue, index, request sets) is shared by all seeds
and lies under build/demo.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.demo.stages import CHECKOUT, Stage, code_of, end_children_with_me
from scripts.eval.analyze_grpo_log import JSON_FILE as GRPO_LOG
from scripts.eval.analyze_grpo_log import PNG_FILE as GRPO_CURVES
from swift_plugin.settings import DEMO_CATALOG, DEMO_DIR

RUNS = CHECKOUT / "runs"
STORE = DEMO_DIR / "catalog.edge"
SFT_SET, GRPO_SET = DEMO_DIR / "sft.jsonl", DEMO_DIR / "grpo.jsonl"
WATCH_SET, DEV_SET = DEMO_DIR / "watch.jsonl", DEMO_DIR / "dev92.jsonl"
DEMO_CARDS = DEMO_DIR / "cards.jsonl"
CALIBRATION = DEMO_DIR / "calibration.json"
REWARD = CHECKOUT / "reward" / "planner_reward.py"  # loaded by its path, so no import names it
DATA_STAMPS = DEMO_DIR / "stages"
PROMPT_STYLE = "short"  # the nano model reads the short prompt
DEMO_SEED = 42
SAMPLES = 8  # completions a dev record, beside the greedy one

# Full-parameter training: LoRA has nothing to adapt in a model that starts from random weights.
SFT_ROWS, SFT_EPOCHS, SFT_RATE, SFT_BATCH = 10_000, 2, "2e-3", 16
GRPO_ROWS = 1_500
GRPO_STEPS, GRPO_RATE = 80, "2e-4"
# A constant 3e-4 learns faster and falls apart after some 70 steps (the sampled keywords turn into byte fragments).
GRPO_SCHEDULE = ("--lr_scheduler_type", "linear", "--warmup_steps", "5")
# Tokens; the longest demo plan has 50, the longest prompt 58. Evaluation cuts where training does: an untrained model
# never ends.
MAX_LENGTH, MAX_COMPLETION = 256, 64

LAST = "last-checkpoint"  # the link ms-swift keeps in every run folder
PYTHON = sys.executable
# A variable of the user's shell must not turn the embedded demo into a run against a production store; mix experiments
# are welcome.
KEPT = ("PLANNER_REWARD_WEIGHTS", "PLANNER_REWARD_GATES")


def clean_environment() -> list[str]:
    """Remove the kit's variables from this process's environment (but for KEPT) and return their names."""
    dropped = sorted(
        name for name in os.environ if name.startswith(("PLANNER_", "QDRANT_")) and name not in KEPT
    )
    for name in dropped:
        del os.environ[name]
    return dropped


def begin(what: str = "the demo runs on") -> None:
    """Start a command on embedded defaults: its children end with it, and it says which variables it leaves out."""
    end_children_with_me()
    dropped = clean_environment()
    if dropped:
        print(f"{what} embedded defaults and ignores {', '.join(dropped)}")


def pinned_kernels(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Variables that make torch add up in one order on any Intel CPU with AVX2, so that a seed gives one result.

    Left to itself it takes the kernels of this CPU and a thread a core. Sums then differ in their last digit, and after
    a thousand steps of training the model is another: seed 42 alone gave SFT models of 0.558 and of 0.595 on two
    machines. Where AVX2 is not seen nothing is pinned; another maker's CPU may not heed MKL's part.
    """
    if not cpuinfo.is_file() or "avx2" not in cpuinfo.read_text(encoding="utf-8").split():
        return {}
    kernels = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    return {**kernels, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}


def kept_variables() -> dict[str, str]:
    """The mix experiment of the user's shell, as part of a stage's fingerprint."""
    return {name: os.environ[name] for name in KEPT if name in os.environ}


def data_stages(folder: Path = DEMO_DIR, sft_rows: int = SFT_ROWS, grpo_rows: int = GRPO_ROWS) -> list[Stage]:
    """Cards, templates and anchors to catalogue, embedded index, sessions, golden records and sets, all in `folder`.

    The same builders as `make data`, on the demo's 72 cards, its own request generator and the short prompt.
    """
    cards, catalogue, store = (folder / path.name for path in (DEMO_CARDS, DEMO_CATALOG, STORE))
    all_cards, anchors = CHECKOUT / "data" / "category_cards.jsonl", CHECKOUT / "data" / "anchors.jsonl"
    prompts = CHECKOUT / "data" / "prompts"
    sessions = {name: folder / f"{name}_sessions.jsonl" for name in ("sft", "grpo")}
    golden = {name: folder / f"{name}_golden.jsonl" for name in sessions}
    style = ["--prompt-style", PROMPT_STYLE]

    def build(
        name: str, script: str, arguments: list[str], inputs: list[Path], outputs: list[Path], **env: str
    ) -> Stage:
        path = f"scripts/data/{script}.py"
        return Stage(name, [PYTHON, path, *arguments], [*inputs, *code_of(CHECKOUT / path)], outputs, env)

    def golden_stage(name: str, *more: Path) -> Stage:
        files, report = [sessions[name], *more], folder / f"{name}_golden.report.json"
        arguments = [*map(str, files), "--out", str(golden[name]), "--report", str(report)]
        return build(
            f"golden-{name}", "build_planner_golden", arguments, [*files, all_cards], [golden[name], report]
        )

    return [
        build("cards", "demo_cards", ["--out", str(cards)], [all_cards], [cards]),
        build(
            "catalogue",
            "build_demo_catalog",
            ["--cards", str(cards), "--out", str(catalogue)],
            [cards],
            [catalogue],
        ),
        build(
            "index",
            "build_demo_index",
            ["--catalog", str(catalogue), "--store", str(store)],
            [catalogue, REWARD],
            [store],
        ),
        build(
            "requests",
            "build_demo_requests",
            ["--cards", str(cards), "--out", str(folder), "--sft-rows", str(sft_rows), "--grpo-rows", str(grpo_rows)],
            [cards, anchors, CHECKOUT / "data" / "demo"],
            list(sessions.values()),
        ),
        golden_stage("sft"),
        golden_stage("grpo", anchors),
        build(
            "sft-set",
            "build_planner_sft",
            [str(golden["sft"]), "--out", str(folder / SFT_SET.name), "--last-turns", *style],
            [golden["sft"], DATA_STAMPS / "index.json", prompts],
            [folder / SFT_SET.name],
            PLANNER_STORE_DIR=str(store),
        ),
        build(
            "grpo-set",
            "build_grpo_dataset",
            [str(golden["grpo"]), "--cards", str(cards), "--out-dir", str(folder), "--last-turns", *style],
            [golden["grpo"], cards, prompts],
            [folder / path.name for path in (GRPO_SET, WATCH_SET, DEV_SET)],
        ),
    ]


def calibration_stage() -> Stage:
    """How the reward ranks good, copied and broken plans, and which exploits it pays for; the same for all seeds."""
    held = sorted((CHECKOUT / "data" / "demo").glob("dev92_*.jsonl"))
    return Stage(
        "calibration",
        [PYTHON, "scripts/eval/calibrate_reward.py", "--data", str(DEV_SET), "--catalog", str(DEMO_CATALOG)]
        + ["--train", str(GRPO_SET), "--cards", str(DEMO_CARDS), "--out", str(CALIBRATION)],
        [DEV_SET, DEMO_CATALOG, GRPO_SET, DATA_STAMPS / "index.json", *held]
        + [DEMO_CARDS, REWARD],
        [CALIBRATION],
        {"PLANNER_STORE_DIR": str(STORE)},
        verdict=True,
    )


@dataclass(frozen=True)
class SeedRun:
    """One seed's folder and the stages that fill it."""

    seed: int
    root: Path
    sft_epochs: float = SFT_EPOCHS
    grpo_steps: int = GRPO_STEPS

    @property
    def nano(self) -> Path:
        return self.root / "nano"

    @property
    def sft(self) -> Path:
        return self.root / "sft"

    @property
    def grpo(self) -> Path:
        return self.root / "grpo"

    @property
    def longer(self) -> Path:
        return self.root / "sft-longer"

    @property
    def stamps(self) -> Path:
        return self.root / "stages"

    def evaluation(self, label: str) -> Path:
        """Prefix of the evaluation files of `label`."""
        return self.root / "eval" / label

    def environment(self, model: Path, **more: str) -> Mapping[str, str]:
        return {"PLANNER_PROMPT": PROMPT_STYLE, "PLANNER_MODEL": str(model), **self.kernels(), **more}

    def kernels(self) -> Mapping[str, str]:
        return pinned_kernels()

    def nano_stage(self) -> Stage:
        return Stage(
            "nano",
            [PYTHON, "scripts/train/build_nano_model.py", "--sft", str(SFT_SET), "--out", str(self.nano)]
            + ["--seed", str(self.seed)],
            [SFT_SET, CHECKOUT / "scripts" / "train" / "build_nano_model.py"],
            [self.nano],
        )

    def sft_stage(self) -> Stage:
        """SFT of the untrained nano model."""
        return self._sft_stage("sft", self.nano, self.sft, self.sft_epochs)

    def longer_stage(self, seconds: float, sft_seconds: float) -> Stage:
        """SFT continued for about `seconds`, at the pace at which `sft_seconds` went through its epochs."""
        epochs = round(self.sft_epochs * seconds / sft_seconds, 1)
        return self._sft_stage("sft-longer", self.sft / LAST, self.longer, epochs)

    def _sft_stage(self, name: str, model: Path, out: Path, epochs: float) -> Stage:
        return Stage(
            name,
            ["bash", "run_sft_planner.sh", "--tuner_type", "full", "--learning_rate", SFT_RATE]
            + ["--num_train_epochs", str(epochs)]
            + ["--per_device_train_batch_size", str(SFT_BATCH), "--gradient_accumulation_steps", "1"]
            + ["--group_by_length", "true"]
            + ["--max_length", str(MAX_LENGTH), "--seed", str(self.seed), "--logging_steps", "20"]
            + ["--save_only_model", "true", "--output_dir", str(out)],
            [SFT_SET, model, CHECKOUT / "run_sft_planner.sh"],
            [out / LAST],
            self.environment(model, PLANNER_SFT_DATA=str(SFT_SET)),
            clear=[out],
        )

    def grpo_stage(self, *more: str) -> Stage:
        """GRPO from the SFT model; `more` are further swift arguments."""
        return Stage(
            "grpo",
            ["bash", "run_grpo_planner.sh", "--tuner_type", "full", "--learning_rate", GRPO_RATE]
            + list(GRPO_SCHEDULE)
            + ["--max_steps", str(self.grpo_steps), "--max_length", str(MAX_LENGTH)]
            + ["--max_completion_length", str(MAX_COMPLETION), "--seed", str(self.seed)]
            + ["--save_only_model", "true", "--output_dir", str(self.grpo)]
            + list(more),
            [GRPO_SET, WATCH_SET, self.sft / LAST, DATA_STAMPS / "index.json"]
            + [CHECKOUT / "run_grpo_planner.sh", REWARD],
            [self.grpo / "best"],
            self.environment(
                self.sft / LAST,
                PLANNER_SFT_ADAPTER="none",
                PLANNER_TRAIN_DATA=str(GRPO_SET),
                PLANNER_WATCH_DATA=str(WATCH_SET),
                PLANNER_STORE_DIR=str(STORE),
                **kept_variables(),
            ),
            clear=[self.grpo],
        )

    def eval_stage(self, label: str, model: Path) -> Stage:
        """dev92 with `model`, greedy and SAMPLES samples; old files of another model are removed, never mixed."""
        prefix = self.evaluation(label)
        files = [Path(f"{prefix}.{kind}") for kind in ("summary.json", "greedy.jsonl", "samples.jsonl")]
        return Stage(
            f"eval-{label}",
            [PYTHON, "scripts/eval/eval_planner.py", "--model", str(model), "--data", str(DEV_SET)]
            + ["--samples", str(SAMPLES), "--seed", str(self.seed), "--max-new-tokens", str(MAX_COMPLETION)]
            + ["--out", str(prefix)],
            [model, DEV_SET, DATA_STAMPS / "index.json", REWARD],
            files,
            self.environment(model, PLANNER_STORE_DIR=str(STORE)),
            clear=files,
        )

    def table_stage(self, labels: list[str]) -> Stage:
        """The result table; ends with 1 when GRPO did not rise above SFT."""
        out = self.root / "result.json"
        return Stage(
            "table",
            [PYTHON, "scripts/eval/result_table.py", *(f"{label}={self.evaluation(label)}" for label in labels)]
            + ["--before", "sft", "--after", "grpo", "--json", str(out)],
            [Path(f"{self.evaluation(label)}.summary.json") for label in labels],
            [out],
            verdict=True,
        )

    def compare_stage(self) -> Stage:
        """GRPO against SFT in words: better, worse, mixed, or no difference this dev set could show."""
        out = self.root / "comparison.json"
        sides = [self.evaluation("sft"), self.evaluation("grpo")]
        return Stage(
            "compare",
            [PYTHON, "scripts/eval/compare_runs.py", *map(str, sides), "--json", str(out)],
            [Path(f"{side}.summary.json") for side in sides],
            [out],
            verdict=True,
        )

    def log_stage(self) -> Stage:
        """What the training log says of the GRPO run."""
        return Stage(
            "log",
            [PYTHON, "scripts/eval/analyze_grpo_log.py", str(self.grpo), "--out", str(self.root)],
            [self.grpo / "logging.jsonl", self.stamps / "grpo.json"],
            [self.root / GRPO_LOG, self.root / GRPO_CURVES],
            verdict=True,
        )

    def report_stage(self) -> Stage:
        """One HTML file with all of it."""
        out = self.root / "report.html"
        return Stage(
            "report",
            [PYTHON, "scripts/eval/report.py", str(self.root), "--out", str(out), "--calibration", str(CALIBRATION)],
            [CALIBRATION, self.root / "result.json", self.root / "comparison.json", self.root / GRPO_LOG],
            [out],
        )
