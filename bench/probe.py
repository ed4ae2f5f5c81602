#!/usr/bin/env python3
"""Is the pool's queue served in order, and does the probe see it when it is not?

    python3 bench/probe.py                 every arm, each on a fresh server; what CI runs
    python3 bench/probe.py --stops 2       the server is stopped twice for 300 ms in each fair arm
    python3 bench/probe.py --peers         granian and gunicorn beside it, not judged
    python3 bench/probe.py sweep           finds the loads at which the arms differ on this machine

See "The probe" in bench/README.md. Exit code 0 if every arm did what is expected of it, else 1.
"""

import argparse
import dataclasses
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import arms
import client
import counters
import environment
import loads
import machine
import process

STOP_SECONDS = 0.3
SLICE_MS = 1
# What the kernel calls the policies of process.POLICIES.
SCHEDULING = {"normal": {os.SCHED_OTHER}, "batch": {os.SCHED_BATCH}}
IN_ORDER, OUT_OF_ORDER = "in order", "out of order"
COUNTERS_ON = (("HOOPSNAKE_POOL_DEBUG", "1"),)


def keep_rule_in_counters(without, with_rule):
    """Whether the counters show the keep rule at work in the fair arm, and its absence in the
    other; the counts in words.

    Nothing let go in a slice of the fair arm says nothing: a pool with no slices lets go in none.
    """
    words = (
        f"{with_rule.kept} jobs kept with the rule, {without.kept} without;"
        f" {without.in_slice_drops} drops of the lock in a slice without"
    )
    return with_rule.kept > 0 and without.kept == 0 and without.in_slice_drops > 0, words


def turn_in_counters(without, with_rule):
    """The same of the turn: threads yielded the hand-off to others at their slices' ends."""
    words = f"{with_rule.yields} yields at a slice's end with the turn, {without.yields} without"
    return with_rule.yields > 0 and without.yields == 0, words


@dataclasses.dataclass(frozen=True)
class Trial:
    """A pool with or without its rules, and the order it is expected to serve in."""

    name: str
    variables: tuple = ()
    expected: str = IN_ORDER
    # Of the counters without the rule and with it, for a machine that serves both in order.
    witness: Callable | None = None


FAIR = Trial("fair")
TURN_OFF = Trial(
    "turn-off",
    (("HOOPSNAKE_POOL_TURN", "0"),),
    OUT_OF_ORDER,
    turn_in_counters,
)
KEEP_OFF = Trial(
    "keep-off",
    (("HOOPSNAKE_POOL_TURN_KEEP", "0"),),
    OUT_OF_ORDER,
    keep_rule_in_counters,
)
# The arithmetic's own: with four threads the rotation reaches each of them.
CONTROL = Trial("control", KEEP_OFF.variables)
PEERS = ("granian", "gunicorn-gthread", "m0serve")


