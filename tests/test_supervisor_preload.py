"""`--preload`: RULES.md 1."""

from __future__ import annotations

import grp
import os
import pwd
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from harness import process_is_alive, wait_until
from test_cli_start import refused


def name_of(pid):
    return Path(f"/proc/{pid}/comm").read_text().strip()


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def template_of(server):
    found = [pid for pid in server.session_pids() if name_of(pid) == "hoopsnake:pre"]
    return found[0] if found else None


def test_rule_1_preload_imports_once_in_a_process_that_is_no_worker(serve):
    server = serve("life:app", "--preload", workers=3)
    template = template_of(server)
    seen = {}
    while len(seen) < 3:
        facts = server.get().json()
        seen[facts["pid"]] = facts["imported_in"]
    assert set(seen.values()) == {template} and template not in (server.pid, *seen)
    assert sorted(name_of(pid) for pid in seen) == [f"hoopsnake:{number}" for number in (1, 2, 3)]
    assert {parent_of(pid) for pid in [template, *seen]} == {server.pid}
    for pid in (server.pid, template):
        assert "Threads:\t1\n" in Path(f"/proc/{pid}/status").read_text()
    assert "_ctypes" not in Path(f"/proc/{server.pid}/maps").read_text(), "it imported nothing"
    assert server.stop() == 0
    assert server.session_pids() == []


def test_preloaded_workers_are_like_any_other(serve, tmp_path):
    file = tmp_path / "exit"
    server = serve("life:app", "--preload", "--threads", "2", env={"EXIT_FILE": str(file)}, workers=2)
    pids = server.worker_pids()
    facts = server.get().json()
    assert facts["blocked"] == [] and facts["is_thread"]
    assert server.get("/popen").json()["code"] == -signal.SIGTERM
    assert server.get("/fork").json() == {"code": -signal.SIGTERM}
    assert server.get("/set_variable").status == 200
    assert server.get("/get_variable").json() == {"value": "the default"}
    assert server.stop() == 0
    assert sorted(file.read_text().splitlines()) == sorted(f"atexit {pid}" for pid in pids)


def test_a_thread_at_import_is_refused_and_named(tmp_path):
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nfrom hello import app\n"
        "threading.Thread(target=time.sleep, args=(60,), name='poller', daemon=True).start()\n"
    )
    sentence = "there are 2, of which Python knows MainThread, poller"
    done = refused(1, sentence, "threaded:app", "--preload", "--bind", "127.0.0.1:0",
                   env={"PYTHONPATH": str(tmp_path)})
    assert "Traceback" not in done.stderr


def test_a_thread_that_ended_at_import_is_none(serve, tmp_path):
    (tmp_path / "threaded.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\nfrom hello import app\n"
        "with ThreadPoolExecutor(8) as pool:\n    list(pool.map(str, range(100)))\n"
    )
    server = serve("threaded:app", "--preload", env={"PYTHONPATH": str(tmp_path)})
    assert server.get().status == 200


def test_an_application_that_cannot_be_loaded_ends_the_server(serve):
    server = serve("broken", "--preload", workers=3, wait=False)
    assert server.wait() == 1
    assert server.ever_ready_pids() == [] and server.log().count("Traceback") == 1


def test_preload_needs_somebody_to_fork(tmp_path):
    refused(2, "preload is true (from --preload) and single-process is true (from --single-process)",
            "hello", "--preload", "--single-process")


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"])
def test_the_template_is_replaced_when_it_dies_and_only_then(serve, name):
    server = serve("life:app", "--preload", workers=2)
    pids, template = server.worker_pids(), template_of(server)
    os.kill(template, getattr(signal, name))
    if name == "SIGKILL":
        server.wait_for_log("the template was killed by signal 9 .*; another starts in 0ns")
        wait_until(lambda: server.log().count("the template is ready") == 2)
    assert server.worker_pids() == pids, "the workers live on"
    os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: len(server.worker_pids()) == 2 and pids[0] not in server.worker_pids())
    new = template_of(server)
    assert process_is_alive(new) and (new != template) == (name == "SIGKILL")
    assert {parent_of(pid) for pid in server.worker_pids()} == {server.pid}
    assert server.stop() == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_the_template_becomes_the_group_and_ends_with_the_supervisor_all_the_same(serve):
    """The kernel forgets a tie to the parent when the group changes."""
    nobody = grp.getgrgid(pwd.getpwnam("nobody").pw_gid)
    server = serve("life:app", "--preload", "--group", nobody.gr_name)
    facts = server.get().json()
    assert facts["gid"] == nobody.gr_gid and facts["pid"] != facts["imported_in"]
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    wait_until(lambda: server.session_pids() == [], 10, "the end of all")


def test_rule_1_kill_9_of_the_supervisor_ends_the_template_and_the_workers(serve):
    server = serve("life:app", "--preload", "--grace", "5", "--drain-idle", "0", workers=2)
    assert len(server.session_pids()) == 4
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    wait_until(lambda: server.session_pids() == [], 6, "every process's end")
    with socket.create_server(("127.0.0.1", server.port)):
        pass


def test_kill_9_of_the_supervisor_ends_a_template_that_imports(serve):
    server = serve("life:app", "--preload", env={"IMPORT_SECONDS": "60"}, wait=False)
    wait_until(lambda: template_of(server) is not None)
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    wait_until(lambda: server.session_pids() == [], 6, "the template's end")


def test_hup_brings_preload_in_and_takes_it_out(serve, tmp_path):
    server = serve("life:app", cwd=tmp_path, workers=2)
    for round, value in enumerate(["true", "false"], 1):
        (tmp_path / "hoopsnake.toml").write_text(f"preload = {value}\n")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.log().count("the rolling restart is complete") == round, 20)
        wait_until(lambda: (template_of(server) is not None) == (value == "true"))
        # An old process may accept until it has read that it drains.
        wait_until(lambda: len(server.worker_pids()) == 2, 20)
        facts = server.get().json()
        assert (facts["imported_in"] != facts["pid"]) == (value == "true")
    assert server.stop() == 0


def test_a_template_in_a_program_of_its_own(tmp_path):
    """`hoopsnake.run` in a script whose name is `__main__`."""
    (tmp_path / "script.py").write_text(
        "import hoopsnake\nif __name__ == '__main__':\n"
        "    hoopsnake.run('hello:app', preload=True, bind='127.0.0.1:0', app_dir='.')\n"
    )
    (tmp_path / "hello.py").write_text("def app(environ, start_response): pass\n")
    process = subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path, stderr=subprocess.PIPE)
    for line in process.stderr:
        if b" serves " in line:
            break
    process.terminate()
    assert process.wait(20) == 0
