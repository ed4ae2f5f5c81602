"""A Django project of one view and one middleware."""
