"""The rollout environment: one search a plan, one batch each way, errors instead of scores, evidence for all."""

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_world import REWARD_FILE, TEXT, TITLES, build_store, encoder, golden, plan, reward

from swift_plugin import rollout_env
from swift_plugin.encoders import HashedEncoder
from swift_plugin.rollout_env import SEARCH_CHARS, RolloutEnv
from swift_plugin.settings import CHECKOUT, Settings
from swift_plugin.stores import EdgeStore
from swift_plugin.trace import TRACE_KEYS, TraceWriter, trace_path

STRONG = plan("waterproof", "running shoes")


class CountingEncoder(HashedEncoder):
    """The real encoder; remembers the batches it was given."""

    def __init__(self) -> None:
        super().__init__(reward().words)
        self.batches: list[list[str]] = []

    def encode(self, texts: Sequence[str]) -> Any:
        self.batches.append(list(texts))
        return super().encode(texts)


class CountingStore(EdgeStore):
    """The real store; remembers how many vectors each batch held."""

    batches: list[int] = []

    def search_batch(self, vectors: Any, limit: int) -> list[list[str]]:
        self.batches.append(len(vectors))
        return super().search_batch(vectors, limit)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_store(tmp_path_factory.mktemp("world") / "catalog.edge")


@pytest.fixture
def env(folder: Path, tmp_path: Path) -> Iterator[RolloutEnv]:
    made = environment(folder, trace=TraceWriter(trace_path(tmp_path, 0)))
    yield made
    made.close()


def environment(folder: Path, **options: Any) -> RolloutEnv:
    store = CountingStore(folder)
    store.batches = []
    options = {"weights": reward().weights_from_env({}), "gates": (), **options}
    return RolloutEnv(reward(), CountingEncoder(), store, **options)


def score(env: RolloutEnv, completions: Sequence[str], **columns: Any) -> list[Any]:
    n = len(completions)
    given = {
        "golden_json": [golden()] * n,
        "text": [TEXT] * n,
        "ids": [f"r{i}" for i in range(n)],
        "splits": ["train"] * n,
        "step": 1,
    }
    return env.score(completions, **{**given, **columns})


def counts(env: RolloutEnv) -> dict[str, Any]:
    return {name: value for name, value in env.last_stats.items() if not name.endswith("_ms")}


def trace_lines(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in trace_path(folder, rank).read_text("ascii").splitlines()]


def test_scores_stand_in_the_order_of_the_completions(env: RolloutEnv) -> None:
    batch = ["junk", STRONG, plan(), plan("desk lamp"), STRONG]
    totals = [item.total for item in score(env, batch)]
    assert totals[0] == -1.0
    assert totals[1] == totals[4] > totals[3] > totals[2]
    alone = [score(environment(env.store.path), [completion])[0].total for completion in batch]
    assert totals == alone  # what stands beside a completion never changes its score


def test_the_reward_sees_the_titles_that_an_exact_search_finds(env: RolloutEnv, tmp_path: Path) -> None:
    breakdown = score(env, [STRONG])[0]
    vectors = encoder().encode(TITLES)
    similarity = vectors @ encoder().encode(["waterproof running shoes"])[0]
    # the 20th best is tied with others: every title found must be at least as near as the 20th
    found = trace_lines(tmp_path)[0]["titles"]
    assert len(found) == 20
    nearest = sorted(similarity, reverse=True)
    by_title = dict(zip(TITLES, similarity, strict=True))
    np.testing.assert_allclose([by_title[title] for title in found], nearest[:20], atol=1e-5)
    assert breakdown == reward().compute_reward(
        reward().parse_plan(STRONG), json.loads(golden()), TEXT, found, weights=env.weights, gates=()
    )


