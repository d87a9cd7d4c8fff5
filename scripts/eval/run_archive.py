"""What belongs into the archive of a run, and whether an archive is whole: pure of any command line.

An archive is a deterministic tar.gz: the run's files under their own names, files from elsewhere that the run refers to
(dev set, training sets, reward file, evaluations given by name) under REFERENCED, PACK.json, and MANIFEST.sha256 in
the format of `sha256sum`. A reference is a sha256 that an evaluation's summary or a run's manifest names.
"""

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from scripts.eval.evaluation_files import MODES, json_text, read_json
from scripts.train.manifest import MANIFEST as RUN_MANIFEST

CHECKSUMS, PACK = "MANIFEST.sha256", "PACK.json"
REFERENCED = "referenced"
FORMAT = 1
TEXTS = (".json", ".jsonl", ".jsonl.gz", ".log", ".md", ".html", ".jinja")
ADAPTER = ("adapter_model.safetensors", "adapter_model.bin")
SUMMARY_SUFFIX = ".summary.json"
CHUNK = 1 << 20


@dataclass(frozen=True)
class Reference:
    """`by` (a file of the archive) names the bytes with this sha256 as its `what`; `path` is where they stood."""

    by: str
    what: str
    sha256: str
    path: str | None


@dataclass
class Selection:
    """Files to pack by their name in the archive; folders behind links; what stays out, and why."""

    files: dict[str, Path]
    links: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def select(run: Path, weights: bool) -> Selection:
    """The files of a run folder: texts, and the adapters (with `weights`: full weights too) of the chosen checkpoints.

    Chosen are the checkpoints that a link beside them (best, last) points to; all of them where there is no link.
    Links are never followed out of the run. Raises ValueError for a link that leads out of it or nowhere.
    """
    chosen = Selection({})
    root = run.resolve()
    for link in sorted(p for p in root.rglob("*") if p.is_symlink()):
        target = link.resolve()
        if not target.exists() or not target.is_relative_to(root):
            raise ValueError(f"{link} leads to {target}, which is missing or outside {run}; remove or mend the link")
        chosen.links[link.relative_to(root).as_posix()] = target.relative_to(root).as_posix()
    for file in sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink()):
        name = file.relative_to(root).as_posix()
        if file.name.endswith(".partial"):
            continue
        passed_over = _is_passed_over(file, root, chosen.links)
        if file.name.endswith(TEXTS) and not passed_over:
            chosen.files[name] = file
        elif file.name in ADAPTER or file.suffix in (".safetensors", ".bin") and file.name != "training_args.bin":
            if passed_over:
                chosen.left_out.append(f"{name}: another checkpoint was chosen")
            elif file.name in ADAPTER or weights:
                chosen.files[name] = file
            else:
                chosen.left_out.append(f"{name}: full weights, packed with --weights")
    return chosen


def _is_passed_over(file: Path, root: Path, links: Mapping[str, str]) -> bool:
    """Whether the file belongs to a checkpoint while links point to others beside it."""
    for folder in file.relative_to(root).parents:
        if folder.name.startswith("checkpoint-"):
            here = PurePosixPath(folder).parent
            beside = {target for target in links.values() if PurePosixPath(target).parent == here}
            return bool(beside) and folder.as_posix() not in beside
    return False


def references(name: str, content: Any) -> list[Reference]:
    """What a summary or manifest refers to; raises ValueError naming a key that is not there."""
    try:
        if name.endswith(SUMMARY_SUFFIX):
            prefix = name.removesuffix(SUMMARY_SUFFIX)
            found = [Reference(name, "dev set", content["data_sha256"], content["data"])]
            found.append(Reference(name, "reward file", content["reward_sha256"], None))
            modes = [mode for mode in MODES if mode in content]
            return found + [
                Reference(name, f"{mode} records", content[mode]["records_sha256"], f"{prefix}.{mode}.jsonl")
                for mode in modes
            ]
        if PurePosixPath(name).name == RUN_MANIFEST:
            found = [
                Reference(name, f"{role} set", facts["sha256"], facts["path"])
                for role, sets in content["datasets"].items()
                for facts in sets
            ]
            return [*found, Reference(name, "reward file", content["reward"]["sha256"], content["reward"]["file"])]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{name}: no {error} in it; it is no file of this kit, or an old one") from None
    return []


def gather(selection: Selection, reward_file: Path) -> tuple[dict[str, str], list[str]]:
    """Add what the selected files refer to; returns the sha256 of every file, and what is missing, in words."""
    sums = {name: sha256_of(path) for name, path in selection.files.items()}
    missing = []
    for name, path in list(selection.files.items()):
        if not name.endswith((SUMMARY_SUFFIX, RUN_MANIFEST)):
            continue
        for wanted in references(name, read_json(path)):
            if wanted.what.endswith("records"):
                if sums.get(wanted.path or "") != wanted.sha256:
                    missing.append(f"{wanted.by}: its {wanted.what} ({wanted.path})")
                continue
            if wanted.sha256 in sums.values():
                continue
            places = [Path(wanted.path)] if wanted.path else []
            places += [reward_file] if wanted.what == "reward file" else []
            here = next((p for p in places if p.is_file() and sha256_of(p) == wanted.sha256), None)
            if here is None:
                missing.append(f"{wanted.by}: its {wanted.what} with sha256 {wanted.sha256} ({wanted.path})")
                continue
            stored = f"{REFERENCED}/{wanted.sha256[:16]}-{here.name}"
            selection.files[stored], sums[stored] = here, wanted.sha256
    return sums, missing