class Prober:
    """Runs trials, each on a server of its own."""

    def __init__(self, options, bin_directory, hoopsnake):
        self.options = options
        self.hoopsnake = hoopsnake
        self.bin_directory = bin_directory
        self.environment = arms.environment(bin_directory)
        self.client = client.Checking(options.client_path)
        self.ours = arms.ARMS[f"hoopsnake-{options.io}"]

    def trial(self, trial, load, stops=0):
        """One of our arms; its row says what was found and whether that was expected."""
        variables = (*trial.variables, *COUNTERS_ON)
        arm = self.ours.with_threads(load.threads, trial.name, variables)
        row = self.serve(arm, load, stops)
        return row | {"problems": self.problems(row)}

    def peer(self, name, load):
        """A peer's order is recorded and not judged."""
        row = self.serve(arms.ARMS[name].with_threads(load.threads, name), load)
        return row | {"problems": self.problems(row)}

    def serve(self, arm, load, stops=0):
        """Starts a server, probes it, ends it; a row of figures."""
        executable = arms.find_executable(arm, self.bin_directory, self.hoopsnake)
        if executable is None:
            sys.exit(f"{arm.name}: the command {arm.command} is not installed: see bench/README.md")
        workload = arms.bare_work(load.path)
        port = process.free_port()
        command = arm.command_line(executable, workload.app, port, workload.directory)
        variables = self.environment | dict(arm.variables)
        with process.Server(command, port, variables, load.cpus, load.policy) as server:
            server.wait_ready(workload.expected)
            found = self.probe(server, load, stops)
            scheduling = server.scheduling()
            server.check_alive()
            cpu = server.cpu()
            code = server.stop()
            counted, faults = read_end(code, server.log(process.LOG_BYTES_MAX))
        return {
            "arm": arm.name,
            "load": dataclasses.asdict(load),
            "stops": stops,
            "as_scheduled": scheduling == SCHEDULING[load.policy],
            "server_cpu_seconds": cpu.total,
            "faults": faults,
            "counters": counted,
            "client": found,
        }

    def probe(self, server, load, stops):
        options = self.options
        pauses = [
            threading.Timer(options.warm_up + options.seconds * (number + 1) / (stops + 1), pause)
            for number in range(stops)
            for pause in [lambda: server.pause(STOP_SECONDS)]
        ]
        for timer in pauses:
            timer.start()
        try:
            return self.client.probe(
                server.port, load.path, load.connections, options.seconds, options.warm_up
            )
        finally:
            for timer in pauses:
                timer.cancel()
                timer.join()

    @staticmethod
    def problems(row):
        """What makes a row no measurement at all."""
        found = row["client"]
        texts = [f"{count} × {kind}" for kind, count in found["errors"].items()]
        if not found["requests"]:
            texts.append("no answers")
        if not row["as_scheduled"]:
            texts.append(f"the server did not run under the policy {row['load']['policy']}")
        return texts + row["faults"]


def read_end(code, log):
    """What a server that was told to stop left: its counters if it has any, and what was wrong."""
    faults = [] if code == 0 else [f"ended with code {code}: {environment.last_line(log)}"]
    try:
        return counters.read(log), faults
    except counters.SeveralTables as error:
        return None, [*faults, str(error)]


