"""Does the same to `wsgi.input` and to an `io.BytesIO` of the same bytes, and says what differs."""

from __future__ import annotations

import io
import json

BODY = b"first\nsecond line\n\nlast without an end"

SCRIPTS = {
    "iterate": lambda f: list(f),
    "read_2_then_read": lambda f: [f.read(2), f.read(), f.read(), f.read(1)],
    "read_minus_1": lambda f: [f.read(-1), f.read(-1)],
    "read_none": lambda f: [f.read(None), f.read()],
    "read_0": lambda f: [f.read(0), f.read(1)],
    "read_more_than_there_is": lambda f: [f.read(10**9), f.read(10**9)],
    "readline": lambda f: [f.readline() for _ in range(6)],
    "readline_3": lambda f: [f.readline(3) for _ in range(9)],
    "readline_minus_1": lambda f: [f.readline(-1), f.readline(0), f.readline()],
    "readlines": lambda f: [f.readlines(), f.readlines()],
    # Where the hint is exactly the end of a line, Python's own streams differ from each other.
    "readlines_hint": lambda f: [f.readlines(7), f.readlines(2), f.readlines()],
    "next": lambda f: [next(f, 0), next(f, 0), f.read(3), next(f, 0), next(f, 0)],
    "mixed": lambda f: [f.readline(), f.read(3), f.readline(), list(f)],
    "readinto": lambda f: [f.readinto(memoryview(bytearray(7))), f.read()],
    "seek_and_tell": lambda f: [f.read(4), f.tell(), f.seek(0), f.read(), f.seek(-3, 2), f.read()],
    "facts": lambda f: [f.readable(), f.seekable(), f.closed],
    "wrong_arguments": lambda f: [raised(f.read, "x"), raised(f.readline, "x"), f.read()],
}


def raised(function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:
        return type(error).__name__


KEPT = []


def app(environ, start_response):
    name = environ["PATH_INFO"][1:]
    stream = environ["wsgi.input"]
    if name == "kept":
        was_closed = [kept.closed for kept in KEPT]
        KEPT.append(stream)
        found = {"closed": was_closed}
    else:
        extra = int(environ["QUERY_STRING"] or 0)
        body = BODY + b"\n" + b"x" * extra if extra else BODY
        if environ["REQUEST_METHOD"] == "GET":
            body = b""
        ours, theirs = SCRIPTS[name](stream), SCRIPTS[name](io.BytesIO(body))
        found = {
            "same": ours == theirs,
            "length": environ.get("CONTENT_LENGTH"),
            "type": type(stream).__name__,
            "ours": repr(ours)[:500],
            "theirs": repr(theirs)[:500],
        }
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(found).encode()]
