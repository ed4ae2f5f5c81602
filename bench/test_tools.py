"""Tests of the measuring tools: python3 -m unittest discover -s bench -t bench"""

import dataclasses
import json
import os
import random
import signal
import socket
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import arms
import client
import counters
import loads
import machine
import mixed
import plot
import pool_page
import probe
import process
import result_page
import soak
import statistics_of_pairs

WRK = """Running 2s test @ http://127.0.0.1:8000/
  1 threads and 16 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.20ms    0.30ms  15.50ms   90.00%
    Req/Sec     4.30k   200.00     5.00k    70.00%
  Latency Distribution
     50%  980.00us
     75%    1.10ms
     90%    1.30ms
     99%    2.50ms
  8600 requests in 2.00s, 1.10MB read
  Socket errors: connect 0, read 3, write 0, timeout 1
  Non-2xx or 3xx responses: 7
Requests/sec:   4300.00
Transfer/sec:    563.00KB
"""


def sample_run():
    """Two arms, two connection counts, nine rounds; ours takes exactly half."""
    run = {
        "date": "2000-01-01",
        "machine": machine.facts(),
        "python": "3.13.0",
        "compiler": "c",
        "packages": {"granian": "1"},
        "client": {"name": "wrk", "version": "4"},
        "invocation": "bench/compare.py",
        "settings": {
            "rounds": 9,
            "seconds": 1,
            "warm_up": 1,
            "connections": [16, 256],
            "pin": "apart",
            "rate": None,
            "open_loop": None,
            "baseline": "granian",
        },
        "arms": {"hoopsnake-uring": "hoopsnake", "granian": "granian", "m0serve": "m0serve"},
        "workloads": {"bare": "bare & small"},
        "apps": {"bare": "bare:application"},
        "skipped": {},
        "rates": {},
        "failures": [],
        "runs": [],
    }
    for number in range(1, 10):
        for arm, cpu in (("hoopsnake-uring", 5.0), ("granian", 10.0)):
            for connections in (16, 256):
                run["runs"].append(
                    {
                        "round": number,
                        "workload": "bare",
                        "arm": arm,
                        "connections": connections,
                        "requests_per_second": 1e6 / cpu,
                        "cpu_us_per_request": cpu * (1 + number / 10),
                        "cpu_user_us_per_request": 1.0,
                        "cpu_system_us_per_request": 1.0,
                        "latency_us": {"p50": 1.0, "p99": None},
                        "rss_mib": 1.0,
                        "client_busy": 0.5,
                        "errors": {},
                    }
                )
    return run


class Clients(unittest.TestCase):
    def test_wrk_is_read_whole(self):
        load = client.parse_wrk(WRK, 1.5)
        self.assertEqual((load.requests, load.requests_per_second, load.seconds), (8600, 4300, 2))
        self.assertEqual(load.errors, {"read": 3, "timeout": 1, "status": 7})
        self.assertEqual(load.latency_us, {"p50": 980.0, "p99": 2500.0, "max": 15500.0})

    def test_wrk_without_a_result_is_an_error(self):
        with self.assertRaises(client.ClientError):
            client.parse_wrk("unable to connect to 127.0.0.1:1 Connection refused", 0)


class Pairs(unittest.TestCase):
    def test_an_interval_needs_nine_pairs(self):
        few = statistics_of_pairs.compare([1.0] * 8, [2.0] * 8)
        self.assertEqual((few["median_of_ratios"], few["interval_95"]), (0.5, None))

    def test_the_interval_holds_the_median_and_is_reproducible(self):
        source = random.Random(1)
        ours = [0.5 + source.random() / 10 for _ in range(11)]
        first = statistics_of_pairs.compare(ours, [1.0] * 11)
        low, high = first["interval_95"]
        self.assertTrue(min(ours) <= low < first["median_of_ratios"] < high <= max(ours))
        self.assertEqual(first, statistics_of_pairs.compare(ours, [1.0] * 11))


