"""Everything that a client does through a balancer. None of it may give a 502 or a 503."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import socket
import ssl
import threading

import pytest

from harness import wait_until

from ..wire import Wire, chunked, request, shared_server

BODY = bytes(range(256)) * 40_961  # 10 MiB and 256 bytes: no multiple of a buffer
DIGEST = hashlib.sha256(BODY).hexdigest()

backend = shared_server("balanced:app", "--request-id", "--max-body", "20MiB")


def echoed(response) -> dict:
    assert response.status == 200, response
    return json.loads(response.body)


def test_get_small_and_large(front):
    with Wire(front.port) as wire:
        assert wire.get("/").body == b"hello"
        assert wire.get("/sized?bytes=3000000").body == b"x" * 3_000_000
        assert wire.get("/").body == b"hello"


@pytest.mark.parametrize("coding", ["length", "chunked"])
def test_an_upload_arrives_whole(front, coding):
    with Wire(front.port, timeout=30) as wire:
        if coding == "length":
            response = wire.post("/echo", BODY)
        else:
            pieces = [BODY[at : at + 70_001] for at in range(0, len(BODY), 70_001)]
            wire.send(request("POST", "/echo", "Transfer-Encoding: chunked") + chunked(*pieces))
            response = wire.response()
        said = echoed(response)
        assert (said["length"], said["sha256"]) == (len(BODY), DIGEST)
        assert wire.get("/").body == b"hello"


def test_a_stream_arrives_piece_by_piece(front):
    """The second piece exists only when the client has asked for it, having the first."""
    with Wire(front.port) as wire, Wire(front.port) as other:
        wire.send(request("GET", f"/in-two?name={front.kind}", "Connection: close"))
        wire.head()
        received = b""
        while b"first\n" not in received:
            received += wire.exactly(1)
        assert other.get(f"/release?name={front.kind}").body == b"released"
        received += wire.rest()
        assert b"second\n" in received


def test_head_and_answers_without_a_body(front):
    with Wire(front.port) as wire:
        wire.send(request("HEAD", "/sized?bytes=1000"))
        found = wire.response("HEAD")
        assert (found.status, found.value("content-length")) == (200, "1000")
        for status in (204, 304):
            assert wire.get(f"/answer?status={status}").status == status
        found = wire.get("/answer?status=404&length=5")
        assert (found.status, found.body) == (404, b"hello")
        assert wire.get("/").body == b"hello"


def test_the_connection_to_the_server_is_kept(front):
    """Thirty requests of one client come over one; HAProxy has another for the first of them."""
    with Wire(front.port) as wire:
        seen = [echoed(wire.get("/echo"))["environ"]["REMOTE_PORT"] for _ in range(30)]
    assert len(set(seen)) <= (2 if front.kind == "haproxy" else 1)


def test_a_client_that_leaves_ends_the_stream(front, backend):
    name = f"leaves-{front.kind}"
    with Wire(front.port, receive_buffer=4096) as wire:
        wire.send(request("GET", f"/stream?name={name}&pieces=1000000&seconds=0"))
        assert wire.head().status == 200
        wire.reset()
    fate = f"/fate?name={name}"
    wait_until(lambda: backend.get(fate).json()["closed"] == 1, 20, "the stream is closed")
    with Wire(front.port) as wire:
        assert wire.get("/").body == b"hello"


@pytest.mark.parametrize(
    ("target", "megabytes", "status"), [("/unread", 5, 401), ("/echo", 40, 413)]
)
def test_an_upload_that_is_not_wanted_has_a_readable_answer(front, target, megabytes, status):
    length = megabytes << 20
    with Wire(front.port, timeout=30) as wire:
        wire.send(request("POST", target, f"Content-Length: {length}"))

        def feed() -> None:
            with contextlib.suppress(OSError):
                wire.send(bytes(length))

        sender = threading.Thread(target=feed)
        sender.start()
        assert wire.response().status == status
        with contextlib.suppress(OSError):
            wire.socket.shutdown(socket.SHUT_RDWR)
        sender.join()
    with Wire(front.port) as wire:
        assert wire.get("/").body == b"hello"


def test_a_client_that_expects_100_gets_it(front):
    with Wire(front.port) as wire:
        body = BODY[:100_000]
        wire.send(request("POST", "/echo", f"Content-Length: {len(body)}", "Expect: 100-continue"))
        assert wire.head().status == 100
        wire.send(body)
        assert echoed(wire.response())["length"] == len(body)


def test_a_client_cannot_choose_what_the_balancer_says_of_it(front):
    """What it sends as X-Forwarded-Proto is replaced, and its X-Forwarded-For is not the last."""
    with Wire(front.port) as wire:
        forged = ("X-Forwarded-Proto: https", "X-Forwarded-For: 203.0.113.9")
        environ = echoed(wire.get("/echo", *forged))["environ"]
        assert environ.get("HTTP_X_FORWARDED_PROTO") == "http"
        said = environ["HTTP_X_FORWARDED_FOR"].replace(" ", "").split(",")
        assert said[-1] == client_of(front, environ).split(",")[-1] != "203.0.113.9"


def client_of(front, environ: dict, address: str = "127.0.0.1") -> str:
    """The address a client has; for Envoy one that comes from loopback has the machine's own."""
    return environ["HTTP_X_FORWARDED_FOR"] if front.kind == "envoy" else address


def test_the_application_sees_the_client(front, needs_trust):
    """Client address and scheme are those that the balancer forwards (PRODUCTION, trust)."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", front.port, timeout=10, source_address=("127.0.0.3", 0)
    )
    connection.request("GET", "/echo")
    environ = json.load(connection.getresponse())["environ"]
    connection.close()
    assert environ["REMOTE_ADDR"] == client_of(front, environ, "127.0.0.3")
    assert environ["wsgi.url_scheme"] == "http"


def test_the_application_sees_the_scheme(front, needs_trust):
    if not front.tls_port:
        pytest.skip(f"no TLS is configured for {front.kind} here")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", front.tls_port, context=context)
    connection.request("GET", "/echo")
    environ = json.load(connection.getresponse())["environ"]
    connection.close()
    assert (environ["REMOTE_ADDR"], environ["wsgi.url_scheme"]) == ("127.0.0.1", "https")


def test_each_request_has_an_id_that_the_client_gets(front):
    with Wire(front.port) as wire:
        ids = set()
        for _ in range(5):
            response = wire.get("/echo")
            named = echoed(response)["environ"]["HTTP_X_REQUEST_ID"]
            assert named in response.values("x-request-id")
            ids.add(named)
        assert len(ids) == 5


def test_slow_clients_get_everything(front):
    with Wire(front.port, receive_buffer=4096) as reader, Wire(front.port) as writer:
        reader.send(request("GET", "/sized?bytes=2000000"))
        head = request("POST", "/echo", "Content-Length: 20000")
        writer.send(head[:20])
        assert not writer.buffer
        writer.send(head[20:])
        for at in range(0, 20_000, 1000):
            writer.send(BODY[at : at + 1000])
            with Wire(front.port) as other:
                assert other.get("/").body == b"hello"
        said = echoed(writer.response())
        assert said["sha256"] == hashlib.sha256(BODY[:20_000]).hexdigest()
        assert reader.response().body == b"x" * 2_000_000
