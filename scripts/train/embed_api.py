"""The HTTP side of the embeddings server: OpenAI's `/v1/embeddings` and `/health` over a Batcher.

Errors have OpenAI's form, {"error": {"message", "type", "code"}}: 400 a request that makes no sense, 401 without the
key, 404 another model, 413 too large, 429 the queue is full (with Retry-After), 500 the encoder failed, 503 going down.
"""

import asyncio
import base64
import hmac
import logging
from concurrent.futures import Future
from typing import Any, Literal

import numpy as np
import pydantic_core
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, StrictStr, ValidationError
from starlette.requests import ClientDisconnect

from scripts.train.embed_batching import Batcher, Encoded, EncodingFailed, QueueFull, Stopping, TooManyTexts
from swift_plugin.flag_encoder import model_name

logger = logging.getLogger(__name__)

BODY_BYTES = 32 * 2**20
DROPPED_BYTES = 8 * BODY_BYTES  # of a body that is too long anyway
# A longer text is refused: the tokenizer would read all of it before it cuts, and cutting here might change its tokens.
# Titles and searches have 200; no plan of 512 tokens holds more, as Qwen's longest token has 128 characters.
MAX_CHARS = 65_536
RETRY_AFTER_S = 1  # a full queue of 4,096 texts takes a GPU about as long
LOOK_S = 0.5  # how often a waiting request is checked for a client that has gone


class Asked(BaseModel):
    """The body of a request. Token ids as `input` are not taken: the client's tokenizer need not be the model's."""

    model: str
    input: StrictStr | list[StrictStr]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None

    @property
    def texts(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else self.input


class Refusal(Exception):
    """A request that gets an error instead of vectors."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def make_app(batcher: Batcher, *, model: str, dim: int, api_key: str | None) -> FastAPI:
    """The application; `model` is the name it answers to, `dim` the size of its vectors."""
    app = FastAPI(title="planner embeddings", docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(Refusal)
    async def refuse(request: Request, error: Refusal) -> Response:
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
        headers = {"Retry-After": str(RETRY_AFTER_S)} if error.status == 429 else {}
        return _json({"error": {"message": str(error), "type": kind, "code": error.status}}, error.status, headers)

    @app.get("/health")
    async def health() -> Response:
        """200 while the encoder works; 503 after a batch has failed, until one succeeds."""
        status = "failing" if batcher.failure else "ok"
        shown = {"status": status, "model": model, "dim": dim, "waiting": batcher.waiting, "error": batcher.failure}
        return _json(shown, 503 if batcher.failure else 200)

    @app.post("/v1/embeddings")
    async def embeddings(request: Request) -> Response:
        allowed = _has_key(request, api_key)
        try:
            body = await _body(request, BODY_BYTES if allowed else 0)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        if not allowed:
            raise Refusal(401, "the bearer key is missing or wrong")
        if body is None:
            raise Refusal(413, f"the request is larger than {BODY_BYTES // 2**20} MiB: send fewer texts")
        asked = _parsed(body)
        if model_name(asked.model).casefold() != model.casefold():
            raise Refusal(404, f"this server has the model {model!r}, not {asked.model[:100]!r}")
        if not asked.texts:
            raise Refusal(400, "input: an empty list; give at least one text")
        if asked.dimensions not in (None, dim):
            raise Refusal(400, f"dimensions: {model} makes vectors of size {dim} and no other")
        for number, text in enumerate(asked.texts):
            if len(text) > MAX_CHARS:
                raise Refusal(
                    413, f"input: text {number} has {len(text):,} characters, {MAX_CHARS:,} are taken: cut it"
                )
        try:
            future = batcher.submit(asked.texts)
        except TooManyTexts as error:
            raise Refusal(413, str(error)) from None
        except QueueFull as error:
            raise Refusal(429, str(error)) from None
        except Stopping as error:
            raise Refusal(503, str(error)) from None
        try:
            encoded = await _unless_gone(request, future)
        except EncodingFailed as error:
            raise Refusal(500, f"the encoder failed: {error}") from None
        if encoded is None:
            return Response(status_code=499)  # nobody reads it
        wordless = np.flatnonzero(~encoded.rows.any(axis=1))
        if len(wordless):  # only the hashed encoder's; a client takes zeros for a broken model
            raise Refusal(400, f"input: text {wordless[0]} has no word that {model} knows")
        return await run_in_threadpool(_answer, encoded, model, asked.encoding_format)

    return app


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = pydantic_core.to_json(value)  # ten times as fast as json.dumps for a thousand floats a text
    return Response(body, status, headers, media_type="application/json")


def _has_key(request: Request, api_key: str | None) -> bool:
    if api_key is None:
        return True
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    matches = hmac.compare_digest(given.encode("utf-8"), api_key.encode("utf-8"))  # in time that tells nothing
    return matches and scheme.lower() == "bearer"


async def _body(request: Request, limit: int) -> bytes | None:
    """The body, None if it is longer than `limit`. What is too much is read and dropped.

    A client that is still sending when its connection closes sees a reset and not the reason.
    """
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= limit:
            chunks.append(chunk)
        elif size > DROPPED_BYTES:
            break
    return b"".join(chunks) if size <= limit else None


def _parsed(body: bytes) -> Asked:
    """The body checked; strict JSON, so a lone surrogate never reaches the tokenizer."""
    try:
        return Asked.model_validate_json(body)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc'])) or 'body'}: {fault['msg']}" for fault in error.errors()[:3]]
        raise Refusal(400, "; ".join(faults)) from None


async def _unless_gone(request: Request, future: "Future[Encoded]") -> Encoded | None:
    """The result; None, with the request given up, once its client has gone.

    A client that timed out asks again. Encoding for the one that left would make the next try time out as well.
    """
    result = asyncio.wrap_future(future)
    while True:
        done, _ = await asyncio.wait([result], timeout=LOOK_S)
        if done:
            return result.result()
        if await request.is_disconnected():
            result.cancel()
            return None


def _answer(encoded: Encoded, model: str, encoding: str) -> Response:
    rows: list[Any] = (
        [base64.b64encode(row.astype("<f4").tobytes()).decode("ascii") for row in encoded.rows]
        if encoding == "base64"
        else np.asarray(encoded.rows, dtype=np.float32).tolist()
    )
    return _json(
        {
            "object": "list",
            "model": model,
            "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
            "usage": {"prompt_tokens": encoded.tokens, "total_tokens": encoded.tokens},
        }
    )
