"""Phases of a run: what is done to the server while the actors send, and what must hold at the end.

| phase | share | |
|---|---|---|
| warm-up | 10 s at most | everything is used once; then the levels are taken |
| steady | a third | no restart and no kill: what grows here leaks |
| restarts | two thirds | HUP every `hup` seconds, SIGKILL every `kill`, at random moments |
| idle | until all is back | no connection; levels are compared |
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import resource
import signal
import socket
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from harness import Server, process_is_alive, wait_until

from . import content
from .kinds import FAST, RUDE, SLOW, Actor
from .ledger import Kill, Ledger, Restart
from .watch import (
    Sample,
    Sizes,
    Watch,
    connections,
    counts,
    cpu_seconds,
    peers_of,
    sizes,
    slope,
    sort_log,
)

HERE = Path(__file__).parent

SAMPLE_SECONDS = 5.0
# A client that gets no processor sends late, which is no error of anybody: the deadlines of the
# server are long here, and are tested elsewhere.
FLAGS = (
    *("--header-timeout", "60", "--body-timeout", "120", "--send-timeout", "120"),
    *("--grace", "60", "--threads", "8"),
)
LAG_SECONDS = 0.25
# Of what is printed meanwhile; the CSV has all.
SAMPLES_PER_LINE = 6
WARM_SECONDS_MAX = 10.0
# How long the server may take for what it says is done at once.
SETTLE_SECONDS = 20.0
RESTART_SECONDS_MAX = 120.0
# What the allocator may keep over the level after the warm-up: bodies of MiB on eight threads.
RSS_GROWTH_KIB_MAX = 32 * 1024
SUPERVISOR_GROWTH_KIB_MAX = 2 * 1024
# Over the second half of the steady phase, by the fitted line.
STEADY_GROWTH_KIB_MAX = 8 * 1024
STEADY_SAMPLES_MIN = 12


@dataclass(frozen=True)
class Plan:
    """What a run does. **Units**: seconds; 0 switches `hup` or `kill` off."""

    seconds: float
    seed: int
    io: str | None = None
    workers: int = 2
    hup: float = 60.0
    kill: float = 120.0
    fast: int = 32
    slow: int = 16
    rude: int = 4
    drain_idle: float = 5.0
    server_flags: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    settle: float = SETTLE_SECONDS
    progress: bool = False

    @property
    def disturbed(self) -> bool:
        return bool(self.hup or self.kill)


@dataclass
class Level:
    """A process at rest, at the beginning or at the end."""

    pid: int
    role: str
    sizes: Sizes


@dataclass
class Outcome:
    """Everything a report shows."""

    plan: Plan
    ledger: Ledger
    watch: Watch
    phases: list[dict[str, object]] = field(default_factory=list)
    first: list[Level] = field(default_factory=list)
    last: list[Level] = field(default_factory=list)
    figures: dict[str, object] = field(default_factory=dict)
    log_lines: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        return not self.ledger.unexpected


class Run:
    """One run, from the start of the server to its exit code."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.random = random.Random(f"{plan.seed}/the disturbances")
        (folder / "content").write_bytes(content.whole())
        flags = [*FLAGS, "--drain-idle", str(plan.drain_idle)]
        self.server = Server(
            "application:app",
            *flags,
            *plan.server_flags,
            app_dir=HERE,
            workers=plan.workers,
            io=plan.io,
            env={"SOAK_DIR": str(folder), **plan.environment},
        )
        self.ledger = Ledger(drain_idle=plan.drain_idle)
        self.watch = Watch(self.server, folder, self.ledger.began)
        self.outcome = Outcome(plan, self.ledger, self.watch)
        self.phase = "start"

    async def all(self) -> Outcome:
        """Every phase, then the end."""
        try:
            tasks = [asyncio.create_task(task) for task in (self.sample(), self.measure_lag())]
            warm = min(WARM_SECONDS_MAX, self.plan.seconds / 4)
            await self.load("warm-up", warm)
            await self.settle()
            self.outcome.first = self.levels()
            steady = self.plan.seconds / 3 if self.plan.disturbed else self.plan.seconds
            await self.load("steady", steady)
            if self.plan.disturbed:
                await self.load("restarts", self.plan.seconds - steady, self.disturb)
            self.phase = "idle"
            await self.settle()
            self.outcome.last = self.levels()
            for task in tasks:
                if task.done():
                    # It never ends by itself: what it raised is a fault of this program.
                    task.result()
                task.cancel()
            self.compare()
            self.end()
        finally:
            self.server.close()
        return self.outcome

    # Load and disturbance

    async def load(self, name: str, seconds: float, meanwhile=None) -> None:
        """Actors for so long, each with what it does booked; a row for the table of phases."""
        self.phase = name
        begun, before = time.monotonic(), sum(self.ledger.requests.values())
        errors = sum(self.ledger.unexpected.values())
        cpu = self.server_cpu(), own_cpu()
        stop = asyncio.Event()
        actors = [asyncio.create_task(actor.run(stop)) for actor in self.actors(name)]
        deadline = begun + seconds
        tasks = [asyncio.create_task(one) for one in (meanwhile(deadline) if meanwhile else [])]
        while (left := deadline - time.monotonic()) > 0 and self.server.process.poll() is None:
            await asyncio.sleep(min(left, 0.5))
        await asyncio.gather(*tasks)
        stop.set()
        await asyncio.gather(*actors)
        took = time.monotonic() - begun
        sent = sum(self.ledger.requests.values()) - before
        self.outcome.phases.append(
            {
                "phase": name,
                "seconds": round(took, 1),
                "requests": sent,
                "per second": round(sent / took),
                "server CPU": round((self.server_cpu() - cpu[0]) / took, 2),
                "client CPU": round((own_cpu() - cpu[1]) / took, 2),
                "unexpected": sum(self.ledger.unexpected.values()) - errors,
            }
        )

    def actors(self, phase: str) -> list[Actor]:
        plan = self.plan
        kinds = [FAST] * plan.fast + [SLOW] * plan.slow + [RUDE] * plan.rude
        seed = f"{plan.seed}/{phase}"
        return [
            Actor(number, seed, self.server.port, self.ledger, weights)
            for number, weights in enumerate(kinds)
        ]

    def disturb(self, deadline: float) -> list:
        return [
            task(every, deadline)
            for task, every in ((self.restart, self.plan.hup), (self.kill, self.plan.kill))
            if every
        ]

    async def restart(self, every: float, deadline: float) -> None:
        """HUP, and every worker must be another one after a while."""
        while await self.pause(every, deadline):
            await self.complete()
            old = set(self.server.worker_pids())
            moment = time.monotonic()
            self.ledger.restarts.append(Restart(moment, old))
            self.server.process.send_signal(signal.SIGHUP)
            while old & set(self.server.worker_pids()):
                if time.monotonic() > moment + RESTART_SECONDS_MAX:
                    left = sorted(old & set(self.server.worker_pids()))
                    self.ledger.wrong(
                        "restart", f"HUP: {left} live after {RESTART_SECONDS_MAX:.0f} s"
                    )
                    break
                await asyncio.sleep(0.2)

    async def complete(self) -> None:
        """Waits until a killed worker is replaced: it counts among those that a HUP replaces."""
        deadline = time.monotonic() + RESTART_SECONDS_MAX
        while len(self.server.worker_pids()) < self.plan.workers:
            if time.monotonic() > deadline:
                self.ledger.wrong("workers", f"{self.server.worker_pids()} live, too few")
                return
            await asyncio.sleep(0.05)

    async def kill(self, every: float, deadline: float) -> None:
        """SIGKILL to one worker, whatever it is doing."""
        while await self.pause(every, deadline):
            pids = self.server.worker_pids()
            if not pids:
                self.ledger.wrong("workers", "none lives")
                continue
            kill_worker(self.random.choice(pids), self.server.port, self.folder, self.ledger)

    async def pause(self, every: float, deadline: float) -> bool:
        """Between a half and the whole of the interval. False: the phase is over before that."""
        moment = time.monotonic() + every * self.random.uniform(0.5, 1)
        # What was restarted last has time to show that it serves.
        if moment > deadline - min(every / 4, 10):
            return False
        await asyncio.sleep(moment - time.monotonic())
        return True

    async def sample(self) -> None:
        for number in itertools.count():
            taken = self.watch.take(self.phase)
            if self.plan.progress and number % SAMPLES_PER_LINE == 0:
                print(self.progress(taken), flush=True)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def measure_lag(self) -> None:
        """How late this client is: what it does not hear in time is not the server's fault."""
        while True:
            begun = time.monotonic()
            await asyncio.sleep(LAG_SECONDS)
            self.ledger.late(time.monotonic() - begun - LAG_SECONDS)

    def progress(self, taken: list[Sample]) -> str:
        """A line for somebody who watches."""
        workers = [sample for sample in taken if sample.role == "worker"]
        shown = ", ".join(
            f"{one.pid}: {one.rss // 1024} MiB {one.descriptors} fds {one.in_flight} in flight"
            for one in workers
        )
        ledger = self.ledger
        return (
            f"{taken[0].seconds:7.0f} s {self.phase:<9}"
            f" {sum(ledger.requests.values()):>11,} requests,"
            f" {sum(ledger.excused.values())} excused, {sum(ledger.unexpected.values())} unexpected,"
            f" {len(ledger.restarts)} restarts, {len(ledger.kills)} kills; {shown}"
        )

    # Levels and the end

    async def settle(self) -> None:
        """Waits until no connection is left and nothing runs. What is left is an error."""
        deadline = time.monotonic() + self.plan.settle
        while self.unsettled() and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        for problem in self.unsettled():
            self.ledger.wrong("not idle", problem)
        # The reactor closes what it was told about in its next turn.
        await asyncio.sleep(0.5)

    def unsettled(self) -> list[str]:
        problems = []
        if left := len(connections(self.server.port)):
            problems.append(f"{left} connections are open without a client")
        pids = self.server.worker_pids()
        if len(pids) != self.plan.workers:
            problems.append(f"{len(pids)} workers live, not {self.plan.workers}")
        for pid in pids:
            own = counts(self.folder, pid)
            if own.in_flight or own.streams:
                problems.append(
                    f"worker {pid}: {own.in_flight} requests and {own.streams} streams in flight"
                )
        return problems

    def levels(self) -> list[Level]:
        pids = [(self.server.pid, "supervisor"), *self.watch.workers()]
        return [Level(pid, role, found) for pid, role in pids if (found := sizes(pid))]

    def compare(self) -> None:
        """The processes at the end against those after the warm-up: both at rest."""
        for problem in compare_levels(self.outcome.first, self.outcome.last):
            self.ledger.wrong("level", problem)
        for problem in steady_growth(self.watch):
            self.ledger.wrong("growth", problem)

    def end(self) -> None:
        """SIGTERM: exit code 0, no process, a free port; and no line of the log without a cause."""
        port, pids = self.server.port, [self.server.pid, *self.server.worker_pids()]
        code = self.server.stop()
        if code:
            self.ledger.wrong("exit", f"code {code} after SIGTERM")
        try:
            wait_until(lambda: not any(map(process_is_alive, pids)), 5)
        except AssertionError:
            self.ledger.wrong("exit", f"processes are left: {[*filter(process_is_alive, pids)]}")
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError as error:
            self.ledger.wrong("exit", f"port {port} is not free: {error}")
        lines = sort_log(self.server.log())
        for line in lines.unexpected:
            self.ledger.wrong("log", line)
        killed = sum(number for cause, number in lines.caused.items() if "signal 9" in cause)
        if killed > len(self.ledger.kills):
            self.ledger.wrong("log", f"{killed} workers killed, {len(self.ledger.kills)} by us")
        self.outcome.log_lines = {"caused": dict(lines.caused), "warnings": dict(lines.warnings)}
        self.outcome.figures = {
            "workers started": len(self.server.ever_ready_pids()),
            "restarts": len(self.ledger.restarts),
            "kills": len(self.ledger.kills),
            "longest lag of the client, s": round(self.ledger.longest_lag, 2),
        }

    def server_cpu(self) -> float:
        return sum(map(cpu_seconds, [self.server.pid, *self.server.worker_pids()]))


