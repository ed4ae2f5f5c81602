"""Handlers for `--log-config`."""

import json
import logging
import os
import threading
import time

ATTRIBUTES = ("method", "target", "status", "bytes", "total_ms", "worker", "pid", "request_id")


class Kept(logging.Handler):
    """One JSON object a record, into a file; none before the gate is there."""

    def __init__(self, path, delay=0.0, gate=None):
        super().__init__()
        self.file = open(path, "a", buffering=1)
        self.delay = delay
        self.gate = gate

    def emit(self, record):
        while self.gate and not os.path.exists(self.gate):
            time.sleep(0.01)
        time.sleep(self.delay)
        seen = {name: getattr(record, name) for name in ATTRIBUTES if hasattr(record, name)}
        facts = {"logger": record.name, "level": record.levelname, "text": record.getMessage()}
        facts |= {"thread": record.threadName, "age": time.time() - record.created}
        self.file.write(json.dumps(facts | {"seen": seen}) + "\n")


class Stuck(logging.Handler):
    """Never comes back, and keeps its lock."""

    def emit(self, record):
        threading.Event().wait()


class Raising(logging.Handler):
    """Raises for lines with this in them, past `logging`'s own net."""

    def emit(self, record):
        if "poison" in record.getMessage():
            raise SystemExit("out of ink")
