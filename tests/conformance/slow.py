"""slowhttptest's three modes: hundreds of slow clients, all ended at the deadlines, others served.

A server without deadlines shows them all connected to the end and answers nobody else. The judge is
the server's own table of descriptors: a slow reader looks at its socket too seldom to tell.
"""

from __future__ import annotations

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from .wire import Server, Wire

OTHERS_WAIT_SECONDS = 1.0


@dataclass(frozen=True)
class Scale:
    """How many connections, how long the deadlines are, and how long the tool goes on (seconds)."""

    connections: int
    timeout: int
    test: int

    @property
    def ended(self) -> int:
        """Until all are ended: two deadlines (a response, then idle) and some for a busy machine."""
        return 2 * self.timeout + 4


FULL = Scale(connections=200, timeout=4, test=20)
QUICK = Scale(connections=100, timeout=2, test=12)
MODES = {
    # Heads that go on for ever, a field every 2 s.
    "slow headers": ("-H", "-i", "2", "-t", "GET", "-x", "24"),
    # Bodies: 8 KiB are promised, and little comes only every 10 s.
    "slow body": ("-B", "-i", "10", "-s", "8192", "-t", "POST", "-x", "10"),
    # Readers: a window of some bytes, 5 bytes every 10 s.
    "slow read": ("-X", "-w", "10", "-y", "20", "-n", "10", "-z", "5", "-t", "GET"),
}
FLAGS = ("--header-timeout", "--body-timeout", "--send-timeout", "--keep-alive")


def run(mode: str, io: str | None, scale: Scale) -> str:
    """Runs a mode; returns what is wrong, or nothing."""
    flags = [part for flag in FLAGS for part in (flag, str(scale.timeout))]
    with Server("behaviour_echo:app", *flags, io=io) as server:
        target = "/sized?bytes=1000000" if mode == "slow read" else "/echo"
        command = [
            "slowhttptest",
            *MODES[mode],
            "-c",
            str(scale.connections),
            "-r",
            "200",
            "-p",
            "3",
            "-l",
            str(scale.test),
            "-u",
            f"http://127.0.0.1:{server.port}{target}",
        ]
        idle = files_at_rest(server)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as slow:
            try:
                longest, highest, last = watch(server, slow, idle, scale)
            except TimeoutError:
                return "another client was not served"
            finally:
                slow.kill()
        if highest < scale.connections * 0.9:
            return f"only {highest} connections were open at once"
        if longest > OTHERS_WAIT_SECONDS:
            return f"another client waited {longest:.2f} s"
        if last > scale.ended:
            return f"slow connections were open until {last:.1f} s"
        return ""


def open_files(server: Server) -> int:
    """Descriptors of the worker."""
    return len(os.listdir(f"/proc/{server.worker_pids()[0]}/fd"))


def files_at_rest(server: Server) -> int:
    """What is open when nobody is connected. A worker opens some files right after its *ready*."""
    with Wire(server) as wire:
        assert wire.get("/").body == b"hello"
    before, count = -1, open_files(server)
    while count != before:
        time.sleep(0.5)
        before, count = count, open_files(server)
    return count


def watch(
    server: Server, slow: subprocess.Popen, idle: int, scale: Scale
) -> tuple[float, int, float]:
    """Asks as another client for the tool's time. Returns the longest wait for an answer, the most
    connections that were open, and for how long some of them were."""
    longest, highest, last = 0.0, 0, 0.0
    began = time.monotonic()
    while time.monotonic() - began < scale.test:
        started = time.monotonic()
        with Wire(server) as wire:
            assert wire.get("/").body == b"hello"
        longest = max(longest, time.monotonic() - started)
        count = open_files(server) - idle
        highest = max(highest, count)
        # One or two are of this client.
        if count > 2:
            last = time.monotonic() - began
        if slow.poll() is not None and count <= 2:
            break
        time.sleep(0.05)
    return longest, highest, last


def run_all(io: str | None, quick: bool = False) -> int:
    """Prints a line for each mode; returns how many failed. Quick: all at once, on short deadlines,
    each on a server of its own."""
    failed = 0
    scale = QUICK if quick else FULL
    with ThreadPoolExecutor(len(MODES) if quick else 1) as pool:
        outcomes = pool.map(lambda mode: run(mode, io, scale), MODES)
        for mode, wrong in zip(MODES, outcomes, strict=True):
            failed += bool(wrong)
            print(f"{'FAIL' if wrong else 'ok  '} {mode} {wrong}", flush=True)
    return failed
