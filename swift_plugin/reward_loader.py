"""Loads the reward by file path: the box, the evaluation and the online service run the same bytes."""

import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

# What the environment and the plugin call; a file without one of these is not a planner reward.
REQUIRED_NAMES = (
    "DOMAINS",
    "DEFAULT_WEIGHTS",
    "GATES",
    "TOP_TITLES",
    "parse_plan",
    "parse_golden",
    "compute_reward",
    "valid_keywords",
    "words",
    "term_hits",
    "weights_from_env",
    "gates_from_env",
)


class Breakdown(Protocol):
    """The part of `RewardBreakdown` the environment uses."""

    @property
    def total(self) -> float: ...

    def to_dict(self) -> dict[str, Any]: ...


class ParsedPlan(Protocol):
    """The part of `ParsedPlan` the environment uses."""

    @property
    def plan(self) -> dict[str, Any] | None: ...

    @property
    def issues(self) -> tuple[str, ...]: ...


class Reward(Protocol):
    """A loaded reward file. The functions are documented there; `sha256` is that of the loaded bytes."""

    sha256: str
    DOMAINS: tuple[str, ...]
    DEFAULT_WEIGHTS: Mapping[str, float]
    GATES: tuple[str, ...]
    TOP_TITLES: int

    def parse_plan(self, text: str) -> ParsedPlan: ...

    def parse_golden(self, golden: str, where: str = "") -> dict[str, Any]: ...

    def compute_reward(
        self,
        plan: ParsedPlan | None,
        golden: dict[str, Any],
        text: str,
        titles: Sequence[str] | None,
        *,
        weights: Mapping[str, float],
        gates: Sequence[str],
    ) -> Breakdown: ...

    def valid_keywords(self, plan: dict[str, Any]) -> list[str]: ...

    def words(self, text: str) -> tuple[str, ...]: ...

    def term_hits(self, word: str, text: str) -> bool: ...

    def weights_from_env(self, environ: Mapping[str, str] = ...) -> dict[str, float]: ...

    def gates_from_env(self, environ: Mapping[str, str] = ...) -> tuple[str, ...]: ...


def reward_sha256(path: str | Path) -> str:
    """The hex sha256 of the reward file, as it stands in manifests, traces and results."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def load_reward(path: str | Path) -> Reward:
    """Execute the reward file at `path` and return it with its `sha256`; the same bytes are executed once.

    Raises FileNotFoundError if there is no file, ValueError if a name the kit calls is missing, and whatever
    the file itself raises.
    """
    resolved = Path(path).expanduser().resolve()
    if not resolved.is_file():
        raise FileNotFoundError(f"no reward file at {resolved}: set PLANNER_REWARD_FILE to one")
    return _load(resolved, resolved.read_bytes())


@lru_cache(maxsize=8)
def _load(path: Path, source: bytes) -> Reward:
    sha256 = hashlib.sha256(source).hexdigest()
    spec = importlib.util.spec_from_file_location(f"planner_reward_{sha256[:12]}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file: set PLANNER_REWARD_FILE to a planner_reward.py")
    module: ModuleType = importlib.util.module_from_spec(spec)
    # These bytes and no others: the loader's own way takes __pycache__, whose code counts as that of any file with the
    # same size and the same second of change. Not registered in sys.modules: two reward files may live side by side.
    exec(compile(source, str(path), "exec"), module.__dict__)
    missing = [name for name in REQUIRED_NAMES if not hasattr(module, name)]
    if missing:
        raise ValueError(f"{path} is not a planner reward: it lacks {', '.join(missing)}")
    module.sha256 = sha256  # type: ignore[attr-defined]
    return cast(Reward, module)
