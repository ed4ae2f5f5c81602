"""Threads and contexts of the application: RULES.md 3 and 5."""

from __future__ import annotations


def test_rule_3_pool_threads_are_pythons(serve):
    server = serve("life:app", "--threads", "3")
    facts = server.get().json()
    assert facts["thread"] in {f"hoopsnake-pool-{index}" for index in range(3)}
    assert facts["daemon"] and facts["is_thread"]


def test_rule_3_settrace_sees_the_application(serve):
    server = serve("life:app", env={"TRACE": "1"})
    server.get()
    assert {"app", "facts"} <= set(server.get().json()["traced"])


def test_rule_3_recursion_is_a_500_and_the_worker_lives(serve):
    server = serve("life:app", "--threads", "2")
    pids = server.worker_pids()
    for _ in range(6):
        assert server.get("/recurse").status == 500
    assert server.get().status == 200
    assert server.worker_pids() == pids
    assert "RecursionError" in server.log()


def test_rule_5_a_variable_does_not_leak_into_the_next_request(serve):
    server = serve("life:app", "--threads", "1")
    for _ in range(3):
        assert server.get("/set_variable").json() == {"value": "of another request"}
        assert server.get("/get_variable").json() == {"value": "the default"}
