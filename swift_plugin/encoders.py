"""Texts to unit vectors: hashed without weights, by an embeddings endpoint, or by FlagEmbedding (flag_encoder.py)."""

import unicodedata
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx
import numpy as np
import numpy.typing as npt

from swift_plugin.per_process import PerProcess
from swift_plugin.retry import (
    TRANSIENT_STATUS,
    RetryBudgetError,
    TransientError,
    is_loopback,
    quoted,
    whole_answer_hooks,
    with_retries,
)
from swift_plugin.reward_loader import load_reward
from swift_plugin.settings import DEFAULT_EMBED_BATCH, Settings, public_url

Vectors = npt.NDArray[np.float32]


class EncoderError(RuntimeError):
    """The encoder gives no usable vectors; the message says what is blocked and the ways out."""


class Encoder(Protocol):
    """`encode` maps n texts to float32 (n, dim) with rows of length 1; a text without tokens is a zero row."""

    @property
    def name(self) -> str: ...

    @property
    def dim(self) -> int: ...

    def encode(self, texts: Sequence[str]) -> Vectors: ...


def make_encoder(settings: Settings, words: Callable[[str], Sequence[str]] | None = None) -> Encoder:
    """The encoder the settings ask for; nothing is opened or loaded yet.

    `words` is the reward's definition of Words, read from the reward file when it is not given.
    """
    if settings.embed_url:
        return EndpointEncoder(
            settings.embed_url,
            settings.embed_model or "",
            settings.embed_api_key,
            batch=settings.embed_batch,
            retry_budget_s=settings.retry_budget_s,
            request_timeout_s=settings.request_timeout_s,
        )
    if settings.embed_model:
        from swift_plugin.flag_encoder import FlagEncoder  # it builds on this module

        return FlagEncoder(settings.embed_model)
    return HashedEncoder(words or load_reward(settings.reward_file).words)


