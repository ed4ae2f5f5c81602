"""slowhttptest's three modes: two hundred slow clients, all ended at the deadlines, others served.

A server without deadlines shows them all connected to the end and answers nobody else. The judge is
the server's own table of descriptors: a slow reader looks at its socket too seldom to tell.
"""

from __future__ import annotations

import os
import subprocess
import time

from .wire import Server, Wire

CONNECTIONS = 200
TIMEOUT_SECONDS = 4
TEST_SECONDS = 20
OTHERS_WAIT_SECONDS = 1.0
# Until all are ended: two deadlines (a response, then idle) and some for a busy machine.
ENDED_SECONDS = 2 * TIMEOUT_SECONDS + 4
MODES = {
    # Heads that go on for ever, a field every 2 s.
    "slow headers": ("-H", "-i", "2", "-t", "GET", "-x", "24"),
    # Bodies: 8 KiB are promised, and little comes only every 10 s.
    "slow body": ("-B", "-i", "10", "-s", "8192", "-t", "POST", "-x", "10"),
    # Readers: a window of some bytes, 5 bytes every 10 s.
    "slow read": ("-X", "-w", "10", "-y", "20", "-n", "10", "-z", "5", "-t", "GET"),
}
FLAGS = ("--header-timeout", "--body-timeout", "--send-timeout", "--keep-alive")


def run(mode: str, io: str | None) -> str:
    """Runs a mode; returns what is wrong, or nothing."""
    flags = [part for flag in FLAGS for part in (flag, str(TIMEOUT_SECONDS))]
    with Server("behaviour_echo:app", *flags, io=io) as server:
        target = "/sized?bytes=1000000" if mode == "slow read" else "/echo"
        command = [
            "slowhttptest",
            *MODES[mode],
            "-c",
            str(CONNECTIONS),
            "-r",
            "200",
            "-p",
            "3",
            "-l",
            str(TEST_SECONDS),
            "-u",
            f"http://127.0.0.1:{server.port}{target}",
        ]
        idle = open_files(server)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as slow:
            try:
                longest, highest, last = watch(server, slow, idle)
            except TimeoutError:
                return "another client was not served"
            finally:
                slow.kill()
        if highest < CONNECTIONS * 0.9:
            return f"only {highest} connections were open at once"
        if longest > OTHERS_WAIT_SECONDS:
            return f"another client waited {longest:.2f} s"
        if last > ENDED_SECONDS:
            return f"slow connections were open until {last:.1f} s"
        return ""


def open_files(server: Server) -> int:
    """Descriptors of the worker."""
    return len(os.listdir(f"/proc/{server.worker_pids()[0]}/fd"))


def watch(server: Server, slow: subprocess.Popen, idle: int) -> tuple[float, int, float]:
    """Asks as another client for the tool's time. Returns the longest wait for an answer, the most
    connections that were open, and for how long some of them were."""
    longest, highest, last = 0.0, 0, 0.0
    began = time.monotonic()
    while time.monotonic() - began < TEST_SECONDS:
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


def run_all(io: str | None) -> int:
    """Prints a line for each mode; returns how many failed."""
    failed = 0
    for mode in MODES:
        wrong = run(mode, io)
        failed += bool(wrong)
        print(f"{'FAIL' if wrong else 'ok  '} {mode} {wrong}", flush=True)
    return failed
