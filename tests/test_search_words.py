"""The search words matter: on the demo's index a plan has to name what is asked, and copying the sentence does not.

Scored are the dev records that ask for something beyond the category, by the environment as training uses it. The
translations in `data/demo/dev92_english.jsonl` keep every word of the story, call the category by its card's anchor and
the attribute by its card's English word: a copy in the catalogue's language could not be luckier in its words.
"""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from commands import World
from small_world import plan

from swift_plugin.rollout_env import RolloutEnv
from swift_plugin.settings import Settings

TRANSLATIONS = Path(__file__).parents[1] / "data" / "demo" / "dev92_english.jsonl"
MARGIN = 0.15  # what the search words must be worth
PIECE_WORDS = 4  # the longest keyword that costs no econ
GATES = ("", "grounded")  # as PLANNER_REWARD_GATES holds them

GOOD, BARE, COPY = "attribute and category", "bare category", "sentence copied"
ENGLISH_WHOLE, ENGLISH_PIECES = "English sentence, whole", "English sentence, pieces"

Retrieval = dict[str, dict[str, float]]  # plan -> gates -> mean over the records


def pieces(sentence: str) -> list[str]:
    """The sentence cut into keywords, nothing left out."""
    said = sentence.split()
    return [" ".join(said[start : start + PIECE_WORDS]) for start in range(0, len(said), PIECE_WORDS)]


# (text, English text, golden) -> keywords
PLANS: dict[str, Callable[[str, str, dict[str, Any]], list[str]]] = {
    GOOD: lambda _text, _english, golden: [
        f"{golden['must_have'][0]} {golden['category_anchor']}",
        golden["must_have"][0],
    ],
    BARE: lambda _text, _english, golden: [golden["category_anchor"]],
    COPY: lambda text, _english, _golden: [text],
    ENGLISH_WHOLE: lambda _text, english, _golden: [english],
    ENGLISH_PIECES: lambda _text, english, _golden: pieces(english),
}


@pytest.fixture(scope="module")
def records(world: World) -> list[dict[str, Any]]:
    """Dev records that ask for something beyond the category."""
    return [row for row in world.rows("dev92.jsonl") if json.loads(row["golden_json"])["must_have"]]


@pytest.fixture(scope="module")
def english() -> dict[str, str]:
    rows = [json.loads(line) for line in TRANSLATIONS.read_text(encoding="utf-8").splitlines()]
    assert len({row["id"] for row in rows}) == len(rows), "a record is translated twice"
    return {row["id"]: row["text"] for row in rows}


@pytest.fixture(scope="module")
def retrieval(world: World, records: list[dict[str, Any]], english: dict[str, str]) -> Retrieval:
    means: Retrieval = {name: {} for name in PLANS}
    for gates in GATES:
        variables = {**world.environment, "PLANNER_REWARD_GATES": gates}
        env = RolloutEnv.from_settings(Settings.from_env(variables), environ=variables)
        for name, keywords in PLANS.items():
            scored = env.score(
                [plan(*keywords(r["text"], english[r["id"]], json.loads(r["golden_json"]))) for r in records],
                [r["golden_json"] for r in records],
                [r["text"] for r in records],
                ids=[r["id"] for r in records],
                splits=["train"] * len(records),  # gates act in training only
                step=None,
            )
            scores = [breakdown.retrieval for breakdown in scored if breakdown.retrieval is not None]
            assert len(scores) == len(records), f"retrieval abstained with {name!r}"
            means[name][gates] = fmean(scores)
        env.close()
    return means


def test_exactly_the_records_that_ask_for_more_are_translated(
    records: list[dict[str, Any]], english: dict[str, str]
) -> None:
    assert set(english) == {row["id"] for row in records}
    assert 50 <= len(records) <= 60
    assert all(text.isascii() and len(text.split()) >= 8 for text in english.values())


def test_nothing_of_the_sentence_is_lost_in_pieces() -> None:
    assert pieces("a b c d e f") == ["a b c d", "e f"]


def test_table(retrieval: Retrieval, records: list[dict[str, Any]]) -> None:
    """`pytest -s tests/test_search_words.py` shows the figures the other tests judge."""
    lines = [f"{'':26}{'retrieval':>10}{'grounded':>10}   mean of {len(records)} dev records"]
    for name, by_gates in retrieval.items():
        lines.append(f"{name:26}" + "".join(f"{by_gates[gates]:10.3f}" for gates in GATES))
    print("\n" + "\n".join(lines))
    assert all(0 <= value <= 1 for by_gates in retrieval.values() for value in by_gates.values())


@pytest.mark.parametrize("gates", GATES)
def test_naming_what_is_asked_beats_the_bare_category(retrieval: Retrieval, gates: str) -> None:
    assert retrieval[GOOD][gates] >= retrieval[BARE][gates] + MARGIN


@pytest.mark.parametrize("gates", GATES)
def test_the_copied_sentence_stays_below_both(retrieval: Retrieval, gates: str) -> None:
    assert retrieval[COPY][gates] < min(retrieval[GOOD][gates], retrieval[BARE][gates])


@pytest.mark.parametrize("copy", [ENGLISH_WHOLE, ENGLISH_PIECES])
def test_with_grounded_a_translated_copy_stays_below_both(retrieval: Retrieval, copy: str) -> None:
    assert retrieval[copy]["grounded"] < retrieval[copy][""], "the gate did not act"
    assert retrieval[copy]["grounded"] < min(retrieval[GOOD]["grounded"], retrieval[BARE]["grounded"])
