"""The supervisor and the end of workers: RULES.md 1, 2 and 4, PRODUCTION.md behaviours 5 and 6."""

from __future__ import annotations

import grp
import http.client
import os
import pwd
import signal
import socket
import subprocess
import threading
import time

import pytest
from harness import process_is_alive, read_to_end, wait_until


def refuses(server):
    try:
        server.connect().close()
    except ConnectionRefusedError:
        return True
    return False


def test_rule_1_workers_are_forked_before_the_import(serve):
    server = serve("life:app", workers=2)
    facts = server.get().json()
    assert facts["imported_in"] == facts["pid"] != server.pid
    assert len(server.worker_pids()) == 2
    with open(f"/proc/{server.pid}/maps") as maps, open(f"/proc/{server.pid}/status") as status:
        assert "Threads:\t1\n" in status.read(), "the supervisor is one thread"
        assert "_ssl" not in maps.read()


def test_ready_is_a_message_and_not_a_sleep(serve):
    start = time.monotonic()
    server = serve("life:app", env={"IMPORT_SECONDS": "1.5"})
    assert time.monotonic() - start >= 1.5
    assert server.get().status == 200


def test_a_killed_worker_is_replaced(serve):
    server = serve("life:app", workers=2)
    before = server.worker_pids()
    os.kill(before[0], signal.SIGKILL)
    server.wait_for_log(r"worker \d was killed by signal 9 .*; another starts in 0ns pid=%d" % before[0])
    wait_until(lambda: len(server.worker_pids()) == 2, what="a second worker")
    assert before[0] not in server.worker_pids() and before[1] in server.worker_pids()
    assert server.get().status == 200
    assert server.stop() == 0


def test_workers_that_die_again_and_again_are_replaced_ever_later(serve):
    server = serve("life:app")
    for _ in range(4):
        (pid,) = server.worker_pids()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: server.worker_pids() not in ([], [pid]), what="the next worker")
    delays = [line.split("starts in ")[1].split()[0] for line in server.log().splitlines()
              if "starts in" in line]
    assert delays == ["0ns", "200ms", "400ms", "800ms"]


def test_a_worker_that_cannot_start_ends_the_server(serve):
    server = serve("broken", workers=3, wait=False)
    assert server.wait() == 1
    assert server.ever_ready_pids() == []
    assert server.log().count("Traceback") == 1, "one worker says it for all"


def test_kill_9_of_the_supervisor_leaves_no_process_and_no_port(serve):
    server = serve("life:app", "--grace", "5", "--drain-idle", "0", workers=2)
    pids = server.worker_pids()
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    wait_until(lambda: not any(map(process_is_alive, pids)), 6, "both workers' end")
    with socket.create_server(("127.0.0.1", server.port)):
        pass


