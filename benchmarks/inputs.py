"""What the benchmarks score: completions of a real run, catalogues of any size, and the environment around them."""

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from bench import CHECKOUT
from tqdm import tqdm

from scripts.data.build_demo_catalog import DEFAULT_SEED, catalogue
from scripts.data.demo_cards import DEMO_CARDS
from scripts.files import json_lines
from swift_plugin.cards import DEFAULT_CARDS, load_cards
from swift_plugin.encoders import HashedEncoder
from swift_plugin.reward_loader import Breakdown, Reward, load_reward
from swift_plugin.rollout_env import CACHE_SIZE, RolloutEnv
from swift_plugin.settings import Settings
from swift_plugin.stores import EdgeStore, Store, replace_folder
from swift_plugin.trace import TraceWriter, trace_path

# The first and the last four steps of the demo's GRPO run, one prompt a line with the eight completions of its group.
COMPLETIONS = Path(__file__).parent / "data" / "completions.jsonl"
PHASES = ("early", "late")
PROMPTS = 32  # a step of 32 prompts with 8 completions each is what the lines speak of
ENCODED_TOGETHER = 2048
TITLES_A_CARD = 300  # the catalogue's generator makes some 395 of each card


def reward() -> Reward:
    """This checkout's reward."""
    return load_reward(Settings().reward_file)


@dataclass(frozen=True)
class Step:
    """The columns of one call of `RolloutEnv.score`, all of one length."""

    completions: tuple[str, ...]
    goldens: tuple[str, ...]
    texts: tuple[str, ...]
    ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.completions)

    def scored_by(self, env: RolloutEnv, step: int = 0) -> list[Breakdown]:
        """The environment's breakdowns of these completions, as rows of the train split."""
        return env.score(
            self.completions, self.goldens, self.texts, ids=self.ids, splits=["train"] * len(self), step=step
        )

    def with_completions(self, completions: Sequence[str]) -> "Step":
        """The same records with other completions."""
        return Step(tuple(completions), self.goldens, self.texts, self.ids)


@lru_cache(maxsize=1)
def _groups() -> tuple[dict[str, Any], ...]:
    return tuple(group for _, group in json_lines(COMPLETIONS))


def real_step(phase: str, prompts: int = PROMPTS) -> Step:
    """`prompts` groups of 8 completions of the run's `early` or `late` steps; past 32 prompts they repeat."""
    chosen = list(islice(cycle([group for group in _groups() if group["phase"] == phase]), prompts))
    rows = [(completion, group) for group in chosen for completion in group["completions"]]
    return Step(
        tuple(completion for completion, _ in rows),
        tuple(group["golden_json"] for _, group in rows),
        tuple(group["text"] for _, group in rows),
        tuple(group["id"] for _, group in rows),
    )


def with_keywords(completion: str, *words: str) -> str:
    """The completion with its keywords followed by `words`: a search of its own; as it was where it holds no list."""
    plan = reward().parse_plan(completion).plan
    if plan is None or not isinstance(plan.get("keywords"), list):
        return completion
    return json.dumps({**plan, "keywords": [*plan["keywords"], *words]}, ensure_ascii=False)


def titles(count: int) -> list[str]:
    """`count` titles of the demo's kind of catalogue; larger ones draw the same cards again with other seeds."""
    cards = load_cards(DEFAULT_CARDS)[: max(1, min(DEMO_CARDS, count // TITLES_A_CARD))]
    made: list[str] = []
    seed = DEFAULT_SEED
    while len(made) < count:
        made += [item.title for item in catalogue(cards, seed)]
        seed += 1
    return made[:count]


def encoder() -> HashedEncoder:
    """The embedded default: hashed words and trigrams."""
    return HashedEncoder(reward().words)


def store(work: Path, count: int) -> EdgeStore:
    """An embedded store of `count` titles under `work`, built at the first call and kept."""
    made = encoder()
    folder = work / f"catalog-{count}-{made.name}-{reward().sha256[:8]}.edge"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        workplace = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
        try:
            fresh = EdgeStore.create(workplace, made.dim, encoder=made.name)
            every = titles(count)
            for start in tqdm(range(0, count, ENCODED_TOGETHER), desc=f"index of {count:,} titles", unit="batch"):
                batch = every[start : start + ENCODED_TOGETHER]
                fresh.add(made.encode(batch), [{"title": title} for title in batch])
            fresh.finish()
            replace_folder(workplace, folder)
        finally:
            shutil.rmtree(workplace, ignore_errors=True)
    return EdgeStore(folder)


@contextmanager
def environment(over: Store, *, cache_size: int = CACHE_SIZE, traced: bool = True) -> Iterator[RolloutEnv]:
    """The environment that training uses, with the default weights; its trace goes to a folder deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="bench.") as folder:
        made = reward()
        trace = TraceWriter(trace_path(folder, 0)) if traced else None
        env = RolloutEnv(
            made, encoder(), over, weights=made.DEFAULT_WEIGHTS, gates=(), trace=trace, cache_size=cache_size
        )
        try:
            yield env
        finally:
            env.close()


def searches_of(env: RolloutEnv) -> list[str]:
    """The distinct searches of the step scored last, in order."""
    return list(dict.fromkeys(row["search"] for row in env.last_rows if row["search"]))


def forget(env: RolloutEnv) -> None:
    """Empty the search cache, as before a first step; goldens and Words stay known, as in the middle of a run."""
    env._cache.clear()


def import_test_servers() -> None:
    """Make the tests' servers importable (`qdrant_server`, `faulty_http`); their figures are never Qdrant's."""
    for folder in (CHECKOUT, CHECKOUT / "tests"):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
