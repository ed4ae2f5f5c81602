"""The framing of every response an application can ask for, its faults included
(PRODUCTION behaviours 18, 24, 26; RULES 18, 19)."""

from __future__ import annotations

import json
import re

import pytest
from conformance.wire import Truncated, Wire, request, shared_server

server = shared_server("behaviour_echo:app")
faulty = shared_server("behaviour_faults:app", "--threads", "2")


# 18: framing

ANSWERS = [
    f"/answer?status={status}{length}&pieces={pieces}{stream}"
    for status in (200, 204, 304)
    for length in ("", "&length=5", "&length=0")
    for pieces in (0, 1, 3)
    for stream in ("", "&stream=1")
    # A 200 whose body and length differ is the application's fault: see 26.
    if status != 200 or length == "" or length == f"&length={5 * pieces}"
]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("target", ANSWERS)
def test_18_the_next_request_works_whatever_body_came_with_it(server, method, target):
    with Wire(server) as wire:
        for _ in range(3):
            wire.send(request(method, target))
            found = wire.response(method)
            assert f"status={found.status}" in target
            has_body = method == "GET" and found.status == 200
            pieces = int(re.search(r"pieces=(\d)", target)[1])
            assert found.body == (b"hello" * pieces if has_body else b"")
            assert not found.closes
        assert wire.get("/").body == b"hello"


def test_18_head_says_what_get_would(server):
    with Wire(server) as wire:
        get = wire.get("/sized?bytes=100000")
        wire.send(request("HEAD", "/sized?bytes=100000"))
        head = wire.response("HEAD")
        assert head.value("content-length") == get.value("content-length") == "100000"
        assert [name for name, _ in head.fields] == [name for name, _ in get.fields]
        assert wire.get("/").body == b"hello"


def test_rule_19_head_of_a_stream_and_of_write_drops_the_body(server):
    with Wire(server) as wire:
        for target in ("/answer?status=200&pieces=100&stream=1", "/write"):
            wire.send(request("HEAD", target))
            assert wire.response("HEAD").status == 200
            assert wire.get("/").body == b"hello"


def test_an_unsized_body_is_chunked_and_a_sized_one_is_not(server):
    with Wire(server) as wire:
        assert wire.get("/answer?status=200&pieces=3").framing == "length"
        assert wire.get("/answer?status=200&pieces=3&stream=1").framing == "chunked"
        assert wire.get("/write").body == b"first second third"


@pytest.mark.parametrize("size", [0, 1, 16383, 16384, 16385, 65536, 1 << 20, 16 << 20])
def test_bodies_of_every_size_arrive_whole(server, size):
    with Wire(server, timeout=30) as wire:
        for _ in range(2):
            found = wire.get(f"/sized?bytes={size}")
            assert found.framing == "length"
            assert found.body == b"x" * size


def test_date_and_server_are_there_once(server):
    with Wire(server) as wire:
        found = wire.get("/")
    date = found.value("date")
    assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", date)
    assert found.value("server") is not None


# Connections


def test_keep_alive_is_the_default_of_1_1(server):
    with Wire(server) as wire:
        for number in range(200):
            assert wire.get(f"/echo?{number}").status == 200
        closing = wire.get("/", "Connection: close")
        assert closing.closes
        wire.expect_end()


@pytest.mark.parametrize("value", ["Close", "keep-alive, CLOSE", "close, x", "x,close"])
def test_close_is_a_token_in_a_list(server, value):
    with Wire(server) as wire:
        assert wire.get("/", f"Connection: {value}").closes
        wire.expect_end()


def test_1_0_closes_unless_it_asked_to_stay(server):
    with Wire(server) as wire:
        wire.send(request("GET", "/", version="HTTP/1.0"))
        assert wire.response().body == b"hello"
        wire.expect_end()
    with Wire(server) as wire:
        for _ in range(3):
            wire.send(request("GET", "/", "Connection: Keep-Alive", version="HTTP/1.0"))
            found = wire.response()
            assert found.body == b"hello"
            assert found.value("connection").lower() == "keep-alive"


def test_1_0_never_gets_a_chunked_body(server):
    target = "/answer?status=200&pieces=3&stream=1"
    for fields in ((), ("Connection: keep-alive",)):
        with Wire(server) as wire:
            wire.send(request("GET", target, *fields, version="HTTP/1.0"))
            found = wire.response()
            assert (found.framing, found.body) == ("close", b"hello" * 3)


def test_24_1_0_with_a_half_close_is_answered_in_full(server):
    with Wire(server) as wire:
        wire.send(b"GET /echo HTTP/1.0\r\n\r\n")
        wire.half_close()
        found = wire.response()
        assert json.loads(found.body)["environ"]["SERVER_PROTOCOL"] == "HTTP/1.0"
        wire.expect_end()


