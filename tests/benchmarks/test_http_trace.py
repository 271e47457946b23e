"""The search for the rate that a server carries."""

from __future__ import annotations

import pytest
from http_trace import BOUND_MS, HALVINGS, STEP, Probe, best, parse, search


def server(capacity: float) -> list[float]:
    """The rates that were tried on a server whose latency passes the bound at `capacity`."""
    tried: list[float] = []

    def probe(rate: float) -> Probe:
        tried.append(rate)
        return Probe(rate, min(rate, capacity), BOUND_MS * rate / capacity, "")

    found = search(probe, 4.0)
    assert [p.rate for p in found] == tried
    return [best(found).rate, *tried]


@pytest.mark.parametrize("capacity", [0.9, 3.9, 4.0, 4.1, 11.0, 50.0])
def test_the_highest_rate_within_the_bound_is_found_closely(capacity: float) -> None:
    rate = server(capacity)[0]
    assert rate <= capacity < rate * STEP ** (1 / 2**HALVINGS) * 1.000001


def test_a_server_that_never_keeps_the_bound_ends_the_search() -> None:
    with pytest.raises(SystemExit, match="whatever the rate"):
        search(lambda rate: Probe(rate, rate, 1000.0, ""), 1.0)


def test_the_scripts_line_is_read() -> None:
    text = "req/s 1.30 tok/s 84 | normalised ms p50 201 p99 930 | ttft ms p50 40 p99 99 | gap p99 1200"
    probe = parse(2.0, text)
    assert (probe.carried, probe.normalised_ms, probe.within) == (1.3, 201.0, False)
    with pytest.raises(SystemExit, match="something else"):
        parse(2.0, "Traceback")
