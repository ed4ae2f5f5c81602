"""An hour of everything at once, each answer checked and each loss accounted for.

    cd tests && python -m soak --seconds 3600 [--io uring|epoll] [--seed N] [--hup 60] [--kill 120]

A client of many small *actors* sends every kind of request (`kinds.py`) to a server whose workers
are restarted and killed meanwhile. A loss is excused only by what the run itself did (`ledger.py`):
by a SIGKILL, when the connection belonged to that process at that moment, or by a restart, when the
connection had been idle for as long as `--drain-idle` promises. Everything else is an error.

Exit code 0: no error, and the server came back to the descriptors, threads and memory it had at the
beginning.
"""
