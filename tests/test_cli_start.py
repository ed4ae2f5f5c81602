"""Starting: what is served, and what is said when it cannot be (PRODUCTION.md section 1)."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from harness import APPS, COMMAND, READY, wait_until
from seccomp import forbid_io_uring


def hoopsnake(*words, env=None, cwd=APPS, preexec=None):
    """Runs the command to its end."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HOOPSNAKE_")}
    return subprocess.run(
        [COMMAND, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=cwd,
        env={**clean, **(env or {})},
        preexec_fn=preexec,
    )


def refused(code, sentence, *words, **options):
    """The command ends with the code, says the sentence once and shows nothing of its inside."""
    done = hoopsnake(*words, **options)
    assert done.returncode == code, done.stderr
    assert done.stderr.count(sentence) == 1, done.stderr
    for inside in ("panicked", "RUST_BACKTRACE", ".rs:"):
        assert inside not in done.stderr
    return done


PORT_0 = ("--bind", "127.0.0.1:0")


def test_version_help_and_limits_are_printed():
    version = hoopsnake("--version")
    assert version.returncode == 0 and version.stdout.startswith("hoopsnake ")
    usage = hoopsnake("--help")
    assert usage.returncode == 0 and "--max-body" in usage.stdout and not usage.stderr
    limits = hoopsnake("--limits")
    assert limits.returncode == 0 and "--threads            1 to 1024 threads" in limits.stdout


@pytest.mark.parametrize("words", [["--help"], ["--limits"], ["doctor"]])
def test_a_reader_that_has_seen_enough_is_no_error(words):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as stdout:
        done = subprocess.run(
            [COMMAND, *words, *(PORT_0 if words == ["doctor"] else [])],
            stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=30,
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_version_is_the_packages():
    import hoopsnake as package

    assert hoopsnake("--version").stdout.strip() == f"hoopsnake {package.__version__}"


def test_python_dash_m_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "hoopsnake", "--version"], capture_output=True, text=True
    )
    assert done.stdout == hoopsnake("--version").stdout


@pytest.mark.parametrize(
    ("code", "sentence", "words"),
    [
        (1, 'there is no module "nope" in --app-dir', ["nope"]),
        (1, 'there is no module "hello.nope"', ["hello.nope:app"]),
        (1, 'module "hello" has no attribute "ap"; did you mean "app"?', ["hello:ap"]),
        (1, "hello:__doc__ is a str, not an application", ["hello:__doc__"]),
        (1, "this version serves WSGI only", ["only_asgi"]),
        (1, "only_asgi.asgi:application is an ASGI application", ["only_asgi.asgi:application"]),
        (1, "if it makes the application, write life:make_app()", ["life:make_app"]),
        (1, "has neither `application` nor `app`", ["broken_not"]),
        (2, "APP is missing", []),
        (2, 'app is "hello.py" (from the command line)', ["hello.py"]),
        (2, 'threads is "0" (from --threads): expected a number of threads from 1 to 1024', [
            "hello", "--threads", "0",
        ]),
        (2, 'io is "kqueue" (from --io): expected auto, uring or epoll', ["hello", "--io=kqueue"]),
        (2, "unexpected argument '--frob'", ["hello", "--frob"]),
        (2, "env-file /nonexistent cannot be read", ["hello", "--env-file", "/nonexistent"]),
        (2, "this version serves WSGI", ["hello", "--wsgi=false"]),
        (1, 'user "nobody-of-that-name" does not exist', ["hello", "--user", "nobody-of-that-name"]),
        (1, "chdir /nonexistent is not possible", ["hello", "--chdir", "/nonexistent"]),
        (1, "cannot bind 192.0.2.1:0: no interface of this machine", [
            "hello", "--bind", "192.0.2.1:0",
        ]),
        (1, "fd://77 is not open", ["hello", "--bind", "fd://77"]),
        (1, "access-log /nonexistent/a cannot be opened", ["hello", "--access-log", "/nonexistent/a"]),
    ],
)
def test_one_sentence_and_the_right_code(code, sentence, words, tmp_path):
    (tmp_path / "broken_not.py").write_text("x = 1\n")
    bind = [] if code == 2 or "--bind" in words else PORT_0
    refused(code, sentence, *words, *bind, env={"PYTHONPATH": str(tmp_path)})


