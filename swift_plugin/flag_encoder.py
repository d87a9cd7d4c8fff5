"""FlagEmbedding's BGE-M3 in process: loaded at the first use, on this rank's own device and on no other."""

import logging
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from swift_plugin.encoders import EncoderError, Vectors, unit_rows
from swift_plugin.per_process import PerProcess

logger = logging.getLogger(__name__)


class FlagEncoder:
    """FlagEmbedding's BGE-M3 in this process: the dense vectors, on the rank's own GPU or on the CPU.

    `model` is a folder or a hub name. `device` ("cpu", "cuda", "cuda:N") is for a process without ranks, as the
    embeddings server; None is the rank's own. Half precision is used on a GPU only. Texts are cut to `max_tokens`
    and encoded `batch` at a time. Nothing is loaded, no CUDA context made and no GPU counted before the first
    `encode`: until then a fork is safe, and the child loads a model of its own.
    """

    BATCH = 64
    MAX_TOKENS = 512  # search strings and titles are short; bge-m3 would take 8,192

    def __init__(
        self, model: str, *, device: str | None = None, max_tokens: int = MAX_TOKENS, batch: int = BATCH
    ) -> None:
        self.model = model
        self.name = model_name(model)
        self._device = device
        self._max_tokens = max_tokens
        self._batch = batch
        self._model = PerProcess(self._load)
        self._dim: int | None = None

    def on_cpu(self) -> "FlagEncoder":
        """The same model on the CPU: for a look at it while the GPU's memory is still to be shared out."""
        return FlagEncoder(self.model, device="cpu", max_tokens=self._max_tokens, batch=self._batch)

    @property
    def dim(self) -> int:
        """Vector size, read from the model's config without loading its weights."""
        if self._dim is None:
            from transformers import AutoConfig

            try:
                self._dim = int(AutoConfig.from_pretrained(self.model).hidden_size)
            except OSError as error:
                raise EncoderError(self._not_loadable(error)) from error
        return self._dim

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(n, dim) float32 unit rows; raises EncoderError if the model cannot be loaded, run, or gives NaN."""
        return self.encode_counted(texts)[0]

    def encode_counted(self, texts: Sequence[str]) -> tuple[Vectors, list[int]]:
        """Rows as of `encode`, and of each text the tokens that were encoded, its two special ones among them.

        The batches are made here and not by the class's own `encode`, which runs the first one twice to try its
        size, and goes on with ever smaller ones after any CUDA error.
        """
        if not texts:
            return np.zeros((0, self.dim), dtype=np.float32), []
        made = self._model.get()
        ids = made.tokenizer(list(texts), truncation=True, max_length=self._max_tokens)["input_ids"]
        lengths = [len(row) for row in ids]
        order = sorted(range(len(ids)), key=lambda row: -lengths[row])  # texts of one length need no padding
        rows = np.empty((len(ids), self.dim), dtype=np.float32)
        for start in range(0, len(order), self._batch):
            chunk = order[start : start + self._batch]
            rows[chunk] = self._forward(made, [ids[row] for row in chunk])
        if not np.isfinite(rows).all():
            raise EncoderError(f"{self.model} gave NaN or infinity: damaged weights, or overflow in fp16")
        return unit_rows(rows), lengths

    def _forward(self, made: Any, ids: Sequence[Sequence[int]]) -> Vectors:
        """(n, dim) dense vectors of one batch of token ids."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        device = made.target_devices[0]
        padded = pad_sequence(
            [torch.tensor(row) for row in ids], batch_first=True, padding_value=made.tokenizer.pad_token_id
        )
        mask = pad_sequence([torch.ones(len(row), dtype=torch.long) for row in ids], batch_first=True)
        try:
            with torch.inference_mode():
                output = made.model(
                    {"input_ids": padded.to(device), "attention_mask": mask.to(device)},
                    return_dense=True,
                    return_sparse=False,
                    return_colbert_vecs=False,
                )
            rows: Vectors = output["dense_vecs"].float().cpu().numpy()
        except RuntimeError as error:  # CUDA's errors, out of memory among them
            raise EncoderError(
                f"{self.model} cannot encode {len(ids)} texts of up to {padded.shape[1]} tokens on {device}: {error}."
                " Ways out: a GPU with more free memory, or scripts/train/embed_server.py with a smaller --batch on"
                " one of its own and PLANNER_EMBED_URL"
            ) from error
        return rows

    def _load(self) -> Any:
        import torch

        device = chosen_device(self._device, torch.cuda.device_count(), os.environ.get("LOCAL_RANK"))
        try:
            from FlagEmbedding import BGEM3FlagModel
        except ImportError as error:
            raise EncoderError(
                f"FlagEmbedding cannot be imported ({error}): pip install -e '.[bge]', or set PLANNER_EMBED_URL"
            ) from error
        logger.info("loading %s on %s", self.model, device)
        try:
            made = BGEM3FlagModel(self.model, use_fp16=device != "cpu", devices=device)
            made.model.to(device).eval()
        except OSError as error:
            raise EncoderError(self._not_loadable(error)) from error
        except damaged_weights() as error:
            raise EncoderError(self._not_loadable(error)) from error
        except RuntimeError as error:  # no free memory on the device; CUDA in a fork of a process that used it
            raise EncoderError(f"{self._not_loadable(error)}. The device is {device}") from error
        # XLM-R counts positions from the padding's id on; one too many is an assertion inside CUDA.
        longest = made.model.model.config.max_position_embeddings - made.tokenizer.pad_token_id - 1
        if self._max_tokens > longest:
            raise EncoderError(f"{self.model} takes {longest} tokens at most, asked are {self._max_tokens}: lower that")
        return made

    def _not_loadable(self, error: Exception) -> str:
        return (
            f"cannot load the embedding model {self.model!r}: {first_line(error)}. Ways out: set PLANNER_EMBED_MODEL to"
            " a bge-m3 folder, set PLANNER_EMBED_URL to a server that has it, or unset both for the hashed"
            " encoder"
        )


