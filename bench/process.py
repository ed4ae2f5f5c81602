"""Server processes: start, wait until ready, read CPU and memory of the whole tree, stop."""

import contextlib
import dataclasses
import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
READY_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 10.0
KILL_SECONDS_MAX = 2.0
LOG_BYTES_SHOWN = 4000
# More than a server says about itself when it ends.
LOG_BYTES_MAX = 256 * 1024
# How the kernel schedules it; under SCHED_BATCH a thread that wakes up preempts nobody.
POLICIES = {"normal": (), "batch": ("chrt", "--batch", "0")}


class ServerError(Exception):
    """The server did not start, answered wrongly or died; the text says which and shows its log."""


@dataclasses.dataclass(frozen=True)
class Cpu:
    """CPU seconds of a process tree, its dead and awaited children included."""

    user: float
    system: float

    @property
    def total(self):
        return self.user + self.system

    def since(self, earlier):
        return Cpu(self.user - earlier.user, self.system - earlier.system)


class Server:
    """One server in a session of its own, so that all its processes are found and ended by id."""

    def __init__(self, command, port, environment, cpus=None, policy="normal"):
        self.port = port
        self.command = command
        self._log = tempfile.TemporaryFile()
        self._last_log = None
        prefix = [*POLICIES[policy], *(["taskset", "-c", cpus] if cpus else [])]
        self._process = subprocess.Popen(
            [*prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def wait_ready(self, body, whole=True):
        """Waits for the first right answer, which is `body` or holds it; a wrong one is an error."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            self.check_alive()
            try:
                status, answer = fetch(self.port)
            except OSError:
                time.sleep(0.05)
                continue
            except http.client.HTTPException as error:
                raise ServerError(f"not HTTP: {error!r}\n{self.log()}") from error
            right = answer == body if whole else body in answer
            if status != 200 or not right:
                raise ServerError(f"answered {status} {answer[:200]!r}\n{self.log()}")
            return
        raise ServerError(f"no answer within {READY_SECONDS_MAX:.0f} s\n{self.log()}")

    def check_alive(self):
        code = self._process.poll()
        if code is not None:
            raise ServerError(f"ended with code {code}\n{self.log()}")

    def log(self, bytes_max=LOG_BYTES_SHOWN):
        """The last lines of its output, also after its end."""
        if self._last_log is not None:
            return self._last_log[-bytes_max:]
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - bytes_max))
        return self._log.read().decode(errors="replace").strip()

    def pids(self):
        """Its living processes: the session it leads."""
        session = self._process.pid
        return [s.pid for s in all_stats() if s.session == session and s.state not in "ZX"]

    def cpu(self):
        stats = [stat for stat in all_stats() if stat.session == self._process.pid]
        return Cpu(
            sum(stat.user_ticks for stat in stats) / TICKS_PER_SECOND,
            sum(stat.system_ticks for stat in stats) / TICKS_PER_SECOND,
        )

    def rss_bytes(self):
        """Resident bytes of each process, by pid. Shared pages count in each."""
        found = {pid: rss_bytes(pid) for pid in self.pids()}
        return {pid: size for pid, size in found.items() if size is not None}

    def pss_bytes(self):
        """Resident bytes of the tree, shared pages divided among their users."""
        return sum(pss_bytes(pid) or 0 for pid in self.pids())

    def scheduling(self):
        """The policies of all its threads, such as {os.SCHED_OTHER}."""
        found = set()
        for pid in self.pids():
            for task in os.scandir(f"/proc/{pid}/task"):
                with contextlib.suppress(ProcessLookupError):
                    found.add(os.sched_getscheduler(int(task.name)))
        return found

    def pause(self, seconds):
        """Stops all its processes for this long, as a machine does that is busy elsewhere."""
        stopped = self.pids()
        try:
            signal_all(stopped, signal.SIGSTOP)
            time.sleep(seconds)
        finally:
            signal_all(stopped, signal.SIGCONT)

    def stop(self, patience=STOP_SECONDS_MAX):
        """TERM to the leader, after `patience` seconds KILL to what is left of the session.

        Returns the exit code; stopping again changes nothing.
        """
        if self._last_log is not None:
            return self._process.returncode
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        deadline = time.monotonic() + KILL_SECONDS_MAX
        while (left := self.pids()) and time.monotonic() < deadline:
            signal_all(left, signal.SIGKILL)
            time.sleep(0.01)
        code = self._process.wait()
        self._last_log = self.log(LOG_BYTES_MAX)
        self._log.close()
        return code


def signal_all(pids, number):
    """To each that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@dataclasses.dataclass(frozen=True)
class Stat:
    pid: int
    state: str
    session: int
    user_ticks: int
    system_ticks: int


def all_stats():
    """Every readable /proc/PID/stat. Times are of all threads plus awaited children (proc(5))."""
    stats = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            text = Path(entry.path, "stat").read_text()
        except OSError:
            continue
        # The command name may hold spaces and brackets; the fields follow its last bracket.
        fields = text[text.rindex(")") + 2 :].split()
        user, system, child_user, child_system = map(int, fields[11:15])
        pid, session = int(entry.name), int(fields[3])
        stats.append(Stat(pid, fields[0], session, user + child_user, system + child_system))
    return stats


def rss_bytes(pid):
    return proc_kilobytes(pid, "status", "VmRSS:")


def pss_bytes(pid):
    return proc_kilobytes(pid, "smaps_rollup", "Pss:")


def proc_kilobytes(pid, file, field):
    try:
        lines = Path("/proc", str(pid), file).read_text().splitlines()
    except OSError:
        return None
    sizes = [int(line.split()[1]) * 1024 for line in lines if line.startswith(field)]
    return sizes[0] if sizes else None


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def fetch(port, path="/"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
