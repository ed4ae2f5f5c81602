"""Three applications inside the standard library's validator: a bare one, Flask, Django.

The validator asserts what PEP 3333 asks of a server; a breach is an AssertionError, so a 500 or an
aborted response. Each application answers every path with what came, `/stream` in pieces.
"""

import json
from wsgiref.validate import validator


def said(method, path, query, fields, body):
    """What an application says about a request."""
    return json.dumps(
        {
            "method": method,
            "path": path,
            "query": query,
            "fields": fields,
            "body": body.decode("latin-1"),
        }
    )


def bare_app(environ, start_response):
    length = environ.get("CONTENT_LENGTH")
    body = environ["wsgi.input"].read(int(length)) if length else b""
    if environ["PATH_INFO"] == "/stream":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return (b"piece %d\n" % number for number in range(10))
    fields = {k: v for k, v in environ.items() if k.startswith("HTTP_")}
    path = environ["SCRIPT_NAME"] + environ["PATH_INFO"]
    text = said(environ["REQUEST_METHOD"], path, environ["QUERY_STRING"], fields, body).encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
    return [text]


def flask_app():
    import flask

    app = flask.Flask(__name__)

    @app.before_request
    def answer():
        request = flask.request
        if request.path == "/stream":
            return flask.Response((b"piece %d\n" % n for n in range(10)), mimetype="text/plain")
        fields = {k: v for k, v in request.environ.items() if k.startswith("HTTP_")}
        path = request.environ["PATH_INFO"]
        query = request.environ["QUERY_STRING"]
        # Not get_data(): it calls read() without a size, which the validator forbids.
        return said(request.method, path, query, fields, request.stream.read(1 << 20))

    return app


def django_app():
    from django.conf import settings

    settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="for the tests")
    from django.core.wsgi import get_wsgi_application

    return get_wsgi_application()


def django_view(request):
    from django.http import HttpResponse, StreamingHttpResponse

    if request.path == "/stream":
        pieces = (b"piece %d\n" % number for number in range(10))
        return StreamingHttpResponse(pieces, content_type="text/plain")
    fields = {k: v for k, v in request.META.items() if k.startswith("HTTP_")}
    # Django decodes it in place; this is what it was given.
    path = request.META["PATH_INFO"].encode().decode("latin-1")
    text = said(request.method, path, request.META["QUERY_STRING"], fields, request.body)
    return HttpResponse(text, content_type="text/plain")


def __getattr__(name):
    """`bare`, `flask` and `django`, made when one asks; the latter two need their packages."""
    if name == "urlpatterns":
        from django.urls import re_path

        return [re_path("", django_view)]
    makers = {"bare": lambda: bare_app, "flask": flask_app, "django": django_app}
    if name not in makers:
        raise AttributeError(name)
    # Once: a second Django would be configured twice.
    app = globals()[name] = validator(makers[name]())
    return app
