"""One small application per path: each takes or breaks one rule of PEP 3333."""

from __future__ import annotations

import contextvars
import json
import sys
import threading
import time

HEAD = ("200 OK", [("Content-Type", "text/plain")])
CASES = {}

# What cases note about themselves; `/notes` reads and clears it.
NOTES: list[str] = []
VARIABLE = contextvars.ContextVar("VARIABLE", default="default")
KEPT = {}


def case(function):
    CASES["/" + function.__name__] = function
    return function


def with_length(length):
    return "200 OK", [("Content-Length", str(length))]


class Closing:
    """Iterates what it is given and notes each `close()`."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)

    def close(self):
        NOTES.append("closed")


@case
def notes(environ, start_response):
    start_response(*HEAD)
    body = json.dumps(NOTES).encode()
    NOTES.clear()
    return [body]


@case
def environ_types(environ, start_response):
    start_response(*HEAD)
    texts = all(type(value) is str for key, value in environ.items() if key[:5] != "wsgi.")
    facts = {
        "dict": type(environ) is dict,
        "texts": texts,
        "latin1": all(ord(c) < 256 for k, v in environ.items() if type(v) is str for c in v),
        "version": environ["wsgi.version"],
        "multithread": environ["wsgi.multithread"],
        "multiprocess": environ["wsgi.multiprocess"],
        "run_once": environ["wsgi.run_once"],
        "input_terminated": environ["wsgi.input_terminated"],
        "software": environ["SERVER_SOFTWARE"],
        "script_name": environ["SCRIPT_NAME"],
        "path_info": environ["PATH_INFO"],
        "uris": [environ["REQUEST_URI"], environ["RAW_URI"]],
    }
    # A dict of its own: what one request leaves there, no other sees.
    facts["clean"] = "left.behind" not in environ
    environ["left.behind"] = environ["REQUEST_METHOD"] = "x"
    return [json.dumps(facts).encode()]


@case
def fields(environ, start_response):
    start_response(*HEAD)
    return [json.dumps({k: v for k, v in environ.items() if k.startswith("HTTP_X_")}).encode()]


@case
def several(environ, start_response):
    start_response(*HEAD)
    return [b"a", b"", b"bc"]


@case
def tuple_of_pieces(environ, start_response):
    start_response(*HEAD)
    return (b"a", b"bc")


@case
def list_iterator(environ, start_response):
    start_response(*HEAD)
    return Closing([b"a", b"bc"])


class One:
    def __len__(self):
        return 1

    def __iter__(self):
        yield b"only"


@case
def len_one(environ, start_response):
    start_response(*HEAD)
    return One()


@case
def generator(environ, start_response):
    start_response(*HEAD)
    return (piece for piece in (b"", b"a", b"", b"bc"))


@case
def start_in_generator(environ, start_response):
    NOTES.append("begun")
    start_response(*HEAD)
    yield b"a"
    NOTES.append("second")
    yield b"b"
    NOTES.append("end")


@case
def start_after_empty_pieces(environ, start_response):
    yield b""
    start_response(*HEAD)
    yield b"a"


@case
def empty_list(environ, start_response):
    start_response(*HEAD)
    return []


@case
def empty_generator(environ, start_response):
    start_response(*HEAD)
    return iter(())


@case
def writes(environ, start_response):
    write = start_response(*HEAD)
    write(b"a")
    write(b"")
    write(b"b")
    return [b"c", b"d"]


@case
def write_then_wait(environ, start_response):
    write = start_response(*with_length(1))
    write(b"a")
    time.sleep(float(environ["QUERY_STRING"]))
    return []


@case
def write_text(environ, start_response):
    start_response(*HEAD)("text")
    return []


@case
def write_first(environ, start_response):
    write = start_response(*HEAD)
    KEPT["write"] = write
    return []


@case
def write_too_late(environ, start_response):
    start_response(*HEAD)
    try:
        KEPT["write"](b"into another response")
    except AssertionError as error:
        return [str(error).encode()]
    return [b"no error"]


@case
def start_too_late(environ, start_response):
    kept, KEPT["start"] = KEPT.get("start"), start_response
    start_response(*HEAD)
    if kept is None:
        return [b"kept"]
    try:
        kept("200 OK", [])
    except AssertionError as error:
        return [str(error).encode()]
    return [b"no error"]


@case
def keyword_arguments(environ, start_response):
    start_response(status="200 OK", headers=[("A", "b")], exc_info=None)
    return [b"ok"]


@case
def headers_as_tuple(environ, start_response):
    start_response("200 OK", (("A", "b"),))
    return [b"ok"]


@case
def status_alone(environ, start_response):
    start_response("299", [])
    return [b"ok"]


@case
def own_phrase(environ, start_response):
    start_response("200 Caf\xe9 au lait", [("X-A", "\xe4\xff")])
    return [b"ok"]


@case
def replaced(environ, start_response):
    start_response("200 OK", [("X-Old", "1")])
    try:
        raise ValueError("first")
    except ValueError:
        start_response("503 Replaced", [("X-New", "1")], sys.exc_info())
    return [b"replaced"]


@case
def raised_again(environ, start_response):
    write = start_response(*HEAD)
    write(b"a")
    try:
        raise ValueError("first")
    except ValueError:
        try:
            start_response("500 Oops", [], sys.exc_info())
        except ValueError as error:
            names = []
            traceback = error.__traceback__
            while traceback:
                names.append(traceback.tb_frame.f_code.co_name)
                traceback = traceback.tb_next
            NOTES.append(f"{error} {names.count('raised_again') > 1}")
            raise


@case
def exact(environ, start_response):
    start_response(*with_length(4))
    yield b"ab"
    yield b"cd"
    NOTES.append("end")


@case
def surplus(environ, start_response):
    start_response(*with_length(4))
    yield b"abc"
    yield b"def"
    NOTES.append("asked for more than was wanted")
    yield b"ghi"


@case
def surplus_list(environ, start_response):
    start_response(*with_length(4))
    return [b"abc", b"def", b"ghi"]


@case
def missing(environ, start_response):
    start_response(*with_length(4))
    return [b"ab"]


@case
def missing_generator(environ, start_response):
    start_response(*with_length(4))
    yield b"ab"


def closing_case(name, items):
    def run(environ, start_response):
        start_response(*HEAD)
        return Closing(items())

    CASES["/" + name] = run


def raising_items():
    yield b"a"
    raise ValueError("midway")


def endless_items():
    while True:
        yield b"x" * 4096


closing_case("closes_list", lambda: [b"a", b"b"])
closing_case("closes_generator", lambda: (piece for piece in [b"a", b"b"]))
closing_case("closes_raising", raising_items)
closing_case("closes_text", lambda: ["text"])
closing_case("closes_endless", endless_items)


@case
def close_raises(environ, start_response):
    start_response(*HEAD)

    class Raising(Closing):
        def close(self):
            super().close()
            raise ValueError("in close")

    return Raising([b"a"])


@case
def close_slowly(environ, start_response):
    start_response(*HEAD)

    class Slow(Closing):
        def close(self):
            time.sleep(0.5)
            super().close()

    return Slow([b"a"])


@case
def generator_is_closed(environ, start_response):
    start_response(*HEAD)

    def pieces():
        try:
            yield from endless_items()
        finally:
            NOTES.append("closed")

    return pieces()


@case
def raises(environ, start_response):
    raise ValueError("a word to look for")


@case
def raises_late(environ, start_response):
    start_response(*HEAD)
    return raising_items()


@case
def returns_none(environ, start_response):
    start_response(*HEAD)


@case
def returns_text(environ, start_response):
    start_response(*HEAD)
    return "text"


@case
def gives_text(environ, start_response):
    start_response(*HEAD)
    return ["text"]


@case
def never_starts(environ, start_response):
    return [b"a"]


@case
def never_starts_and_ends(environ, start_response):
    return []


@case
def starts_twice(environ, start_response):
    start_response(*HEAD)
    start_response(*HEAD)
    return [b"a"]


BAD_HEADS = {
    "status_number": (200, []),
    "status_1000": ("1000 Much", []),
    "status_99": ("99 Bottles", []),
    "status_100": ("100 Continue", []),
    "status_wide": ("200 \u20ac", []),
    "status_with_line": ("200 OK\r\nX: y", []),
    "name_bytes": ("200 OK", [(b"A", "b")]),
    "value_bytes": ("200 OK", [("A", b"b")]),
    "value_number": ("200 OK", [("Content-Length", 2)]),
    "value_wide": ("200 OK", [("A", "\u20ac")]),
    "value_with_line": ("200 OK", [("A", "b\nC: d")]),
    "value_with_nul": ("200 OK", [("A", "b\0")]),
    "name_with_space": ("200 OK", [("A B", "c")]),
    "name_empty": ("200 OK", [("", "c")]),
    "triple": ("200 OK", [("A", "b", "c")]),
    "pair_as_list": ("200 OK", [["A", "b"]]),
    "length_signed": ("200 OK", [("Content-Length", "-1")]),
    "headers_none": ("200 OK", None),
}


def bad_head_case(name):
    def run(environ, start_response):
        start_response(*BAD_HEADS[name])
        return [b"a"]

    CASES["/bad/" + name] = run


for _name in BAD_HEADS:
    bad_head_case(_name)


@case
def system_exit(environ, start_response):
    raise SystemExit(3)


@case
def keyboard_interrupt(environ, start_response):
    start_response(*HEAD)

    def pieces():
        yield b""
        raise KeyboardInterrupt

    return pieces()


@case
def generator_exit(environ, start_response):
    raise GeneratorExit


@case
def recursion(environ, start_response):
    def deeper():
        return deeper()

    return deeper()


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")


@case
def unprintable(environ, start_response):
    raise Unprintable


@case
def thread_facts(environ, start_response):
    start_response(*HEAD)
    thread = threading.current_thread()
    return [json.dumps([thread.name, thread.daemon, type(thread).__name__]).encode()]


@case
def set_variable(environ, start_response):
    seen = [VARIABLE.get()]
    VARIABLE.set("of the call")
    start_response(*HEAD)

    class Pieces(Closing):
        def close(self):
            NOTES.append(VARIABLE.get())

    def items():
        seen.append(VARIABLE.get())
        VARIABLE.set("of the iterator")
        yield b""
        seen.append(VARIABLE.get())
        yield json.dumps(seen).encode()

    return Pieces(items())


@case
def get_variable(environ, start_response):
    start_response(*HEAD)
    return [VARIABLE.get().encode()]


@case
def errors(environ, start_response):
    stream = environ["wsgi.errors"]
    stream.write("first line\nsecond ")
    stream.writelines(["line\n", "third line"])
    stream.flush()
    print("fourth line", file=stream)
    stream.write("fifth line without an end")
    start_response(*HEAD)
    return [b""]


@case
def errors_without_end(environ, start_response):
    for _ in range(100):
        environ["wsgi.errors"].write("x" * 1000)
    start_response(*HEAD)
    return [b""]


def app(environ, start_response):
    return CASES[environ["PATH_INFO"]](environ, start_response)
