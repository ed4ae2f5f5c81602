"""Streams whose fate can be asked for: each is named, and `/fate?name=` tells how it went."""

import json
import time
from urllib.parse import parse_qs

PIECE = bytes(range(256)) * 256  # 64 KiB
fates = {}


class Stream:
    """An iterator that writes down how often it was advanced and closed, and when."""

    def __init__(self, name, pieces, seconds):
        self.fate = fates[name] = {"pieces": 0, "closed": 0, "closed_at": None}
        self.pieces = pieces
        self.seconds = seconds

    def __iter__(self):
        return self

    def __next__(self):
        if self.fate["pieces"] == self.pieces:
            raise StopIteration
        if self.fate["pieces"] and self.seconds:
            time.sleep(self.seconds)
        self.fate["pieces"] += 1
        return PIECE if self.seconds == 0 else b"tick\n"

    def close(self):
        self.fate["closed"] += 1
        self.fate["closed_at"] = time.monotonic()


def app(environ, start_response):
    query = {k: v[-1] for k, v in parse_qs(environ["QUERY_STRING"]).items()}
    path = environ["PATH_INFO"]
    if path == "/fate":
        body = json.dumps(fates.get(query["name"])).encode()
    elif path == "/stream":
        start_response("200 OK", [("Content-Type", "application/octet-stream")])
        return Stream(query["name"], int(query["pieces"]), float(query["seconds"]))
    else:
        body = b"hello"
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
