"""The archive of a run: what goes in, that it is whole, and that a hostile or damaged one is told apart."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from built_evaluations import record, sample, write

from scripts.eval.pack_run import main
from scripts.eval.run_archive import CHECKSUMS, PACK
from swift_plugin.settings import Settings

REWARD_SHA256 = hashlib.sha256(Settings().reward_file.read_bytes()).hexdigest()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run: two checkpoints with an adapter, `best` pointing to the first, an evaluation, a manifest."""
    folder, dev = tmp_path / "r3", tmp_path / "sets" / "dev92.jsonl"
    dev.parent.mkdir()
    dev.write_text('{"id": "dev-01"}\n', encoding="utf-8")
    dev_sha256 = hashlib.sha256(dev.read_bytes()).hexdigest()
    records = {"greedy": [record("dev-01", sample(0.7, format=1.0))]}
    write(folder / "eval" / "grpo", records, data=str(dev), data_sha256=dev_sha256, reward_sha256=REWARD_SHA256)
    manifest = {
        "datasets": {"train": [{"path": str(dev), "sha256": dev_sha256}], "watch": []},
        "reward": {"file": str(Settings().reward_file), "sha256": REWARD_SHA256},
    }
    for name, text in (
        ("planner_manifest.json", json.dumps(manifest)),
        ("logging.jsonl", '{"reward": 0.5}\n'),
        ("reward_trace.rank0.jsonl", "{}\n"),
        ("train.log", "step 1\n"),
        ("logging.jsonl.partial", "half"),
    ):
        (folder / name).write_text(text, encoding="utf-8")
    for number in (20, 40):
        (folder / f"checkpoint-{number}").mkdir()
        (folder / f"checkpoint-{number}" / "adapter_model.safetensors").write_bytes(b"lora%d" % number)
        (folder / f"checkpoint-{number}" / "model.safetensors").write_bytes(b"all%d" % number)
        (folder / f"checkpoint-{number}" / "training_args.bin").write_bytes(b"pickle")
    (folder / "best").symlink_to("checkpoint-20")
    return folder


def pack(run: Path, *more: str, code: int = 0) -> Path:
    out = run.parent / "out" / "r3.tar.gz"
    assert main([str(run), "--out", str(out), *more]) == code
    return out


def names(archive: Path) -> set[str]:
    with tarfile.open(archive) as tar:
        return set(tar.getnames())


def test_a_run_is_packed_with_all_its_evaluation_refers_to(run: Path) -> None:
    archive = pack(run)
    held = names(archive)
    assert {
        CHECKSUMS, PACK, "logging.jsonl", "reward_trace.rank0.jsonl", "train.log", "planner_manifest.json",
        "eval/grpo.summary.json", "eval/grpo.greedy.jsonl", "checkpoint-20/adapter_model.safetensors",
    } <= held  # fmt: skip
    referenced = {name.split("-", 1)[1] for name in held if name.startswith("referenced/")}
    assert referenced == {"dev92.jsonl", "planner_reward.py"}
    assert not [name for name in held if "training_args" in name or ".partial" in name or "checkpoint-40" in name]
    assert "checkpoint-20/model.safetensors" not in held
    with tarfile.open(archive) as tar:
        about = json.load(tar.extractfile(PACK))  # type: ignore[arg-type]
    assert about["links"] == {"best": "checkpoint-20"} and len(about["left_out"]) == 3
    assert main(["--check", str(archive)]) == 0


def test_weights_are_packed_on_request(run: Path) -> None:
    held = names(pack(run, "--weights"))
    assert "checkpoint-20/model.safetensors" in held and "checkpoint-40/model.safetensors" not in held


def test_the_same_run_gives_the_same_bytes(run: Path) -> None:
    first = pack(run).read_bytes()
    (run / "train.log").touch()
    assert pack(run).read_bytes() == first


