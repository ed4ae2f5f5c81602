"""What happened, and whether the run itself caused it.

| a loss is excused as | when |
|---|---|
| `killed` | it was open in the process that got SIGKILL, at that moment; once |
| `drained` | a restart replaces its process and told it so, or it was idle for `--drain-idle` |
| `rested` | it had been idle for `--keep-alive` |

A wrong answer, a timeout and a refused connection are never excused.
"""

from __future__ import annotations

import collections
import time
from dataclasses import dataclass, field

LOSSES = ("silent", "reset", "eof", "idle eof", "idle reset")
# A worker drains when its successor is ready; the clocks of both sides are one.
EARLY_SECONDS = 0.3
# What a kill needs to reach the client's socket.
LATE_SECONDS = 1.0
# For how long a delay of the client's explains what it sees.
LAGS_SECONDS = 30.0
SHOWN_MAX = 200


@dataclass
class Kill:
    """A SIGKILL, and the client's ends of the connections that its process had."""

    moment: float
    pid: int
    peers: set[tuple[str, int]]
    in_flight: int
    caused: int = 0


@dataclass
class Restart:
    """A HUP, and the processes that it replaces."""

    moment: float
    pids: set[int]


@dataclass
class Failure:
    """One thing that went wrong. **Units**: `time.monotonic` seconds; `idle`: seconds."""

    moment: float
    kind: str
    request: str
    detail: str = ""
    peer: tuple[str, int] = ("", 0)
    pid: int | None = None
    opened: float = 0.0
    idle: float = 0.0
    used: bool = False
    """Whether the connection had given an answer before."""


@dataclass
class Ledger:
    """Everything that was counted."""

    keep_alive: float = 75.0
    drain_idle: float = 5.0
    began: float = field(default_factory=time.monotonic)
    requests: collections.Counter[str] = field(default_factory=collections.Counter)
    bytes_checked: int = 0
    connections: int = 0
    kills: list[Kill] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    excused: collections.Counter[str] = field(default_factory=collections.Counter)
    unexpected: collections.Counter[str] = field(default_factory=collections.Counter)
    errors: list[dict[str, object]] = field(default_factory=list)
    lags: collections.deque[tuple[float, float]] = field(default_factory=collections.deque)
    longest_lag: float = 0.0

    def late(self, seconds: float) -> None:
        """The client ran so much later than it wanted to."""
        now = time.monotonic()
        self.lags.append((now, seconds))
        self.longest_lag = max(self.longest_lag, seconds)
        while self.lags[0][0] < now - LAGS_SECONDS:
            self.lags.popleft()

    def passed(self, request: str, answers: int = 1) -> None:
        self.requests[request] += answers

    def failed(self, failure: Failure) -> None:
        """Judges and books it."""
        cause = self.cause(failure)
        if cause:
            self.excused[f"{cause}: {failure.kind}"] += 1
            return
        self.wrong(
            failure.kind,
            f"{failure.request}: {failure.detail}",
            failure.moment,
            pid=failure.pid,
            peer=":".join(map(str, failure.peer)),
            age=round(failure.moment - failure.opened, 3) if failure.opened else None,
            idle=round(failure.idle, 3),
            reused=failure.used,
        )

    def wrong(self, kind: str, detail: str, moment: float | None = None, **more: object) -> None:
        """An error that nothing excuses."""
        self.unexpected[kind] += 1
        if len(self.errors) < SHOWN_MAX:
            seconds = round((moment or time.monotonic()) - self.began, 3)
            self.errors.append({"seconds": seconds, "kind": kind, "detail": detail, **more})

    def cause(self, failure: Failure) -> str | None:
        """What of the run's own deeds explains it, or None."""
        if failure.kind == "closes":
            return "drained" if self._restart_of(failure) else None
        if failure.kind not in LOSSES:
            return None
        for kill in self.kills:
            if _explains(kill, failure):
                kill.peers.discard(failure.peer)
                kill.caused += 1
                return "killed"
        if failure.kind == "idle eof" or (failure.kind == "silent" and failure.used):
            return self._rested(failure)
        return None

    def _rested(self, failure: Failure) -> str | None:
        if failure.idle >= self.keep_alive - EARLY_SECONDS:
            return "rested"
        restart = self._restart_of(failure)
        # The server counts from when it sent, the client from when it came to read.
        lag = max((seconds for _, seconds in self.lags), default=0.0)
        promised = self.drain_idle - EARLY_SECONDS - lag
        if restart is None or failure.idle < promised:
            return None
        return "drained" if failure.moment - restart.moment >= promised else None

    def _restart_of(self, failure: Failure) -> Restart | None:
        """The one that replaced its process."""
        return next(
            (
                restart
                for restart in self.restarts
                if failure.pid in restart.pids and restart.moment <= failure.moment
            ),
            None,
        )


def _explains(kill: Kill, failure: Failure) -> bool:
    return (
        failure.peer in kill.peers
        and failure.opened <= kill.moment <= failure.moment + LATE_SECONDS
        and failure.pid in (None, kill.pid)
    )