def test_one_search_a_plan_one_batch_each_way_and_no_search_twice(env: RolloutEnv) -> None:
    batch = [STRONG, plan("desk lamp"), STRONG, "junk", plan(), plan("desk", "lamp"), plan("?!", "desk lamp")]
    score(env, batch)
    assert env.encoder.batches == [["waterproof running shoes", "desk lamp"]]
    assert env.store.batches == [2]
    assert counts(env) == {
        "completions": 7,
        "parse_failures": 1,
        "empty_keywords": 1,
        "searches_distinct": 2,
        "cache_hits": 0,
    }
    assert [row["search"] for row in env.last_rows] == [
        *("waterproof running shoes", "desk lamp", "waterproof running shoes"),
        *(None, "", "desk lamp", "desk lamp"),
    ]
    score(env, [STRONG, plan("yoga mat")])
    assert env.encoder.batches[1:] == [["yoga mat"]]
    assert (counts(env)["searches_distinct"], counts(env)["cache_hits"]) == (2, 1)
    score(env, [STRONG])
    assert env.store.batches == [2, 1]  # all known: neither encoder nor store is asked
    assert env.last_stats["encode_ms"] == env.last_stats["store_ms"] == 0


def test_the_cache_keeps_the_searches_used_last(folder: Path) -> None:
    env = environment(folder, cache_size=2)
    score(env, [plan("desk lamp")])
    score(env, [plan("yoga mat")])
    score(env, [plan("desk lamp")])  # now the yoga mat is the older one
    score(env, [plan("rain jacket")])
    score(env, [plan("desk lamp"), plan("yoga mat")])
    assert env.encoder.batches[-1] == ["yoga mat"]


def test_a_known_search_gives_the_same_titles_and_rewards(env: RolloutEnv) -> None:
    batch = [STRONG, plan("desk lamp"), plan("yoga mat")]
    first, rows = score(env, batch), env.last_rows
    assert score(env, batch[::-1]) == first[::-1]
    assert [row["titles"] for row in env.last_rows] == [row["titles"] for row in rows[::-1]]
    assert env.store.batches == [3]


def test_a_batch_larger_than_the_cache_is_scored_like_any_other(folder: Path) -> None:
    batch = [plan(title) for title in TITLES[:30]]
    small, large = environment(folder, cache_size=3), environment(folder)
    assert score(small, batch) == score(large, batch)


def test_a_search_without_any_word_finds_nothing_and_asks_nothing(folder: Path) -> None:
    class Wordless(HashedEncoder):
        def encode(self, texts: Sequence[str]) -> Any:
            rows = super().encode(texts)
            rows[[text == "wireless" for text in texts]] = 0
            return rows

    store = CountingStore(folder)
    store.batches = []
    options = {"weights": reward().weights_from_env({}), "gates": ()}
    env = RolloutEnv(reward(), Wordless(reward().words), store, **options)
    score(env, [plan("wireless"), STRONG, plan("desk lamp")])
    assert store.batches == [2]
    assert [len(row["titles"]) for row in env.last_rows] == [0, 20, 20]
    assert env.last_rows[2]["titles"][0].endswith("desk lamp")  # answers did not shift
    score(environment_like(env, store), [plan("wireless")])
    assert store.batches == [2]


def test_a_search_that_is_cut_off_before_its_first_word_is_asked_of_nobody(env: RolloutEnv) -> None:
    """No model output may stop a run: an endpoint answers 400 for a text without a word."""
    score(env, [plan("-" * SEARCH_CHARS + "shoe"), STRONG])
    assert [len(row["titles"]) for row in env.last_rows] == [0, 20]
    assert env.encoder.batches == [[env.last_rows[1]["search"]]]
    assert env.last_stats["empty_keywords"] == 0


def environment_like(env: RolloutEnv, store: EdgeStore) -> RolloutEnv:
    return RolloutEnv(env.reward, env.encoder, store, weights=env.weights, gates=env.gates)


@pytest.mark.parametrize("character", ["a", "ﷺ", "鞋"])  # ﷺ unfolds into 18 characters
def test_the_search_string_is_bounded(env: RolloutEnv, character: str) -> None:
    score(env, [plan(character * 4000, "desk lamp")])
    (search,) = env.encoder.batches[0]
    assert len(search) == SEARCH_CHARS


