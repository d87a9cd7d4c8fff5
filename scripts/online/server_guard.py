"""What stands before the planner's model: who may ask, what may be asked, and what the server says of itself.

An ASGI middleware. It answers `GET /health` (to everyone) and `GET /manifest` itself, lets the two calls of the OpenAI
interface through that a planner needs, and answers 404 to everything else the server behind it knows. A chat request is
read here before it goes on, and passes if it asks for one answer to texts with the keys of REQUEST_KEYS: the server
behind opens files and fetches URLs for whoever names one, be it in `images` or in a part of a message.
"""

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import JSONResponse, Response

CHAT = ("POST", "/v1/chat/completions")
OPEN_ROUTES = frozenset({CHAT, ("GET", "/v1/models")})
LONGEST_BODY = 65_536  # bytes; a prompt of the kit has some 2,000
# What ms-swift does with text and costs no more than one answer; num_beams, best_of and the like are left out for that.
# It ignores the last two, which clients send unasked.
REQUEST_KEYS = frozenset({
    "model", "messages", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "n", "stream",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "stream_options", "user",
})  # fmt: skip
MESSAGE_KEYS = frozenset({"role", "content", "name"})
MOST_QUOTED = 80  # characters of a key that is refused

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
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = self._answer(scope)
        if answer is None:
            body = await _read(receive)
            receive = _first(body, receive)
            answer = _refusal(_route(scope), body)
        await (answer or self._app)(scope, receive, send)

    def _answer(self, scope: Scope) -> Response | None:
        """The answer to a request whose body matters to nobody; None for one whose body decides."""
        headers = {name.lower(): value for name, value in scope["headers"]}
        route = _route(scope)
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
        return None

    def _knows(self, given: bytes) -> bool:
        return self._key is None or hmac.compare_digest(given, f"Bearer {self._key}".encode())


def request_fault(body: bytes) -> str | None:
    """Why the body of a chat request is refused, for its sender; None lets it through."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):  # the latter: nested too deep
        return "the body is no JSON"
    if not isinstance(request, dict):
        return "the body is no JSON object"
    unknown = sorted(request.keys() - REQUEST_KEYS)
    if unknown:
        return f"{_quoted(unknown[0])} is not taken here: leave it out; taken are {', '.join(sorted(REQUEST_KEYS))}"
    if request.get("n", 1) != 1:
        return f"n is {_quoted(request['n'])}: one answer a request, leave it out"
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        return "messages is no list of messages"
    faults = (_message_fault(f"messages[{place}]", message) for place, message in enumerate(messages))
    return next((fault for fault in faults if fault), None)


def _message_fault(where: str, message: Any) -> str | None:
    if not isinstance(message, dict):
        return f"{where} is no object"
    unknown = sorted(key for key, value in message.items() if value is not None and key not in MESSAGE_KEYS)
    if unknown:  # null is what clients send for what an earlier answer did not hold
        return f"{where} holds {_quoted(unknown[0])}: a message here has {', '.join(sorted(MESSAGE_KEYS))}"
    if not isinstance(message.get("role"), str):
        return f"{where}.role is no text"
    if not _is_text(message.get("content")):
        return f'{where}.content is neither a text nor a list of parts {{"type": "text", "text": ...}}'
    return None


def _is_text(content: Any) -> bool:
    if not isinstance(content, list):
        return isinstance(content, str)
    return all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in content
    )


def _quoted(value: Any) -> str:
    return repr(value)[:MOST_QUOTED]


def _route(scope: Scope) -> tuple[str, str]:
    return scope["method"], scope["path"].rstrip("/")


def _refusal(route: tuple[str, str], body: bytes) -> Response | None:
    """The answer to a request with a body that goes no further; None lets it through."""
    if len(body) > LONGEST_BODY:
        return _error(413, f"more than {LONGEST_BODY} bytes")
    fault = request_fault(body) if route == CHAT else None
    return _error(400, fault) if fault else None


async def _read(receive: Receive) -> bytes:
    """The body; of a longer one than LONGEST_BODY, no more than shows it.

    What has arrived is counted: Content-Length may be missing, or say less. Where the client leaves early, it is what
    had come by then, and the answer to it reaches nobody.
    """
    body, more = bytearray(), True
    while more and len(body) <= LONGEST_BODY:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body)


def _first(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body that was read, then what else comes: that the client has left."""
    read = [{"type": "http.request", "body": body, "more_body": False}]

    async def following() -> MutableMapping[str, Any]:
        return read.pop() if read else await receive()

    return following


def _error(status: int, message: str) -> Response:
    """An error as the OpenAI interface writes it."""
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error", "code": status}}, status)
