"""ms-swift plugin: `--external_plugins swift_plugin/grpo_planner_plugin.py --reward_funcs planner_reward ...`.

`planner_reward` is the reward that trains. The other names are observers, one for each dimension and field part: run
them with weight 0 and every dashboard shows every dimension. ms-swift and TRL call all reward functions of a step with
the same list of completions, so the batch is parsed, searched and scored once and the observers read the result.

Rank 0 logs one line for each training batch, and one for each evaluation pass.
"""

import atexit
import json
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from swift.rewards import ORM, orms

from swift_plugin.completions import completion_text
from swift_plugin.reward_loader import Breakdown
from swift_plugin.rollout_env import SPLITS, TRAIN_SPLIT, RolloutEnv
from swift_plugin.settings import Settings
from swift_plugin.step_stats import ScoredRow, step_stats

logger = logging.getLogger("planner")

STEP_LOG = "planner_steps.jsonl"  # the log lines again, for machines, in the run folder of rank 0
REQUIRED_COLUMNS = ("golden_json", "text", "id", "split")


class BatchScorer:
    """Scores each batch once for all reward functions of this process, and keeps the step log.

    Args:
        run_dir: folder for the traces and the step log (ms-swift's `output_dir`); None keeps neither.
    """

    def __init__(self, run_dir: Path | None):
        self.rank = int(os.environ.get("RANK", "0"))
        self.run_dir = run_dir
        self.env = RolloutEnv.from_settings(Settings.from_env(), trace_dir=run_dir, rank=self.rank)
        self._completions: Sequence[Any] | None = None  # the very list of the last call, so its id cannot be reused
        self._texts: list[str] = []
        self._breakdowns: list[Breakdown] = []
        self._pass: tuple[int, str] | None = None  # evaluation pass being collected: (step, split)
        self._pass_rows: list[ScoredRow] = []
        self._pass_cost: dict[str, float] = {}
        atexit.register(self._flush_pass)

    def breakdowns(self, completions: Sequence[Any], columns: dict[str, Any]) -> list[Breakdown]:
        """The RewardBreakdown of every completion, in order; computed at the first call with this list."""
        texts = [completion_text(completion) for completion in completions]
        if completions is not self._completions or texts != self._texts:
            missing = [name for name in REQUIRED_COLUMNS if columns.get(name) is None]
            if missing:
                raise ValueError(
                    f"the batch has no column {', '.join(missing)}: the reward needs {', '.join(REQUIRED_COLUMNS)}. "
                    "Train on a set made by this kit's data scripts; the launcher's preflight names the row."
                )
            self._breakdowns = self._score(texts, columns)
            self._completions, self._texts = completions, texts
        return self._breakdowns

    def _score(self, texts: list[str], columns: dict[str, Any]) -> list[Breakdown]:
        step = int(columns["trainer_state"].global_step) if columns.get("trainer_state") is not None else 0
        splits, ids = list(columns["split"]), [str(row_id) for row_id in columns["id"]]
        if wrong := [split for split in splits if split not in SPLITS]:
            raise ValueError(
                f"row {ids[splits.index(wrong[0])]}: split is {wrong[0]!r}, wanted one of {', '.join(SPLITS)}: rows of"
                " train are scored with the training's weights and gates, all others as an evaluation"
            )
        if None in columns["id"]:
            raise ValueError("a row has no id: the groups of a step are told apart by it; give every row one")
        started = time.perf_counter()
        breakdowns = self.env.score(
            texts, list(columns["golden_json"]), list(columns["text"]), ids=ids, splits=splits, step=step
        )
        stats = self.env.last_stats
        cost = {
            "searches_total": stats["searches_distinct"],
            "cache_hits": stats["cache_hits"],
            "ms": 1000 * (time.perf_counter() - started),
        }
        rows = [ScoredRow.from_trace(line) for line in self.env.last_rows]
        # Groups are split across ranks: σ and the share of tied groups need the rows of all of them.
        gathered: list[tuple[list[ScoredRow], dict[str, float]]] = gather_object([(rows, cost)])
        if self.rank == 0:
            self._log_batch(step, sorted(set(splits)), gathered)
        return breakdowns

    def _log_batch(
        self, step: int, splits: list[str], gathered: list[tuple[list[ScoredRow], dict[str, float]]]
    ) -> None:
        rows = [row for part, _ in gathered for row in part]
        cost = {
            "searches_total": sum(part["searches_total"] for _, part in gathered),
            "cache_hits": sum(part["cache_hits"] for _, part in gathered),
            "ms": max(part["ms"] for _, part in gathered),  # ranks score side by side: a step waits for the slowest
        }
        this_pass = (step, "+".join(splits))
        # A gathered batch holds whole groups, so a prompt that comes again begins another pass (a last evaluation at
        # a step that had one already).
        repeats = {row.group for row in self._pass_rows} & {row.group for row in rows}
        if self._pass is not None and (self._pass != this_pass or repeats):
            self._flush_pass()
        if splits == [TRAIN_SPLIT]:
            self._emit(this_pass, rows, cost)
            return
        self._pass = this_pass
        self._pass_rows += rows
        self._pass_cost = {name: self._pass_cost.get(name, 0.0) + value for name, value in cost.items()}

    def _flush_pass(self) -> None:
        """Log the evaluation pass collected so far: its batches end when the next step begins, or with the process."""
        if self._pass is not None:
            self._emit(self._pass, self._pass_rows, self._pass_cost)
        self._pass, self._pass_rows, self._pass_cost = None, [], {}

    def _emit(self, which: tuple[int, str], rows: list[ScoredRow], cost: dict[str, float]) -> None:
        step, split = which
        stats = step_stats(rows)
        logger.info(
            "planner step=%d split=%s n=%d groups=%d mean=%.4f sigma=%.4f tied=%.3f parse_failures=%.3f "
            "empty_keywords=%.3f searches_per_group=%.2f cache_hits=%d/%d ms=%.0f",
            step, split, stats.completions, stats.groups, stats.mean, stats.sigma, stats.tied, stats.parse_failures,
            stats.empty_keywords, stats.searches, cost["cache_hits"], cost["searches_total"], cost["ms"],
        )  # fmt: skip
        if self.run_dir is not None:
            line = {"step": step, "split": split, **asdict(stats), **cost, "started": self.env.started}
            with (self.run_dir / STEP_LOG).open("a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")


