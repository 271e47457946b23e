from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orcaserve.serving.observing.distribution import LATENCY, Distribution


@given(st.lists(st.floats(0, 1000)))
def test_buckets_count_what_is_not_above_their_bound(values: list[float]) -> None:
    distribution = Distribution(LATENCY)
    for value in values:
        distribution.observe(value)
    for bound, count in distribution.buckets:
        assert count == sum(value <= float(bound) for value in values)
    assert distribution.buckets[-1] == ("+Inf", len(values)) and distribution.sum == sum(values)
