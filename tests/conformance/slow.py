"""slowhttptest's three modes: two hundred slow clients, all ended at the deadlines, others served.

A server without deadlines shows them all connected to the end and answers nobody else.
"""

from __future__ import annotations

import csv
import subprocess
import tempfile
import time
from pathlib import Path

from .wire import Server, Wire

CONNECTIONS = 200
TIMEOUT_SECONDS = 4
TEST_SECONDS = 20
MODES = {
    # Heads that go on for ever, a field every 2 s.
    "slow headers": ("-H", "-i", "2", "-t", "GET", "-x", "24"),
    # Bodies: 8 KiB are promised, and little comes only every 10 s.
    "slow body": ("-B", "-i", "10", "-s", "8192", "-t", "POST", "-x", "10"),
    # Readers: a window of some bytes, 5 bytes every 10 s.
    "slow read": ("-X", "-w", "10", "-y", "20", "-n", "10", "-z", "5", "-k", "3", "-t", "GET"),
}
FLAGS = ("--header-timeout", "--body-timeout", "--send-timeout")


def run(mode: str, io: str | None) -> str:
    """Runs a mode; returns what is wrong, or nothing."""
    flags = [part for flag in FLAGS for part in (flag, str(TIMEOUT_SECONDS))]
    with Server("behaviour_echo:app", *flags, io=io) as server, \
            tempfile.TemporaryDirectory() as folder:
        target = "/sized?bytes=5000000" if mode == "slow read" else "/echo"
        command = [
            "slowhttptest", *MODES[mode], "-c", str(CONNECTIONS), "-r", "200", "-p", "3",
            "-l", str(TEST_SECONDS), "-g", "-o", f"{folder}/out",
            "-u", f"http://127.0.0.1:{server.port}{target}",
        ]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as slow:
            try:
                longest = longest_wait(server, slow)
            except TimeoutError:
                return "another client was not served"
            finally:
                slow.kill()
            said = slow.stdout.read()
        rows = list(csv.DictReader(Path(folder, "out.csv").open()))
        counts = {name.strip(): value.strip() for name, value in rows[-1].items() if name}
        if longest > 1:
            return f"another client waited {longest:.2f} s"
        if int(counts["Connected"]) or int(counts["Closed"]) < CONNECTIONS:
            return f"not all were ended: {counts}\n{said[-1500:]}"
        return ""


def longest_wait(server: Server, slow: subprocess.Popen) -> float:
    """Asks as another client until the tool ends; returns the longest wait for an answer."""
    longest = 0.0
    began = time.monotonic()
    while slow.poll() is None:
        if time.monotonic() - began > TEST_SECONDS + 30:
            raise TimeoutError("slowhttptest does not end")
        started = time.monotonic()
        with Wire(server) as wire:
            assert wire.get("/").body == b"hello"
        longest = max(longest, time.monotonic() - started)
        time.sleep(0.1)
    return longest


def run_all(io: str | None) -> int:
    """Prints a line for each mode; returns how many failed."""
    failed = 0
    for mode in MODES:
        wrong = run(mode, io)
        failed += bool(wrong)
        print(f"{'FAIL' if wrong else 'ok  '} {mode} {wrong}", flush=True)
    return failed
