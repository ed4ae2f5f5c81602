"""Imports something that is not installed: the traceback names the line."""

import a_module_that_nobody_has  # noqa: F401
