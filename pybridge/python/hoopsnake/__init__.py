"""Hoopsnake: an application server for Python on Linux."""

from __future__ import annotations

from collections.abc import Iterable

from hoopsnake._hoopsnake import __version__, main

__all__ = ["__version__", "run"]


def run(app: str, **options: str | float | bool | Iterable[str] | None) -> None:
    """Serves ``app`` (``"module:attribute"``) until told to stop.

    Options are those of the command, with ``_`` for ``-``: ``run("shop.wsgi", workers=2,
    bind=["127.0.0.1:8000", "unix:/run/shop.sock"])``. ``None`` means "not given". Call it in the main
    thread, before any other thread is started, under ``if __name__ == "__main__"``.

    Raises ``SystemExit`` with the exit code of the command where that is not 0.
    """
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
    code = main([*arguments, "--", app])
    if code:
        raise SystemExit(code)
