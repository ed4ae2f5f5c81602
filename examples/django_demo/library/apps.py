"""The application's registration."""

from django.apps import AppConfig


class LibraryConfig(AppConfig):
    """A lending library: authors, books, who borrowed them, and scanned documents."""

    name = "library"
    verbose_name = "Lending library"
