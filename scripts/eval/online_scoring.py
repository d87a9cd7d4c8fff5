"""Scores the requests of a log: searched again through the environment of training, or with the titles of the log."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from scripts.eval.online_log import Request
from scripts.eval.online_signals import Scored, rule_golden, words_in_titles
from scripts.eval.summary import abstains_on_category
from swift_plugin.cards import Card
from swift_plugin.reward_loader import Reward
from swift_plugin.rollout_env import RolloutEnv, search_of

CHUNK = 256  # requests searched as one batch
SPLIT = "online"  # any split but train: default weights, no gates

Said = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Judged:
    """A request and the golden record it is scored against, `known` or made by rule."""

    request: Request
    golden_json: str
    known: bool


def score_log(
    requests: Sequence[Request],
    goldens: Mapping[Said, str],
    cards: Sequence[Card],
    reward: Reward,
    env: RolloutEnv | None,
) -> list[Scored]:
    """Every request scored, in order.

    Args:
        goldens: the known golden records (`online_log.read_goldens`).
        env: what searches the plans and scores them; None takes the titles that stand in the log.

    Raises ValueError for a broken golden record or, without `env`, a request with keywords and no titles; StoreError
    or EncoderError where the search fails.
    """
    scored: list[Scored] = []
    with tqdm(total=len(requests), desc="score", unit="request") as bar:
        for start in range(0, len(requests), CHUNK):
            chunk = [_judged(one, goldens, cards) for one in requests[start : start + CHUNK]]
            answered = [one for one in chunk if one.request.completion is not None]
            rows = iter(_with_titles(answered, reward) if env is None else _searched(answered, env))
            scored += [_scored(one, None if one.request.completion is None else next(rows), reward) for one in chunk]
            bar.update(len(chunk))
    return scored


def _judged(request: Request, goldens: Mapping[Said, str], cards: Sequence[Card]) -> Judged:
    known = goldens.get(request.said)
    if known is not None:
        return Judged(request, known, True)
    return Judged(request, json.dumps(rule_golden(request, cards), ensure_ascii=False), False)


def _searched(answered: Sequence[Judged], env: RolloutEnv) -> list[dict[str, Any]]:
    """Trace rows of the requests, scored by the environment that training uses."""
    env.score(
        [str(one.request.completion) for one in answered],
        [one.golden_json for one in answered],
        [one.request.text for one in answered],
        ids=[one.request.id for one in answered],
        splits=[SPLIT] * len(answered),
        step=None,
    )
    return env.last_rows


def _with_titles(answered: Sequence[Judged], reward: Reward) -> Iterator[dict[str, Any]]:
    """The same keys of a trace row, from the titles in the log."""
    for one in answered:
        request = one.request
        parsed = reward.parse_plan(str(request.completion))
        search = search_of(parsed, reward)
        if search and request.titles is None:
            raise ValueError(
                f"request {request.id} has keywords and no titles, other requests of the log have them: log the titles "
                "of every search, or leave the key out of the whole log to search again"
            )
        golden = reward.parse_golden(one.golden_json, where=f"golden record of request {request.id}")
        titles = list(request.titles or ())
        breakdown = reward.compute_reward(
            parsed, golden, request.text, titles, weights=reward.DEFAULT_WEIGHTS, gates=()
        )
        yield {
            "plan": parsed.plan,
            "issues": list(parsed.issues),
            "search": search,
            "titles": titles,
            "breakdown": breakdown.to_dict(),
        }


def _scored(one: Judged, row: Mapping[str, Any] | None, reward: Reward) -> Scored:
    golden = json.loads(one.golden_json)
    fragment = abstains_on_category(golden) if one.known else golden["status"] == "context_missing"
    if row is None:
        return Scored(one.request, one.known, fragment, None, (), None, None, None, None)
    titles = None if row["titles"] is None else tuple(row["titles"])
    keywords = [] if row["plan"] is None else reward.valid_keywords(row["plan"])
    return Scored(
        request=one.request,
        golden_known=one.known,
        fragment=fragment,
        plan=row["plan"],
        issues=tuple(row["issues"]),
        search=row["search"],
        titles=titles,
        breakdown=row["breakdown"],
        grounded=words_in_titles(keywords, titles, reward),
    )
