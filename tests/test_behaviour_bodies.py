"""Request bodies: chunked, spooled, refused, awaited.

PRODUCTION behaviours 2, 17 and 30, RULES 26.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess

import pytest
from conformance.wire import Wire, chunked, request, shared_server
from harness import wait_until

KIB = 1024
MIB = 1024 * 1024

server = shared_server("behaviour_echo:app", "--threads", "4")
small = shared_server("behaviour_echo:app", "--max-body", str(MIB))
django = shared_server("behaviour_django", "--max-body", str(2 * MIB))


def content(size: int) -> bytes:
    """Bytes in which every position shows."""
    return random.Random(size).randbytes(size)


def same(said: dict, body: bytes) -> bool:
    """Whether the application saw exactly this body."""
    return (said["length"], said["sha256"]) == (len(body), hashlib.sha256(body).hexdigest())


def cut(body: bytes, size: int) -> list[bytes]:
    """In pieces."""
    return [body[at : at + size] for at in range(0, len(body), size)]


def test_02_django_sees_all_of_a_chunked_post(django):
    for size, piece in ((5, 1), (70 * KIB, 997), (2 * MIB, 64 * KIB)):
        body = content(size)
        with Wire(django) as wire:
            wire.send(request("POST", "/body", "Transfer-Encoding: chunked"))
            wire.send(chunked(*cut(body, piece)))
            assert same(json.loads(wire.response().body), body)


def test_02_django_parses_a_chunked_form(django):
    with Wire(django) as wire:
        form = "Content-Type: application/x-www-form-urlencoded"
        wire.send(request("POST", "/body", "Transfer-Encoding: chunked", form))
        wire.send(chunked(b"a=1&", b"b=%C3", b"%A9"))
        assert json.loads(wire.response().body)["fields"] == {"a": "1", "b": "é"}


def test_02_a_chunked_body_over_the_limit_is_413(django):
    with Wire(django) as wire:
        wire.send(request("POST", "/body", "Transfer-Encoding: chunked"))
        wire.send(chunked(*cut(bytes(2 * MIB + 1), 64 * KIB)))
        found = wire.response()
        assert (found.status, found.closes) == (413, True)
        wire.expect_end()


SIZES = [0, 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, MIB, 5 * MIB + 3]


@pytest.mark.parametrize("size", SIZES)
def test_rule_26_a_body_by_length_arrives_whole(server, size):
    body = content(size)
    with Wire(server, timeout=30) as wire:
        for _ in range(2):
            found = wire.post("/echo", body)
            said = json.loads(found.body)
            assert same(said, body)
            assert said["environ"]["CONTENT_LENGTH"] == str(size)
        assert wire.get("/").body == b"hello"


@pytest.mark.parametrize("size", SIZES)
def test_rule_26_a_chunked_body_arrives_whole(server, size):
    body = content(size)
    with Wire(server, timeout=30) as wire:
        for piece in (4093, 256 * KIB):
            wire.send(request("POST", "/echo", "Transfer-Encoding: chunked"))
            wire.send(chunked(*cut(body, piece)))
            said = json.loads(wire.response().body)
            assert same(said, body)
            # It is known by then, so applications that read by length see the whole of it.
            assert said["environ"]["CONTENT_LENGTH"] == str(size)
            assert "HTTP_TRANSFER_ENCODING" not in said["environ"]


def test_chunk_extensions_and_trailers_are_dropped(server):
    with Wire(server) as wire:
        wire.send(request("POST", "/echo", "Transfer-Encoding: chunked", "Trailer: X-T"))
        wire.send(b'5;name=value\r\nhello\r\n00006;q="a b"\r\n world\r\n0\r\nX-T: sum\r\n\r\n')
        said = json.loads(wire.response().body)
        assert said["body"] == "hello world"
        assert "HTTP_X_T" not in said["environ"]
        assert wire.get("/").body == b"hello"


def test_content_length_zero(server):
    with Wire(server) as wire:
        for _ in range(3):
            said = json.loads(wire.post("/echo", b"").body)
            assert (said["length"], said["environ"]["CONTENT_LENGTH"]) == (0, "0")


def test_a_get_may_have_a_body(server):
    with Wire(server) as wire:
        wire.send(request("GET", "/echo", "Content-Length: 5") + b"hello")
        assert json.loads(wire.response().body)["body"] == "hello"
        wire.send(request("GET", "/", "Content-Length: 5") + b"GET /")
        assert wire.response().body == b"hello"
        assert wire.get("/").body == b"hello"


def test_a_body_may_come_byte_by_byte(server):
    with Wire(server) as wire:
        for byte in request("POST", "/echo", "Transfer-Encoding: chunked") + chunked(b"ab", b"c"):
            wire.send(bytes([byte]))
        assert json.loads(wire.response().body)["body"] == "abc"


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_17_an_upload_answered_401_unread(server, framing):
    body = bytes(10 * MIB)
    with Wire(server, timeout=30) as wire:
        if framing == "length":
            wire.send(request("POST", "/unread", f"Content-Length: {len(body)}"))
            wire.send(body)
        else:
            wire.send(request("POST", "/unread", "Transfer-Encoding: chunked"))
            wire.send(chunked(*cut(body, 64 * KIB)))
        found = wire.response()
        assert (found.status, found.body) == (401, b"log in first")
        if found.closes:
            wire.expect_end()
        else:
            assert wire.get("/").body == b"hello"


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_rule_26_an_uploader_reads_the_413(small, framing):
    body = bytes(10 * MIB)
    with Wire(small, timeout=30) as wire:
        # The client sends all it has before it reads: no reset may cut it off.
        if framing == "length":
            wire.send(request("POST", "/echo", f"Content-Length: {len(body)}"))
            wire.send(body)
        else:
            wire.send(request("POST", "/echo", "Transfer-Encoding: chunked"))
            wire.send(chunked(*cut(body, 64 * KIB)))
        found = wire.response()
        assert (found.status, found.closes) == (413, True)
        assert b"--max-body" in found.body
        wire.expect_end()
    with Wire(small) as wire:
        assert wire.post("/echo", bytes(MIB)).status == 200


def test_rule_26_curl_reads_the_413(small, tmp_path):
    upload = tmp_path / "upload"
    upload.write_bytes(bytes(10 * MIB))
    for extra in ([], ["-H", "Expect:"], ["-H", "Transfer-Encoding: chunked"]):
        ran = subprocess.run(
            [
                "curl",
                "-sS",
                "-o",
                str(tmp_path / "answer"),
                "-w",
                "%{http_code}",
                "-T",
                str(upload),
                *extra,
                f"http://127.0.0.1:{small.port}/echo",
            ],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert (ran.stdout, ran.returncode) == ("413", 0), (extra, ran)
        assert "--max-body" in (tmp_path / "answer").read_text()


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_rule_26_a_full_disk_is_507(serve, tiny_disk, framing):
    server = serve("behaviour_echo:app", "--spool-dir", str(tiny_disk))
    body = content(3 * MIB)
    with Wire(server, timeout=30) as wire:
        if framing == "length":
            wire.send(request("POST", "/echo", f"Content-Length: {len(body)}") + body)
        else:
            wire.send(request("POST", "/echo", "Transfer-Encoding: chunked"))
            wire.send(chunked(*cut(body, 64 * KIB)))
        found = wire.response()
        assert found.status == 507
    line = server.wait_for_log(r".*No space left on device.*")[0]
    assert "507" in line and str(tiny_disk) in line and "--spool-dir" in line
    # What was written is given back, so that a smaller body fits.
    for _ in range(3):
        with Wire(server, timeout=30) as wire:
            body = content(700 * KIB)
            assert same(json.loads(wire.post("/echo", body).body), body)


def test_rule_26_the_bytes_of_all_spooled_bodies_are_bounded(serve, tmp_path):
    server = serve(
        "behaviour_echo:app", "--spool-dir", str(tmp_path), "--spool-bytes", str(2 * MIB)
    )
    body = content(3 * MIB)
    with Wire(server, timeout=30) as wire:
        wire.send(request("POST", "/echo", f"Content-Length: {len(body)}") + body)
        assert wire.response().status == 507
    server.wait_for_log("--spool-bytes")
    # One waits with half of the bytes; another finds too little left; then the first goes on.
    half = content(1536 * KIB)
    with Wire(server, timeout=30) as first, Wire(server, timeout=30) as second:
        first.send(request("POST", "/echo", f"Content-Length: {len(half)}") + half[:-1])
        # The server has taken all that was sent when a later request is answered.
        with Wire(server) as third:
            for _ in range(20):
                assert third.get("/sleep?seconds=0.02").status == 200
        second.send(request("POST", "/echo", f"Content-Length: {len(half)}") + half)
        assert second.response().status == 507
        first.send(half[-1:])
        assert same(json.loads(first.response().body), half)
    # The bytes of the answered bodies are free again, a moment after their answers.
    wait_until(lambda: half_is_taken(server, half), what="the bytes are given back")
    assert list(tmp_path.iterdir()) == []


def half_is_taken(server, half):
    with Wire(server, timeout=30) as wire:
        response = wire.post("/echo", half)
    if response.status == 507:
        return False
    assert same(json.loads(response.body), half)
    return True


def test_30_continue_is_said_when_the_body_is_wanted(server):
    for size in (5, 200_000):
        body = content(size)
        with Wire(server) as wire:
            fields = (f"Content-Length: {size}", "Expect: 100-continue")
            wire.send(request("POST", "/echo", *fields))
            interim = wire.head()
            assert (interim.status, interim.fields) == (100, [])
            wire.send(body)
            found = wire.response()
            assert found.interim == []
            assert same(json.loads(found.body), body)
            assert wire.get("/").body == b"hello"


def test_30_the_expectation_is_case_insensitive_and_works_for_chunks(server):
    with Wire(server) as wire:
        wire.send(request("POST", "/echo", "Transfer-Encoding: chunked", "Expect: 100-Continue"))
        assert wire.head().status == 100
        wire.send(chunked(b"hello"))
        assert json.loads(wire.response().body)["body"] == "hello"


def test_30_no_continue_without_a_body(server):
    with Wire(server) as wire:
        for fields in (("Expect: 100-continue",), ("Expect: 100-continue", "Content-Length: 0")):
            wire.send(request("POST", "/echo", *fields))
            found = wire.response()
            assert (found.status, found.interim) == (200, [])


def test_30_no_continue_for_1_0(server):
    with Wire(server) as wire:
        fields = ("Content-Length: 5", "Expect: 100-continue")
        wire.send(request("POST", "/echo", *fields, version="HTTP/1.0") + b"hello")
        found = wire.response()
        assert (found.status, found.interim) == (200, [])


def test_30_no_continue_for_a_body_that_is_refused(small):
    with Wire(small) as wire:
        fields = (f"Content-Length: {MIB + 1}", "Expect: 100-continue")
        wire.send(request("POST", "/echo", *fields))
        found = wire.response()
        assert (found.status, found.interim) == (413, [])
        assert found.closes


def test_30_a_body_that_came_with_its_head_needs_no_continue(server):
    with Wire(server) as wire:
        fields = ("Content-Length: 5", "Expect: 100-continue")
        wire.send(request("POST", "/echo", *fields) + b"hello" + request("GET", "/"))
        assert json.loads(wire.response().body)["body"] == "hello"
        assert wire.response().body == b"hello"


def test_30_an_unknown_expectation_is_417(server):
    for value in ("200-maybe", "100-continue, 200-maybe"):
        with Wire(server) as wire:
            wire.send(request("POST", "/echo", "Content-Length: 5", f"Expect: {value}"))
            assert wire.response().status == 417
