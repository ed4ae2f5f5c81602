"""A Django project in one file: it says what a view sees of a request's body."""

import hashlib

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        SECRET_KEY="for the tests",
        DEBUG=False,
        DATA_UPLOAD_MAX_MEMORY_SIZE=None,
    )


@csrf_exempt
def body(request):
    seen = request.body
    return JsonResponse(
        {
            "length": len(seen),
            "sha256": hashlib.sha256(seen).hexdigest(),
            "fields": request.POST.dict(),
            "files": {name: file.size for name, file in request.FILES.items()},
        }
    )


urlpatterns = [path("body", body)]
application = get_wsgi_application()
