"""The server that the fault tests stand on must itself be quiet about its clients, and loud about itself."""

import socket
import struct
import threading
from collections.abc import Callable

import pytest
from faulty_http import FaultyServer, Request


class Echo(FaultyServer):
    """Answers every request; `/broken` breaks it."""

    def answer(self, request: Request) -> tuple[int, str]:
        if request.path == "/broken":
            raise ValueError("this server has a fault of its own")
        return 200, "here"


def reset(client: socket.socket) -> None:
    """End the connection by RST, as an HTTP client does that closes with an answer half read."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def ended(server: FaultyServer, path: str, end: Callable[[socket.socket], None]) -> None:
    """Ask for `path`, end the connection by `end`, wait until the server's thread for it is done."""
    others = set(threading.enumerate())
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    answer = client.recv(1000)
    assert answer.startswith(b"HTTP/1.1 200") or (path, answer) == ("/broken", b"")
    end(client)
    for thread in set(threading.enumerate()) - others:
        thread.join(20)
        assert not thread.is_alive()


def test_a_client_that_drops_its_kept_connection_leaves_nothing_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with Echo() as server:
        ended(server, "/", reset)
    assert capfd.readouterr().err == ""


def test_a_fault_of_the_server_itself_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with Echo() as server:
        ended(server, "/broken", socket.socket.close)
    assert "this server has a fault of its own" in capfd.readouterr().err
