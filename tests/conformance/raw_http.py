"""The raw HTTP baseline: bytes as they may arrive, and what became of them.

Each case is sent on a connection of its own, followed by `GET /end` (or by a FIN). The outcome is
written as the responses in order, each `STATUS` or, where the application was asked, `200 METHOD
PATH BODYLENGTH`, and at last `close` or, if `/end` was answered, `end`. The outcomes that are right
are in `raw_http_expected.json`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from .wire import Truncated, Wire

EXPECTED = Path(__file__).with_name("raw_http_expected.json")

HOST = b"Host: a\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
END = b"GET /end HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True)
class Case:
    """An input."""

    name: str
    data: bytes
    fin: bool = False
    """A FIN follows instead of `GET /end`."""


def get(fields: bytes = b"", target: bytes = b"/a", version: bytes = b"HTTP/1.1") -> bytes:
    """A GET with a Host."""
    return b"GET " + target + b" " + version + b"\r\n" + HOST + fields + b"\r\n"


def post(fields: bytes, body: bytes = b"", version: bytes = b"HTTP/1.1") -> bytes:
    """A POST with a Host."""
    return b"POST /a " + version + b"\r\n" + HOST + fields + b"\r\n" + body


def coded(body: bytes) -> bytes:
    """A POST with this chunked body."""
    return post(CHUNKED, body)


SMUGGLING = [
    Case("vertical tab before chunked", post(b"Transfer-Encoding:\x0bchunked\r\n", b"0\r\n\r\n")),
    Case(
        "no-break space before the colon", post(b"Transfer-Encoding\xa0: chunked\r\n", b"0\r\n\r\n")
    ),
    Case("space before the colon", post(b"Content-Length : 5\r\n", b"hello")),
    Case("tab before the colon", post(b"Transfer-Encoding\t: chunked\r\n", b"0\r\n\r\n")),
    Case("two hosts", get(b"Host: b\r\n")),
    Case("two equal hosts", get(b"Host: a\r\n")),
    Case("coding and length", post(CHUNKED + b"Content-Length: 5\r\n", b"0\r\n\r\n")),
    Case("length and coding", post(b"Content-Length: 5\r\n" + CHUNKED, b"0\r\n\r\n")),
    Case("length list of equals", post(b"Content-Length: 5, 5\r\n", b"hello")),
    Case("length list of others", post(b"Content-Length: 5, 6\r\n", b"hello")),
    Case("length twice, equal", post(b"Content-Length: 5\r\nContent-Length: 5\r\n", b"hello")),
    Case("length twice, other", post(b"Content-Length: 5\r\nContent-Length: 0\r\n", b"hello")),
    Case("length with a plus", post(b"Content-Length: +5\r\n", b"hello")),
    Case("length with a minus", post(b"Content-Length: -5\r\n", b"hello")),
    Case("length in hexadecimal", post(b"Content-Length: 0x5\r\n", b"hello")),
    Case("length with an underscore", post(b"Content-Length: 1_0\r\n", b"hello12345")),
    Case("length with a point", post(b"Content-Length: 5.0\r\n", b"hello")),
    Case("length with a space", post(b"Content-Length: 5 0\r\n", b"hello")),
    Case("length without a value", post(b"Content-Length:\r\n")),
    Case("length in other digits", post(b"Content-Length: \xd9\xa5\r\n", b"hello")),
    Case("length beyond 64 bits", post(b"Content-Length: 18446744073709551621\r\n", b"hello")),
    Case("bare CR in a value", get(b"X-A: b\rX-B: c\r\n")),
    Case("bare CR ends a line", b"GET /a HTTP/1.1\r" + HOST + b"\r\n"),
    Case("bare LF ends a line", b"GET /a HTTP/1.1\n" + HOST + b"\r\n"),
    Case("bare LF ends a field", get(b"X-A: b\nX-B: c\r\n")),
    Case("bare LF ends the head", b"GET /a HTTP/1.1\r\n" + HOST + b"\n"),
    Case("CR CR LF ends a field", get(b"X-A: b\r\r\nX-B: c\r\n")),
    Case("folded field", get(b"X-A: b\r\n c\r\n")),
    Case("folded coding", post(b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n")),
    Case("first field begins with a space", b"GET /a HTTP/1.1\r\n " + HOST + b"\r\n"),
    Case("null in a value", get(b"X-A: b\0c\r\n")),
    Case("null in a name", get(b"X-\0A: b\r\n")),
    Case("field without a colon", get(b"X-A\r\n")),
    Case("field without a name", get(b": b\r\n")),
    Case("chunked twice", post(b"Transfer-Encoding: chunked, chunked\r\n", b"0\r\n\r\n")),
    Case("chunked in two fields", post(CHUNKED + CHUNKED, b"0\r\n\r\n")),
    Case("chunked is not last", post(b"Transfer-Encoding: chunked, gzip\r\n", b"0\r\n\r\n")),
    Case("gzip, chunked", post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n")),
    Case("identity", post(b"Transfer-Encoding: identity\r\n", b"hello")),
    Case("xchunked", post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n")),
    Case("quoted chunked", post(b'Transfer-Encoding: "chunked"\r\n', b"0\r\n\r\n")),
    Case("coding without a value", post(b"Transfer-Encoding:\r\n", b"0\r\n\r\n")),
    Case("chunked in 1.0", post(CHUNKED, b"0\r\n\r\n", b"HTTP/1.0")),
    Case("last chunk is cut off", coded(b"5\r\nhello\r\n0\r\n"), fin=True),
    Case("last chunk runs into the next", coded(b"5\r\nhello\r\n0\r\n")),
    Case("chunk is shorter than it says", coded(b"6\r\nhello\r\n0\r\n\r\n")),
    Case("chunk is longer than it says", coded(b"4\r\nhello\r\n0\r\n\r\n")),
    Case("chunk size with a plus", coded(b"+5\r\nhello\r\n0\r\n\r\n")),
    Case("chunk size with 0x", coded(b"0x5\r\nhello\r\n0\r\n\r\n")),
    Case("chunk size with an underscore", coded(b"0_5\r\nhello\r\n0\r\n\r\n")),
    Case("chunk size with a minus", coded(b"-5\r\nhello\r\n0\r\n\r\n")),
    Case("chunk size before a space", coded(b" 5\r\nhello\r\n0\r\n\r\n")),
    Case("chunk size is missing", coded(b"\r\nhello\r\n0\r\n\r\n")),
    Case("chunk size beyond 64 bits", coded(b"10000000000000005\r\nhello\r\n0\r\n\r\n")),
    Case("chunk line ends in LF", coded(b"5\nhello\r\n0\r\n\r\n")),
    Case("chunk ends in LF", coded(b"5\r\nhello\n0\r\n\r\n")),
    Case("chunk extension with a null", coded(b"5;a=\0\r\nhello\r\n0\r\n\r\n")),
    Case("chunk extension with a CR", coded(b"5;a=\rb\r\nhello\r\n0\r\n\r\n")),
    Case("chunk extension with an LF", coded(b"5;a=\nb\r\nhello\r\n0\r\n\r\n")),
    Case("trailer without a colon", coded(b"0\r\nX-T\r\n\r\n")),
    Case("trailer ends in LF", coded(b"0\r\nX-T: a\n\r\n")),
]

REQUESTS = [
    Case("get", get()),
    Case("get with a query", get(target=b"/a?b")),
    Case("head", get().replace(b"GET", b"HEAD", 1)),
    Case("post by length", post(b"Content-Length: 5\r\n", b"hello")),
    Case("post without a body", post(b"Content-Length: 0\r\n")),
    Case("post without framing", post(b"")),
    Case("length with leading zeros", post(b"Content-Length: 0005\r\n", b"hello")),
    Case("length in white space", post(b"Content-Length: \t 5 \t\r\n", b"hello")),
    Case("length in upper case", post(b"CONTENT-LENGTH:5\r\n", b"hello")),
    Case("post by chunks", coded(b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n")),
    Case("chunked in upper case", post(b"transfer-encoding: CHUNKED\r\n", b"1\r\na\r\n0\r\n\r\n")),
    Case("chunk size in upper case and zeros", coded(b"000A\r\n0123456789\r\n000\r\n\r\n")),
    Case("chunk extensions", coded(b'5;a;b=c;d="e f"\r\nhello\r\n0;z\r\n\r\n')),
    Case("trailers", coded(b"1\r\na\r\n0\r\nX-T: 1\r\nContent-Length: 9\r\n\r\n")),
    Case("empty line before the request", b"\r\n" + get()),
    Case("two in one packet", get() + get(target=b"/b")),
    Case("1.0", get(version=b"HTTP/1.0"), fin=True),
    Case("1.0 without a host", b"GET /a HTTP/1.0\r\n\r\n", fin=True),
    Case("1.0 that stays", get(b"Connection: keep-alive\r\n", version=b"HTTP/1.0")),
    Case("1.2 is 1.1", get(version=b"HTTP/1.2")),
    Case("connection: close", get(b"Connection: close\r\n")),
    Case("upgrade that is not known", get(b"Connection: Upgrade\r\nUpgrade: h2c\r\n")),
    Case("host without a value", b"GET /a HTTP/1.1\r\nHost:\r\n\r\n"),
    Case("host with a port", b"GET /a HTTP/1.1\r\nHost: a:80\r\n\r\n"),
    Case("host of IPv6", b"GET /a HTTP/1.1\r\nHost: [::1]:80\r\n\r\n"),
    Case("no request, a FIN", b"", fin=True),
    Case("half a request, a FIN", b"GET /a HTTP/1.1\r\nHo", fin=True),
    Case("half a body, a FIN", post(b"Content-Length: 5\r\n", b"he"), fin=True),
]

REFUSED = [
    Case("no host", b"GET /a HTTP/1.1\r\n\r\n"),
    Case("host with a space", b"GET /a HTTP/1.1\r\nHost: a b\r\n\r\n"),
    Case("host with userinfo", b"GET /a HTTP/1.1\r\nHost: u@a\r\n\r\n"),
    Case("host with a slash", b"GET /a HTTP/1.1\r\nHost: a/b\r\n\r\n"),
    Case("two spaces in the request line", b"GET  /a HTTP/1.1\r\n" + HOST + b"\r\n"),
    Case("tab in the request line", b"GET\t/a HTTP/1.1\r\n" + HOST + b"\r\n"),
    Case("space after the version", b"GET /a HTTP/1.1 \r\n" + HOST + b"\r\n"),
    Case("space before the method", b" GET /a HTTP/1.1\r\n" + HOST + b"\r\n"),
    Case("no version", b"GET /a\r\n" + HOST + b"\r\n"),
    Case("version in lower case", get(version=b"http/1.1")),
    Case("version 2.0", get(version=b"HTTP/2.0")),
    Case("version 0.9", get(version=b"HTTP/0.9")),
    Case("version with two digits", get(version=b"HTTP/1.10")),
    Case("method with a bracket", b"G(T /a HTTP/1.1\r\n" + HOST + b"\r\n"),
    Case("connect", b"CONNECT a:80 HTTP/1.1\r\n" + HOST + b"\r\n"),
    Case(
        "TLS client hello",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40) + b"\r\n\r\n",
    ),
    Case("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    Case("request line over 8 KiB", get(target=b"/" + b"a" * 9000)),
    Case("method over every bound", b"A" * 9000 + b" / HTTP/1.1\r\n" + HOST + b"\r\n"),
    Case("field over 64 KiB", get(b"X-A: " + b"a" * 70000 + b"\r\n")),
    Case("129 fields", get(b"".join(b"X-%d: a\r\n" % n for n in range(128)))),
    Case("unknown expectation", post(b"Content-Length: 5\r\nExpect: magic\r\n", b"hello")),
]

CASES = SMUGGLING + REQUESTS + REFUSED


def outcome(server: object, case: Case) -> str:
    """What became of it."""
    said: list[str] = []
    with Wire(server) as wire:  # type: ignore[arg-type]
        wire.send(case.data if case.fin else case.data + END)
        if case.fin:
            wire.half_close()
        method = "HEAD" if case.data.startswith(b"HEAD") else "GET"
        while True:
            try:
                found = wire.response(method)
            except (Truncated, ConnectionResetError):
                # Only an end between two responses is one.
                return ", ".join([*said, "close" if not wire.buffer else "truncated"])
            method = "GET"
            if found.status != 200 or not found.body:
                said.append(str(found.status))
                continue
            asked = json.loads(found.body)
            path = asked["environ"]["PATH_INFO"]
            if path == "/end":
                return ", ".join([*said, "end"])
            said.append(f"200 {asked['environ']['REQUEST_METHOD']} {path} {asked['length']}")


def expected() -> dict[str, list[str]]:
    """The outcomes that are right, by the case's name."""
    return json.loads(EXPECTED.read_text())
