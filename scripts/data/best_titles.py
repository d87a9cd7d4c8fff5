"""What a plan can reach with the best titles that its own keywords find in the store.

A plan of the teacher need not be the best search; GRPO is there to find that. It has to be right: with the best of
what its keywords find among the first POOL titles, the reward must be high, else plan and golden record contradict
each other or the store does not hold the goods.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from swift_plugin.encoders import Encoder
from swift_plugin.reward_loader import Breakdown, ParsedPlan, Reward
from swift_plugin.rollout_env import search_of
from swift_plugin.stores import Store

POOL = 100  # titles looked at for one plan, of which the best 20 count
BATCH = 256  # plans searched together


class Scored(NamedTuple):
    """The reward with the titles in the order found, and with the best of them (in [0, 1], -1 without a plan)."""

    searched: float
    best: float


class Scorer:
    """Scores plans against one store. The reward's default weights, no gates: a set is no experiment."""

    def __init__(self, reward: Reward, encoder: Encoder, store: Store) -> None:
        self._reward, self._encoder, self._store = reward, encoder, store
        self._any_plan = reward.parse_plan('{"keywords": ["any"]}')
        self._title_score = lru_cache(maxsize=200_000)(self._uncached_title_score)

    def score(
        self, plans: Sequence[ParsedPlan], goldens: Sequence[Mapping[str, Any]], texts: Sequence[str]
    ) -> list[Scored]:
        """One result for each plan. Raises StoreError or EncoderError where nothing can be searched."""
        found = self._search([search_of(one, self._reward) or "" for one in plans])
        return [
            self._scored(plan, golden, text, titles)
            for plan, golden, text, titles in zip(plans, goldens, texts, found, strict=True)
        ]

    def _search(self, searches: Sequence[str]) -> list[list[str]]:
        distinct = [search for search in dict.fromkeys(searches) if search]
        titles: dict[str, list[str]] = {"": []}
        for start in tqdm(range(0, len(distinct), BATCH), desc="search", unit="batch", disable=None):
            batch = distinct[start : start + BATCH]
            vectors = self._encoder.encode(batch)
            asked = np.flatnonzero(vectors.any(axis=1)).tolist()  # a search without a token is near to nothing
            answers = self._store.search_batch(vectors[asked], POOL) if asked else []
            titles.update((batch[at], found) for at, found in zip(asked, answers, strict=True))
        return [titles.get(search, []) for search in searches]

    def _reward_of(self, plan: ParsedPlan, golden: Mapping[str, Any], text: str, titles: Sequence[str]) -> Breakdown:
        weights = self._reward.DEFAULT_WEIGHTS
        return self._reward.compute_reward(plan, dict(golden), text, titles, weights=weights, gates=())

    def _scored(self, plan: ParsedPlan, golden: Mapping[str, Any], text: str, titles: Sequence[str]) -> Scored:
        searched = self._reward_of(plan, golden, text, titles).total
        asked = (tuple(golden["must_have"]), tuple(golden["must_not"]), golden["category_anchor"])
        order = sorted(titles, key=lambda title: -self._title_score(asked, title))  # stable: first found, first taken
        return Scored(searched, self._reward_of(plan, golden, text, order).total)

    def _uncached_title_score(self, asked: tuple[tuple[str, ...], tuple[str, ...], str], title: str) -> float:
        must_have, must_not, anchor = asked
        golden = {
            "category": None,
            "domains": None,
            "budget_amount": None,
            "clear_budget": False,
            "must_have": list(must_have),
            "must_not": list(must_not),
            "category_anchor": anchor,
            "exclude_expected": False,
            "status": "agree",
        }
        return self._reward_of(self._any_plan, golden, "", [title]).retrieval or 0.0
