"""What the application forks keeps nothing of the worker: RULES.md 1, PRODUCTION.md behaviour 26."""

from __future__ import annotations

import os
import signal
import time

import pytest
from harness import process_is_alive, read_to_end, wait_until


@pytest.fixture
def lingering(serve):
    """A server whose view has made a child that outlives everything, and the child."""
    server = serve("forks:app", "--drain-idle", "0")
    child = int(server.get("/linger").body)
    yield server, child
    os.kill(child, signal.SIGKILL)


def test_a_child_keeps_no_port_when_the_server_stops(lingering):
    server, child = lingering
    assert server.stop() == 0
    os.kill(child, 0)
    with pytest.raises(ConnectionRefusedError):
        server.connect().close()


def test_a_child_swallows_no_connection_of_a_worker_that_died(lingering):
    server, child = lingering
    (worker,) = server.worker_pids()
    with server.connect() as idle:
        idle.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert idle.recv(65536).endswith(b"hello")
        os.kill(worker, signal.SIGKILL)
        # The kernel closes the dead worker's connections although the child lives.
        assert read_to_end(idle) == b""
    os.kill(child, 0)
    wait_until(lambda: server.worker_pids() not in ([], [worker]), what="the worker is back")
    for _ in range(20):
        assert server.get().body == b"hello"


def test_26_an_abort_is_seen_at_once_although_a_child_lives(lingering):
    server, _ = lingering
    begun = time.monotonic()
    with server.connect() as client:
        client.sendall(b"GET /raises-midway HTTP/1.1\r\nHost: a\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            while client.recv(65536):
                pass
            raise AssertionError("the stream ended as if it were complete")
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(("path", "code"), [("/return", b"1"), ("/exit", b"7")])
def test_a_child_that_leaves_its_view_ends_and_the_parent_answers(serve, path, code):
    server = serve("forks:app")
    for _ in range(3):
        assert server.get(path).body == code
    assert server.get().body == b"hello"
    assert server.stop() == 0


def test_multiprocessing_works_in_a_view(serve):
    server = serve("forks:app")
    for _ in range(3):
        assert server.get("/multiprocessing").body == b"done"
    assert server.stop() == 0


@pytest.mark.parametrize("flags", [(), ("--preload",), ("--single-process",)],
                         ids=["worker", "template", "single"])
def test_a_child_that_the_import_made_keeps_no_port(serve, flags):
    server = serve("forks_at_import:app", *flags, "--drain-idle", "0")
    child = int(server.get().body)
    try:
        assert server.stop() == 0
        os.kill(child, 0)
        with pytest.raises(ConnectionRefusedError):
            server.connect().close()
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("flags", [(), ("--preload",)], ids=["worker", "template"])
def test_a_child_that_leaves_the_import_ends_and_the_parent_serves(serve, flags):
    server = serve("forks_at_import:app", *flags, env={"RETURN": "1"})
    child = int(server.get().body)
    server.wait_for_log(f"process {child} was forked by the application and returned from it")
    wait_until(lambda: not process_is_alive(child), what="the child's end")
    assert server.get().status == 200
    assert server.stop() == 0
