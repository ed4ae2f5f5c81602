#!/usr/bin/env python3
"""Compares hoopsnake with its peers: requests a second and server CPU a request.

    python3 bench/compare.py            three rounds of every arm, workload and connection count
    python3 bench/compare.py --quick    a smoke run: is everything in its place?

See bench/README.md for what is measured and how to read it.
"""

import argparse
import json
import os
import shlex
import sys
import time
from pathlib import Path

import arms
import client
import environment
import machine
import plot
import process
import result_page

SERVER_CPU, CLIENT_CPU = "0", "1"
WARM_UP_CONNECTIONS = 16
# A server's start, its first answer and its stop; only for the estimate of the total.
START_AND_STOP_SECONDS = 3.0
OPEN_LOOP_CALIBRATION_SECONDS = 3


def main():
    options = parse_options()
    bin_directory, hoopsnake = environment.prepare(
        options.python, options.hoopsnake, build=not options.no_build
    )
    chosen, skipped = choose_arms(options, bin_directory, hoopsnake)
    load_client = make_client(options)
    versions = machine.versions(bin_directory / "python")
    run = new_run(options, chosen, skipped, load_client, versions)
    run["invocation"] = shown_invocation(options)
    bench = Bench(options, chosen, load_client, arms.environment(bin_directory), run)
    try:
        bench.measure()
    except KeyboardInterrupt:
        run["failures"].append("interrupted: the rounds are not complete")
    directory = write_result(run, options)
    print(f"\nwritten: {os.path.relpath(directory)}")
    failed = run["failures"] or any(entry["errors"] for entry in run["runs"])
    return 1 if failed or not run["runs"] else 0


def new_run(options, chosen, skipped, load_client, versions):
    """A result without runs."""
    return {
        "date": machine.today(),
        "machine": machine.facts(),
        "python": versions["python"],
        "compiler": versions["compiler"],
        "packages": versions["packages"],
        "client": {"name": load_client.name, "version": load_client.version()},
        "settings": settings(options),
        "arms": {arm.name: arm.shown("APP") for arm, _ in chosen},
        "workloads": {name: arms.WORKLOADS[name].words for name in options.workloads},
        "apps": {name: arms.WORKLOADS[name].app for name in options.workloads},
        "skipped": skipped,
        "rates": {},
        "runs": [],
        "failures": [],
    }


