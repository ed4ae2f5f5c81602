"""What /proc and the log say of the server: sizes, sockets, and lines that should not be there."""

from __future__ import annotations

import collections
import os
import re
import struct
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from conformance.wire import OUR_FAULT
from harness import Server

from .content import COUNTS

ESTABLISHED = "01"
TIME_WAIT = "06"
LEVEL = re.compile(r"^\S+ (?P<level>ERROR|WARN) +(?P<text>.*)$", re.M)
# Errors that the run causes: its failing view, its kills, and what the tests of the checks print.
CAUSED = (
    re.compile(r"worker\[\d+\] GET /fail: the application raised"),
    re.compile(r"supervisor\[\d+\] .*worker \d+ was killed by signal 9 "),
)


@dataclass
class Sample:
    """One process at one moment. **Units**: seconds since the beginning, KiB."""

    seconds: float
    phase: str
    pid: int
    role: str
    age: float
    rss: int
    descriptors: int
    threads: int
    in_flight: int
    streams: int
    sockets: int
    log_errors: int

    def row(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class Sizes:
    """What a process holds. **Units**: KiB."""

    rss: int
    descriptors: int
    threads: int


def sizes(pid: int) -> Sizes | None:
    """None: it is gone."""
    try:
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        return Sizes(int(status["VmRSS"].split()[0]), descriptors, int(status["Threads"]))
    except (OSError, KeyError):
        return None


@dataclass(frozen=True)
class Counts:
    """What a worker's application says of itself."""

    begun: int
    ended: int
    opened: int
    closed: int

    @property
    def in_flight(self) -> int:
        return self.begun - self.ended

    @property
    def streams(self) -> int:
        return self.opened - self.closed


def counts(folder: Path, pid: int) -> Counts:
    """All zero before its application is imported."""
    try:
        return Counts(*COUNTS.unpack((folder / f"{pid}.counts").read_bytes()))
    except (OSError, struct.error):
        return Counts(0, 0, 0, 0)


def tcp_rows() -> Iterable[tuple[tuple[str, int], tuple[str, int], str, int]]:
    """Local end, remote end, state and inode of each IPv4 socket."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        yield _end(words[1]), _end(words[2]), words[3], int(words[9])


def _end(text: str) -> tuple[str, int]:
    address, port = text.split(":")
    return ".".join(str(byte) for byte in bytes.fromhex(address)[::-1]), int(port, 16)


def connections(port: int) -> list[tuple[str, int]]:
    """The clients' ends of what the server has not closed yet."""
    gone = (TIME_WAIT, "0A")
    return [
        far for near, far, state, inode in tcp_rows()
        if near[1] == port and state not in gone and inode
    ]


def peers_of(pid: int, port: int) -> set[tuple[str, int]]:
    """The clients' ends of the connections that a process has."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(int(target[8:-1]))
    return {far for near, far, _, inode in tcp_rows() if near[1] == port and inode in inodes}


def cpu_seconds(pid: int) -> float:
    """Of the process and its dead children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Lines:
    """The log, sorted out."""

    unexpected: list[str]
    caused: collections.Counter[str]
    warnings: collections.Counter[str]


def sort_log(text: str) -> Lines:
    """Which lines nothing excuses, how many the run caused, and the warnings by their text."""
    unexpected = [found[0] for found in OUR_FAULT.finditer(text)]
    caused: collections.Counter[str] = collections.Counter()
    warnings: collections.Counter[str] = collections.Counter()
    for found in LEVEL.finditer(text):
        if found["level"] == "WARN":
            warnings[re.sub(r"\d+", "N", found["text"])] += 1
            continue
        causes = [cause.pattern for cause in CAUSED if cause.search(found["text"])]
        if causes:
            caused[causes[0]] += 1
        else:
            unexpected.append(found[0])
    return Lines(unexpected, caused, warnings)


class Watch:
    """Takes samples of the supervisor and of all workers."""

    def __init__(self, server: Server, folder: Path, began: float) -> None:
        self.server = server
        self.folder = folder
        self.began = began
        self.samples: list[Sample] = []
        self.births: dict[int, float] = {}

    def take(self, phase: str) -> list[Sample]:
        """One of each living process."""
        now = time.monotonic()
        errors = len(sort_log(self.server.log()).unexpected)
        open_now = len(connections(self.server.port))
        taken = []
        for pid, role in [(self.server.pid, "supervisor"), *self.workers()]:
            found = sizes(pid)
            if found is None:
                continue
            own = counts(self.folder, pid)
            age = now - self.births.setdefault(pid, now)
            taken.append(
                Sample(
                    round(now - self.began, 1), phase, pid, role, round(age, 1), found.rss,
                    found.descriptors, found.threads, own.in_flight, own.streams, open_now, errors,
                )
            )
        self.samples += taken
        return taken

    def workers(self) -> list[tuple[int, str]]:
        return [(pid, "worker") for pid in self.server.worker_pids()]


def slope(samples: list[Sample]) -> float | None:
    """KiB an hour, by least squares; None for fewer than three samples."""
    if len(samples) < 3:
        return None
    mean_x = sum(sample.seconds for sample in samples) / len(samples)
    mean_y = sum(sample.rss for sample in samples) / len(samples)
    spread = sum((sample.seconds - mean_x) ** 2 for sample in samples)
    if not spread:
        return None
    both = sum((sample.seconds - mean_x) * (sample.rss - mean_y) for sample in samples)
    return both / spread * 3600
