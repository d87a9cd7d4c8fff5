"""The plugin as ms-swift and TRL call it: one scoring a batch, observers that read it, errors that stop a run."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_world import TEXT, build_store, golden, plan

from swift_plugin.settings import Settings

plugin = pytest.importorskip("swift_plugin.grpo_planner_plugin", reason="needs ms-swift")

GOOD = plan("waterproof running shoes", "waterproof runners")
BATCH = [GOOD, "no plan", plan(), GOOD]


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in Settings.from_env({}).public():  # a variable of the shell must not reach these tests
        monkeypatch.delenv(f"PLANNER_{name.upper()}", raising=False)
    monkeypatch.delenv("QDRANT_URL", raising=False)
    monkeypatch.setenv("PLANNER_STORE_DIR", str(build_store(tmp_path / "store")))
    monkeypatch.setattr(plugin, "_scorers", {})
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def columns(count: int, split: str = "train", step: int = 3, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "golden_json": [golden()] * count,
        "text": [TEXT] * count,
        "id": ["a", "a", "b", "b"][:count],
        "split": [split] * count,
        "trainer_state": SimpleNamespace(global_step=step),
    }
    return {**made, **changes}


def make(run_dir: Path) -> dict[str, Any]:
    args = SimpleNamespace(output_dir=str(run_dir))
    return {name: cls(args=args) for name, cls in plugin.REWARD_FUNCS.items()}


def traces(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "reward_trace.rank0.jsonl").read_text().splitlines()]


def test_the_names_of_the_contract_are_registered() -> None:
    from swift.rewards import orms

    dimensions = ("reward", "retrieval", "field", "format", "econ", "category", "domains_f1", "budget")
    assert {f"planner_{name}" for name in dimensions} <= orms.keys()
    # ms-swift names a metric by the class: two classes of one name would share a dashboard line
    assert len({cls.__name__ for cls in plugin.REWARD_FUNCS.values()}) == len(dimensions)


def test_a_batch_is_scored_once_for_all_reward_functions(run_dir: Path) -> None:
    batch = list(BATCH)
    values = {name: func(batch, **columns(4)) for name, func in make(run_dir).items()}
    assert len(traces(run_dir)) == 4  # not 4 x 8
    assert values["planner_reward"][1] == -1.0
    assert None not in values["planner_reward"]
    assert values["planner_format"] == [1.0, None, 1.0, 1.0]
    assert values["planner_retrieval"][2] == 0.0  # no keywords where some are needed
    assert all(func_values[1] is None for name, func_values in values.items() if name != "planner_reward")


def test_a_new_list_or_a_changed_one_is_scored_anew(run_dir: Path) -> None:
    reward = make(run_dir)["planner_reward"]
    batch = list(BATCH)
    first = reward(batch, **columns(4))
    batch[0] = "no plan"  # the same list object with other content
    assert reward(batch, **columns(4))[0] == -1.0 != first[0]
    assert len(traces(run_dir)) == 8


def test_completions_as_chat_messages_are_read_as_their_text(run_dir: Path) -> None:
    reward = make(run_dir)["planner_reward"]
    messages = [[{"role": "assistant", "content": text}] for text in BATCH]
    assert reward(messages, **columns(4)) == reward(list(BATCH), **columns(4))


@pytest.mark.parametrize("column", ["golden_json", "text", "id", "split"])
def test_a_batch_without_a_column_stops_the_run(run_dir: Path, column: str) -> None:
    reward = make(run_dir)["planner_reward"]
    with pytest.raises(ValueError, match=column):
        reward(list(BATCH), **{key: value for key, value in columns(4).items() if key != column})


@pytest.mark.parametrize("split", ["Train", "training ", None, 3])
def test_a_split_that_is_none_stops_the_run(run_dir: Path, split: Any) -> None:
    """Taken for an evaluation, its rows would be trained on with the default weights."""
    reward = make(run_dir)["planner_reward"]
    with pytest.raises(ValueError, match="row b: split is .* wanted one of train, watch, dev92, test"):
        reward(list(BATCH), **{**columns(4), "split": ["train", "train", split, split]})


def test_a_wrong_weight_stops_the_run_before_a_completion(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_REWARD_WEIGHTS", "retreival=0.5")
    with pytest.raises(ValueError, match="retreival"):
        make(run_dir)


def test_a_missing_store_raises_and_leaves_no_score(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_STORE_DIR", str(run_dir / "nowhere"))
    reward = make(run_dir)["planner_reward"]
    with pytest.raises(RuntimeError, match="nowhere"):
        reward(list(BATCH), **columns(4))
    assert not (run_dir / "reward_trace.rank0.jsonl").exists()


def test_train_batches_are_logged_at_once_and_an_evaluation_pass_as_one_line(run_dir: Path) -> None:
    reward = make(run_dir)["planner_reward"]
    reward(list(BATCH), **columns(4, step=1))
    reward(list(BATCH), **columns(4, split="watch", step=1))
    reward(list(BATCH[:2]), **columns(2, split="watch", step=1, id=["c", "c"]))
    reward(list(BATCH[:2]), **columns(2, split="watch", step=1))  # prompt a again: another evaluation at this step
    reward(list(BATCH), **columns(4, step=2))
    lines = [json.loads(line) for line in (run_dir / plugin.STEP_LOG).read_text().splitlines()]
    assert [(line["step"], line["split"], line["completions"]) for line in lines] == [
        (1, "train", 4),
        (1, "watch", 6),
        (1, "watch", 2),
        (2, "train", 4),
    ]
    assert lines[0]["parse_failures"] == 0.25
    assert lines[3]["cache_hits"] == 1  # the same search again


def test_a_resumed_run_is_told_from_a_batch_sampled_again(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamic sampling scores one step several times, a resumed run as well: `started` is that of the process."""
    for _ in range(2):
        reward = make(run_dir)["planner_reward"]
        for _ in range(2):
            reward(list(BATCH), **columns(4))
        monkeypatch.setattr(plugin, "_scorers", {})  # as in the next process
        time.sleep(0.002)
    lines = [json.loads(line) for line in (run_dir / plugin.STEP_LOG).read_text().splitlines()]
    starts = [line["started"] for line in lines]
    assert starts[0] == starts[1] < starts[2] == starts[3]
    assert [row["started"] for row in traces(run_dir)] == [start for start in starts for _ in BATCH]


def test_trl_and_swift_name_the_reward_alike(run_dir: Path) -> None:
    assert make(run_dir)["planner_domains_f1"].__name__ == "PlannerDomainsF1"


def test_a_mix_experiment_trains_with_its_weights_and_chooses_its_checkpoint_with_the_default_ones(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reward.planner_reward import compute_reward, parse_plan

    monkeypatch.setenv("PLANNER_REWARD_WEIGHTS", "field=4")
    reward = make(run_dir)["planner_reward"]
    train, watch = reward(list(BATCH), **columns(4)), reward(list(BATCH), **columns(4, split="watch"))
    titles = traces(run_dir)[0]["titles"]
    default = compute_reward(parse_plan(GOOD), golden(), TEXT, titles).total
    assert watch[0] == default
    assert train[0] != default


def test_a_row_without_an_id_stops_the_run(run_dir: Path) -> None:
    with pytest.raises(ValueError, match="no id"):
        make(run_dir)["planner_reward"](list(BATCH), **columns(4, id=["a", "a", None, "b"]))


def test_a_message_without_content_is_not_scored_as_a_bad_plan(run_dir: Path) -> None:
    with pytest.raises(TypeError, match="NoneType"):
        make(run_dir)["planner_reward"]([[{"role": "assistant", "content": None}]], **columns(1))
