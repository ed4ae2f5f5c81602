"""The soak can fail: its judgements as tables, and a short run against each kind of sabotage."""

from __future__ import annotations

import asyncio

import pytest

from soak import kinds
from soak.connection import Connection, Lost, Wrong
from soak.content import PERIOD, piece, whole
from soak.ledger import Failure, Kill, Ledger, Restart
from soak.run import Level, Plan, compare_levels, soak, steady_growth
from soak.watch import Sample, Sizes, slope, sort_log

HERE, THERE = ("127.0.0.1", 40_000), ("127.0.0.1", 40_001)
KILLED, OTHER = 100, 200
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def ledger() -> Ledger:
    """A worker was killed at 50, and the other one was replaced from 100 on."""
    return Ledger(
        keep_alive=75,
        drain_idle=5,
        began=0,
        kills=[Kill(50, KILLED, {HERE}, 1)],
        restarts=[Restart(100, {OTHER})],
    )


def loss(kind: str, moment: float, **more: object) -> Failure:
    return Failure(moment, kind, "get", **{"peer": HERE, "opened": 40.0, "pid": None, **more})


@pytest.mark.parametrize("kind", ["silent", "reset", "eof", "idle eof", "idle reset"])
def test_a_loss_is_excused_by_the_kill_of_its_process_once(kind):
    book = ledger()
    book.failed(loss(kind, 50.1, pid=KILLED))
    assert book.excused == {f"killed: {kind}": 1} and not book.unexpected
    assert book.kills[0].caused == 1
    book.failed(loss(kind, 50.2, pid=KILLED))
    assert book.unexpected == {kind: 1}


@pytest.mark.parametrize(
    "failure",
    [
        loss("reset", 50.1, peer=THERE),
        loss("reset", 50.1, pid=OTHER),
        loss("reset", 50.1, opened=50.05),
        loss("reset", 40.0, opened=30),
        loss("timeout", 50.1),
        loss("refused", 50.1),
        loss("body", 50.1),
        loss("field", 50.1),
        loss("status", 50.1),
    ],
    ids=["no connection of it", "another process", "later", "before", *"tcbfs"],
)
def test_a_kill_excuses_nothing_else(failure):
    book = ledger()
    book.failed(failure)
    assert book.unexpected == {failure.kind: 1} and not book.excused


def test_a_restart_may_close_what_rested_for_as_long_as_promised():
    book = ledger()
    book.failed(loss("idle eof", 106, idle=5.5, pid=OTHER, used=True))
    book.failed(loss("silent", 106, idle=5.5, pid=OTHER, used=True))
    book.failed(loss("closes", 101, pid=OTHER, used=True))
    book.failed(loss("idle eof", 90, idle=75, pid=OTHER, used=True))
    assert not book.unexpected
    assert sum(book.excused.values()) == 4


@pytest.mark.parametrize(
    "failure",
    [
        loss("idle eof", 106, idle=1, pid=OTHER, used=True),
        loss("idle eof", 103, idle=60, pid=OTHER, used=True),
        loss("idle eof", 99, idle=60, pid=OTHER, used=True),
        loss("idle eof", 106, idle=6, pid=300, used=True),
        loss("silent", 106, idle=6, used=False, peer=THERE),
        loss("eof", 106, idle=6, pid=OTHER, used=True),
        loss("idle reset", 106, idle=6, pid=OTHER, used=True),
        loss("closes", 99, pid=OTHER, used=True),
        loss("closes", 101, pid=300, used=True),
    ],
)
def test_a_restart_excuses_nothing_else(failure):
    book = ledger()
    book.failed(failure)
    assert book.unexpected == {failure.kind: 1} and not book.excused


def test_lines_of_the_log_without_a_cause_are_found():
    lines = sort_log(
        "2026-01-01T00:00:00Z INFO  supervisor[1] worker 1 is ready pid=2\n"
        "2026-01-01T00:00:00Z ERROR worker[2] GET /fail: the application raised\n  Traceback\n"
        "2026-01-01T00:00:00Z ERROR worker[2] GET /small: the application raised\n"
        "2026-01-01T00:00:00Z ERROR supervisor[1] worker 1 was killed by signal 9 (SIGKILL)\n"
        "2026-01-01T00:00:00Z ERROR supervisor[1] worker 1 was killed by signal 11 (SIGSEGV)\n"
        "2026-01-01T00:00:00Z WARN  worker[2] bug: a slot is lost\n"
    )
    assert sum(lines.caused.values()) == 2
    assert len(lines.unexpected) == 3
    assert any("SIGSEGV" in line for line in lines.unexpected)
    assert any("/small" in line for line in lines.unexpected)
    assert any("bug: a slot is lost" in line for line in lines.unexpected)


