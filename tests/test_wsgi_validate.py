"""`wsgiref.validate` around a bare application, Flask and Django; and the same without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import APPS, Server

SOURCE = Path(APPS, "wsgi_validated.py").read_bytes()


@pytest.fixture(scope="module", params=["bare", "flask", "django"])
def kind(request):
    return request.param


@pytest.fixture(scope="module", params=["plain", "validated"])
def server(request, kind):
    attribute = kind if request.param == "plain" else f"{kind}_validated"
    io = request.config.getoption("--io")
    with Server(f"wsgi_validated:{attribute}", "--threads", "2", io=io) as server:
        yield server
        log = server.log()
        assert "AssertionError" not in log and "WSGIWarning" not in log, log


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_a_page(server, method):
    reply = server.request(method, "/")
    assert reply.status == 200
    assert reply.body == (b"" if method == "HEAD" else reply.body)
    if method == "GET":
        assert reply.body == b"hello "


def test_a_body(server):
    assert server.request("POST", "/", b"two\nlines").body == b"hello two\nlines"


def test_a_spooled_body(server, kind):
    body = b"a line\n" * 20_000
    assert server.request("POST", "/", body).body == b"hello " + body


def test_production_2_a_chunked_form(server, kind):
    path = b"/" if kind == "bare" else b"/form"
    wire = server.raw(
        b"POST %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
        b"Content-Type: application/x-www-form-urlencoded\r\n\r\n"
        b"3\r\na=1\r\n4\r\n&b=2\r\n0\r\n\r\n" % path
    )
    assert b"a=1&b=2" in wire


def test_a_stream(server):
    reply = server.get("/stream")
    assert reply.headers["Transfer-Encoding"] == "chunked"
    assert reply.body == b"abc"


def test_a_status_without_a_body(server):
    reply = server.get("/empty")
    assert (reply.status, reply.body) == (204, b"")


def test_what_each_kind_has(server, kind):
    if kind == "bare":
        assert server.get("/write").body == b"abc"
    else:
        reply = server.get("/file")
        assert (reply.body, reply.headers["Content-Length"]) == (SOURCE, str(len(SOURCE)))
