"""Applications that break their side of the interface, one a path."""

FIELDS = [("Content-Type", "text/plain")]


def app(environ, start_response):
    return PAGES[environ["PATH_INFO"]](environ, start_response)


def fine(environ, start_response):
    start_response("200 OK", [*FIELDS, ("Content-Length", "4")])
    return [b"fine"]


def status_1000(environ, start_response):
    start_response("1000 Too Much", FIELDS)
    return [b"x"]


def status_without_reason(environ, start_response):
    start_response("200", FIELDS)
    return [b"bare"]


def status_text(environ, start_response):
    start_response("OK", FIELDS)
    return [b"x"]


def status_with_line_feed(environ, start_response):
    start_response("200 OK\r\nX-Split: yes", FIELDS)
    return [b"x"]


def value_with_line_feed(environ, start_response):
    start_response("200 OK", [*FIELDS, ("X-A", "1\r\nX-Split: yes")])
    return [b"x"]


def name_with_line_feed(environ, start_response):
    start_response("200 OK", [*FIELDS, ("X-A: 1\r\nX-Split", "yes")])
    return [b"x"]


def value_beyond_latin_1(environ, start_response):
    start_response("200 OK", [*FIELDS, ("X-A", "€")])
    return [b"x"]


def raises(environ, start_response):
    raise LookupError("raised-before-the-head")


def raises_after_start(environ, start_response):
    start_response("200 OK", FIELDS)
    raise LookupError("raised-after-start-response")


def raises_at_first_piece(environ, start_response):
    start_response("200 OK", FIELDS)
    raise LookupError("raised-at-the-first-piece")
    yield b""


def raises_midway(environ, start_response):
    start_response("200 OK", FIELDS)
    yield b"half of "
    yield b"the story"
    raise LookupError("raised-midway")


def raises_midway_with_length(environ, start_response):
    start_response("200 OK", [*FIELDS, ("Content-Length", "100")])
    yield b"half of "
    raise LookupError("raised-midway-with-length")


def replaces_with_exc_info(environ, start_response):
    import sys

    start_response("200 OK", FIELDS)
    try:
        raise LookupError
    except LookupError:
        start_response("503 Sorry", [*FIELDS, ("Content-Length", "5")], sys.exc_info())
    return [b"sorry"]


def never_starts(environ, start_response):
    return [b"x"]


def starts_twice(environ, start_response):
    start_response("200 OK", FIELDS)
    start_response("200 OK", FIELDS)
    return [b"x"]


def text_body(environ, start_response):
    start_response("200 OK", FIELDS)
    return ["text"]


def no_iterable(environ, start_response):
    start_response("200 OK", FIELDS)
    return 7


def short_body(environ, start_response):
    start_response("200 OK", [*FIELDS, ("Content-Length", "10")])
    return [b"12345"]


def long_body(environ, start_response):
    start_response("200 OK", [*FIELDS, ("Content-Length", "5")])
    return [b"12345HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]


def long_stream(environ, start_response):
    start_response("200 OK", [*FIELDS, ("Content-Length", "5")])
    yield b"123"
    yield b"45HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def exits(environ, start_response):
    raise SystemExit(3)


PAGES = {f"/{name}": page for name, page in list(globals().items()) if callable(page)}