TABLE = """2026-11-30T19:31:20.986Z INFO  worker[7] the pool:
lane: threads=2 idle_wakes=30 aged_wakes=10
reactor: waits=9 pokes_sent=3 pokes_skipped=1 passes_over_1ms=4 passes_over_2ms=0
thread 0: jobs=397 kept=212 drops_in_slice=2 yields=22
  ring-wait n=397       p50=20971.5   p99=75497.5   p99.9=351945.5  max=351945.5 us
  GIL-wait  n=301       p50=3407.9    p99=37748.7   p99.9=49928.6   max=49928.6 us
  service   n=397       p50=720.9     p99=18874.4   p99.9=310350.5  max=310350.5 us
thread 1: jobs=3 kept=1 drops_in_slice=0 yields=0
2026-11-30T19:31:20.989Z INFO  supervisor[5] stopped code=0
"""


class Counters(unittest.TestCase):
    def test_the_table_is_read_whole(self):
        found = counters.read(TABLE)
        self.assertEqual(
            (found.jobs, found.kept, found.in_slice_drops, found.yields), (400, 213, 2, 22)
        )
        self.assertEqual(found.wakes_per_job, 0.1)
        self.assertEqual(found.reactor["passes_over_1ms"], 4)
        self.assertEqual(found.worst("GIL-wait", "p99"), 37748.7)
        # The second served under 1 % of the jobs.
        self.assertEqual((found.busy_threads, len(found.threads)), (1, 2))

    def test_a_server_without_a_table_has_none(self):
        self.assertIsNone(counters.read("[INFO] thread 1: ready\n"))

    def test_two_tables_are_refused_and_not_merged(self):
        second = TABLE.replace("thread 1", "thread 2")
        for log in (TABLE * 2, TABLE + second, TABLE + TABLE.splitlines()[3]):
            with self.assertRaisesRegex(counters.SeveralTables, "more than one worker"):
                counters.read(log)

    def test_a_file_keeps_what_was_read(self):
        found = counters.read(TABLE)
        again = counters.Counters(**json.loads(json.dumps(dataclasses.asdict(found))))
        self.assertEqual(again, found)


def found_by_client(long_waits=0, most_passed_over=0, requests=1000, errors=()):
    return {
        "requests": requests,
        "errors": dict(errors),
        "requests_per_second": requests / 8,
        "latency_us": {"p50": 1e3, "p99": 2e3, "p999": 3e3, "max": 4e3},
        "order": {
            "long_waits": long_waits,
            "most_passed_over": most_passed_over,
            "in_order": long_waits <= 5 and most_passed_over <= 1000,
        },
        "gil_share_ms": 0.7,
        "client_busy": 0.03,
    }


NO_SWEEP = loads.Known("class", {}, [])
STARVED = {"long_waits": 40, "most_passed_over": 1400}


def row_of(trial, load=loads.DEFAULT, counted=None, as_scheduled=True, faults=(), **found):
    row = {
        "arm": trial.name,
        "load": dataclasses.asdict(load),
        "as_scheduled": as_scheduled,
        "faults": list(faults),
        "counters": counted,
        "client": found_by_client(**found),
    }
    return row | {"problems": probe.Prober.problems(row)}


def counted(**thread):
    return counters.Counters({}, {}, [{"kept": 0, "drops_in_slice": 0, "yields": 0} | thread])


