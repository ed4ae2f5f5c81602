"""`wsgi.input` behaves as `io.BytesIO`, from memory and from the spool (PRODUCTION 25, RULES 26)."""

from __future__ import annotations

import json
import sys

import pytest

from harness import APPS

sys.path.insert(0, str(APPS))

from wsgi_input import BODY, SCRIPTS  # noqa: E402

# Beyond 64 KiB a body goes to the spool; this many bytes more.
LARGE = 200_000


@pytest.fixture(scope="module")
def server(request):
    from harness import Server

    with Server("wsgi_input:app", "--threads", "2", io=request.config.getoption("--io")) as server:
        yield server


def compared(reply):
    found = json.loads(reply.body)
    assert found["same"], found
    return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_production_25_input_behaves_as_bytesio(server, name):
    found = compared(server.request("POST", f"/{name}", BODY))
    assert (found["type"], found["length"]) == ("BytesIO", str(len(BODY)))


@pytest.mark.parametrize("name", SCRIPTS)
def test_production_25_an_empty_input_behaves_as_bytesio(server, name):
    found = compared(server.get(f"/{name}"))
    assert (found["type"], found["length"]) == ("BytesIO", None)


@pytest.mark.parametrize("name", SCRIPTS)
def test_production_25_a_spooled_input_behaves_as_bytesio(server, name):
    body = BODY + b"\n" + b"x" * LARGE
    found = compared(server.request("POST", f"/{name}?{LARGE}", body))
    assert found["length"] == str(len(body))
    assert found["type"] == "BufferedReader"


@pytest.mark.parametrize("extra", [0, LARGE])
def test_production_2_a_chunked_body_has_a_length(server, extra):
    body = BODY + b"\n" + b"x" * extra if extra else BODY
    pieces = [body[start : start + 30_000] for start in range(0, len(body), 30_000)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    wire = server.raw(
        b"POST /read_2_then_read?%d HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n%s0\r\n\r\n" % (extra, chunks)
    )
    found = json.loads(wire.partition(b"\r\n\r\n")[2])
    assert found["same"] and found["length"] == str(len(body)), found


def test_a_spooled_input_is_closed_with_its_request(server):
    """Its descriptor does not live as long as the application likes."""
    assert json.loads(server.request("POST", "/kept", b"x" * LARGE).body) == {"closed": []}
    assert json.loads(server.request("POST", "/kept", b"x" * LARGE).body) == {"closed": [True]}
