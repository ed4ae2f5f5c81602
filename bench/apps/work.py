"""Work that a path names: what a view may do while others wait."""

import time


def spin(microseconds):
    """Holds the interpreter's lock for this long by the clock, however fast the machine is."""
    end = time.perf_counter_ns() + microseconds * 1000
    while time.perf_counter_ns() < end:
        pass


def sleep(microseconds):
    """Leaves the lock to others for this long, as a query does."""
    time.sleep(microseconds / 1e6)


def hang(_):
    """Never ends."""
    while True:
        time.sleep(3600)


KINDS = {"spin": spin, "sleep": sleep, "hang": hang}
