"""`make conformance`: the suites that take longer or need more than Python.

    cd tests && python -m conformance [--io uring|epoll] [--quick]

Needs slowhttptest, wrk, ab, node and npm. What is missing is named and counts as a failure.

`--quick` is what every run of CI does: Node's clients and slowhttptest's modes on short deadlines.
What is missing there is named and left to `make conformance`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from . import slow
from .clients import CLIENTS
from .wire import Server

HERE = Path(__file__).parent
TOOLS = {
    "slowhttptest": "slowhttptest",
    "wrk": "wrk",
    "ab": "apache2-utils",
    "node": "nodejs",
    "npm": "npm",
    "curl": "curl",
}


def check_clients(io: str | None) -> int:
    """Python's clients, curl and Node's."""
    failed = 0
    with (
        Server("behaviour_echo:app", io=io) as echo,
        Server("behaviour_stream:app", io=io) as stream,
    ):
        for name, use in CLIENTS.items():
            try:
                use(echo.port, stream.port)
                print(f"ok   {name}", flush=True)
            except Exception as error:  # noqa: BLE001
                failed += 1
                print(f"FAIL {name}: {error!r}", flush=True)
    install_undici(check=True)
    return failed + check_node(io, [])


def install_undici(check: bool) -> bool:
    """From npm, beside the script that imports it."""
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(HERE)]
    try:
        return subprocess.run(install, check=check, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        if check:
            raise
        return False


def check_node(io: str | None, flags: list[str]) -> int:
    """Node's clients, by a script of their own."""
    with (
        Server("behaviour_echo:app", io=io) as echo,
        Server("behaviour_stream:app", io=io) as stream,
    ):
        script = str(HERE / "clients.mjs")
        command = ["node", script, str(echo.port), str(stream.port), *flags]
        return int(subprocess.run(command, timeout=120).returncode != 0)


def check_quick(io: str | None) -> int:
    """What fits into every run, with what is installed."""
    failed = 0
    if not shutil.which("node"):
        print("not run: Node's clients (node is not installed); make conformance demands them")
    elif install_undici(check=False):
        failed += check_node(io, [])
    else:
        print("not run: undici (npm could not install it); make conformance demands it")
        failed += check_node(io, ["--own"])
    if shutil.which("slowhttptest"):
        failed += slow.run_all(io, quick=True)
    else:
        print("not run: slowhttptest (not installed); make conformance demands it")
    return failed


def check_load(io: str | None) -> int:
    """wrk and ab as a smoke test: many requests, no error."""
    failed = 0
    with Server("hello", io=io) as server:
        url = f"http://127.0.0.1:{server.port}/"
        for connections in ("16", "256"):
            command = ["wrk", "-t2", "-c", connections, "-d5", url]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            wrong = re.findall(r"Socket errors.*|Non-2xx.*", said)
            failed += bool(wrong)
            print("FAIL" if wrong else "ok  ", "wrk", connections, *wrong, flush=True)
        for extra in (["-k"], []):
            command = ["ab", "-q", "-n", "20000", "-c", "50", *extra, url]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            fine = re.search(r"Failed requests:\s+0\b", said) and "Non-2xx" not in said
            failed += not fine
            print("ok  " if fine else "FAIL", "ab", *extra, flush=True)
    return failed


def main() -> int:
    """The number of failures, as an exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--io", choices=["uring", "epoll"])
    parser.add_argument("--quick", action="store_true", help="what every run of CI does")
    options = parser.parse_args()
    io = options.io
    if options.quick:
        failed = check_quick(io)
        print(f"{failed} failed")
        return min(failed, 1)
    missing = [
        f"{tool} (package {package})" for tool, package in TOOLS.items() if not shutil.which(tool)
    ]
    if missing:
        print("FAIL missing:", ", ".join(missing))
        return 1
    failed = check_clients(io) + check_load(io) + slow.run_all(io)
    print(f"{failed} failed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
