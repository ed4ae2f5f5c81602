"""PEP 3333, rule by rule, against a running server."""

from __future__ import annotations

import http.client
import json
import re
import socket
import time

import pytest

from harness import read_to_end, wait_until


@pytest.fixture
def server(serve):
    return serve("wsgi_protocol:app", "--threads", "2")


def get(server, path, version=b"1.1", method=b"GET", fields=b""):
    """The head in lower case, and the body as it is on the wire."""
    request = b"%s %s HTTP/%s\r\nHost: a\r\nConnection: close\r\n%s\r\n"
    head, _, body = server.raw(request % (method, path, version, fields)).partition(b"\r\n\r\n")
    return head.decode("latin-1").lower(), body


def notes(server):
    return json.loads(get(server, b"/notes")[1])


# environ


def test_environ_is_a_dict_of_native_strings(server):
    facts = json.loads(get(server, b"/environ_types")[1])
    assert facts["dict"] and facts["texts"] and facts["latin1"] and facts["clean"]
    assert facts["version"] == [1, 0]
    assert facts["run_once"] is False
    assert facts["input_terminated"] is True
    assert facts["software"].startswith("hoopsnake/")
    assert facts["uris"] == ["/environ_types", "/environ_types"]
    # The next request has an environ of its own.
    assert json.loads(get(server, b"/environ_types")[1])["clean"]


@pytest.mark.parametrize("threads, workers", [(1, 1), (2, 1), (1, 2)])
def test_multithread_and_multiprocess_are_true_to_the_topology(serve, threads, workers):
    server = serve("wsgi_protocol:app", "--threads", str(threads), workers=workers)
    facts = json.loads(get(server, b"/environ_types")[1])
    assert (facts["multithread"], facts["multiprocess"]) == (threads > 1, workers > 1)


@pytest.mark.parametrize("target", [b"/mounted/environ_types", b"/environ_types"])
def test_root_path_is_script_name_and_is_taken_off_the_path(serve, target):
    server = serve("wsgi_protocol:app", "--root-path", "/mounted")
    facts = json.loads(get(server, target)[1])
    assert (facts["script_name"], facts["path_info"]) == ("/mounted", "/environ_types")
    assert facts["uris"] == [target.decode()] * 2


def test_production_3_and_4_fields(server):
    fields = b"X-A: 1\r\nx-a: 2\r\nX-B: caf\xe9\r\nX_A: 3\r\nX-C:\r\n"
    seen = json.loads(get(server, b"/fields", fields=fields)[1])
    assert seen == {"HTTP_X_A": "1,2", "HTTP_X_B": "caf\xe9", "HTTP_X_C": ""}


def test_fields_do_not_leak_from_request_to_request(server):
    """The table of names and values that a thread remembers gives nothing to another request."""
    for number in range(2000):
        fields = b"X-N%d: %d\r\nX-Same: %d\r\n" % (number, number, number)
        seen = json.loads(get(server, b"/fields", fields=fields)[1])
        assert seen == {f"HTTP_X_N{number}": str(number), "HTTP_X_SAME": str(number)}


# The body


@pytest.mark.parametrize("path, body", [
    (b"/several", b"abc"),
    (b"/tuple_of_pieces", b"abc"),
    (b"/list_iterator", b"abc"),
    (b"/len_one", b"only"),
    (b"/empty_list", b""),
    (b"/empty_generator", b""),
])
def test_a_sized_body_is_one_buffer_with_its_length(server, path, body):
    head, found = get(server, path)
    assert f"content-length: {len(body)}" in head
    assert found == body


