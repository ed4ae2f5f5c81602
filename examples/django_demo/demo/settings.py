"""Settings of the demo. It is made for one machine and a curious reader, not for the internet.

Four variables change it: DEMO_DATABASE and DEMO_MEDIA_ROOT say where its data lives, DEMO_DEBUG=0
switches the debug pages off, DEMO_SECRET_KEY replaces the key that is printed here for all to read.
"""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = os.environ.get("DEMO_SECRET_KEY", "a-key-for-a-demo-on-localhost-and-for-nothing-else")
DEBUG = os.environ.get("DEMO_DEBUG", "1") not in {"0", "off", "false", "no"}
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "library",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "demo.urls"
WSGI_APPLICATION = "demo.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# SQLite under a server with several threads and workers:
# - WAL lets readers go on while somebody writes;
# - IMMEDIATE takes the write lock at the start of a transaction, where waiting is possible. The
#   default takes it at the first write, and SQLite then refuses at once instead of waiting when
#   another writer was faster ("database is locked");
# - the timeout is how long it waits.
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DEMO_DATABASE", BASE_DIR / "db.sqlite3"),
        # The server's threads live as long as the worker, so their connections may as well.
        "CONN_MAX_AGE": None,
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    },
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# The demo's login is admin/admin: no validators.
AUTH_PASSWORD_VALIDATORS = []
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "library:books"
LOGOUT_REDIRECT_URL = "library:books"

LANGUAGE_CODE = "en-gb"
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

STATIC_URL = "/static/"
MEDIA_ROOT = os.environ.get("DEMO_MEDIA_ROOT", BASE_DIR / "media")

# Largest document the upload form takes. Unit: bytes.
LIBRARY_DOCUMENT_BYTES_MAX = 100 * 1024 * 1024
