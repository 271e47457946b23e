"""The driver: virtual time never goes back, every request ends once, and what comes out is Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orcaserve.scheduler import IterationLevelFCFS, Scheduler, SchedulingPolicy
from orcaserve.scheduler.policies import EvenBatches
from orcaserve.simulation.driver import PROGRESS_EVERY, simulate
from orcaserve.simulation.outcome import Outcome
from orcaserve.simulation.pipeline import Pipeline
from orcaserve.simulation.shape import Shape
from orcaserve.workload import Arrival, homogeneous_trace, paper_trace


@dataclass(frozen=True)
class PlainCost:
    """A stage takes 1 s, and 1/8 s for every input token; later stages take longer. Exact in binary."""

    n_workers: int = 1

    def stage_seconds(self, shape: Shape) -> Sequence[float]:
        return [1 + shape.n_tokens / 8 + stage / 4 for stage in range(self.n_workers)]


def _simulate(
    arrivals: Sequence[Arrival], n_slots: int, max_bs: int, n_workers: int, policy: SchedulingPolicy | None = None
) -> Outcome:
    return simulate(arrivals, Scheduler(n_slots, max_bs, n_workers, policy=policy), Pipeline(PlainCost(n_workers)))


def _algorithm_1(arrivals: Sequence[Arrival], n_slots: int, max_bs: int, n_workers: int) -> list[list[float]]:
    """The paper's pseudocode with times, on lists, sharing nothing with the scheduler: when each token was returned."""
    cost = PlainCost(n_workers)
    tokens: list[list[float]] = [[] for _ in arrivals]
    running: set[int] = set()
    free = [0.0] * n_workers
    flight: list[tuple[float, list[int]]] = []
    now, n_reserved = 0.0, 0
    while any(len(tokens[i]) < arrival.n_output for i, arrival in enumerate(arrivals)):
        while len(flight) < n_workers:
            batch: list[int] = []
            for i, arrival in enumerate(arrivals):
                if arrival.time > now or i in running or len(tokens[i]) == arrival.n_output:
                    continue
                if len(batch) == max_bs:
                    break
                if not tokens[i]:
                    if n_reserved + arrival.n_input + arrival.asked > n_slots:
                        break
                    n_reserved += arrival.n_input + arrival.asked
                batch.append(i)
            if not batch:
                break
            running |= set(batch)
            n_tokens = sum(1 if tokens[i] else arrivals[i].n_input for i in batch)
            end = now
            for stage, seconds in enumerate(cost.stage_seconds(Shape(0, n_tokens, 0, 0, 0, 0, 0))):
                end = free[stage] = max(free[stage], end) + seconds
            flight.append((end, batch))
        next_arrival = min((a.time for a in arrivals if a.time > now), default=float("inf"))
        if flight and (len(flight) == n_workers or flight[0][0] < next_arrival):
            now, batch = flight.pop(0)
            for i in batch:
                tokens[i].append(now)
                running.remove(i)
                if len(tokens[i]) == arrivals[i].n_output:
                    n_reserved -= arrivals[i].n_input + arrivals[i].asked
        else:
            now = next_arrival
    return tokens


@st.composite
def _workloads(draw: st.DrawFn) -> list[Arrival]:
    """Small ones, whose times collide with the ends of iterations now and then."""
    gaps = st.integers(0, 40).map(lambda n: n / 8)
    now, arrivals = 0.0, []
    for _ in range(draw(st.integers(1, 8))):
        now += draw(gaps)
        n_output = draw(st.integers(1, 6))
        asked = n_output + draw(st.integers(0, 3))
        arrivals.append(Arrival(now, draw(st.integers(1, 9)), n_output, asked))
    return arrivals


@given(_workloads(), st.integers(18, 60), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=300, deadline=None)
def test_it_is_algorithm_1(arrivals: list[Arrival], n_slots: int, max_bs: int, n_workers: int) -> None:
    outcome = _simulate(arrivals, n_slots, max_bs, n_workers, IterationLevelFCFS())
    assert [life.token_times for life in outcome.lives] == _algorithm_1(arrivals, n_slots, max_bs, n_workers)


