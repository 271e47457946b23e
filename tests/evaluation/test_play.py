"""Workloads on the real engine: who got how much, and the shapes of iterations as they were."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import pytest

from orcaserve.config import EngineConfig, KVConfig, ModelConfig, SchedulerConfig
from orcaserve.core import InvalidRequest
from orcaserve.evaluation.measured_engine import MeasuredEngine
from orcaserve.evaluation.play import keep_running, play
from orcaserve.evaluation.profiling import measure, plan
from orcaserve.simulation.profile import fit_cost
from orcaserve.workload import Arrival


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[MeasuredEngine]:
    model = ModelConfig(path=tiny_model, name="tiny", dtype="float32", threads=1)
    kv = KVConfig(n_slots=4096, dtype="float32")
    with MeasuredEngine(EngineConfig(model=model, kv=kv, scheduler=SchedulerConfig(max_bs=4))) as engine:
        yield engine


def test_everybody_gets_what_the_workload_says(engine: MeasuredEngine) -> None:
    arrivals = [Arrival(0.0, 9, 3), Arrival(0.0, 2, 5), Arrival(0.05, 4, 1), Arrival(0.3, 7, 2)]
    played = play(engine, arrivals)
    lives = played.outcome.lives
    assert [life.arrival for life in lives] == arrivals
    assert [len(life.token_times) for life in lives] == [3, 5, 1, 2]
    for life in lives:
        assert life.arrival.time < life.token_times[0] and life.token_times == sorted(life.token_times)


def test_shapes_are_those_of_the_batches(engine: MeasuredEngine) -> None:
    first, second, third = (
        iteration.shape for iteration in play(engine, [Arrival(0.0, 9, 3), Arrival(0.0, 2, 2)]).iterations
    )
    assert (first.n_requests, first.n_tokens, first.n_fed, first.context) == (2, 11, 11, 0)
    assert first.products == 9 * 10 // 2 + 2 * 3 // 2
    assert (second.n_requests, second.n_tokens, second.context, second.products) == (2, 2, 9 + 2, 0)
    assert (third.n_requests, third.n_tokens, third.context) == (1, 1, 10)


def test_an_iteration_after_an_idle_time_has_no_duration(engine: MeasuredEngine) -> None:
    played = play(engine, [Arrival(0.0, 4, 2), Arrival(0.3, 4, 2)])
    seconds = [iteration.seconds for iteration in played.iterations]
    assert seconds[0] is None and seconds[2] is None
    assert seconds[1] and seconds[3] and all(iteration.worker_seconds > 0 for iteration in played.iterations)


def test_a_closed_loop_keeps_so_many_running(engine: MeasuredEngine) -> None:
    played = keep_running(engine, repeat((5, 4)), 3, 1, 0.2)
    shapes = [iteration.shape for iteration in played.iterations]
    assert max(shape.n_requests for shape in shapes) == 3
    assert shapes[0].n_requests == 1  # one joins with each iteration at the start
    assert all(len(life.token_times) == 4 for life in played.outcome.lives)


def test_what_cannot_be_served_is_refused(engine: MeasuredEngine) -> None:
    with pytest.raises(InvalidRequest):
        play(engine, [Arrival(0.0, 4096, 1)])


def test_a_profile_of_a_tiny_engine(engine: MeasuredEngine) -> None:
    cells = plan(engine.facts.max_bs, engine.facts.longest_request, engine.facts.n_slots, 0.05)
    seen: list[int] = []
    samples = measure(engine, cells, lambda index, cell: seen.append(index))
    assert seen == list(range(len(cells)))
    shapes = [sample.shape for sample in samples]
    assert max(shape.n_requests for shape in shapes) == 4 and max(shape.n_fed for shape in shapes) >= 512
    assert fit_cost(samples).seconds(shapes[0]) > 0


def test_a_plan_fits_the_engine() -> None:
    for max_bs, longest, n_slots in ((64, 8192, 500_000), (4, 256, 1024), (1, 128, 128), (128, 2048, 4096)):
        cells = plan(max_bs, longest, n_slots, 1.0)
        assert cells
        for cell in cells:
            most = cell.inputs[1] + cell.outputs[1]
            assert cell.inputs[0] <= cell.inputs[1] and most <= longest and most * cell.concurrency <= n_slots
    assert max(cell.concurrency for cell in plan(48, 8192, 500_000, 1.0)) == 48
    assert plan(1, 3, 16, 1.0) == []