class Bench:
    """All runs, arms alternated inside each round and each server fresh."""

    def __init__(self, options, chosen, load_client, server_environment, run):
        self.options = options
        self.chosen = chosen
        self.client = load_client
        self.environment = server_environment
        self.run = run
        apart = options.pin == "apart"
        self.server_cpu = SERVER_CPU if apart else None
        self.client_cpu = CLIENT_CPU if apart else None
        self.servers_total = options.rounds * len(options.workloads) * len(chosen)
        self.servers_done = 0
        self.started = time.monotonic()

    def measure(self):
        print(f"{self.servers_total} servers, about {self.minutes(self.estimate())}", flush=True)
        if self.options.open_loop:
            self.calibrate()
        if "demo" in self.options.workloads:
            interpreter = Path(self.environment["VIRTUAL_ENV"]) / "bin" / "python"
            variables = self.environment | dict(arms.WORKLOADS["demo"].variables)
            arms.prepare_demo(interpreter, variables)
        for round_number in range(1, self.options.rounds + 1):
            for workload in (arms.WORKLOADS[name] for name in self.options.workloads):
                for arm, executable in self.chosen:
                    self.one_server(round_number, workload, arm, executable)

    def calibrate(self):
        """The fixed rate of each workload and connection count: a share of the baseline's reach."""
        arm, executable = next(
            each for each in self.chosen if each[0].name == self.options.baseline
        )
        for workload in (arms.WORKLOADS[name] for name in self.options.workloads):
            with self.start(workload, arm, executable) as server:
                for connections in self.options.connections:
                    seconds = OPEN_LOOP_CALIBRATION_SECONDS
                    load = self.load(server, workload, connections, seconds, None)
                    rate = max(1, round(load.requests_per_second * self.options.open_loop))
                    self.run["rates"][f"{workload.name} {connections}"] = rate
                    print(f"rate: {workload.name} at {connections}: {rate} req/s", flush=True)

    def one_server(self, round_number, workload, arm, executable):
        label = f"round {round_number} {workload.name} {arm.name}"
        try:
            with self.start(workload, arm, executable) as server:
                for connections in self.options.connections:
                    entry = self.one_run(server, workload, connections)
                    entry |= {"round": round_number, "workload": workload.name, "arm": arm.name}
                    self.run["runs"].append(entry)
                    self.report(label, entry)
                server.check_alive()
        except (process.ServerError, client.ClientError) as error:
            text = clean(str(error))
            self.run["failures"].append(f"{label}: {text}")
            print(f"{label}: FAILED: {text}", file=sys.stderr, flush=True)
        self.servers_done += 1

    def start(self, workload, arm, executable):
        port = process.free_port()
        command = arm.command_line(executable, workload.app, port, workload.directory)
        variables = self.environment | dict(workload.variables) | dict(arm.variables)
        server = process.Server(command, port, variables, self.server_cpu)
        try:
            server.wait_ready(workload.expected, whole=workload.is_whole)
            if self.options.warm_up:
                self.load(server, workload, WARM_UP_CONNECTIONS, self.options.warm_up, None)
        except BaseException:
            server.stop()
            raise
        return server

    def one_run(self, server, workload, connections):
        rate = self.run["rates"].get(f"{workload.name} {connections}", self.options.rate)
        before = server.cpu()
        load = self.load(server, workload, connections, self.options.seconds, rate)
        cpu = server.cpu().since(before)
        rss = server.rss_bytes()
        requests = max(1, load.requests)
        return {
            "connections": connections,
            "rate": rate,
            "requests": load.requests,
            "errors": load.errors,
            "seconds": load.seconds,
            "requests_per_second": load.requests_per_second,
            "cpu_us_per_request": cpu.total / requests * 1e6,
            "cpu_user_us_per_request": cpu.user / requests * 1e6,
            "cpu_system_us_per_request": cpu.system / requests * 1e6,
            "latency_us": load.latency_us,
            "processes": len(rss),
            "rss_mib": sum(rss.values()) / 2**20,
            "pss_mib": server.pss_bytes() / 2**20,
            "client_busy": load.client_cpu_seconds / load.seconds if load.seconds else None,
        }

    def load(self, server, workload, connections, seconds, rate):
        expected = workload.expected if workload.is_whole else None
        return self.client.run(
            server.port,
            connections,
            seconds,
            workload.headers,
            self.client_cpu,
            rate,
            expected,
            workload.path,
        )

    def report(self, label, entry):
        elapsed = time.monotonic() - self.started
        left = self.minutes(max(0.0, self.estimate() - elapsed))
        errors = f" ERRORS {entry['errors']}" if entry["errors"] else ""
        print(
            f"[{self.servers_done + 1}/{self.servers_total}, {left} left] {label}"
            f" c={entry['connections']}: {entry['requests_per_second']:.0f} req/s,"
            f" {entry['cpu_us_per_request']:.2f} µs CPU{errors}",
            flush=True,
        )

    def estimate(self):
        """Seconds of the whole run, from what the servers so far took once there are some."""
        if self.servers_done:
            return (time.monotonic() - self.started) / self.servers_done * self.servers_total
        loads = self.options.warm_up + self.options.seconds * len(self.options.connections)
        return (loads + START_AND_STOP_SECONDS) * self.servers_total

    @staticmethod
    def minutes(seconds):
        return f"{seconds / 60:.1f} min"


def choose_arms(options, bin_directory, hoopsnake):
    """The arms that can run, and why others cannot; a named arm that is missing is an error."""
    chosen, skipped = [], {}
    for name in options.arms or arms.DEFAULT_ARMS:
        arm = arms.ARMS[name]
        executable = arms.find_executable(arm, bin_directory, hoopsnake)
        if executable is not None:
            chosen.append((arm, executable))
            continue
        reason = f"the command {arm.command} is not installed in the bench environment"
        if options.arms:
            sys.exit(f"--arms {name}: {reason}")
        print(f"skipped: {name}: {reason}", flush=True)
        skipped[name] = reason
    if not chosen:
        sys.exit("no arm can run; see the reasons above")
    names = [arm.name for arm, _ in chosen]
    if options.open_loop and arms.BASELINE not in names:
        sys.exit(f"--open-loop takes its rate from {arms.BASELINE}: add it to --arms")
    return chosen, skipped


def make_client(options):
    if options.client == "wrk":
        return client.Wrk()
    return client.Checking(options.client_path)


