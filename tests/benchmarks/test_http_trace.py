"""The search for the rate that a server carries."""

from __future__ import annotations

import pytest
from http_trace import BOUND_MS, HALVINGS, STEP, Probe, best, read, search


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


def test_the_generators_result_is_read() -> None:
    spread = {"p50": 201.0, "p99": 930.0}
    found = {"errors": {}, "req_s": 1.3, "normalized_ms": spread, "ttft_ms": spread, "itl_ms": spread,
             "run": {"prompts": "token ids"}, "generator": {"warning": "late"}}  # fmt: skip
    probe = read(2.0, found)
    assert (probe.carried, probe.normalised_ms, probe.within) == (1.3, 201.0, False)
    assert "ttft ms p50 201 p99 930; gap p99 930; token ids; late" in probe.text
    with pytest.raises(SystemExit, match="HTTP 429"):
        read(2.0, found | {"errors": {"HTTP 429": 2}, "details": {}})
