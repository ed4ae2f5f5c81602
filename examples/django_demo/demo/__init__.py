"""A small lending library: the Django project that shows the server at work."""
