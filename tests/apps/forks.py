"""Views that fork: a child that lives on, one that comes back out of the view, and one that exits."""

import multiprocessing
import os
import sys
import time


def app(environ, start_response):
    path = environ["PATH_INFO"]
    body = b"hello"
    if path == "/linger":
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        body = str(child).encode()
    elif path == "/multiprocessing":
        answers = multiprocessing.get_context("fork").SimpleQueue()
        child = multiprocessing.get_context("fork").Process(target=answers.put, args=("done",))
        child.start()
        body = answers.get().encode()
        child.join()
    elif path in ("/return", "/exit"):
        child = os.fork()
        if child == 0:
            if path == "/exit":
                sys.exit(7)
            start_response("200 OK", [("Content-Length", "5")])
            return [b"child"]
        _, status = os.waitpid(child, 0)
        body = str(os.waitstatus_to_exitcode(status)).encode()
    elif path == "/crash":
        os._exit(9)
    elif path == "/raises-midway":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return raises_midway()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


def raises_midway():
    yield b"some"
    raise ValueError("midway")
