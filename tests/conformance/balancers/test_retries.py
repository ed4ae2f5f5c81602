"""What each balancer does with a request whose server connection ends without an answer. The server
here is a false one, and the table is what docs/deployment.md says.

It also shows that `complaints` finds what the logs of nginx and Caddy say of such a server.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections import Counter

import pytest

from .conftest import demand
from .fronts import KINDS, Front

# Balancer, method, connection: how often the server saw it, and what the client got; 0: nothing.
EXPECTED = {
    ("nginx", "GET", "new"): (1, 502),
    ("nginx", "POST", "new"): (1, 502),
    ("nginx", "GET", "kept"): (2, 200),
    ("nginx", "POST", "kept"): (1, 502),
    ("haproxy", "GET", "new"): (1, 502),
    ("haproxy", "POST", "new"): (1, 502),
    ("haproxy", "GET", "kept"): (1, 0),
    ("haproxy", "POST", "kept"): (1, 0),
    ("envoy", "GET", "new"): (1, 503),
    ("envoy", "POST", "new"): (1, 503),
    ("envoy", "GET", "kept"): (1, 503),
    ("envoy", "POST", "kept"): (1, 503),
    ("caddy", "GET", "new"): (1, 502),
    ("caddy", "POST", "new"): (1, 502),
    ("caddy", "GET", "kept"): (2, 200),
    ("caddy", "POST", "kept"): (1, 502),
}


class Faithless:
    """A server that closes instead of answering: `/new` always, `/kept` on a used connection."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        used = False
        with connection, connection.makefile("rb") as lines:
            while line := lines.readline():
                target = line.split()[1].decode()
                length = 0
                while (field := lines.readline().strip()) != b"":
                    if field.lower().startswith(b"content-length:"):
                        length = int(field.split(b":")[1])
                lines.read(length)
                self.seen[target] += 1
                if target.startswith("/new") or (target.startswith("/kept") and used):
                    return
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                used = True


@pytest.fixture(scope="module")
def faithless():
    server = Faithless()
    yield server
    server.listener.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_again(faithless, tmp_path, kind):
    demand(kind)
    found = {}
    with Front(kind, faithless.port, tmp_path) as front:
        for method in ("GET", "POST"):
            for use in ("new", "kept"):
                found[kind, method, use] = ask(front, faithless, method, use)
        assert bool(front.complaints()) == (kind in ("nginx", "caddy")), front.log()
    assert found == {key: value for key, value in EXPECTED.items() if key[0] == kind}


def ask(front: Front, server: Faithless, method: str, use: str) -> tuple[int, int]:
    """How often the server saw the request, and the status."""
    body = b"once" if method == "POST" else None
    target = f"/{use}/{front.kind}/{method}"
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=10)
    try:
        for path in ("/first", target) if use == "kept" else (target,):
            connection.request(method, path, body)
            response = connection.getresponse()
            response.read()
        status = response.status
    except (http.client.RemoteDisconnected, ConnectionError):
        status = 0
    finally:
        connection.close()
    return server.seen[target], status
