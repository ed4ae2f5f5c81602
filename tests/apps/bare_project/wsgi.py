"""What `django-admin startproject` would have made."""


def app(environ, start_response):
    body = b"Hello, world!\n"
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


application = app
