"""Ends the interpreter while it is imported."""

import sys

sys.exit(7)
