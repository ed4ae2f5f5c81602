"""The rolling restart, and workers that are renewed otherwise: RULES.md 1 and 25, PRODUCTION.md 7."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest
from harness import process_is_alive, wait_until
from load import Load

SITE = """
import json, os, socket, stat, time
{before}
def app(environ, start_response):
    if environ["PATH_INFO"] == "/recycle":
        recycle()
    if environ["PATH_INFO"] == "/slow":
        time.sleep(float(environ["QUERY_STRING"]))
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(["{version}", os.getpid()]).encode()]

def recycle():
    '''Says on the worker's control socket what its reactor would say.'''
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with copy:
            if copy.type & socket.SOCK_SEQPACKET == socket.SOCK_SEQPACKET:
                copy.send(b'{{"Recycle":{{"reason":"on purpose"}}}}')
"""

COMPLETE = "the rolling restart is complete"
HELD_BACK = "no fewer old processes drain than there are workers"
ENV = {"PYTHONDONTWRITEBYTECODE": "1"}


class Site:
    """An application in a directory of its own, whose code changes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.write("one")

    def write(self, version: str, before: str = "") -> None:
        (self.directory / "site_app.py").write_text(SITE.format(version=version, before=before))

    def settings(self, text: str) -> None:
        (self.directory / "hoopsnake.toml").write_text(text)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.fixture
def serve_site(serve, site):
    def start(*args, **options):
        options.setdefault("workers", 2)
        return serve("site_app:app", *args, app_dir=site.directory, cwd=site.directory, env=ENV,
                     **options)

    return start


def hup(server):
    server.process.send_signal(signal.SIGHUP)


def count(server, text):
    return server.log().count(text)


def wait_for_count(server, text, number, timeout=20):
    wait_until(lambda: count(server, text) >= number, timeout, f"{number} × {text!r}")


def wait_for_version(server, version):
    """An old process may accept until it has read that it drains."""
    wait_until(lambda: {server.get().json()[0] for _ in range(8)} == {version}, 20, version)


def pids_by_number(server):
    """The processes of the numbers that are ready, in the order of the numbers."""
    found = re.findall(r" worker (\d+) is ready .*\bpid=(\d+)", server.log())
    return [pid for _, pid in sorted({int(number): int(pid) for number, pid in found}.items())]


def starting_pids(server):
    """Processes of the server that are not ready and not the supervisor."""
    ready = server.ever_ready_pids()
    return [pid for pid in server.session_pids() if pid != server.pid and pid not in ready]


@pytest.mark.parametrize("preload", [False, True])
def test_behaviour_7_hup_under_load_fails_no_request_however_slow_the_import(
    serve_site, site, preload, request
):
    """RULES 1: the successor's *ready* and nothing else begins the old one's drain."""
    seconds = 10 if request.config.getoption("--long") else 3
    server = serve_site(*(["--preload"] if preload else []))
    old = server.worker_pids()
    site.write("two", f"time.sleep({seconds})")
    with Load(server) as load:
        wait_until(lambda: len(load.answers) > 100)
        hup(server)
        server.wait_for_log("SIGHUP: a rolling restart begins")
        during = len(load.answers)
        wait_until(lambda: len(load.answers) > during + 200, what="answers while it imports")
        assert server.ever_ready_pids() == server.worker_pids() == old, "the old ones serve"
        server.wait_for_log(COMPLETE, 60)
        wait_until(lambda: not any(map(process_is_alive, old)), 30, "the old workers' end")
        before = len(load.answers)
        wait_until(lambda: len(load.answers) > before + 100)
    assert load.failures == []
    assert {'["one"' , '["two"'} == {answer.split(",")[0] for answer in load.answers}
    new = server.worker_pids()
    assert len(new) == 2 and not set(old) & set(new)
    for _ in range(10):
        version, pid = server.get().json()
        assert version == "two" and pid in new
    # One after another: the second waits for the first.
    drains = server.log().index("worker 1: the old process drains")
    assert drains < server.log().index(f"worker 2 is ready pid={pids_by_number(server)[1]}")
    assert server.stop() == 0


