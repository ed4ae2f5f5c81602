"""Every kind of request: a coroutine of an `Actor` that raises when an answer is not right.

`FAST` are what people send; `SLOW` take seconds each; `RUDE` leave in the middle.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import random
import time
from collections.abc import Awaitable, Callable

from .connection import Connection, Head, Lost, Wrong
from .content import PERIOD, piece
from .ledger import Failure, Ledger

Kind = Callable[["Actor"], Awaitable[None]]

# Longer than any deadline of the server that `run.py` sets.
EXCHANGE_SECONDS_MAX = 150.0
# Around the bounds of the server: one buffer, the spool, the socket's.
UPLOADS = (0, 1, 100, 4095, 4096, 16_383, 16_384, 65_535, 65_536, 65_537, 131_072, 300_000)
LARGE_UPLOADS = (1_000_003, 4_194_304, 10_000_019)
DOWNLOADS = (0, 1, 13, 1460, 4096, 16_385, 65_536, 100_000, 262_144)
# Of positions, so that a digest is computed once.
UPLOAD_POSITIONS = 32
# A connection is given up after so many answers, so that new ones come all the time.
ANSWERS_MAX = 200


@functools.lru_cache(maxsize=4096)
def receipt(at: int, size: int) -> bytes:
    """What `/upload` says of that slice."""
    return f"{size} {hashlib.sha256(piece(at, size)).hexdigest()}".encode()


class Actor:
    """One user: a kept connection, a random sequence of its own, and a serial number."""

    def __init__(self, number: int, seed: int, port: int, ledger: Ledger, kinds: dict) -> None:
        self.random = random.Random(f"{seed}/{number}")
        self.number = number
        self.port = port
        self.ledger = ledger
        self.kinds = list(kinds)
        self.weights = list(kinds.values())
        self.sent = 0
        self.kept: Connection | None = None
        self.current: Connection | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """One kind after another until told to stop; the last is finished."""
        while not stop.is_set():
            (kind,) = self.random.choices(self.kinds, self.weights)
            await self.do(kind)
        if self.kept:
            self.kept.close()

    async def do(self, kind: Kind) -> None:
        """One of them, its outcome booked."""
        name = kind.__name__
        try:
            await asyncio.wait_for(kind(self), EXCHANGE_SECONDS_MAX)
        except Lost as lost:
            self._failed(lost.kind, name, str(lost))
        except Wrong as wrong:
            self._failed(wrong.kind, name, str(wrong))
        except (asyncio.TimeoutError, TimeoutError):
            self._failed("timeout", name, f"not done in {EXCHANGE_SECONDS_MAX:.0f} s")

    def _failed(self, kind: str, name: str, detail: str) -> None:
        self.ledger.failed(self._failure(self.current, kind, name, detail))
        if self.current:
            self.current.close()
        self.current = self.kept = None

    def _failure(self, of: Connection | None, kind: str, name: str, detail: str) -> Failure:
        failure = Failure(time.monotonic(), kind, name, detail)
        if of:
            failure.peer, failure.pid, failure.opened = of.peer, of.pid, of.opened
            failure.idle, failure.used = of.idle, of.answers > 0
        return failure

    # Connections

    async def fresh(self, receive_buffer: int | None = None) -> Connection:
        """A new connection that is not kept."""
        self.ledger.connections += 1
        self.current = Connection(receive_buffer)
        return await self.current.open(self.port)

    async def connection(self) -> Connection:
        """The kept one if it is still good, or a new one that will be."""
        kept, self.kept = self.kept, None
        if kept:
            kept.begin()
            ended = kept.ended_idle()
            if ended is None:
                self.current = kept
                return kept
            detail = f"ended by {ended} between two requests"
            self.ledger.failed(self._failure(kept, f"idle {ended}", "keep-alive", detail))
            kept.close()
        return await self.fresh()

    def keep(self, connection: Connection, head: Head) -> None:
        """After a right answer: keeps it, unless the server or our luck says otherwise."""
        if head.closes:
            self.ledger.failed(self._failure(connection, "closes", "keep-alive", "asked to close"))
            connection.close()
        elif connection.answers > self.random.randrange(1, ANSWERS_MAX):
            connection.close()
        else:
            self.kept = connection

    # Requests and answers

    def head(self, method: str, target: str, *fields: str, version: str = "1.1") -> bytes:
        """A request head with a serial number of its own, which the answer must repeat."""
        self.sent += 1
        lines = [f"{method} {target} HTTP/{version}", "Host: soak", f"X-Serial: {self.serial}"]
        return "\r\n".join([*lines, *fields, "", ""]).encode()

    @property
    def serial(self) -> str:
        return f"{self.number}.{self.sent}"

    async def answer(
        self,
        connection: Connection,
        expected: bytes,
        *,
        status: int = 200,
        method: str = "GET",
        serial: str | None = None,
        length: int | None = None,
    ) -> Head:
        """Reads one answer and compares all of it."""
        head = await connection.head()
        self.check_head(head, status, serial)
        body = await connection.body(head, method)
        check_body(body, expected)
        if length is not None and head.fields.get("content-length") != str(length):
            raise Wrong("field", f"length {head.fields.get('content-length')}, not {length}")
        connection.answered()
        self.ledger.bytes_checked += len(body)
        return head

    def check_head(self, head: Head, status: int, serial: str | None = None) -> None:
        if head.status != status:
            raise Wrong("status", f"{head.status}, not {status}")
        if head.fields.get("x-serial") != (serial or self.serial):
            found = head.fields.get("x-serial")
            raise Wrong("field", f"the answer to {found}, not to {serial or self.serial}")

    async def get(self, target: str, expected: bytes, status: int = 200) -> None:
        """One GET on the kept connection."""
        connection = await self.connection()
        connection.begin()
        await connection.send(self.head("GET", target))
        self.keep(connection, await self.answer(connection, expected, status=status))

    def slice(self, sizes: tuple[int, ...]) -> tuple[int, int]:
        return self.random.randrange(PERIOD), self.random.choice(sizes)

    def upload_slice(self, sizes: tuple[int, ...]) -> tuple[int, int]:
        return self.random.randrange(UPLOAD_POSITIONS) * 32_749, self.random.choice(sizes)


def check_body(body: bytes, expected: bytes) -> None:
    """Says where they differ first."""
    if body == expected:
        return
    pairs = enumerate(zip(body, expected))
    first = next((at for at, (one, other) in pairs if one != other), min(len(body), len(expected)))
    raise Wrong("body", f"{len(body)} bytes for {len(expected)}, they differ from byte {first} on")


def chunks(data: bytes, rng: random.Random) -> list[bytes]:
    """The body as chunks of random sizes, with their frames; the last one ends it."""
    pieces, at = [], 0
    while at < len(data):
        size = min(rng.choice((1, 7, 1000, 4096, 16_384, 65_536, 200_000)), len(data) - at)
        pieces.append(b"%x\r\n%b\r\n" % (size, data[at : at + size]))
        at += size
    return [*pieces, b"0\r\n\r\n"]


# Fast


async def small(actor: Actor) -> None:
    connection = await actor.connection()
    connection.begin()
    await connection.send(actor.head("GET", "/small"))
    actor.keep(connection, await actor.answer(connection, small_body(actor.serial)))
    actor.ledger.passed("get small")


def small_body(serial: str) -> bytes:
    return b"small " + serial.encode()


async def data(actor: Actor) -> None:
    at, size = actor.slice(DOWNLOADS)
    await actor.get(f"/data?at={at}&size={size}", piece(at, size))
    actor.ledger.passed("get data")


async def stream(actor: Actor) -> None:
    at, size = actor.slice(DOWNLOADS)
    step = actor.random.choice((700, 5000, 70_000))
    await actor.get(f"/stream?at={at}&size={size}&step={step}", piece(at, size))
    actor.ledger.passed("stream")


async def file(actor: Actor) -> None:
    at = PERIOD - actor.random.choice((1, 5000, 100_000, PERIOD))
    await actor.get(f"/file?at={at}", piece(at, PERIOD - at))
    actor.ledger.passed("file")


async def missing(actor: Actor) -> None:
    await actor.get(f"/no/{actor.sent}", b"no page /no/%d" % actor.sent, 404)
    actor.ledger.passed("404")


async def nothing(actor: Actor) -> None:
    status = actor.random.choice((204, 304))
    await actor.get(f"/nothing?status={status}", b"", status)
    actor.ledger.passed("204 and 304")


async def head(actor: Actor) -> None:
    at, size = actor.slice(DOWNLOADS)
    connection = await actor.connection()
    connection.begin()
    await connection.send(actor.head("HEAD", f"/data?at={at}&size={size}"))
    actor.keep(connection, await actor.answer(connection, b"", method="HEAD", length=size))
    actor.ledger.passed("head")


async def closing(actor: Actor) -> None:
    """`Connection: close`, or HTTP/1.0."""
    old = actor.random.random() < 0.3
    connection = await actor.fresh()
    connection.begin()
    fields, version = ((), "1.0") if old else (("Connection: close",), "1.1")
    await connection.send(actor.head("GET", "/small", *fields, version=version))
    if actor.random.random() < 0.3:
        connection.finish_sending()
    answered = await actor.answer(connection, small_body(actor.serial))
    if not answered.closes and not old:
        raise Wrong("field", "no Connection: close in the answer")
    await connection.expect_end()
    connection.close()
    actor.ledger.passed("close")


async def pipelined(actor: Actor) -> None:
    """Several at once; the answers come in the order of the requests."""
    connection = await actor.connection()
    connection.begin()
    batch, sent = [], []
    for _ in range(actor.random.randrange(2, 33)):
        if actor.random.random() < 0.1:
            at, size = actor.upload_slice((0, 100, 4096, 65_537))
            fields = [f"Content-Length: {size}"]
            batch.append(actor.head("POST", "/upload", *fields) + piece(at, size))
            sent.append((actor.serial, receipt(at, size)))
        else:
            batch.append(actor.head("GET", "/small"))
            sent.append((actor.serial, small_body(actor.serial)))
    await connection.send(b"".join(batch))
    for done, (serial, expected) in enumerate(sent):
        answered = await actor.answer(connection, expected, serial=serial)
        actor.ledger.passed("pipelined")
        if answered.closes and done + 1 < len(sent):
            # What follows was not taken; a client sends it again elsewhere.
            break
    actor.keep(connection, answered)


async def upload(actor: Actor) -> None:
    await send_upload(actor, UPLOADS)
    actor.ledger.passed("upload")


async def large_upload(actor: Actor) -> None:
    await send_upload(actor, LARGE_UPLOADS)
    actor.ledger.passed("large upload")


async def send_upload(actor: Actor, sizes: tuple[int, ...]) -> None:
    at, size = actor.upload_slice(sizes)
    connection = await actor.connection()
    connection.begin()
    await connection.send(actor.head("POST", "/upload", f"Content-Length: {size}"))
    await connection.send(piece(at, size))
    actor.keep(connection, await actor.answer(connection, receipt(at, size)))


async def chunked_upload(actor: Actor) -> None:
    at, size = actor.upload_slice(UPLOADS)
    connection = await actor.connection()
    connection.begin()
    await connection.send(actor.head("POST", "/upload", "Transfer-Encoding: chunked"))
    framed = chunks(piece(at, size), actor.random)
    step = actor.random.choice((1, 20, len(framed)))
    for begin in range(0, len(framed), step):
        await connection.send(b"".join(framed[begin : begin + step]))
    actor.keep(connection, await actor.answer(connection, receipt(at, size)))
    actor.ledger.passed("chunked upload")


async def expecting(actor: Actor) -> None:
    """The body follows when it is asked for."""
    at, size = actor.upload_slice((1, 4096, 65_537))
    connection = await actor.connection()
    connection.begin()
    fields = (f"Content-Length: {size}", "Expect: 100-continue")
    await connection.send(actor.head("POST", "/upload", *fields))
    interim = await connection.head()
    if interim.status != 100:
        raise Wrong("status", f"{interim.status}, not 100")
    await connection.send(piece(at, size))
    actor.keep(connection, await actor.answer(connection, receipt(at, size)))
    actor.ledger.passed("expect")


async def refused(actor: Actor) -> None:
    """An answer of a view that does not read what was sent."""
    at, size = actor.upload_slice((100, 65_537, 1_000_003))
    connection = await actor.connection()
    connection.begin()
    await connection.send(actor.head("POST", "/refuse", f"Content-Length: {size}"))
    await connection.send(piece(at, size))
    actor.keep(connection, await actor.answer(connection, b"log in first", status=401))
    actor.ledger.passed("upload not read")


async def failing(actor: Actor) -> None:
    """The view raises: 500, and the connection may go on."""
    connection = await actor.connection()
    connection.begin()
    await connection.send(actor.head("GET", "/fail"))
    found = await connection.head()
    if found.status != 500:
        raise Wrong("status", f"{found.status}, not 500")
    await connection.body(found)
    connection.answered()
    if found.closes or connection.pid is None:
        # Kept are connections whose process is known; the server's own page does not name it.
        connection.close()
    else:
        actor.kept = connection
    actor.ledger.passed("exception")


async def forking(actor: Actor) -> None:
    await actor.get("/fork", b"child 7")
    actor.ledger.passed("fork")


# Slow


async def slow_reader(actor: Actor) -> None:
    size = actor.random.choice((200_003, 700_001))
    at = actor.random.randrange(PERIOD)
    slice_of_it = f"?at={at}&size={size}"
    path = actor.random.choice((f"/data{slice_of_it}", f"/stream{slice_of_it}&step=9999"))
    connection = await actor.fresh(receive_buffer=4096)
    connection.begin()
    await connection.send(actor.head("GET", path))
    await asyncio.sleep(actor.random.uniform(0.1, 3))
    actor.keep(connection, await actor.answer(connection, piece(at, size)))
    actor.ledger.passed("slow reader")


async def slow_writer(actor: Actor) -> None:
    """The head in dribbles, then the body."""
    at, size = actor.upload_slice((100, 4096, 65_537, 300_000))
    request = actor.head("POST", "/upload", f"Content-Length: {size}") + piece(at, size)
    connection = await actor.connection()
    connection.begin()
    cuts = sorted(actor.random.sample(range(1, len(request)), 8) + [3, 40])
    for begin, end in zip([0, *cuts], [*cuts, len(request)]):
        await connection.send(request[begin:end])
        await asyncio.sleep(actor.random.uniform(0.02, 0.4))
    actor.keep(connection, await actor.answer(connection, receipt(at, size)))
    actor.ledger.passed("slow writer")


async def slow_view(actor: Actor) -> None:
    await actor.get(f"/wait?seconds={actor.random.uniform(0.1, 1):.2f}", b"waited")
    actor.ledger.passed("slow view")


async def resting(actor: Actor) -> None:
    """A connection that is idle for longer than a drain lets it be, and is used again."""
    await small(actor)
    await asyncio.sleep(actor.random.choice((0.5, 2, 4, 7)))
    await small(actor)
    actor.ledger.passed("resting", 0)


# Rude: by FIN or by RST, at every stage


def leave(actor: Actor, connection: Connection, stage: str) -> None:
    by_reset = actor.random.random() < 0.5
    if by_reset:
        connection.reset()
    else:
        connection.close()
    actor.ledger.passed(f"left {stage} by {'RST' if by_reset else 'FIN'}")


async def leave_before_head(actor: Actor) -> None:
    leave(actor, await actor.fresh(), "before the head")


async def leave_in_head(actor: Actor) -> None:
    connection = await actor.fresh()
    whole = actor.head("GET", "/small")
    await connection.send(whole[: actor.random.randrange(1, len(whole) - 1)])
    await asyncio.sleep(actor.random.choice((0, 0.01)))
    leave(actor, connection, "in the head")


async def leave_in_body(actor: Actor) -> None:
    at, size = actor.upload_slice((100, 65_537, 1_000_003))
    connection = await actor.fresh()
    part = piece(at, actor.random.randrange(size))
    if actor.random.random() < 0.5:
        request = actor.head("POST", "/upload", f"Content-Length: {size}") + part
    else:
        framed = b"".join(chunks(part, actor.random)[:-1])
        request = actor.head("POST", "/upload", "Transfer-Encoding: chunked") + framed
    await connection.send(request)
    await asyncio.sleep(actor.random.choice((0, 0.01)))
    leave(actor, connection, "in the body")


async def leave_before_answer(actor: Actor) -> None:
    connection = await actor.fresh()
    await connection.send(actor.head("GET", "/wait?seconds=0.1"))
    await asyncio.sleep(actor.random.choice((0, 0.05)))
    leave(actor, connection, "before the answer")


async def leave_in_answer(actor: Actor) -> None:
    size = 3_000_000
    at = actor.random.randrange(PERIOD)
    path = actor.random.choice(
        (f"/data?at={at}&size={size}", f"/stream?at={at}&size={size}&step=9999", "/file?at=0")
    )
    connection = await actor.fresh(receive_buffer=4096)
    connection.begin()
    await connection.send(actor.head("GET", path))
    actor.check_head(await connection.head(), 200)
    await asyncio.sleep(actor.random.choice((0, 0.05, 0.5)))
    leave(actor, connection, "in the answer")


# With their weights.
FAST: dict[Kind, float] = {
    small: 30,
    pipelined: 20,
    data: 12,
    stream: 8,
    upload: 10,
    chunked_upload: 6,
    head: 4,
    missing: 3,
    nothing: 3,
    file: 2,
    expecting: 2,
    refused: 1.5,
    closing: 6,
    large_upload: 0.7,
    failing: 0.3,
    forking: 0.05,
}
SLOW: dict[Kind, float] = {slow_reader: 3, slow_writer: 3, slow_view: 2, resting: 2}
RUDE: dict[Kind, float] = {
    leave_before_head: 1,
    leave_in_head: 1,
    leave_in_body: 1,
    leave_before_answer: 1,
    leave_in_answer: 1,
}
