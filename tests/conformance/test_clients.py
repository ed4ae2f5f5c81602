"""The quick ones of the clients; those of Node and the load tools run in `make conformance`."""

from __future__ import annotations

import pytest

from .clients import CLIENTS
from .wire import shared_server

echo = shared_server("behaviour_echo:app")
stream = shared_server("behaviour_stream:app")


@pytest.mark.parametrize("name", CLIENTS)
def test_client(echo, stream, name):
    CLIENTS[name](echo.port, stream.port)
