"""One connection of the client: it reads strictly, and knows how and when it was lost."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import time
from dataclasses import dataclass

from conformance.wire import CHUNK_LINE, FIELD_LINE, STATUS_LINE

# Closing first leaves a port in TIME_WAIT for a minute; several addresses have more ports.
SOURCES = itertools.cycle([f"127.0.0.{host}" for host in range(1, 9)])
HEAD_BYTES_MAX = 65536
RECEIVE_BYTES = 1 << 18
RESET = struct.pack("ii", 1, 0)


class Lost(Exception):
    """The connection ended before the answer did. `kind`: `refused`, `reset`, `eof` in an answer,
    or `silent`: it ended without a byte of one."""

    def __init__(self, kind: str, detail: str = "", by: str = "reset") -> None:
        super().__init__(f"{kind} {detail}")
        self.kind = kind
        self.by = by


class Wrong(Exception):
    """The answer is not what it must be. `kind`: `framing`, `status`, `field` or `body`."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind


@dataclass
class Head:
    """A status and its fields, names in lower case."""

    status: int
    fields: dict[str, str]

    @property
    def closes(self) -> bool:
        return "close" in self.fields.get("connection", "").lower()


class Connection:
    """A socket, and what the ledger asks about it. **Units**: seconds of `time.monotonic`."""

    def __init__(self, receive_buffer: int | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.buffer = bytearray()
        self.peer = ("", 0)
        self.opened = self.used = time.monotonic()
        self.idle = 0.0
        self.answers = 0
        self.received = False
        self.pid: int | None = None

    async def open(self, port: int) -> Connection:
        self.socket.bind((next(SOURCES), 0))
        self.peer = self.socket.getsockname()
        # Before it is connected: a process may accept it, and be killed, before this loop hears.
        self.opened = time.monotonic()
        try:
            await self.loop.sock_connect(self.socket, ("127.0.0.1", port))
        except OSError as error:
            self.socket.close()
            raise Lost("refused", repr(error)) from error
        self.used = time.monotonic()
        return self

    def begin(self) -> None:
        """A request is about to be sent."""
        self.idle = time.monotonic() - self.used
        self.received = False

    def ended_idle(self) -> str | None:
        """How the peer ended it since the last answer: `eof`, `reset`, `bytes`, or None."""
        try:
            return "bytes" if self.socket.recv(1, socket.MSG_PEEK) else "eof"
        except BlockingIOError:
            return None
        except OSError:
            return "reset"

    # Sending

    async def send(self, data: bytes) -> None:
        """All of it. A peer that closed is found by the read that follows."""
        try:
            await self.loop.sock_sendall(self.socket, data)
        except OSError:
            if not self.received and self.ended_idle() in ("bytes", "eof"):
                return
            raise self._lost("reset", "while sending") from None

    def finish_sending(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            raise self._lost("reset", "before the half-close") from None

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Closes with an RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.socket.close()

    # Receiving

    async def head(self) -> Head:
        """The next head; an interim one, too."""
        end = self.buffer.find(b"\r\n\r\n")
        while end < 0:
            if len(self.buffer) > HEAD_BYTES_MAX:
                raise Wrong("framing", f"no head in {bytes(self.buffer[:200])!r}…")
            await self._more()
            end = self.buffer.find(b"\r\n\r\n")
        first, *lines = bytes(self.buffer[:end]).split(b"\r\n")
        del self.buffer[: end + 4]
        status = STATUS_LINE.fullmatch(first)
        if not status:
            raise Wrong("framing", f"status line {first!r}")
        fields: dict[str, str] = {}
        for line in lines:
            parts = FIELD_LINE.fullmatch(line)
            if not parts:
                raise Wrong("framing", f"field line {line!r}")
            name = parts[1].decode().lower()
            if name in fields:
                raise Wrong("framing", f"{name} is there twice")
            fields[name] = parts[2].decode("latin-1")
        self.pid = int(fields["x-worker"]) if "x-worker" in fields else self.pid
        return Head(int(status[1]), fields)

    async def body(self, head: Head, method: str = "GET") -> bytes:
        """The body that belongs to a head."""
        length, coding = head.fields.get("content-length"), head.fields.get("transfer-encoding")
        if length is not None and coding is not None:
            raise Wrong("framing", "both a length and chunks")
        if method == "HEAD" or head.status in (204, 304):
            return b""
        if coding is not None:
            return await self._chunks()
        if length is not None:
            if not length.isdigit():
                raise Wrong("framing", f"length {length!r}")
            return await self.exactly(int(length))
        if not head.closes:
            raise Wrong("framing", "neither a length nor chunks nor the end of the connection")
        return await self._rest()

    async def exactly(self, count: int) -> bytes:
        while len(self.buffer) < count:
            await self._more()
        found = bytes(self.buffer[:count])
        del self.buffer[:count]
        return found

    async def expect_end(self) -> None:
        """A FIN and nothing before it."""
        if left := await self._rest():
            raise Wrong("framing", f"more came after the answer: {left[:200]!r}")

    def answered(self) -> None:
        """An answer was right to its end."""
        self.answers += 1
        self.used = time.monotonic()

    async def _chunks(self) -> bytes:
        pieces = []
        while True:
            line = await self._line()
            size = CHUNK_LINE.fullmatch(line)
            if not size:
                raise Wrong("framing", f"chunk line {line!r}")
            count = int(size[1], 16)
            if count:
                pieces.append(await self.exactly(count))
            if end := await self._line():
                raise Wrong("framing", f"after a chunk: {end!r}")
            if not count:
                return b"".join(pieces)

    async def _line(self) -> bytes:
        while (end := self.buffer.find(b"\r\n")) < 0:
            if len(self.buffer) > HEAD_BYTES_MAX:
                raise Wrong("framing", "a line without an end")
            await self._more()
        line = bytes(self.buffer[:end])
        del self.buffer[: end + 2]
        return line

    async def _rest(self) -> bytes:
        while True:
            try:
                await self._more()
            except Lost as lost:
                if lost.by == "reset":
                    raise
                found = bytes(self.buffer)
                self.buffer.clear()
                return found

    async def _more(self) -> None:
        try:
            data = await self.loop.sock_recv(self.socket, RECEIVE_BYTES)
        except OSError as error:
            raise self._lost("reset", f"while receiving: {error!r}") from None
        if not data:
            raise self._lost("eof", f"after {bytes(self.buffer[-100:])!r}")
        self.received = True
        self.buffer += data

    def _lost(self, by: str, where: str) -> Lost:
        return Lost(by if self.received else "silent", f"{by} {where}", by)
