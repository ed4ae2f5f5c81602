"""``--log-config``: Python's ``logging``, configured from a file and given the server's lines.

Called by the native half only.
"""

from __future__ import annotations

import json
import logging
import logging.config
import traceback
from collections.abc import Sequence
from pathlib import Path

ACCESS = "hoopsnake.access"


def configure(path: str) -> str | None:
    """Configures ``logging`` from the file; the reason where that is not possible."""
    try:
        suffix = Path(path).suffix.lower()
        if suffix == ".json":
            with open(path, encoding="utf-8") as file:
                _configure_from(json.load(file))
        elif suffix in {".yaml", ".yml"}:
            try:
                import yaml
            except ImportError:
                return "a YAML file needs PyYAML, which cannot be imported; JSON needs nothing"
            with open(path, encoding="utf-8") as file:
                _configure_from(yaml.safe_load(file))
        else:
            # Before 3.12 `fileConfig` takes an unreadable file for an empty one.
            with open(path, encoding="utf-8"):
                pass
            logging.config.fileConfig(path, disable_existing_loggers=False, encoding="utf-8")
    except Exception as error:
        return _told(error)
    return None


def _configure_from(settings: object) -> None:
    if not isinstance(settings, dict):
        raise ValueError("the file holds no object with the keys of dictConfig")
    # Python's own default would silence every logger that a hook or an import made before.
    logging.config.dictConfig({"disable_existing_loggers": False, **settings})


def _told(error: BaseException) -> str:
    """The exception and its cause: ``dictConfig`` hides the reason there."""
    cause = error.__cause__ or error.__context__
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    return f"{text} ({_told(cause)})" if cause is not None else text


def wants_access() -> bool:
    """Whether a line of a response would be taken by anybody."""
    logger = logging.getLogger(ACCESS)
    return logger.isEnabledFor(logging.INFO) and logger.hasHandlers()


def deliver(records: Sequence[tuple[str, int, float, str, str]]) -> list[tuple[int, str]]:
    """Gives records (logger, level, seconds since 1970, message, attributes in JSON) to their loggers.
    Returns the indexes of those that a filter or a handler raised for, with what it raised."""
    failed = []
    for index, record in enumerate(records):
        try:
            _deliver(*record)
        # An exit or an interrupt in a handler must not end the thread that all others wait for.
        except BaseException as error:
            failed.append((index, _told(error)))
    return failed


def _deliver(name: str, level: int, created: float, message: str, attributes: str) -> None:
    logger = logging.getLogger(name)
    if not logger.isEnabledFor(level):
        return
    record = logger.makeRecord(name, level, "hoopsnake", 0, message, (), None)
    record.created = created
    record.msecs = created % 1 * 1000 // 1
    for key, value in json.loads(attributes).items():
        # What every record has is not ours to replace.
        record.__dict__.setdefault(key, value)
    logger.handle(record)
