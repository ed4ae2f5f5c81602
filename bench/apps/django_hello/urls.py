"""One view without work, and one with the work that its path names."""

import work
from django.http import HttpResponse
from django.urls import path


def hello(request):
    return HttpResponse(b"Hello, world!", content_type="text/plain")


def after_work(request, kind, microseconds):
    work.KINDS[kind](microseconds)
    return hello(request)


urlpatterns = [path("", hello), path("<slug:kind>/<int:microseconds>", after_work)]
