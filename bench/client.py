"""The two load clients: wrk for comparisons, ours where every answer must be checked."""

import dataclasses
import json
import os
import re
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

from arms import BENCH, BODY

ROOT = BENCH.parent
# What a client may take over its own run time before it counts as hung.
GRACE_SECONDS = 30
# How long a starved request may wait, the default of `probe --timeout`.
PROBE_TIMEOUT_SECONDS = 60


class ClientError(Exception):
    """The client could not run."""


@dataclasses.dataclass(frozen=True)
class Load:
    """What one run found."""

    requests: int
    errors: dict
    seconds: float
    requests_per_second: float
    latency_us: dict
    client_cpu_seconds: float


class Wrk:
    """wrk, one thread; it counts statuses and socket errors, it does not compare bodies."""

    name = "wrk"

    def __init__(self):
        self.path = shutil.which("wrk") or install_wrk()

    def version(self):
        text = subprocess.run([self.path, "-v"], capture_output=True, text=True).stdout
        found = re.search(r"wrk (\S+)", text)
        return found[1] if found else "unknown"

    def run(
        self,
        port,
        connections,
        seconds,
        headers=(),
        cpus=None,
        rate=None,
        expected=BODY,
        path="/",
    ):
        del expected  # wrk compares no bodies
        if rate is not None:
            raise ClientError("wrk has no fixed rate; use --client hoopsnake-bench")
        command = [self.path, "-t1", f"-c{connections}", f"-d{seconds}s", "--latency"]
        for name, value in headers:
            command += ["-H", f"{name}: {value}"]
        command.append(f"http://127.0.0.1:{port}{path}")
        text, cpu = run_client(command, seconds, cpus)
        return parse_wrk(text, cpu)


class Checking:
    """hoopsnake-bench: compares every body and keeps a fixed rate when asked."""

    name = "hoopsnake-bench"

    def __init__(self, path=None):
        self.path = Path(path) if path else find_checking_client()

    def version(self):
        text = subprocess.run([self.path, "--version"], capture_output=True, text=True).stdout
        return text.split()[-1] if text else "unknown"

    def command(self, port, connections, limit, headers=(), rate=None, expected=BODY, path="/"):
        command = [str(self.path), "load", f"http://127.0.0.1:{port}{path}", *limit]
        command += ["--connections", str(connections), "--expect-status", "200"]
        if expected is not None:
            command += ["--expect-body", expected.decode()]
        for name, value in headers:
            command += ["--header", f"{name}: {value}"]
        return command + (["--rate", str(rate)] if rate is not None else [])

    def run(
        self,
        port,
        connections,
        seconds,
        headers=(),
        cpus=None,
        rate=None,
        expected=BODY,
        path="/",
    ):
        with tempfile.TemporaryDirectory() as directory:
            result = Path(directory, "result.json")
            limit = ["--seconds", str(seconds)]
            command = self.command(port, connections, limit, headers, rate, expected, path)
            _, cpu = run_client([*command, "--json", str(result)], seconds, cpus, codes=(0, 1))
            return parse_checking(json.loads(result.read_text()), cpu)

    def probe(self, port, path, connections, seconds, warm_up):
        """Judges the order of answers; returns the client's own result."""
        with tempfile.TemporaryDirectory() as directory:
            result = Path(directory, "result.json")
            command = [str(self.path), "probe", f"http://127.0.0.1:{port}{path}"]
            command += ["--connections", str(connections), "--seconds", str(seconds)]
            command += ["--warm-up", str(warm_up), "--expect-body", BODY.decode()]
            command += ["--expect", "any", "--json", str(result)]
            run_client(command, seconds + warm_up + PROBE_TIMEOUT_SECONDS, None, codes=(0, 1))
            return json.loads(result.read_text())


def parse_checking(result, cpu):
    errors = dict(result["errors"])
    if result["unsent"]:
        errors["unsent"] = result["unsent"]
    return Load(
        result["requests"],
        errors,
        result["seconds"],
        result["requests_per_second"],
        {name: result["latency_us"][name] for name in ("p50", "p99", "p999", "max")},
        cpu,
    )


def parse_wrk(text, cpu):
    total = re.search(r"(\d+) requests in ([\d.]+)(us|ms|s|m)", text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    if not total or not rate:
        raise ClientError(f"wrk printed no result:\n{text}")
    errors = {}
    sockets = re.search(
        r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text
    )
    if sockets:
        kinds = ("connect", "read", "write", "timeout")
        errors = {kind: int(n) for kind, n in zip(kinds, sockets.groups()) if int(n)}
    wrong = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    if wrong:
        errors["status"] = int(wrong[1])
    latency = {}
    for key, pattern in (("p50", r"50%"), ("p99", r"99%")):
        found = re.search(rf"{pattern}\s+([\d.]+)(us|ms|s|m)", text)
        latency[key] = microseconds(*found.groups()) if found else None
    found = re.search(r"Latency\s+\S+\s+\S+\s+([\d.]+)(us|ms|s|m)", text)
    latency["max"] = microseconds(*found.groups()) if found else None
    seconds = microseconds(total[2], total[3]) / 1e6
    return Load(int(total[1]), errors, seconds, float(rate[1]), latency, cpu)


def microseconds(number, unit):
    return float(number) * {"us": 1, "ms": 1e3, "s": 1e6, "m": 6e7}[unit]


def run_client(command, seconds, cpus, codes=(0,)):
    """Runs it, bounded in time; returns its output and its CPU seconds."""
    prefix = ["taskset", "-c", cpus] if cpus else []
    before = children_cpu_seconds()
    try:
        done = subprocess.run(
            [*prefix, *command], capture_output=True, text=True, timeout=seconds + GRACE_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise ClientError(f"{Path(command[0]).name} hung for {error.timeout:.0f} s") from error
    if done.returncode not in codes:
        name, code = Path(command[0]).name, done.returncode
        raise ClientError(f"{name} ended with code {code}: {done.stderr or done.stdout}")
    return done.stdout, children_cpu_seconds() - before


def children_cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def find_checking_client():
    """The newest built one, else a release build now."""
    built = [ROOT / "target" / profile / "hoopsnake-bench" for profile in ("release", "ci")]
    found = [path for path in built if path.is_file()]
    if found:
        return max(found, key=lambda path: path.stat().st_mtime)
    subprocess.run(["cargo", "build", "--release", "-p", "hoopsnake-bench"], cwd=ROOT, check=True)
    return built[0]


def install_wrk():
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ClientError(
            "wrk is not installed: install it with your package manager (Debian: wrk)"
        )
    print("wrk is missing: installing it with apt-get", flush=True)
    for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", "wrk"]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=600)
    return shutil.which("wrk") or "wrk"
