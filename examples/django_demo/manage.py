#!/usr/bin/env python
"""Django's command line for the demo."""

import os
import sys


def main():
    """Runs one administrative command."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
