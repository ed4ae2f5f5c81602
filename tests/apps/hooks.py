"""Hooks that write down when they are called, and an application to call them around."""

import atexit
import os
import signal
import sys
import time
import uuid

FILE = os.environ.get("HOOK_FILE")


def note(text):
    if FILE:
        with open(FILE, "a") as file:
            file.write(f"{text}\n")


def start(worker):
    note(f"start {worker.number} {worker.pid == os.getpid()} {worker.app} "
         f"{'hello' in sys.modules} {sys.path[0] == os.path.dirname(__file__)}")
    atexit.register(note, f"atexit {worker.number}")


def ready(worker):
    time.sleep(float(os.environ.get("READY_SECONDS", "0")))
    note(f"ready {worker.number} {'hello' in sys.modules}")


def exit(worker):
    note(f"exit {worker.number}")


def fail(worker):
    raise LookupError(f"of worker {worker.number}")


def leave(worker):
    raise SystemExit(5)


def hang(worker):
    note("hangs")
    time.sleep(600)


def hang_at_alarm(worker):
    signal.signal(signal.SIGALRM, lambda number, frame: hang(worker))


def linger(worker):
    time.sleep(float(os.environ["LINGER_SECONDS"]))


no_function = uuid.UUID(int=1)
