"""Hoopsnake: an application server for Python on Linux."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hoopsnake._hoopsnake import __version__, main

__all__ = ["Worker", "__version__", "run"]


@dataclass(frozen=True)
class Worker:
    """The worker that a hook is called in."""

    number: int
    """From 1. The worker that replaces another has its number."""

    pid: int
    """The id of its process."""

    app: str
    """What it serves, as it was named at start."""


_Hook = Callable[[Worker], object]

# By the name of the option; looked up by the native half, in this process or in one forked from it.
_hooks: dict[str, _Hook] = {}


def run(
    app: str,
    *,
    on_worker_start: str | _Hook | None = None,
    on_worker_ready: str | _Hook | None = None,
    on_worker_exit: str | _Hook | None = None,
    **options: str | float | bool | Iterable[str] | None,
) -> None:
    """Serves ``app`` (``"module:attribute"``) until told to stop.

    Options are those of the command, with ``_`` for ``-``: ``run("shop.wsgi", workers=2,
    bind=["127.0.0.1:8000", "unix:/run/shop.sock"])``. ``None`` means "not given". Call it in the main
    thread, before any other thread is started, under ``if __name__ == "__main__"``.

    The hooks are ``"module:function"`` as on the command line, or functions; each is called in every
    worker with a :class:`Worker`: ``on_worker_start`` before the application is imported,
    ``on_worker_ready`` when it serves, ``on_worker_exit`` after its last response.

    Raises ``SystemExit`` with the exit code of the command where that is not 0.
    """
    given = {
        "on_worker_start": on_worker_start,
        "on_worker_ready": on_worker_ready,
        "on_worker_exit": on_worker_exit,
    }
    callables = {name: hook for name, hook in given.items() if callable(hook)}
    options.update({name: hook for name, hook in given.items() if not callable(hook)})
    _hooks.update(callables)
    try:
        code = main([*_arguments(options), "--", app])
    finally:
        _hooks.clear()
    if code:
        raise SystemExit(code)


def _arguments(options: dict[str, str | float | bool | Iterable[str] | None]) -> list[str]:
    arguments = ["serve"]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            arguments.append(f"{flag}={str(value).lower()}")
        elif isinstance(value, (str, int, float)):
            arguments.append(f"{flag}={value}")
        else:
            arguments += [f"{flag}={item}" for item in value]
    return arguments
