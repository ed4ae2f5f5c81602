"""Not served by a WSGI server."""


async def application(scope, receive, send):
    raise AssertionError("never called")