def test_a_server_that_drains_leaves_the_unix_socket_of_its_successor(serve, tmp_path):
    path = tmp_path / "server.sock"

    def connected():
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(10)
        client.connect(str(path))
        return client

    def is_refused():
        try:
            connected().close()
        except ConnectionRefusedError:
            return True
        return False

    first = serve("life:app", bind=f"unix:{path}")
    with connected() as client:
        client.sendall(b"GET /slow?seconds=4 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        time.sleep(0.3)
        first.process.terminate()
        wait_until(is_refused, what="the first has closed its listeners")
        second = serve("life:app", bind=f"unix:{path}")
        assert first.process.poll() is None, "the first ended before the second was there"
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
    assert first.wait() == 0
    connected().close()
    assert second.stop() == 0
    assert not path.exists(), "its own it takes away"


@pytest.mark.parametrize("other_group", [False, True])
def test_kill_9_of_the_supervisor_ends_workers_that_are_importing(serve, other_group):
    """Another group makes the kernel forget the parent once more; only root may take one."""
    group = grp.getgrgid(pwd.getpwnam("nobody").pw_gid).gr_name
    words = ["--group", group] if other_group and os.getuid() == 0 else []
    server = serve("life:app", *words, workers=2, env={"IMPORT_SECONDS": "60"}, wait=False)

    def children():
        with open(f"/proc/{server.pid}/task/{server.pid}/children") as file:
            return [int(pid) for pid in file.read().split()]

    wait_until(lambda: len(children()) == 2, what="both workers are forked")
    time.sleep(0.5)
    pids = children()
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    try:
        wait_until(lambda: not any(map(process_is_alive, pids)), 3, "both workers' end")
    finally:
        for pid in filter(process_is_alive, pids):
            os.kill(pid, signal.SIGKILL)


def test_behaviour_5_and_6_under_load_every_accepted_request_is_answered(serve):
    server = serve("life:app", "--threads", "4", workers=2)
    stop, answered, failures = threading.Event(), [], []

    def client():
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        while True:
            try:
                if connection.sock is None:
                    connection.connect()
            except ConnectionRefusedError:
                return
            try:
                connection.request("GET", "/slow?seconds=0.02")
                response = connection.getresponse()
                answered.append(response.status)
                response.read()
            except OSError as error:
                failures.append(error)
                return
            if response.headers["Connection"] == "close":
                connection.close()
                if stop.is_set():
                    return

    threads = [threading.Thread(target=client) for _ in range(32)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(answered) > 200)
    stop.set()
    start = time.monotonic()
    code = server.stop()
    for thread in threads:
        thread.join(30)
    assert (code, failures, set(answered)) == (0, [], {200}), server.log()
    assert time.monotonic() - start < 25


def test_behaviour_6_accepted_but_not_started_requests_are_answered(serve):
    server = serve("life:app", "--threads", "1")
    connections = [server.connect(30) for _ in range(30)]
    for connection in connections:
        connection.sendall(b"GET /slow?seconds=0.05 HTTP/1.1\r\nHost: a\r\n\r\n")
    time.sleep(0.2)
    server.process.send_signal(signal.SIGTERM)
    for connection in connections:
        with connection:
            assert read_to_end(connection, 30).startswith(b"HTTP/1.1 200 OK\r\n")
    assert server.wait() == 0


def test_behaviour_5_new_connections_are_refused_and_idle_ones_closed(serve):
    server = serve("life:app", "--drain-idle", "1")
    idle = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    idle.request("GET", "/")
    idle.getresponse().read()
    start = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    server.wait_for_log("stopping: SIGTERM")
    wait_until(lambda: refuses(server), 2, "new connections are refused")
    assert idle.sock.recv(1) == b""
    assert server.wait() == 0
    assert 0.9 < time.monotonic() - start < 4


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("grace", ["2", "5"])
def test_a_short_grace_is_enough_for_an_idle_connection(serve, grace, single):
    """`--drain-idle` is at its default, which is not shorter than the grace."""
    server = serve("life:app", "--grace", grace, *(["--single-process"] if single else []))
    idle = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    idle.request("GET", "/")
    idle.getresponse().read()
    assert server.stop() == 0, server.log()
    assert "the grace is over" not in server.log()


def test_the_grace_is_kept_whatever_the_application_does_and_what_was_left_is_named(serve):
    server = serve("life:app", "--grace", "3", "--drain-idle", "0")
    with server.connect() as connection:
        connection.sendall(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(0.3)
        start = time.monotonic()
        assert server.stop() == 1
        assert time.monotonic() - start < 4
    log = server.log()
    assert log.count("the grace is over and hoopsnake-pool-") == 1 and "runs GET /hang" in log
    assert "in hang" in log, "the Python stack"


def test_a_second_interrupt_ends_at_once(serve):
    server = serve("life:app", workers=2)
    with server.connect() as connection:
        connection.sendall(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(0.3)
        start = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert server.stop(signal.SIGINT) == 1
        assert time.monotonic() - start < 3
    assert "is killed: a second SIGINT came" in server.log()


@pytest.mark.parametrize("single", [False, True])
def test_an_echo_of_an_interrupt_cuts_nothing(serve, single):
    """A terminal signals the whole group, and a wrapper passes its own on with `kill(0, SIGINT)`."""
    server = serve("life:app", *(["--single-process"] if single else []))
    with server.connect() as connection:
        connection.sendall(b"GET /slow?seconds=1.5 HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(0.3)
        for _ in range(3):
            os.killpg(server.pid, signal.SIGINT)
            time.sleep(0.05)
        assert read_to_end(connection).startswith(b"HTTP/1.1 200 OK\r\n")
    assert server.wait() == 0


def test_a_second_interrupt_ends_a_single_process_at_once(serve):
    server = serve("life:app", "--single-process")
    with server.connect() as connection:
        connection.sendall(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(0.3)
        start = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert server.stop(signal.SIGINT) == 1
        assert time.monotonic() - start < 3


@pytest.mark.parametrize("single", [False, True])
def test_a_view_that_keeps_the_lock_does_not_delay_the_drain(serve, single):
    server = serve("life:app", *(["--single-process"] if single else []))
    with server.connect() as connection:
        connection.sendall(b"GET /hold?seconds=3 HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refuses(server), 1.5, "new connections are refused")
        connection.settimeout(0)
        with pytest.raises(BlockingIOError):
            connection.recv(1)
        assert read_to_end(connection).startswith(b"HTTP/1.1 200 OK\r\n")
    assert server.wait() == 0


def test_a_view_that_keeps_the_lock_does_not_stop_the_reactor(serve):
    server = serve("life:app")
    with server.connect() as connection:
        connection.sendall(b"GET /hold?seconds=2 HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(0.3)
        start = time.monotonic()
        assert server.raw(b"GET / HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400 ")
        assert time.monotonic() - start < 1
        connection.settimeout(0)
        with pytest.raises(BlockingIOError):
            connection.recv(1)


@pytest.mark.parametrize("single", [False, True])
def test_rule_2_ctrl_c_prints_no_traceback(serve, single):
    flags = ["--single-process"] if single else []
    server = serve("life:app", *flags, workers=1 if single else 2)
    assert server.get().status == 200
    os.killpg(server.pid, signal.SIGINT)
    assert server.wait() == 0
    assert "Traceback" not in server.log() and "KeyboardInterrupt" not in server.log()


def test_rule_2_a_childs_terminate_ends_it(serve):
    server = serve("life:app")
    reply = server.get("/popen").json()
    assert reply["code"] == -signal.SIGTERM and reply["seconds"] < 5
    assert server.get("/fork").json() == {"code": -signal.SIGTERM}
    assert server.get().json()["blocked"] == []


@pytest.mark.parametrize("words", [[], ["--preload"]])
def test_rule_2_python_handlers_run_while_the_server_is_idle(serve, words):
    server = serve("life:app", *words, env={"HANDLE_USR1": "1", "HANDLE_TERM": "1"})
    (pid,) = server.worker_pids()
    os.kill(pid, signal.SIGUSR1)
    wait_until(lambda: server.get().json()["signalled"] == [signal.SIGUSR1])
    # The application's handler for SIGTERM does not keep the worker from draining.
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not process_is_alive(pid))
    server.wait_for_log(f"worker 1 ended with code 0; another starts in 0ns pid={pid}")


@pytest.mark.parametrize("single", [False, True])
def test_rule_4_exit_hooks_run(serve, tmp_path, single):
    file = tmp_path / "exit"
    flags = ["--single-process"] if single else []
    server = serve("life:app", *flags, env={"EXIT_FILE": str(file)}, workers=1 if single else 2)
    pids = server.worker_pids() if not single else [server.pid]
    assert server.stop() == 0
    assert sorted(file.read_text().splitlines()) == sorted(f"atexit {pid}" for pid in pids)


def test_rule_4_a_thread_of_the_application_is_waited_for(serve, tmp_path):
    file = tmp_path / "done"
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nfrom hello import app as hello\n"
        "def work():\n    time.sleep(1.5)\n"
        f"    with open({str(file)!r}, 'w') as file:\n        file.write('done')\n"
        "def app(environ, start_response):\n"
        "    threading.Thread(target=work, daemon=False).start()\n"
        "    return hello(environ, start_response)\n"
    )
    server = serve("threaded:app", env={"PYTHONPATH": str(tmp_path)})
    assert server.get().status == 200
    assert server.stop() == 0
    assert file.read_text() == "done"


def test_rule_4_logging_is_flushed(serve, tmp_path):
    """`logging` keeps records in a MemoryHandler until its own exit hook."""
    file = tmp_path / "log"
    (tmp_path / "flushed.py").write_text(
        "import logging, logging.handlers\nfrom hello import app as hello\n"
        f"target = logging.FileHandler({str(file)!r}, delay=True)\n"
        "logging.getLogger('shop').addHandler(\n"
        "    logging.handlers.MemoryHandler(1000, target=target))\n"
        "def app(environ, start_response):\n"
        "    logging.getLogger('shop').warning('sold out')\n"
        "    return hello(environ, start_response)\n"
    )
    server = serve("flushed:app", env={"PYTHONPATH": str(tmp_path)})
    assert server.get().status == 200
    assert not file.exists(), "the premise"
    assert server.stop() == 0
    assert file.read_text() == "sold out\n"


def test_rule_4_an_exit_hook_that_hangs_is_cut_at_the_grace(serve, tmp_path):
    (tmp_path / "stuck.py").write_text(
        "import atexit, time\nfrom hello import app\n"
        "@atexit.register\ndef never_returns():\n    time.sleep(60)\n"
    )
    server = serve("stuck:app", "--grace", "2", env={"PYTHONPATH": str(tmp_path)})
    start = time.monotonic()
    assert server.stop() == 1
    assert time.monotonic() - start < 3.5
    assert "in never_returns" in server.log()


def test_rule_29_single_process_has_a_debugger_on_stdin(serve):
    server = serve("life:app", "--single-process", "--threads", "1", stdin=subprocess.PIPE)
    assert server.ever_ready_pids() == [server.pid], "no fork"
    server.process.stdin.write(b"p answer * 1000\ncontinue\n")
    server.process.stdin.flush()
    assert server.get("/debug").json() == {"answer": 42}
    assert "(Pdb) 42000" in server.log()
    server.process.stdin.close()
    assert server.stop() == 0


def test_sigterm_while_the_application_is_imported_ends_at_once(serve):
    server = serve("life:app", env={"IMPORT_SECONDS": "30"}, wait=False)
    time.sleep(1)
    start = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - start < 2


def test_a_signal_that_means_nothing_yet_is_said_and_changes_nothing(serve):
    server = serve("hello")
    os.kill(server.pid, signal.SIGUSR2)
    server.wait_for_log("SIGUSR2: .*nothing was changed")
    assert server.get().status == 200
    assert server.stop() == 0


def test_sigquit_ends_at_once(serve):
    server = serve("life:app")
    with server.connect() as client:
        client.sendall(b"GET /slow?seconds=20 HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(0.2)
        begun = time.monotonic()
        assert server.stop(signal.SIGQUIT) == 1
        assert time.monotonic() - begun < 5
    log = server.log()
    assert "stopping at once: SIGQUIT does not wait" in log
    assert "worker 1 is killed: SIGQUIT does not wait" in log
    assert "grace" not in log, "there is none"