def test_evaluations_from_outside_are_packed_by_name(run: Path) -> None:
    kept = json.loads((run / "eval" / "grpo.summary.json").read_text(encoding="utf-8"))
    facts = {key: kept[key] for key in ("data", "data_sha256", "reward_sha256")}
    prefix = write(run.parent / "elsewhere" / "r3", {"greedy": [record("dev-01", sample(0.1))]}, **facts)
    archive = pack(run, "--evaluation", prefix)
    assert {"evaluations/r3.summary.json", "evaluations/r3.greedy.jsonl"} <= names(archive)
    assert main(["--check", str(archive)]) == 0
    assert main([str(run), "--out", str(archive), "--evaluation", str(run / "gone")]) == 2


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda run: (run / "eval" / "grpo.greedy.jsonl").unlink(), "greedy records"),
        (lambda run: (run / "eval" / "grpo.greedy.jsonl").write_text("{}\n"), "greedy records"),
        (lambda run: (run.parent / "sets" / "dev92.jsonl").unlink(), "dev set"),
        (lambda run: (run.parent / "sets" / "dev92.jsonl").write_text("other\n"), "train set"),
    ],
)
def test_what_is_missing_is_named_when_packed_and_when_checked(
    spoil: Callable[[Path], Any], named: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(run)
    archive = pack(run, code=1)
    assert named in capsys.readouterr().err
    assert main(["--check", str(archive)]) == 1
    assert named in capsys.readouterr().err


def rewritten(archive: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """The archive with its files changed."""
    with tarfile.open(archive) as tar:
        files = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
    change(files)
    with tarfile.open(archive, "w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return archive


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda files: files.update({"train.log": b"step 2\n"}), "train.log has changed"),
        (lambda files: files.pop("train.log"), "train.log is missing"),
        (lambda files: files.update({"more.txt": b""}), "more.txt is not in"),
        (lambda files: files.pop(CHECKSUMS), f"{CHECKSUMS} is missing"),
        (lambda files: files.update({"../evil": b""}), "leads out"),
        (lambda files: files.update({"/etc/evil": b""}), "leads out"),
        (lambda files: files.update({"eval/grpo.summary.json": b"[]"}), "no JSON object"),
        (lambda files: files.update({"eval/grpo.summary.json": b'{"data": 1}'}), "no 'data_sha256'"),
        (lambda files: files.update({CHECKSUMS: b"nonsense\n"}), "a line that is none"),
    ],
)
def test_a_changed_archive_is_told_apart(
    change: Callable[[dict[str, bytes]], None], said: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = rewritten(pack(run), change)
    assert main(["--check", str(archive)]) == 1
    assert said in capsys.readouterr().err


def test_links_in_an_archive_are_no_files(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = pack(run)
    plain = gzip.decompress(archive.read_bytes())
    with tarfile.open(fileobj=(stream := io.BytesIO(plain)), mode="a") as tar:
        link = tarfile.TarInfo("leak")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    archive.write_bytes(gzip.compress(stream.getvalue()))
    assert main(["--check", str(archive)]) == 1
    assert "no plain file" in capsys.readouterr().err


@pytest.mark.parametrize("keep", [0.5, 0.0])
def test_a_cut_archive_is_damaged(keep: float, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = pack(run)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(len(whole) * keep)])
    assert main(["--check", str(archive)]) == 1
    assert "damaged" in capsys.readouterr().err


def test_a_link_out_of_the_run_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "last").symlink_to(run.parent / "sets")
    assert main([str(run), "--out", str(run.parent / "o.tar.gz")]) == 2
    assert "outside" in capsys.readouterr().err and not (run.parent / "o.tar.gz").exists()


@pytest.mark.parametrize("arguments", [["gone", "--out", "x"], ["--check", "gone"]])
def test_what_is_not_there_is_wrong_use(arguments: list[str], tmp_path: Path) -> None:
    assert main([str(tmp_path / part) if not part.startswith("--") else part for part in arguments]) == 2


def test_an_archive_inside_its_run_is_refused(run: Path) -> None:
    assert main([str(run), "--out", str(run / "r3.tar.gz")]) == 2
