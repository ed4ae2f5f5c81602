"""Settings of a production shape, without anything a hello does not need."""

DEBUG = False
SECRET_KEY = "benchmark-only"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "django_hello.urls"
WSGI_APPLICATION = "django_hello.wsgi.application"
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
INSTALLED_APPS = []
DATABASES = {}
USE_TZ = True
LOGGING_CONFIG = None