def test_rule_25_hup_closes_no_idle_connection_before_the_window(serve_site, site):
    server = serve_site("--drain-idle", "3", workers=1)
    (old,) = server.worker_pids()
    idle = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=10) for _ in range(2)]
    for connection in idle:
        connection.request("GET", "/")
        connection.getresponse().read()
    site.write("two")
    hup(server)
    server.wait_for_log(COMPLETE)
    idle[0].request("GET", "/")
    response = idle[0].getresponse()
    assert response.read().decode() == f'["one", {old}]', "by the process that has the connection"
    assert response.headers["Connection"] == "close"
    assert process_is_alive(old), "the other connection is in its window"
    wait_for_version(server, "two")
    assert idle[1].sock.recv(1) == b"", "closed at the window's end"
    server.wait_for_log(f"worker 1: the old process has drained and ended with code 0 pid={old}")


def test_a_request_that_runs_is_answered_by_the_old_process(serve_site, site):
    server = serve_site(workers=1)
    with server.connect(20) as client:
        client.sendall(b"GET /slow?2 HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(0.3)
        site.write("two")
        hup(server)
        server.wait_for_log(COMPLETE)
        assert client.recv(4096).endswith(f'["one", {server.ever_ready_pids()[0]}]'.encode())


def test_an_old_process_that_overruns_its_grace_is_killed_and_named(serve_site, site):
    server = serve_site("--grace", "2", workers=1)
    (old,) = server.worker_pids()
    with server.connect(20) as client:
        client.sendall(b"GET /slow?60 HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(0.3)
        os.kill(old, signal.SIGSTOP)
        hup(server)
        server.wait_for_log(COMPLETE)
        server.wait_for_log(f"worker 1: the old process is killed: the grace is over pid={old}")
    assert server.stop() == 0, "the server did not stop for it"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("threads = 0\n", 'threads is "0" (from threads in hoopsnake.toml)'),
        ("threads = \n", "hoopsnake.toml is not TOML"),
    ],
)
def test_a_broken_configuration_changes_nothing(serve_site, site, text, sentence):
    server = serve_site()
    pids = server.worker_pids()
    site.write("two")
    site.settings(text)
    hup(server)
    server.wait_for_log("SIGHUP: nothing was changed: ")
    assert sentence in server.log()
    assert server.worker_pids() == pids and server.get().json()[0] == "one"
    site.settings("threads = 3\n")
    hup(server)
    server.wait_for_log(COMPLETE)
    wait_for_version(server, "two")


@pytest.mark.parametrize("preload", [False, True])
def test_an_import_that_fails_leaves_the_old_workers(serve_site, site, preload):
    server = serve_site(*(["--preload"] if preload else []))
    pids = server.worker_pids()
    site.write("two", "raise RuntimeError('not today')")
    hup(server)
    who = "the new template" if preload else "worker 1: the successor"
    server.wait_for_log(
        rf"the rolling restart stopped: {who} could not load the application "
        r".*the old configuration stays in force .*\(0 of 2 workers were renewed before\)"
    )
    assert count(server, "Traceback") == 1 and count(server, "not today") >= 1
    assert server.worker_pids() == pids and server.get().json()[0] == "one"
    left = int(preload)
    wait_until(lambda: len(starting_pids(server)) == left, what="the old template is left")
    site.write("three")
    hup(server)
    server.wait_for_log(COMPLETE)
    wait_for_version(server, "three")


def test_a_roll_out_that_fails_on_the_way_keeps_what_it_renewed(serve_site, site):
    server = serve_site()
    old = pids_by_number(server)
    mark = site.directory / "imported"
    site.write("two", f"if os.path.exists({str(mark)!r}): raise RuntimeError\nopen({str(mark)!r}, 'w')")
    hup(server)
    server.wait_for_log(
        r"stopped: worker 2: the successor could not load .*\(1 of 2 workers were renewed before\)"
    )
    wait_until(lambda: not process_is_alive(old[0]), 20)
    assert len(server.worker_pids()) == 2 and old[1] in server.worker_pids()


