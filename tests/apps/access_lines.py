"""An application whose responses differ in what an access log says of them."""

BLOCK = b"x" * (1 << 20)


def large(environ, start_response):
    start_response("200 OK", [("Content-Length", str(64 << 20))])
    return (BLOCK for _ in range(64))


def fields(environ, start_response):
    start_response("201 Created", [("X-View", 'a "b"'), ("Content-Length", "2")])
    return [b"ok"]


def errors(environ, start_response):
    print(environ["QUERY_STRING"], file=environ["wsgi.errors"])
    return fields(environ, start_response)


def app(environ, start_response):
    pages = {"/large": large, "/errors": errors}
    return pages.get(environ["PATH_INFO"], fields)(environ, start_response)
