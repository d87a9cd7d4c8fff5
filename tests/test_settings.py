"""Settings: every variable has its default and meaning in one place, and a wrong one stops the run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT
from small_world import REWARD_FILE

from swift_plugin.reward_loader import load_reward, reward_sha256
from swift_plugin.settings import (
    CHECKOUT,
    DEFAULT_EMBED_MODEL,
    VARIABLES,
    Settings,
    known_variables,
    public_url,
)


def test_defaults_are_the_embedded_world_in_this_checkout() -> None:
    settings = Settings.from_env({})
    assert settings == Settings()
    assert settings.reward_file == CHECKOUT / "reward" / "planner_reward.py" and settings.reward_file.is_file()
    assert settings.store_dir == CHECKOUT / "build" / "demo" / "catalog.edge"
    assert settings.embed_url is settings.embed_model is settings.qdrant_url is None
    assert (settings.retrieval, settings.prompt, settings.collection) == (True, "full", "products")
    assert settings.retry_budget_s == 60


def test_every_variable_is_read(tmp_path: Path) -> None:
    environ = {
        "PLANNER_REWARD_FILE": str(tmp_path / "r.py"),
        "PLANNER_EMBED_URL": "http://127.0.0.1:8081/v1/",
        "PLANNER_EMBED_MODEL": "text-embedding-v4",
        "PLANNER_EMBED_API_KEY": "k1",
        "PLANNER_EMBED_BATCH": "10",
        "QDRANT_URL": " http://10.0.0.2:6333 ",
        "QDRANT_API_KEY": "k2",
        "QDRANT_COLLECTION": "items",
        "PLANNER_STORE_DIR": str(tmp_path / "s"),
        "PLANNER_RETRY_SECONDS": "2.5",
        "PLANNER_REQUEST_SECONDS": "1",
        "PLANNER_RETRIEVAL": "off",
        "PLANNER_PROMPT": "short",
    }
    assert Settings.from_env(environ) == Settings(
        reward_file=tmp_path / "r.py",
        embed_url="http://127.0.0.1:8081/v1",
        embed_model="text-embedding-v4",
        embed_api_key="k1",
        embed_batch=10,
        qdrant_url="http://10.0.0.2:6333",
        qdrant_api_key="k2",
        collection="items",
        store_dir=tmp_path / "s",
        retry_budget_s=2.5,
        request_timeout_s=1.0,
        retrieval=False,
        prompt="short",
    )


def test_the_embedding_model_has_a_default_only_where_a_server_answers() -> None:
    assert Settings.from_env({"PLANNER_EMBED_URL": "http://h"}).embed_model == DEFAULT_EMBED_MODEL
    assert Settings.from_env({"PLANNER_EMBED_MODEL": "/m/bge-m3"}).embed_url is None


def test_an_empty_variable_counts_as_unset() -> None:
    assert Settings.from_env({variable.name: " " for variable in VARIABLES}) == Settings()


def test_paths_are_relative_to_where_the_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.from_env({"PLANNER_STORE_DIR": "mine.edge"}).store_dir == tmp_path / "mine.edge"


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("PLANNER_EMBED_URL", "127.0.0.1:8081", "http"),
        ("PLANNER_EMBED_URL", "ftp://host", "http"),
        ("PLANNER_EMBED_URL", "http://", "http"),
        ("QDRANT_URL", "http://host:63x3", "host:port"),
        ("QDRANT_URL", "http://user:hunter2@host:6333", "QDRANT_API_KEY"),
        ("PLANNER_EMBED_URL", "http://host/v1?key=hunter2", "PLANNER_EMBED_API_KEY"),
        ("PLANNER_EMBED_URL", "http://host/v1#hunter2", "PLANNER_EMBED_API_KEY"),
        ("QDRANT_URL", "http://bob:hunter2/ret@host:6333", "QDRANT_API_KEY"),  # urllib takes hunter2 for a port
        ("QDRANT_URL", "http://bob:hunter2#ret@host:6333", "QDRANT_API_KEY"),
        ("QDRANT_URL", "http://bob:12/hunter2@host:6333", "QDRANT_API_KEY"),  # and bob for a host
        ("QDRANT_URL", "http://[bob:hunter2", "http"),
        ("QDRANT_URL", "bob:hunter2@host:6333", "QDRANT_API_KEY"),
        ("QDRANT_URL", "http://host:hunter2", "host:port"),
        ("QDRANT_API_KEY", "hunter2 hunter2", "copy the key"),
        ("QDRANT_API_KEY", "hunter2\nx", "copy the key"),
        ("PLANNER_EMBED_API_KEY", "hunter2é", "copy the key"),
        ("QDRANT_COLLECTION", "..", "name"),
        ("QDRANT_COLLECTION", "a/b", "name"),
        ("PLANNER_RETRY_SECONDS", "a minute", "60"),
        ("PLANNER_EMBED_URL", "http://host:6333\n/x", "http"),
        ("PLANNER_EMBED_URL", "http://ho st:1", "http"),
        ("QDRANT_URL", "http://a..b:1", "http"),
        ("QDRANT_URL", "http://" + "a" * 64 + ":1", "http"),
        ("PLANNER_RETRY_SECONDS", "-1", "0 to"),
        ("PLANNER_RETRY_SECONDS", "1_0", "60"),
        ("PLANNER_REQUEST_SECONDS", "1_0", "60"),
        ("PLANNER_RETRY_SECONDS", "1e308", "86,400"),
        ("PLANNER_RETRY_SECONDS", "inf", "60"),
        ("PLANNER_RETRY_SECONDS", "nan", "60"),
        ("PLANNER_REQUEST_SECONDS", "0.5", "at least 1"),
        ("PLANNER_EMBED_BATCH", "0", "1 to 4096"),
        ("PLANNER_EMBED_BATCH", "4097", "1 to 4096"),
        ("PLANNER_EMBED_BATCH", "64.0", "1 to 4096"),
        ("PLANNER_EMBED_BATCH", "9" * 5000, "1 to 4096"),
        ("PLANNER_EMBED_BATCH", "²", "1 to 4096"),
        ("PLANNER_RETRIEVAL", "no", "on or off"),
        ("PLANNER_RETRIEVAL", "OFF", "on or off"),
        ("PLANNER_PROMPT", "long", "full, short"),
    ],
)
def test_a_wrong_value_names_the_variable_and_the_remedy(name: str, value: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=name) as raised:
        Settings.from_env({name: value})
    message = str(raised.value)
    assert remedy in message
    assert "hunter2" not in message
    assert value[:50] in message or "hunter2" in value or name.endswith("_URL")


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("PLANNER_REWARD_WEIGTHS", "PLANNER_REWARD_WEIGHTS"),
        ("PLANNER_REWARD_GATE", "PLANNER_REWARD_GATES"),
        ("PLANNER_RETREIVAL", "PLANNER_RETRIEVAL"),
        ("PLANNER_STORE", "PLANNER_STORE_DIR"),
    ],
)
def test_a_typo_is_refused_with_the_nearest_name(typo: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"{typo} .*did you mean {meant}"):
        Settings.from_env({typo: "x"})


def test_an_unknown_name_lists_the_known_and_other_programs_variables_are_left_alone() -> None:
    name = "PLANNER_" + "0123456789" * 4  # like none of ours
    with pytest.raises(ValueError, match=f"{name} .*known are .*PLANNER_EMBED_URL, .*PLANNER_STORE_DIR"):
        Settings.from_env({name: ""})
    Settings.from_env({"PATH": "/bin", "QDRANT__SERVICE__API_KEY": "x", "PLANNERS": "x"})


def test_each_variable_stands_once_with_one_line_of_help() -> None:
    assert len(known_variables()) == len(VARIABLES)
    assert all(variable.help and "\n" not in variable.help for variable in VARIABLES)
    assert {v.name for v in VARIABLES if v.secret} == {
        "QDRANT_API_KEY", "PLANNER_EMBED_API_KEY", "PLANNER_API_KEY",
        "PLANNER_SERVER_API_KEY",
    }  # fmt: skip


def test_the_public_form_is_plain_and_holds_no_secret() -> None:
    shown = Settings.from_env({"QDRANT_API_KEY": "hunter2", "QDRANT_URL": "http://h:1"}).public()
    assert shown["qdrant_api_key"] == "***" and shown["embed_api_key"] is None
    assert shown["store_dir"] == str(Settings().store_dir)
    assert set(shown) == set(Settings.__dataclass_fields__)
    assert "hunter2" not in repr(Settings(qdrant_api_key="hunter2", embed_api_key="hunter2"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://u:p@host:6333/x?key=k#f", "http://host:6333/x"),
        ("https://host/", "https://host"),
        ("http://[::1]:6333", "http://[::1]:6333"),
        ("http://[::1", "http://[::1"),  # no URL, and named as it is
        ("http://bob:s3c/ret@host:6333/x", "http://host:6333/x"),  # a password that nobody escaped
        ("http://bob:12/34@host", "http://host"),
        ("http://bob:s3c#ret@host", "http://***"),  # behind # and ? there is no telling
        ("https://host/v1?key=a@b", "https://***"),
        ("bob:s3cret@host:6333", "host:6333"),
        ("local:http://bob:s3cret@host/v1", "local:http://host/v1"),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    assert public_url(url) == shown


def test_the_reward_is_loaded_by_path_once_for_the_same_bytes(tmp_path: Path) -> None:
    one, two = load_reward(REWARD_FILE), load_reward(str(REWARD_FILE))
    assert one is two and one.sha256 == reward_sha256(REWARD_FILE)
    copy = tmp_path / "planner_reward.py"
    copy.write_text(REWARD_FILE.read_text("utf-8") + "\nTOP_TITLES = 5\n", "utf-8")
    other = load_reward(copy)  # both live side by side
    assert (one.TOP_TITLES, other.TOP_TITLES) == (20, 5)
    assert one.sha256 != other.sha256


def test_what_runs_is_what_was_hashed(tmp_path: Path) -> None:
    """Two variants of one size, written within a second: Python's own import would run the first one's __pycache__."""
    field = re.compile(r'("field": 0\.)30')
    source = REWARD_FILE.read_text("utf-8")
    found = set()
    for digits in ("30", "90"):
        path = tmp_path / "my_reward.py"
        path.write_text(field.sub(rf"\g<1>{digits}", source), "utf-8")
        os.utime(path, (1_700_000_000, 1_700_000_000))
        code = f"from swift_plugin.reward_loader import load_reward; r = load_reward({str(path)!r}); "
        code += "print(r.sha256, r.DEFAULT_WEIGHTS['field'])"
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [reward_sha256(path), f"0.{digits.rstrip('0')}"]
        found.add(done.stdout)
    assert len(found) == 2


def test_a_file_that_is_no_reward_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="PLANNER_REWARD_FILE"):
        load_reward(tmp_path / "none.py")
    (tmp_path / "empty.py").write_text("DOMAINS = ()\n")
    with pytest.raises(ValueError, match="lacks .*parse_plan"):
        load_reward(tmp_path / "empty.py")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match="not a Python file"):
        load_reward(tmp_path / "notes.txt")
