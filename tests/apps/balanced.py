"""What is asked through a balancer: the pages of `behaviour_echo` and `behaviour_stream`, and a
stream whose second piece waits until somebody has the first."""

import threading
from urllib.parse import parse_qs

import behaviour_echo
import behaviour_stream

WAIT_SECONDS_MAX = 20
released = {}


def event(name):
    return released.setdefault(name, threading.Event())


def in_two(name):
    yield b"first\n"
    yield b"second\n" if event(name).wait(WAIT_SECONDS_MAX) else b"nobody had the first\n"


def app(environ, start_response):
    path = environ["PATH_INFO"]
    if path in ("/stream", "/fate"):
        return behaviour_stream.app(environ, start_response)
    if path not in ("/in-two", "/release"):
        return behaviour_echo.app(environ, start_response)
    (name,) = parse_qs(environ["QUERY_STRING"])["name"]
    # nginx collects a response up to the size of a buffer unless it is told not to.
    start_response("200 OK", [("Content-Type", "text/plain"), ("X-Accel-Buffering", "no")])
    if path == "/in-two":
        return in_two(name)
    event(name).set()
    return [b"released"]
