"""Link `best` in a run folder to the checkpoint with the best reward on watch; the GRPO launcher ends with it.

ms-swift has --create_checkpoint_symlink for this, but it fails at the end of a run that was never evaluated, and of one
that goes on in a folder with links. transformers writes the best checkpoint's name into every trainer_state.json.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.train.checkpoints import STATE, whole_checkpoints

BEST = "best"


def best_checkpoint(run: Path) -> Path | None:
    """The checkpoint that the newest whole one names as the best so far; None where nothing was evaluated.

    Raises FileNotFoundError where the named one is not there.
    """
    whole = whole_checkpoints(run)
    named = json.loads((whole[-1] / STATE).read_text(encoding="utf-8")).get("best_model_checkpoint") if whole else None
    if named is None:
        return None
    found = run / Path(named).name  # the run may have been moved since
    if not found.is_dir():
        raise FileNotFoundError(f"{found}, the best checkpoint by {whole[-1].name}/{STATE}, is not there")
    return found


def link(run: Path) -> Path | None:
    """Make or move the link; returns the checkpoint it points to, None where there is none to point to.

    Raises FileNotFoundError as above, FileExistsError where `best` is something else than a link.
    """
    found, name = best_checkpoint(run), run / BEST
    if found is None:
        return None
    if name.exists() and not name.is_symlink():
        raise FileExistsError(f"{name} is no link: move it away, then python -m scripts.train.link_best {run}")
    scratch = run / f".{BEST}.partial"
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(found.name)
    os.replace(scratch, name)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example, for a run that was stopped:\n  python -m scripts.train.link_best runs/grpo-NAME",
    )
    parser.add_argument("run", type=Path, help="run folder with checkpoint-N folders")
    run = parser.parse_args(argv).run
    try:
        found = link(run)
    except (FileNotFoundError, FileExistsError) as error:
        print(f"planner: {error}", file=sys.stderr)
        return 2
    if found is None:
        print(f"planner: no best checkpoint in {run}: nothing was evaluated on watch")
    else:
        print(f"planner: the best checkpoint on watch is {found.name}: {run / BEST}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
