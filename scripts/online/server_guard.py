"""What stands before the planner's model: who may ask, what may be asked, and what the server says of itself.

An ASGI middleware. It answers `GET /health` (to everyone) and `GET /manifest` itself, lets the two calls of the OpenAI
interface through that a planner needs, and answers 404 to everything else the server behind it knows: that reads files
and fetches URLs for whoever asks.
"""

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import JSONResponse, Response

OPEN_ROUTES = frozenset({("POST", "/v1/chat/completions"), ("GET", "/v1/models")})
LONGEST_BODY = 65_536  # bytes; a prompt of the kit has some 2,000

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Guard:
    """Wraps the ASGI application `app`.

    Args:
        key: what a request must bring as `Authorization: Bearer KEY`; None: nothing.
        manifest: the JSON text served at /manifest; None: there is none, and 404 says so.
        healthy: whether the model still answers, asked at each /health.
        about: what /health says beside its status.
    """

    def __init__(
        self, app: Any, *, key: str | None, manifest: str | None, healthy: Callable[[], bool], about: dict[str, Any]
    ) -> None:
        self._app = app
        self._key = key
        self._manifest = manifest
        self._healthy = healthy
        self._about = about

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer(scope) if scope["type"] == "http" else None
        await (answer or self._app)(scope, receive, send)

    def _answer(self, scope: Scope) -> Response | None:
        """The answer to a request that goes no further; None lets it through."""
        headers = {name.lower(): value for name, value in scope["headers"]}
        route = scope["method"], scope["path"].rstrip("/")
        if route in (("GET", "/health"), ("HEAD", "/health")):
            well = self._healthy()
            return JSONResponse({"status": "ok" if well else "failed", **self._about}, 200 if well else 503)
        if not self._knows(headers.get(b"authorization", b"")):
            refusal = _error(401, "no or a wrong key: send Authorization: Bearer KEY")
            refusal.headers["WWW-Authenticate"] = "Bearer"
            return refusal
        if route == ("GET", "/manifest"):
            if self._manifest is None:
                return _error(404, "no planner_manifest.json stood beside the model that is served")
            return Response(self._manifest, media_type="application/json")
        if route not in OPEN_ROUTES:
            return _error(404, "this server knows /v1/chat/completions, /v1/models, /health and /manifest")
        length = headers.get(b"content-length", b"0" if route[0] == "GET" else b"")
        if not length.isdigit():
            return _error(411, "send Content-Length")
        if int(length) > LONGEST_BODY:
            return _error(413, f"more than {LONGEST_BODY} bytes")
        return None

    def _knows(self, given: bytes) -> bool:
        return self._key is None or hmac.compare_digest(given, f"Bearer {self._key}".encode())


def _error(status: int, message: str) -> Response:
    """An error as the OpenAI interface writes it."""
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error", "code": status}}, status)
