"""Hooks of a worker's life (RULES 29)."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from harness import APPS, COMMAND, process_is_alive, wait_until

HOOKS = ("--on-worker-start", "hooks:start", "--on-worker-ready", "hooks:ready",
         "--on-worker-exit", "hooks:exit")


@pytest.fixture
def notes(tmp_path):
    return tmp_path / "notes"


def test_rule_29_hooks_are_called_in_each_worker_in_their_order(serve, notes):
    server = serve("hello", *HOOKS, workers=2, env={"HOOK_FILE": str(notes)})
    wait_until(lambda: notes.read_text().count("ready") == 2)
    server.get()
    assert server.stop() == 0
    lines = notes.read_text().splitlines()
    for number in (1, 2):
        own = [line for line in lines if line.split()[1] == str(number)]
        assert own == [f"start {number} True hello False True", f"ready {number} True",
                       f"exit {number}", f"atexit {number}"]
    assert len(lines) == 8


def test_rule_29_hooks_are_called_in_a_single_process_too(serve, notes):
    server = serve("hello:app", *HOOKS, "--single-process", env={"HOOK_FILE": str(notes)})
    assert server.stop() == 0
    words = [line.split()[0] for line in notes.read_text().splitlines()]
    assert words == ["start", "ready", "exit", "atexit"]
    assert "start 1 True hello:app False True" in notes.read_text()


@pytest.mark.parametrize("flags", [(), ("--single-process",)], ids=["forked", "single"])
def test_rule_29_a_start_hook_that_raises_ends_the_start_with_one_traceback(serve, flags):
    server = serve("hello", "--on-worker-start", "hooks:fail", *flags, workers=2, wait=False)
    assert server.wait() == 1
    assert server.log().count("LookupError: of worker") == 2  # the traceback and the sentence
    assert server.log().count("Traceback") == 1
    assert re.search(r"ERROR .*on_worker_start cannot be called: LookupError: of worker \d",
                     server.log())


@pytest.mark.parametrize(
    "flag, hook, reason",
    [
        ("--on-worker-start", "nowhere:start", "there is no module \"nowhere\""),
        ("--on-worker-ready", "hooks:redy", "did you mean \"ready\"?"),
        ("--on-worker-exit", "hooks:no_function", "hooks:no_function is a UUID"),
    ],
)
def test_rule_29_a_hook_that_is_none_is_an_error_at_start(serve, flag, hook, reason):
    server = serve("hello", flag, hook, workers=2, wait=False)
    assert server.wait() == 1
    (line,) = [line for line in server.log().splitlines() if "ERROR" in line and "hooks:" in line
               or "nowhere" in line]
    assert f"{flag[2:]} {hook}: " in line and reason in line


@pytest.mark.parametrize("hook", ["fail", "leave"])
def test_rule_29_what_other_hooks_raise_is_logged_and_changes_nothing(serve, hook):
    server = serve("hello", "--on-worker-ready", f"hooks:{hook}",
                   "--on-worker-exit", f"hooks:{hook}")
    server.wait_for_log(rf"ERROR worker\S+ on-worker-ready hooks:{hook} raised; the worker goes on")
    assert server.get().status == 200
    assert server.stop() == 0
    assert re.search(rf"on-worker-exit hooks:{hook} raised", server.log())
    assert server.log().count("Traceback") == 2


def test_rule_29_a_slow_ready_hook_keeps_no_request_waiting(serve, notes):
    env = {"HOOK_FILE": str(notes), "READY_SECONDS": "3"}
    server = serve("hello", "--on-worker-ready", "hooks:ready", env=env)
    for _ in range(20):
        assert server.get().status == 200
    assert not notes.exists(), "the hook was over before the requests"
    assert server.stop() == 0
    assert notes.read_text() == "ready 1 True\n"


def test_rule_29_an_exit_hook_that_hangs_is_cut_by_the_grace(serve):
    server = serve("hello", "--on-worker-exit", "hooks:hang", "--grace", "3")
    start = time.monotonic()
    assert server.stop() == 1
    assert time.monotonic() - start < 15
    assert "in hang" in server.log(), "Python's watchdog shows where it was"


@pytest.fixture(params=["hook", "handler"])
def hung(serve, notes, request):
    """A server whose worker's main thread does not come back, from the ready hook or from a handler of
    a signal, and that worker."""
    hook = {"hook": ("--on-worker-ready", "hooks:hang"),
            "handler": ("--on-worker-start", "hooks:hang_at_alarm")}[request.param]
    server = serve("hello", *hook, "--grace", "4", "--drain-idle", "0",
                   env={"HOOK_FILE": str(notes)})
    (worker,) = server.worker_pids()
    if request.param == "handler":
        os.kill(worker, signal.SIGALRM)
    wait_until(lambda: notes.exists() and "hangs" in notes.read_text(), what="it hangs")
    assert server.get().status == 200
    return server, worker


def test_rule_2_a_main_thread_that_hangs_does_not_keep_a_worker_from_its_drain(hung):
    server, _ = hung
    assert server.stop() == 1
    assert "the main thread has not come back" in server.log()
    assert "is killed" not in server.log(), "the worker ended by itself"


def test_rule_2_a_main_thread_that_hangs_does_not_let_a_worker_outlive_its_supervisor(hung):
    server, worker = hung
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    server_log = r"the supervisor is gone; this worker drains and ends"
    wait_until(lambda: re.search(server_log, server.log()), what="the worker has seen it")
    wait_until(lambda: not process_is_alive(worker), 20, "the worker's end")
    with pytest.raises(ConnectionRefusedError):
        server.connect().close()


def test_rule_4_last_lines_that_nobody_reads_do_not_end_a_worker_as_a_hook_that_hangs(serve):
    """The hook returns half a second before the worker is to be gone, and a full pipe of the access
    log is waited for no longer than that."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    try:
        server = serve("hello", "--access-log", "-", "--on-worker-exit", "hooks:linger", "--grace",
                       "6", "--drain-idle", "0", env={"LINGER_SECONDS": "4.8"}, stdout=writer)
        for _ in range(100):
            assert server.get().status == 200
        assert server.stop() == 0, server.log()
        assert "Timeout (" not in server.log() and "is killed" not in server.log()
    finally:
        os.close(reader)
        os.close(writer)


