"""A loopback HTTP server whose next answers can be made to fail; the Qdrant and embeddings test servers build on it."""

import json
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

FOR_GOOD = float("inf")  # as `down_s`


@dataclass(frozen=True)
class Fault:
    """What happens to one request instead of, or before, its answer.

    `status`: answer this status with `body` and `headers`. `stall_s`: wait first. `reset`: drop the connection
    without an answer. `cut`: announce the whole answer, send half of it, close. `trickle_s`: send the answer for so
    long, a few bytes at a time. `change`: pass the right answer through this first. `down_s`: go away without an
    answer, refuse connections, and be back on the same port after so many seconds.
    """

    status: int | None = None
    body: str = "injected"
    headers: tuple[tuple[str, str], ...] = ()
    stall_s: float = 0.0
    reset: bool = False
    cut: bool = False
    trickle_s: float = 0.0
    change: Callable[[Any], Any] | None = None
    down_s: float = 0.0


@dataclass(frozen=True)
class Request:
    """One request as it arrived."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: Any


class _HttpServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that drops its connection is no error of the server's: a traceback of it would land in the stderr
        of whichever test runs then."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class FaultyServer:
    """Subclasses give `answer(request) -> (status, JSON value, text or bytes)`. Use as a context manager."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Request] = []
        self.faults: deque[Fault] = deque()
        self._stopping = threading.Event()
        self._door = threading.Lock()  # one thread at a time opens or closes the door
        self._connections: set[socket.socket] = set()
        self._thread: threading.Thread | None = None
        self._http: ThreadingHTTPServer | None = self._bind(port)
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def answer(self, request: Request) -> tuple[int, Any]:
        raise NotImplementedError

    def fail(self, *faults: Fault) -> None:
        """The next requests meet these faults, one each."""
        self.faults.extend(faults)

    def __enter__(self) -> "FaultyServer":
        self.come_back()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop listening: from now on connections are refused, and those that are open end."""
        self._stopping.set()
        self.go_away()

    def go_away(self) -> None:
        """Do as a server process that died: refuse connections and end those that are open."""
        with self._door:
            if self._http is None:
                return
            if self._thread is not None:
                self._http.shutdown()
                self._thread.join()
            self._http.server_close()
            self._http = self._thread = None
            for connection in list(self._connections):
                _end(connection)

    def come_back(self) -> None:
        """Listen, on the same port as before; nothing happens to a server that listens, or that was stopped."""
        with self._door:
            if self._thread is not None or self._stopping.is_set():
                return
            self._http = self._http or self._bind(self.port)
            serve = self._http.serve_forever
            self._thread = threading.Thread(target=serve, kwargs={"poll_interval": 0.02}, daemon=True)
            self._thread.start()

    def _bind(self, port: int) -> ThreadingHTTPServer:
        http = _HttpServer(("127.0.0.1", port), self._handler())
        http.daemon_threads = True
        return http

    def _return_after(self, seconds: float) -> None:
        if seconds < FOR_GOOD and not self._stopping.wait(seconds):
            self.come_back()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                server._connections.add(self.connection)

            def finish(self) -> None:
                server._connections.discard(self.connection)
                super().finish()

            def do_GET(self) -> None:
                server._serve(self)

            do_POST = do_GET
            do_PUT = do_GET
            do_DELETE = do_GET

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
            _body(handler.headers.get("Content-Type", ""), data),
        )
        self.requests.append(request)
        fault = self.faults.popleft() if self.faults else Fault()
        if fault.stall_s and self._stopping.wait(fault.stall_s):
            handler.close_connection = True
            return
        if fault.reset or fault.down_s:
            handler.close_connection = True
            if fault.down_s:
                self.go_away()
                threading.Thread(target=self._return_after, args=(fault.down_s,), daemon=True).start()
                return
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
            return
        status, value = (fault.status, fault.body) if fault.status else self.answer(request)
        if fault.change is not None:
            value = fault.change(value)
        payload = value if isinstance(value, bytes) else _text(value).encode()
        try:
            handler.send_response(status)
            for name, header in fault.headers:
                handler.send_header(name, header)
            handler.send_header("Content-Length", str(len(payload)))
            handler.end_headers()
            if fault.trickle_s:
                self._trickle(handler, payload, fault.trickle_s)
            else:
                handler.wfile.write(payload[: len(payload) // 2] if fault.cut else payload)
        except (BrokenPipeError, ConnectionResetError):
            handler.close_connection = True  # the client gave up waiting
        handler.close_connection = handler.close_connection or fault.cut

    def _trickle(self, handler: BaseHTTPRequestHandler, payload: bytes, seconds: float) -> None:
        """Send a few bytes every 0.1 s, the rest at the end."""
        end = time.monotonic() + seconds
        sent = 0
        while time.monotonic() < end and sent < len(payload) and not self._stopping.wait(0.1):
            handler.wfile.write(payload[sent : sent + 8])
            sent += 8
        handler.wfile.write(payload[sent:])


def _body(content_type: str, data: bytes) -> Any:
    """JSON as its value, a form with files as its bytes, nothing as None."""
    if content_type.startswith("multipart/"):
        return data
    return json.loads(data) if data else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has just ended by itself
