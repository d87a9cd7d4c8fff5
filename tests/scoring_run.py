"""A training run without a trainer: scores step after step in a process of its own and traces them, until it is ended.

Every step asks new searches, so that no cache stands between it and the services. As in training, nothing catches what
the environment raises. `python tests/scoring_run.py RUN_DIR STEPS` reads the variables a run reads.
"""

import logging
import os
import sys
from pathlib import Path

from small_world import PRODUCTS, TEXT, golden, plan

from swift_plugin.rollout_env import RolloutEnv
from swift_plugin.settings import Settings

JUNK = '{"category": "跑鞋", "keywords": ['  # a completion cut off


def completions(step: int) -> list[str]:
    """Ten plans whose searches no other step asks, one that asks nothing and one that does not parse."""
    return [*[plan(f"model {step} {product}", "waterproof") for product in PRODUCTS], plan(), JUNK]


def score(env: RolloutEnv, step: int) -> list[float]:
    """The rewards of a step's completions."""
    texts = completions(step)
    columns = {"ids": [f"train-{i}" for i in range(len(texts))], "splits": ["train"] * len(texts), "step": step}
    breakdowns = env.score(texts, [golden()] * len(texts), [TEXT] * len(texts), **columns)  # type: ignore[arg-type]
    return [breakdown.total for breakdown in breakdowns]


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    run_dir, steps = Path(sys.argv[1]), int(sys.argv[2])
    env = RolloutEnv.from_settings(Settings.from_env(), trace_dir=run_dir, rank=int(os.environ.get("RANK", "0")))
    for step in range(steps):
        print(f"step {step} {score(env, step)}", flush=True)
    env.close()


if __name__ == "__main__":
    main()
