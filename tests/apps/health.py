"""Views that wait in every way: asleep, busy, for ever, and with the interpreter lock."""

import ctypes
import faulthandler
import os
import signal
import threading
import time
from urllib.parse import parse_qs

CALLS = []
RELEASED = threading.Event()


def seconds_of(environ):
    return float(parse_qs(environ["QUERY_STRING"])["seconds"][0])


def hold_the_lock(environ):
    """In C, with the interpreter lock."""
    ctypes.PyDLL(None).usleep(int(seconds_of(environ) * 1e6))
    return b"held"


def sleep(environ):
    time.sleep(seconds_of(environ))
    return b"slept"


def spin(environ):
    end = time.monotonic() + seconds_of(environ)
    while time.monotonic() < end:
        pass
    return b"spun"


def hang_until_released(environ):
    RELEASED.wait(60)
    return b"released"


def release(environ):
    RELEASED.set()
    return b"done"


def calls(environ):
    return " ".join(CALLS).encode()


def upload(environ):
    return str(len(environ["wsgi.input"].read())).encode()


def fork(environ):
    """A child that lives on."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    return str(child).encode()


def end_of_child(environ):
    """How the child of `fork` ended."""
    child = int(parse_qs(environ["QUERY_STRING"])["pid"][0])
    _, status = os.waitpid(child, 0)
    return str(os.waitstatus_to_exitcode(status)).encode()


def take_over(environ):
    """Takes the server's signal away from it."""
    faulthandler.unregister(signal.SIGRTMIN + 7)
    return b"taken"


def stream(environ, start_response):
    """The head at once, the end later."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield b"begin "
    time.sleep(seconds_of(environ))
    yield b"end"


def write_late(environ, start_response):
    """Uses `write` when nobody listens any more."""
    RELEASED.wait(60)
    write = start_response("200 OK", [("Content-Type", "text/plain")])
    try:
        write(b"too late")
        write(b"far too late")
    except ConnectionError as error:
        CALLS.append(f"write:{type(error).__name__}")
    return []


def generate_late(environ, start_response):
    """The same with a generator, whose end is seen."""
    RELEASED.wait(60)
    start_response("200 OK", [("Content-Type", "text/plain")])
    try:
        for number in range(10_000):
            yield b"%d\n" % number
        CALLS.append("generate:all")
    finally:
        CALLS.append("generate:closed")


def app(environ, start_response):
    path = environ["PATH_INFO"].strip("/") or "hello"
    if path != "calls":
        CALLS.append(path)
    if path in ("stream", "write_late", "generate_late"):
        return globals()[path](environ, start_response)
    view = globals().get(path)
    body = view(environ) if view else f"{environ['REQUEST_METHOD']} {path}".encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
