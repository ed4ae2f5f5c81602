"""Real HTTP clients of Python, and curl: each does what people do with it.

They talk to `behaviour_echo:app` and `behaviour_stream:app`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import tempfile
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

BODY = bytes(range(256)) * 4096
DIGEST = hashlib.sha256(BODY).hexdigest()
TICKS = b"tick\n" * 5
STREAM = "/stream?name={}&pieces=5&seconds=0.01"


def pieces() -> object:
    """The body in pieces, so that a client chunks it."""
    return (BODY[at : at + 10_007] for at in range(0, len(BODY), 10_007))


def use_http_client(echo: int, stream: int) -> None:
    """The standard library's."""
    connection = HTTPConnection("127.0.0.1", echo, timeout=10)
    for _ in range(20):
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"hello"
    connection.request("POST", "/echo", BODY)
    assert json.load(connection.getresponse())["sha256"] == DIGEST
    connection.request(
        "POST", "/echo", pieces(), encode_chunked=True, headers={"Transfer-Encoding": "chunked"}
    )
    assert json.load(connection.getresponse())["sha256"] == DIGEST
    connection.request("HEAD", "/sized?bytes=1000")
    answer = connection.getresponse()
    assert (answer.read(), answer.headers["Content-Length"]) == (b"", "1000")
    connection.close()
    other = HTTPConnection("127.0.0.1", stream, timeout=10)
    other.request("GET", STREAM.format("http.client"))
    assert other.getresponse().read() == TICKS
    other.close()


def use_requests(echo: int, stream: int) -> None:
    """requests."""
    import requests

    base = f"http://127.0.0.1:{echo}"
    with requests.Session() as session:
        for _ in range(20):
            assert session.get(f"{base}/").text == "hello"
        assert session.post(f"{base}/echo", data=BODY).json()["sha256"] == DIGEST
        assert session.post(f"{base}/echo", data=pieces()).json()["sha256"] == DIGEST
        files = {"file": ("a.bin", BODY)}
        assert session.post(f"{base}/echo", files=files).json()["length"] > len(BODY)
        url = f"http://127.0.0.1:{stream}" + STREAM.format("requests")
        with session.get(url, stream=True) as answer:
            assert b"".join(answer.iter_content(None)) == TICKS


def use_httpx(echo: int, stream: int) -> None:
    """httpx, synchronous."""
    import httpx

    with httpx.Client(base_url=f"http://127.0.0.1:{echo}") as client:
        for _ in range(20):
            assert client.get("/").text == "hello"
        assert client.post("/echo", content=BODY).json()["sha256"] == DIGEST
        assert client.post("/echo", content=pieces()).json()["sha256"] == DIGEST
        url = f"http://127.0.0.1:{stream}" + STREAM.format("httpx")
        with client.stream("GET", url) as answer:
            assert b"".join(answer.iter_raw()) == TICKS


def use_urllib3(echo: int, stream: int) -> None:
    """urllib3, a pool of two."""
    import urllib3

    with urllib3.PoolManager(maxsize=2, retries=False) as pool:
        base = f"http://127.0.0.1:{echo}"
        for _ in range(20):
            assert pool.request("GET", f"{base}/").data == b"hello"
        said = pool.request("POST", f"{base}/echo", body=BODY).json()
        assert said["sha256"] == DIGEST
        said = pool.request("POST", f"{base}/echo", body=pieces(), chunked=True).json()
        assert said["sha256"] == DIGEST
        url = f"http://127.0.0.1:{stream}" + STREAM.format("urllib3")
        answer = pool.request("GET", url, preload_content=False)
        assert b"".join(answer.stream()) == TICKS


def use_aiohttp(echo: int, stream: int) -> None:
    """aiohttp, fifty at once."""
    import aiohttp

    async def visit() -> None:
        base = f"http://127.0.0.1:{echo}"
        async with aiohttp.ClientSession() as session:

            async def text(number: int) -> bytes:
                target = STREAM.format(f"aiohttp-{number}")
                async with session.get(f"http://127.0.0.1:{stream}{target}") as answer:
                    return await answer.read()

            assert set(await asyncio.gather(*map(text, range(50)))) == {TICKS}
            for _ in range(20):
                async with session.get(f"{base}/") as answer:
                    assert await answer.text() == "hello"
            async with session.post(f"{base}/echo", data=BODY, expect100=True) as answer:
                assert (await answer.json(content_type=None))["sha256"] == DIGEST

            async def parts() -> object:
                for piece in pieces():
                    yield piece

            async with session.post(f"{base}/echo", data=parts()) as answer:
                assert (await answer.json(content_type=None))["sha256"] == DIGEST

    asyncio.run(visit())


def use_curl(echo: int, stream: int) -> None:
    """curl: reuse, an upload with `Expect`, chunks, 1.0, a stream."""
    base = f"http://127.0.0.1:{echo}"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "body")
        file.write_bytes(BODY)

        def curl(*arguments: str) -> bytes:
            command = ["curl", "-sS", "--fail", "--max-time", "20", *arguments]
            return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout

        reused = curl("-w", "%{num_connects},", *[f"{base}/" for _ in range(5)])
        assert reused == b"hello1," + b"hello0," * 4
        for extra in ([], ["-H", "Transfer-Encoding: chunked"], ["-H", "Expect: 100-continue"]):
            said = json.loads(curl("--data-binary", f"@{file}", *extra, f"{base}/echo"))
            assert said["sha256"] == DIGEST, extra
        assert json.loads(curl("-T", str(file), f"{base}/echo"))["sha256"] == DIGEST
        assert curl("--http1.0", f"{base}/") == b"hello"
        assert b"Content-Length: 1000" in curl("-I", f"{base}/sized?bytes=1000")
        assert curl(f"http://127.0.0.1:{stream}" + STREAM.format("curl")) == TICKS


CLIENTS: dict[str, Callable[[int, int], None]] = {
    "http.client": use_http_client,
    "requests": use_requests,
    "httpx": use_httpx,
    "urllib3": use_urllib3,
    "aiohttp": use_aiohttp,
    "curl": use_curl,
}
