"""Several requests on one connection before the first is answered.

PRODUCTION behaviour 29, RULES 17.
"""

from __future__ import annotations

import json
import threading
import time

from conformance.wire import Wire, chunked, request, shared_server

server = shared_server("behaviour_echo:app", "--threads", "8")


def test_29_a_get_sees_the_effect_of_the_post_before_it(server):
    """PRODUCTION 29, RULES 17."""
    with Wire(server) as wire:
        before = int(wire.get("/count").body)
        add = request("POST", "/count", "Content-Length: 1") + b"x"
        look = request("GET", "/count")
        # Eight threads are free, and each POST sleeps: a server that ran them side by side fails.
        wire.send((add + look) * 10)
        counts = [int(wire.response().body) for _ in range(20)]
        assert counts == [before + 1 + step // 2 for step in range(20)]


def test_29_fifty_are_answered_in_order(server):
    with Wire(server) as wire:
        # Earlier ones are slower than later ones.
        wire.send(
            b"".join(
                request("GET", f"/sleep?seconds={0.02 if n % 5 == 0 else 0}&say={n}")
                for n in range(50)
            )
        )
        assert [wire.response().body for _ in range(50)] == [b"%d" % n for n in range(50)]
        assert wire.get("/").body == b"hello"


def test_29_bodies_of_pipelined_requests_stay_apart(server):
    with Wire(server) as wire:
        sent = []
        for n in range(50):
            body = b"GET /count HTTP/1.1\r\n\r\n" + b"%d" % n * (n * 40)
            sent.append(body)
            if n % 2:
                wire.send(request("POST", "/echo", f"Content-Length: {len(body)}") + body)
            else:
                wire.send(request("POST", "/echo", "Transfer-Encoding: chunked") + chunked(body))
        for body in sent:
            said = json.loads(wire.response().body)
            assert (said["length"], said["body"]) == (len(body), body[:1000].decode())


def test_29_more_than_the_server_keeps_is_served_as_it_is_read(server):
    # 2000 requests are far beyond what may wait for a connection: reading stops, and goes on.
    count = 2000
    with Wire(server, timeout=30) as wire:
        data = b"".join(
            request("GET", f"/sleep?seconds=0&say={n}", "X-Long: " + "x" * 200)
            for n in range(count)
        )
        sender = threading.Thread(target=wire.send, args=(data,))
        sender.start()
        assert [wire.response().body for _ in range(count)] == [b"%d" % n for n in range(count)]
        sender.join()


def test_rule_17_one_connection_occupies_one_thread(server):
    with Wire(server) as greedy, Wire(server) as other:
        greedy.send(request("GET", "/sleep?seconds=0.5") * 20)
        time.sleep(0.2)
        # Seven threads are free for others.
        started = time.monotonic()
        for _ in range(20):
            assert other.get("/").body == b"hello"
        assert time.monotonic() - started < 5


def test_rule_17_a_pipeline_ends_at_connection_close(server):
    with Wire(server) as wire:
        wire.send(
            request("GET", "/sleep?seconds=0&say=1")
            + request("GET", "/sleep?seconds=0&say=2", "Connection: close")
            + request("POST", "/count", "Content-Length: 0")
        )
        assert wire.response().body == b"1"
        last = wire.response()
        assert (last.body, last.closes) == (b"2", True)
        wire.expect_end()


def test_rule_17_an_error_comes_in_its_turn(server):
    with Wire(server) as wire:
        wire.send(
            request("GET", "/sleep?seconds=0.2&say=1") + b"GET / HTTP/1.1\r\nbad header\r\n\r\n"
        )
        assert wire.response().body == b"1"
        assert wire.response().status == 400
        wire.expect_end()
