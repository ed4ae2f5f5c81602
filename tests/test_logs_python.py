"""`--log-config`: the lines of a worker through Python's `logging` (RULES 27 and 29)."""

from __future__ import annotations

import json
import re
import time

import pytest
from harness import wait_until

KEPT = {"class": "log_handlers.Kept"}


def dict_config(tmp_path, handlers, level="INFO", **more):
    file = tmp_path / "logging.json"
    root = {"level": level, "handlers": list(handlers)}
    file.write_text(json.dumps({"version": 1, "handlers": handlers, "root": root, **more}))
    return file


def kept(path):
    """The records that are written completely."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def test_rule_29_lines_go_to_loggers_with_level_and_attributes(serve, tmp_path):
    file = tmp_path / "kept"
    config = dict_config(tmp_path, {"kept": {**KEPT, "path": str(file)}})
    server = serve("life:app", "--log-config", config, "--request-id")
    assert server.get("/fail?a=\"b", User_Agent="x").status == 500
    pid = server.worker_pids()[0]
    assert server.stop() == 0
    error, access = sorted(kept(file), key=lambda record: record["logger"])
    assert (error["logger"], error["level"]) == ("hoopsnake", "ERROR")
    assert "the application raised" in error["text"] and "on purpose" in error["text"]
    assert (access["logger"], access["level"]) == ("hoopsnake.access", "INFO")
    assert re.match(r'127\.0\.0\.1 - - \[.*\] "GET /fail\?a=\\x22b HTTP/1\.1" 500 ', access["text"])
    seen = access["seen"]
    assert (seen["method"], seen["target"], seen["status"]) == ("GET", '/fail?a="b', 500)
    assert (seen["worker"], seen["pid"]) == (1, pid) and f"id={seen['request_id']}" in error["text"]
    assert {error["thread"], access["thread"]} == {"hoopsnake-logging"}
    assert 0 <= access["age"] < 30
    # stderr has what the supervisor says, and no line of the worker.
    assert "worker[" not in server.log() and "supervisor[" in server.log()


def test_rule_29_an_ini_file_is_for_file_config(serve, tmp_path):
    file, config = tmp_path / "kept", tmp_path / "logging.conf"
    config.write_text(
        "[loggers]\nkeys=root\n[handlers]\nkeys=kept\n[formatters]\nkeys=\n"
        "[logger_root]\nlevel=INFO\nhandlers=kept\n"
        f"[handler_kept]\nclass=log_handlers.Kept\nargs=({str(file)!r},)\n"
    )
    server = serve("hello", "--log-config", config, "--access-log-format", "%m %U %s",
                   "--single-process")
    server.get("/path")
    assert server.stop() == 0
    assert "GET /path 200" in [record["text"] for record in kept(file)]


@pytest.mark.parametrize(
    "name, text, reason",
    [
        ("missing.json", None, "No such file"),
        ("missing.conf", None, "No such file"),
        ("bad.json", "{", "JSONDecodeError"),
        ("list.json", "[]", "no object with the keys of dictConfig"),
        ("handler.json", '{"version": 1, "handlers": {"a": {"class": "no.such.Handler"}}}',
         "No module named 'no'"),
        ("bad.conf", "nothing\n", "section headers"),
        ("bad.yaml", "version: [", "yaml"),
    ],
)
def test_rule_29_a_configuration_that_is_none_is_said_once_with_file_and_reason(
    serve, tmp_path, name, text, reason
):
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    server = serve("hello", "--log-config", file, workers=2, wait=False)
    assert server.wait() == 1
    (line,) = [line for line in server.log().splitlines() if "ERROR" in line]
    assert f"log-config {file}: " in line and reason.lower() in line.lower()


def test_rule_29_the_access_log_stays_native_where_it_is_named(serve, tmp_path):
    file, log = tmp_path / "kept", tmp_path / "access.log"
    config = dict_config(tmp_path, {"kept": {**KEPT, "path": str(file)}})
    server = serve("hello", "--log-config", config, "--access-log", log)
    server.get()
    assert server.stop() == 0
    assert log.read_text().count("\n") == 1
    server = serve("hello", "--log-config", config, "--access-log", "off")
    server.get()
    assert server.stop() == 0
    loggers = {"hoopsnake.access": {"level": "WARNING"}}
    config = dict_config(tmp_path, {"kept": {**KEPT, "path": str(file)}}, loggers=loggers)
    server = serve("hello", "--log-config", config)
    server.get()
    assert server.stop() == 0
    assert not [record for record in kept(file) if record["logger"] == "hoopsnake.access"]


def test_rule_29_what_a_handler_raises_for_goes_to_stderr_and_the_server_lives(serve, tmp_path):
    config = dict_config(tmp_path, {"raising": {"class": "log_handlers.Raising"}})
    server = serve("hello", "--log-config", config, "--access-log-format", "%m %U")
    for _ in range(3):
        server.get("/poison")
    server.wait_for_log(r"ERROR worker\S+ a handler of Python's logging raised .*out of ink")
    wait_until(lambda: server.log().count("INFO  worker") == 3)
    assert len(re.findall(r" GET /poison\n", server.log())) == 3
    assert server.log().count("raised") == 1
    server.get("/fine")
    assert server.stop() == 0
    assert "/fine" not in server.log()


def many(server, count, path="/"):
    """Pipelined requests on one connection."""
    request = f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode() * 100
    with server.connect(60) as connection:
        for _ in range(count // 100):
            connection.sendall(request)
            received = b""
            while received.count(b"HTTP/1.1 2") < 100:
                received += connection.recv(1 << 20)


def test_rule_27_a_handler_that_never_returns_stops_nothing(serve, tmp_path, pytestconfig):
    """A million requests (a twentieth without --long), and an end within the grace."""
    request_count = 1_000_000 if pytestconfig.getoption("--long") else 50_000
    config = dict_config(tmp_path, {"stuck": {"class": "log_handlers.Stuck"}})
    server = serve("hello", "--log-config", config, "--threads", "2")
    many(server, request_count)
    server.wait_for_log("hoopsnake-logging is full and no handler takes lines")
    assert server.log().count("is full") == 1
    start = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - start < 20
    left = re.search(r"did not take lines in time.* lines=(\d+)", server.log())
    assert int(left[1]) >= 8192


def test_rule_27_dropped_lines_are_counted_and_said_to_the_logger(serve, tmp_path):
    file, gate = tmp_path / "kept", tmp_path / "gate"
    late = {"kept": {**KEPT, "path": str(file), "gate": str(gate)}}
    server = serve("hello", "--log-config", dict_config(tmp_path, late), "--threads", "2")
    many(server, 20_000)
    gate.touch()

    def dropped():
        found = [re.search(r"dropped lines .*count=(\d+)", record["text"]) for record in kept(file)
                 if record["logger"] == "hoopsnake"]
        return sum(int(match[1]) for match in found if match)

    wait_until(dropped, 60, "the count of dropped lines")
    assert server.stop() == 0
    access = [record for record in kept(file) if record["logger"] == "hoopsnake.access"]
    assert len(access) + dropped() == 20_000


def test_rule_27_block_waits_for_a_slow_handler_and_loses_nothing(serve, tmp_path):
    """Also where a thread logs that has the interpreter lock, which the handler needs."""
    file = tmp_path / "kept"
    slow = {"kept": {**KEPT, "path": str(file), "delay": 0.00005}}
    config = dict_config(tmp_path, slow)
    server = serve("access_lines:app", "--log-config", config, "--log-overflow", "block",
                   "--threads", "2", "--grace", "60")
    many(server, 10_000, "/errors?line")
    assert server.stop(timeout=90) == 0
    loggers = [record["logger"] for record in kept(file)]
    assert (loggers.count("hoopsnake"), loggers.count("hoopsnake.access")) == (10_000, 10_000)


def test_a_stall_is_said_on_stderr_while_no_handler_could_run(serve, tmp_path):
    file = tmp_path / "kept"
    config = dict_config(tmp_path, {"kept": {**KEPT, "path": str(file)}})
    server = serve("life:app", "--log-config", config, "--stall-timeout", "1", "--threads", "2")
    assert server.get("/hold?seconds=4").status == 200
    server.wait_for_log("the interpreter lock has been held for")
    server.wait_for_log("the interpreter lock moves again")
    assert server.stop() == 0
    assert "interpreter lock" not in file.read_text()
