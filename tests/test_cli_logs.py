"""Logs: RULES.md 27, formats, and values that cannot forge a line."""

from __future__ import annotations

import json
import os
import re
import time

from harness import Server, wait_until

COMBINED = re.compile(
    r'127\.0\.0\.1 - (?P<user>\S+) \[\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d \+0000\] "(?P<request>[^"]*)" '
    r'(?P<status>\d{3}) (?P<bytes>\d+) "(?P<referer>[^"]*)" "(?P<agent>[^"]*)" '
    r"queue=(?P<queue>\S+) app=(?P<app>\S+) write=(?P<write>\S+) total=(?P<total>\S+)"
)


def test_combined_lines_have_their_fields(serve, tmp_path):
    file = tmp_path / "access.log"
    server = serve("life:app", "--access-log", file)
    server.get("/slow?seconds=0.05", User_Agent="test/1", Referer="http://a/",
               Authorization="Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")
    assert server.stop() == 0
    (line,) = file.read_text().splitlines()
    found = COMBINED.fullmatch(line)
    assert found, line
    assert found["request"] == "GET /slow?seconds=0.05 HTTP/1.1"
    assert (found["status"], found["user"], found["referer"], found["agent"]) == (
        "200", "Aladdin", "http://a/", "test/1",
    )
    assert 50 <= float(found["app"]) <= float(found["total"]) < 1000
    assert found["bytes"] == "15"


def test_values_cannot_forge_a_line(serve, tmp_path):
    file = tmp_path / "access.log"
    server = serve("hello", "--access-log", file)
    server.raw(b'GET /"%0a HTTP/1.1\r\nHost: a\r\nUser-Agent: x" 200 \\\xff\tz\r\n'
               b"Connection: close\r\n\r\n")
    assert server.stop() == 0
    (line,) = file.read_text().splitlines()
    found = COMBINED.fullmatch(line)
    assert found and found["agent"] == r"x\x22 200 \x5c\xff\x09z", line
    assert found["request"] == r"GET /\x22%0a HTTP/1.1"


def test_json_lines_read_back(serve, tmp_path):
    file = tmp_path / "access.log"
    server = serve("hello", "--access-log", file, "--access-log-format", "json")
    server.get("/path?q=1")
    assert server.stop() == 0
    entry = json.loads(file.read_text())
    assert (entry["method"], entry["target"], entry["status"]) == ("GET", "/path?q=1", 200)
    assert (entry["remote"], entry["bytes"], entry["aborted"]) == ("127.0.0.1", 14, False)
    assert entry["total_ms"] >= entry["app_ms"] >= 0


def test_the_access_log_on_stdout_is_flushed_at_the_end(serve, tmp_path):
    with open(tmp_path / "out", "wb") as out:
        server = serve("hello", "--access-log", "-", stdout=out)
        for _ in range(500):
            server.get()
        assert server.stop() == 0
    assert len((tmp_path / "out").read_text().splitlines()) == 500


def test_the_servers_log_as_json(serve):
    server = serve("hello", "--log-format", "json", "--log-level", "warn",
                   "--spool-dir", "/nonexistent", wait=False)
    server.wait_for_log("spool-dir")
    wait_until(lambda: server.log().endswith("\n"))
    for line in server.log().splitlines():
        entry = json.loads(line)
        assert entry["level"] == "warn" and entry["process"] == "worker"
        assert entry["worker"] == 1 and entry["pid"] != server.pid