def test_hup_during_a_roll_out_begins_anew_with_the_newest(serve_site, site):
    server = serve_site()
    site.write("two", "time.sleep(60)")
    hup(server)
    wait_until(lambda: len(starting_pids(server)) == 1, what="the first successor")
    (abandoned,) = starting_pids(server)
    site.write("three", "time.sleep(0.5)")
    hup(server)
    server.wait_for_log("SIGHUP: the rolling restart begins anew")
    server.wait_for_log(COMPLETE, 20)
    assert not process_is_alive(abandoned), "it had accepted nothing"
    wait_for_version(server, "three")
    assert len(server.worker_pids()) >= 2


def test_hup_again_and_again_ends_with_one_set_of_workers(serve_site, site):
    server = serve_site()
    for _ in range(5):
        hup(server)
        time.sleep(0.15)
    server.wait_for_log(COMPLETE, 20)
    wait_until(lambda: len(server.worker_pids()) == 2 and not starting_pids(server), 20)
    assert server.stop() == 0


def test_hup_while_the_workers_start_is_done_when_they_are_ready(serve_site, site):
    site.write("one", "time.sleep(1.5)")
    server = serve_site(wait=False)
    wait_until(lambda: len(starting_pids(server)) == 2)
    time.sleep(0.5)
    hup(server)
    server.wait_for_log("SIGHUP: the workers are still starting")
    site.write("two")
    server.wait_until_ready()
    server.wait_for_log(COMPLETE, 20)
    wait_for_version(server, "two")


def test_a_changed_number_of_workers_takes_effect(serve_site, site):
    site.settings("workers = 1\n")
    server = serve_site(workers=None)
    for round, number in enumerate([3, 2], 1):
        site.settings(f"workers = {number}\n")
        hup(server)
        wait_for_count(server, COMPLETE, round)
        assert f"{COMPLETE} workers={number}" in server.log()
        wait_until(lambda: len(server.worker_pids()) == number, 20, f"{number} workers")
    assert server.stop() == 0


def test_what_cannot_change_is_kept_and_named(serve_site, site):
    site.settings("threads = 2\n")
    server = serve_site()
    site.settings("threads = 3\nbacklog = 5\nproc-name = 'other'\n")
    hup(server)
    server.wait_for_log("SIGHUP: backlog, proc-name changed, which takes a new start of the server")
    server.wait_for_log(COMPLETE)
    assert Path(f"/proc/{pids_by_number(server)[0]}/comm").read_text() == "hoopsnake:1\n"


def test_files_are_found_again_behind_chdir(serve, site, tmp_path_factory):
    """The files are looked for where the command was started, at SIGHUP too."""
    site.settings("env-file = 'env'\n")
    env_file = site.directory / "env"
    env_file.write_text("FROM_FILE=one\n")
    other = tmp_path_factory.mktemp("elsewhere")
    server = serve("life:app", "--chdir", other, cwd=site.directory, workers=1)
    assert server.get().json()["env"] == "one"
    env_file.write_text("FROM_FILE=two\n")
    hup(server)
    server.wait_for_log(COMPLETE)
    wait_until(lambda: server.get().json()["env"] == "two")
    assert server.get().json()["cwd"] == str(other)


@pytest.mark.parametrize("preload", [False, True])
def test_a_deployment_by_symlink_is_found(serve, tmp_path, preload):
    """What the working directory was at the start is the old release for ever."""
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        Site(tmp_path / version).write(version)
    current = tmp_path / "current"
    current.symlink_to("one")
    words = ["--app-dir", ".", "--chdir", "current", *(["--preload"] if preload else [])]
    server = serve("site_app:app", *words, cwd=tmp_path, env=ENV)
    assert server.get().json()[0] == "one"
    current.unlink()
    current.symlink_to("two")
    hup(server)
    server.wait_for_log(COMPLETE)
    wait_for_version(server, "two")


