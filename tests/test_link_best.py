"""`best` in a run folder: which checkpoint it points to, again after a resumed run, and where there is none."""

import json
from pathlib import Path

import pytest

from scripts.train.link_best import BEST, link, main


def checkpoint(run: Path, step: int, best: str | None) -> Path:
    folder = run / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    state = {"global_step": step, "best_model_checkpoint": best}
    (folder / "trainer_state.json").write_text(json.dumps(state), encoding="utf-8")
    return folder


def test_the_newest_state_names_the_best(tmp_path: Path) -> None:
    checkpoint(tmp_path, 20, "/elsewhere/checkpoint-20")  # the run was moved
    checkpoint(tmp_path, 100, "/elsewhere/checkpoint-20")  # by step: 100 is newer than 40
    checkpoint(tmp_path, 40, "/elsewhere/checkpoint-40")
    assert link(tmp_path) == tmp_path / "checkpoint-20"
    assert (tmp_path / BEST).is_symlink() and (tmp_path / BEST).resolve() == (tmp_path / "checkpoint-20").resolve()
    checkpoint(tmp_path, 120, "checkpoint-120")  # a run that went on
    link(tmp_path)
    assert (tmp_path / BEST).resolve().name == "checkpoint-120"
    assert sorted(path.name for path in tmp_path.iterdir() if "checkpoint" not in path.name) == [BEST]


def test_a_checkpoint_that_was_cut_off_says_nothing(tmp_path: Path) -> None:
    checkpoint(tmp_path, 20, "checkpoint-20")
    (checkpoint(tmp_path, 40, "checkpoint-40") / "trainer_state.json").write_text('{"global', encoding="utf-8")
    assert link(tmp_path) == tmp_path / "checkpoint-20"


@pytest.mark.parametrize("best", [None, "no checkpoint"])
def test_without_an_evaluation_there_is_no_best(
    tmp_path: Path, best: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if best is None:
        checkpoint(tmp_path, 20, None)
    assert main([str(tmp_path)]) == 0
    assert "nothing was evaluated on watch" in capsys.readouterr().out
    assert not (tmp_path / BEST).exists()


def test_what_cannot_be_linked_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(tmp_path, 40, "checkpoint-20")
    assert main([str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "checkpoint-20, the best checkpoint by checkpoint-40/trainer_state.json, is not there" in said
    checkpoint(tmp_path, 20, None)
    (tmp_path / BEST).mkdir()
    assert main([str(tmp_path)]) == 2
    assert "is no link" in capsys.readouterr().err
