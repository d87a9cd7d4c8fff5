"""Whether a command will be able to leave its result, asked before the work is done."""

import argparse
import tempfile
from pathlib import Path


def writable_file(given: str) -> Path:
    """A path for argparse's `type`: its folder is made, and takes a file; else ArgumentTypeError says why not.

    A file that is there already is left as it is.
    """
    path = Path(given)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{given} is a folder: give the name of a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{given} cannot be written ({error}): give another place") from None
    return path
