"""Workloads by name: the same seed, the same requests; rates and lengths as asked for."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.core.errors import ConfigError
from orcaserve.workload.arrival import Arrival
from orcaserve.workload.arrival_times import drawn_times, mean_rate, scaled_times
from orcaserve.workload.named import Recorded, Workload, named_source
from orcaserve.workload.shape import Shape


def workload(name: str, n: int, burstiness: float | None = None, shape: Shape | None = None) -> Workload:
    return Workload(name, named_source(name), n, shape or Shape(), burstiness)


def gaps(arrivals: list[Arrival]) -> list[float]:
    return [b.time - a.time for a, b in pairwise(arrivals)]


@pytest.mark.parametrize("name", ["paper", "azure-conv", "azure-code", "homogeneous:8:3"])
def test_the_same_seed_gives_the_same_requests(name: str) -> None:
    assert workload(name, 50).arrivals(2.0, 7) == workload(name, 50).arrivals(2.0, 7)
    assert workload(name, 50).arrivals(2.0, 7) != workload(name, 50).arrivals(2.0, 8)


@pytest.mark.parametrize("name", ["paper", "azure-conv"])
def test_another_rate_only_stretches_the_times(name: str) -> None:
    slow, fast = (workload(name, 50).arrivals(rate, 7) for rate in (2.0, 8.0))
    for a, b in zip(slow, fast, strict=True):
        assert (a.n_input, a.n_output) == (b.n_input, b.n_output)
        assert a.time == pytest.approx(4 * b.time)


def test_the_paper_trace() -> None:
    arrivals = workload("paper", 20_000).arrivals(5.0, 0)
    inputs, outputs = [a.n_input for a in arrivals], [a.n_output for a in arrivals]
    assert (min(inputs), max(inputs), min(outputs), max(outputs)) == (32, 512, 1, 128)
    assert fmean(inputs) == pytest.approx(272, rel=0.02) and fmean(outputs) == pytest.approx(64.5, rel=0.02)
    assert fmean(gaps(arrivals)) == pytest.approx(0.2, rel=0.03)


def test_homogeneous() -> None:
    arrivals = workload("homogeneous:256:32", 9).arrivals(None, 0)
    assert arrivals == [Arrival(0.0, 256, 32)] * 9  # no rate: all at once


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_their_mean_and_variance(burstiness: float) -> None:
    drawn = gaps(workload("homogeneous:1:1", 50_000, burstiness).arrivals(10.0, 1))
    assert fmean(drawn) == pytest.approx(0.1, rel=0.05)
    assert pvariance(drawn) == pytest.approx(0.01 / burstiness, rel=0.1)


def test_traces_keep_their_times_unless_told() -> None:
    rows = [Arrival(float(t), 10, 5) for t in (0, 1, 1, 6)]
    trace = Workload("trace", Recorded("trace", rows), 4)
    assert [a.time for a in trace.arrivals(None, 0)] == [0, 1, 1, 6]
    assert [a.time for a in trace.arrivals(1.0, 0)] == pytest.approx([0, 0.5, 0.5, 3])
    redrawn = Workload("trace", Recorded("trace", rows), 4, burstiness=1.0)
    assert [a.time for a in redrawn.arrivals(None, 0)] == pytest.approx([2 * a.time for a in redrawn.arrivals(1.0, 0)])


def test_seeds_draw_places_of_a_trace() -> None:
    starts = {workload("azure-conv", 19_000).arrivals(1.0, seed)[0].n_input for seed in range(10)}
    assert len(starts) > 5
    assert len(workload("azure-code", 8819).arrivals(None, 3)) == 8819
    with pytest.raises(ConfigError, match="--n: azure-code has 8819 requests"):
        workload("azure-code", 8820).arrivals(None, 0)


def test_lengths_are_scaled_then_cut() -> None:
    shape = Shape(0.5, max_input=100, max_output=3)
    assert shape.apply(Arrival(1.0, 120, 5, 40)) == Arrival(1.0, 60, 2, 3)
    assert shape.apply(Arrival(1.0, 999, 1)) == Arrival(1.0, 100, 1)
    assert all(
        a.n_input <= 64 and a.n_output <= 9 for a in workload("azure-conv", 99, None, Shape(1, 64, 9)).arrivals(1, 1)
    )


def test_a_file_is_a_workload(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,3,4\n2,5,6")
    assert workload(str(path), 2).arrivals(None, 0) == [Arrival(0.0, 3, 4), Arrival(2.0, 5, 6)]


@pytest.mark.parametrize(
    "name", ["papers", "", "trace.txt", "homogeneous", "homogeneous:1", "homogeneous:0:1", "homogeneous:1:x:2",
             "homogeneous:1:-2", "homogeneous:²:2", "homogeneous:1:99999999999"]
)  # fmt: skip
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ConfigError, match="--workload"):
        named_source(name)


@given(st.lists(st.floats(0, 1e11), min_size=1, max_size=20), st.floats(1e-3, 1e3))
def test_stretched_times_stay_in_order(times: list[float], rate: float) -> None:
    times.sort()
    scaled = scaled_times(times, rate)
    assert scaled[0] == 0 and scaled == sorted(scaled)
    if mean_rate(times) is not None:
        assert mean_rate(scaled) == pytest.approx(rate) or max(scaled) < 1e-6


@given(st.integers(1, 50), st.floats(1e-3, 1e3), st.floats(0.01, 100), st.integers())
def test_drawn_times_are_in_order(n: int, rate: float, burstiness: float, seed: int) -> None:

    times = drawn_times(n, rate, burstiness, random.Random(seed))
    assert len(times) == n and times[0] == 0 and times == sorted(times)