@pytest.mark.parametrize("preload", [False, True])
def test_kill_9_of_a_worker_under_load_costs_its_own_requests_only(serve_site, preload):
    server = serve_site(*(["--preload"] if preload else []))
    victim = server.worker_pids()[0]
    with Load(server) as load:
        wait_until(lambda: len(load.answers) > 100)
        os.kill(victim, signal.SIGKILL)
        wait_until(
            lambda: victim not in server.worker_pids() and len(server.worker_pids()) == 2,
            20, "another worker",
        )
        after = len(load.answers)
        wait_until(lambda: len(load.answers) > after + 500)
    # The kernel takes a moment to reset a killed ring's connections.
    assert len(load.failures) <= 8, load.failures
    assert server.get().status == 200
    assert server.stop() == 0


def test_kill_9_of_an_old_worker_in_a_roll_out_loses_nobody(serve_site, site):
    server = serve_site()
    old = pids_by_number(server)
    site.write("two", "time.sleep(1.5)")
    hup(server)
    wait_until(lambda: len(starting_pids(server)) == 1)
    os.kill(old[0], signal.SIGKILL)
    server.wait_for_log("worker 1 was killed by signal 9 .*; its successor is starting already")
    server.wait_for_log(COMPLETE, 20)
    wait_until(lambda: not process_is_alive(old[1]), 20)
    assert len(server.worker_pids()) == 2 and len(server.ever_ready_pids()) == 4


def test_kill_9_of_a_successor_stops_the_roll_out(serve_site, site):
    server = serve_site()
    old = server.worker_pids()
    site.write("two", "time.sleep(30)")
    hup(server)
    wait_until(lambda: len(starting_pids(server)) == 1)
    os.kill(starting_pids(server)[0], signal.SIGKILL)
    server.wait_for_log("the rolling restart stopped: worker 1: the successor was killed by signal 9")
    assert server.worker_pids() == old and starting_pids(server) == []
    assert server.stop() == 0


@pytest.mark.parametrize("preload", [False, True])
def test_rule_1_kill_9_of_the_supervisor_in_a_roll_out_leaves_nothing(serve_site, site, preload):
    words = ["--preload"] if preload else []
    server = serve_site("--grace", "5", "--drain-idle", "0", *words)
    known = len(server.session_pids())
    site.write("two", "time.sleep(60)")
    hup(server)
    wait_until(lambda: len(server.session_pids()) == known + 1, what="a successor")
    time.sleep(0.3)
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    wait_until(lambda: server.session_pids() == [], 6, "every process's end")
    with socket.create_server(("127.0.0.1", server.port)):
        pass