def test_rule_27_a_pipe_that_nobody_reads_stops_nothing(io_kind, pytestconfig):
    """Access lines of a million requests (a tenth without --long) into a pipe of 64 KiB."""
    request_count = 1_000_000 if pytestconfig.getoption("--long") else 100_000
    reader, writer = os.pipe()
    try:
        with Server("hello", "--access-log", "-", "--log-level", "warn", "--threads", "2",
                    io=io_kind, stdout=writer, wait=False) as server:
            # The banner is below the level: the port is asked of the kernel.
            wait_until(lambda: port_of(server), 20, "the server listens")
            server.port = port_of(server)
            total = 0
            request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 100
            with server.connect() as connection:
                while total < request_count:
                    connection.sendall(request)
                    received = b""
                    while received.count(b"Hello, world!\n") < 100:
                        received += connection.recv(1 << 20)
                    total += 100
            # Now somebody reads: what was dropped is counted and said once.
            drained = bytearray()
            os.set_blocking(reader, False)

            def drain():
                try:
                    drained.extend(os.read(reader, 1 << 20))
                except BlockingIOError:
                    pass
                return "dropped lines because nobody read them" in server.log()

            wait_until(drain, 10, "the count of dropped lines")
            assert server.log().count("dropped lines") == 1
            count = int(re.search(r"dropped lines .*count=(\d+)", server.log())[1])
            assert count > 1000
            wait_until(lambda: drain() and drained.count(b"\n") + count >= total, 10, "the rest")
            assert drained.count(b"\n") + count == total
            assert server.stop() == 0
    finally:
        os.close(reader)
        os.close(writer)


def test_rule_27_a_worker_ends_although_nobody_reads_its_stderr(io_kind):
    reader, writer = os.pipe()
    try:
        with Server("life:app", io=io_kind, stdout=writer, stderr=writer, wait=False) as server:
            wait_until(lambda: port_of(server), 20, "the server listens")
            server.port = port_of(server)
            wait_until(lambda: answers(server), 20, "the worker serves")
            for _ in range(400):
                assert server.get("/fail").status == 500
            start = time.monotonic()
            assert server.stop() in (0, 1)
            assert time.monotonic() - start < 10
    finally:
        os.close(reader)
        os.close(writer)


def answers(server):
    try:
        return server.get().status == 200
    except OSError:
        return False


def port_of(server):
    """The port that the server's process listens on, from the kernel."""
    links = []
    try:
        for name in os.listdir(f"/proc/{server.pid}/fd"):
            links.append(os.readlink(f"/proc/{server.pid}/fd/{name}"))
    except OSError:
        return 0
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    with open("/proc/net/tcp") as table:
        for line in table.readlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and fields[3] == "0A":
                return int(fields[1].split(":")[1], 16)
    return 0


def test_rule_27_an_access_log_that_cannot_be_written_is_said_on_the_servers_log(serve):
    server = serve("hello", "--access-log", "/dev/full")
    server.get()
    server.wait_for_log(r"hoopsnake-access.* cannot be written; its lines are lost")
    server.get()
    assert server.log().count("cannot be written") == 1
    assert server.stop() == 0


def test_rule_27_a_request_id_is_the_same_in_the_response_the_view_and_both_logs(serve, tmp_path):
    file = tmp_path / "access.log"
    server = serve("request_ids:app", "--request-id", "--access-log", file,
                   "--trusted-proxies", "off")
    seen = []
    for path in ("/", "/raise"):
        # What a client sends is not believed.
        reply = server.get(path, X_Request_ID="forged")
        seen.append(reply.headers["X-Request-ID"])
        assert re.fullmatch(r"[0-9a-f]{32}", seen[-1])
        if path == "/":
            assert reply.body.decode() == seen[-1]
    assert server.get("/own").headers["X-Request-ID"] == "mine"
    server.wait_for_log(rf"GET /raise id={seen[1]}")
    assert server.stop() == 0
    first, second, own = file.read_text().splitlines()
    assert first.endswith(f" id={seen[0]}") and second.endswith(f" id={seen[1]}")
    assert seen[0] != seen[1] and " id=" in own


def test_rule_27_a_refused_upload_has_its_id_too_and_without_the_option_there_is_none(serve):
    request = (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n")
    answer = serve("request_ids:app", "--request-id", "--max-body", "9").raw(request)
    assert answer.startswith(b"HTTP/1.1 413 ") and answer.count(b"\r\nX-Request-ID: ") == 1
    reply = serve("request_ids:app").get("/", X_Request_ID="theirs")
    assert "X-Request-ID" not in reply.headers and reply.body == b"theirs"