@given(_workloads(), st.integers(18, 60), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_every_request_ends_once_and_time_never_goes_back(
    arrivals: list[Arrival], n_slots: int, max_bs: int, n_workers: int
) -> None:
    scheduler = Scheduler(n_slots, max_bs, n_workers, policy=EvenBatches(n_workers))
    pipeline = Pipeline(PlainCost(n_workers), record=True)
    outcome = simulate(arrivals, scheduler, pipeline)
    scheduler.check_invariants()
    assert scheduler.status().n_live == scheduler.status().n_reserved == scheduler.n_scheduled == 0
    assert [life.arrival for life in outcome.lives] == arrivals
    for life in outcome.lives:
        assert len(life.token_times) == life.arrival.n_output
        assert all(a < b for a, b in pairwise([life.arrival.time, *life.token_times]))
    assert pipeline.blocks is not None
    for worker in range(n_workers):
        mine = [block for block in pipeline.blocks if block.worker == worker]
        assert [block.batch.iteration for block in mine] == list(range(1, outcome.n_iterations + 1))
        assert all(a.end <= b.start for a, b in pairwise(mine)), "a worker runs two batches at once"
    for block, following in pairwise(pipeline.blocks):
        if block.batch is following.batch:
            assert block.end <= following.start, "a stage begins before the one before it has ended"
    assert outcome.busy == pytest.approx(
        [sum(b.end - b.start for b in pipeline.blocks if b.worker == worker) for worker in range(n_workers)]
    )


def test_what_never_fits_is_refused_and_the_rest_is_served() -> None:
    arrivals = [Arrival(0, 4, 4), Arrival(1, 100, 4), Arrival(2, 4, 4)]
    outcome = _simulate(arrivals, 20, 4, 1)
    assert [life.refused is not None for life in outcome.lives] == [False, True, False]
    summary = outcome.summary()
    assert (summary.n_requests, summary.n_refused) == (3, 1)


def test_an_empty_workload_takes_no_time() -> None:
    outcome = _simulate([], 20, 4, 2)
    assert (outcome.lives, outcome.n_iterations, outcome.seconds) == ([], 0, 0.0)
    assert outcome.summary().throughput == 0.0


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    arrivals = homogeneous_trace(4, 100, 0.01, PROGRESS_EVERY // 40)
    simulate(arrivals, Scheduler(1000, 1), Pipeline(PlainCost()), lambda *news: told.append(news))
    assert [n for n, _ in told] == [PROGRESS_EVERY, 2 * PROGRESS_EVERY]
    assert told[0][1] == PROGRESS_EVERY // 100


def test_figures_of_a_known_run() -> None:
    """One request at a time, 1.5 s for its prompt and 1.125 s for each further token; the second one waits."""
    arrivals = [Arrival(0, 4, 3), Arrival(0, 4, 3)]
    outcome = _simulate(arrivals, 100, 1, 1)
    assert [life.token_times for life in outcome.lives] == [[1.5, 2.625, 3.75], [5.25, 6.375, 7.5]]
    summary = outcome.summary()
    assert summary.ttft.p50 == 1500 and summary.ttft.p99 == 5250
    assert summary.normalised.p99 == 2500
    assert summary.itl.p50 == 1125
    assert summary.utilisation == 1.0
    assert summary.n_iterations == 6


def test_throughput_is_the_load_while_it_can_be_carried_and_the_most_beyond() -> None:
    """One token a request, 1.125 s each: at most 0.89 a second."""
    low = _simulate(homogeneous_trace(1, 1, 0.3, 4000), 100, 1, 1).summary()
    high = _simulate(homogeneous_trace(1, 1, 5.0, 1000), 100, 1, 1).summary()
    assert low.throughput == pytest.approx(0.3, rel=0.05)
    assert high.throughput == pytest.approx(1 / 1.125, rel=0.01)
    assert high.utilisation == pytest.approx(1, rel=0.01)


def test_the_papers_trace() -> None:
    trace = paper_trace(2.0, 4000, seed=3)
    assert trace == paper_trace(2.0, 4000, seed=3) != paper_trace(2.0, 4000, seed=4)
    assert {min(a.n_input for a in trace), max(a.n_input for a in trace)} == {32, 512}
    assert {min(a.n_output for a in trace), max(a.n_output for a in trace)} == {1, 128}
    assert trace[-1].time == pytest.approx(2000, rel=0.1)
    faster = paper_trace(4.0, 4000, seed=3)
    assert [(a.n_input, a.n_output) for a in faster] == [(a.n_input, a.n_output) for a in trace]
    assert faster[-1].time == pytest.approx(trace[-1].time / 2)