class Probe(unittest.TestCase):
    def test_the_order_decides(self):
        for trial, found, wanted in (
            (probe.FAIR, {}, probe.Judgement(True, "in order")),
            (probe.FAIR, STARVED, probe.Judgement(False, "out of order")),
            (probe.CONTROL, STARVED, probe.Judgement(False, "out of order")),
            (probe.KEEP_OFF, STARVED, probe.Judgement(True, "out of order")),
            (None, STARVED, probe.Judgement(True, "out of order, not judged")),
        ):
            row = row_of(trial or probe.FAIR, **found)
            self.assertEqual(probe.judge(row, trial, NO_SWEEP), wanted)

    def test_the_counters_must_show_the_rule_at_work_and_its_absence(self):
        idle = counted()
        kept, drops, both = (
            counted(kept=9),
            counted(drops_in_slice=7),
            counted(kept=1, drops_in_slice=7),
        )
        yields = counted(yields=9)
        for trial, without, fair, wanted in (
            (probe.KEEP_OFF, drops, kept, True),
            # A fair arm that had nothing to keep, as one in which the rule does not work.
            (probe.KEEP_OFF, drops, idle, False),
            # An arm that still keeps, and one that had nothing to let go for.
            (probe.KEEP_OFF, both, kept, False),
            (probe.KEEP_OFF, idle, kept, False),
            (probe.KEEP_OFF, drops, None, False),
            (probe.KEEP_OFF, None, kept, False),
            (probe.TURN_OFF, idle, yields, True),
            (probe.TURN_OFF, idle, idle, False),
            (probe.TURN_OFF, yields, yields, False),
            (probe.TURN_OFF, idle, kept, False),
        ):
            with self.subTest(trial=trial.name, without=without, fair=fair):
                row = row_of(trial, counted=without)
                found = probe.judge(row, trial, NO_SWEEP, fair)
                self.assertEqual(found.passed, wanted, found)
                self.assertTrue(found.not_judged_by_order)
                self.assertIn("counters", found.verdict)

    def test_where_the_sweep_separates_an_arm_its_order_alone_decides(self):
        load = loads.Load(7, 300, "batch")
        drops, kept = counted(drops_in_slice=7), counted(kept=9)
        known = loads.Known("class", {"keep-off": load, "turn-off": None}, [{}])
        for found, passed in (({}, False), (STARVED, True)):
            row = row_of(probe.KEEP_OFF, load, counted=drops, **found)
            judgement = probe.judge(row, probe.KEEP_OFF, known, kept)
            self.assertEqual((judgement.passed, judgement.not_judged_by_order), (passed, False))

    def test_an_arm_that_was_not_judged_by_order_says_so_and_why(self):
        drops, kept = counted(drops_in_slice=7), counted(kept=9, yields=1)
        swept = loads.Known("class", {"keep-off": None, "turn-off": None}, [{}])
        for known, why in (
            (NO_SWEEP, "no sweep of this machine is kept"),
            (swept, "no load of this machine's sweep separates it"),
        ):
            for trial, without in ((probe.KEEP_OFF, drops), (probe.TURN_OFF, counted())):
                row = row_of(trial, counted=without)
                found = probe.judge(row, trial, known, kept)
                self.assertTrue(found.passed, found)
                self.assertIn("NOT JUDGED BY ORDER", found.verdict)
                self.assertIn(why, found.verdict)
        rows = [row | dataclasses.asdict(found)]
        self.assertRegex(probe.summary(rows), "^1 of 1 as expected; NOT JUDGED BY ORDER: turn-off")
        rows = [row | dataclasses.asdict(probe.judge(row))]
        self.assertEqual(probe.summary(rows), "1 of 1 as expected")

    def test_a_run_that_is_no_measurement_fails_whatever_its_order(self):
        for wrong, words in (
            ({"errors": {"timeout": 1}}, "1 × timeout"),
            ({"requests": 0}, "no answers"),
            ({"as_scheduled": False}, "policy"),
            ({"faults": ["ended with code 70"]}, "ended with code 70"),
        ):
            for trial in (probe.FAIR, None):
                found = probe.judge(row_of(probe.FAIR, **wrong), trial, NO_SWEEP)
                self.assertFalse(found.passed)
                self.assertIn(words, found.verdict)

    def test_a_server_that_ends_with_a_code_makes_its_row_no_measurement(self):
        script = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit({code}))"
        script += "; print('ready', flush=True); time.sleep(60)"
        found = found_by_client()
        for code, wanted in ((0, []), (70, ["ended with code 70: ready"])):
            command = [sys.executable, "-c", script.format(code=code)]
            arm = mock.Mock(**{"command_line.return_value": command, "variables": ()})
            prober = mock.Mock(environment=dict(os.environ))
            prober.probe = lambda server, *_: (self.wait_for_line(server), found)[1]
            with (
                mock.patch("arms.find_executable", return_value="python"),
                mock.patch("process.Server.wait_ready"),
            ):
                row = probe.Prober.serve(prober, arm, loads.DEFAULT)
            self.assertEqual(probe.Prober.problems(row), wanted)

    @staticmethod
    def wait_for_line(server):
        for _ in range(600):
            if server.log():
                return
            server.check_alive()
            process.time.sleep(0.05)
        raise AssertionError("the script did not start")

    def test_the_end_of_a_server_is_read(self):
        self.assertEqual(probe.read_end(0, TABLE), (counters.read(TABLE), []))
        self.assertEqual(probe.read_end(0, "no table"), (None, []))
        counted, faults = probe.read_end(-9, TABLE * 2)
        self.assertIsNone(counted)
        self.assertIn("code -9", faults[0])
        self.assertIn("more than one worker", faults[1])

    def test_arms_run_where_the_sweep_says_and_beside_a_fair_one(self):
        batch = loads.Load(7, 300, "batch")
        known = loads.Known("class", {"turn-off": batch, "keep-off": None}, [])
        planned = [(trial.name, load) for trial, load in probe.plan(known, ["normal", "batch"])]
        default = [loads.DEFAULT.under(policy) for policy in ("normal", "batch")]
        self.assertEqual(
            planned,
            [
                *(("fair", load) for load in (*default, batch)),
                ("turn-off", batch),
                *(("keep-off", load) for load in default),
                *(("control", loads.CONTROL.under(policy)) for policy in ("normal", "batch")),
            ],
        )

    def test_a_run_judges_by_the_machines_file_and_the_fair_arm_at_the_same_load(self):
        separated = loads.Load(7, 300)
        known = loads.Known("class", {"turn-off": separated, "keep-off": None}, [{}])
        counts = {"fair": {"kept": 9, "yields": 9}, "keep-off": {"drops_in_slice": 7}}
        prober = mock.Mock()
        prober.trial = lambda trial, load, stops: row_of(
            trial, load, counted=counted(**counts.get(trial.name, {}))
        )
        rows = list(probe.run_arms(prober, known, ["normal"]))
        found = {
            (row["arm"], loads.Load(**row["load"])): (row["passed"], row["not_judged_by_order"])
            for row in rows
        }
        self.assertEqual(
            found,
            {
                ("fair", loads.DEFAULT): (True, False),
                ("fair", separated): (True, False),
                ("turn-off", separated): (False, False),
                ("keep-off", loads.DEFAULT): (True, True),
                ("control", loads.CONTROL): (True, False),
            },
        )

    def test_a_machine_too_slow_to_starve_anybody_is_said(self):
        rows = [row_of(probe.FAIR), row_of(probe.CONTROL)]
        self.assertEqual(list(probe.over_a_slice(rows)), [])
        for row in rows:
            row["client"]["gil_share_ms"] = 2.0
        self.assertEqual(len(list(probe.over_a_slice(rows))), 1)

    def test_columns_are_lined_up(self):
        lines = list(probe.lined_up(iter([["a", "1"], ["bcd", "20"]])))
        self.assertEqual(lines, ["a     1", "bcd  20"])