def settings(options):
    return {
        "rounds": options.rounds,
        "seconds": options.seconds,
        "warm_up": options.warm_up,
        "connections": options.connections,
        "pin": options.pin,
        "rate": options.rate,
        "open_loop": options.open_loop,
        "baseline": options.baseline,
    }


def shown_invocation(options):
    """The command line without what is only true on this machine."""
    local = {"--python", "--hoopsnake", "--client-path", "--output"}
    words, arguments = [], iter(options.arguments)
    for word in arguments:
        name, has_value, _ = word.partition("=")
        if name in local:
            words.append(f"{name} …")
            if not has_value:
                next(arguments, None)
        else:
            words.append(shlex.quote(word))
    return " ".join(["bench/compare.py", *words])


def clean(text):
    """Without the paths of this machine."""
    return text.replace(str(environment.ROOT), "…").replace(str(Path.home()), "~")


def write_result(run, options):
    directory = options.output or result_directory(options.quick, machine.tag())
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "raw.json").write_text(json.dumps(run, indent=1, ensure_ascii=False) + "\n")
    (directory / "README.md").write_text(result_page.render(run))
    if run["runs"]:
        (directory / "chart.svg").write_text(plot.render(run))
    return directory


def result_directory(quick, tag):
    """A new one; a smoke run is not a result and stays out of the tree."""
    parent = environment.ROOT / ".cache" / "bench-smoke" if quick else arms.BENCH / "results"
    name = f"{machine.today()}-{tag}"
    for number in range(1, 1000):
        directory = parent / (name if number == 1 else f"{name}-{number}")
        if not directory.exists():
            return directory
    sys.exit(f"{parent} holds 999 results of today: remove some")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--arms", nargs="+", choices=arms.ARMS, metavar="ARM", help=f"of {', '.join(arms.ARMS)}")
    add("--workloads", nargs="+", choices=arms.WORKLOADS, default=list(arms.WORKLOADS))
    add("--connections", nargs="+", type=bounded(int, 1, 10_000), default=[16, 256])
    add("--rounds", type=bounded(int, 1, 100), help="default 3; nine or more give an interval")
    add("--seconds", type=bounded(int, 1, 600), help="of each measured run; default 5")
    add("--warm-up", type=bounded(int, 0, 60), default=1, help="seconds for each fresh server")
    add("--pin", choices=("apart", "none"), help="server on CPU 0 and client on CPU 1, or neither")
    add("--client", choices=("wrk", "hoopsnake-bench"), help="ours compares every body")
    add("--client-path", help="a built hoopsnake-bench")
    add("--rate", type=bounded(int, 1, 10_000_000), help="fixed requests a second, all arms")
    add(
        "--open-loop",
        type=bounded(float, 0.01, 0.95),
        metavar="SHARE",
        help=f"fixed rate of this share of what {arms.BASELINE} reaches; 0.3 for RULES.md 35",
    )
    add("--hoopsnake", metavar="PATH", help="a wheel or a command instead of building this tree")
    add("--no-build", action="store_true", help="use the hoopsnake that is installed")
    add("--python", help="the interpreter of the environment; default 3.13, else the newest")
    add("--output", type=Path, metavar="DIR", help="instead of bench/results/<date>-<machine>")
    add("--quick", action="store_true", help="one round of two seconds, kept in .cache")
    options = parser.parse_args()
    options.arguments = sys.argv[1:]
    options.baseline = arms.BASELINE
    rounds, seconds = (1, 2) if options.quick else (3, 5)
    options.rounds = options.rounds or rounds
    options.seconds = options.seconds or seconds
    fixed = options.rate is not None or options.open_loop is not None
    if options.rate is not None and options.open_loop is not None:
        parser.error("--rate and --open-loop exclude each other")
    if fixed and options.client == "wrk":
        parser.error("wrk has no fixed rate: leave --client out")
    options.client = options.client or ("hoopsnake-bench" if fixed else "wrk")
    options.pin = options.pin or ("none" if fixed else "apart")
    if options.pin == "apart" and len(os.sched_getaffinity(0)) < 2:
        parser.error("--pin apart needs two CPUs: use --pin none")
    return options


def bounded(kind, least, most):
    def parse(text):
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not between {least} and {most}")
        return value

    parse.__name__ = kind.__name__
    return parse


if __name__ == "__main__":
    sys.exit(main())