def unit_rows(rows: Vectors) -> Vectors:
    """Rows scaled to length 1; zero rows stay zero."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: Vectors = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    return scaled


class HashedEncoder:
    """Words and character trigrams hashed with a sign into DIM buckets: deterministic, without weights.

    A text's vector is the sum of its Words' vectors. A Word's vector has one bucket for the Word (weight 1)
    and, if it is ASCII, one for each trigram of `<word>`, with TRIGRAM_WEIGHT shared among them, so that an
    inflected or compound word still lands near.
    """

    # No common embedding model has this size, so a store built with another encoder is caught by its size.
    DIM = 480
    TRIGRAM_WEIGHT = 0.5
    CACHED_WORDS = 100_000
    _CHUNK = 2048  # rows summed at once: 8 MB of float64

    def __init__(self, words: Callable[[str], Sequence[str]], dim: int = DIM) -> None:
        self._words = words
        self.dim = dim
        self.name = f"hashed-{dim}"
        self._cache: dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]] = {}

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(n, dim) float32 unit rows. 20,000 titles take about a second."""
        rows = np.zeros((len(texts), self.dim), dtype=np.float32)
        for start in range(0, len(texts), self._CHUNK):
            rows[start : start + self._CHUNK] = self._sums(texts[start : start + self._CHUNK])
        return unit_rows(rows)

    def _sums(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        cells: list[npt.NDArray[np.int64]] = []
        weights: list[npt.NDArray[np.float64]] = []
        for row, text in enumerate(texts):
            for word in self._words(text):
                buckets, values = self._features(word)
                cells.append(buckets + row * self.dim)
                weights.append(values)
        size = len(texts) * self.dim
        if not cells:
            return np.zeros((len(texts), self.dim))
        sums = np.bincount(np.concatenate(cells), np.concatenate(weights), size)
        return sums.reshape(len(texts), self.dim).astype(np.float64)

    def _features(self, word: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Buckets and signed weights of one Word."""
        known = self._cache.get(word)
        if known is not None:
            return known
        keys, values = ["w:" + word], [1.0]
        if word.isascii():
            marked = f"<{word}>"
            trigrams = [marked[i : i + 3] for i in range(len(marked) - 2)]
            keys += ["t:" + trigram for trigram in trigrams]
            values += [self.TRIGRAM_WEIGHT / len(trigrams) ** 0.5] * len(trigrams)
        # crc32, never hash(): the same text must give the same vector in every process and on every machine
        hashes = [zlib.crc32(unicodedata.normalize("NFKC", key).encode("utf-8", "replace")) for key in keys]
        buckets = np.array([(h >> 1) % self.dim for h in hashes], dtype=np.int64)
        signed = np.array([v if h & 1 else -v for h, v in zip(hashes, values, strict=True)], dtype=np.float64)
        if len(self._cache) >= self.CACHED_WORDS:
            self._cache.clear()
        self._cache[word] = (buckets, signed)
        return buckets, signed


class EndpointEncoder:
    """An OpenAI-compatible embeddings endpoint. `dim` is what it answers; the first use asks."""

    def __init__(
        self,
        url: str,
        model: str,
        api_key: str | None = None,
        *,
        batch: int = DEFAULT_EMBED_BATCH,
        retry_budget_s: float,
        request_timeout_s: float,
    ) -> None:
        self.name = model
        self.url = embeddings_url(url)
        self._api_key = api_key
        self._batch = batch
        self._budget_s = retry_budget_s
        self._timeout_s = request_timeout_s
        self._dim: int | None = None
        self._client = PerProcess(self._make_client)

    @property
    def dim(self) -> int:
        """Vector size, asked from the endpoint once."""
        if self._dim is None:
            self.encode(["size"])
        assert self._dim is not None
        return self._dim

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(n, dim) float32 unit rows in the order of `texts`, in requests of at most `batch` texts.

        Raises EncoderError after the retry budget, or at once for an answer that cannot be trusted.
        """
        if not texts:
            return np.zeros((0, self.dim), dtype=np.float32)
        chunks = [texts[start : start + self._batch] for start in range(0, len(texts), self._batch)]
        return np.concatenate([self._encode_chunk(chunk) for chunk in chunks])

    def _encode_chunk(self, texts: Sequence[str]) -> Vectors:
        body = {"model": self.name, "input": list(texts), "encoding_format": "float"}

        def attempt(timeout_s: float) -> Any:
            try:
                response = self._client.get().post(self.url, json=body, timeout=timeout_s)
            except httpx.RequestError as error:  # no answer, or one cut or garbled on its way
                raise TransientError(f"{type(error).__name__}: {error}") from error
            if response.status_code in TRANSIENT_STATUS:
                raise TransientError(f"HTTP {response.status_code}", retry_after_s(response))
            if response.status_code != 200:
                raise EncoderError(self._refusal(response))
            try:
                return response.json()
            except ValueError as error:
                raise EncoderError(f"{self._where()} answered no JSON ({error}): an API address?") from None

        try:
            answer = with_retries(
                attempt, budget_s=self._budget_s, timeout_s=self._timeout_s, what=f"embeddings at {self.url}"
            )
        except RetryBudgetError as error:
            raise EncoderError(
                f"{self._where()} does not answer: {error}. The run stops, because a completion without its"
                " search cannot be scored. Ways out: start the endpoint or correct PLANNER_EMBED_URL; raise"
                " PLANNER_RETRY_SECONDS or, for a slow encoder, PLANNER_REQUEST_SECONDS; lower"
                " PLANNER_EMBED_BATCH."
            ) from error
        return self._vectors(answer, len(texts))

    def _vectors(self, answer: Any, count: int) -> Vectors:
        """The answer's vectors by their `index`, checked."""
        try:
            found = {int(item["index"]): item["embedding"] for item in answer["data"]}
            delivered = len(answer["data"])
        except (KeyError, TypeError, ValueError) as error:
            raise EncoderError(f"{self._where()} answered without data/index/embedding ({error!r})") from None
        if delivered != count or sorted(found) != list(range(count)):
            raise EncoderError(
                f"{self._where()} answered {delivered} vectors with indexes {sorted(found)[:8]} for {count}"
                " texts: vectors and texts no longer belong together"
            )
        sizes = sorted({len(v) if isinstance(v, list) else -1 for v in found.values()})
        if len(sizes) != 1 or sizes[0] < 1:
            raise EncoderError(f"{self._where()} answered vectors of the sizes {sizes}, wanted lists of one size")
        if self._dim is not None and sizes[0] != self._dim:
            raise EncoderError(
                f"{self._where()} answered vectors of size {sizes[0]}, before {self._dim}: another model answers"
            )
        try:
            with np.errstate(over="ignore"):  # a number too large for float32 becomes infinity, refused below
                rows = np.array([found[index] for index in range(count)], dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise EncoderError(f"{self._where()} answered vectors that are not numbers ({error})") from None
        if not np.isfinite(rows).all():
            raise EncoderError(f"{self._where()} answered NaN or infinity: half-precision overflow?")
        rows = unit_rows(rows)
        if not rows.any(axis=1).all():  # judged after: a length too small for float32 makes zeros as well
            raise EncoderError(f"{self._where()} answered a vector of zeros; the model behind it is broken")
        self._dim = sizes[0]
        return rows

    def _refusal(self, response: httpx.Response) -> str:
        ways = {
            401: "Set PLANNER_EMBED_API_KEY.",
            403: "Check PLANNER_EMBED_API_KEY.",
            404: "Check PLANNER_EMBED_URL (the path usually ends in /v1) and PLANNER_EMBED_MODEL.",
            413: "Lower PLANNER_EMBED_BATCH.",
        }
        way = ways.get(response.status_code, "Check PLANNER_EMBED_MODEL; lower PLANNER_EMBED_BATCH.")
        said = quoted(response.text, self._api_key)
        return f"{self._where()} refused the request: HTTP {response.status_code} {said!r}. {way}"

    def _where(self) -> str:
        return f"embeddings endpoint {public_url(self.url)} (model {self.name})"

    def _make_client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        return httpx.Client(headers=headers, trust_env=not is_loopback(self.url), event_hooks=whole_answer_hooks())


def embeddings_url(url: str) -> str:
    """The full address from a host, a base ending in a version, or the full address itself."""
    path = urlsplit(url).path.rstrip("/")
    if path.endswith("/embeddings"):
        return url.rstrip("/")
    return url.rstrip("/") + ("/embeddings" if path else "/v1/embeddings")


def retry_after_s(response: httpx.Response) -> float:
    """Seconds the server asks to wait; 0 when it names none (or a date)."""
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() else 0.0