@pytest.mark.parametrize("target", ["/sleep?seconds=0.3", "/sized?bytes=8000000"])
def test_rule_18_a_fin_after_a_complete_request_is_answered(server, target):
    with Wire(server) as wire:
        wire.send(request("GET", target))
        wire.half_close()
        found = wire.response()
        assert (found.status, found.framing) == (200, "length")
        wire.expect_end()


def test_rule_18_all_requests_before_a_fin_are_answered(server):
    with Wire(server) as wire:
        wire.send(b"".join(request("GET", f"/sleep?seconds=0.05&say={n}") for n in range(10)))
        wire.half_close()
        assert [wire.response().body for _ in range(10)] == [b"%d" % n for n in range(10)]
        wire.expect_end()


def test_a_fin_in_the_middle_of_a_request_reaches_no_application(server):
    with Wire(server) as wire:
        before = int(wire.get("/count").body)
    for data in (
        b"POST /count HTTP/1.1\r\nHost: a\r\n",
        request("POST", "/count", "Content-Length: 5") + b"1234",
        request("POST", "/count", "Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n",
    ):
        with Wire(server) as wire:
            wire.send(data)
            wire.half_close()
            assert b" 200 " not in wire.rest()
    with Wire(server) as wire:
        assert int(wire.get("/count").body) == before


# 26: faults of the application


@pytest.mark.parametrize(
    "name, said",
    [
        ("status_1000", "1000"),
        ("status_text", "OK"),
        ("status_with_line_feed", "status"),
        ("value_with_line_feed", "X-A"),
        ("name_with_line_feed", "X-Split"),
        ("value_beyond_latin_1", "X-A|latin"),
        ("raises", "raised-before-the-head"),
        ("raises_after_start", "raised-after-start-response"),
        ("raises_at_first_piece", "raised-at-the-first-piece"),
        ("never_starts", "start_response"),
        ("starts_twice", "start_response"),
        ("text_body", "str"),
        ("no_iterable", "int"),
        ("exits", "SystemExit"),
    ],
)
def test_26_a_fault_before_the_head_is_500_and_a_log_line(faulty, name, said):
    start = len(faulty.log())
    with Wire(faulty) as wire:
        found = wire.get(f"/{name}")
        assert found.status == 500
        assert b"Traceback" not in found.body and b"raised" not in found.body
        assert "x-split" not in [field for field, _ in found.fields]
    with Wire(faulty) as wire:
        assert wire.get("/fine").body == b"fine"
    log = faulty.wait_for_log(rf"(?s)^.{{{start}}}.*(?:{said})")[0]
    assert log


@pytest.mark.parametrize(
    "name, said",
    [
        ("raises_midway", "raised-midway"),
        ("raises_midway_with_length", "raised-midway-with-length"),
        ("short_body", "Content-Length|content-length|declared"),
    ],
)
def test_26_a_fault_after_the_head_is_visible_to_the_client(faulty, name, said):
    start = len(faulty.log())
    with Wire(faulty) as wire:
        with pytest.raises((Truncated, ConnectionResetError)):
            wire.get(f"/{name}")
    with Wire(faulty) as wire:
        assert wire.get("/fine").body == b"fine"
    faulty.wait_for_log(rf"(?s)^.{{{start}}}.*(?:{said})")


def test_26_a_fault_midway_of_1_0_is_visible_too(faulty):
    # Without chunks only a reset tells an end from an abort.
    with Wire(faulty) as wire:
        wire.send(request("GET", "/raises_midway", version="HTTP/1.0"))
        with pytest.raises(ConnectionResetError):
            wire.response()


@pytest.mark.parametrize("name", ["long_body", "long_stream"])
def test_26_a_body_longer_than_its_length_spills_into_no_other_response(faulty, name):
    with Wire(faulty) as wire:
        wire.send(request("GET", f"/{name}") + request("GET", "/fine"))
        first = wire.response()
        if first.status == 500:
            wire.rest()
            return
        assert (first.status, first.body) == (200, b"12345")
        rest = wire.rest() if first.closes else None
        if rest is not None:
            assert rest == b""
        else:
            assert wire.response().body == b"fine"


def test_26_exc_info_replaces_a_head_that_is_not_out(faulty):
    with Wire(faulty) as wire:
        found = wire.get("/replaces_with_exc_info")
        assert (found.status, found.body) == (503, b"sorry")


def test_26_the_worker_lives(faulty):
    assert faulty.ever_ready_pids() == faulty.worker_pids()
    with Wire(faulty) as wire:
        assert wire.get("/fine").body == b"fine"