@pytest.mark.parametrize("path, chunks", [
    (b"/generator", b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"),
    (b"/start_in_generator", b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n"),
    (b"/start_after_empty_pieces", b"1\r\na\r\n0\r\n\r\n"),
    (b"/writes", b"1\r\na\r\n1\r\nb\r\n1\r\nc\r\n1\r\nd\r\n0\r\n\r\n"),
])
def test_an_unsized_body_is_chunked_without_empty_pieces(server, path, chunks):
    head, body = get(server, path)
    assert "transfer-encoding: chunked" in head
    assert body == chunks
    head, body = get(server, path, version=b"1.0")
    assert "transfer-encoding" not in head and "connection: close" in head
    assert body == b"".join(chunks.split(b"\r\n")[1:-3:2])


def test_write_sends_at_once(server):
    with server.connect() as connection:
        connection.sendall(b"GET /write_then_wait?3 HTTP/1.1\r\nHost: a\r\n\r\n")
        began = time.monotonic()
        connection.settimeout(2)
        received = b""
        while not received.endswith(b"\r\n\r\na"):
            received += connection.recv(4096)
        assert time.monotonic() - began < 1.5


def test_write_takes_bytes_only(server):
    assert get(server, b"/write_text")[0].startswith("http/1.1 500 ")
    server.wait_for_log("TypeError")


def test_a_kept_write_or_start_response_reaches_no_other_response(serve):
    server = serve("wsgi_protocol:app", "--threads", "1")
    get(server, b"/write_first")
    assert get(server, b"/write_too_late")[1].startswith(b"the response is over")
    assert get(server, b"/start_too_late")[1] == b"kept"
    assert get(server, b"/start_too_late")[1].startswith(b"the response is over")


def test_content_length_is_obeyed(server):
    head, body = get(server, b"/exact")
    assert ("content-length: 4" in head, body) == (True, b"abcd")
    assert notes(server) == ["end"]


@pytest.mark.parametrize("path, left", [(b"/surplus", []), (b"/surplus_list", [])])
def test_more_than_content_length_is_cut_off_and_said_once(server, path, left):
    request = b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path
    last = b"GET /several HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    wire = server.raw(request + last)
    first, _, second = wire.partition(b"abcd")
    assert second.startswith(b"HTTP/1.1 200 OK\r\n") and second.endswith(b"\r\n\r\nabc")
    wait_until(lambda: "more bytes of body than its Content-Length" in server.log())
    assert server.log().count("more bytes of body") == 1
    assert notes(server) == left


@pytest.mark.parametrize("path", ["/missing", "/missing_generator", "/raises_late"])
def test_production_26_a_body_that_ends_early_is_visible(server, path):
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        server.get(path)


# start_response


def test_forms_of_start_response_that_are_taken(server):
    assert "a: b" in get(server, b"/keyword_arguments")[0]
    assert "a: b" in get(server, b"/headers_as_tuple")[0]
    assert get(server, b"/status_alone")[0].startswith("http/1.1 299")
    head, _ = get(server, b"/own_phrase")
    assert head.startswith("http/1.1 200 caf\xe9 au lait\r\n")
    assert "x-a: \xe4\xff" in head


def test_exc_info_replaces_a_head_that_is_not_sent(server):
    head, body = get(server, b"/replaced")
    assert head.startswith("http/1.1 503 replaced")
    assert "x-new: 1" in head and "x-old" not in head
    assert body == b"replaced"


def test_exc_info_is_raised_again_when_the_head_is_sent(server):
    _, body = get(server, b"/raised_again")
    assert body.startswith(b"1\r\na\r\n") and not body.endswith(b"0\r\n\r\n")
    # The exception keeps the traceback of where it was raised first.
    assert notes(server) == ["first True"]


@pytest.mark.parametrize("name", [
    "status_number", "status_1000", "status_99", "status_100", "status_wide", "status_with_line",
    "name_bytes", "value_bytes", "value_number", "value_wide", "value_with_line", "value_with_nul",
    "name_with_space", "name_empty", "triple", "pair_as_list", "length_signed", "headers_none",
])
def test_production_26_a_bad_head_is_a_500_and_a_log_line(server, name):
    head, body = get(server, b"/bad/" + name.encode())
    assert head.startswith("http/1.1 500 ")
    assert "\r\nx: y" not in head and "\r\nc: d" not in head
    # Raised where the application gave it, so that its traceback says where.
    server.wait_for_log(re.escape("start_response(*BAD_HEADS[name])"))


@pytest.mark.parametrize("path, said", [
    ("/raises", "a word to look for"),
    ("/returns_none", "returned NoneType, which cannot be iterated"),
    ("/returns_text", "a piece of type str, which must be bytes"),
    ("/gives_text", "a piece of type str, which must be bytes"),
    ("/never_starts", "did not call start_response"),
    ("/never_starts_and_ends", "did not call start_response"),
    ("/starts_twice", "a second time without exc_info"),
    ("/system_exit", "SystemExit: 3"),
    ("/keyboard_interrupt", "KeyboardInterrupt"),
    ("/generator_exit", "GeneratorExit"),
    ("/unprintable", "Unprintable"),
])
def test_a_broken_rule_is_a_500_and_a_log_line_that_names_it(server, path, said):
    reply = server.get(path)
    assert (reply.status, reply.text) == (500, "Internal Server Error\n")
    server.wait_for_log(f"GET {path}: the application")
    server.wait_for_log(re.escape(said))
    assert server.get("/several").body == b"abc"


# close()


@pytest.mark.parametrize("path", ["/closes_list", "/closes_generator", "/closes_text"])
def test_close_is_called_once(server, path):
    server.get(path)
    wait_until(lambda: notes(server) == ["closed"])
    assert notes(server) == []


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_close_is_called_once_when_the_iterable_raises(server, method):
    get(server, b"/closes_raising", method=method)
    wait_until(lambda: notes(server) == ["closed"])
    assert notes(server) == []


def test_an_exception_in_close_is_logged_and_the_response_stands(server):
    assert server.get("/close_raises").body == b"a"
    server.wait_for_log("GET /close_raises: the application raised in close()")
    assert notes(server) == ["closed"]


def test_the_client_does_not_wait_for_close(server):
    began = time.monotonic()
    assert server.get("/close_slowly").body == b"a"
    assert time.monotonic() - began < 0.4


@pytest.mark.parametrize("path", [b"/closes_endless", b"/generator_is_closed"])
def test_rule_18_a_stream_ends_when_its_client_is_gone(server, path):
    with server.connect() as connection:
        connection.sendall(b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path)
        connection.recv(65536)
        # A reset, not a FIN: nothing can be written any more.
        connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
        )
    wait_until(lambda: notes(server) == ["closed"])


@pytest.mark.parametrize("path", [b"/closes_endless", b"/generator_is_closed"])
def test_rule_19_head_iterates_nothing_and_closes(server, path):
    head, body = get(server, path, method=b"HEAD")
    assert head.startswith("http/1.1 200 ") and body == b""
    # A generator that never began has no `finally` to run: that is Python's rule.
    expected = ["closed"] if path == b"/closes_endless" else []
    wait_until(lambda: notes(server) == expected)


def test_rule_19_head_asks_a_late_starter_only_for_its_head(server):
    head, body = get(server, b"/start_in_generator", method=b"HEAD")
    assert head.startswith("http/1.1 200 ") and body == b""
    assert notes(server) == ["begun"]


# Threads and contexts


def test_rule_3_pool_threads_are_pythons_own(server):
    name, daemon, kind = json.loads(get(server, b"/thread_facts")[1])
    assert name.startswith("hoopsnake-pool-") and daemon and kind == "Thread"


def test_rule_3_recursion_is_a_500_and_the_worker_lives(server):
    pids = server.worker_pids()
    for _ in range(3):
        assert server.get("/recursion").status == 500
    server.wait_for_log("RecursionError")
    assert server.get("/several").body == b"abc"
    assert server.worker_pids() == pids


def test_rule_5_a_request_runs_in_a_context_of_its_own(serve):
    server = serve("wsgi_protocol:app", "--threads", "1")
    for _ in range(3):
        reply = server.get("/set_variable")
        assert json.loads(reply.body) == ["default", "of the call", "of the iterator"]
        assert notes(server) == ["of the iterator"]
        assert server.get("/get_variable").text == "default"


# wsgi.errors


def test_errors_go_to_the_log_line_by_line(server):
    server.get("/errors")
    for number in ("first", "second", "third", "fourth", "fifth"):
        server.wait_for_log(f"{number} line")


def test_errors_without_an_end_of_line_are_bounded_and_complete(server):
    server.get("/errors_without_end")
    wait_until(lambda: server.log().count("x" * 1000) >= 95, what="the text in the log")


def test_many_failures_in_a_row_leave_the_connection_usable(server):
    """Keep-alive survives a 500 of our own, whose framing is complete."""
    request = b"GET /raises HTTP/1.1\r\nHost: a\r\n\r\n"
    last = b"GET /several HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(request * 5 + last)
        wire = read_to_end(connection)
    assert wire.count(b"HTTP/1.1 500 ") == 5
    assert wire.endswith(b"\r\n\r\nabc")
