"""Several workers share the connections: RULES.md 24 and PRODUCTION.md behaviour 22.

Which worker has a connection is read through the application, which answers with its process id,
over keep-alive connections that stay open.
"""

from __future__ import annotations

import http.client
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from harness import Server, wait_until

WORKERS = 4
CONNECTIONS = 400
# Most connections of a worker divided by the fewest of one.
MARGIN = 1.3


class Clients:
    """Connections that stay open, and the worker of each."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.open: list[tuple[http.client.HTTPConnection, int]] = []

    def connect(self) -> http.client.HTTPConnection:
        client = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        client.connect()
        return client

    def one_after_the_other(self, count: int) -> list[int]:
        """Each has its answer before the next one comes."""
        pids = []
        for _ in range(count):
            client = self.connect()
            client.request("GET", "/")
            pids.append(self.answered(client))
        return pids

    def all_at_once(self, count: int) -> list[int]:
        """As fast as the kernel takes them, before any is answered."""
        clients = [self.connect() for _ in range(count)]
        for client in clients:
            client.request("GET", "/")
        return [self.answered(client) for client in clients]

    def answered(self, client: http.client.HTTPConnection) -> int:
        pid = int(client.getresponse().read())
        self.open.append((client, pid))
        return pid

    def close(self, of: int | None = None) -> None:
        """All, or those of one worker."""
        for client, pid in self.open:
            if of in (None, pid):
                client.close()
        self.open = [] if of is None else [pair for pair in self.open if pair[1] != of]

    def counts(self) -> Counter[int]:
        return Counter(pid for _, pid in self.open)


@pytest.fixture
def clients(serve) -> Iterator[Clients]:
    clients = Clients(serve("balance:app", workers=WORKERS))
    yield clients
    clients.close()


def assert_balanced(counts: Counter[int], workers: int = WORKERS) -> None:
    assert len(counts) == workers, counts
    assert max(counts.values()) <= MARGIN * min(counts.values()), counts


def threads_of(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Its threads, all of them, until the end of the block."""

    def is_stopped() -> bool:
        stats = [(thread / "stat").read_text() for thread in threads_of(pid)]
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(is_stopped, what="every thread is stopped")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_behaviour_22_connections_that_come_one_after_the_other_are_balanced(clients):
    clients.one_after_the_other(CONNECTIONS)
    assert_balanced(clients.counts())


def test_behaviour_22_connections_that_come_all_at_once_are_balanced(clients):
    # Without balance the spread of a burst is anything from 1.2 to a worker that has none.
    for _ in range(5):
        clients.all_at_once(CONNECTIONS)
        assert_balanced(clients.counts())
        clients.close()


@pytest.mark.parametrize("arrive", [Clients.one_after_the_other, Clients.all_at_once])
def test_rule_24_a_stopped_worker_is_left_out_and_is_first_when_it_goes_on(clients, arrive):
    victim = clients.server.worker_pids()[0]
    with stopped(victim):
        arrive(clients, 300)
        assert_balanced(clients.counts(), WORKERS - 1)
        assert victim not in clients.counts()
    # Its next heartbeat tells the others, and theirs that they are ahead.
    time.sleep(0.5)
    # The first may come to accepts that wait already.
    assert clients.one_after_the_other(60).count(victim) >= 54
    clients.one_after_the_other(80)
    assert_balanced(clients.counts())


def test_rule_24_no_connection_waits_because_everybody_leaves_it_to_another(serve):
    """Counted, not timed: the net under everything is a second, and nothing may fall into it."""
    server = serve("balance:app", workers=WORKERS)
    late = 0
    pids = set()
    for _ in range(2000):
        begun = time.monotonic()
        pids.add(int(server.get().body))
        late += time.monotonic() - begun > 0.9
    assert late == 0
    assert len(pids) == WORKERS


@pytest.mark.parametrize("is_ahead", [True, False])
def test_rule_24_a_worker_that_is_killed_is_not_waited_for(clients, is_ahead):
    """With many connections it would raise the mean, with few all others would leave it everything."""
    clients.one_after_the_other(200)
    victim, *others = clients.server.worker_pids()
    for pid in others if is_ahead else [victim]:
        clients.close(pid)
    os.kill(victim, signal.SIGKILL)
    clients.close(victim)
    # Meanwhile its successor starts, and has none.
    assert victim not in clients.one_after_the_other(100)
    wait_until(lambda: len(clients.server.worker_pids()) == WORKERS, what="a successor")
    for client, _ in clients.open:
        client.request("GET", "/")
        assert client.getresponse().read()


def test_rule_24_a_full_worker_is_not_waited_for(serve):
    clients = Clients(serve("balance:app", "--max-connections", "30", workers=2))
    clients.all_at_once(60)
    assert clients.counts().most_common() == [(pid, 30) for pid, _ in clients.counts().most_common()]
    clients.close()


def reactor_wakes(pid: int) -> int:
    """How often the reactor's thread went to sleep."""
    for thread in threads_of(pid):
        with suppress(FileNotFoundError):
            status = dict(line.split(":", 1) for line in (thread / "status").read_text().splitlines())
            if status["Name"].strip().startswith("hoopsnake-react"):
                return int(status["voluntary_ctxt_switches"])
    raise AssertionError(f"no reactor in {pid}")


@pytest.mark.parametrize("workers", [1, 2])
def test_only_a_worker_that_is_not_alone_wakes_for_its_heartbeat(serve, workers):
    server = serve("balance:app", workers=workers)
    pids = server.worker_pids()
    before = [reactor_wakes(pid) for pid in pids]
    time.sleep(2)
    wakes = [reactor_wakes(pid) - start for pid, start in zip(pids, before)]
    assert all(count >= 15 if workers > 1 else count <= 6 for count in wakes), wakes
