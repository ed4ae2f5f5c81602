"""The application that is soaked. Each answer names its worker and its request, and each worker
publishes its counts in a file of `SOAK_DIR` named by its process id.

`SOAK_SABOTAGE` makes it wrong on purpose, for the tests of the checks: `corrupt`, `swap`, `short`,
`leak`, `stuck`, `die`; one request in `SOAK_SABOTAGE_EVERY` (50).
"""

import hashlib
import mmap
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import parse_qs

import content
from content import COUNTS

FOLDER = Path(os.environ["SOAK_DIR"])
SABOTAGE = os.environ.get("SOAK_SABOTAGE", "")
SABOTAGE_EVERY = int(os.environ.get("SOAK_SABOTAGE_EVERY", "50"))
leaked = []

time.sleep(float(os.environ.get("SOAK_IMPORT_SECONDS", "0")))


class Counts:
    """Requests begun and ended, iterators handed out and closed; others read them by `mmap`."""

    def __init__(self):
        path = FOLDER / f"{os.getpid()}.counts"
        path.write_bytes(bytes(COUNTS.size))
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), COUNTS.size)
        self.values = [0, 0, 0, 0]
        self.lock = threading.Lock()

    def add(self, index):
        with self.lock:
            self.values[index] += 1
            COUNTS.pack_into(self.memory, 0, *self.values)
            return self.values[index]


counts = Counts()


class Counted:
    """An iterator whose end is counted once, by `close`."""

    def __init__(self, pieces):
        self.pieces = iter(pieces)
        self.closed = False
        counts.add(2)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.pieces)

    def close(self):
        if not self.closed:
            self.closed = True
            counts.add(3)


def app(environ, start_response):
    number = counts.add(0)
    try:
        query = {k: v[-1] for k, v in parse_qs(environ["QUERY_STRING"]).items()}
        page = PAGES.get(environ["PATH_INFO"], missing)
        status, body, length = page(environ, query)
        serial = environ.get("HTTP_X_SERIAL", "-")
        if SABOTAGE and number % SABOTAGE_EVERY == 0:
            serial, body = sabotage(serial, body)
        fields = [("Content-Type", "application/octet-stream"), ("X-Serial", serial)]
        fields.append(("X-Worker", str(os.getpid())))
        if length is not None:
            fields.append(("Content-Length", str(length)))
        start_response(status, fields)
        return body
    finally:
        counts.add(1)


def whole(body, status="200 OK"):
    return status, [body], len(body)


def small(environ, query):
    return whole(b"small " + environ.get("HTTP_X_SERIAL", "-").encode("latin-1"))


def data(environ, query):
    return whole(content.piece(int(query["at"]), int(query["size"])))


def stream(environ, query):
    at, size, step = int(query["at"]), int(query["size"]), int(query["step"])
    pieces = (
        content.piece(at + begin, min(step, size - begin)) for begin in range(0, size, step)
    )
    return "200 OK", Counted(pieces), None


def file(environ, query):
    opened = (FOLDER / "content").open("rb")
    opened.seek(int(query["at"]))
    return "200 OK", environ["wsgi.file_wrapper"](opened), None


def upload(environ, query):
    digest, length = hashlib.sha256(), 0
    while got := environ["wsgi.input"].read(65536):
        digest.update(got)
        length += len(got)
    return whole(f"{length} {digest.hexdigest()}".encode())


def refuse(environ, query):
    return whole(b"log in first", "401 Unauthorized")


def wait(environ, query):
    time.sleep(float(query["seconds"]))
    return whole(b"waited")


def nothing(environ, query):
    return query["status"] + " Nothing", [], None


def fork(environ, query):
    """A child of a view, as `multiprocessing` makes them."""
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    _, status = os.waitpid(pid, 0)
    return whole(b"child %d" % os.waitstatus_to_exitcode(status))


def fail(environ, query):
    raise RuntimeError("the soak asked for it")


def missing(environ, query):
    return whole(b"no page " + environ["PATH_INFO"].encode("latin-1"), "404 Not Found")


def sabotage(serial, body):
    """What a broken server would do, as far as an application can imitate it."""
    if SABOTAGE == "corrupt" and isinstance(body, list) and body and body[0]:
        body = [bytes([body[0][0] ^ 1]) + body[0][1:]]
    elif SABOTAGE == "swap":
        serial = "of-another"
    elif SABOTAGE == "short" and isinstance(body, list) and body:
        body = [body[0][:-1]]
    elif SABOTAGE == "leak":
        leaked.append(tempfile.TemporaryFile())
    elif SABOTAGE == "stuck":
        time.sleep(3600)
    elif SABOTAGE == "die":
        print("sabotage: a worker dies", file=sys.stderr, flush=True)
        os._exit(9)
    return serial, body


PAGES = {
    "/small": small,
    "/data": data,
    "/stream": stream,
    "/file": file,
    "/upload": upload,
    "/refuse": refuse,
    "/wait": wait,
    "/nothing": nothing,
    "/fork": fork,
    "/fail": fail,
}
