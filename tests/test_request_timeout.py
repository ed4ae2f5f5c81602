"""`--request-timeout`: 504, the stack in the log, and another worker (RULES.md 6, PRODUCTION.md's row of
times)."""

from __future__ import annotations

import re
import socket
import threading
import time

import pytest
from harness import read_to_end, wait_until
from test_health import Admin, fill

RECYCLED = re.compile(r"a request ran for more than --request-timeout 1 s")


def head_of(path: str, method: str = "GET", *fields: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: a", *fields, "", ""]
    return "\r\n".join(lines).encode()


def begin(server, path: str) -> socket.socket:
    """Sends a request and does not wait for its answer."""
    client = server.connect(30)
    client.sendall(head_of(path))
    return client


def is_504(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert answer.count(b"HTTP/1.1 ") == 1, answer
    assert b"Connection: close" in head and body == b"the application did not answer in time\n"
    return head.startswith(b"HTTP/1.1 504 ")


def test_rule_06_a_request_that_hangs_is_504_with_its_stack_and_a_successor(serve):
    server = serve("health:app", "--request-timeout", "1", "--access-log", "-", "--grace", "2",
                   "--request-id")
    with begin(server, "/hang_until_released") as client:
        assert is_504(read_to_end(client, 30))
    found = server.wait_for_log(
        r"GET /hang_until_released id=\S+: no response within --request-timeout 1 s, answered 504; "
        r"hoopsnake-pool-\d+ runs it, most recent call first:\n(?P<stack>(?:  .*\n)+)"
    )
    assert "in hang_until_released" in found["stack"] and "in app" in found["stack"]
    server.wait_for_log(RECYCLED)
    server.wait_for_log(r'"GET /hang_until_released HTTP/1.1" 504 ')
    assert server.get("/").body == b"GET hello"


def test_the_other_threads_serve_and_one_successor_is_asked_for(serve):
    server = serve("health:app", "--request-timeout", "1", "--threads", "4", "--grace", "1")
    hanging = [begin(server, "/hang_until_released") for _ in range(3)]
    for _ in range(50):
        assert server.get("/").body == b"GET hello"
    for client in hanging:
        assert is_504(read_to_end(client, 30))
    # One dump for those of one tick; each is named.
    wait_until(lambda: server.log().count("in hang_until_released\n") == 3, 20)
    server.wait_for_log(RECYCLED)
    assert server.get("/").body == b"GET hello"
    assert len(RECYCLED.findall(server.log())) == 1


def test_all_threads_hang_and_the_worker_is_live(serve):
    server = serve("health:app", "--admin", "127.0.0.1:0", "--request-timeout", "3", "--threads", "2",
                   "--queue", "2", "--grace", "1", "--single-process")
    admin = Admin(server)
    hanging = fill(server)
    assert len(hanging) == 4
    assert all(admin.ask("/live").status == 200 for _ in range(50))
    assert all([is_504(read_to_end(client, 30)) for client in hanging])
    server.wait_for_log("nobody replaces this worker: a request ran for more than")
    assert admin.ask("/live").status == 200


def test_a_queued_request_is_504_and_never_runs(serve):
    server = serve("health:app", "--request-timeout", "2", "--threads", "1", "--single-process",
                   "--grace", "1")
    stream = begin(server, "/stream?seconds=6")
    assert stream.recv(65536).startswith(b"HTTP/1.1 200 OK")
    queued = [begin(server, "/never") for _ in range(5)]
    assert all([is_504(read_to_end(client, 30)) for client in queued])
    server.wait_for_log("requests answered 504: they waited for a thread")
    assert b"end" in read_all_chunks(stream)
    # The thread is free, has passed the five by, and nobody was to be replaced.
    assert server.get("/calls").body == b"stream"
    assert "ran for more than" not in server.log()
    assert server.stop() == 0


def read_all_chunks(client: socket.socket) -> bytes:
    received = b""
    while not received.endswith(b"0\r\n\r\n"):
        piece = client.recv(65536)
        assert piece, received
        received += piece
    return received


def test_a_stream_is_free_once_it_has_begun(serve):
    server = serve("health:app", "--request-timeout", "1", "--access-log", "-")
    with begin(server, "/stream?seconds=3") as client:
        received = read_all_chunks(client)
    assert b"begin " in received and b"end" in received
    server.wait_for_log(r'"GET /stream\?seconds=3 HTTP/1.1" 200 ')
    assert "504" not in server.log()


def test_a_slow_upload_does_not_count(serve):
    server = serve("health:app", "--request-timeout", "1")
    with server.connect(30) as client:
        client.sendall(head_of("/upload", "POST", "Content-Length: 8"))
        for byte in b"12345678":
            time.sleep(0.3)
            client.sendall(bytes([byte]))
        assert client.recv(65536).endswith(b"\r\n\r\n8")


def test_each_request_of_a_connection_has_its_own_time(serve):
    server = serve("health:app", "--request-timeout", "2")
    with server.connect(30) as client:
        for _ in range(4):
            client.sendall(head_of("/sleep?seconds=0.8"))
            assert client.recv(65536).endswith(b"slept")
            # Between requests nothing is timed but the keep-alive.
            time.sleep(0.3)
        client.sendall(head_of("/") * 3 + head_of("/hang_until_released"))
        received = read_to_end(client, 30)
    assert received.count(b"200 OK") == 3 and received.count(b" 504 ") == 1


@pytest.mark.parametrize(("view", "trace"), [
    ("write_late", "write:ConnectionResetError"), ("generate_late", "generate:closed"),
])
def test_what_comes_late_reaches_nobody_and_the_producer_is_told(serve, view, trace):
    server = serve("health:app", "--request-timeout", "1", "--single-process")
    with begin(server, f"/{view}") as client:
        assert is_504(read_to_end(client, 30))
    server.get("/release")
    wait_until(lambda: trace in server.get("/calls").text, what=trace)
    calls = server.get("/calls").text
    assert "generate:all" not in calls and "too late" not in calls
    # The thread is as good as any.
    assert all(server.get("/").body == b"GET hello" for _ in range(50))
    assert server.stop() == 0


def test_off_is_off(serve):
    server = serve("health:app", "--stall-timeout", "0")
    with begin(server, "/sleep?seconds=2") as client:
        assert client.recv(65536).endswith(b"slept")
    assert "504" not in server.log()


def test_a_view_that_holds_the_lock_is_504_too(serve):
    """The stack comes without the lock."""
    server = serve("health:app", "--request-timeout", "1", "--stall-timeout", "0", "--grace", "3")
    with begin(server, "/hold_the_lock?seconds=5") as client:
        begun = time.monotonic()
        assert is_504(read_to_end(client, 30))
        assert time.monotonic() - begun < 4.5, "it was answered when the lock was let go"
    server.wait_for_log(r"runs it, most recent call first:\n.* in hold_the_lock\n")


def test_many_at_once(serve):
    """Every request is answered once, whatever side of its deadline it comes to."""
    server = serve("health:app", "--request-timeout", "1", "--threads", "16", "--single-process")
    statuses = []

    def client(number: int) -> None:
        seconds = 0.9 + number % 20 * 0.01
        for _ in range(3):
            with begin(server, f"/sleep?seconds={seconds}") as wire:
                answer = wire.recv(65536)
                statuses.append(answer[9:12])
                if answer.startswith(b"HTTP/1.1 504"):
                    assert is_504(answer)
                else:
                    assert answer.endswith(b"slept")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(statuses) == 48 and set(statuses) <= {b"200", b"504"}, statuses
    assert server.get("/").body == b"GET hello"
    assert server.stop() == 0


def test_the_worker_of_a_hung_request_is_replaced_and_names_it_at_its_end(serve):
    server = serve("health:app", "--request-timeout", "1", "--grace", "3", "--drain-idle", "0")
    (old,) = server.worker_pids()
    with begin(server, "/hang_until_released") as client:
        assert is_504(read_to_end(client, 30))
    server.wait_for_log(r"worker 1 is replaced: a request ran for more than --request-timeout 1 s")
    wait_until(lambda: server.worker_pids() not in ([], [old]) and old not in server.worker_pids(),
               30, what="another worker serves alone")
    server.wait_for_log(r"the grace is over and hoopsnake-pool-\d+ runs GET /hang_until_released")
    assert server.get("/calls").body == b"", "the new worker's own"
    assert server.stop() == 0
