"""The rollout environment: completions in, rewards out, with the titles their keywords really find."""

import os
import time
import unicodedata
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import numpy as np

from swift_plugin.encoders import Encoder, EncoderError, make_encoder
from swift_plugin.reward_loader import Breakdown, ParsedPlan, Reward, load_reward
from swift_plugin.settings import Settings
from swift_plugin.stores import Store, make_store
from swift_plugin.trace import TraceWriter, trace_path

TRAIN_SPLIT = "train"
SPLITS = (TRAIN_SPLIT, "watch", "dev92", "test")
CACHE_SIZE = 20_000  # searches, with their titles some 50 MB
# A plan may hold 8,000 characters of keywords. Encoders cut long texts or, worse, refuse them, and model
# output must never stop a run, so the search string is bounded here. 512 characters are 80 English words.
SEARCH_CHARS = 512
# Late in training a group often holds the same text several times: it is parsed and scored once. Some 20 MB.
SCORES_SIZE = 4_096


Key = TypeVar("Key")


class BatchStats(TypedDict):
    """What one call of `score` did: counts over its completions, and milliseconds.

    `searches_distinct` were looked up, of which `cache_hits` were known already; both are 0 with retrieval
    switched off.
    """

    completions: int
    parse_failures: int
    empty_keywords: int
    searches_distinct: int
    cache_hits: int
    encode_ms: float
    store_ms: float
    score_ms: float


