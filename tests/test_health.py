"""Probes: the admin listener and the health path (RULES.md 1, PRODUCTION.md's row of metrics)."""

from __future__ import annotations

import http.client
import os
import re
import select
import signal
import socket
import subprocess
import threading

import pytest
from harness import COMMAND, Reply, read_to_end, wait_until

ADMIN = re.compile(r" admin=http://127\.0\.0\.1:(\d+)")
CONNECTIONS_MAX = 64


class Admin:
    """The admin listener of a server."""

    def __init__(self, server) -> None:
        self.port = int(server.wait_for_log(ADMIN)[1])

    def connection(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.connect()
        return connection

    def ask(self, path: str = "/live", method: str = "GET", body: bytes | None = None) -> Reply:
        return ask(self.connection(), path, method, body)


def ask(connection, path="/live", method="GET", body=None) -> Reply:
    connection.request(method, path, body=body)
    return Reply(connection.getresponse())


def fill(server) -> list[socket.socket]:
    """Sends requests that hang until one is shed: every thread has one, and the queue is full."""
    hanging = []
    while True:
        client = server.connect(30)
        client.sendall(b"GET /hang_until_released HTTP/1.1\r\nHost: a\r\n\r\n")
        if select.select([client], [], [], 0.5)[0]:
            with client:
                assert client.recv(65536).startswith(b"HTTP/1.1 503 ")
            return hanging
        hanging.append(client)


def test_rule_01_live_and_ready_are_answered_by_every_worker(serve):
    server = serve("health:app", "--admin", "127.0.0.1:0", "--access-log", "-", workers=2)
    admin = Admin(server)
    for path, text in (("/live", "live"), ("/ready", "ready"), ("/ready?from=balancer", "ready")):
        reply = admin.ask(path)
        assert (reply.status, reply.text.strip()) == (200, text)
        assert reply.headers["Cache-Control"] == "no-store"
        assert reply.headers["Content-Type"].startswith("text/plain")
        head = admin.ask(path, "HEAD")
        assert (head.status, head.body) == (200, b"")
        assert head.headers["Content-Length"] == reply.headers["Content-Length"]
    # Enough for either worker to have had some.
    assert all(admin.ask().status == 200 for _ in range(100))
    assert server.get("/calls").body == b"", "the application was asked"
    server.wait_for_log(r"GET /calls")
    assert "/live" not in server.log() and "/ready" not in server.log()


def test_what_the_admin_listener_does_not_have(serve):
    server = serve("health:app", "--admin", "127.0.0.1:0")
    admin = Admin(server)
    for path in ("/", "/hello", "/live/", "/metrics-of-tomorrow", "/LIVE"):
        assert admin.ask(path).status == 404
    for method in ("POST", "DELETE", "OPTIONS"):
        reply = admin.ask("/ready", method)
        assert (reply.status, reply.headers["Allow"]) == (405, "GET, HEAD")
        assert reply.headers["Cache-Control"] == "no-store"
    # With a body that nobody reads: the answer, and the end of the connection.
    reply = admin.ask("/live", "POST", b"x" * 100_000)
    assert (reply.status, reply.headers["Connection"]) == (405, "close")
    with socket.create_connection(("127.0.0.1", admin.port), 10) as client:
        client.sendall(b"GET /live HTTP/1.1\r\nHost : a\r\n\r\n")
        assert read_to_end(client).startswith(b"HTTP/1.1 400 ")
    assert server.get("/calls").body == b""
    # Nor is any of it on the public listener.
    assert server.get("/live").body == b"GET live"


def test_a_probe_keeps_its_connection_and_pipelines(serve):
    server = serve("health:app", "--admin", "127.0.0.1:0")
    admin = Admin(server)
    connection = admin.connection()
    for _ in range(50):
        assert ask(connection).status == 200
    with socket.create_connection(("127.0.0.1", admin.port), 10) as client:
        one = b"GET /live HTTP/1.1\r\nHost: a\r\n\r\n"
        client.sendall(one * 30 + b"GET /ready HTTP/1.0\r\n\r\n")
        answers = read_to_end(client)
    assert answers.count(b"HTTP/1.1 200 OK") == 31
    assert answers.endswith(b"Connection: close\r\n\r\nready\n")


def test_a_full_worker_answers_probes_and_they_count_for_nothing(serve):
    server = serve("health:app", "--admin", "127.0.0.1:0", "--max-connections", "2")
    admin = Admin(server)
    probes = [admin.connection() for _ in range(10)]
    assert all(ask(probe).status == 200 for probe in probes)
    held = [server.connect() for _ in range(2)]
    for client in held:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert client.recv(65536).endswith(b"GET hello")
    with server.connect() as third:
        third.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert admin.ask("/ready").status == 200
        third.settimeout(0.3)
        with pytest.raises(TimeoutError):
            third.recv(65536)
        assert all(ask(probe, "/ready").status == 200 for probe in probes)
        held[0].close()
        third.settimeout(10)
        assert third.recv(65536).endswith(b"GET hello")
    held[1].close()


def test_admin_connections_have_a_bound_of_their_own(serve):
    server = serve("health:app", "--admin", "127.0.0.1:0")
    admin = Admin(server)
    kept = [admin.connection() for _ in range(CONNECTIONS_MAX)]
    assert all(ask(connection).status == 200 for connection in kept)
    with socket.create_connection(("127.0.0.1", admin.port), 10) as further:
        further.sendall(b"GET /live HTTP/1.1\r\nHost: a\r\n\r\n")
        further.settimeout(0.3)
        with pytest.raises(TimeoutError):
            further.recv(65536)
        assert server.get("/").body == b"GET hello"
        kept.pop().close()
        further.settimeout(10)
        assert further.recv(65536).startswith(b"HTTP/1.1 200 OK")


def test_a_busy_worker_is_live(serve):
    """All threads hang and the queue is full: requests are shed, probes are answered."""
    server = serve("health:app", "--admin", "127.0.0.1:0", "--threads", "2", "--queue", "1",
                   "--grace", "1", "--health-path", "/healthz")
    admin = Admin(server)
    hanging = fill(server)
    assert len(hanging) == 3
    for _ in range(50):
        assert admin.ask("/live").status == 200
        assert admin.ask("/ready").status == 200
        assert server.get("/healthz").status == 200
    for client in hanging:
        client.close()


def test_a_health_path_on_the_public_listener(serve):
    server = serve("health:app", "--health-path", "/-/health", "--access-log", "-")
    for path in ("/-/health", "/-/health?deep=no"):
        reply = server.get(path)
        assert (reply.status, reply.text.strip()) == (200, "ready")
        assert reply.headers["Cache-Control"] == "no-store"
    assert server.request("HEAD", "/-/health").status == 200
    assert server.get("/calls").body == b""
    # What is not exactly that is the application's.
    assert server.request("POST", "/-/health", body=b"x").body == b"POST -/health"
    assert server.get("/-/health/").body == b"GET -/health"
    assert server.get("/-/healthy").body == b"GET -/healthy"
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    for _ in range(20):
        assert ask(connection, "/-/health").status == 200
        assert ask(connection, "/after").body == b"GET after"
    server.wait_for_log("GET /after")
    assert '"GET /-/health ' not in server.log() and '"HEAD' not in server.log()
    assert '"POST /-/health ' in server.log()


def test_a_unix_socket_for_probes(serve, tmp_path):
    path = tmp_path / "admin.sock"
    server = serve("health:app", "--admin", f"unix:{path}", "--uds-mode", "600")
    assert path.stat().st_mode & 0o777 == 0o600
    server.wait_for_log(re.escape(f" admin=unix:{path}"))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"GET /ready HTTP/1.0\r\n\r\n")
        assert read_to_end(client).endswith(b"ready\n")
    assert server.stop() == 0
    assert not path.exists()


