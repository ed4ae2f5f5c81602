#!/usr/bin/env python3
"""Measures the pool: order, slow neighbours, wakes, and what more threads cost.

    python3 bench/pool.py                      every section, nine rounds: over two hours
    python3 bench/pool.py --only arms mixed    some sections
    python3 bench/pool.py --quick              a smoke run: is everything in its place?

Writes README.md, raw.json and chart.png into bench/results/<date>-<machine class>/. With --output
of an earlier run, sections are added to it; none is measured twice. See bench/README.md.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import arms
import client
import compare
import environment
import loads
import machine
import mixed
import pool_page
import probe
import process

OURS = arms.ARMS["hoopsnake-uring"]
ELASTIC_OFF = (("HOOPSNAKE_POOL_ELASTIC", "0"),)
ZERO_CONFIG_THREADS = 8  # RULES.md 11, for the servers that have no such default
THROUGHPUT_ARMS = (
    OURS.with_threads(1, "threads-1"),
    OURS.with_threads(None, "zero-config"),
    OURS.with_threads(None, "elastic-off", ELASTIC_OFF),
    arms.ARMS["granian"].with_threads(1, "granian-1"),
    arms.ARMS["granian"].with_threads(ZERO_CONFIG_THREADS, "granian-8"),
)
THROUGHPUT_WORKLOADS = ("bare", "spin-35", "spin-300", "spin-650")
THROUGHPUT_CONNECTIONS = [1, 16, 256]
ORDER_MICROSECONDS = (300, 650)
WAKE_CONNECTIONS = (1, 16, 256)
SECTIONS = ("arms", "order", "mixed", "wakes", "throughput")


class Pool:
    """The sections of a result; each returns what raw.json keeps of it."""

    def __init__(self, options, bin_directory, hoopsnake, versions):
        self.options = options
        self.bin_directory = bin_directory
        self.hoopsnake = hoopsnake
        self.versions = versions
        self.prober = probe.Prober(options.for_probe(), bin_directory, hoopsnake)

    def arms(self):
        """The probe as CI runs it."""
        known = loads.Known.of_this_machine()
        print(known.words(), flush=True)
        return probe.shown(probe.run_arms(self.prober, known, list(process.POLICIES)))

    def order(self):
        """Ours with and without the keep rule beside the peers, five threads, arms alternated."""
        return probe.shown(self.order_rows())

    def order_rows(self):
        for round_number in range(1, self.options.rounds + 1):
            for microseconds in ORDER_MICROSECONDS:
                for policy in process.POLICIES:
                    load = dataclasses.replace(
                        loads.DEFAULT, microseconds=microseconds, policy=policy
                    )
                    for trial in (probe.FAIR, probe.KEEP_OFF):
                        yield self.recorded(self.prober.trial(trial, load), round_number)
                    for name in probe.PEERS:
                        yield self.recorded(self.prober.peer(name, load), round_number)

    @staticmethod
    def recorded(row, round_number):
        """Whatever the order: this is a comparison, the arms are the test."""
        return row | {"round": round_number} | dataclasses.asdict(probe.judge(row))

    def mixed(self):
        """Fast requests beside slow ones."""
        rows = []
        for row in mixed.Mixed(self.options, self.bin_directory, self.hoopsnake).rows():
            place = f"round {row['round']} {row['app']} {row['server']}"
            if "failure" in row:
                print(f"{place}: FAILED: {row['failure']}", file=sys.stderr, flush=True)
                row["failure"] = compare.clean(row["failure"])
            else:
                p99 = row["latency_us"]["p99"] / 1000
                print(f"{place} beside {row['beside']}: p99 {p99:.2f} ms", flush=True)
            rows.append(row)
        return rows

    def wakes(self):
        """Counters of a view without work: how many wakes, and on how many threads jobs land."""
        return probe.shown(self.wake_rows())

    def wake_rows(self):
        for round_number in range(1, self.options.rounds + 1):
            for connections in WAKE_CONNECTIONS:
                load = loads.Load(threads=None, microseconds=0, connections=connections)
                for name, variables in (("zero-config", ()), ("elastic-off", ELASTIC_OFF)):
                    row = self.prober.trial(probe.Trial(name, variables), load)
                    yield self.recorded(row, round_number)

    def throughput(self):
        """Requests a second and CPU a request by threads, on one CPU and on all."""
        runs = {}
        for pin in self.options.pins:
            options = self.options.for_compare(pin)
            chosen, skipped = self.executables()
            load_client = compare.make_client(options)
            run = compare.new_run(options, chosen, skipped, load_client, self.versions)
            variables = arms.environment(self.bin_directory)
            compare.Bench(options, chosen, load_client, variables, run).measure()
            runs[pin] = run
        return runs

    def executables(self):
        chosen, skipped = [], {}
        for arm in THROUGHPUT_ARMS:
            executable = arms.find_executable(arm, self.bin_directory, self.hoopsnake)
            if executable is None:
                skipped[arm.name] = f"the command {arm.command} is not installed"
            else:
                chosen.append((arm, executable))
        return chosen, skipped


@dataclasses.dataclass
class Options:
    """The command line, and what the parts of other commands need of it."""

    sections: list
    rounds: int
    seconds: int
    probe_seconds: float
    warm_up: int
    pins: list
    open_loop: float | None
    client_path: str | None

    def for_probe(self):
        return argparse.Namespace(
            io="uring",
            seconds=self.probe_seconds,
            warm_up=self.warm_up,
            client_path=self.client_path,
        )

    def for_compare(self, pin):
        is_open = self.open_loop is not None
        return argparse.Namespace(
            rounds=self.rounds,
            seconds=self.seconds,
            warm_up=self.warm_up,
            workloads=list(THROUGHPUT_WORKLOADS),
            connections=THROUGHPUT_CONNECTIONS,
            pin=pin,
            client="hoopsnake-bench" if is_open else "wrk",
            client_path=self.client_path,
            rate=None,
            open_loop=self.open_loop,
            baseline="threads-1",
        )


def parse_options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    add("--rounds", type=compare.bounded(int, 1, 1000), help="default 9, for intervals")
    add("--seconds", type=compare.bounded(int, 1, 600), help="of each run; default 3")
    add("--pins", nargs="+", choices=("apart", "none"), help="default both")
    add(
        "--open-loop",
        type=compare.bounded(float, 0.01, 0.95),
        metavar="SHARE",
        help="throughput at this share of what one thread reaches, instead of closed loops",
    )
    add("--client-path", help="a built hoopsnake-bench")
    add("--hoopsnake", metavar="PATH", help="a wheel or a command instead of building this tree")
    add("--no-build", action="store_true", help="use the hoopsnake that is installed")
    add("--python", help="the interpreter of the environment; default 3.13, else the newest")
    add("--output", type=Path, metavar="DIR", help="default bench/results/<date>-<machine class>")
    add("--quick", action="store_true", help="one round of a second, kept in .cache")
    typed = parser.parse_args()
    rounds, seconds, probe_seconds = (1, 1, 1) if typed.quick else (9, 3, 8)
    usable = len(os.sched_getaffinity(0)) > 1
    return typed, Options(
        sections=typed.only,
        rounds=typed.rounds or rounds,
        seconds=typed.seconds or seconds,
        probe_seconds=probe_seconds,
        warm_up=1,
        pins=typed.pins or (["apart", "none"] if usable else ["none"]),
        open_loop=typed.open_loop,
        client_path=typed.client_path,
    )


def main():
    typed, options = parse_options()
    bin_directory, hoopsnake = environment.prepare(
        typed.python, typed.hoopsnake, build=not typed.no_build
    )
    versions = machine.versions(bin_directory / "python")
    directory = typed.output or compare.result_directory(typed.quick, machine.class_name())
    raw = earlier(directory, options.sections) or {
        "date": machine.today(),
        "machine": machine.facts(),
        "machine_class": machine.class_name(),
        "python": versions["python"],
        "compiler": versions["compiler"],
        "packages": versions["packages"],
        "settings": {},
        "sections": {},
    }
    directory.mkdir(parents=True, exist_ok=True)
    pool = Pool(options, bin_directory, hoopsnake, versions)
    for name in options.sections:
        print(f"\n== {name}", flush=True)
        try:
            raw["sections"][name] = getattr(pool, name)()
        except (process.ServerError, client.ClientError) as error:
            sys.exit(f"{name}: {error}\nwhat was measured before is in {directory}")
        raw["settings"][name] = dataclasses.asdict(options) | {"revision": machine.revision()}
        write_result(directory, raw, bin_directory)
    print(f"\nwritten: {os.path.relpath(directory)}")
    faults = pool_page.faults(raw)
    for fault in faults:
        print(f"fault: {fault}")
    return 1 if faults else 0


def earlier(directory, sections):
    """The result in this directory, if there is one; what is in it is not measured again."""
    path = directory / "raw.json"
    if not path.is_file():
        return None
    raw = json.loads(path.read_text())
    if again := [name for name in sections if name in raw["sections"]]:
        sys.exit(
            f"{path} has {', '.join(again)} already: every run is kept, choose another --output"
        )
    return raw


def write_result(directory, raw, bin_directory):
    # As JSON and back, so that a page made now is the one made from the file.
    text = json.dumps(raw, indent=1, ensure_ascii=False, default=dataclasses.asdict)
    (directory / "raw.json").write_text(text + "\n")
    (directory / "README.md").write_text(pool_page.render(json.loads(text)))
    if not pool_page.DRAWN & raw["sections"].keys():
        return
    plot = [str(bin_directory / "python"), str(arms.BENCH / "pool_plot.py")]
    done = subprocess.run([*plot, str(directory / "raw.json")], capture_output=True, text=True)
    if done.returncode:
        print(f"no chart: {environment.last_line(done.stderr)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
