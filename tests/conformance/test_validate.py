"""PEP 3333 as `wsgiref.validate` reads it: fifteen requests around each of three applications."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from .wire import Server, Wire, chunked, request


@dataclass(frozen=True)
class Case:
    """A request, and what of it the application must have seen."""

    data: bytes
    method: str = "GET"
    seen: dict[str, object] = field(default_factory=dict)


def get(target: str, *fields: str, **seen: object) -> Case:
    """A GET."""
    return Case(request("GET", target, *fields), seen=seen)


CASES = {
    "get": get("/", path="/", query=""),
    "head": Case(request("HEAD", "/"), "HEAD"),
    "query": get("/a?b=c%20d&e", path="/a", query="b=c%20d&e"),
    "empty query": get("/a?", path="/a", query=""),
    "latin-1 path": get("/caf%C3%A9", path="/caf\xc3\xa9"),
    "post by length": Case(
        request("POST", "/a", "Content-Length: 5") + b"hello", seen={"body": "hello"}
    ),
    "post of nothing": Case(request("POST", "/a", "Content-Length: 0"), seen={"body": ""}),
    "post by chunks": Case(
        request("POST", "/a", "Transfer-Encoding: chunked") + chunked(b"hel", b"lo"),
        seen={"body": "hello"},
    ),
    "stream": get("/stream"),
    "1.0": Case(request("GET", "/", version="HTTP/1.0"), seen={"path": "/"}),
    "repeated fields": get(
        "/a", "X-A: 1", "X-A: 2", "Cookie: a=1", "Cookie: b=2", fields={"HTTP_COOKIE": "a=1; b=2"}
    ),
    "options *": Case(request("OPTIONS", "*"), "OPTIONS"),
    "absolute form": get(
        "http://b.example/a?c", path="/a", query="c", fields={"HTTP_HOST": "b.example"}
    ),
    "underscore in a name": get("/a", "X_A: smuggled", "X-A: real", fields={"HTTP_X_A": "real"}),
    "unusual method": Case(request("PROPFIND", "/a"), seen={"method": "PROPFIND"}),
}


@pytest.fixture(scope="module", params=["bare", "flask", "django"])
def validated(request, io_kind):
    """The server with one of the applications."""
    with Server(f"behaviour_validate:{request.param}", io=io_kind) as server:
        yield server
        assert "AssertionError" not in server.log()


def test_there_are_fifteen():
    assert len(CASES) == 15


@pytest.mark.parametrize("name", CASES)
def test_wsgiref_validate(validated, name):
    case = CASES[name]
    with Wire(validated) as wire:
        wire.send(case.data)
        found = wire.response(case.method)
        assert found.status == 200, validated.log()[-2000:]
        if name == "stream":
            assert found.body == b"".join(b"piece %d\n" % number for number in range(10))
            assert found.framing == "chunked"
        elif case.seen:
            said = json.loads(found.body)
            for key, value in case.seen.items():
                if key == "fields":
                    assert said[key] | value == said[key]
                else:
                    assert said[key] == value
