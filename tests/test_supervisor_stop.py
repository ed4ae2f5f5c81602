"""How a stop begins, and when the supervisor gives up: RULES.md 2 and 25, PRODUCTION.md 5."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from harness import process_is_alive, read_to_end, wait_until
from test_supervisor_life import refuses

APPLICATION = """
def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
"""
DELAYED = "stopping: SIGTERM; /ready says 503 until the drain begins"


def tell_supervisor(server, number):
    server.process.send_signal(number)


def tell_group(server, number):
    """As systemd does, and a terminal."""
    os.killpg(server.pid, number)


def tell_worker(server, number):
    os.kill(server.worker_pids()[0], number)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("tell", [tell_supervisor, tell_group])
def test_rule_25_behaviour_5_all_is_served_while_the_delay_runs(serve, tell, single):
    server = serve("life:app", "--shutdown-delay", "2", *(["--single-process"] if single else []))
    start = time.monotonic()
    tell(server, signal.SIGTERM)
    if not single:
        server.wait_for_log(DELAYED)
    time.sleep(0.3)
    for _ in range(5):
        reply = server.get()
        assert reply.status == 200
    with server.connect() as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"connection: close" not in client.recv(4096).lower(), "nothing drains yet"
        assert read_to_end(client) == b"", "closed in the drain"
    assert server.wait() == 0
    assert time.monotonic() - start >= 2
    log = server.log()
    if not single:
        assert log.index(DELAYED) < log.index("the delay is over: draining") < log.index("stopped")


def test_rule_25_the_grace_begins_behind_the_delay(serve):
    server = serve("life:app", "--shutdown-delay", "1.5", "--grace", "3", workers=2)
    with server.connect(20) as client:
        client.sendall(b"GET /slow?seconds=3 HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        assert read_to_end(client, 20).startswith(b"HTTP/1.1 200 OK\r\n")
    assert server.wait() == 0, server.log()


def test_a_worker_that_is_told_alone_keeps_the_delay_and_is_replaced(serve):
    server = serve("life:app", "--shutdown-delay", "1", "--drain-idle", "0")
    (old,) = server.worker_pids()
    tell_worker(server, signal.SIGTERM)
    time.sleep(0.3)
    assert server.get().json()["pid"] == old
    server.wait_for_log(f"worker 1 ended with code 0; another starts in 0ns pid={old}")
    wait_until(lambda: server.worker_pids() not in ([], [old]))
    assert server.get().json()["pid"] != old


@pytest.mark.parametrize("sentence", ["a second SIGINT came", "SIGQUIT does not wait"])
def test_the_impatient_do_not_wait_for_the_delay(serve, sentence):
    server = serve("life:app", "--shutdown-delay", "60", workers=2)
    start = time.monotonic()
    server.process.send_signal(signal.SIGINT)
    server.wait_for_log("stopping: SIGINT; /ready says 503")
    time.sleep(0.5)
    assert server.stop(signal.SIGQUIT if "QUIT" in sentence else signal.SIGINT) == 1
    assert time.monotonic() - start < 10
    assert server.log().count(f"is killed: {sentence}") == 2


def test_a_second_interrupt_does_not_wait_for_the_delay_of_a_single_process(serve):
    server = serve("life:app", "--shutdown-delay", "60", "--single-process")
    start = time.monotonic()
    server.process.send_signal(signal.SIGINT)
    time.sleep(0.6)
    server.stop(signal.SIGINT)
    assert time.monotonic() - start < 10


def test_hup_in_a_stop_changes_nothing(serve):
    server = serve("life:app", "--shutdown-delay", "1")
    server.process.send_signal(signal.SIGTERM)
    server.wait_for_log(DELAYED)
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("SIGHUP: the server is stopping; nothing was changed")
    assert server.wait() == 0


def test_a_worker_that_asks_for_a_successor_in_the_delay_is_not_said_to_get_one(serve):
    server = serve("life:app", "--request-timeout", "0.5", "--shutdown-delay", "2", "--grace", "1")
    server.process.terminate()
    server.wait_for_log("/ready says 503 until the drain begins")
    assert server.get("/slow?seconds=30").status == 504
    assert server.wait() == 1, "its thread hangs"
    assert "is replaced" not in server.log()


def test_kill_9_of_the_supervisor_in_the_delay_drains(serve):
    server = serve("life:app", "--shutdown-delay", "60", "--drain-idle", "0", workers=2)
    server.process.send_signal(signal.SIGTERM)
    server.wait_for_log(DELAYED)
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    wait_until(lambda: server.session_pids() == [], 10, "the workers' end")


def test_rule_4_a_drain_in_which_the_reactor_fails_is_not_complete(serve, tmp_path):
    """What had no answer is named, and the code says so. On epoll: what takes its descriptor away does
    not take a registered ring away."""
    flag = tmp_path / "drains"
    (tmp_path / "breaking.py").write_text(
        "import os, time\n"
        "def app(environ, start_response):\n"
        f"    while not os.path.exists({str(flag)!r}):\n"
        "        time.sleep(0.02)\n"
        "    for name in os.listdir('/proc/self/fd'):\n"
        "        path = f'/proc/self/fd/{name}'\n"
        "        target = os.readlink(path) if os.path.lexists(path) else ''\n"
        "        if target in ('anon_inode:[eventpoll]', 'anon_inode:[io_uring]'):\n"
        "            os.dup2(os.open('/dev/null', os.O_RDONLY), int(name))\n"
        "    time.sleep(4)\n"
        "    start_response('200 OK', [])\n"
        "    return [b'']\n"
    )
    server = serve("breaking:app", "--single-process", "--grace", "20", app_dir=tmp_path, io="epoll")
    with server.connect(30) as client:
        client.sendall(b"GET /owed HTTP/1.1\r\nHost: a\r\n\r\n")
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refuses(server), what="the drain")
        flag.touch()
        assert server.wait(30) == 1, server.log()
    server.wait_for_log("the reactor cannot go on; the worker ends")
    server.wait_for_log("GET /owed.* has no complete answer")


# Process 1

UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def may_unshare():
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not may_unshare(), reason="a PID namespace takes unshare(1) and CAP_SYS_ADMIN")
@pytest.mark.parametrize("preload", [False, True])
def test_process_1_collects_orphans_and_ends_on_sigterm(serve, tmp_path, preload):
    (tmp_path / "orphans.py").write_text(
        "import os\n"
        "def app(environ, start_response):\n"
        "    if environ['PATH_INFO'] == '/orphan':\n"
        "        pid = os.fork()\n"
        "        if pid == 0:\n"
        "            if os.fork() == 0:\n"
        "                os.execvp('sleep', ['sleep', '0.3'])\n"
        "            os._exit(0)\n"
        "        os.waitpid(pid, 0)\n"
        "    states = [open(f'/proc/{name}/stat').read().rpartition(')')[2].split()[0]\n"
        "              for name in os.listdir('/proc') if name.isdigit()]\n"
        "    start_response('200 OK', [('Content-Type', 'text/plain')])\n"
        "    return [f'{os.getppid()} {len(states)} {states.count(chr(90))}'.encode()]\n"
    )
    words = ["--preload"] if preload else []
    server = serve("orphans:app", *words, app_dir=tmp_path, workers=2, prefix=tuple(UNSHARE))
    parent, processes, _ = server.get().text.split()
    assert parent == "1"
    for _ in range(3):
        server.get("/orphan")
    time.sleep(1)
    wait_until(lambda: server.get().text == f"1 {processes} 0", what="no zombie is left")
    (first,) = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    os.kill(int(first), signal.SIGTERM)
    assert server.wait() == 0
    assert "stopping: SIGTERM" in server.log()


# The crash loop

GIVING_UP = re.compile(
    r"giving up: (?P<count>\d+) processes ended within 10s of their start in the last \d+ s, and no "
    r"other worker serves soundly; the last one, (?P<last>[^.]*)\. Look at what the application printed"
)


def test_a_crash_loop_ends_with_a_sentence(serve, tmp_path):
    flag = tmp_path / "crash"
    (tmp_path / "crashing.py").write_text(
        "import os, threading\nfrom hello import app\n"
        f"if os.path.exists({str(flag)!r}):\n"
        "    threading.Timer(0.3, os._exit, [9]).start()\n"
    )
    server = serve("crashing:app", "--respawn-max", "3", env={"PYTHONPATH": str(tmp_path)})
    flag.touch()
    os.kill(server.worker_pids()[0], signal.SIGKILL)
    assert server.wait() == 1
    found = GIVING_UP.search(server.log())
    assert found and found["count"] == "4" and found["last"] == "worker 1, ended with code 9"
    assert server.log().count("giving up") == 1
    assert server.log().count("another starts in") == 4


@pytest.mark.parametrize("preload", [False, True])
def test_an_import_that_fails_again_and_again_is_a_crash_loop(serve, tmp_path, preload):
    file = tmp_path / "changing.py"
    file.write_text("from hello import app\n")
    words = ["--preload"] if preload else []
    server = serve("changing:app", "--respawn-max", "5", *words, workers=2,
                   env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"})
    file.write_text("import a_module_that_nobody_has\nfrom hello import app\n")
    # While one of them serves, the server does not give up.
    for pid in server.session_pids():
        if pid != server.pid:
            os.kill(pid, signal.SIGKILL)
    assert server.wait() == 1
    found = GIVING_UP.search(server.log())
    assert found and int(found["count"]) == 6
    assert "a_module_that_nobody_has" in server.log()
    assert server.session_pids() == []


def test_a_worker_that_never_failed_keeps_the_server_up(serve):
    server = serve("life:app", "--respawn-max", "2", workers=2)
    sound = server.worker_pids()[0]
    for _ in range(5):
        victim = server.worker_pids()[-1]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(server.worker_pids()) == 2 and not process_is_alive(victim))
    assert sound in server.worker_pids() and "giving up" not in server.log()
    assert server.stop() == 0


def test_respawn_max_0_never_gives_up(serve):
    server = serve("life:app", "--respawn-max", "0")
    for _ in range(4):
        (victim,) = server.worker_pids()
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: server.worker_pids() not in ([], [victim]), what="the next worker")
    assert server.get().status == 200


def test_rule_25_a_response_that_outlives_the_window_keeps_its_promise(serve):
    """Begun before the stop, it says nothing of a close: the next request on its connection may be on
    its way when it ends."""
    server = serve("behaviour_stream:app", "--drain-idle", "1")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/stream?name=a&pieces=12&seconds=0.25")
    response = connection.getresponse()
    assert response.headers["Connection"] is None
    server.process.send_signal(signal.SIGTERM)
    response.read()
    connection.request("GET", "/")
    response = connection.getresponse()
    assert (response.read(), response.headers["Connection"]) == (b"hello", "close")
    assert server.wait() == 0


@pytest.mark.parametrize(
    "line, said",
    [
        ("os.closerange(3, 64)", r"(?i)bad file descriptor|worker \d .* before it was ready"),
        ("os._exit(3)", r"worker \d ended with code 3 before it was ready"),
        ("os._exit(4)", r"worker \d ended with code 4 before it was ready"),
    ],
)
def test_an_import_that_ends_the_process_without_a_word_is_spoken_of(serve, tmp_path, line, said):
    (tmp_path / "silent.py").write_text(f"import os\n{line}\n" + APPLICATION)
    server = serve("silent:app", app_dir=tmp_path, workers=2, wait=False)
    assert server.wait() == 1
    assert re.search(said, server.log()), server.log()


def test_rule_1_a_worker_in_a_session_of_its_own_is_reaped_and_replaced(serve, tmp_path):
    (tmp_path / "session.py").write_text("import os\nos.setsid()\n" + APPLICATION)
    server = serve("session:app", app_dir=tmp_path)
    (pid,) = server.ever_ready_pids()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(server.ever_ready_pids()) == 2, what="the next worker")
    assert server.get().body == b"ok"
    assert server.stop() == 0


def test_rule_25_a_drain_reaches_a_worker_whose_orders_have_filled_their_socket(serve):
    server = serve("life:app", "--grace", "8", "--drain-idle", "0")
    (pid,) = server.worker_pids()
    os.kill(pid, signal.SIGSTOP)
    # Each is an order of its own to a worker that reads none; a socket takes some hundred.
    for _ in range(2000):
        server.process.send_signal(signal.SIGUSR1)
        time.sleep(0.001)
    server.process.send_signal(signal.SIGTERM)
    server.wait_for_log("stopping: SIGTERM")
    os.kill(pid, signal.SIGCONT)
    assert server.wait() == 0, server.log()
