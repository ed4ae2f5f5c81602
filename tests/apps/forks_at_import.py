"""An application that forks while it is imported; its child lives on, or comes back out of the import."""

import os
import time

CHILD = os.fork()
if CHILD == 0 and "RETURN" not in os.environ:
    time.sleep(60)
    os._exit(0)


def app(environ, start_response):
    body = str(CHILD).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
