"""Three pages about the server rather than about books: what it hands over, what happens when a
view is slow, and what happens when it fails."""

import os
import platform
import threading
import time

import django
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

SLOW_SECONDS_MAX = 30.0


@require_safe
def facts(request):
    """Where this request was answered, and what the server said about it."""
    meta = request.META
    rows = [
        ("Server", meta.get("SERVER_SOFTWARE", "not given")),
        ("Interface", "WSGI" if "wsgi.version" in meta else "ASGI"),
        ("Worker process", os.getpid()),
        ("Thread", threading.current_thread().name),
        ("Threads of this process, as Python sees them", threading.active_count()),
        ("Scheme", request.scheme),
        ("Host", request.get_host()),
        ("Client's address", meta.get("REMOTE_ADDR", "")),
        ("Protocol", meta.get("SERVER_PROTOCOL", "not given")),
        ("Method", request.method),
        ("Path", request.get_full_path()),
        ("Multithread", meta.get("wsgi.multithread", "not given")),
        ("Multiprocess", meta.get("wsgi.multiprocess", "not given")),
        ("Files sent by the server (wsgi.file_wrapper)", "wsgi.file_wrapper" in meta),
        (
            "Request bodies end by themselves (wsgi.input_terminated)",
            meta.get("wsgi.input_terminated", "not given"),
        ),
        ("Django", django.get_version()),
        ("Python", platform.python_version()),
    ]
    return render(request, "library/facts.html", {"rows": rows})


@require_safe
def slow(request):
    """Sleeps for ?seconds= (2 if not said, 30 at most); other requests are served meanwhile."""
    try:
        seconds = float(request.GET.get("seconds", "2"))
    except ValueError:
        return HttpResponse("seconds is not a number.\n", content_type="text/plain", status=400)
    # `not >=` also turns NaN away.
    if not 0 <= seconds:
        return HttpResponse("seconds is negative.\n", content_type="text/plain", status=400)
    seconds = min(seconds, SLOW_SECONDS_MAX)
    time.sleep(seconds)
    name = threading.current_thread().name
    return HttpResponse(f"slept {seconds:g} s on {name}\n", content_type="text/plain")


@require_safe
def boom(request):
    """Raises. The answer is a 500, the traceback is in the log, and the worker lives on."""
    raise RuntimeError("this page always fails")