class RolloutEnv:
    """Scores completions against one collection; owns the search cache and the trace.

    Args:
        reward: a loaded reward file (`load_reward`).
        encoder, store: both given, or both None when retrieval is switched off for the whole run.
        weights, gates: those of training, as `weights_from_env` and `gates_from_env` of the reward give them; rows
            of any other split than `train` are scored with the default weights and no gates.
        trace: where each scored completion leaves its line; None writes nothing.
        cache_size: how many searches keep their titles, least recently used out first.

    After `score`, `last_stats` holds that batch's counts and milliseconds, `last_rows` its trace rows. `started`, in
    Unix seconds, stands in every row: a step may be scored several times by one process (dynamic sampling), or again
    by the process of a resumed run, and only this tells the two apart.
    """

    def __init__(
        self,
        reward: Reward,
        encoder: Encoder | None,
        store: Store | None,
        *,
        weights: Mapping[str, float],
        gates: Sequence[str],
        trace: TraceWriter | None = None,
        cache_size: int = CACHE_SIZE,
        rank: int = 0,
    ) -> None:
        if (encoder is None) != (store is None):
            raise ValueError("give encoder and store together, or neither to switch retrieval off")
        self.reward = reward
        self.encoder = encoder
        self.store = store
        self.weights = dict(weights)
        self.gates = tuple(gates)
        self.trace = trace
        self.rank = rank
        self.started = round(time.time(), 3)
        self.last_stats = _no_stats()
        self.last_rows: list[dict[str, Any]] = []
        self._cache_size = cache_size
        self._cache: OrderedDict[str, list[str]] = OrderedDict()
        self._goldens: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._plans: OrderedDict[str, tuple[ParsedPlan, str | None]] = OrderedDict()
        self._scores: OrderedDict[tuple[str, str, str, bool], tuple[list[str] | None, Breakdown]] = OrderedDict()

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        trace_dir: str | Path | None = None,
        rank: int = 0,
        environ: Mapping[str, str] = os.environ,
    ) -> "RolloutEnv":
        """The environment the settings describe, with the weights and gates that `environ` names.

        Nothing is connected or loaded but the reward file; a trace goes to `trace_dir` if that is given.
        """
        reward = load_reward(settings.reward_file)
        return cls(
            reward,
            make_encoder(settings, reward.words) if settings.retrieval else None,
            make_store(settings) if settings.retrieval else None,
            weights=reward.weights_from_env(environ),
            gates=reward.gates_from_env(environ),
            trace=None if trace_dir is None else TraceWriter(trace_path(trace_dir, rank)),
            rank=rank,
        )

    def score(
        self,
        completions: Sequence[str],
        golden_json: Sequence[str],
        text: Sequence[str],
        *,
        ids: Sequence[str],
        splits: Sequence[str],
        step: int | None,
    ) -> list[Breakdown]:
        """One breakdown for each completion, in order; the other columns are as long as `completions`.

        Malformed completions are scored (-1). Raises ValueError for columns of different lengths, a golden
        record that does not parse or a text that is no string, naming the record; StoreError or EncoderError
        when no titles can be had. It never returns a score for a search that was not answered.
        """
        _check_columns(completions=completions, golden_json=golden_json, text=text, ids=ids, splits=splits)
        goldens = [self._golden(golden, record) for golden, record in zip(golden_json, ids, strict=True)]
        _check_strings("text", text, ids)
        _check_strings("completion", completions, ids)

        read = [self._plan(completion) for completion in completions]
        plans, searches = [parsed for parsed, _ in read], [search for _, search in read]
        titles, stats = self._look_up([search for search in searches if search])
        found = [None if self.store is None or s is None else titles.get(s, []) for s in searches]

        started = time.perf_counter()
        breakdowns = [
            self._breakdown((completion, column, words, split == TRAIN_SPLIT), plan, golden, hits)
            for completion, column, words, split, plan, golden, hits in zip(
                completions, golden_json, text, splits, plans, goldens, found, strict=True
            )
        ]
        stats["completions"] = len(completions)
        stats["parse_failures"] = sum(parsed.plan is None for parsed in plans)
        stats["empty_keywords"] = sum(search == "" for search in searches)
        stats["score_ms"] = _ms_since(started)
        timings = {"encode_ms": stats["encode_ms"], "store_ms": stats["store_ms"], "score_ms": stats["score_ms"]}
        self.last_rows = [
            {
                "step": step,
                "split": split,
                "id": record,
                "rank": self.rank,
                "completion": completion,
                "plan": parsed.plan,
                "issues": list(parsed.issues),
                "search": search,
                "titles": hits,
                "breakdown": breakdown.to_dict(),
                "timings": timings,  # of the whole batch
                "reward_sha256": self.reward.sha256,
                "started": self.started,
            }
            for split, record, completion, parsed, search, hits, breakdown in zip(
                splits, ids, completions, plans, searches, found, breakdowns, strict=True
            )
        ]
        if self.trace is not None:
            self.trace.write(self.last_rows)
        self.last_stats = stats
        return breakdowns

    def close(self) -> None:
        """Release the store's client and the trace file of this process."""
        if self.store is not None:
            self.store.close()
        if self.trace is not None:
            self.trace.close()

    def _plan(self, completion: str) -> tuple[ParsedPlan, str | None]:
        """The parsed completion and its search, once for each distinct text."""
        known = self._plans.get(completion)
        if known is None:
            parsed = self.reward.parse_plan(completion)
            known = parsed, search_of(parsed, self.reward)
            _remember(self._plans, completion, known, SCORES_SIZE)
        return known

    def _breakdown(
        self, row: tuple[str, str, str, bool], plan: ParsedPlan, golden: dict[str, Any], titles: list[str] | None
    ) -> Breakdown:
        """The score of a row (completion, golden_json, text, whether it trains), once as long as its titles stay.

        Weights and gates are the experiment's in training, the reward's defaults in any evaluation.
        """
        is_text = isinstance(row[1], str)  # a record given as a dict is scored too, and not remembered
        known = self._scores.get(row) if is_text else None
        if known is not None and known[0] == titles:
            return known[1]
        mix = (self.weights, self.gates) if row[3] else (self.reward.DEFAULT_WEIGHTS, ())
        scored = self.reward.compute_reward(plan, golden, row[2], titles, weights=mix[0], gates=mix[1])
        if is_text:
            _remember(self._scores, row, (titles, scored), SCORES_SIZE)
        return scored

    def _golden(self, golden: str, record: str) -> dict[str, Any]:
        """The parsed record, once for each distinct string."""
        known = self._goldens.get(golden) if isinstance(golden, str) else None
        if known is None:
            known = self.reward.parse_golden(golden, where=f"record {record}")
            if isinstance(golden, str):
                _remember(self._goldens, golden, known, self._cache_size)
        return known

    def _look_up(self, searches: Sequence[str]) -> tuple[dict[str, list[str]], BatchStats]:
        """Titles of each distinct search, with what it took; one encoder batch and one store batch."""
        stats = _no_stats()
        if self.encoder is None or self.store is None:
            return {}, stats
        titles: dict[str, list[str]] = {}
        missing: list[str] = []
        for search in dict.fromkeys(searches):
            if search in self._cache:
                self._cache.move_to_end(search)
                titles[search] = self._cache[search]
            elif not self.reward.words(search):  # cut off before its first word: some encoders refuse it
                titles[search] = []
            else:
                missing.append(search)
        stats["searches_distinct"], stats["cache_hits"] = len(titles) + len(missing), len(titles)
        if not missing:
            return titles, stats
        started = time.perf_counter()
        vectors = self.encoder.encode(missing)
        if vectors.shape != (len(missing), self.encoder.dim) or not np.isfinite(vectors).all():
            raise EncoderError(
                f"the encoder {self.encoder.name} gave {vectors.shape} for {len(missing)} searches of size"
                f" {self.encoder.dim}, or NaN: nothing can be searched with that. Check the encoder."
            )
        stats["encode_ms"] = _ms_since(started)
        started = time.perf_counter()
        # A zero vector (no token) is near to nothing: no query for it, no titles.
        asked: list[int] = np.flatnonzero(vectors.any(axis=1)).tolist()
        answers = self.store.search_batch(vectors[asked], self.reward.TOP_TITLES) if asked else []
        found = dict(zip(asked, answers, strict=True))
        for row, search in enumerate(missing):
            titles[search] = found.get(row, [])
            _remember(self._cache, search, titles[search], self._cache_size)
        stats["store_ms"] = _ms_since(started)
        return titles, stats


def _no_stats() -> BatchStats:
    return BatchStats(
        completions=0,
        parse_failures=0,
        empty_keywords=0,
        searches_distinct=0,
        cache_hits=0,
        encode_ms=0.0,
        store_ms=0.0,
        score_ms=0.0,
    )


def search_of(parsed: ParsedPlan, reward: Reward) -> str | None:
    """A plan's one search: its keywords joined by spaces, "" if none counts, None without a plan."""
    if parsed.plan is None:
        return None
    search = " ".join(reward.valid_keywords(parsed.plan))
    wide = unicodedata.normalize("NFKC", search)  # one character may unfold into eighteen
    return search if len(wide) <= SEARCH_CHARS else wide[:SEARCH_CHARS]


def _remember(cache: "OrderedDict[Key, Any]", key: Key, value: Any, size: int) -> None:
    cache[key] = value
    if len(cache) > size:
        cache.popitem(last=False)


def _check_columns(**columns: Sequence[Any]) -> None:
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(f"the batch's columns differ in length ({shown}): each completion needs its own record")


def _check_strings(column: str, values: Sequence[Any], ids: Sequence[str]) -> None:
    for value, record in zip(values, ids, strict=True):
        if not isinstance(value, str):
            raise ValueError(f"record {record}: {column} is {type(value).__name__}, wanted a string")


def _ms_since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)
