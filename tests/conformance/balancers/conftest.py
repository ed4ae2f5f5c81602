"""`front`: each balancer in turn, before one server of the module."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from harness import COMMAND

from .fronts import DEMANDED, KINDS, Front, find


def demand(kind: str) -> None:
    """Skips a balancer that is not here, or fails where all are demanded."""
    if find(kind):
        return
    if DEMANDED:
        pytest.fail(f"{kind} is missing: install it, or name its folder in BALANCERS_BIN")
    pytest.skip(f"{kind} is not installed; make conformance demands it")


@pytest.fixture(scope="module", params=KINDS)
def front(request, tmp_path_factory) -> Iterator[Front]:
    """Before the module's `backend` fixture, which is a server."""
    demand(request.param)
    backend = request.getfixturevalue("backend")
    with Front(request.param, backend.port, tmp_path_factory.mktemp(request.param)) as running:
        yield running
        assert not running.complaints()


@pytest.fixture(scope="session")
def needs_trust() -> None:
    """What is asked of `--trusted-proxies` is asked of servers that have it."""
    said = subprocess.run([COMMAND, "--help"], capture_output=True, text=True, check=True)
    if "--trusted-proxies" not in said.stdout:
        pytest.skip("this server has no --trusted-proxies")
