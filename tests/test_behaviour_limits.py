"""At the bounds: descriptors, connections, queues, slots.

PRODUCTION behaviours 6 and 11, hazards 4 and 22.
"""

from __future__ import annotations

import resource
import threading
import time

from conformance.wire import Wire, cpu_seconds, request


def test_06_a_hundred_requests_that_wait_are_answered_in_the_drain(serve):
    server = serve("behaviour_echo:app", "--threads", "2", "--grace", "25")
    wires = [Wire(server, timeout=30) for _ in range(100)]
    for number, wire in enumerate(wires):
        wire.send(request("GET", f"/sleep?seconds=0.1&say={number}"))
    # Two run, ninety-eight wait, five seconds of work.
    time.sleep(0.3)
    server.process.terminate()
    for number, wire in enumerate(wires):
        found = wire.response()
        assert (found.status, found.body) == (200, b"%d" % number)
        wire.socket.close()
    assert server.wait() == 0


def test_06_a_request_in_the_listen_queue_is_answered_too(serve):
    """PRODUCTION 6, RULES 25: the worker is full when SIGTERM comes, and what the kernel has accepted
    for it is answered all the same."""
    flags = ("--threads", "1", "--max-connections", "4", "--drain-idle", "1")
    server = serve("behaviour_echo:app", *flags)
    inside = [Wire(server, timeout=30) for _ in range(4)]
    for wire in inside:
        found = wire.get("/")
        assert (found.body, found.closes) == (b"hello", False)
    # More than may be open: these wait in the kernel, accepted for their clients.
    queued = [Wire(server, timeout=30) for _ in range(8)]
    for number, wire in enumerate(queued):
        wire.send(request("GET", f"/sleep?seconds=0.1&say={number}"))
    for wire in queued:
        assert wire.is_silent_for(0.1)
    server.process.terminate()
    for number, wire in enumerate(queued):
        found = wire.response()
        assert (found.status, found.body, found.closes) == (200, b"%d" % number, True)
        wire.expect_end()
        wire.socket.close()
    for wire in inside:
        wire.expect_end()
        wire.socket.close()
    assert server.wait() == 0


def test_11_idle_connections_are_no_load(serve):
    server = serve("behaviour_echo:app", "--threads", "2", "--queue", "4")
    idle = [Wire(server) for _ in range(300)]
    for wire in idle:
        assert wire.get("/").body == b"hello"
    for _ in range(20):
        with Wire(server) as wire:
            assert wire.get("/").body == b"hello"
    # And each of them is as good as new.
    for wire in idle:
        assert wire.get("/").body == b"hello"
        wire.socket.close()


def test_11_a_full_queue_sheds_and_says_when_to_come_back(serve):
    server = serve("behaviour_echo:app", "--threads", "1", "--queue", "4")
    wires = [Wire(server) for _ in range(20)]
    for wire in wires:
        wire.send(request("GET", "/sleep?seconds=1"))
    statuses = []
    for wire in wires:
        found = wire.response()
        statuses.append(found.status)
        if found.status == 503:
            assert int(found.value("retry-after")) >= 1
    # One runs and four wait; the thread may take its first while the others come, or after.
    assert set(statuses) == {200, 503}
    assert 4 <= statuses.count(200) <= 7, statuses
    for wire in wires:
        wire.socket.close()
    with Wire(server) as wire:
        assert wire.get("/").body == b"hello"


def test_hazard_4_a_late_answer_reaches_no_other_client(serve):
    # Few slots, so that each new connection gets the one that was just left.
    server = serve("behaviour_echo:app", "--threads", "4", "--max-connections", "4")
    for number in range(20):
        leaving = Wire(server)
        leaving.send(request("GET", f"/sleep?seconds=0.15&say=late-{number}"))
        time.sleep(0.02)
        leaving.reset()
        wires = [Wire(server) for _ in range(3)]
        # The late answer is made now; it belongs to nobody.
        for wire in wires:
            assert wire.is_silent_for(0.08)
        for wire in wires:
            found = wire.get(f"/sleep?seconds=0&say=own-{number}")
            assert found.body == b"own-%d" % number
            wire.socket.close()


def test_hazard_4_nor_while_many_come_and_go(serve):
    server = serve("behaviour_echo:app", "--threads", "4", "--max-connections", "8")
    wrong: list[object] = []

    def visit(visitor: int) -> None:
        for turn in range(60):
            name = b"%d-%d" % (visitor, turn)
            try:
                wire = Wire(server)
                wire.send(request("GET", f"/sleep?seconds=0.01&say={name.decode()}"))
                if (visitor + turn) % 3 == 0:
                    wire.reset()
                    continue
                with wire:
                    found = wire.response()
                    if found.body != name:
                        wrong.append((name, found))
            except Exception as error:  # noqa: BLE001
                wrong.append((name, error))

    threads = [threading.Thread(target=visit, args=(visitor,)) for visitor in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def with_few_files(limit: int):
    """Runs in the child: no more descriptors than this."""
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def test_hazard_22_more_clients_than_descriptors(serve):
    server = serve("behaviour_echo:app", preexec=with_few_files(400))
    pid = server.worker_pids()[0]
    # The kernel completes the handshakes of all.
    wires = [Wire(server, timeout=20) for _ in range(300)]
    for wire in wires[:40]:
        assert wire.get("/").body == b"hello"
    started = cpu_seconds(pid)
    time.sleep(2)
    assert cpu_seconds(pid) - started < 0.4, "it spins"
    # Those that are in are served; each that leaves lets another in, to the last.
    for wire in wires:
        assert wire.get("/").body == b"hello"
        wire.socket.close()
    assert server.worker_pids() == [pid]


def test_hazard_22_no_descriptors_left_is_no_hot_loop(serve):
    server = serve("behaviour_echo:app", preexec=with_few_files(400))
    pid = server.worker_pids()[0]
    inside = [Wire(server) for _ in range(20)]
    for wire in inside:
        assert wire.get("/").body == b"hello"
    # The application takes every descriptor that is left: accept fails from here on.
    assert int(inside[0].get("/files?take=1").body) > 20
    outside = [Wire(server, timeout=20) for _ in range(20)]
    for wire in outside:
        wire.send(request("GET", "/"))
    time.sleep(0.3)
    started = cpu_seconds(pid)
    time.sleep(2)
    assert cpu_seconds(pid) - started < 0.4, "it spins on accept"
    for wire in inside:
        assert wire.get("/").body == b"hello"
    assert outside[-1].is_silent_for(0.1)
    inside[1].get("/files?take=0")
    for wire in outside:
        assert wire.response().body == b"hello"
        wire.socket.close()
    assert server.worker_pids() == [pid]