def test_with_retrieval_off_nothing_is_searched(tmp_path: Path) -> None:
    settings = Settings.from_env({"PLANNER_RETRIEVAL": "off", "PLANNER_STORE_DIR": str(tmp_path / "none")})
    env = RolloutEnv.from_settings(settings, trace_dir=tmp_path, environ={})
    assert env.encoder is None and env.store is None
    strong, empty, junk = score(env, [STRONG, plan(), "junk"])
    assert strong.retrieval is None and "retrieval" in strong.abstained
    assert empty.retrieval == 0.0  # no keywords is no abstention
    assert junk.total == -1.0
    assert [row["titles"] for row in trace_lines(tmp_path)] == [None, None, None]
    assert counts(env)["searches_distinct"] == 0


def test_encoder_and_store_come_together() -> None:
    with pytest.raises(ValueError, match="together"):
        RolloutEnv(reward(), encoder(), None, weights={}, gates=())


@pytest.mark.parametrize("column", ["golden_json", "text", "ids", "splits"])
def test_columns_of_another_length_are_refused(env: RolloutEnv, column: str) -> None:
    short = {"golden_json": [golden()], "text": [TEXT], "ids": ["a"], "splits": ["train"]}
    with pytest.raises(ValueError, match=f"completions 2.*{column} 1"):
        score(env, [STRONG, STRONG], **{column: short[column]})


def test_a_broken_golden_stops_the_batch_and_names_its_record(env: RolloutEnv, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="r1.*golden_json.*domains"):
        score(env, [STRONG, STRONG], golden_json=[golden(), golden(domains=["nonsense"])])
    assert not trace_path(tmp_path, 0).exists()  # nothing was scored, nothing leaves a line
    assert env.encoder.batches == []


def test_a_text_or_completion_that_is_no_string_is_refused(env: RolloutEnv) -> None:
    with pytest.raises(ValueError, match="record r0: text is NoneType"):
        score(env, [STRONG], text=[None])
    with pytest.raises(ValueError, match="record r0: completion is list"):
        score(env, [[{"role": "assistant", "content": STRONG}]])


def test_each_distinct_golden_is_parsed_once(env: RolloutEnv) -> None:
    parsed: list[str] = []

    class Reward:
        def __getattr__(self, name: str) -> Any:
            return getattr(reward(), name)

        def parse_golden(self, golden: str, where: str = "") -> Any:
            parsed.append(golden)
            return reward().parse_golden(golden, where=where)

    env.reward = Reward()  # type: ignore[assignment]
    score(env, [STRONG] * 8, golden_json=[golden()] * 4 + [golden(category=None)] * 4)
    score(env, [STRONG])
    assert parsed == [golden(), golden(category=None)]


class CountingReward:
    """The real reward; remembers what it parsed and scored."""

    def __init__(self) -> None:
        self.parsed: list[str] = []
        self.scored: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(reward(), name)

    def parse_plan(self, text: str) -> Any:
        self.parsed.append(text)
        return reward().parse_plan(text)

    def compute_reward(self, plan: Any, golden: Any, text: str, titles: Any, **mix: Any) -> Any:
        self.scored.append((golden["category"], text, mix["weights"]["field"]))
        return reward().compute_reward(plan, golden, text, titles, **mix)


