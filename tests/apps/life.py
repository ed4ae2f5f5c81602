"""An application that does what the rules of processes, signals and threads are about."""

import atexit
import contextvars
import ctypes
import json
import os
import signal
import subprocess
import threading
import time
from urllib.parse import parse_qs

time.sleep(float(os.environ.get("IMPORT_SECONDS", "0")))
IMPORTED_IN = os.getpid()
VARIABLE = contextvars.ContextVar("VARIABLE", default="the default")
SIGNALLED = []
TRACED = set()

if os.environ.get("EXIT_FILE"):

    @atexit.register
    def say_goodbye():
        with open(os.environ["EXIT_FILE"], "a") as file:
            file.write(f"atexit {os.getpid()}\n")


if os.environ.get("HANDLE_USR1"):
    signal.signal(signal.SIGUSR1, lambda number, frame: SIGNALLED.append(number))
if os.environ.get("HANDLE_TERM"):
    signal.signal(signal.SIGTERM, lambda number, frame: SIGNALLED.append(number))
if os.environ.get("TRACE"):
    threading.settrace(lambda frame, event, arg: TRACED.add(frame.f_code.co_name))


def facts(query):
    thread = threading.current_thread()
    return {
        "pid": os.getpid(),
        "imported_in": IMPORTED_IN,
        "thread": thread.name,
        "daemon": thread.daemon,
        "is_thread": type(thread) is threading.Thread,
        "signalled": SIGNALLED,
        "traced": sorted(TRACED),
        "env": os.environ.get("FROM_FILE"),
        "uid": os.getuid(),
        "gid": os.getgid(),
        "cwd": os.getcwd(),
        "blocked": blocked_signals(),
    }


def blocked_signals():
    return sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, []))


def slow(query):
    time.sleep(float(query["seconds"][0]))
    return {"slept": True}


def popen(query):
    child = subprocess.Popen(["sleep", "60"])
    start = time.monotonic()
    child.terminate()
    code = child.wait(10)
    return {"code": code, "seconds": time.monotonic() - start}


def fork(query):
    """A child without exec inherits the server's handlers; SIGTERM must end it all the same."""
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    return {"code": os.waitstatus_to_exitcode(status)}


def recurse(query):
    return recurse(query)


def set_variable(query):
    VARIABLE.set("of another request")
    return {"value": VARIABLE.get()}


def get_variable(query):
    return {"value": VARIABLE.get()}


def hang(query):
    while True:
        time.sleep(0.01)


def hold(query):
    """In C, with the interpreter lock."""
    ctypes.PyDLL(None).usleep(int(float(query["seconds"][0]) * 1e6))
    return {"held": True}


def debug(query):
    answer = 6 * 7
    breakpoint()
    return {"answer": answer}


def fail(query):
    raise RuntimeError("on purpose")


def app(environ, start_response):
    function = globals()[environ["PATH_INFO"].strip("/") or "facts"]
    body = json.dumps(function(parse_qs(environ["QUERY_STRING"]))).encode()
    start_response("200 OK", [("Content-Type", "application/json")])
    return [body]


def make_app():
    return app


def make_app_of(name):
    return app
