"""Targets as users write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.core.errors import ConfigError
from orcaserve.evaluation.targets import Metric, Target, parse_target


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("p50_normalized<=190ms", Target(Metric.NORMALIZED, 0.5, 0.19)),
        ("p50_normalised <= 0.19s", Target(Metric.NORMALIZED, 0.5, 0.19)),
        ("p99_itl<=80ms", Target(Metric.ITL, 0.99, 0.08)),
        ("ttft_p99<=2s", Target(Metric.TTFT, 0.99, 2.0)),
        ("p99.9_e2e<=1.5s", Target(Metric.E2E, 0.999, 1.5)),
        ("p90_itl<=500us", Target(Metric.ITL, 0.9, 0.0005)),
    ],
)
def test_targets(text: str, target: Target) -> None:
    parsed = parse_target(text)
    assert (parsed.metric, parsed.share) == (target.metric, pytest.approx(target.share))
    assert parsed.bound == pytest.approx(target.bound)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no target"),
        ("fast", "is no target"),
        ("p50_normalized<190ms", "is no target"),
        ("p50_normalized<=190", "is no target"),
        ("p50_normalized<=-1ms", "is no target"),
        ("p50_speed<=1s", "there is no 'speed'; there are ttft, itl, e2e, normalized"),
        ("p100_itl<=1s", "a percentile lies between"),
        ("p0_itl<=1s", "a percentile lies between"),
        ("p1.2.3_itl<=1s", "a percentile lies between"),
        ("p50_itl<=0ms", "a bound is more than 0"),
        ("p50_itl<=" + "9" * 400 + "s", "a bound is more than 0"),
        ("p50_itl<=1s\np99_itl<=2s", "is no target"),
    ],
)
def test_what_cannot_be_parsed(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"^--target: ") as refusal:
        parse_target(text)
    assert says in str(refusal.value) and len(str(refusal.value).splitlines()) == 1


@given(st.text())
def test_any_text_is_a_target_or_refused(text: str) -> None:
    try:
        parse_target(text)
    except ConfigError as refusal:
        assert refusal.name == "--target"


@given(st.sampled_from(Metric), st.integers(1, 99), st.floats(0.001, 1e6))
def test_a_target_reads_as_it_is_written(metric: Metric, percent: int, bound: float) -> None:
    target = Target(metric, percent / 100, bound)
    again = parse_target(str(target)) if "e+" not in str(target) else target
    assert (again.metric, again.share) == (metric, pytest.approx(target.share))
    assert again.bound == pytest.approx(bound, rel=1e-4)