def test_each_distinct_row_is_parsed_and_scored_once(folder: Path) -> None:
    counting = CountingReward()
    env = environment(folder, weights=reward().weights_from_env({"PLANNER_REWARD_WEIGHTS": "field=0.40"}))
    env.reward = counting  # type: ignore[assignment]
    batch = [STRONG, STRONG, "junk", STRONG, STRONG, STRONG, "junk"]
    given = {
        "golden_json": [golden()] * 3 + [golden(category="鞋"), golden(), golden(), golden()],
        "text": [TEXT] * 4 + ["跑鞋", TEXT, TEXT],
        "splits": ["train"] * 5 + ["watch", "train"],
    }
    first, rows = score(env, batch, **given), env.last_rows
    assert counting.parsed == [STRONG, "junk"]
    experiment, default = env.weights["field"], reward().DEFAULT_WEIGHTS["field"]
    assert counting.scored == [
        ("跑鞋", TEXT, experiment),  # the second row is the first again
        ("跑鞋", TEXT, experiment),  # junk
        ("鞋", TEXT, experiment),  # another record, another text, another mix: each is scored by itself
        ("跑鞋", "跑鞋", experiment),
        ("跑鞋", TEXT, default),
    ]
    weights = env.weights
    for number, completion in enumerate(batch):
        row = {name: [values[number]] for name, values in given.items()}
        assert score(environment(folder, weights=weights), [completion], **row) == [first[number]]
    assert score(env, batch, **given) == first
    assert len(counting.parsed) == 2 and len(counting.scored) == 5
    untimed = [{**row, "timings": None} for row in rows]
    assert [{**row, "timings": None} for row in env.last_rows] == untimed  # the evidence is written every time


def test_a_known_score_is_taken_only_for_the_titles_it_was_made_with(folder: Path, tmp_path: Path) -> None:
    env = environment(folder, cache_size=1)
    before = score(env, [STRONG])[0]
    env.store = EdgeStore(build_store(tmp_path / "other.edge", [f"kitchen towel {n}" for n in range(30)]))
    assert score(env, [STRONG])[0] == before  # the search is still known
    score(env, [plan("desk lamp")])
    after = score(env, [STRONG])[0]
    assert before.retrieval > after.retrieval == 0.0


def test_the_scores_kept_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = [plan(title) for title in TITLES[:30]] * 2
    expected = score(environment(folder), batch)
    monkeypatch.setattr(rollout_env, "SCORES_SIZE", 4)
    env = environment(folder)
    for _ in range(2):
        assert score(env, batch) == expected
        assert (len(env._plans), len(env._scores)) == (4, 4)


def test_an_empty_batch_is_no_work(env: RolloutEnv, tmp_path: Path) -> None:
    assert score(env, []) == []
    assert not trace_path(tmp_path, 0).exists()


def test_every_completion_leaves_one_line_with_the_same_keys(env: RolloutEnv, tmp_path: Path) -> None:
    batch = [STRONG, "junk \ud800", plan(), '{"keywords": ["desk lamp"]}']
    breakdowns = score(env, batch, step=7, splits=["train", "watch", "train", "train"])
    lines = trace_lines(tmp_path)
    assert [tuple(line) for line in lines] == [TRACE_KEYS] * 4
    assert len({tuple(line["breakdown"]) for line in lines}) == 1
    assert [line["completion"] for line in lines] == batch
    assert [line["breakdown"]["total"] for line in lines] == [item.total for item in breakdowns]
    assert [line["split"] for line in lines] == ["train", "watch", "train", "train"]
    assert {line["reward_sha256"] for line in lines} == {reward().sha256}
    assert lines[1]["plan"] is None and lines[1]["search"] is None and lines[1]["titles"] is None
    assert lines[2]["search"] == "" and lines[2]["titles"] == []
    assert set(lines[0]["timings"]) == {"encode_ms", "store_ms", "score_ms"}
    assert lines == json.loads(json.dumps(env.last_rows))


