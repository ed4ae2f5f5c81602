"""A client that believes nothing: it reads a response byte by byte by RFC 9112 and fails on
whatever a lenient client would repair."""

from __future__ import annotations

import re
import socket
import struct
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

from harness import Server  # noqa: E402

STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2}) ([\t\x20-\x7e\x80-\xff]*)")
FIELD_LINE = re.compile(
    rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*((?:[\x21-\xff\t ]*[\x21-\xff])?)[ \t]*"
)
CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]+)(;[\t\x20-\x7e]*)?")
OUR_FAULT = re.compile(r"panicked|\bbug: .*|RUST_BACKTRACE|stack backtrace")


class Malformed(AssertionError):
    """The bytes are not an HTTP/1.1 response."""


class Truncated(AssertionError):
    """The connection ended before the response did."""


@dataclass
class Response:
    """One final response, and the interim ones that came before it."""

    status: int
    reason: str
    fields: list[tuple[str, str]]
    body: bytes = b""
    interim: list[int] = field(default_factory=list)
    framing: str = "none"
    """`none`, `length`, `chunked` or `close`."""

    def values(self, name: str) -> list[str]:
        """Every value of that field, in order."""
        return [value for found, value in self.fields if found == name.lower()]

    def value(self, name: str) -> str | None:
        """The value of a field that may be there once."""
        values = self.values(name)
        assert len(values) <= 1, f"{name} is there {len(values)} times"
        return values[0] if values else None

    @property
    def closes(self) -> bool:
        """Whether it says that the connection ends."""
        return "close" in [
            v.strip().lower() for v in ",".join(self.values("connection")).split(",")
        ]


class Wire:
    """A connection to the server."""

    def __init__(
        self, server: Server | int, timeout: float = 10.0, receive_buffer: int | None = None
    ) -> None:
        port = server if isinstance(server, int) else server.port
        self.timeout = timeout
        self.buffer = b""
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    # Sending

    def send(self, data: bytes) -> None:
        """All of it."""
        self.socket.sendall(data)

    def get(self, target: str = "/", *fields: str) -> Response:
        """One GET and its response."""
        self.send(request("GET", target, *fields))
        return self.response()

    def post(self, target: str, body: bytes, *fields: str) -> Response:
        """One POST with a length and its response."""
        self.send(request("POST", target, f"Content-Length: {len(body)}", *fields) + body)
        return self.response()

    def half_close(self) -> None:
        """A FIN; the response can still come."""
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Closes with an RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    # Receiving

    def response(self, method: str = "GET") -> Response:
        """The next final response; interim ones are noted in it."""
        interim: list[int] = []
        while True:
            found = self.head()
            if found.status >= 200:
                break
            interim.append(found.status)
        found.interim = interim
        lengths = found.values("content-length")
        codings = found.values("transfer-encoding")
        if len(lengths) > 1 or len(codings) > 1 or (lengths and codings):
            raise Malformed(f"framing said twice: {lengths} {codings}")
        if codings and codings[0].lower() != "chunked":
            raise Malformed(f"Transfer-Encoding {codings[0]!r}")
        if found.status == 204 and (lengths or codings):
            raise Malformed(f"204 with {lengths or codings}")
        if method == "HEAD" or found.status in (204, 304):
            return found
        if codings:
            found.framing, found.body = "chunked", self.chunks()
        elif lengths:
            if not lengths[0].isdigit():
                raise Malformed(f"Content-Length {lengths[0]!r}")
            found.framing, found.body = "length", self.exactly(int(lengths[0]))
        else:
            found.framing, found.body = "close", self.rest()
        return found

    def head(self) -> Response:
        """A status line and fields."""
        line = self.line()
        status = STATUS_LINE.fullmatch(line)
        if not status:
            raise Malformed(f"status line {line!r}")
        fields = []
        while line := self.line():
            parts = FIELD_LINE.fullmatch(line)
            if not parts:
                raise Malformed(f"field line {line!r}")
            fields.append((parts[1].decode().lower(), parts[2].decode("latin-1")))
        return Response(int(status[1]), status[2].decode("latin-1"), fields)

    def chunks(self) -> bytes:
        """A chunked body and its (empty) trailers."""
        body = bytearray()
        while True:
            line = self.line()
            size = CHUNK_LINE.fullmatch(line)
            if not size:
                raise Malformed(f"chunk line {line!r}")
            if int(size[1], 16) == 0:
                break
            body += self.exactly(int(size[1], 16))
            if end := self.line():
                raise Malformed(f"after a chunk: {end!r}")
        if trailer := self.line():
            raise Malformed(f"trailer {trailer!r}")
        return bytes(body)

    def line(self) -> bytes:
        """Up to CRLF, without it."""
        while b"\r\n" not in self.buffer:
            if len(self.buffer) > 65536:
                raise Malformed(f"no line in {self.buffer[:200]!r}…")
            self._more()
        line, _, self.buffer = self.buffer.partition(b"\r\n")
        return line

    def exactly(self, count: int) -> bytes:
        """So many bytes."""
        pieces = [self.buffer[:count]]
        missing = count - len(pieces[0])
        self.buffer = self.buffer[count:]
        while missing:
            piece = self.socket.recv(min(missing, 1 << 20))
            if not piece:
                raise Truncated(f"closed with {missing} of {count} bytes to come")
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def rest(self) -> bytes:
        """Everything up to the FIN. An RST raises `ConnectionResetError`."""
        deadline = time.monotonic() + self.timeout
        pieces, self.buffer = [self.buffer], b""
        while piece := self.socket.recv(1 << 16):
            pieces.append(piece)
            if time.monotonic() > deadline:
                raise TimeoutError(f"still sending after {self.timeout} s")
        return b"".join(pieces)

    def expect_end(self) -> None:
        """The server closes, and nothing more comes."""
        left = self.rest()
        assert left == b"", f"more came before the end: {left[:500]!r}"

    def is_silent_for(self, seconds: float) -> bool:
        """Whether neither a byte nor a FIN comes for so long."""
        assert not self.buffer, f"unread: {self.buffer!r}"
        self.socket.settimeout(seconds)
        try:
            self.buffer = self.socket.recv(65536)
            return False
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(self.timeout)

    def _more(self) -> None:
        piece = self.socket.recv(65536)
        if not piece:
            raise Truncated(f"closed after {self.buffer[:500]!r}")
        self.buffer += piece


def request(method: str, target: str, *fields: str, version: str = "HTTP/1.1") -> bytes:
    """A request head with a Host field."""
    lines = [f"{method} {target} {version}", "Host: a.example", *fields, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def chunked(*pieces: bytes) -> bytes:
    """The pieces as a chunked body."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))


def shared_server(app: str, *args: str, **options: object):
    """A fixture: one server for all tests of a module."""

    @pytest.fixture(scope="module")
    def server(io_kind):
        with Server(app, *args, io=io_kind, **options) as running:
            yield running
            found = OUR_FAULT.search(running.log())
            assert not found, f"the server's own fault: {found[0]}\n{running.log()}"

    return server


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * 4096


def cpu_seconds(pid: int) -> float:
    """Processor time a process has used, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
