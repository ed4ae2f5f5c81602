"""The pool's rules as its own figures tell them, and the knobs that switch each of them off."""

from __future__ import annotations

import http.client
import re
import subprocess
import threading

import pytest
from harness import APPS, COMMAND

CONNECTIONS = 16
REQUESTS_EACH = 20


def load(server, path="/?busy_ms=0.3", connections=CONNECTIONS, each=REQUESTS_EACH):
    """Keep-alive clients side by side; returns the names of the threads that answered."""
    names, failures = [], []

    def client():
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        try:
            for _ in range(each):
                connection.request("GET", path)
                names.append(connection.getresponse().read().decode())
        except Exception as error:  # noqa: BLE001 -- told by the test's own thread
            failures.append(error)
        finally:
            connection.close()

    clients = [threading.Thread(target=client) for _ in range(connections)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    assert not failures, failures
    return names


def flood(server):
    """As many requests as [`load`], which all wait at once: each client sends before any reads."""
    request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    connections = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=30) for _ in range(CONNECTIONS)]
    for connection in connections:
        connection.connect()
    for _ in range(REQUESTS_EACH):
        for connection in connections:
            connection.sock.sendall(request)
        for connection in connections:
            response = http.client.HTTPResponse(connection.sock)
            response.begin()
            response.read()
    for connection in connections:
        connection.close()