def damaged_weights() -> tuple[type[Exception], ...]:
    """What reading a file of weights raises that is cut off, or a git-lfs pointer; OSError and RuntimeError aside."""
    from safetensors import SafetensorError

    return SafetensorError, pickle.UnpicklingError, EOFError


def first_line(error: Exception) -> str:
    """Its message without the advice that torch adds in further lines; its name where it has none.

    >>> first_line(EOFError()), first_line(ValueError("no weights\\nTry again."))
    ('EOFError', 'no weights')
    """
    return next(iter(str(error).splitlines()), type(error).__name__)


def model_name(model: str) -> str:
    """The name that stands for a model, wherever it was loaded from.

    >>> model_name("BAAI/bge-m3"), model_name("/models/bge-m3/")
    ('bge-m3', 'bge-m3')
    """
    return Path(model).name


def chosen_device(asked: str | None, gpus: int, local_rank: str | None) -> str:
    """The device asked for if this machine has it, else this rank's own; raises EncoderError naming the remedy.

    >>> chosen_device("cuda", 2, None), chosen_device("cpu", 2, None), chosen_device(None, 2, "1")
    ('cuda:0', 'cpu', 'cuda:1')
    """
    if asked is None:
        return flag_device(gpus, local_rank)
    if asked == "cpu":
        return asked
    kind, _, number = asked.partition(":")
    if kind != "cuda" or not (number or "0").isdecimal():
        raise EncoderError(f"{asked!r} is no device: give cpu, cuda or cuda:N")
    index = int(number or 0)
    if index >= gpus:
        raise EncoderError(f"the device {asked} is not here ({gpus} GPUs are visible); check CUDA_VISIBLE_DEVICES")
    return f"cuda:{index}"


def flag_device(gpus: int, local_rank: str | None) -> str:
    """The device of this rank: `cuda:LOCAL_RANK` (0 outside torchrun), `cpu` without a GPU.

    >>> flag_device(4, "2"), flag_device(0, "2"), flag_device(1, None)
    ('cuda:2', 'cpu', 'cuda:0')
    """
    if gpus == 0:
        return "cpu"
    rank = int(local_rank or 0)
    if rank >= gpus:
        raise EncoderError(f"LOCAL_RANK is {rank}, but {gpus} GPUs are visible; check CUDA_VISIBLE_DEVICES")
    return f"cuda:{rank}"
