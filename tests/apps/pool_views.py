"""Views that hold the interpreter lock, or let go of it, for a while."""

import threading
import time
from urllib.parse import parse_qs


def app(environ, start_response):
    query = {name: float(values[0]) for name, values in parse_qs(environ["QUERY_STRING"]).items()}
    # Holds the lock: the loop looks at nothing but the clock.
    end = time.perf_counter() + query.get("busy_ms", 0) / 1e3
    while time.perf_counter() < end:
        pass
    if "sleep_ms" in query:
        time.sleep(query["sleep_ms"] / 1e3)
    body = threading.current_thread().name.encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