def refused(*args: str) -> str:
    command = [str(COMMAND), "hello", "--app-dir", "apps", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1, done.stderr
    return done.stderr


def test_an_admin_address_that_cannot_be_had_ends_the_start(tmp_path):
    path = tmp_path / "web.sock"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = refused("--bind", f"unix:{path}", "--admin", address)
    assert f"cannot bind {address}: another process listens there" in said
    assert "choose another --admin" in said and not path.exists()
    said = refused("--bind", f"unix:{path}", "--admin", f"unix:{path}")
    assert "choose another --admin" in said and not path.exists()


def is_refused(admin: Admin) -> bool:
    try:
        admin.connection().close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_drain_closes_the_admin_listener_at_once_and_does_not_wait_for_it(serve):
    server = serve("health:app", "--admin", "127.0.0.1:0", "--health-path", "/healthz",
                   "--drain-idle", "4", "--grace", "20")
    admin = Admin(server)
    idle = admin.connection()
    assert ask(idle).status == 200
    half = admin.connection()
    half.sock.sendall(b"GET /li")
    public = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    assert ask(public, "/healthz").status == 200
    slow = server.connect()
    slow.sendall(b"GET /hang_until_released HTTP/1.1\r\nHost: a\r\n\r\n")
    other = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    assert ask(other, "/").status == 200
    server.process.send_signal(signal.SIGTERM)
    assert read_to_end(idle.sock) == b""
    wait_until(lambda: is_refused(admin), what="the listener is closed")
    # Whoever kept a connection to the public listener is told.
    reply = ask(public, "/healthz")
    assert (reply.status, reply.text.strip()) == (503, "stopping")
    assert reply.headers["Retry-After"] == "1" and reply.headers["Connection"] == "close"
    assert ask(other, "/release").body == b"done"
    assert read_to_end(slow).endswith(b"released")
    # Half a request on the admin listener is nothing to wait for.
    assert server.wait(15) == 0


def test_a_worker_that_died_is_no_gap_for_probes(serve):
    """The listener is the supervisor's: another worker answers, or the next one does."""
    server = serve("health:app", "--admin", "127.0.0.1:0", workers=2)
    admin = Admin(server)
    first = server.worker_pids()[0]
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: first not in server.worker_pids(), what="the worker is dead")
    for _ in range(100):
        assert admin.ask("/ready").status == 200
    wait_until(lambda: len(server.worker_pids()) == 2, what="the worker is back")


