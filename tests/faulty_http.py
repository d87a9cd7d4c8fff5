"""A loopback HTTP server whose next answers can be made to fail; the Qdrant and embeddings test servers build on it."""

import json
import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Fault:
    """What happens to one request instead of, or before, its answer.

    `status`: answer this status with `body` and `headers`. `stall_s`: wait first. `reset`: drop the connection
    without an answer. `cut`: announce the whole answer, send half of it, close.
    """

    status: int | None = None
    body: str = "injected"
    headers: tuple[tuple[str, str], ...] = ()
    stall_s: float = 0.0
    reset: bool = False
    cut: bool = False


@dataclass(frozen=True)
class Request:
    """One request as it arrived."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: Any


class FaultyServer:
    """Subclasses give `answer(request) -> (status, JSON value or text)`. Use as a context manager."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Request] = []
        self.faults: deque[Fault] = deque()
        self._stopping = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def answer(self, request: Request) -> tuple[int, Any]:
        raise NotImplementedError

    def fail(self, *faults: Fault) -> None:
        """The next requests meet these faults, one each."""
        self.faults.extend(faults)

    def __enter__(self) -> "FaultyServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop listening: from now on connections are refused."""
        self._stopping.set()
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server._serve(self)

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        return Handler

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        data = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        target = urlsplit(handler.path)
        request = Request(
            handler.command,
            target.path,
            target.query,
            {name.lower(): value for name, value in handler.headers.items()},
            json.loads(data) if data else None,
        )
        self.requests.append(request)
        fault = self.faults.popleft() if self.faults else Fault()
        if fault.stall_s and self._stopping.wait(fault.stall_s):
            handler.close_connection = True
            return
        if fault.reset:
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
            handler.close_connection = True
            return
        status, value = (fault.status, fault.body) if fault.status else self.answer(request)
        payload = (value if isinstance(value, str) else json.dumps(value)).encode()
        try:
            handler.send_response(status)
            for name, header in fault.headers:
                handler.send_header(name, header)
            handler.send_header("Content-Length", str(len(payload)))
            handler.end_headers()
            handler.wfile.write(payload[: len(payload) // 2] if fault.cut else payload)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client gave up waiting
        handler.close_connection = handler.close_connection or fault.cut
