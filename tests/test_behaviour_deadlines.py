"""Four timers, each of its own: head, body, idle, send (PRODUCTION behaviours 8 and 10)."""

from __future__ import annotations

import json
import resource
import select
import time

import pytest
from conformance.wire import Truncated, Wire, chunked, request
from harness import wait_until


@pytest.fixture
def many_files():
    """A thousand sockets in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_10_a_thousand_half_request_lines(serve, many_files):
    server = serve("behaviour_echo:app", "--header-timeout", "2")
    wires = [Wire(server) for _ in range(1000)]
    began = time.monotonic()
    for wire in wires:
        wire.send(b"GET /ech")
    durations = []
    while time.monotonic() - began < 1.5:
        started = time.monotonic()
        with Wire(server) as other:
            assert other.get("/").body == b"hello"
        durations.append(time.monotonic() - started)
    assert len(durations) >= 10, durations
    for wire in wires:
        found = wire.response()
        assert (found.status, found.closes) == (408, True)
        wire.expect_end()
        wire.socket.close()
    with Wire(server) as other:
        assert other.get("/").body == b"hello"


def ends_after(wire: Wire, least: float, most: float, since: float) -> None:
    """The server ends the connection between so many seconds after `since`."""
    wire.expect_end()
    lasted = time.monotonic() - since
    assert least <= lasted <= most, f"it lasted {lasted:.2f} s"


def test_a_head_that_trickles_is_408_at_its_deadline(serve):
    server = serve("behaviour_echo:app", "--header-timeout", "2")
    with Wire(server) as wire:
        began = time.monotonic()
        head = request("GET", "/", *[f"X-{n}: {n}" for n in range(200)])
        for byte in head:
            # A byte is no progress for this timer: it is the whole head's.
            wire.send(bytes([byte]))
            if select.select([wire.socket], [], [], 0.2)[0]:
                break
        found = wire.response()
        assert (found.status, found.closes) == (408, True)
        assert b"--header-timeout" in found.body
        ends_after(wire, 1.8, 6, began)


def test_a_connection_that_says_nothing_ends_at_the_header_deadline(serve):
    server = serve("behaviour_echo:app", "--header-timeout", "2", "--keep-alive", "60")
    with Wire(server) as wire:
        began = time.monotonic()
        left = wire.rest()
        assert left == b"" or left.startswith(b"HTTP/1.1 408 "), left
        assert 1.8 <= time.monotonic() - began <= 6


def test_an_idle_connection_ends_without_a_word(serve):
    server = serve("behaviour_echo:app", "--keep-alive", "2", "--header-timeout", "60")
    with Wire(server) as wire:
        for _ in range(3):
            time.sleep(1)
            assert wire.get("/").body == b"hello"
        ends_after(wire, 1.8, 6, time.monotonic())


def test_idle_and_header_timers_do_not_share_their_time(serve):
    server = serve("behaviour_echo:app", "--keep-alive", "60", "--header-timeout", "2")
    with Wire(server) as wire:
        assert wire.get("/").body == b"hello"
        # Longer idle than a head may take.
        assert wire.is_silent_for(3)
        assert wire.get("/").body == b"hello"
        # The head's time begins with its first byte.
        assert wire.is_silent_for(1.5)
        wire.send(b"GET / HT")
        assert wire.is_silent_for(1)
        wire.send(b"TP/1.1\r\nHost: a\r\n\r\n")
        assert wire.response().body == b"hello"
        began = time.monotonic()
        wire.send(b"GET / HT")
        assert wire.response().status == 408
        ends_after(wire, 1.8, 6, began)


def test_a_short_idle_time_does_not_cut_a_head(serve):
    server = serve("behaviour_echo:app", "--keep-alive", "1", "--header-timeout", "30")
    with Wire(server) as wire:
        assert wire.get("/").body == b"hello"
        wire.send(b"GET /")
        assert wire.is_silent_for(3)
        wire.send(b" HTTP/1.1\r\nHost: a\r\n\r\n")
        assert wire.response().body == b"hello"


def test_a_slow_view_is_cut_by_none_of_them(serve):
    flags = ("--keep-alive", "--header-timeout", "--body-timeout", "--send-timeout")
    server = serve("behaviour_echo:app", *[part for flag in flags for part in (flag, "1")])
    with Wire(server) as wire:
        assert wire.get("/sleep?seconds=3").body == b"slept"
        assert wire.post("/sleep?seconds=3", b"body").body == b"slept"


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("size", [10, 100_000])
def test_a_body_without_progress_is_408(serve, framing, size):
    server = serve("behaviour_echo:app", "--body-timeout", "2")
    with Wire(server) as wire:
        if framing == "length":
            wire.send(request("POST", "/echo", f"Content-Length: {size}") + bytes(size - 1))
        else:
            wire.send(request("POST", "/echo", "Transfer-Encoding: chunked"))
            wire.send(chunked(bytes(size))[:-1])
        began = time.monotonic()
        found = wire.response()
        assert (found.status, found.closes) == (408, True)
        assert b"--body-timeout" in found.body
        ends_after(wire, 1.5, 6, began)


def test_a_body_that_progresses_may_take_longer(serve):
    server = serve("behaviour_echo:app", "--body-timeout", "2", "--header-timeout", "2")
    with Wire(server) as wire:
        wire.send(request("POST", "/echo", "Content-Length: 6"))
        for byte in b"slowly":
            time.sleep(0.8)
            wire.send(bytes([byte]))
        assert json.loads(wire.response().body)["body"] == "slowly"


def test_08_a_silent_client_is_cut_at_the_send_timeout_and_its_stream_closed(serve):
    """PRODUCTION 8: neither FIN nor RST, and nothing is read: `--send-timeout` says that it left."""
    server = serve("behaviour_stream:app", "--send-timeout", "2", "--threads", "2")
    with Wire(server, receive_buffer=4096) as wire:
        began = time.monotonic()
        wire.send(request("GET", "/stream?name=stuck&pieces=100000&seconds=0"))

        def fate() -> dict | None:
            with Wire(server) as other:
                return json.loads(other.get("/fate?name=stuck").body)

        wait_until(lambda: (fate() or {}).get("closed"), what="the stream is closed")
        assert 1.5 <= time.monotonic() - began <= 8
        assert fate()["closed"] == 1
        # What was on its way arrives; that it is not all is visible.
        with pytest.raises((Truncated, ConnectionResetError)):
            wire.response()


def test_a_big_body_that_nobody_reads_is_cut(serve):
    server = serve("behaviour_echo:app", "--send-timeout", "2")
    with Wire(server, receive_buffer=4096) as wire:
        wire.send(request("GET", "/sized?bytes=50000000"))
        time.sleep(5)
        with pytest.raises((Truncated, ConnectionResetError)):
            wire.response()


def test_a_reader_that_progresses_may_take_longer(serve):
    server = serve("behaviour_echo:app", "--send-timeout", "2")
    size = 8_000_000
    with Wire(server, receive_buffer=65536) as wire:
        wire.send(request("GET", f"/sized?bytes={size}"))
        assert wire.head().status == 200
        left = size
        for _ in range(8):
            # Enough that the kernel tells the server about the room each time.
            left -= len(wire.exactly(500_000))
            time.sleep(0.7)
        assert wire.exactly(left) == b"x" * left