def order_of(row):
    return IN_ORDER if row["client"]["order"]["in_order"] else OUT_OF_ORDER


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What became of a row."""

    passed: bool
    verdict: str
    # Of an arm whose order should have decided and could not.
    not_judged_by_order: bool = False


def judge(row, trial=None, known=None, fair=None):
    """Whether the row passes, and why in words; without a trial its order is only recorded.

    An arm without a rule must be out of order where the machine's sweep says that it differs. Where
    no sweep says so, and it is in order, it is judged by its witness, against the counters of the
    fair arm at the same load.
    """
    if row["problems"]:
        return Judgement(False, "; ".join(row["problems"]))
    found = order_of(row)
    if trial is None:
        return Judgement(True, f"{found}, not judged")
    if found == trial.expected:
        return Judgement(True, found)
    if trial.expected == IN_ORDER:
        return Judgement(False, found)
    if loads.Load(**row["load"]) in known.loads_of(trial.name):
        return Judgement(False, f"{found}, at the load where this machine's sweep separates it")
    why = f"{found}; NOT JUDGED BY ORDER ({known.why_unseparated(trial.name)})"
    if not (trial.witness and row["counters"] and fair):
        return Judgement(False, f"{why}, and there are no counters to judge by", True)
    passed, words = trial.witness(row["counters"], fair)
    return Judgement(passed, f"{why}; by the counters: {words}", True)


def over_a_slice(rows):
    """Why an arm without its rules may be in order here: a slice holds one request, or none."""
    for row in rows:
        share = row["client"]["gil_share_ms"]
        if row["arm"] == FAIR.name and share is not None and share >= SLICE_MS:
            yield (
                f"a request took {share:.2f} ms in the fair arm ({loads.Load(**row['load'])}), more"
                f" than a slice of {SLICE_MS} ms: this machine is slow, or busy with something else"
            )


HEADINGS = (
    "arm",
    "policy",
    "CPUs",
    "threads",
    "view µs",
    "n",
    "errors",
    "p50 ms",
    "p99 ms",
    "p99.9 ms",
    "max ms",
    "long waits",
    "most passed over",
    "share ms",
    "kept",
    "drops",
    "yields",
    "client",
)


def cells(row):
    """A row as words, under HEADINGS."""
    found, load, counted = row["client"], row["load"], row["counters"]
    latency = (f"{found['latency_us'][name] / 1000:.1f}" for name in ("p50", "p99", "p999", "max"))
    share = found["gil_share_ms"]
    return [
        row["arm"],
        load["policy"],
        load["cpus"] or "all",
        "auto" if load["threads"] is None else str(load["threads"]),
        str(load["microseconds"]),
        str(found["requests"]),
        str(sum(found["errors"].values())),
        *latency,
        str(found["order"]["long_waits"]),
        str(found["order"]["most_passed_over"]),
        "–" if share is None else f"{share:.3f}",
        "–" if counted is None else str(counted.kept),
        "–" if counted is None else str(counted.in_slice_drops),
        "–" if counted is None else str(counted.yields),
        f"{found['client_busy']:.0%}",
    ]


def lined_up(lines):
    """Columns of equal width, the first to the left."""
    lines = list(lines)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        first, *rest = line
        padded = (word.rjust(width) for word, width in zip(rest, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *padded])


def plan(known, policies):
    """The trials of a run with their loads, a fair one at each load before any other there.

    An arm runs where the machine's sweep says that it differs, else at the default load.
    """
    default = [loads.DEFAULT.under(policy) for policy in policies]
    trials = [
        (trial, load)
        for trial in (TURN_OFF, KEEP_OFF)
        for load in known.loads_of(trial.name) or default
    ]
    fair = dict.fromkeys([*default, *(load for _, load in trials)])
    return [
        *((FAIR, load) for load in fair),
        *trials,
        *((CONTROL, loads.CONTROL.under(policy)) for policy in policies),
    ]


def run_arms(prober, known, policies, runs=1, stops=0):
    """All trials, judged; yields each row with its verdict as soon as it is there."""
    fair = {}
    for _ in range(runs):
        for trial, load in plan(known, policies):
            row = prober.trial(trial, load, stops if trial is FAIR else 0)
            if trial is FAIR:
                fair[load] = row["counters"]
            judgement = judge(row, trial, known, fair.get(load))
            yield row | dataclasses.asdict(judgement)


def run_peers(prober, policies, load=None):
    """The peers at our fair load."""
    load = load or loads.DEFAULT
    for policy in policies:
        for name in PEERS:
            row = prober.peer(name, load.under(policy))
            yield row | dataclasses.asdict(judge(row))


def shown(rows):
    """Prints each row when it comes, then all of them as a table; returns them."""
    rows_done = []
    for row in rows:
        load = loads.Load(**row["load"])
        found = row["client"]["order"]
        print(
            f"{row['arm']} ({load}): {row['verdict']}"
            f" ({found['long_waits']} long waits, most passed over {found['most_passed_over']})"
            f"{'' if row['passed'] else '  <- FAILED'}",
            flush=True,
        )
        rows_done.append(row)
    print()
    for line in lined_up([HEADINGS, *map(cells, rows_done)]):
        print(line)
    return rows_done


def command_arms(options, prober):
    known = loads.Known.of_this_machine()
    print(known.words(), flush=True)
    rows = shown(run_arms(prober, known, options.policies, options.runs, options.stops))
    if options.peers:
        rows += shown(run_peers(prober, options.policies))
    print()
    for words in over_a_slice(rows):
        print(words)
    failed = [row for row in rows if not row["passed"]]
    print(summary(rows))
    write_json(options.json, {"machine_class": machine.class_name(), "rows": rows})
    return 1 if failed else 0


def summary(rows):
    """How many rows are as expected, and which of them show nothing about the order."""
    passed = sum(row["passed"] for row in rows)
    text = f"{passed} of {len(rows)} as expected"
    unjudged = [
        f"{row['arm']} ({loads.Load(**row['load'])})" for row in rows if row["not_judged_by_order"]
    ]
    return f"{text}; NOT JUDGED BY ORDER: {', '.join(unjudged)}" if unjudged else text


def command_sweep(options, prober):
    """Every load with each trial, some times over; the machine's file keeps the whole table."""
    table = []
    candidates = list(loads.candidates(options))
    seconds = len(candidates) * 3 * options.runs * (options.seconds + options.warm_up + 1)
    print(f"{len(candidates)} loads, about {seconds / 60:.0f} min", flush=True)
    for number, load in enumerate(candidates, 1):
        entry = {"load": dataclasses.asdict(load), "problems": []}
        for trial in (FAIR, TURN_OFF, KEEP_OFF):
            rows = [prober.trial(trial, load) for _ in range(options.runs)]
            entry["problems"] += [text for row in rows for text in row["problems"]]
            entry[trial.name] = [loads.figures(row) for row in rows]
        table.append(entry)
        print(f"[{number}/{len(candidates)}] {loads.line(entry)}", flush=True)
    known = loads.Known.from_table(table, (TURN_OFF.name, KEEP_OFF.name))
    print()
    for line in lined_up(loads.table_lines(table)):
        print(line)
    print(known.words())
    path = known.write(options.output, machine.facts())
    print(f"written: {os.path.relpath(path)}")
    return 0


