"""Starts the installed `hoopsnake` command and talks to it. Links no code of the server."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO

TESTS = Path(__file__).resolve().parent
APPS = TESTS / "apps"
# Beside the interpreter that runs the tests, so that the wheel under test is the one that is run.
COMMAND = Path(sys.executable).with_name("hoopsnake")

START_SECONDS = 30.0
STOP_SECONDS = 40.0

# The banner comes last at start: the port is bound and every worker is ready.
BANNER = re.compile(r" serves (?P<app>\S+) at (?P<addresses>[^:]+:.*?) workers=(?P<workers>\d+)")
PORT = re.compile(r"https?://(?:\[[^\]]*\]|[^/:\s]+):(?P<port>\d+)")
READY = re.compile(r" worker \d+ is ready .*\bpid=(?P<pid>\d+)")


class Reply:
    """A response as `http.client` read it."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.body = response.read()
        self.status = response.status
        self.reason = response.reason
        self.version = response.version
        self.headers = response.headers

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> object:
        return json.loads(self.body)


class Server:
    """One running `hoopsnake`. Use it as a context manager, or let the `serve` fixture end it."""

    def __init__(
        self,
        app: str,
        *args: str,
        workers: int | None = 1,
        env: dict[str, str] | None = None,
        io: str | None = None,
        bind: str | None = "127.0.0.1:0",
        app_dir: Path | str = APPS,
        cwd: Path | str | None = None,
        stdout: IO[bytes] | int | None = None,
        stderr: IO[bytes] | int | None = None,
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        pass_fds: tuple[int, ...] = (),
        preexec: Callable[[], None] | None = None,
        wait: bool = True,
        prefix: tuple[str, ...] = (),
    ) -> None:
        self._log = tempfile.TemporaryFile(prefix="hoopsnake-log-")
        command = [str(COMMAND), app, "--app-dir", str(app_dir)]
        if workers is not None:
            command += ["--workers", str(workers)]
        if bind is not None:
            command += ["--bind", bind]
        if io is not None:
            command += ["--io", io]
        self.command = [*prefix, *command, *map(str, args)]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HOOPSNAKE_")}
        self.process = subprocess.Popen(
            self.command,
            stdin=stdin,
            stdout=self._log if stdout is None else stdout,
            stderr=self._log if stderr is None else stderr,
            pass_fds=pass_fds,
            env={**clean, "PYTHONUNBUFFERED": "1", **(env or {})},
            cwd=cwd or TESTS,
            preexec_fn=preexec,
            start_new_session=True,
        )
        self.pid = self.process.pid
        self.port = 0
        if wait:
            try:
                self.wait_until_ready()
            except BaseException:
                self.close()
                raise

    # Starting and ending

    def wait_until_ready(self, timeout: float = START_SECONDS) -> None:
        """Returns when the banner is out. Fails with the log if the server ends instead."""
        found = self.wait_for_log(BANNER, timeout)
        port = PORT.search(found["addresses"])
        self.port = int(port["port"]) if port else 0

    def stop(self, sig: int = signal.SIGTERM, timeout: float = STOP_SECONDS) -> int:
        """Sends a signal and returns the exit code; negative: the number of the signal it died of."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        return self.wait(timeout)

    def wait(self, timeout: float = STOP_SECONDS) -> int:
        """The exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s\n{self.log()}") from None

    def close(self) -> None:
        """Ends it whatever it does, workers too: they are the only members of its session."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                pass
        for pid in self.session_pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait(10)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # What it says

    def log(self) -> str:
        """Everything it wrote so far, stdout and stderr in one."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="backslashreplace")

    def wait_for_log(self, pattern: str | re.Pattern[str], timeout: float = 10.0) -> re.Match[str]:
        """The first match in the log, waiting for it."""
        pattern = re.compile(pattern)
        deadline = time.monotonic() + timeout
        while True:
            ended = self.process.poll() is not None
            found = pattern.search(self.log())
            if found:
                return found
            if ended:
                raise AssertionError(f"it ended with {self.process.returncode}:\n{self.log()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"no {pattern.pattern!r} in {timeout} s:\n{self.log()}")
            time.sleep(0.01)

    def ever_ready_pids(self) -> list[int]:
        """Process ids of all workers that were ever ready, in that order."""
        return [int(found["pid"]) for found in READY.finditer(self.log())]

    def worker_pids(self) -> list[int]:
        """Process ids of the workers that were ready and live."""
        return [pid for pid in self.ever_ready_pids() if _state_of(pid) not in "ZX"]

    def session_pids(self) -> list[int]:
        """Every process that it left or still has, ready or not; a zombie is none."""
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if _session_of(pid) == self.pid and process_is_alive(pid)]

    # Talking to it

    def connect(self, timeout: float = 10.0) -> socket.socket:
        """A TCP connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def raw(self, data: bytes, shutdown: bool = False, timeout: float = 10.0) -> bytes:
        """Sends bytes, half-closes if asked, and returns all bytes until the server closes. A reset
        after some bytes ends them; a timeout raises `TimeoutError`."""
        with self.connect(timeout) as connection:
            connection.sendall(data)
            if shutdown:
                connection.shutdown(socket.SHUT_WR)
            return read_to_end(connection, timeout)

    def get(self, path: str = "/", **headers: str) -> Reply:
        """One GET on a connection of its own; `_` in a header's name stands for `-`."""
        return self.request("GET", path, headers=headers)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = 10.0,
    ) -> Reply:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        fields = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        try:
            connection.request(method, path, body=body, headers=fields)
            return Reply(connection.getresponse())
        finally:
            connection.close()


def read_to_end(connection: socket.socket, timeout: float = 10.0) -> bytes:
    """All bytes until the peer closes or resets; `TimeoutError` after `timeout` seconds in all."""
    deadline = time.monotonic() + timeout
    received = bytearray()
    while True:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            piece = connection.recv(65536)
        except TimeoutError:
            raise TimeoutError(f"not closed in {timeout} s after {bytes(received)!r}") from None
        except ConnectionResetError:
            piece = b""
        if not piece:
            return bytes(received)
        received += piece


def wait_until(condition: Callable[[], object], timeout: float = 10.0, what: str = "") -> None:
    """Returns when the condition holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what or condition}"
        time.sleep(0.01)


def _stat_of(pid: int) -> list[str]:
    """Of a process. A number that a thread of another one has by now is nobody's, though procfs
    answers for threads too."""
    try:
        if f"\nTgid:\t{pid}\n" not in Path(f"/proc/{pid}/status").read_text():
            return []
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def _state_of(pid: int) -> str:
    return (_stat_of(pid) or ["X"])[0]


def _session_of(pid: int) -> int:
    fields = _stat_of(pid)
    return int(fields[3]) if fields else -1


def process_is_alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    return _state_of(pid) not in "ZX"