def entry_of(load, keep_off, fair=({},), problems=()):
    def runs(kind):
        return [loads.figures(row_of(probe.FAIR, load, **found)) for found in kind]

    return {
        "load": dataclasses.asdict(load),
        "problems": list(problems),
        "fair": runs(fair),
        "keep-off": runs(keep_off),
    }


class Loads(unittest.TestCase):
    def test_the_widest_margin_wins_and_only_where_every_run_agrees(self):
        at = loads.Load
        table = [
            entry_of(at(3, 650), [{"long_waits": 12}, STARVED]),
            entry_of(at(5, 650), [STARVED, STARVED]),
            entry_of(at(6, 650), [STARVED, {}]),
            entry_of(at(7, 650), [STARVED] * 2, fair=[{}, STARVED]),
            entry_of(at(8, 650), [STARVED] * 2, problems=["1 × timeout"]),
            entry_of(at(5, 650, "batch"), [STARVED, STARVED]),
        ]
        known = loads.Known.from_table(table, ["keep-off"])
        self.assertEqual(known.loads_of("keep-off"), [at(5, 650)])
        nothing = loads.Known.from_table(table[2:5], ["keep-off"])
        self.assertEqual(nothing.loads_of("keep-off"), [])
        self.assertIn("no load of the sweep", nothing.words())
        self.assertIn("12/0 40/1400", " ".join(map(str, list(loads.table_lines(table))[1])))

    def test_the_machines_file_is_read_as_it_was_written(self):
        table = [entry_of(loads.Load(5, 650, "batch", "0"), [STARVED])]
        known = loads.Known.from_table(table, ["keep-off"])
        with tempfile.TemporaryDirectory() as directory:
            path = known.write(Path(directory), {"kernel": "6"})
            self.assertEqual(loads.Known.of_this_machine(Path(directory)), known)
            self.assertIn(machine.class_name(), path.name)
            elsewhere = loads.Known.of_this_machine(Path(directory, "none"))
        self.assertEqual(elsewhere.loads_of("keep-off"), [])

    def check_file(self, path):
        """Its loads are those that its own table gives, on policies that there are."""
        known = loads.Known.of_file(path)
        names = {probe.TURN_OFF.name, probe.KEEP_OFF.name}
        self.assertEqual(known.loads.keys(), names, "the arms")
        self.assertTrue(known.table, "the table is empty")
        for entry in known.table:
            self.assertIn(loads.Load(**entry["load"]).policy, process.POLICIES)
            self.assertLessEqual({"fair", *names}, entry.keys())
        for name, load in known.loads.items():
            self.assertEqual(load, loads.best(known.table, name), name)

    def test_committed_files_can_be_used(self):
        paths = list(loads.DIRECTORY.glob("*.json"))
        if not paths:
            self.skipTest(f"no machine's file in {loads.DIRECTORY}: no sweep is kept")
        for path in paths:
            with self.subTest(path.name):
                self.check_file(path)

    def test_a_file_that_says_other_than_its_table_is_found(self):
        load = loads.Load(5, 650)
        table = [entry_of(load, [STARVED]) | {"turn-off": [loads.figures(row_of(probe.FAIR))]}]
        known = loads.Known.from_table(table, ["turn-off", "keep-off"])
        with tempfile.TemporaryDirectory() as directory:
            self.check_file(known.write(Path(directory), {}))
            for wrong in ({"keep-off": None}, {"turn-off": load}, {"keep-off": load.under("idle")}):
                changed = dataclasses.replace(known, loads=known.loads | wrong)
                with self.assertRaises(AssertionError):
                    self.check_file(changed.write(Path(directory), {}))


