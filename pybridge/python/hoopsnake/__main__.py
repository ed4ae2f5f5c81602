"""``hoopsnake`` and ``python -m hoopsnake``."""

from __future__ import annotations

import sys

from hoopsnake import _hoopsnake


def main() -> int:
    """Runs the command with the arguments of this process; the exit code."""
    return _hoopsnake.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
