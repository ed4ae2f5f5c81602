"""Load through nginx and HAProxy, kept connections on both sides, while workers come and go.

The clients are the actors of the soak; here nothing excuses a failure, because a balancer stands
between the client and the worker. Without `BALANCERS=all` the loads take seconds.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import OUR_FAULT
from harness import Server, wait_until
from soak import content, kinds
from soak.kinds import Actor
from soak.ledger import Ledger
from soak.run import kill_worker
from soak.watch import connections, counts

from .conftest import demand
from .fronts import DEMANDED, Front

SOAK = Path(kinds.__file__).parent
SECONDS, EVERY = (60.0, 10.0) if DEMANDED else (4.0, 1.5)
ACTORS = 12
# Within which every client hears of a loss, also on a busy machine.
HEARD_SECONDS = 5.0
# No pipelining: a balancer sends one request at a time. Half of them are POSTs.
KINDS = {
    kinds.small: 30,
    kinds.data: 12,
    kinds.stream: 8,
    kinds.upload: 30,
    kinds.chunked_upload: 15,
    kinds.large_upload: 1,
    kinds.head: 4,
    kinds.missing: 3,
    kinds.nothing: 3,
    kinds.slow_view: 3,
}
if DEMANDED:
    # Takes seven seconds to end.
    KINDS[kinds.resting] = 2
in_full_only = pytest.mark.skipif(not DEMANDED, reason="takes long: left to make conformance")


class Behind:
    """A balancer before two workers of the soak's application."""

    def __init__(self, kind: str, folder: Path, io: str | None, **env: str) -> None:
        self.folder = folder
        (folder / "content").write_bytes(content.whole())
        env["SOAK_DIR"] = str(folder)
        flags = ["--respawn-max", "0"]
        self.server = Server("application:app", *flags, app_dir=SOAK, workers=2, io=io, env=env)
        self.front = Front(kind, self.server.port, folder)
        self.ledger = Ledger()

    async def load(self, seconds: float, disturb) -> None:
        """Actors through the balancer for so long, and `disturb` meanwhile."""
        stop = asyncio.Event()
        actors = [
            Actor(number, 11, self.front.port, self.ledger, KINDS) for number in range(ACTORS)
        ]
        running = [asyncio.create_task(actor.run(stop)) for actor in actors]
        await disturb(time.monotonic() + seconds)
        stop.set()
        await asyncio.gather(*running)

    def in_flight(self) -> int:
        pids = self.server.worker_pids()
        return sum(counts(self.folder, pid).in_flight for pid in pids)

    def close(self) -> None:
        self.front.stop()
        self.server.close()


@pytest.fixture(params=["nginx", "haproxy"])
def behind(request, tmp_path, io_kind) -> Iterator[Behind]:
    demand(request.param)
    env = getattr(request.function, "environment", {})
    running = Behind(request.param, tmp_path, io_kind, **env)
    yield running
    running.close()
    found = OUR_FAULT.search(running.server.log())
    assert not found, f"the server's own fault: {found[0]}\n{running.server.log()}"


def check_restarts(behind: Behind) -> None:
    """HUP again and again: every request has its right answer."""
    before = set(behind.server.worker_pids())

    async def disturb(deadline: float) -> None:
        while time.monotonic() < deadline:
            await asyncio.sleep(EVERY)
            behind.server.process.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.3)
            if "no rolling restart yet" in behind.server.log():
                return

    asyncio.run(behind.load(SECONDS, disturb))
    assert not behind.ledger.unexpected, behind.ledger.errors
    if "no rolling restart yet" in behind.server.log():
        pytest.skip("the load is clean; SIGHUP is no rolling restart in this version")
    wait_until(lambda: not before & set(behind.server.worker_pids()), 60, "all are replaced")
    assert not behind.front.complaints()
    posts = behind.ledger.requests["upload"] + behind.ledger.requests["chunked upload"]
    assert posts > 20, behind.ledger.requests


def test_behaviour_7_restarts_under_load_fail_no_request(behind):
    check_restarts(behind)


@in_full_only
def test_behaviour_7_nor_when_the_import_takes_long(behind):
    check_restarts(behind)


test_behaviour_7_nor_when_the_import_takes_long.environment = {"SOAK_IMPORT_SECONDS": "4"}


def test_the_load_finds_a_wrong_answer(behind):
    """The premise of the others."""

    async def disturb(deadline: float) -> None:
        while not behind.ledger.unexpected and time.monotonic() < deadline:
            await asyncio.sleep(0.05)

    asyncio.run(behind.load(30, disturb))
    assert set(behind.ledger.unexpected) == {"body"}, behind.ledger.errors


test_the_load_finds_a_wrong_answer.environment = {
    "SOAK_SABOTAGE": "corrupt",
    "SOAK_SABOTAGE_EVERY": "5",
}


def test_a_killed_worker_fails_its_own_requests_only(behind):
    """At most one request on each connection that the process had, at that moment, and none after;
    nothing is stuck."""
    killed = []

    async def disturb(deadline: float) -> None:
        while time.monotonic() < deadline - EVERY / 2:
            await asyncio.sleep(EVERY)
            wait_until(lambda: len(behind.server.worker_pids()) == 2, 20)
            failed = sum(behind.ledger.unexpected.values())
            pid = behind.server.worker_pids()[len(killed) % 2]
            kill = kill_worker(pid, behind.server.port, behind.folder, behind.ledger)
            assert kill
            # Long enough for every client to hear, and for nothing to fail later.
            await asyncio.sleep(EVERY / 2)
            killed.append((kill, sum(behind.ledger.unexpected.values()) - failed))

    asyncio.run(behind.load(SECONDS, disturb))
    assert killed
    for kill, failed in killed:
        assert failed <= len(kill.peers), (failed, kill, behind.ledger.errors)
    assert sum(behind.ledger.unexpected.values()) <= sum(len(kill.peers) for kill, _ in killed)
    kinds_of_error = set(behind.ledger.unexpected)
    assert kinds_of_error <= {"status", "silent", "eof", "reset", "idle eof"}, behind.ledger.errors
    for error in behind.ledger.errors:
        after = [error["seconds"] - (kill.moment - behind.ledger.began) for kill, _ in killed]
        assert error["kind"] != "status" or "502" in error["detail"], error
        assert any(0 <= seconds < HEARD_SECONDS for seconds in after), error
    wait_until(lambda: behind.in_flight() == 0, 10, "no request is stuck")
    behind.front.stop()
    wait_until(lambda: not connections(behind.server.port), 10, "no connection is stuck")
    assert behind.server.stop() == 0