def test_doctor_applies_the_log_configuration_and_says_that_hooks_were_not_called(tmp_path):
    command = [COMMAND, "doctor", "hello", "--app-dir", APPS, "--on-worker-exit", "hooks:exit"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "hooks: none was looked up or called" in done.stdout
    file = tmp_path / "bad.json"
    file.write_text("{}")
    done = subprocess.run([*command, "--log-config", file], capture_output=True, text=True)
    assert done.returncode == 1 and f"log-config {file}: ValueError" in done.stdout, done.stdout


RUN = """
import sys
sys.path.insert(0, {apps!r})
import hooks, hoopsnake

def exiting(worker: hoopsnake.Worker) -> None:
    hooks.note(f"exit {{worker.number}} {{worker.app}}")
    try:
        worker.number = 7
    except AttributeError as error:
        hooks.note(type(error).__name__)

if __name__ == "__main__":
    hoopsnake.run("hello:app", bind="127.0.0.1:0", app_dir={apps!r}, io={io!r},
                  single_process={single}, on_worker_start=lambda worker: hooks.note("start"),
                  on_worker_ready="hooks:ready", on_worker_exit=exiting)
"""


@pytest.mark.parametrize("single", [True, False])
def test_rule_29_run_takes_functions(tmp_path, notes, io_kind, single):
    script = tmp_path / "serve.py"
    script.write_text(RUN.format(apps=str(APPS), single=single, io=io_kind or "auto"))
    with subprocess.Popen([sys.executable, script], env={"HOOK_FILE": str(notes)},
                          stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        wait_until(lambda: notes.exists() and "ready" in notes.read_text(), 30)
        process.terminate()
        _, log = process.communicate(timeout=40)
    assert process.returncode == 0, log.decode()
    assert notes.read_text().splitlines() == [
        "start", "ready 1 True", "exit 1 hello:app", "FrozenInstanceError",
    ]
