"""The bare application, after the work that the path names: / is none, /spin/650 spins 650 µs."""

import bare
import work


def application(environ, start_response):
    path = environ["PATH_INFO"]
    if path != "/":
        _, kind, microseconds = path.split("/")
        work.KINDS[kind](int(microseconds))
    return bare.application(environ, start_response)
