"""Tests of the measuring tools: python3 -m unittest discover -s bench -t bench"""

import os
import random
import sys
import unittest

import arms
import client
import machine
import plot
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
