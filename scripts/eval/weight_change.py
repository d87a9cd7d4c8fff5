"""How far training moved the weights: relative Frobenius norm of (last checkpoint − start), from safetensors files.

Read tensor by tensor with numpy alone, so that a 4B model needs no torch and no memory of its size.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ADAPTER = "adapter_model.safetensors"
BLOCK = 1 << 24  # numbers converted at once
FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16}
BF16 = "BF16"  # numpy has none: the upper half of a float32


@dataclass(frozen=True)
class WeightChange:
    """`share` = ‖end − start‖ / ‖start‖ over all float tensors of both; `kind` is adapter or model."""

    share: float
    start: Path
    end: Path
    kind: str


class NotComparable(ValueError):
    """Start and end do not hold the same tensors, or one of them is gone; the message says which."""


def checkpoints(folder: Path) -> dict[int, Path]:
    """The checkpoints of a run by step, in order of steps, those whose weights are on disk only."""
    found = {}
    for path in folder.glob("checkpoint-*"):
        number = path.name.removeprefix("checkpoint-")
        if number.isdigit() and _files(path):
            found[int(number)] = path
    return dict(sorted(found.items()))


def weight_change(folder: Path, arguments: Mapping[str, Any]) -> WeightChange:
    """From the start of training to the last checkpoint of the run in `folder`.

    The start is the adapter that training went on with (`adapters`), for a full model `model`. Where it is not on this
    disk, or LoRA began from nothing, it is the run's first checkpoint. Raises NotComparable.
    """
    saved = checkpoints(folder)
    if not saved:
        raise NotComparable("no checkpoint with weights is in the run folder")
    end = saved[max(saved)]
    kind = "adapter" if (end / ADAPTER).is_file() else "model"
    adapters = arguments.get("adapters") or []
    named = (adapters[0] if adapters else None) if kind == "adapter" else arguments.get("model")
    start = Path(named) if named and _files(Path(named), kind) else saved[min(saved)]
    if start.resolve() == end.resolve():
        raise NotComparable("the weights that training began with are not on this disk, and there is one checkpoint")
    return WeightChange(relative_change(start, end, kind), start, end, kind)


def relative_change(start: Path, end: Path, kind: str) -> float:
    """‖end − start‖ / ‖start‖; raises NotComparable for other names or shapes, or a start of zeros."""
    before, after = _tensors(start, kind), _tensors(end, kind)
    shared = before.keys() & after.keys()
    if not shared:
        raise NotComparable(f"{start} and {end} share no tensor")
    moved = size = 0.0
    for name in sorted(shared):
        if before[name].count != after[name].count:
            raise NotComparable(f"{name} has another shape in {end} than in {start}")
        for a, b in zip(before[name].blocks(), after[name].blocks(), strict=True):
            moved += float(((b - a) ** 2).sum())
            size += float((a**2).sum())
    if size == 0:
        raise NotComparable(f"{start} holds zeros only")
    return math.sqrt(moved / size)


@dataclass(frozen=True)
class _Tensor:
    file: Path
    dtype: str
    offset: int
    count: int

    def blocks(self) -> Iterator[np.ndarray]:
        """The numbers as float64, at most BLOCK at once."""
        stored = np.uint16 if self.dtype == BF16 else FLOATS[self.dtype]
        numbers = np.memmap(self.file, dtype=stored, mode="r", offset=self.offset, shape=(self.count,))
        for first in range(0, self.count, BLOCK):
            block = np.asarray(numbers[first : first + BLOCK])
            if self.dtype == BF16:
                block = (block.astype(np.uint32) << 16).view(np.float32)
            yield block.astype(np.float64)


def _files(folder: Path, kind: str | None = None) -> list[Path]:
    adapter, model = sorted(folder.glob(ADAPTER)), sorted(folder.glob("model*.safetensors"))
    return {"adapter": adapter, "model": model, None: adapter or model}[kind]


def _tensors(folder: Path, kind: str) -> dict[str, _Tensor]:
    """Every float tensor of a checkpoint by name; the header is the safetensors format's own."""
    found = {}
    for file in _files(folder, kind):
        with file.open("rb") as data:
            length = int.from_bytes(data.read(8), "little")
            header = json.loads(data.read(length))
        for name, entry in header.items():
            if name != "__metadata__" and entry["dtype"] in (*FLOATS, BF16) and math.prod(entry["shape"]):
                offset = 8 + length + entry["data_offsets"][0]
                found[name] = _Tensor(file, entry["dtype"], offset, math.prod(entry["shape"]))
    return found