@pytest.mark.parametrize("preload", [False, True])
def test_sigterm_in_a_roll_out_ends_what_starts_and_drains_what_serves(serve_site, site, preload):
    server = serve_site(*(["--preload"] if preload else []))
    known = len(server.session_pids())
    site.write("two", "time.sleep(60)")
    hup(server)
    wait_until(lambda: len(server.session_pids()) == known + 1, what="a successor")
    with server.connect(20) as client:
        client.sendall(b"GET /slow?1.5 HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        assert b'"one"' in client.recv(4096)
    assert server.wait() == 0
    assert server.session_pids() == []


def test_a_worker_that_asks_for_a_successor_gets_one(serve_site, site):
    server = serve_site()
    asked = server.get("/recycle").json()[1]
    server.wait_for_log(r"worker \d is replaced: on purpose")
    server.wait_for_log(f"worker \\d: the old process drains pid={asked}")
    wait_until(lambda: not process_is_alive(asked), 20)
    assert len(server.worker_pids()) == 2 and len(server.ever_ready_pids()) == 3
    assert COMPLETE not in server.log()


def test_a_successor_that_cannot_start_is_tried_again_later(serve_site, site):
    server = serve_site(workers=1)
    (old,) = server.worker_pids()
    site.write("two", "raise RuntimeError('not yet')")
    server.get("/recycle")
    server.wait_for_log(
        r"worker 1: the successor could not load .*the old process serves on, and another successor "
        "starts in 200ms"
    )
    assert server.get().json() == ["one", old]
    site.write("three")
    wait_until(lambda: server.get().json()[0] == "three", 20)


def test_ttin_and_ttou_change_the_number_of_workers(serve_site, site):
    server = serve_site(workers=1)
    (first,) = server.worker_pids()
    for number in (2, 3):
        server.process.send_signal(signal.SIGTTIN)
        wait_until(lambda: len(server.worker_pids()) == number, what=f"{number} workers")
    for number in (2, 1):
        highest = server.worker_pids()[-1]
        server.process.send_signal(signal.SIGTTOU)
        wait_until(lambda: not process_is_alive(highest), 20, "the highest number's end")
    assert server.worker_pids() == [first]
    server.process.send_signal(signal.SIGTTOU)
    server.wait_for_log("SIGTTOU: the number of workers is 1, its bound; nothing was changed")
    server.process.send_signal(signal.SIGTTIN)
    wait_until(lambda: len(server.worker_pids()) == 2)
    hup(server)
    server.wait_for_log(f"{COMPLETE} workers=1")
    assert server.get().status == 200
    assert server.stop() == 0


def test_signals_meant_for_the_supervisor_do_nothing_to_workers(serve_site, site):
    """`pkill -HUP hoopsnake` finds the workers too."""
    server = serve_site()
    for pid in server.worker_pids():
        for name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGTTIN", "SIGTTOU"):
            os.kill(pid, getattr(signal, name))
    time.sleep(0.3)
    assert len(server.worker_pids()) == len(server.ever_ready_pids()) == 2
    assert server.get().status == 200


@pytest.mark.parametrize("words", [[], ["--preload"]])
def test_rule_27_sigusr1_reaches_every_worker(serve_site, tmp_path, words):
    file = tmp_path / "access.log"
    server = serve_site("--access-log", file, *words)
    file.rename(tmp_path / "moved")
    server.process.send_signal(signal.SIGUSR1)
    server.wait_for_log("SIGUSR1: the workers open their log files again workers=2")
    wait_until(file.exists, what="a new file")
    asked = set()
    while len(asked) < 2:
        asked.add(server.get().json()[1])
    wait_until(lambda: file.read_text().count("GET /") >= 2, what="lines in the new file")


def test_a_worker_whose_thread_is_stuck_is_replaced(serve_site):
    """RULES 6 and the deadline of requests: the reactor asks, the supervisor renews."""
    server = serve_site("--request-timeout", "1", "--grace", "2", workers=1)
    (old,) = server.worker_pids()
    assert server.get("/slow?60").status == 504
    server.wait_for_log("worker 1 is replaced: ")
    server.wait_for_log(f"worker 1: the old process drains pid={old}")
    server.wait_for_log(f"worker 1: the old process ended .*pid={old}\\b")
    assert server.get().status == 200
    assert server.stop() == 0


def dead_children(server):
    """Processes that have ended and that the supervisor has not collected."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = file.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state == "Z" and int(parent) == server.pid:
            found.append(file.parent.name)
    return found


def most_processes(server, seconds):
    """The most that were there at once, the supervisor and the template among them."""
    most, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        most = max(most, len(server.session_pids()))
        time.sleep(0.02)
    return most


def test_workers_that_hang_do_not_pile_up(serve_site):
    """Every one of them takes the whole grace to leave; only one does so beside the one that serves."""
    server = serve_site("--preload", "--request-timeout", "0.3", "--grace", "4", workers=1)
    for _ in range(6):
        assert server.get("/slow?60").status == 504
    server.wait_for_log(f"{HELD_BACK}: .* draining=1 grace=4s")
    # The supervisor, the template, who serves, its successor's middle and itself, who drains.
    assert most_processes(server, 1) <= 6
    assert count(server, HELD_BACK) == 1
    wait_for_count(server, "the old process drains", 2)
    assert server.get().status == 200


def test_hup_again_and_again_waits_for_those_that_drain(serve_site):
    server = serve_site("--grace", "3", workers=1)
    answers = []
    for seconds in ("2.5", "2"):
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        client.request("GET", f"/slow?{seconds}")
        answers.append(client)
        time.sleep(0.2)
        hup(server)
        wait_for_count(server, "SIGHUP: a rolling restart begins", len(answers))
        if len(answers) == 1:
            wait_for_count(server, COMPLETE, 1)
    server.wait_for_log(HELD_BACK)
    assert count(server, "the old process drains") == 1
    wait_for_count(server, COMPLETE, 2)
    assert [client.getresponse().status for client in answers] == [200, 200]



DIES = """
import os
def dies(worker):
    if os.path.exists("dies"):
        os._exit(9)
"""

# What the next worker says, and its end, the supervisor hears at the same time.
HALT = """
import signal
SUPERVISOR = os.getppid()
def halt():
    if os.path.exists("dies"):
        os.kill(SUPERVISOR, signal.SIGSTOP)
"""


def go_on_after_a_death(server, site):
    """The supervisor has been halted; what it does then."""
    try:
        wait_until(lambda: dead_children(server), 20)
    finally:
        (site.directory / "dies").unlink()
        os.kill(server.pid, signal.SIGCONT)


def test_a_preloaded_worker_that_ends_at_once_is_known(serve_site, site):
    (site.directory / "dying.py").write_text(DIES)
    site.write("one", HALT + "os.register_at_fork(before=halt)")
    server = serve_site("--preload", "--on-worker-start", "dying:dies", workers=1)
    (site.directory / "dies").touch()
    server.process.send_signal(signal.SIGTTIN)
    go_on_after_a_death(server, site)
    server.wait_for_log("worker 2 ended with code 9; another starts in 100ms")
    wait_until(lambda: len(server.worker_pids()) == 2, 20)
    assert "bug:" not in server.log()


@pytest.mark.parametrize("words", [[], ["--preload"]])
def test_an_old_process_does_not_make_room_for_a_dead_one(serve_site, site, words):
    (site.directory / "dying.py").write_text(DIES)
    server = serve_site("--on-worker-ready", "dying:dies", *words, workers=1)
    (old,) = server.worker_pids()
    (site.directory / "dies").touch()
    site.write("two", HALT + ("os.register_at_fork(before=halt)" if words else "halt()"))
    hup(server)
    go_on_after_a_death(server, site)
    server.wait_for_log("the rolling restart stopped: worker 1: the successor ended with code 9")
    assert server.get().json() == ["one", old]
    assert "bug:" not in server.log()


@pytest.mark.parametrize("words", [[], ["--preload"]])
def test_signals_meant_for_the_supervisor_stop_no_worker_that_starts(serve_site, site, words):
    """`pkill -HUP` finds a process between its fork and its own handlers, too."""
    site.write("two", "os.register_at_fork(after_in_child=lambda: time.sleep(0.3))")
    server = serve_site(*words, workers=1)
    hup(server)
    for number in range(1, 4):
        if number > 1:
            hup(server)
        while count(server, COMPLETE) < number and "rolling restart stopped" not in server.log():
            for pid in server.session_pids():
                if pid != server.pid:
                    try:
                        os.kill(pid, signal.SIGHUP)
                    except ProcessLookupError:
                        pass
    assert "rolling restart stopped" not in server.log()
    wait_for_version(server, "two")


@pytest.mark.parametrize("hangs", ["import", "fork"])
def test_who_is_waited_for_is_named(serve_site, site, hangs):
    words = ["--preload"] if hangs == "fork" else []
    server = serve_site(*words, workers=1)
    if hangs == "fork":
        site.write("two", "os.register_at_fork(after_in_child=lambda: time.sleep(600))")
        sentence = (
            "worker 1: the successor was ordered from the template 30s ago and has not said its process "
            "id: does an at-fork hook of the application hang"
        )
    else:
        site.write("two", "time.sleep(600)")
        sentence = "worker 1: the successor is not ready 30s after its start: does the import"
    hup(server)
    server.wait_for_log(sentence, 60)
    time.sleep(0.3)
    assert count(server, "the rolling restart waits") == 1
    assert server.get().json()[0] == "one"
    assert server.stop() == 0