def write_archive(out: Path, run_name: str, selection: Selection, sums: Mapping[str, str], missing: list[str]) -> None:
    """Write the archive; the same files give the same bytes. Raises ValueError for a file that changes meanwhile."""
    pack = {
        "format": FORMAT,
        "run": run_name,
        "links": selection.links,
        "left_out": selection.left_out,
        "missing": missing,
    }
    made = {PACK: json_text(pack).encode()}
    known = {**sums, PACK: hashlib.sha256(made[PACK]).hexdigest()}
    made[CHECKSUMS] = "".join(f"{known[name]}  {name}\n" for name in sorted(known)).encode()
    with out.open("wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name in (CHECKSUMS, PACK):
                tar.addfile(_entry(name, len(made[name])), io.BytesIO(made[name]))
            for name in sorted(selection.files):
                path = selection.files[name]
                with path.open("rb") as source:
                    reader = _Hashing(source)
                    tar.addfile(_entry(name, path.stat().st_size), reader)  # type: ignore[arg-type]
                if reader.digest.hexdigest() != sums[name]:
                    raise ValueError(f"{path} changed while it was packed; pack again when the run has ended")


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o644, 0
    return entry


class _Hashing:
    """A reader that hashes what passes through it."""

    def __init__(self, source: IO[bytes]) -> None:
        self.source, self.digest = source, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self.source.read(size)
        self.digest.update(data)
        return data


def check_archive(archive: Path) -> tuple[list[str], list[str]]:
    """Problems (empty: whole and unchanged) and what was left out on purpose.

    Nothing is written to disk, so no name in the archive can lead anywhere. Raises OSError when it cannot be opened.
    """
    problems: list[str] = []
    sums: dict[str, str] = {}
    texts: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for entry in tar:
                if problem := _bad_entry(entry, sums):
                    problems.append(problem)
                    continue
                sums[entry.name], kept = _read(tar, entry)
                if kept is not None:
                    texts[entry.name] = kept
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        return [f"{archive} is damaged or no tar.gz: {error}"], []
    listed = dict(_checksums(texts.get(CHECKSUMS, b""), problems))
    if CHECKSUMS not in texts:
        problems.append(f"{CHECKSUMS} is missing")
    problems += [f"{name} is missing" for name in sorted(listed.keys() - sums.keys())]
    problems += [f"{name} is not in {CHECKSUMS}" for name in sorted(sums.keys() - listed.keys() - {CHECKSUMS})]
    problems += [f"{name} has changed" for name in sorted(listed.keys() & sums.keys()) if listed[name] != sums[name]]
    for name, text in sorted(texts.items()):
        if name != CHECKSUMS:
            problems += _unmet(name, text, sums)
    pack = _json(texts.get(PACK, b"{}"))
    left_out = pack.get("left_out", []) if isinstance(pack, dict) else []
    return problems, [str(item) for item in left_out]


def _bad_entry(entry: tarfile.TarInfo, seen: Mapping[str, str]) -> str | None:
    path = PurePosixPath(entry.name)
    if path.is_absolute() or ".." in path.parts or "\\" in entry.name:
        return f"{entry.name!r} leads out of the archive"
    if not entry.isfile():
        return f"{entry.name!r} is no plain file"
    return f"{entry.name!r} stands twice" if entry.name in seen else None


def _read(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> tuple[str, bytes | None]:
    """The sha256 of an entry, and its bytes where a check reads them."""
    source = tar.extractfile(entry)
    assert source is not None  # a plain file
    wanted = entry.name in (CHECKSUMS, PACK) or entry.name.endswith((SUMMARY_SUFFIX, RUN_MANIFEST))
    digest, kept = hashlib.sha256(), []
    while chunk := source.read(CHUNK):
        digest.update(chunk)
        if wanted:
            kept.append(chunk)
    return digest.hexdigest(), b"".join(kept) if wanted else None


def _checksums(text: bytes, problems: list[str]) -> Iterator[tuple[str, str]]:
    for line in text.decode("utf-8", "replace").splitlines():
        digest, gap, name = line.partition("  ")
        if not gap or len(digest) != 64:
            problems.append(f"{CHECKSUMS} holds a line that is none: {line[:80]!r}")
            continue
        yield name, digest


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _unmet(name: str, text: bytes, sums: Mapping[str, str]) -> list[str]:
    """References of one file that the archive does not hold."""
    content = _json(text)
    if not isinstance(content, dict):
        return [f"{name} holds no JSON object"]
    try:
        wanted = references(name, content)
    except ValueError as error:
        return [str(error)]
    held = set(sums.values())
    unmet = []
    for one in wanted:
        there = sums.get(one.path or "") == one.sha256 if one.what.endswith("records") else one.sha256 in held
        if not there:
            unmet.append(f"{name}: its {one.what} is missing ({one.path or one.sha256})")
    return unmet