def test_a_variable_and_a_file_are_named_as_the_origin(tmp_path):
    expected = "expected a number of processes from 1 to 1024, or auto"
    refused(
        2, f'workers is "-1" (from HOOPSNAKE_WORKERS): {expected}',
        "hello", env={"HOOPSNAKE_WORKERS": "-1"},
    )
    (tmp_path / "hoopsnake.toml").write_text("workers = 0\n")
    sentence = f'workers is "0" (from workers in hoopsnake.toml): {expected}'
    refused(2, sentence, "hello", cwd=tmp_path)
    # The variable wins over the file, and the flag over both.
    done = refused(2, "(from HOOPSNAKE_WORKERS)", "hello", cwd=tmp_path,
                   env={"HOOPSNAKE_WORKERS": "x"})
    assert "hoopsnake.toml" not in done.stderr
    refused(2, "(from --workers)", "hello", "--workers", "y", cwd=tmp_path,
            env={"HOOPSNAKE_WORKERS": "x"})
    (tmp_path / "hoopsnake.toml").write_text("wrokers = 1\n")
    refused(2, 'there is no option "wrokers"', "hello", cwd=tmp_path)


def test_options_come_from_the_environment_and_a_file(serve, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.hoopsnake]\nthreads = 3\nserver-header = 'x'\n")
    server = serve("hello", cwd=tmp_path, env={"HOOPSNAKE_THREADS": "2"})
    assert "threads=2 " in server.log()
    assert server.get().headers["Server"] == "x"


@pytest.mark.parametrize(
    ("app", "last_line"),
    [
        ("broken", "NameError: name 'undefined_name' is not defined"),
        ("broken_import", "ModuleNotFoundError: No module named 'a_module_that_nobody_has'"),
        ("exits", "SystemExit: 7"),
    ],
)
def test_the_applications_own_traceback_where_the_error_is_theirs(app, last_line):
    done = refused(1, f"{app} cannot be imported: {last_line}", app, *PORT_0)
    assert "Traceback (most recent call last)" in done.stderr
    assert f"{app}.py" in done.stderr
    assert last_line in done.stderr.splitlines()
    assert "importlib" not in done.stderr


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused(1, f"cannot bind {address}: another process listens there", "hello", "-b", address)


@pytest.mark.parametrize(
    ("app", "name"),
    [
        ("hello", "hello:application"),
        ("hello:app", "hello:app"),
        ("bare_project", "bare_project.wsgi:application"),
        ("life:make_app()", "life:make_app()"),
    ],
)
def test_applications_are_found(serve, app, name):
    server = serve(app)
    assert f" serves {name} at http://127.0.0.1:{server.port} " in server.log()
    assert server.get().status == 200


def test_serve_is_a_verb_and_a_module_may_be_called_like_one(tmp_path):
    (tmp_path / "serve.py").write_text("")
    refused(1, 'module "serve" has neither', "serve", "serve", "--app-dir", tmp_path, *PORT_0)


def test_uring_where_it_is_forbidden_is_78_and_says_how_to_allow_it():
    sentence = "allow io_uring_setup, io_uring_enter and io_uring_register in the profile"
    done = refused(78, sentence, "hello", "--io", "uring", *PORT_0, preexec=forbid_io_uring)
    assert "--io uring is not possible" in done.stderr


def test_auto_falls_back_to_epoll_with_one_line(serve):
    # Not `io=`: the suite's own choice would replace auto.
    server = serve("hello", "--io", "auto", preexec=forbid_io_uring)
    lines = [line for line in server.log().splitlines() if "io_uring" in line]
    assert len(lines) == 1 and "WARN" in lines[0] and "a seccomp filter forbids it" in lines[0]
    assert " io=epoll " in server.log()
    assert server.get().text == "Hello, world!\n"


def test_rule_26_a_spool_that_cannot_be_used_is_a_warning_and_a_500_for_large_bodies(serve):
    server = serve("hello", "--spool-dir", "/nonexistent", workers=2)
    # A worker's lines are written by a thread of its own: the banner may overtake them.
    server.wait_for_log("spool-dir /nonexistent cannot hold request bodies")
    assert server.log().count("spool-dir /nonexistent cannot hold request bodies") == 1
    for _ in range(3):
        assert server.request("POST", "/", bytes(64 * 1024)).status == 200
        assert server.request("POST", "/", bytes(64 * 1024 + 1)).status == 500
    # Each is said to the operator, not only the warning at the start.
    said = [line for line in server.log().splitlines() if "/nonexistent" in line]
    assert len(said) > 1, server.log()
    assert "--spool-dir" in said[-1], said[-1]
    assert server.get().status == 200