class Mixed(unittest.TestCase):
    def rows(self):
        for number in range(1, 10):
            for scenario, p99 in ((mixed.ALONE, 1000.0), (mixed.SCENARIOS[3], 1500.0)):
                yield {
                    "round": number,
                    "app": "bare",
                    "server": "granian",
                    "beside": str(scenario),
                    "requests_per_second": 1.0,
                    "latency_us": {"p50": 1.0, "p99": p99 * number},
                    "errors": {},
                }
        yield {"round": 1, "app": "bare", "server": "hoopsnake-uring", "failure": "gone"}

    def test_the_slowdown_is_that_of_the_same_round_and_server(self):
        rows = list(self.rows())
        found = mixed.slowdown(rows, "bare", "granian", mixed.SCENARIOS[3])
        self.assertEqual((found["median_of_ratios"], found["interval_95"]), (1.5, [1.5, 1.5]))
        self.assertIsNone(mixed.slowdown(rows, "bare", "granian", mixed.SCENARIOS[1]))

    def test_a_request_that_hangs_is_asked_and_its_connection_closed(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            with mixed.asked(listener.getsockname()[1], "/hang/0"):
                peer, _ = listener.accept()
                self.assertTrue(peer.recv(100).startswith(b"GET /hang/0 HTTP/1.1\r\n"))
            with peer:
                self.assertEqual(peer.recv(100), b"")

    def test_a_page_has_every_section_and_every_fault(self):
        fair = row_of(probe.FAIR, counted=dataclasses.asdict(counters.read(TABLE)))
        fair |= {"round": 1, "passed": True, "verdict": "in order"}
        failed = fair | {"arm": "granian", "passed": False, "verdict": "1 × timeout"}
        settings = dataclasses.asdict(pool_options()) | {"revision": "r"}
        page = pool_page.render(
            sample_run()
            | {
                "machine_class": "c",
                "settings": dict.fromkeys(pool_page.PARTS, settings),
                "sections": {
                    "arms": [fair],
                    "order": [fair, failed],
                    "mixed": list(self.rows()),
                    "wakes": [fair],
                    "throughput": {"apart": sample_run() | {"failures": ["broken"]}},
                },
            }
        )
        for text in ("granian (5 threads, 650 µs, normal): 1 × timeout", "gone", "broken"):
            self.assertIn(text, page)
        for text in (
            "| 1.500 [1.500, 1.500] |",
            "| fair | 20 | 1 | 125 | 0.100 | 1 | 2 |",
            "## bare",
        ):
            self.assertIn(text, page)

    def test_the_wakes_of_every_round_are_measured_and_shown_as_medians(self):
        import pool

        table = dataclasses.asdict(counters.read(TABLE))
        counts = iter([100, 20, 40])

        def trial(trial, load):
            lane = {"idle_wakes": next(counts), "aged_wakes": 0}
            return row_of(trial, load, counted=table | {"lane": lane})

        with mock.patch("probe.Prober"), mock.patch.object(pool, "WAKE_CONNECTIONS", (16,)):
            section = pool.Pool(pool_options(rounds=3), None, None, {})
            section.prober.trial = lambda arm, load: (
                trial(arm, load) if arm.name == "zero-config" else row_of(arm, load)
            )
            rows = list(section.wake_rows())
        self.assertEqual(
            [(row["round"], row["arm"]) for row in rows],
            [(number, name) for number in (1, 2, 3) for name in ("zero-config", "elastic-off")],
        )
        page = "\n".join(pool_page.wakes_part(rows))
        self.assertIn("| zero-config | 16 | 3 | 125 | 0.100 | 1 | 2 | 75498 | 37749 |", page)
        self.assertIn("| elastic-off | 16 | 3 | 125 | – | – | – | – | – |", page)


def pool_options(rounds=1):
    import pool

    return pool.Options(["arms"], rounds, 1, 1, 1, ["none"], None, None)


class Soak(unittest.TestCase):
    def samples(self, *sizes):
        return [
            {"requests": (index + 1) * 10, "rss_bytes": {7: size}}
            for index, size in enumerate(sizes)
        ]

    def test_growth_counts_from_the_half_to_its_peak(self):
        samples = self.samples(100, 500, 600, 550)
        self.assertEqual(soak.growth_by_pid(samples, 40), {7: 100})

    def test_every_kind_of_fault_is_found(self):
        clean = {"requests": 40, "errors": {}, "unsent": 0, "first_errors": {}}
        flat = self.samples(1, 1, 1, 1)
        self.assertEqual(soak.faults_of(1, 40, clean, flat, {7: 0}), [])
        self.assertEqual(len(soak.faults_of(1, 40, clean, flat, {7: 2**20})), 1)
        self.assertEqual(len(soak.faults_of(1, 40, clean | {"requests": 39}, flat, {7: 0})), 1)
        changed = [*flat, {"requests": 50, "rss_bytes": {8: 1}}]
        self.assertEqual(len(soak.faults_of(1, 40, clean, changed, {7: 0})), 1)
        self.assertEqual(len(soak.faults_of(1, 40, clean, flat[:1], {7: 0})), 1)


class Processes(unittest.TestCase):
    def test_cpu_of_dead_children_counts_and_all_end(self):
        burn = "import time\nwhile time.process_time() < 0.3: pass"
        script = (
            f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {burn!r}]);"
            "subprocess.Popen(['sleep', '60']); print('ready', flush=True); time.sleep(60)"
        )
        with process.Server([sys.executable, "-c", script], 0, dict(os.environ)) as server:
            for _ in range(600):
                if "ready" in server.log():
                    break
                server.check_alive()
                process.time.sleep(0.05)
            self.assertGreaterEqual(server.cpu().total, 0.3)
            pids = server.pids()
            self.assertEqual(len(pids), 2)
            self.assertEqual(set(server.rss_bytes()), set(pids))
        self.assertEqual(server.pids(), [])

    def started(self, script, **how):
        """A server of this script, after it has printed its line."""
        command = [sys.executable, "-c", f"{script}; print('ready', flush=True); open(0).read()"]
        command = ["sh", "-c", 'sleep 60 | "$@"', "sh", *command]
        server = process.Server(command, 0, dict(os.environ), **how)
        self.addCleanup(server.stop)
        for _ in range(600):
            if "ready" in server.log():
                return server
            server.check_alive()
            process.time.sleep(0.05)
        raise AssertionError("the script did not start")

    def test_a_policy_is_that_of_every_thread(self):
        thread = "threading.Thread(target=time.sleep, args=[60], daemon=True)"
        script = f"import threading, time; {thread}.start()"
        for policy, wanted in probe.SCHEDULING.items():
            with self.subTest(policy):
                self.assertEqual(self.started(script, policy=policy).scheduling(), wanted)

    def test_a_pause_stops_every_process_and_ends(self):
        server = self.started("pass")
        states = []

        def look(seconds):
            self.assertEqual(seconds, 0.3)
            # The signal is pending until the process runs.
            for _ in range(600):
                states[:] = self.states_of(server)
                if set(states) == {"T"}:
                    return
                os.sched_yield()

        with mock.patch("process.time.sleep", look):
            server.pause(0.3)
        self.assertEqual(set(states), {"T"})
        self.assertGreaterEqual(len(states), 2)
        self.assertNotIn("T", self.states_of(server))

    @staticmethod
    def states_of(server):
        pids = server.pids()
        return [stat.state for stat in process.all_stats() if stat.pid in pids]

    def test_the_log_is_there_after_the_end(self):
        server = self.started("pass")
        server.stop()
        self.assertEqual(server.log(), "ready")
        self.assertEqual(server.stop(), -signal.SIGTERM)


