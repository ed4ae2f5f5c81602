"""The access log: formats of the operator's own, what a line says, files that are opened again."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time

import pytest
from harness import Server, read_to_end, wait_until


def lines_of(serve, tmp_path, form, request=None, app="access_lines:app", args=(), **headers):
    """The lines of one request."""
    file = tmp_path / "access.log"
    server = serve(app, "--access-log", file, "--access-log-format", form, *args)
    if request is None:
        server.get("/a%20b?c=d", **headers)
    else:
        server.raw(request)
    pid = server.worker_pids()[0]
    assert server.stop() == 0
    return file.read_text().splitlines(), pid


def test_gunicorns_atoms_in_gunicorns_spelling(serve, tmp_path):
    form = ('%(h)s %(l)s %(u)s "%(r)s" %(m)s %(U)s %(q)s %(H)s %(s)s %(B)s %(b)s "%(f)s" "%(a)s" '
            '%({X-Own}i)s "%({x-view}o)s" %({HTTP_HOST}e)s %({REMOTE_ADDR}e)s %(p)s 100%%')
    (line,), pid = lines_of(serve, tmp_path, form, X_Own="own", User_Agent="test/1",
                            Authorization="Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")
    host = re.search(r" (127\.0\.0\.1:\d+) ", line)[1]
    assert line == (
        f'127.0.0.1 - Aladdin "GET /a%20b?c=d HTTP/1.1" GET /a%20b c=d HTTP/1.1 201 2 2 "-" '
        f'"test/1" own "a \\x22b\\x22" {host} 127.0.0.1 <{pid}> 100%'
    )


def test_apaches_spelling_times_and_our_own_atoms(serve, tmp_path):
    form = ('%h %t %>s %T %M %D %L %{Host}i q=%(queue)s a=%(app)s w=%(write)s t=%(total)s '
            "%(aborted)s %(id)s %(worker)s %(pid)s")
    (line,), pid = lines_of(serve, tmp_path, form, args=("--request-id",))
    number = r"\d+\.\d{3}"
    assert re.fullmatch(
        r"127\.0\.0\.1 \[\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d \+0000\] 201 0 \d+ \d+ 0\.\d{6} "
        rf"127\.0\.0\.1:\d+ q={number} a={number} w={number} t={number} - [0-9a-f]{{32}} 1 {pid}",
        line,
    ), line


@pytest.mark.parametrize(
    "form, named",
    [
        ("%(h)s %(x)s", "%(x)s"),
        ("%h %Z", "%Z"),
        ("%(h", "%("),
        ("%({wsgi.input}e)s", "%({wsgi.input}e)s"),
    ],
)
def test_a_wrong_atom_is_a_usage_error_that_names_it(serve, form, named):
    server = serve("access_lines:app", "--access-log-format", form, wait=False)
    assert server.wait() == 2
    assert f'"{named}" is none' in server.log() and "h l u t r m U q H s" in server.log()
    assert ("REMOTE_ADDR" in server.log()) == named.endswith("}e)s")


def test_rule_27_values_cannot_forge_a_line_in_a_format_either(serve, tmp_path):
    request = (b'GET /"%0a HTTP/1.1\r\nHost: a\r\nUser-Agent: x" 200 \\\xff\tz\r\n'
               b"Connection: close\r\n\r\n")
    (line,), _ = lines_of(serve, tmp_path, '%(r)s|%(a)s|"%(a)s"', request)
    assert line == r'GET /\x22%0a HTTP/1.1|x\x22\x20200\x20\x5c\xff\x09z|"x\x22 200 \x5c\xff\x09z"'
    (line,), _ = lines_of(serve, tmp_path / "..", "json", request)
    assert json.loads(line)["agent"] == 'x" 200 \\\\xff\tz'


def test_json_lines_say_who_wrote_them_and_how_long_writing_took(serve, tmp_path):
    (line,), pid = lines_of(serve, tmp_path, "json")
    entry = json.loads(line)
    assert (entry["worker"], entry["pid"]) == (1, pid)
    assert sorted(entry) == sorted(
        "time remote user method target version status bytes referer agent queue_ms app_ms "
        "write_ms total_ms aborted request_id worker pid".split()
    )


def test_a_client_that_reads_late_is_seen_in_the_write_duration(serve, tmp_path):
    file = tmp_path / "access.log"
    server = serve("access_lines:app", "--access-log", file, "--access-log-format", "json")
    with server.connect() as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        time.sleep(0.5)
        while connection.recv(1 << 20):
            pass
    with server.connect() as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        connection.recv(1000)
    wait_until(lambda: file.read_text().count("\n") == 2)
    whole, left = map(json.loads, file.read_text().splitlines())
    assert whole["bytes"] == 64 << 20 and whole["total_ms"] >= whole["write_ms"] >= 400
    assert (left["status"], left["aborted"]) == (499, True)


def number_of(line):
    return int(re.search(r"n=(\d+)", line)[1])


# A supervisor hands the signal on; alone, the worker takes it itself.
@pytest.mark.parametrize("flags", [("--single-process",), ()], ids=["alone", "supervised"])
def test_rule_27_sigusr1_opens_a_moved_file_again_and_loses_no_line(serve, tmp_path, flags):
    file = tmp_path / "access.log"
    server = serve("hello", "--access-log", file, "--log-overflow", "block", *flags)
    moved, stop, sent = [], threading.Event(), [0]

    def load():
        with server.connect() as connection:
            while not stop.is_set():
                numbers = range(sent[0], sent[0] + 50)
                requests = (f"GET /?n={n} HTTP/1.1\r\nHost: a\r\n\r\n".encode() for n in numbers)
                connection.sendall(b"".join(requests))
                received = b""
                while received.count(b"Hello, world!\n") < 50:
                    received += connection.recv(1 << 16)
                sent[0] += 50

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for index in range(5):
            wait_until(lambda: file.stat().st_size > 10_000, what="lines in the new file")
            moved.append(tmp_path / f"access.log.{index}")
            os.rename(file, moved[-1])
            server.process.send_signal(signal.SIGUSR1)
            wait_until(file.exists, what="a new file")
    finally:
        stop.set()
        thread.join()
    assert server.stop() == 0
    lines = [line for path in [*moved, file] for line in path.read_text().splitlines()]
    assert sorted(map(number_of, lines)) == list(range(sent[0]))


def test_rule_27_a_file_that_cannot_be_opened_again_is_said_and_the_old_one_used_on(
    serve, tmp_path
):
    file = tmp_path / "access.log"
    server = serve("hello", "--access-log", file, "--single-process")
    os.rename(file, tmp_path / "old")
    file.mkdir()
    server.process.send_signal(signal.SIGUSR1)
    server.wait_for_log(r"ERROR .*access-log \S+ cannot be opened again; the old file is used on")
    server.get()
    wait_until(lambda: (tmp_path / "old").read_text().count("\n") == 1)
    assert server.log().count("cannot be opened again") == 1
    assert server.stop() == 0


def test_rule_27_lines_of_the_server_name_their_process_in_json(io_kind):
    with Server("hello", "--log-format", "json", io=io_kind, wait=False) as server:
        server.wait_for_log("serves hello")
        server.process.terminate()
        server.wait()
        entries = [json.loads(line) for line in server.log().splitlines()]
    assert {(entry["process"], entry["pid"]) for entry in entries} == {("supervisor", server.pid)}
    (ready,) = [entry for entry in entries if "is ready" in entry["message"]]
    assert ready["worker_pid"] != server.pid and "worker" not in ready


def test_an_interim_answer_is_not_the_response(serve, tmp_path):
    file = tmp_path / "access.log"
    form = "%(s)s %({x-view}o)s"
    server = serve("access_lines:app", "--access-log", file, "--access-log-format", form)
    with server.connect() as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n"
                       b"Expect: 100-continue\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 100 ")
        client.sendall(b"ok")
        assert b"201 Created" in read_to_end(client)
    assert server.stop() == 0
    assert file.read_text() == '201 a\\x20\\x22b\\x22\n'

def test_rule_27_lines_of_two_workers_are_whole_in_a_pipe_that_is_read_slowly(serve):
    reader, writer = os.pipe()
    server = serve("hello", "--access-log", "-", "--access-log-format", "json", "--grace", "3",
                   workers=2, stdout=writer)
    os.close(writer)
    received = bytearray()

    def read_slowly():
        while chunk := os.read(reader, 8192):
            received.extend(chunk)
            time.sleep(0.01)

    quoted = b'"' * 3000
    long = b"GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: " + quoted + b"\r\nReferer: " + quoted
    short = b"GET /" + b"x" * 200 + b" HTTP/1.1\r\nHost: a"
    requests = b"".join((*[short + b"\r\n\r\n"] * 15, long + b"\r\n\r\n"))

    def load():
        with server.connect(30) as client:
            for _ in range(40):
                client.sendall(requests)
                count = 0
                while count < 16:
                    count += client.recv(65536).count(b"HTTP/1.1 200")

    threads = [threading.Thread(target=load) for _ in range(8)]
    slow = threading.Thread(target=read_slowly)
    for thread in (slow, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: received.count(b"\n") >= 8 * 40 * 16, 60, "every line")
    assert server.stop() == 0
    slow.join()
    os.close(reader)
    lines = received.splitlines(keepends=True)
    assert len(lines) == 8 * 40 * 16 and max(map(len, lines)) <= 4096
    agents = {json.loads(line)["agent"] for line in lines}
    assert len(agents) == 2, "a value is cut, and its line whole"


def test_a_named_pipe_without_a_reader_is_no_log_and_stops_nobody(serve, tmp_path):
    file = tmp_path / "access.log"
    server = serve("access_lines:app", "--access-log", file)
    file.unlink()
    os.mkfifo(file)
    server.process.send_signal(signal.SIGUSR1)
    server.wait_for_log("cannot be opened")
    assert server.get().status == 201
    assert server.stop() == 0


def test_a_line_that_a_full_disk_has_cut_does_not_melt_into_the_next(serve, tiny_disk):
    file = tiny_disk / "access.log"
    server = serve("access_lines:app", "--access-log", file, "--access-log-format", "%(r)s %(s)s")
    filler = tiny_disk / "filler"
    filler.write_bytes(b"x" * ((1 << 20) - (8 << 10)))
    for _ in range(400):
        server.get("/" + "y" * 100)
    server.wait_for_log("cannot be written")
    filler.unlink()
    server.get("/after")
    assert server.stop() == 0
    lines = file.read_text().splitlines()
    assert lines[-1] == "GET /after HTTP/1.1 201"
    whole = f"GET /{'y' * 100} HTTP/1.1 201"
    cut = [line for line in lines[:-1] if line != whole]
    assert len(cut) == 1 and whole.startswith(cut[0]), cut