def test_lines_are_strict_json_in_ascii(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.jsonl")
    row = dict.fromkeys(TRACE_KEYS)
    with pytest.raises(ValueError, match="JSON compliant"):
        writer.write([{**row, "timings": {"encode_ms": float("nan")}}])
    with pytest.raises(ValueError, match="keys"):
        writer.write([{"step": 1}])
    assert not writer.path.exists()
    writer.write([{**row, "completion": "跑鞋 \ud83d"}])
    assert writer.path.read_bytes().isascii()


def test_a_torn_last_line_spoils_no_later_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"step": 1, "comp')
    TraceWriter(path).write([dict.fromkeys(TRACE_KEYS)])
    assert json.loads(path.read_text().splitlines()[1]) == dict.fromkeys(TRACE_KEYS)


def _score_in_child(env: RolloutEnv, queue: Any) -> None:
    score(env, [plan("rain jacket")], step=2)
    queue.put(env.last_rows[0]["titles"])


def test_a_fork_opens_its_own_store_and_file(env: RolloutEnv, tmp_path: Path) -> None:
    score(env, [STRONG])  # the parent has its store and file open
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_score_in_child, args=(env, queue), daemon=True)
    child.start()
    titles = queue.get(timeout=60)
    child.join(timeout=30)
    assert child.exitcode == 0
    score(env, [plan("rain jacket")], step=3)  # the parent's store still answers
    assert env.last_rows[0]["titles"] == titles
    assert [line["step"] for line in trace_lines(tmp_path)] == [1, 2, 3]


RANK = """
import json, sys
from small_world import TEXT, TITLES, golden, plan
from swift_plugin.rollout_env import RolloutEnv
from swift_plugin.settings import Settings
rank = int(sys.argv[2])
env = RolloutEnv.from_settings(Settings.from_env(), trace_dir=sys.argv[1], rank=rank)
completions = [plan(title, str(rank)) for title in TITLES[:64]]
print("ready", flush=True)
sys.stdin.readline()
for step in range(5):
    env._cache.clear()
    scores = env.score(completions, [golden()] * 64, [TEXT] * 64, ids=[str(i) for i in range(64)],
                       splits=["train"] * 64, step=step)
print(json.dumps([item.total for item in scores]))
"""


def test_four_processes_score_at_once_from_one_embedded_store(folder: Path, tmp_path: Path) -> None:
    environ = {**os.environ, "PLANNER_STORE_DIR": str(folder), "PLANNER_REWARD_FILE": str(REWARD_FILE)}
    environ["PYTHONPATH"] = os.pathsep.join([str(CHECKOUT), str(Path(__file__).parent)])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environ}
    command = [sys.executable, "-c", RANK, str(tmp_path)]
    ranks = [subprocess.Popen([*command, str(rank)], **pipes) for rank in range(4)]
    for process in ranks:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in ranks:  # all four are loaded: now they search at the same time
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=120)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0] * 4
    for rank, output in enumerate(outputs):
        batch = [plan(title, str(rank)) for title in TITLES[:64]]
        alone = [item.total for item in score(environment(folder), batch)]
        assert json.loads(output) == alone
        lines = trace_lines(tmp_path, rank)
        assert len(lines) == 5 * 64 and {line["rank"] for line in lines} == {rank}


def test_the_same_catalogue_gives_the_same_titles_in_every_build(folder: Path, tmp_path: Path) -> None:
    # 20 of many equal distances are taken: which ones must not depend on the build
    twin = build_store(tmp_path / "twin.edge")
    batch = [plan(word) for word in ("waterproof", "Nordvik", "running", "shoes", "for")]
    first, second = environment(folder), environment(twin)
    score(first, batch)
    score(second, batch)
    assert [row["titles"] for row in first.last_rows] == [row["titles"] for row in second.last_rows]


def test_weights_and_gates_come_from_the_environment(folder: Path) -> None:
    settings = Settings.from_env({"PLANNER_STORE_DIR": str(folder)})
    environ = {"PLANNER_REWARD_WEIGHTS": "field=0.40", "PLANNER_REWARD_GATES": "grounded"}
    env = RolloutEnv.from_settings(settings, environ=environ)
    assert env.weights == reward().weights_from_env(environ) != reward().weights_from_env({})
    assert env.gates == ("grounded",)
    assert env.trace is None
    with pytest.raises(ValueError, match="PLANNER_REWARD_GATES"):
        RolloutEnv.from_settings(settings, environ={"PLANNER_REWARD_GATES": "grounding"})