def test_single_process_has_them_too(serve, tmp_path):
    path = tmp_path / "admin.sock"
    server = serve("health:app", "--single-process", "--admin", f"unix:{path}")
    answers = []

    def probe():
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /ready HTTP/1.0\r\n\r\n")
            answers.append(read_to_end(client))

    threads = [threading.Thread(target=probe) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(answer.endswith(b"ready\n") for answer in answers) and len(answers) == 8
    assert server.stop() == 0
    assert not path.exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_rule_25_a_delayed_stop_is_not_ready_and_serves_everything(serve, workers):
    server = serve("health:app", "--admin", "127.0.0.1:0", "--health-path", "/healthz",
                   "--shutdown-delay", "3", "--drain-idle", "0", workers=workers)
    admin = Admin(server)
    assert admin.ask("/ready").status == server.get("/healthz").status == 200
    server.process.send_signal(signal.SIGTERM)
    # Each worker learns of it at a moment of its own; from then on it stays so.
    wait_until(lambda: all(admin.ask("/ready").status == 503 for _ in range(20)))
    reply = admin.ask("/ready")
    assert (reply.status, reply.text.strip()) == (503, "stopping")
    assert server.get("/healthz").status == 503
    assert admin.ask("/live").status == 200
    assert server.get("/").body == b"GET hello"
    assert server.wait(20) == 0


def test_whoever_holds_all_admin_connections_lets_them_go_before_a_probe_gives_up(serve):
    """`--header-timeout` does not count there: 150 heads that never end, over twice the bound."""
    server = serve("health:app", "--admin", "127.0.0.1:0", "--header-timeout", "3600")
    admin = Admin(server)
    held = [socket.create_connection(("127.0.0.1", admin.port), 30) for _ in range(150)]
    for client in held:
        client.sendall(b"GET /li")
    assert admin.ask("/live").status == 200
    for client in held:
        client.close()