def write_json(path, result):
    if path is not None:
        text = json.dumps(result, indent=1, ensure_ascii=False, default=dataclasses.asdict)
        path.write_text(text + "\n")


def add_server_options(parser):
    """What every command of the probe needs to start servers."""
    add = parser.add_argument
    add("--io", choices=("uring", "epoll"), default="uring")
    add("--seconds", type=float, default=8, help="of each judged run")
    add("--warm-up", type=float, default=1, help="seconds for each fresh server")
    add("--client-path", help="a built hoopsnake-bench")
    add("--hoopsnake", metavar="PATH", help="a wheel or a command instead of building this tree")
    add("--no-build", action="store_true", help="use the hoopsnake that is installed")
    add("--python", help="the interpreter of the environment; default 3.13, else the newest")


def parse_options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("command", nargs="?", choices=("arms", "sweep"), default="arms")
    add_server_options(parser)
    add("--policies", nargs="+", choices=process.POLICIES, default=list(process.POLICIES))
    add("--runs", type=int, default=1, help="of every arm; of every load in a sweep")
    add("--stops", type=int, default=0, help="pauses of 300 ms in each fair arm")
    add("--peers", action="store_true", help="also granian, gunicorn and m0serve")
    add("--json", type=Path, metavar="FILE", help="write every row")
    sweep = parser.add_argument_group("sweep")
    add = sweep.add_argument
    add("--threads", nargs="+", type=int, default=loads.SWEPT_THREADS)
    add("--views", nargs="+", type=int, default=loads.SWEPT_MICROSECONDS, metavar="MICROSECONDS")
    add(
        "--cpus", nargs="+", default=["all", "0"], metavar="LIST", help="of the server: all, 0, 0-1"
    )
    add("--output", type=Path, metavar="DIR", default=loads.DIRECTORY)
    return parser.parse_args()


def find_server(options, peers):
    """The bin directory and hoopsnake's command; no environment is made for a command alone."""
    command = options.hoopsnake
    if command is not None and not command.endswith(".whl") and not peers:
        return environment.of_command(command)
    return environment.prepare(options.python, command, build=not options.no_build)


def main():
    options = parse_options()
    commands = {"arms": command_arms, "sweep": command_sweep}
    try:
        prober = Prober(options, *find_server(options, options.peers))
        return commands[options.command](options, prober)
    except (process.ServerError, client.ClientError) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