_scorers: dict[Path | None, BatchScorer] = {}


def scorer_for(run_dir: Path | None) -> BatchScorer:
    """The one scorer of this process for `run_dir`: reward and observers share it."""
    if run_dir not in _scorers:
        _scorers[run_dir] = BatchScorer(run_dir)
    return _scorers[run_dir]


class PlannerReward(ORM):  # type: ignore[misc]  # ms-swift ships no types
    """The total of DESIGN section 6: −1 for an unparsable completion, else in [0, 1]; never None.

    Weights and gates of training come from PLANNER_REWARD_WEIGHTS and PLANNER_REWARD_GATES; a wrong value raises at
    construction, before the model trains. Rows of another split than `train` (ms-swift's evaluation on watch, which
    chooses the checkpoint) are scored with the default weights and no gates. A store or encoder that stays down past
    its retry budget raises in the call.

    >>> reward = PlannerReward(args=None)                                              # doctest: +SKIP
    >>> reward(['not a plan'], golden_json=[golden], text=['买跑鞋'], id=['a'], split=['train'])   # doctest: +SKIP
    [-1.0]
    """

    attribute = "total"

    def __init__(self, args: Any = None, **kwargs: Any):
        super().__init__(args, **kwargs)
        self.__name__ = type(self).__name__  # TRL names a reward function by this
        output_dir = getattr(args, "output_dir", None)
        self.scorer = scorer_for(Path(output_dir) if output_dir else None)

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return [getattr(item, self.attribute) for item in self.scorer.breakdowns(completions, columns)]


class PlannerRetrieval(PlannerReward):
    """Observer: the retrieval dimension, None where it abstains or nothing was parsed."""

    attribute = "retrieval"


class PlannerField(PlannerReward):
    """Observer: the field dimension."""

    attribute = "field_score"


class PlannerFormat(PlannerReward):
    """Observer: the format dimension, None only where nothing was parsed."""

    attribute = "format"


class PlannerEcon(PlannerReward):
    """Observer: the economy of the keywords."""

    attribute = "econ"


class PlannerCategory(PlannerReward):
    """Observer: the category part of the field dimension."""

    attribute = "category"


class PlannerDomainsF1(PlannerReward):
    """Observer: the domains part of the field dimension (set F1)."""

    attribute = "domains_f1"


class PlannerBudget(PlannerReward):
    """Observer: the budget part of the field dimension."""

    attribute = "budget"


REWARD_FUNCS: dict[str, type[PlannerReward]] = {
    "planner_reward": PlannerReward,
    "planner_retrieval": PlannerRetrieval,
    "planner_field": PlannerField,
    "planner_format": PlannerFormat,
    "planner_econ": PlannerEcon,
    "planner_category": PlannerCategory,
    "planner_domains_f1": PlannerDomainsF1,
    "planner_budget": PlannerBudget,
}
orms.update(REWARD_FUNCS)
