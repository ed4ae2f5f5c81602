"""What an application is told about a request's head (PRODUCTION behaviours 3, 4, 21, 28)."""

from __future__ import annotations

import json

import pytest
from conformance.wire import Wire, request, shared_server

server = shared_server("behaviour_echo:app")


def environ_of(server, data: bytes) -> dict[str, str]:
    """What the echo application was given for these bytes."""
    with Wire(server) as wire:
        wire.send(data)
        found = wire.response()
    assert found.status == 200, found
    return json.loads(found.body)["environ"]


def test_03_header_bytes_above_ascii_are_latin_1(server):
    environ = environ_of(server, request("GET", "/echo", "X-Name: caf\xe9"))
    assert environ["HTTP_X_NAME"] == "caf\xe9"
    environ = environ_of(server, request("GET", "/echo", "X-Name: \xc3\xa9\x80\xff"))
    assert environ["HTTP_X_NAME"] == "\xc3\xa9\x80\xff"


def test_04_the_underscore_form_is_dropped(server):
    for fields in (
        ("X-Forwarded-For: 1.1.1.1", "X_Forwarded_For: 6.6.6.6"),
        ("X_Forwarded_For: 6.6.6.6", "X-Forwarded-For: 1.1.1.1"),
        ("X_Forwarded-For: 6.6.6.6", "X-Forwarded-For: 1.1.1.1"),
    ):
        environ = environ_of(server, request("GET", "/echo", *fields))
        assert environ["HTTP_X_FORWARDED_FOR"] == "1.1.1.1"
    alone = environ_of(server, request("GET", "/echo", "X_Forwarded_For: 6.6.6.6"))
    assert "HTTP_X_FORWARDED_FOR" not in alone
    # The two names that have no HTTP_ prefix are not reached that way either.
    environ = environ_of(server, request("POST", "/echo", "Content-Length: 0", "Content_Type: a/b"))
    assert environ["CONTENT_LENGTH"] == "0"
    assert environ.get("CONTENT_TYPE", "") == ""


def test_04_proxy_never_becomes_http_proxy(server):
    for name in ("Proxy", "PROXY", "proxy"):
        environ = environ_of(server, request("GET", "/echo", f"{name}: http://evil/"))
        assert "HTTP_PROXY" not in environ


def test_repeated_fields_are_joined(server):
    fields = ("X-A: 1", "Cookie: a=1", "X-A: 2", "Cookie: b=2")
    environ = environ_of(server, request("GET", "/echo", *fields))
    assert environ["HTTP_X_A"].replace(" ", "") == "1,2"
    assert environ["HTTP_COOKIE"] == "a=1; b=2"


def test_values_lose_surrounding_white_space_only(server):
    environ = environ_of(server, request("GET", "/echo", "X-A: \t a \t b \t ", "X-B:", "X-C:c"))
    assert environ["HTTP_X_A"] == "a \t b"
    assert environ["HTTP_X_B"] == ""
    assert environ["HTTP_X_C"] == "c"


@pytest.mark.parametrize("byte", [0x00, 0x0B, 0x0C, *range(0x1C, 0x20), 0x7F], ids=hex)
@pytest.mark.parametrize("shape", ["X-A: a%cb", "X-A: %cb", "X-A: a%c", "X-%cA: b", "%cX-A: b"])
def test_21_control_bytes_in_a_field_are_refused(server, byte, shape):
    with Wire(server) as wire:
        wire.send(request("GET", "/echo", shape.replace("%c", chr(byte))) + request("GET", "/"))
        refused = wire.response()
        assert (refused.status, refused.closes) == (400, True)
        wire.expect_end()


@pytest.mark.parametrize("byte", [0x00, 0x0B, 0x0C, 0x1C, 0x7F, 0x0D, 0x09], ids=hex)
def test_21_control_bytes_in_the_target_are_refused(server, byte):
    with Wire(server) as wire:
        wire.send(request("GET", f"/ec{chr(byte)}ho") + request("GET", "/"))
        assert wire.response().status == 400
        wire.expect_end()