def test_rule_28_the_soft_limit_is_raised_and_a_hard_one_that_is_too_low_is_said(serve):
    import resource

    def lower():
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, 1000))

    server = serve("hello", "--max-connections", "5000", preexec=lower)
    server.wait_for_log("max-connections is 5000 and the hard limit of open files is 1000")
    limits = Path(f"/proc/{server.pid}/limits").read_text()
    nofile = next(line for line in limits.splitlines() if line.startswith("Max open files"))
    assert nofile.split()[3:5] == ["1000", "1000"]


def test_unix_sockets_and_host_names(serve, tmp_path):
    path = tmp_path / "web.sock"
    server = serve("hello", "--bind", f"unix:{path}", "--bind", "localhost:0", "--uds-mode", "600",
                   bind=None)
    assert path.stat().st_mode & 0o777 == 0o600
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200 OK")
    assert server.stop() == 0
    assert not path.exists()


def test_a_start_that_fails_leaves_no_socket_file(tmp_path):
    path = tmp_path / "web.sock"
    refused(1, "cannot bind 192.0.2.1:0", "hello", "--bind", f"unix:{path}",
            "--bind", "192.0.2.1:0")
    assert not path.exists()


def test_a_listener_can_be_inherited(serve):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.fileno()
        os.set_inheritable(number, True)
        server = serve("hello", "--bind", f"fd://{number}", bind=None, pass_fds=(number,))
        assert server.port == listener.getsockname()[1]
    assert server.get().status == 200


def test_pid_file_env_file_chdir_and_root_path(serve, tmp_path):
    (tmp_path / "env").write_text("# comment\nexport FROM_FILE='of the file'\n")
    server = serve(
        "life:app", "--pid-file", "web.pid", "--env-file", tmp_path / "env", "--chdir", tmp_path,
        "--proc-name", "shop",
    )
    (worker,) = server.worker_pids()
    for pid, name in [(server.pid, "shop"), (worker, "shop:1")]:
        assert Path(f"/proc/{pid}/comm").read_text() == f"{name}\n"
    assert (tmp_path / "web.pid").read_text() == f"{server.pid}\n"
    facts = server.get().json()
    assert (facts["env"], facts["cwd"]) == ("of the file", str(tmp_path))
    second = hoopsnake("hello", "--pid-file", tmp_path / "web.pid", *PORT_0)
    assert second.returncode == 1 and f"names process {server.pid}, which runs" in second.stderr
    assert server.stop() == 0
    assert not (tmp_path / "web.pid").exists()


def test_workers_become_the_user_and_the_group(serve):
    import grp
    import pwd

    if os.getuid() != 0:
        refused(1, "user and group can be changed by root only", "hello", "--user", "nobody")
        return
    # An interpreter under /root is of no use to anybody else.
    readable = all(path.stat().st_mode & 0o005 == 0o005 for path in Path(sys.base_prefix).parents)
    nobody = pwd.getpwnam("nobody")
    user = nobody if readable else pwd.getpwnam("root")
    group = grp.getgrgid(nobody.pw_gid)
    server = serve("life:app", "--user", user.pw_name, "--group", group.gr_name)
    facts = server.get().json()
    assert (facts["uid"], facts["gid"]) == (user.pw_uid, group.gr_gid)
    assert server.stop() == 0


def test_doctor_reports_and_exits_as_the_server_would():
    good = hoopsnake("doctor", "hello", *PORT_0, env={"HOOPSNAKE_THREADS": "3"})
    assert good.returncode == 0, good.stderr
    threads = next(line for line in good.stdout.splitlines() if line.startswith("  threads "))
    assert threads.split() == ["threads", "3", "HOOPSNAKE_THREADS"]
    assert "hello:application can be imported" in good.stdout
    assert f"executable  {sys.executable}" in good.stdout
    bad = hoopsnake("doctor", "broken", *PORT_0)
    assert bad.returncode == 1 and "NameError" in bad.stderr
    assert "The server would end with exit code 1." in bad.stdout
    usage = hoopsnake("doctor", "hello", "--threads", "0")
    assert usage.returncode == 2 and "(from --threads)" in usage.stdout
    forbidden = hoopsnake("doctor", "hello", "--io", "uring", *PORT_0, preexec=forbid_io_uring)
    assert forbidden.returncode == 78 and "seccomp" in forbidden.stdout


