"""A view that keeps the interpreter lock: the worker lives, answers probes, and says who it is
(RULES.md 6, PRODUCTION.md behaviour 23)."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path

from harness import wait_until
from test_health import Admin, ask

STALL = re.compile(r"the interpreter lock has been held for ([0-9.]+) s without a pause")
OVER = re.compile(r"the interpreter lock moves again: it was held for ([0-9.]+) s")
SIGNAL = signal.SIGRTMIN + 7


def in_background(server, path):
    thread = threading.Thread(target=server.request, args=("GET", path), kwargs={"timeout": 60})
    thread.start()
    return thread


def test_behaviour_23_a_view_that_holds_the_lock_is_named_and_the_worker_lives(serve):
    server = serve("health:app", "--admin", "127.0.0.1:0", "--stall-timeout", "2",
                   "--health-path", "/healthz")
    admin = Admin(server)
    (worker,) = server.worker_pids()
    view = in_background(server, "/hold_the_lock?seconds=8")
    wait_until(lambda: is_held(server), what="the lock is held")
    durations = []
    connection = admin.connection()
    for number in range(200):
        began = time.perf_counter()
        reply = ask(connection, "/live") if number % 2 else admin.ask("/ready")
        assert reply.status == 200
        durations.append(time.perf_counter() - began)
        time.sleep(0.01)
    assert server.get("/healthz").status == 200
    assert view.is_alive(), "the lock was to be held all the while"
    found = server.wait_for_log(STALL, 20)
    assert float(found[1]) >= 2
    server.wait_for_log(r"hoopsnake-pool-\d+ runs GET /hold_the_lock\?seconds=8:\n.* in hold_the_lock\n")
    view.join()
    assert float(server.wait_for_log(OVER, 20)[1]) > 6
    assert len(STALL.findall(server.log())) == 1
    assert server.worker_pids() == [worker]
    assert server.get("/").body == b"GET hello"
    print(f"p99 of 200 probes: {sorted(durations)[197] * 1e3:.2f} ms")


def is_held(server) -> bool:
    try:
        server.request("GET", "/", timeout=0.3)
    except TimeoutError:
        return True
    return False


def test_each_stall_is_said_once(serve):
    server = serve("health:app", "--stall-timeout", "1")
    for count in (1, 2):
        in_background(server, "/hold_the_lock?seconds=4").join()
        wait_until(lambda: len(OVER.findall(server.log())) == count, 20)  # noqa: B023
        assert len(STALL.findall(server.log())) == count
    assert server.stop() == 0


def test_threads_that_sleep_or_are_busy_are_no_stall(serve):
    server = serve("health:app", "--stall-timeout", "1", "--threads", "8")
    views = [in_background(server, f"/{kind}?seconds=4") for kind in ["sleep", "spin"] * 4]
    for view in views:
        view.join()
    assert not STALL.search(server.log()) and not OVER.search(server.log())


def is_caught(pid: int) -> bool:
    """Whether the process has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)[1], 16)
    return bool(mask >> SIGNAL - 1 & 1)


def test_a_child_of_a_view_has_nothing_of_it(serve):
    """The child's signal takes its default effect, and the worker's stacks are its own."""
    server = serve("health:app", "--stall-timeout", "1")
    child = int(server.get("/fork").body)
    wait_until(lambda: not is_caught(child), what="its handler is gone")
    os.kill(child, SIGNAL)
    assert server.get(f"/end_of_child?pid={child}").body == str(-SIGNAL).encode()
    other = int(server.get("/fork").body)
    in_background(server, "/hold_the_lock?seconds=4").join()
    server.wait_for_log(r"in hold_the_lock\n", 20)
    # Forked after a stall, too.
    later = int(server.get("/fork").body)
    wait_until(lambda: not is_caught(later), what="the same later")
    for pid in (other, later):
        os.kill(pid, signal.SIGKILL)
    assert server.get("/").body == b"GET hello"
    assert server.stop() == 0


def test_a_signal_by_hand_disturbs_nothing(serve):
    server = serve("health:app", "--stall-timeout", "1")
    (worker,) = server.worker_pids()
    for _ in range(200):
        os.kill(worker, SIGNAL)
    assert server.get("/").body == b"GET hello"
    in_background(server, "/hold_the_lock?seconds=4").join()
    server.wait_for_log(r"runs GET /hold_the_lock\?seconds=4:\n.* in hold_the_lock\n", 20)
    assert server.worker_pids() == [worker]


def test_a_signal_that_the_application_took_is_not_raised(serve):
    """It would end the process."""
    server = serve("health:app", "--stall-timeout", "1")
    (worker,) = server.worker_pids()
    server.get("/take_over")
    in_background(server, "/hold_the_lock?seconds=4").join()
    server.wait_for_log(STALL, 20)
    server.wait_for_log(rf"no stacks: the application has taken over signal {int(SIGNAL)}")
    assert server.worker_pids() == [worker]
    assert server.get("/").body == b"GET hello"


def test_off_is_off(serve):
    server = serve("health:app", "--stall-timeout", "0")
    (worker,) = server.worker_pids()
    names = [p.read_text().strip() for p in Path(f"/proc/{worker}/task").glob("*/comm")]
    assert "hoopsnake-reactor"[:15] in names and "hoopsnake-pulse"[:15] not in names
    in_background(server, "/hold_the_lock?seconds=3").join()
    assert server.get("/").body == b"GET hello"
    assert not STALL.search(server.log()) and not OVER.search(server.log())
