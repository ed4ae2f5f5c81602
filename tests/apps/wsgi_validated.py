"""A bare application, Flask and Django under the validator of the standard library."""

from __future__ import annotations

from wsgiref.validate import validator

PARTS = ("a", "b", "c")


def bare_app(environ, start_response):
    stream, errors = environ["wsgi.input"], environ["wsgi.errors"]
    # `read` with one argument, since the validator takes the letter of PEP 333.
    body = stream.read(3) + stream.readline() + b"".join(stream.readlines())
    rest = list(stream)
    errors.write("a line\n")
    errors.writelines(["another\n"])
    errors.flush()
    if environ["PATH_INFO"] == "/stream":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return (part.encode() for part in PARTS)
    if environ["PATH_INFO"] == "/write":
        write = start_response("200 OK", [("Content-Type", "text/plain")])
        write(b"ab")
        return [b"c"]
    if environ["PATH_INFO"] == "/empty":
        start_response("204 No Content", [])
        return []
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello ", body, *rest]


def flask_app():
    from flask import Flask, Response, request

    flask = Flask(__name__)
    # Without a limit Flask calls `read()` on an input that is terminated, which is right and which
    # the validator does not know: it wants the one argument of PEP 333's table.
    flask.config["MAX_CONTENT_LENGTH"] = 1_000_000

    @flask.route("/", methods=["GET", "POST"])
    def index():
        return "hello " + request.get_data(as_text=True)

    @flask.route("/form", methods=["POST"])
    def form():
        return "&".join(f"{key}={value}" for key, value in request.form.items())

    @flask.route("/stream")
    def stream():
        return Response(iter(PARTS))

    @flask.route("/file")
    def file():
        from flask import send_file

        return send_file(__file__)

    @flask.route("/empty")
    def empty():
        response = Response(status=204)
        # The validator wants none where there is no body.
        del response.headers["Content-Type"]
        return response

    return flask


def django_app():
    from django.conf import settings

    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="of a test")
    from django.core.wsgi import get_wsgi_application
    from django.http import FileResponse, HttpResponse, StreamingHttpResponse
    from django.urls import path

    def index(request):
        return HttpResponse(b"hello " + request.body)

    def form(request):
        return HttpResponse("&".join(f"{key}={value}" for key, value in request.POST.items()))

    def empty(request):
        response = HttpResponse(status=204)
        del response["Content-Type"]
        return response

    urlpatterns.extend([
        path("", index),
        path("form", form),
        path("stream", lambda request: StreamingHttpResponse(iter(PARTS))),
        path("file", lambda request: FileResponse(open(__file__, "rb"))),
        path("empty", empty),
    ])
    return get_wsgi_application()


# Django's, filled by `django_app`.
urlpatterns: list = []

FACTORIES = {"bare": lambda: bare_app, "flask": flask_app, "django": django_app}


def __getattr__(name):
    kind, _, wrapped = name.partition("_")
    if kind not in FACTORIES:
        raise AttributeError(name)
    app = FACTORIES[kind]()
    return validator(app) if wrapped else app
