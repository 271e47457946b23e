"""The loop in real time, with an engine that has threads but no model."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from orcaserve.core import Batch, EngineError, FinishReason, IterationReport, IterationResult, Progress
from orcaserve.core.errors import ENGINE_LOST
from orcaserve.scheduler import IterationLoop, Scheduler

TIMEOUT = 10.0


class Running:
    """A loop on its own thread. Collects what it reports, and the error that `run` raised."""

    def __init__(self, scheduler: Scheduler, engine: Any, on_report: Any = None, **options: Any) -> None:
        self.reports: list[IterationReport] = []
        self.error: Exception | None = None
        self._on_report = on_report
        self._news = threading.Condition()
        self.loop = IterationLoop(scheduler, engine, self._report, **options)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Running:
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            self.loop.run()
        except Exception as error:
            self.error = error

    def _report(self, report: IterationReport) -> None:
        if self._on_report is not None:
            self._on_report(report)
        with self._news:
            self.reports.append(report)
            self._news.notify_all()

    @property
    def progress(self) -> list[Progress]:
        return [news for report in self.reports for news in report.progress]

    @property
    def ends(self) -> dict[int, FinishReason]:
        ended = [news for news in self.progress if news.finish_reason is not None]
        assert max(Counter(news.request_id for news in ended).values(), default=1) == 1, "ended twice"
        return {news.request_id: news.finish_reason for news in ended if news.finish_reason is not None}

    def wait_ends(self, n: int) -> dict[int, FinishReason]:
        with self._news:
            assert self._news.wait_for(lambda: len(self.ends) >= n, TIMEOUT), f"only {self.ends} ended"
        return self.ends

    def wait_reports(self, n: int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: len(self.reports) >= n, TIMEOUT)

    def join(self) -> None:
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive(), "the loop did not end"

    def stop(self) -> None:
        self.loop.stop()
        self.join()


@pytest.fixture
def running() -> Iterator[Any]:
    """Starts loops, and stops them after the test."""
    started: list[Running] = []

    def start(*args: Any, **options: Any) -> Running:
        started.append(Running(*args, **options).start())
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_many_clients_get_all_their_tokens(running: Any, fake_engine: Any, new_request: Any, n_workers: int) -> None:
    engine = fake_engine(n_workers)
    run = running(Scheduler(n_slots=60, max_bs=3, n_workers=n_workers), engine)
    requests = [new_request(i, n_input=1 + i % 5, max_tokens=1 + i % 7) for i in range(40)]
    clients = [threading.Thread(target=run.loop.submit, args=(requests[k::4],)) for k in range(4)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert set(run.wait_ends(40).values()) == {FinishReason.LENGTH}
    run.stop()
    assert run.error is None and engine.closed
    tokens = defaultdict(list)
    for news in run.progress:
        tokens[news.request_id].append(news.token)
    for request in requests:
        first = request.n_input
        assert tokens[request.id] == list(range(first, first + request.params.max_tokens))
    last = run.reports[-1].status
    assert (last.n_live, last.n_reserved, last.n_used, last.iteration) == (0, 0, 0, len(engine.batches))
    assert engine.in_flight_peak <= n_workers
    assert sum(report.status.n_reserved > 0 for report in run.reports) > 0


def test_as_many_batches_are_in_flight_as_there_are_workers(running: Any, fake_engine: Any, new_request: Any) -> None:
    engine = fake_engine(3, gated=True)
    run = running(Scheduler(n_slots=1000, max_bs=2, n_workers=3), engine)
    run.loop.submit([new_request(i, max_tokens=2) for i in range(8)])
    engine.wait_submitted(3)
    assert [[entry.request_id for entry in batch.entries] for batch in engine.batches] == [[0, 1], [2, 3], [4, 5]]
    engine.step()
    engine.wait_submitted()
    assert [entry.request_id for entry in engine.batches[3].entries] == [0, 1]
    assert len(engine.batches) == 4


def test_an_arrival_joins_the_next_iteration(running: Any, fake_engine: Any, new_request: Any) -> None:
    engine = fake_engine(gated=True)
    run = running(Scheduler(n_slots=100, max_bs=4), engine)
    run.loop.submit([new_request(1)])
    engine.wait_submitted()
    run.loop.submit([new_request(2)])
    engine.step()
    engine.wait_submitted()
    assert [entry.request_id for entry in engine.batches[1].entries] == [1, 2]


def test_the_next_batch_is_under_way_before_the_report(running: Any, fake_engine: Any, new_request: Any) -> None:
    engine = fake_engine()
    submitted_by_then: list[int] = []
    run = running(
        Scheduler(n_slots=100, max_bs=4), engine, on_report=lambda _: submitted_by_then.append(len(engine.batches))
    )
    run.loop.submit([new_request(1, max_tokens=3)])
    run.wait_ends(1)
    assert submitted_by_then == [2, 3, 3]


def test_two_clients_overtake_only_if_the_batch_has_room(running: Any, fake_engine: Any, new_request: Any) -> None:
    for max_bs, expected in ((1, [1, 2]), (2, [2, 1])):
        run = running(Scheduler(n_slots=100, max_bs=max_bs), fake_engine())
        run.loop.submit([new_request(1, max_tokens=20), new_request(2, max_tokens=2)])
        assert list(run.wait_ends(2)) == expected


def test_what_cannot_fit_is_refused_and_others_go_on(running: Any, fake_engine: Any, new_request: Any) -> None:
    run = running(Scheduler(n_slots=10, max_bs=4), fake_engine())
    run.loop.submit([new_request(1, n_input=9, max_tokens=2), new_request(2)])
    assert run.wait_ends(2) == {1: FinishReason.ERROR, 2: FinishReason.LENGTH}
    (refusal,) = [news for news in run.progress if news.request_id == 1]
    assert refusal.token is None and refusal.error is not None and "but there are 10" in refusal.error


def test_a_twin_is_refused_and_others_go_on(running: Any, fake_engine: Any, new_request: Any) -> None:
    engine = fake_engine(gated=True)
    run = running(Scheduler(n_slots=100, max_bs=4), engine)
    run.loop.submit([new_request(1), new_request(1), new_request(2, max_tokens=1)])
    engine.step()
    assert run.wait_ends(2) == {1: FinishReason.ERROR, 2: FinishReason.LENGTH}


def test_cancel_of_a_running_request(running: Any, fake_engine: Any, new_request: Any) -> None:
    engine = fake_engine(gated=True)
    run = running(Scheduler(n_slots=100, max_bs=4), engine)
    run.loop.submit([new_request(1), new_request(2, max_tokens=2)])
    engine.wait_submitted()
    run.loop.cancel([1, 77])
    engine.step()
    engine.wait_submitted()
    assert [entry.request_id for entry in engine.batches[1].entries] == [2] and engine.batches[1].drops == (1,)
    engine.step()
    assert run.wait_ends(2) == {1: FinishReason.CANCELLED, 2: FinishReason.LENGTH}


def test_cancel_of_a_waiting_request_is_reported_at_once(running: Any, fake_engine: Any, new_request: Any) -> None:
    engine = fake_engine(gated=True)
    run = running(Scheduler(n_slots=100, max_bs=1), engine)
    run.loop.submit([new_request(1), new_request(2)])
    run.loop.cancel([2])
    assert run.wait_ends(1) == {2: FinishReason.CANCELLED}


@pytest.mark.parametrize("n_workers", [1, 3])
def test_engine_failure_ends_every_request(running: Any, fake_engine: Any, new_request: Any, n_workers: int) -> None:
    engine = fake_engine(n_workers, fail_at=4)
    run = running(Scheduler(n_slots=100, max_bs=2, n_workers=n_workers), engine)
    run.loop.submit([new_request(i, max_tokens=10) for i in range(9)])
    assert run.wait_ends(9) == dict.fromkeys(range(9), FinishReason.ERROR)
    run.join()
    assert isinstance(run.error, EngineError) and str(run.error) == "a secret of the log"
    assert {news.error for news in run.progress if news.finish_reason} == {ENGINE_LOST}
    assert run.reports[-1].status.n_reserved == 0 and engine.closed
    with pytest.raises(EngineError, match="stopped"):
        run.loop.submit([new_request(99)])
    run.loop.cancel([1])  # harmless


def test_an_engine_that_raises_has_failed(running: Any, fake_engine: Any, new_request: Any) -> None:
    engine = fake_engine()

    def broken(batch: Batch) -> None:
        raise OSError("no such pipe")

    engine.submit = broken
    run = running(Scheduler(n_slots=100, max_bs=2), engine)
    run.loop.submit([new_request(1)])
    assert run.wait_ends(1) == {1: FinishReason.ERROR}
    run.join()
    assert isinstance(run.error, EngineError) and isinstance(run.error.__cause__, OSError) and engine.closed


def test_a_result_that_was_not_due_is_a_failure(running: Any, fake_engine: Any, new_request: Any) -> None:
    engine = fake_engine(gated=True)
    start = engine.start

    def start_and_speak_first(deliver: Any) -> None:
        start(deliver)
        deliver(IterationResult(3, [1]))

    engine.start = start_and_speak_first
    run = Running(Scheduler(n_slots=100, max_bs=2), engine)
    run.loop.submit([new_request(1)])
    run.start()
    assert run.wait_ends(1) == {1: FinishReason.ERROR}
    run.join()
    assert isinstance(run.error, EngineError) and "iteration 3" in str(run.error)


def test_a_report_that_raises_is_not_swallowed(running: Any, fake_engine: Any, new_request: Any) -> None:
    engine = fake_engine()

    def broken(report: IterationReport) -> None:
        raise BrokenPipeError("reader is gone")

    run = running(Scheduler(n_slots=100, max_bs=2), engine, on_report=broken)
    run.loop.submit([new_request(1)])
    run.join()
    assert isinstance(run.error, EngineError) and isinstance(run.error.__cause__, BrokenPipeError) and engine.closed


def test_a_report_that_raises_once_still_hears_of_the_end(running: Any, fake_engine: Any, new_request: Any) -> None:
    broken = iter([True])

    def once(report: IterationReport) -> None:
        if next(broken, False):
            raise ValueError("hiccup")

    run = running(Scheduler(n_slots=100, max_bs=2), fake_engine(), on_report=once)
    run.loop.submit([new_request(1)])
    assert run.wait_ends(1) == {1: FinishReason.ERROR}
    run.join()
    assert isinstance(run.error, EngineError)


def test_stop_cancels_what_is_live(running: Any, fake_engine: Any, new_request: Any) -> None:
    engine = fake_engine(gated=True)
    run = running(Scheduler(n_slots=100, max_bs=1), engine)
    run.loop.submit([new_request(1), new_request(2)])
    engine.wait_submitted()
    run.stop()  # although the batch never returned
    assert run.error is None and engine.closed
    assert run.ends == {1: FinishReason.CANCELLED, 2: FinishReason.CANCELLED}
    run.loop.stop()  # again: harmless


def test_no_request_is_lost_between_stop_and_the_end(running: Any, fake_engine: Any, new_request: Any) -> None:
    run = Running(Scheduler(n_slots=100, max_bs=1), fake_engine())
    run.loop.submit([new_request(1)])
    run.loop.stop()
    run.loop.submit([new_request(2)])
    run.start().join()
    assert run.error is None and run.ends == {1: FinishReason.CANCELLED, 2: FinishReason.CANCELLED}


def test_times(fake_engine: Any, new_request: Any) -> None:
    """A clock that stands still, but for 5 s of the engine and 1 s of the scheduler."""

    class Clock:
        now = 100.0

        def __call__(self) -> float:
            return self.now

    clock = Clock()

    class SlowScheduler(Scheduler):
        def next_batch(self, now: float = 0.0) -> Batch | None:
            clock.now += 1.0
            return super().next_batch(now)

    class InstantEngine:
        n_workers = 1

        def start(self, deliver: Any) -> None:
            self.deliver = deliver

        def submit(self, batch: Batch) -> None:
            clock.now += 5.0
            self.deliver(IterationResult(batch.iteration, [1], seconds=5.0))

        def close(self) -> None:
            pass

    scheduler = SlowScheduler(n_slots=100, max_bs=1)
    run = Running(scheduler, InstantEngine(), clock=clock)
    request = new_request(1, max_tokens=2)
    run.loop.submit([request])
    clock.now = 200.0
    run.start().wait_ends(1)
    run.stop()
    assert request.arrival == 100.0  # when it was handed over, not when the loop came to it
    # Turns 1 and 2 choose a batch each; once the engine has all it can have, it waits for nothing that is done here.
    # Turn 3: there is nobody to choose. Turn 1 has no news.
    assert [(r.status.iteration_seconds, r.status.scheduler_seconds) for r in run.reports] == [(5.0, 2.0), (5.0, 1.0)]
