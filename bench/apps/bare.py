"""The smallest honest WSGI application: two response headers, one piece of body."""

BODY = b"Hello, world!"
HEADERS = [("Content-Type", "text/plain"), ("Content-Length", str(len(BODY)))]


def application(environ, start_response):
    start_response("200 OK", list(HEADERS))
    return [BODY]
