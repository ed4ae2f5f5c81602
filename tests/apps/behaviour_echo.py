"""A WSGI application that says what it was given, and answers in every shape one asks for."""

import hashlib
import json
import threading
import time
from urllib.parse import parse_qs

counter = 0
counter_lock = threading.Lock()
held_files = []


def app(environ, start_response):
    path = environ.get("PATH_INFO", "")
    query = {k: v[-1] for k, v in parse_qs(environ.get("QUERY_STRING", "")).items()}
    page = PAGES.get(path, echo)
    return page(environ, start_response, query)


def plain(start_response, body, status="200 OK"):
    """A body with its length."""
    fields = [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))]
    start_response(status, fields)
    return [body]


def hello(environ, start_response, query):
    return plain(start_response, b"hello")


def echo(environ, start_response, query):
    """The environ, and the body that came."""
    body = environ["wsgi.input"].read()
    said = {
        "environ": {k: v for k, v in environ.items() if isinstance(v, str)},
        "length": len(body),
        "sha256": hashlib.sha256(body).hexdigest(),
        "body": body[:1000].decode("latin-1"),
    }
    return plain(start_response, json.dumps(said).encode())


def unread(environ, start_response, query):
    """Refuses without looking at the body."""
    return plain(start_response, b"log in first", "401 Unauthorized")


def count(environ, start_response, query):
    """POST adds one, slowly enough to be overtaken; GET says how many."""
    global counter
    if environ["REQUEST_METHOD"] == "POST":
        time.sleep(0.05)
        with counter_lock:
            counter += 1
    return plain(start_response, str(counter).encode())


def sleep(environ, start_response, query):
    time.sleep(float(query["seconds"]))
    return plain(start_response, query.get("say", "slept").encode())


def answer(environ, start_response, query):
    """`?status=204&length=5&pieces=3`: that status, Content-Length if asked, so many b"hello"."""
    fields = [("Content-Type", "text/plain")]
    if "length" in query:
        fields.append(("Content-Length", query["length"]))
    start_response(f"{query['status']} As asked", fields)
    pieces = [b"hello"] * int(query.get("pieces", "1"))
    return (piece for piece in pieces) if "stream" in query else pieces


def sized(environ, start_response, query):
    """`?bytes=N` in one piece."""
    return plain(start_response, b"x" * int(query["bytes"]))


def files(environ, start_response, query):
    """`?take=1` opens files until the process can have no more; `?take=0` closes them."""
    taken = 0
    if query["take"] == "1":
        try:
            while True:
                held_files.append(open("/dev/null"))
                taken += 1
        except OSError:
            pass
    while query["take"] == "0" and held_files:
        held_files.pop().close()
    return plain(start_response, str(taken).encode())


def write(environ, start_response, query):
    """The imperative half of the interface, then the iterable."""
    send = start_response("200 OK", [("Content-Type", "text/plain")])
    send(b"first ")
    send(b"second ")
    return [b"third"]


PAGES = {
    "/": hello,
    "/unread": unread,
    "/count": count,
    "/sleep": sleep,
    "/answer": answer,
    "/sized": sized,
    "/write": write,
    "/files": files,
}
