"""Fixtures of the black-box suite: `serve` starts servers and ends them after the test."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import COMMAND, Server  # noqa: E402

# Nothing that a peer or an application does may lead to one of these.
OUR_FAULT = re.compile(r"panicked|\bbug: .*|RUST_BACKTRACE|stack backtrace")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--io",
        choices=["uring", "epoll"],
        default=None,
        help="run every server of the suite on this kernel interface",
    )
    parser.addoption("--long", action="store_true", help="full numbers where a test scales")


def pytest_report_header(config: pytest.Config) -> str:
    return f"hoopsnake: {COMMAND}, io: {config.getoption('--io') or 'auto'}"


@pytest.fixture(scope="session")
def io_kind(request: pytest.FixtureRequest) -> str | None:
    """What `--io` says: `uring`, `epoll`, or None for the server's own choice."""
    return request.config.getoption("--io")


@pytest.fixture
def serve(io_kind: str | None) -> Iterator[Callable[..., Server]]:
    """`serve("module:attr", *flags, workers=1, env=None, io=None)` gives a ready `Server`."""
    servers: list[Server] = []

    def start(app: str, *args: str, io: str | None = None, **options: object) -> Server:
        server = Server(app, *args, io=io or io_kind, **options)  # type: ignore[arg-type]
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()
    for server in servers:
        found = OUR_FAULT.search(server.log())
        assert not found, f"the server's own fault: {found[0]}\n{server.log()}"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    subprocess.run(mount, check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)
