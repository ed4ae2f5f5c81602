"""`wsgi.file_wrapper` around every kind of file-like object."""

from __future__ import annotations

import gzip
import io
import json
import os
import tempfile

DATA = bytes(range(256)) * 400
FOLDER = tempfile.mkdtemp(prefix="hoopsnake-files-")
PLAIN = os.path.join(FOLDER, "plain")
PACKED = os.path.join(FOLDER, "packed.gz")
CLOSED: list[str] = []

with open(PLAIN, "wb") as made:
    made.write(DATA)
with gzip.open(PACKED, "wb") as made:
    made.write(DATA)


class Reversing:
    """Looks like the file it holds, and is not: a storage that decrypts has this shape."""

    def __init__(self):
        self.file = open(PLAIN, "rb")
        self.fileno, self.tell, self.close = self.file.fileno, self.file.tell, self.file.close

    def read(self, size=-1):
        return self.file.read(size)[::-1]


class Borrowing:
    """`django.core.files.File` has this shape: its methods are those of its file."""

    read = property(lambda self: self.file.read)
    fileno = property(lambda self: self.file.fileno)
    tell = property(lambda self: self.file.tell)
    close = property(lambda self: self.file.close)

    def __init__(self):
        self.file = open(PLAIN, "rb")


class OnlyRead:
    def __init__(self):
        self.left = [b"ab", b"cd"]

    def read(self, size):
        return self.left.pop(0) if self.left else b""


def named():
    made = tempfile.NamedTemporaryFile()
    made.write(DATA)
    made.seek(0)
    return made


def unnamed():
    made = tempfile.TemporaryFile()
    made.write(DATA)
    made.seek(0)
    return made


def pipe():
    reading, writing = os.pipe()
    os.write(writing, b"from a pipe")
    os.close(writing)
    return open(reading, "rb")


def at(position):
    made = open(PLAIN, "rb")
    made.read(1)
    made.seek(position)
    return made


def hole():
    made = tempfile.TemporaryFile()
    made.truncate(100_000)
    return made


def closed():
    made = open(PLAIN, "rb")
    made.close()
    return made


KINDS = {
    "buffered": lambda: open(PLAIN, "rb"),
    "raw": lambda: open(PLAIN, "rb", buffering=0),
    "random": lambda: open(PLAIN, "r+b"),
    "position": lambda: at(1000),
    "end": lambda: at(len(DATA)),
    "beyond": lambda: at(len(DATA) + 10),
    "named": named,
    "unnamed": unnamed,
    "borrowing": Borrowing,
    "reversing": Reversing,
    "gzip": lambda: gzip.open(PACKED, "rb"),
    "buffered_gzip": lambda: io.BufferedReader(gzip.open(PACKED, "rb")),
    "bytesio": lambda: io.BytesIO(DATA),
    "only_read": OnlyRead,
    "pipe": pipe,
    "proc": lambda: open("/proc/version", "rb"),
    "sys": lambda: open("/sys/devices/system/cpu/online", "rb"),
    "hole": hole,
    "empty": tempfile.TemporaryFile,
    "text": lambda: open(__file__),
    "closed": closed,
}


def app(environ, start_response):
    name = environ["PATH_INFO"][1:]
    if name == "closed_names":
        start_response("200 OK", [])
        body = json.dumps(CLOSED).encode()
        CLOSED.clear()
        return [body]
    query = dict(pair.split("=") for pair in environ["QUERY_STRING"].split("&") if pair)
    filelike = KINDS[name]()
    if hasattr(filelike, "__dict__") and hasattr(filelike, "close") and name != "borrowing":
        close = filelike.close

        def noted_close():
            # Django sets an attribute of this name too: it is looked up when it is called.
            CLOSED.append(name)
            close()

        filelike.close = noted_close
    fields = [("Content-Length", query["length"])] if "length" in query else []
    write = start_response("200 OK", fields)
    if "write" in query:
        write(b"before ")
    wrapped = environ["wsgi.file_wrapper"](filelike, int(query.get("block", 8192)))
    return (block for block in wrapped) if "generator" in query else wrapped
