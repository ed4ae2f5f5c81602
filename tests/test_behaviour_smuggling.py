"""The raw HTTP baseline, PRODUCTION behaviour 20 among it: whatever could be read in two ways is
refused, the connection ends, and what follows is never taken for a second request."""

from __future__ import annotations

import pytest
from conformance import raw_http
from conformance.wire import shared_server

server = shared_server("behaviour_echo:app")
EXPECTED = raw_http.expected()


@pytest.mark.parametrize("case", raw_http.SMUGGLING, ids=lambda case: case.name)
def test_20_what_can_be_read_in_two_ways_is_refused(server, case):
    found = raw_http.outcome(server, case)
    assert found in ("400, close", "501, close") or (case.fin and found == "close")
    assert found in EXPECTED[case.name]


@pytest.mark.parametrize("case", raw_http.REQUESTS + raw_http.REFUSED, ids=lambda case: case.name)
def test_raw_http_baseline(server, case):
    assert raw_http.outcome(server, case) in EXPECTED[case.name]


def test_the_table_is_complete():
    names = [case.name for case in raw_http.CASES]
    assert len(names) == len(set(names)) >= 83
    assert set(names) == set(EXPECTED)
