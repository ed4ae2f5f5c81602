"""`wsgi.file_wrapper` (PEP 3333, "Optional Platform-Specific File Handling")."""

from __future__ import annotations

import http.client
import json
import os
import sys
from pathlib import Path

import pytest

from harness import APPS, Server, wait_until

sys.path.insert(0, str(APPS))

from wsgi_files import DATA  # noqa: E402


@pytest.fixture(scope="module")
def server(request):
    with Server("wsgi_files:app", "--threads", "2", io=request.config.getoption("--io")) as server:
        yield server


# Sent from the descriptor: their length is known.
SENT = ["buffered", "raw", "random", "named", "unnamed", "borrowing"]
# Read block by block: their descriptor, if they have one, says nothing about their bytes.
READ = {
    "gzip": DATA,
    "buffered_gzip": DATA,
    "bytesio": DATA,
    "only_read": b"abcd",
    "pipe": b"from a pipe",
}


@pytest.mark.parametrize("kind", SENT)
def test_a_regular_file_is_sent_with_its_length(server, kind):
    reply = server.get(f"/{kind}")
    assert reply.headers["Content-Length"] == str(len(DATA))
    assert reply.body == DATA


@pytest.mark.parametrize("kind", READ)
def test_any_other_object_is_read_in_blocks(server, kind):
    reply = server.get(f"/{kind}?block=1000")
    assert reply.headers["Transfer-Encoding"] == "chunked"
    assert reply.body == READ[kind]


@pytest.mark.parametrize(
    ("kind", "path"),
    [("proc", "/proc/version"), ("sys", "/sys/devices/system/cpu/online")],
)
def test_a_file_of_the_kernel_is_read_whatever_length_it_claims(server, kind, path):
    expected = Path(path).read_bytes()
    claimed = os.stat(path).st_size
    assert len(expected) != claimed, "the premise"
    assert server.get(f"/{kind}").body == expected


@pytest.mark.parametrize(("kind", "length"), [("hole", 100_000), ("empty", 0)])
def test_a_file_without_blocks_arrives_whole(server, kind, length):
    assert server.get(f"/{kind}").body == bytes(length)


def test_an_object_that_changes_what_it_reads_is_read(server):
    reply = server.get("/reversing?block=256")
    assert reply.body == bytes(reversed(range(256))) * 400


def test_a_file_is_sent_from_where_it_stands(server):
    assert server.get("/position").body == DATA[1000:]
    for kind in ("end", "beyond"):
        reply = server.get(f"/{kind}")
        assert (reply.headers["Content-Length"], reply.body) == ("0", b"")


@pytest.mark.parametrize("kind", ["position", "bytesio"])
def test_no_more_is_sent_than_content_length(server, kind):
    start = 1000 if kind == "position" else 0
    assert server.get(f"/{kind}?length=10").body == DATA[start : start + 10]


def test_a_file_shorter_than_content_length_is_visible(server):
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        server.get(f"/buffered?length={len(DATA) + 1}")


def test_a_file_after_write_is_part_of_the_same_body(server):
    reply = server.get("/buffered?write=1")
    assert reply.headers["Transfer-Encoding"] == "chunked"
    assert reply.body == b"before " + DATA
    length = len(DATA) + 7
    assert server.get(f"/buffered?write=1&length={length}").body == b"before " + DATA


def test_a_wrapper_that_middleware_iterates_is_an_iterable(server):
    assert server.get("/buffered?generator=1&block=999").body == DATA


def test_head_has_the_length_and_no_body(server):
    wire = server.raw(
        b"HEAD /buffered HTTP/1.1\r\nHost: a\r\n\r\n"
        b"GET /position?length=3 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    )
    head, _, rest = wire.partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(DATA) in head
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n") and rest.endswith(b"\r\n\r\n" + DATA[1000:1003])


def test_http_1_0_gets_a_file(server):
    wire = server.raw(b"GET /buffered HTTP/1.0\r\n\r\n")
    assert wire.partition(b"\r\n\r\n")[2] == DATA


@pytest.mark.parametrize("kind", ["text", "closed"])
def test_an_object_that_cannot_be_sent_is_a_500(server, kind):
    assert server.get(f"/{kind}").status == 500
    server.wait_for_log(f"GET /{kind}: the application")


@pytest.mark.parametrize("kind", ["buffered", "gzip", "random"])
def test_the_file_is_closed_once(server, kind):
    server.get("/closed_names")
    server.get(f"/{kind}")
    seen = []
    wait_until(lambda: seen.extend(json.loads(server.get("/closed_names").body)) or seen == [kind])


def test_no_descriptor_is_left(server):
    def descriptors():
        return len(os.listdir(f"/proc/{server.worker_pids()[0]}/fd"))

    for kind in (*SENT, *READ, "position"):
        server.get(f"/{kind}")
    before = descriptors()
    for _ in range(20):
        for kind in (*SENT, *READ, "position"):
            server.get(f"/{kind}")
    wait_until(lambda: descriptors() <= before + 1, what="the descriptors are closed")