def kill_worker(pid: int, port: int, folder: Path, ledger: Ledger) -> Kill | None:
    """Stops it, notes which connections it has, and kills it."""
    try:
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: all_threads_stopped(pid), 5, f"{pid} stops")
        kill = Kill(time.monotonic(), pid, peers_of(pid, port), counts(folder, pid).in_flight)
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, FileNotFoundError):
        # It was draining and has just ended.
        return None
    ledger.kills.append(kill)
    return kill


def all_threads_stopped(pid: int) -> bool:
    tasks = Path(f"/proc/{pid}/task")
    states = [
        (task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks.iterdir()
    ]
    return all(state in "TZX" for state in states)


def compare_levels(first: list[Level], last: list[Level]) -> list[str]:
    """What is more at the end than at the beginning, over the bounds."""
    problems = []
    for level in last:
        before = [one.sizes for one in first if one.role == level.role]
        where = f"{level.role} {level.pid}"
        descriptors = max(one.descriptors for one in before)
        if level.sizes.descriptors > descriptors:
            problems.append(f"{where}: {level.sizes.descriptors} descriptors, was {descriptors}")
        threads = max(one.threads for one in before)
        if level.sizes.threads > threads:
            problems.append(f"{where}: {level.sizes.threads} threads, was {threads}")
        worker = level.role == "worker"
        allowed = RSS_GROWTH_KIB_MAX if worker else SUPERVISOR_GROWTH_KIB_MAX
        rss = max(one.rss for one in before)
        if level.sizes.rss > rss + allowed:
            problems.append(f"{where}: RSS {level.sizes.rss} KiB, was {rss}, may grow by {allowed}")
    return problems


def steady_growth(watch: Watch) -> list[str]:
    """Processes that grew over the second half of the phase in which nothing was restarted."""
    steady = [sample for sample in watch.samples if sample.phase == "steady"]
    problems = []
    for pid in sorted({sample.pid for sample in steady}):
        of_pid = [sample for sample in steady if sample.pid == pid]
        half = of_pid[len(of_pid) // 2 :]
        if len(half) < STEADY_SAMPLES_MIN:
            continue
        grown = (slope(half) or 0) / 3600 * (half[-1].seconds - half[0].seconds)
        if grown > STEADY_GROWTH_KIB_MAX:
            problems.append(f"{half[0].role} {pid}: grew by {grown:.0f} KiB in the second half")
    return problems


def own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def soak(plan: Plan) -> Outcome:
    """Runs a plan in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="hoopsnake-soak-") as folder:

        async def run() -> Outcome:
            return await Run(plan, Path(folder)).all()

        return asyncio.run(run())
