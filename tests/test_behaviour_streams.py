"""Streams, their readers and their memory (PRODUCTION behaviours 1, 8, 9; RULES 18)."""

from __future__ import annotations

import hashlib
import json
import time

import pytest
from conformance.wire import Wire, request, rss_bytes, shared_server
from harness import wait_until

MIB = 1024 * 1024
PIECE = bytes(range(256)) * 256

server = shared_server("behaviour_stream:app", "--threads", "4")


def fate(server, name: str) -> dict | None:
    """What became of a stream."""
    with Wire(server) as wire:
        return json.loads(wire.get(f"/fate?name={name}").body)


def open_stream(wire: Wire, name: str, pieces: int, seconds: float) -> None:
    """Asks for it and waits for its head and its first bytes."""
    wire.send(request("GET", f"/stream?name={name}&pieces={pieces}&seconds={seconds}"))
    assert wire.head().status == 200
    wire.exactly(1)


def test_01_a_lone_request_is_answered_while_all_but_one_thread_stream(server):
    """PRODUCTION 1, every time: while all streams are open, and before one of them is ten pieces on."""
    wires = [Wire(server) for _ in range(3)]
    names = [f"one-{number}" for number in range(3)]
    for name, wire in zip(names, wires, strict=True):
        open_stream(wire, name, 100_000, 0.05)
    for _ in range(30):
        before = {name: fate(server, name)["pieces"] for name in names}
        started = time.monotonic()
        with Wire(server) as wire:
            assert wire.get("/").body == b"hello"
        duration = time.monotonic() - started
        after = {name: fate(server, name) for name in names}
        assert [found["closed"] for found in after.values()] == [0, 0, 0]
        # A request that waited for a stream would wait for all its pieces, over an hour. 100 ms are
        # what an idle machine keeps; the bounds here are for one that runs other tests beside this.
        assert all(after[name]["pieces"] - before[name] < 10 for name in names), (before, after)
        assert duration < 1
    for wire in wires:
        wire.reset()
    for number in range(3):
        wait_until(lambda: fate(server, f"one-{number}")["closed"])  # noqa: B023


@pytest.mark.parametrize("way", ["FIN", "RST"])
def test_08_a_stream_is_closed_soon_after_its_client_left(server, way):
    """PRODUCTION 8: told within 1 s, at the generator's next piece; then not asked for another."""
    name = f"gone-{way}"
    wire = Wire(server)
    open_stream(wire, name, 100_000, 0.1)
    left = time.monotonic()
    if way == "RST":
        wire.reset()
    else:
        wire.socket.close()
    wait_until(lambda: fate(server, name)["closed"], what=f"{name} is closed")
    # At a piece each 0.1 s. Both clocks are the machine's monotonic one.
    assert fate(server, name)["closed_at"] - left < 1
    pieces = fate(server, name)["pieces"]
    time.sleep(0.3)
    assert fate(server, name) | {"pieces": pieces, "closed": 1} == fate(server, name)


def test_08_a_stream_that_runs_at_full_speed_is_closed_too(server):
    wire = Wire(server)
    open_stream(wire, "fast", 10_000_000, 0)
    wire.reset()
    wait_until(lambda: fate(server, "fast")["closed"])
    assert fate(server, "fast")["closed"] == 1


def test_rule_18_a_half_closed_client_gets_its_stream_to_the_end(server):
    with Wire(server) as wire:
        wire.send(request("GET", "/stream?name=half&pieces=10&seconds=0.05"))
        wire.half_close()
        found = wire.response()
        assert (found.framing, found.body) == ("chunked", b"tick\n" * 10)
        wire.expect_end()
    assert fate(server, "half") | {"pieces": 10, "closed": 1} == fate(server, "half")


def test_a_finished_stream_is_closed_once(server):
    with Wire(server) as wire:
        for number in range(20):
            target = f"/stream?name=done-{number}&pieces={number}&seconds=0"
            assert wire.get(target).body == PIECE * number
    for number in range(20):
        assert fate(server, f"done-{number}")["closed"] == 1


def test_a_piece_is_sent_when_it_is_made(server):
    with Wire(server) as wire:
        wire.send(request("GET", "/stream?name=prompt&pieces=5&seconds=0.5"))
        assert wire.head().status == 200
        started = time.monotonic()
        assert wire.line() == b"5" and wire.exactly(7) == b"tick\n\r\n"
        assert time.monotonic() - started < 0.45
        for _ in range(4):
            assert wire.line() == b"5" and wire.exactly(7) == b"tick\n\r\n"
        assert wire.line() == b"0"


def test_09_a_slow_reader_costs_its_own_budget_only(server, pytestconfig):
    """PRODUCTION 9: a generator of 200 MiB to a reader of 10 KB/s that reads on at full speed after
    five seconds. The whole, 1 GiB with `--long`, says no more: memory is bounded by the credit after
    the first mebibyte, and at 10 KB/s throughout it would take a day."""
    mebibytes = 1024 if pytestconfig.getoption("--long") else 200
    pid = server.worker_pids()[0]
    with Wire(server) as wire:
        assert wire.get("/stream?name=warm&pieces=64&seconds=0").body == PIECE * 64
    before = rss_bytes(pid)
    highest = before
    with Wire(server, timeout=60, receive_buffer=65536) as wire:
        wire.send(request("GET", f"/stream?name=slow&pieces={mebibytes * 16}&seconds=0"))
        assert wire.head().status == 200
        # 10 KB/s for a few seconds, then as fast as it goes.
        received = bytearray()
        for _ in range(50):
            received += wire.socket.recv(1024)
            time.sleep(0.1)
            highest = max(highest, rss_bytes(pid))
        # The producer waits: what it made is in the kernel's buffers and within the credit.
        assert fate(server, "slow")["pieces"] * len(PIECE) < 16 * MIB
        wire.buffer += received
        digest = hashlib.sha256()
        while size := int(wire.line(), 16):
            digest.update(wire.exactly(size))
            assert wire.line() == b""
            highest = max(highest, rss_bytes(pid))
    expected = hashlib.sha256()
    for _ in range(mebibytes * 16):
        expected.update(PIECE)
    assert digest.digest() == expected.digest()
    assert highest - before <= 8 * MIB, f"grew by {highest - before} bytes"


def test_09_one_big_body_does_not_grow_with_its_readers(serve):
    # One piece of 8 MiB, ten slow readers: the application's own copies are all there may be.
    server = serve("behaviour_echo:app", "--threads", "2")
    pid = server.worker_pids()[0]
    wires = [Wire(server, receive_buffer=65536) for _ in range(10)]
    with Wire(server) as wire:
        assert len(wire.get(f"/sized?bytes={8 * MIB}").body) == 8 * MIB
        before = rss_bytes(pid)
        for slow in wires:
            slow.send(request("GET", f"/sized?bytes={8 * MIB}"))
        for slow in wires:
            assert slow.head().status == 200
        assert wire.get("/").body == b"hello"
        # The application makes a body of its own for each; the server adds no second copy.
        assert rss_bytes(pid) - before < 10 * 8 * MIB + 16 * MIB
        for slow in wires:
            assert slow.exactly(8 * MIB) == b"x" * (8 * MIB)
            slow.socket.close()
