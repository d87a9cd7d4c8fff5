"""Files of weights that a download broke."""

from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path], None]


def truncated(path: Path) -> None:
    """Half of the file, as a download leaves that breaks off."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def lfs_pointer(path: Path) -> None:
    """What `git clone` writes in a file's place without git-lfs."""
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 2271145830\n")


def empty(path: Path) -> None:
    """What a full disk leaves."""
    path.write_bytes(b"")