def test_doctor_does_what_the_server_would_before_it_serves(tmp_path):
    (tmp_path / "shop.py").write_text(
        "import os\nassert os.environ['FROM_FILE'] == 'x' and os.path.exists('here')\n"
        "from hello import app\n"
    )
    (tmp_path / "here").touch()
    (tmp_path / "env").write_text("FROM_FILE=x\n")
    words = ["doctor", "shop", "--chdir", tmp_path, *PORT_0]
    env = {"PYTHONPATH": str(APPS)}
    good = hoopsnake(*words, "--env-file", tmp_path / "env", "--access-log", "log", "--pid-file",
                     "pid", env=env)
    assert good.returncode == 0, good.stdout + good.stderr
    assert "Not checked\n" in good.stdout
    assert not (tmp_path / "log").exists() and not (tmp_path / "pid").exists()
    assert hoopsnake(*words, env=env).returncode == 1, "without the variable"
    bad = ["doctor", "hello", *PORT_0]
    for more, sentence in [
        (["--chdir", "/nonexistent"], "chdir /nonexistent is not possible"),
        (["--user", "nobody-of-that-name"], 'user "nobody-of-that-name" does not exist'),
        (["--pid-file", "/nonexistent/pid"], "pid-file /nonexistent/pid cannot be written"),
        (["--access-log", "/nonexistent/a"], "access-log /nonexistent/a cannot be opened"),
    ]:
        done = hoopsnake(*bad, *more)
        assert done.returncode == 1 and sentence in done.stdout, done.stdout
        assert "The server would end with exit code 1." in done.stdout


def test_doctor_keeps_a_log_that_is_there(tmp_path):
    (tmp_path / "log").write_text("a line\n")
    done = hoopsnake("doctor", "hello", *PORT_0, "--access-log", tmp_path / "log")
    assert done.returncode == 0
    assert (tmp_path / "log").read_text() == "a line\n"


def test_a_module_for_another_interpreter_is_an_import_error():
    script = "import sys; sys.abiflags += 'd'; import hoopsnake"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    version = "%d.%d" % sys.version_info[:2]
    assert done.returncode == 1
    sentence = f"ImportError: hoopsnake was built for Python {version} and this is Python {version}d"
    assert sentence in done.stderr and "pip install --force-reinstall" in done.stderr


def test_other_pythons_refuse_the_module_and_do_not_crash(tmp_path):
    """The module under a name that every Python accepts: an ImportError, ours or the linker's."""
    import hoopsnake._hoopsnake as module

    (tmp_path / "_hoopsnake.so").write_bytes(Path(module.__file__).read_bytes())
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for other in [*pyenv.glob("versions/*/bin/python"), Path("/usr/bin/python3")]:
        script = "import sys; print('%d.%d' % sys.version_info[:2]); import _hoopsnake"
        environment = {"PYTHONPATH": str(tmp_path)}
        if not other.exists():
            continue
        done = subprocess.run([other, "-c", script], capture_output=True, text=True, env=environment)
        if done.stdout.strip() == "%d.%d" % sys.version_info[:2]:
            continue
        assert done.returncode == 1 and "ImportError" in done.stderr, (other, done)


def test_run_is_the_command_as_a_function(tmp_path):
    script = tmp_path / "serve_it.py"
    script.write_text(
        "import hoopsnake\n"
        "hoopsnake.run('hello', app_dir=%r, threads=0, bind=['127.0.0.1:0'], pid_file=None)\n"
        % str(APPS)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and 'threads is "0"' in done.stderr
    threaded = tmp_path / "threaded.py"
    threaded.write_text(
        "import threading, time, hoopsnake\n"
        "threading.Thread(target=time.sleep, args=(60,), name='mine', daemon=True).start()\n"
        "hoopsnake.run('hello', app_dir=%r, bind='127.0.0.1:0')\n" % str(APPS)
    )
    done = subprocess.run([sys.executable, threaded], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "Python knows MainThread, mine" in done.stderr


def test_closed_standard_streams_are_not_given_to_a_listener(tmp_path):
    """A daemon's `dup2` over 0, 1 and 2 would take a listener away that has one of these numbers."""
    log = tmp_path / "log"
    words = [str(COMMAND), "hello", "--app-dir", str(APPS), "--bind", "127.0.0.1:0"]
    shell = f"exec {shlex.join(words)} <&- >&- 2>>{shlex.quote(str(log))}"
    process = subprocess.Popen(["sh", "-c", shell], start_new_session=True)
    try:
        wait_until(lambda: log.exists() and READY.search(log.read_text()), 30, "the worker")
        found = READY.search(log.read_text())
        assert found
        for pid in (process.pid, int(found["pid"])):
            assert [os.readlink(f"/proc/{pid}/fd/{number}") for number in (0, 1)] == ["/dev/null"] * 2
    finally:
        process.terminate()
        assert process.wait(30) == 0