def figures(server):
    """What `HOOPSNAKE_POOL_DEBUG=1` prints at the end: per thread, and the lane's and reactor's."""
    assert server.stop() == 0
    numbers = lambda text: {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", text)}  # noqa: E731
    log = server.log()
    threads = [numbers(line) for line in re.findall(r"^thread \d+: (.*)$", log, re.M)]
    lane = numbers(re.search(r"^lane: (.*)$", log, re.M)[1])
    reactor = numbers(re.search(r"^reactor: (.*)$", log, re.M)[1])
    return threads, lane, reactor


def total(threads, name):
    return sum(thread[name] for thread in threads)


def serve_debug(serve, *args, **knobs):
    env = {f"HOOPSNAKE_POOL_{name}": value for name, value in knobs.items()}
    return serve("pool_views:app", *args, env={"HOOPSNAKE_POOL_DEBUG": "1", **env})


def test_contending_threads_keep_the_lock_inside_their_slice(serve):
    """POOL 8: 64 jobs, four contending threads: some kept with the rule."""
    server = serve_debug(serve, "--threads", "4")
    load(server)
    threads, lane, reactor = figures(server)
    assert total(threads, "jobs") == CONNECTIONS * REQUESTS_EACH
    assert total(threads, "kept") > 0
    assert total(threads, "drops_in_slice") == 0
    assert lane["threads"] == 4 and lane["aged_wakes"] > 0
    assert reactor["waits"] > 0 and "passes_over_8ms" in reactor


def test_without_the_keep_rule_the_lock_is_let_go_between_jobs(serve):
    """POOL 8: … none without."""
    server = serve_debug(serve, "--threads", "4", TURN_KEEP="0")
    load(server)
    threads, _, _ = figures(server)
    assert total(threads, "kept") == 0
    assert total(threads, "drops_in_slice") > 0


@pytest.mark.parametrize(
    "arguments, knobs",
    [(("--threads", "1"), {}), (("--threads", "4"), {"TURN": "0"})],
    ids=["one contender", "switched off"],
)
def test_rule_10_no_turn_and_no_keeping_without_a_second_contender(serve, arguments, knobs):
    server = serve_debug(serve, *arguments, **knobs)
    load(server)
    threads, _, _ = figures(server)
    assert total(threads, "jobs") == CONNECTIONS * REQUESTS_EACH
    assert total(threads, "kept") == total(threads, "yields") == 0
    # Longer than the jobs whose answers share a wake.
    assert total(threads, "kept_alone") == 0


@pytest.mark.parametrize("keep", ["1", "0"])
def test_rule_10_a_lone_thread_takes_several_short_jobs_an_attach(serve, keep):
    server = serve_debug(serve, "--threads", "1", TURN_KEEP=keep)
    flood(server)
    threads, _, reactor = figures(server)
    assert total(threads, "jobs") == CONNECTIONS * REQUESTS_EACH
    assert (total(threads, "kept_alone") > 0) == (keep == "1")
    assert total(threads, "kept") == total(threads, "yields") == 0
    assert reactor["pokes_skipped"] > 0


def test_a_full_pool_with_a_queued_request_leaves_the_reactor_asleep(serve):
    """Nobody is parked who could be woken for it: a look at the ring would change nothing."""
    server = serve_debug(serve, "--threads", "2")
    load(server, "/?sleep_ms=1500", connections=3, each=1)
    _, lane, reactor = figures(server)
    assert lane["aged_wakes"] <= 2
    # A look each millisecond would be two thousand.
    assert reactor["waits"] < 700


def test_rule_11_sleeping_views_find_their_threads_one_after_another(serve):
    """POOL 3: each is woken for a ring that stands still, within the first view's sleep."""
    server = serve_debug(serve, "--threads", "8")
    names = load(server, "/?sleep_ms=1500", connections=8, each=1)
    assert len(set(names)) == 8
    _, lane, reactor = figures(server)
    assert lane["idle_wakes"] + lane["aged_wakes"] <= 8 + 8
    assert reactor["waits"] < 700


def test_threads_that_are_not_needed_sleep(serve):
    """POOL 8: gap-separated jobs land on one thread, each after one wake."""
    # A machine that keeps the thread from running makes its ring stand still; not here.
    server = serve_debug(serve, "--threads", "8", WAKE_AGE_US="10000000")
    assert len(set(load(server, "/", connections=1, each=60))) == 1
    threads, lane, _ = figures(server)
    assert sorted(thread["jobs"] for thread in threads)[-2:] == [0, 60]
    assert lane["idle_wakes"] <= 60 and lane["aged_wakes"] == 0


@pytest.mark.parametrize("parallel, used", [("1", 4), ("0", 1)])
def test_a_parallel_pool_wakes_a_thread_for_each_job(serve, parallel, used):
    """With nothing left to the age of a job, which would wake siblings in both."""
    server = serve_debug(serve, "--threads", "4", PARALLEL=parallel, WAKE_AGE_US="10000000")
    load(server, "/", connections=1, each=1)
    names = load(server, "/?sleep_ms=200", connections=4, each=3)
    assert len(set(names)) == used
    _, lane, _ = figures(server)
    assert lane["aged_wakes"] == 0


def test_rule_11_a_request_behind_a_slow_one_finds_another_thread(serve):
    """With the turn on and the lane elastic: the sibling is woken for the age of the job alone."""
    server = serve_debug(serve, "--threads", "2")
    slow = threading.Thread(target=server.get, args=("/?sleep_ms=3000",))
    slow.start()
    names = load(server, "/", connections=1, each=20)
    assert slow.is_alive() and len(set(names)) == 1
    slow.join()
    threads, lane, _ = figures(server)
    assert sorted(thread["jobs"] for thread in threads) == [1, 20]


@pytest.mark.parametrize("policy", [{"SPIN_US": "20"}, {"SPIN_US": "20", "ELASTIC": "0"}])
def test_spinning_threads_answer_and_stop_like_others(serve, policy):
    server = serve_debug(serve, "--threads", "4", **policy)
    load(server, "/")
    threads, _, _ = figures(server)
    assert total(threads, "jobs") == CONNECTIONS * REQUESTS_EACH


@pytest.mark.parametrize("knobs", [{}, {"TURN": "0"}, {"PARALLEL": "1"}], ids=str)
def test_a_pool_stops_immediately_after_its_start(serve, knobs):
    server = serve_debug(serve, "--threads", "8", **knobs)
    threads, _, _ = figures(server)
    assert total(threads, "jobs") == 0 and len(threads) == 8


def test_a_knob_that_is_not_understood_is_named_with_what_is_used_instead(serve):
    env = {"HOOPSNAKE_POOL_TURN": "maybe", "HOOPSNAKE_POOL_SPIN_US": "5"}
    server = serve("hello:app", env=env, workers=2)
    server.wait_for_log(r"WARN.*HOOPSNAKE_POOL_TURN=maybe: expected 0 or 1; 1 is used")
    assert server.get("/").status == 200
    assert server.stop() == 0
    assert server.log().count("HOOPSNAKE_POOL_") == 1


def test_the_table_is_not_printed_unless_it_is_asked_for(serve):
    server = serve("hello:app")
    server.get("/")
    assert server.stop() == 0
    assert "idle_wakes" not in server.log()


def test_doctor_shows_the_knobs_that_are_set():
    def report(env):
        command = [COMMAND, "doctor", "hello:app", "--app-dir", str(APPS)]
        done = subprocess.run(
            command, env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "Knobs" not in report({})
    shown = report({"HOOPSNAKE_POOL_SPIN_US": "7", "HOOPSNAKE_POOL_TRUN": "0"})
    assert "Knobs of the pool\n" in shown
    assert "HOOPSNAKE_POOL_SPIN_US=7\n" in shown
    assert "HOOPSNAKE_POOL_TRUN=0: there is no such knob" in shown
