"""A Django project in one file, with Django's own settings for proxies left at their defaults."""

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, JsonResponse
from django.middleware.csrf import get_token
from django.urls import path

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["a.example", "public.example"],
        ROOT_URLCONF=__name__,
        SECRET_KEY="for the tests",
        DEBUG=False,
        MIDDLEWARE=[
            "django.middleware.common.CommonMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
        ],
    )


def seen(request):
    return JsonResponse(
        {
            "secure": request.is_secure(),
            "host": request.get_host(),
            "port": request.get_port(),
            "address": request.META["REMOTE_ADDR"],
            "url": request.build_absolute_uri("/page?q=1"),
        }
    )


def form(request):
    """GET gives a token, POST needs it."""
    return HttpResponse(get_token(request) if request.method == "GET" else "taken")


urlpatterns = [path("seen", seen), path("form", form)]
application = get_wsgi_application()
