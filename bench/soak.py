#!/usr/bin/env python3
"""Sends millions of checked requests and watches the server's memory.

    python3 bench/soak.py                      ten million at 16 connections, then ten at 256
    python3 bench/soak.py --phases 16:20000    a smoke run

Passes when every answer was right, no process came or went, and in each phase no process grew by
1 MiB or more over the last half (five million by default). Exit code 0 if it passes, else 1.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import arms
import client
import environment
import machine
import process

GROWTH_BYTES_MAX = 2**20
SAMPLES_PER_PHASE = 40
# A server slower than this is not what is soaked here; it bounds the time of a phase.
REQUESTS_PER_SECOND_MIN = 1_000
PHASE_SECONDS_MIN = 120


def main():
    options = parse_options()
    bin_directory, hoopsnake = environment.prepare(
        options.python, options.hoopsnake, build=not options.no_build
    )
    arm = arms.ARMS[options.arm]
    executable = arms.find_executable(arm, bin_directory, hoopsnake)
    if executable is None:
        sys.exit(f"--arm {arm.name}: the command {arm.command} is not installed in the environment")
    workload = arms.WORKLOADS[options.workload]
    load_client = client.Checking(options.client_path)
    port = process.free_port()
    command = arm.command_line(executable, workload.app, port)
    phases, faults = [], []
    with process.Server(command, port, arms.environment(bin_directory)) as server:
        try:
            server.wait_ready(arms.BODY)
            for connections, requests in options.phases:
                phases.append(soak(server, load_client, workload, connections, requests))
                faults += phases[-1]["faults"]
                server.check_alive()
        except (process.ServerError, client.ClientError) as error:
            faults.append(str(error))
    result = {
        "date": machine.today(),
        "machine": machine.facts(),
        "arm": arm.shown(workload.app),
        "versions": machine.versions(bin_directory / "python"),
        "phases": phases,
        "faults": faults,
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    for fault in faults:
        print(f"fault: {fault}")
    print("FAILED" if faults else "passed")
    return 1 if faults else 0


def soak(server, load_client, workload, connections, requests):
    """One phase: the client reports its progress, and each report takes a sample."""
    every = max(1, requests // SAMPLES_PER_PHASE)
    samples = []
    with tempfile.TemporaryDirectory() as directory:
        result_file = Path(directory, "result.json")
        limit = ["--requests", str(requests), "--progress-every", str(every)]
        command = load_client.command(server.port, connections, limit, workload.headers)
        command += ["--json", str(result_file)]
        print(f"phase: {requests} requests at {connections} connections", flush=True)
        for done in progress(command, requests):
            samples.append({"requests": done, "rss_bytes": server.rss_bytes()})
            total = sum(samples[-1]["rss_bytes"].values()) / 2**20
            print(f"  {done:>12,} requests, RSS {total:.2f} MiB", flush=True)
        if not result_file.is_file():
            raise client.ClientError(f"no result; the server's log:\n{server.log()}")
        result = json.loads(result_file.read_text())
    growth = growth_by_pid(samples, requests)
    return {
        "connections": connections,
        "result": result,
        "samples": samples,
        "growth_bytes": growth,
        "faults": faults_of(connections, requests, result, samples, growth),
    }


@contextlib.contextmanager
def bounded_in_time(child, seconds):
    """Ends the child if it is still there after this time."""
    timer = threading.Timer(seconds, child.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if child.poll() is None:
            child.kill()
        child.wait()


def progress(command, requests):
    """Runs the client; yields the number of requests at each of its progress lines."""
    seconds = max(PHASE_SECONDS_MIN, requests / REQUESTS_PER_SECOND_MIN)
    started = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with bounded_in_time(child, seconds):
        for line in child.stdout:
            words = line.split()
            if words[:1] == ["progress"]:
                yield int(words[1])
            else:
                print(f"  {line.rstrip()}")
        code = child.wait()
    if code not in (0, 1):
        took = time.monotonic() - started
        raise client.ClientError(f"the client ended with code {code} after {took:.0f} s")


def growth_by_pid(samples, requests):
    """For each process: the most it had in the last half over what it had at the half."""
    half = [sample["rss_bytes"] for sample in samples if sample["requests"] * 2 >= requests]
    pids = {pid for rss in half for pid in rss}
    sizes = {pid: [rss[pid] for rss in half if pid in rss] for pid in pids}
    return {pid: max(values) - values[0] for pid, values in sorted(sizes.items())}


def faults_of(connections, requests, result, samples, growth):
    where = f"at {connections} connections"
    faults = []
    if result["requests"] != requests or result["errors"] or result["unsent"]:
        counts = {"right": result["requests"], "unsent": result["unsent"], **result["errors"]}
        faults.append(f"{where}: {requests} requests gave {counts}, first {result['first_errors']}")
    if len(samples) < 2:
        faults.append(f"{where}: {len(samples)} memory samples are too few: send more requests")
    if len({tuple(sorted(sample["rss_bytes"])) for sample in samples}) > 1:
        faults.append(f"{where}: the server's processes changed: a worker died or was added")
    for pid, grown in growth.items():
        print(f"  process {pid}: grew by {grown / 1024:.0f} KiB over the last half", flush=True)
        if grown >= GROWTH_BYTES_MAX:
            limit = GROWTH_BYTES_MAX // 1024
            faults.append(f"{where}: process {pid} grew by {grown // 1024} KiB, limit {limit} KiB")
    return faults


def parse_phase(text):
    connections, _, requests = text.partition(":")
    if not (connections.isdecimal() and requests.replace("_", "").isdecimal()):
        raise argparse.ArgumentTypeError(f"{text} is not CONNECTIONS:REQUESTS")
    return int(connections), int(requests)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--arm", choices=arms.ARMS, default="hoopsnake-uring")
    add("--workload", choices=arms.WORKLOADS, default="bare")
    add(
        "--phases",
        nargs="+",
        type=parse_phase,
        metavar="CONNECTIONS:REQUESTS",
        default=[(16, 10_000_000), (256, 10_000_000)],
    )
    add("--client-path", help="a built hoopsnake-bench")
    add("--hoopsnake", metavar="PATH", help="a wheel or a command instead of building this tree")
    add("--no-build", action="store_true", help="use the hoopsnake that is installed")
    add("--python", help="the interpreter of the environment; default 3.13, else the newest")
    add("--json", type=Path, metavar="FILE", help="write the samples and the verdict")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
