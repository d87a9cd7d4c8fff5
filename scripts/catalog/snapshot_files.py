"""A snapshot on disk: one data file beside a manifest that says what must arrive.

The data file of a Qdrant collection is the server's own snapshot; that of an embedded store is a tar of its folder.
"""

import hashlib
import json
import tarfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from scripts.catalog.point_survey import Survey
from scripts.files import write_atomically

MANIFEST = "manifest.json"
CHUNK = 1 << 20


class SnapshotError(ValueError):
    """A snapshot cannot be used as it is; the message says what to do."""


@dataclass(frozen=True)
class Manifest:
    """What the snapshot holds: `kind` (qdrant or edge), `name` of its source, `file` with `bytes` and `sha256`,
    vector size and encoder as the source knew them, and the survey of the source's points."""

    kind: str
    name: str
    file: str
    bytes: int
    sha256: str
    vector_size: int | None
    encoder: str | None
    survey: Survey

    def write(self, folder: Path) -> None:
        """Write it last: a folder without a manifest is an unfinished snapshot."""
        write_atomically(folder / MANIFEST, json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Raises SnapshotError naming what is missing or damaged."""
        path = folder / MANIFEST
        if not path.is_file():
            raise SnapshotError(f"{folder} holds no finished snapshot: there is no {MANIFEST}")
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            survey = Survey(**value.pop("survey"))
            manifest = cls(**value, survey=survey)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SnapshotError(f"{path} is damaged ({error}); copy the snapshot again") from error
        if manifest.file != Path(manifest.file).name:
            raise SnapshotError(f"{path} names {manifest.file!r}, which is no file of this folder")
        return manifest


class HashingWriter:
    """A file that is written once, counted and hashed on the way; `bar` shows the bytes."""

    def __init__(self, file: IO[bytes], bar: Any) -> None:
        self._file = file
        self._bar = bar
        self._hash = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes) -> int:
        self._file.write(data)
        self._hash.update(data)
        self.bytes += len(data)
        self._bar.update(len(data))
        return len(data)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def check_file(folder: Path, manifest: Manifest) -> Path:
    """The data file, after its size and checksum; raises SnapshotError for a copy that is not whole."""
    path = folder / manifest.file
    if not path.is_file():
        raise SnapshotError(f"{path} is missing; copy the whole folder")
    if path.stat().st_size != manifest.bytes:
        raise SnapshotError(f"{path} has {path.stat().st_size} bytes, {manifest.bytes} were written; copy it again")
    digest = hashlib.sha256()
    with path.open("rb") as file, tqdm(total=manifest.bytes, unit="B", unit_scale=True, desc="checksum") as bar:
        while data := file.read(CHUNK):
            digest.update(data)
            bar.update(len(data))
    if digest.hexdigest() != manifest.sha256:
        raise SnapshotError(f"{path} is not the file that was written (sha256 differs); copy it again")
    return path


def pack_folder(folder: Path, target: Path) -> HashingWriter:
    """Tar the files of `folder` into `target`, uncompressed (vectors hardly compress); how much, and its checksum."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    size = sum(path.stat().st_size for path in files)
    with target.open("wb") as file, tqdm(total=size, unit="B", unit_scale=True, desc="pack") as bar:
        writer = HashingWriter(file, bar)
        with tarfile.open(fileobj=writer, mode="w|") as archive:  # type: ignore[call-overload]
            for path in files:
                archive.add(path, arcname=str(path.relative_to(folder)), recursive=False)
    return writer


def unpack_folder(archive: Path, folder: Path) -> None:
    """Undo `pack_folder`; raises SnapshotError for a member that would leave `folder` or is no plain file."""
    with tarfile.open(archive) as tar, tqdm(unit="file", desc="unpack") as bar:
        for member in tar:
            target = folder / member.name
            if not member.isfile() or not target.resolve().is_relative_to(folder.resolve()):
                raise SnapshotError(f"{archive} holds {member.name!r}, which is no file of a store")
            target.parent.mkdir(parents=True, exist_ok=True)
            source = tar.extractfile(member)
            assert source is not None
            with source, target.open("wb") as file:
                while data := source.read(CHUNK):
                    file.write(data)
            bar.update(1)


def as_json(manifest: Manifest) -> Mapping[str, Any]:
    """For a command's output: the manifest without the sample."""
    value = asdict(manifest)
    value["survey"] = {"points": manifest.survey.points, "ids": manifest.survey.ids}
    return value
