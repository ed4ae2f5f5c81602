"""Clients that ask on and on, on kept connections and on new ones, and count what went wrong."""

from __future__ import annotations

import http.client
import threading
from types import TracebackType

from harness import Server


class Load:
    """Runs from `with` to the end of its block. `answers` are bodies, `failures` exceptions and
    statuses other than 200."""

    def __init__(self, server: Server, path: str = "/", keeping: int = 4, new: int = 4) -> None:
        self.answers: list[str] = []
        self.failures: list[object] = []
        self._server, self._path = server, path
        self._ends = threading.Event()
        bodies = [self._keep] * keeping + [self._connect] * new
        self._threads = [threading.Thread(target=body, daemon=True) for body in bodies]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(40)

    def _keep(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=30)
        while not self._ends.wait(0.002):
            # It connects anew after a response with `Connection: close`, as every client does.
            if not self._ask(connection):
                connection.close()
        connection.close()

    def _connect(self) -> None:
        while not self._ends.wait(0.002):
            connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=30)
            self._ask(connection)
            connection.close()

    def _ask(self, connection: http.client.HTTPConnection) -> bool:
        try:
            connection.request("GET", self._path)
            response = connection.getresponse()
            body = response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            self.failures.append(error)
            return False
        if response.status == 200:
            self.answers.append(body)
        else:
            self.failures.append(response.status)
        return True
