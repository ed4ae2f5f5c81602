"""The WSGI entry: `hoopsnake --app-dir examples/django_demo demo` finds it by that name."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo.settings")

application = get_wsgi_application()
