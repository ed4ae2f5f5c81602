"""Raises while it is imported, as a settings file with a mistake does."""

SECRET_KEY = undefined_name  # noqa: F821
