"""Answers with the request id that the environ has."""


def app(environ, start_response):
    if environ["PATH_INFO"] == "/raise":
        raise ValueError("for the log")
    body = environ.get("HTTP_X_REQUEST_ID", "none").encode("latin-1")
    own = [("X-Request-ID", "mine")] if environ["PATH_INFO"] == "/own" else []
    start_response("200 OK", [("Content-Length", str(len(body))), *own])
    return [body]