def test_levels_are_compared_by_role():
    first = [Level(1, "supervisor", Sizes(10_000, 8, 1)), Level(2, "worker", Sizes(30_000, 16, 12))]
    assert not compare_levels(first, first)
    leaky = [
        Level(1, "supervisor", Sizes(13_000, 9, 2)),
        Level(3, "worker", Sizes(90_000, 17, 13)),
    ]
    assert len(compare_levels(first, leaky)) == 6


def sample(seconds: float, rss: int, phase: str = "steady") -> Sample:
    return Sample(seconds, phase, 2, "worker", seconds, rss, 16, 12, 0, 0, 0, 0)


def test_growth_is_the_slope_of_the_second_half():
    class Watched:
        samples = [sample(5 * step, 30_000 + 500 * step) for step in range(60)]

    assert slope(Watched.samples) == pytest.approx(360_000)
    assert steady_growth(Watched) == ["worker 2: grew by 14500 KiB in the second half"]
    Watched.samples = [sample(5 * step, 30_000 + min(500 * step, 10_000)) for step in range(60)]
    assert not steady_growth(Watched)


def test_the_content_is_periodic():
    assert piece(5, 10) == whole()[5:15]
    assert piece(PERIOD - 3, 10) == whole()[-3:] + whole()[:7]
    assert piece(7, 3 * PERIOD + 1) == piece(7, PERIOD) * 3 + piece(7, 1)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", "eof"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", "framing"),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", "framing"),
        (CHUNKED + b"5\r\nhelloX\r\n0\r\n\r\n", "framing"),
        (CHUNKED + b"5\r\nhello\r\n", "eof"),
        (b"200 OK\r\n\r\n", "framing"),
        (b"", "silent"),
    ],
)
def test_the_connection_is_strict(answer, kind):
    async def server(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async def ask():
        listening = await asyncio.start_server(server, "127.0.0.1", 0)
        connection = await Connection().open(listening.sockets[0].getsockname()[1])
        connection.begin()
        await connection.send(b"GET / HTTP/1.1\r\n\r\n")
        try:
            await connection.body(await connection.head())
        finally:
            connection.close()
            listening.close()

    with pytest.raises((Lost, Wrong)) as caught:
        asyncio.run(ask())
    assert caught.value.kind == kind


# Against a server


def short(io: str | None, sabotage: str = "", **more: object) -> Plan:
    """Some seconds with few actors."""
    settings = {"hup": 0, "kill": 0, "fast": 6, "slow": 0, "rude": 0, "settle": 1, **more}
    environment = {"SOAK_SABOTAGE": sabotage, "SOAK_SABOTAGE_EVERY": "20"}
    return Plan(seconds=1.2, seed=7, io=io, environment=environment, **settings)


def test_a_short_soak_with_a_kill_is_clean(io_kind):
    plan = short(io_kind, kill=0.5, slow=2, rude=2, settle=10)
    outcome = soak(plan)
    assert outcome.clean, outcome.ledger.errors
    assert outcome.ledger.kills and outcome.ledger.requests["pipelined"]
    assert {phase["phase"] for phase in outcome.phases} == {"warm-up", "steady", "restarts"}


@pytest.mark.parametrize(
    ("sabotage", "kinds_of_error"),
    [
        ("corrupt", {"body"}),
        ("swap", {"field"}),
        ("leak", {"level"}),
        ("stuck", {"timeout", "not idle"}),
        ("die", {"silent", "log"}),
    ],
)
def test_sabotage_is_found(io_kind, monkeypatch, sabotage, kinds_of_error):
    monkeypatch.setattr(kinds, "EXCHANGE_SECONDS_MAX", 1.0)
    outcome = soak(short(io_kind, sabotage, server_flags=("--grace", "1", "--respawn-max", "0")))
    assert kinds_of_error <= set(outcome.ledger.unexpected), outcome.ledger.unexpected