TARGETS = {
    # target: (PATH_INFO, QUERY_STRING, Host that counts)
    "/echo/a?b=c": ("/echo/a", "b=c", "a.example"),
    "/echo?": ("/echo", "", "a.example"),
    "/echo?a?b": ("/echo", "a?b", "a.example"),
    "//a//b": ("//a//b", "", "a.example"),
    "/a%2Fb": ("/a/b", "", "a.example"),
    "/a%2fb%3Fc?d%20e": ("/a/b?c", "d%20e", "a.example"),
    "/a%00b": ("/a\x00b", "", "a.example"),
    "/caf%C3%A9": ("/caf\xc3\xa9", "", "a.example"),
    "/%FF%fe": ("/\xff\xfe", "", "a.example"),
    "/a%zz%4": ("/a%zz%4", "", "a.example"),
    "/a+b": ("/a+b", "", "a.example"),
    "/a/../b/./c": ("/a/../b/./c", "", "a.example"),
    "http://other.example/echo?x=1": ("/echo", "x=1", "other.example"),
    "http://other.example:8080/echo": ("/echo", "", "other.example:8080"),
    "HTTP://other.example/echo": ("/echo", "", "other.example"),
    "https://other.example/echo": ("/echo", "", "other.example"),
    "http://other.example?x=1": ("/", "x=1", "other.example"),
}


@pytest.mark.parametrize("target", TARGETS)
def test_28_targets(server, target):
    # "/" is another page of the echo application; HTTP's root is asked for below.
    path, query, host = TARGETS[target]
    if path == "/":
        with Wire(server) as wire:
            assert wire.get(target).body == b"hello"
        return
    environ = environ_of(server, request("GET", target))
    assert environ["PATH_INFO"] == path
    assert environ["QUERY_STRING"] == query
    assert environ["HTTP_HOST"] == host
    assert environ["SCRIPT_NAME"] == ""


def test_28_options_asterisk_is_the_server_not_a_path(server):
    # PEP 3333 wants PATH_INFO empty or with a leading slash, and HTTP's `*` is neither a path.
    with Wire(server) as wire:
        wire.send(request("OPTIONS", "*"))
        environ = json.loads(wire.response().body)["environ"]
        assert (environ["PATH_INFO"], environ["RAW_URI"]) == ("", "*")
        assert wire.get("/").body == b"hello"
    with Wire(server) as wire:
        wire.send(request("GET", "*"))
        assert wire.response().status == 400


@pytest.mark.parametrize(
    "target",
    [
        "http://user:password@other.example/echo",
        "http://user@other.example/echo",
        "http:///echo",
        "echo",
        "ftp://other.example/echo",
        "/a#b",
    ],
)
def test_28_targets_that_are_refused(server, target):
    with Wire(server) as wire:
        wire.send(request("GET", target) + request("GET", "/"))
        assert wire.response().status == 400
        wire.expect_end()


def test_the_rest_of_the_environ(server):
    with Wire(server) as wire:
        name, port = wire.socket.getsockname()
        wire.send(request("POST", "/echo", "Content-Type: a/b", "Content-Length: 2") + b"hi")
        environ = json.loads(wire.response().body)["environ"]
    assert environ["REQUEST_METHOD"] == "POST"
    assert environ["SERVER_PROTOCOL"] == "HTTP/1.1"
    assert (environ["CONTENT_TYPE"], environ["CONTENT_LENGTH"]) == ("a/b", "2")
    assert "HTTP_CONTENT_TYPE" not in environ and "HTTP_CONTENT_LENGTH" not in environ
    assert (environ["REMOTE_ADDR"], environ["REMOTE_PORT"]) == (name, str(port))
    assert environ["SERVER_PORT"] == str(server.port)
    assert environ["SERVER_NAME"]
    assert environ["wsgi.url_scheme"] == "http"


def test_methods_are_passed_as_they_are(server):
    for method in ("DELETE", "PATCH", "PROPFIND", "M-SEARCH", "get", "!#$%&'*+.^_`|~09"):
        environ = environ_of(server, request(method, "/echo"))
        assert environ["REQUEST_METHOD"] == method


def test_a_head_may_come_byte_by_byte(server):
    with Wire(server) as wire:
        for byte in request("GET", "/echo?slow", "X-A: b"):
            wire.send(bytes([byte]))
        environ = json.loads(wire.response().body)["environ"]
    assert (environ["QUERY_STRING"], environ["HTTP_X_A"]) == ("slow", "b")
