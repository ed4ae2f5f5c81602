"""What a worker's pool counted: the table that HOOPSNAKE_POOL_DEBUG=1 prints when it ends."""

import dataclasses
import re

LINE = re.compile(r"\b(lane|reactor|thread \d+): ((?:\w+=\d+ ?)+)")
TIMES = re.compile(
    r"(ring-wait|GIL-wait|service)\s+n=(\d+)\s+p50=([\d.]+)\s+p99=([\d.]+)"
    r"\s+p99\.9=([\d.]+)\s+max=([\d.]+) us"
)
# A thread that served less of the jobs than this was hardly needed.
BUSY_SHARE = 0.01


class SeveralTables(Exception):
    """The log holds more than one worker's table: their sum or mixture is no worker's count."""


@dataclasses.dataclass(frozen=True)
class Counters:
    """One worker's."""

    lane: dict
    reactor: dict
    # One for each thread; under "times" its waits and service, in microseconds.
    threads: list

    @property
    def jobs(self):
        return self._sum("jobs")

    @property
    def kept(self):
        """Jobs, and nothing else, taken without letting go of the interpreter's lock."""
        return self._sum("kept")

    @property
    def in_slice_drops(self):
        """Times that the lock was let go within a slice although a job was queued, with the keep
        rule or without."""
        return self._sum("drops_in_slice")

    @property
    def yields(self):
        """Times that a thread stood back at its slice's end for one that waited."""
        return self._sum("yields")

    @property
    def wakes_per_job(self):
        """Parked threads that were woken."""
        wakes = self.lane["idle_wakes"] + self.lane["aged_wakes"]
        return wakes / self.jobs if self.jobs else None

    @property
    def busy_threads(self):
        return sum(thread["jobs"] > BUSY_SHARE * self.jobs for thread in self.threads)

    def worst(self, name, quantile):
        """The largest of the threads' times, such as the p99 of GIL-wait; `None` if not timed."""
        found = [thread["times"][name][quantile] for thread in self.threads if thread["times"]]
        return max(found, default=None)

    def _sum(self, name):
        return sum(thread[name] for thread in self.threads)


def read(log):
    """Of a server's output; `None` if it printed no table, as peers and older versions do not.

    A table that follows another is refused: a worker was replaced, or there were several.
    """
    found = {}
    last = None
    for line in log.splitlines():
        if head := LINE.search(line):
            if head[1] in found:
                raise SeveralTables(f"the log has the counters of more than one worker: {head[0]}")
            last = found[head[1]] = {
                name: int(number)
                for name, _, number in (pair.partition("=") for pair in head[2].split())
            }
        elif last is not None and (times := TIMES.search(line)):
            names = ("n", "p50", "p99", "p999", "max")
            numbers = map(float, times.groups()[1:])
            last.setdefault("times", {})[times[1]] = dict(zip(names, numbers, strict=True))
    if not {"lane", "reactor"} <= found.keys():
        return None
    lane, reactor = found.pop("lane"), found.pop("reactor")
    threads = [{"times": {}} | thread for thread in found.values()]
    return Counters(lane, reactor, threads)