class Machines(unittest.TestCase):
    def test_a_class_is_a_file_name_and_names_no_machine(self):
        for text, wanted in (
            ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\n", "authenticamd-25"),
            ("CPU implementer\t: 0x41\nCPU architecture: 8\n", "0x41-8"),
        ):
            with mock.patch("machine.read", lambda _, text=text: text):
                self.assertRegex(machine.class_name(), rf"^\d+cpu-{wanted}-linux-\d+$")


class Pages(unittest.TestCase):
    def test_ratios_missing_cells_and_facts_are_shown(self):
        page = result_page.render(sample_run())
        self.assertIn("| 0.500 | 0.500 [0.500, 0.500] | 2.000 [2.000, 2.000] |", page)
        self.assertIn("| m0serve | no run |", page)
        self.assertIn("CPUs", page)

    def test_the_chart_is_xml_with_a_bar_for_each_cell(self):
        import xml.etree.ElementTree as tree

        root = tree.fromstring(plot.render(sample_run()))
        # A ground, and two arms at two counts in two panels.
        self.assertEqual(len(root.findall("{http://www.w3.org/2000/svg}rect")), 1 + 8)

    def test_no_path_is_shown(self):
        for arm in arms.ARMS.values():
            self.assertNotIn(str(arms.BENCH), arm.shown("bare:application"))


if __name__ == "__main__":
    unittest.main()
