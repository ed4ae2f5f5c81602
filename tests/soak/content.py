"""The bytes that both sides know: one endless sequence, of which everybody asks for slices.

The period is odd, so that a piece which was repeated, left out or shifted by a block is not itself.
"""

import random
import struct

# Of a worker's file: requests begun and ended, iterators handed out and closed.
COUNTS = struct.Struct("=4Q")
PERIOD = (1 << 20) + 7
_ONCE = random.Random("the bytes that both sides know").randbytes(PERIOD)
_TWICE = _ONCE + _ONCE


def whole() -> bytes:
    """One period: what the file holds."""
    return _ONCE


def piece(at: int, size: int) -> bytes:
    """`size` bytes from position `at` on."""
    start = at % PERIOD
    if size <= PERIOD:
        return _TWICE[start : start + size]
    full, rest = divmod(size, PERIOD)
    turned = _TWICE[start : start + PERIOD]
    return turned * full + turned[:rest]
