"""planner_manifest.json: everything needed to say what was trained, and no secret."""

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from scripts.train import manifest
from scripts.train.manifest import MANIFEST, build, git_state, variables, write
from tests.launch_world import LaunchWorld, clean_environment, row, write_rows
from tests.small_world import REWARD_FILE, build_store, golden


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> LaunchWorld:
    """Sets and a store: the manifest reads neither model nor adapter."""
    made = LaunchWorld(tmp_path_factory.mktemp("manifest"))
    rows = [row(n, golden_json=golden(status="review" if n else "agree")) for n in range(5)]
    write_rows(made.train, rows)
    write_rows(made.watch, [row(n, split="watch") for n in range(3)])
    build_store(made.folder / "store")
    return made


def line(world: LaunchWorld, *more: str) -> list[str]:
    return ["--dataset", str(world.train), "--val_dataset", str(world.watch), "--output_dir", "runs/x", *more]


def environment(world: LaunchWorld, **changes: str) -> dict[str, str]:
    return {**clean_environment(), **world.variables, **changes}


def test_swifts_row_limit_stands_beside_the_files_rows(world: LaunchWorld) -> None:
    made = build("grpo", ["--dataset", f"{world.train}#2", "--output_dir", "runs/x"], environment(world))
    (train,) = made["datasets"]["train"]
    assert (train["rows"], train["taken"]) == (5, 2)


def test_a_grpo_run_is_described(world: LaunchWorld) -> None:
    made = build(
        "grpo",
        line(world, "--beta", "0.1", "--beta=0.04"),
        environment(world, PLANNER_REWARD_WEIGHTS="field=0.40", PLANNER_REWARD_GATES="grounded", NPROC_PER_NODE="2"),
    )
    assert made["command"].startswith("swift rlhf --dataset ") and made["command"].endswith("--beta 0.1 --beta=0.04")
    assert made["arguments"]["beta"] == 0.04, "the effective value, not the first one"
    assert made["reward"]["sha256"] == hashlib.sha256(REWARD_FILE.read_bytes()).hexdigest()
    assert made["reward"]["weights"]["field"] == pytest.approx(0.40 / 1.10)
    assert made["reward"]["gates"] == ["grounded"]
    (train,), (watch,) = made["datasets"]["train"], made["datasets"]["watch"]
    assert train["sha256"] == hashlib.sha256(world.train.read_bytes()).hexdigest()
    assert (train["rows"], train["splits"], train["statuses"]) == (5, {"train": 5}, {"agree": 1, "review": 4})
    assert (watch["rows"], watch["splits"]) == (3, {"watch": 3})
    store = {"kind": "edge", "points": 160, "vector_size": 480, "built_with": "hashed-480", "collection": None}
    assert {name: made["retrieval"]["store"][name] for name in store} == store
    assert made["retrieval"]["encoder"] == "hashed-480"
    assert made["prompt"] == "full"
    assert made["variables"]["NPROC_PER_NODE"] == "2"
    assert made["variables"]["PLANNER_REWARD_WEIGHTS"] == "field=0.40"
    assert made["packages"]["ms-swift"] and made["packages"]["python"]
    assert made["hardware"]["cpu_cores"] and isinstance(made["hardware"]["gpus"], list)
    assert json.loads(json.dumps(made)) == made, "JSON-ready"


def test_an_sft_run_asks_no_store(world: LaunchWorld) -> None:
    made = build("sft", line(world), environment(world, PLANNER_STORE_DIR="/no/store", PLANNER_PROMPT="short"))
    assert "retrieval" not in made
    assert (made["kind"], made["prompt"]) == ("sft", "short")


def test_a_run_without_retrieval_says_so(world: LaunchWorld) -> None:
    made = build("grpo", line(world), environment(world, PLANNER_RETRIEVAL="off", PLANNER_STORE_DIR="/no/store"))
    assert made["retrieval"] == {"store": None, "encoder": None}
    assert made["settings"]["retrieval"] is False


def test_no_secret_is_written(world: LaunchWorld) -> None:
    secrets = {"PLANNER_EMBED_API_KEY": "ember-1", "QDRANT_API_KEY": "quartz-2"}
    servers = ["--vllm_server_base_url", "http://bob:gold-5@box2:8000"]
    made = build(
        "grpo",
        line(world, "--hub_token", "helium-3", "--swanlab-secret=silver-4", *servers),
        environment(world, **secrets),
    )
    text = json.dumps(made)
    for secret in ("ember-1", "quartz-2", "helium-3", "silver-4", "gold-5"):
        assert secret not in text
    assert made["variables"]["QDRANT_API_KEY"] == "***", "that a key was set is worth knowing"
    assert made["arguments"]["hub_token"] == "***"


def test_only_the_kits_variables_are_kept() -> None:
    kept = variables({"PLANNER_PROMPT": "short", "PLANNER_RETRIEVAL": " ", "HOME": "/h", "NNODES": "2", "OTHER": "x"})
    assert kept == {"NNODES": "2", "PLANNER_PROMPT": "short"}


def test_urls_are_kept_without_what_may_be_secret() -> None:
    kept = variables(
        {
            "PLANNER_API_URL": "https://bob:s3cret@api/v1?key=zzz",
            "LLM_PLANNER": "local:http://bob:s3c/ret@h/v1",
            "PLANNER_FALLBACK": "qwen-flash",
            "QDRANT_URL": "bob:s3cret@q:6333",
            "PLANNER_MODEL": "/models/@home/qwen?",
        }
    )
    assert kept == {
        "LLM_PLANNER": "local:http://h/v1",
        "PLANNER_API_URL": "https://api/v1",
        "PLANNER_FALLBACK": "qwen-flash",
        "PLANNER_MODEL": "/models/@home/qwen?",
        "QDRANT_URL": "q:6333",
    }


def test_an_older_manifest_is_kept(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "run", {"number": number})
    found = {path.name: json.loads(path.read_text())["number"] for path in (tmp_path / "run").iterdir()}
    assert found == {"planner_manifest.1.json": 0, "planner_manifest.2.json": 1, MANIFEST: 2}


def test_commit_and_dirty_flag(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    assert git_state(tmp_path) == {"commit": None, "dirty": None}, "no checkout"
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-q", "-m", "one")
    assert git_state(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "a").write_text("2")
    assert git_state(tmp_path)["dirty"] is True


def test_the_command_writes_the_file(
    world: LaunchWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(manifest.os, "environ", environment(world))
    assert manifest.main(["grpo", "--out", str(tmp_path / "new" / "run"), "--", *line(world)]) == 0
    path = tmp_path / "new" / "run" / MANIFEST
    assert str(path) in capsys.readouterr().out
    assert json.loads(path.read_text())["kind"] == "grpo"
    assert [item.name for item in path.parent.iterdir()] == [MANIFEST], "no scratch file is left"
