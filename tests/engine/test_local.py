"""LocalEngine and EngineHost over a worker without a model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from orcaserve.core import (
    Batch,
    BatchEntry,
    EngineError,
    EngineEvent,
    EngineFacts,
    EngineFailure,
    FinishReason,
    IterationReport,
    IterationResult,
    Phase,
    Progress,
    Request,
    SamplingParams,
)
from orcaserve.engine.host import EngineHost
from orcaserve.engine.local import LocalEngine
from orcaserve.worker.executor import DeviceExecutor

FACTS = EngineFacts("fake", vocab_size=100, context_length=50, n_slots=64, max_bs=4, n_workers=1)


class FakeWorker:
    """A request's token is the number of its tokens so far. Token 66 makes the iteration raise."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.threads: set[str] = set()

    def run(self, batch: Batch) -> IterationResult:
        self.threads.add(threading.current_thread().name)
        assert self.gate.wait(10)
        if any(66 in entry.tokens for entry in batch.entries):
            raise RuntimeError("a secret of the log")
        return IterationResult(batch.iteration, [entry.position + len(entry.tokens) for entry in batch.entries])

    def prepare(self) -> None: ...


def batch(iteration: int, token: int = 1) -> Batch:
    return Batch(iteration, (BatchEntry(1, Phase.INITIATION, [token], 0, SamplingParams()),))


def test_results_come_in_order_from_the_workers_thread() -> None:
    worker, events = FakeWorker(), SimpleQueue[EngineEvent]()
    engine = LocalEngine(worker, DeviceExecutor("worker s0r0"))
    engine.start(events.put)
    worker.gate.clear()
    for iteration in range(1, 20):
        engine.submit(batch(iteration))  # returns before the batch has run
    assert events.empty()
    worker.gate.set()
    assert [events.get(timeout=5) for _ in range(19)] == [IterationResult(i, [1]) for i in range(1, 20)]
    assert worker.threads == {"worker s0r0"}
    engine.close()
    engine.close()


def test_an_iteration_that_raises_is_the_last(caplog: pytest.LogCaptureFixture) -> None:
    worker, events = FakeWorker(), SimpleQueue[EngineEvent]()
    engine = LocalEngine(worker, DeviceExecutor("x"))
    engine.start(events.put)
    for iteration, token in ((1, 1), (2, 66), (3, 1)):
        engine.submit(batch(iteration, token))
    engine.close()
    assert events.get(timeout=5) == IterationResult(1, [1])
    failure = events.get(timeout=5)
    assert failure == EngineFailure("iteration 2 failed: RuntimeError")
    assert events.empty()
    assert "a secret of the log" in caplog.text


class Rig:
    def __init__(self) -> None:
        self.worker = FakeWorker()
        self.reports: SimpleQueue[IterationReport] = SimpleQueue()
        self.failures: SimpleQueue[str] = SimpleQueue()
        engine = LocalEngine(self.worker, DeviceExecutor("worker s0r0"))
        self.host = EngineHost(engine, FACTS, 16, self.reports.put, self.failures.put)

    def run(self, *requests: Request) -> dict[int, list[Progress]]:
        self.host.submit(requests)
        news: dict[int, list[Progress]] = {request.id: [] for request in requests}
        while not all(some and some[-1].finish_reason for some in news.values()):
            for progress in self.reports.get(timeout=10).progress:
                news[progress.request_id].append(progress)
        return news


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.host.close()


def request(id: int, n_input: int = 2, max_tokens: int = 4, first: int = 1) -> Request:
    return Request(id, [first] + [1] * (n_input - 1), SamplingParams(max_tokens=max_tokens))


def test_many_requests_run_to_their_end(rig: Rig) -> None:
    news = rig.run(*(request(i, n_input=i + 1) for i in range(20)))
    for i, some in news.items():
        assert [p.token for p in some] == list(range(i + 1, i + 5))
        assert some[-1].finish_reason is FinishReason.LENGTH
    assert rig.worker.threads == {"worker s0r0"}


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (request(1, first=100), "prompt holds a token id outside 0..99"),
        (request(1, first=-1), "prompt holds a token id outside 0..99"),
        (Request(1, [1], SamplingParams(), frozenset({100})), "stop id"),
        (Request(1, [1], SamplingParams(logit_bias={100: 1.0})), "logit_bias"),
        (request(1, n_input=40, max_tokens=11), "the context length holds 50"),
    ],
)
def test_a_request_that_the_model_cannot_run_is_refused_alone(rig: Rig, bad: Request, says: str) -> None:
    news = rig.run(bad, request(2))
    assert [(p.token, p.finish_reason) for p in news[1]] == [(None, FinishReason.ERROR)]
    assert says in (news[1][0].error or "")
    assert len(news[2]) == 4


def test_a_failure_ends_everybody_and_is_told_once(rig: Rig) -> None:
    news = rig.run(request(1, max_tokens=10), request(2, max_tokens=10), request(3, first=66))
    for some in news.values():
        assert some[-1].finish_reason is FinishReason.ERROR
        assert "secret" not in (some[-1].error or "")
    assert "RuntimeError" in rig.failures.get(timeout=5)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            rig.host.submit([request(4)])
        except EngineError:
            break
    else:
        pytest.fail("the host takes requests after it has failed")
    rig.host.close()
    assert rig.failures.empty()


def test_close_ends_everybody_as_cancelled(rig: Rig) -> None:
    rig.worker.gate.clear()
    rig.host.submit([request(1, max_tokens=40)])
    threading.Timer(0.05, rig.worker.gate.set).start()
    rig.host.close()
    last = [p for p in _drain(rig.reports.get_nowait, rig.reports.empty) if p.finish_reason]
    assert [p.finish_reason for p in last] == [FinishReason.CANCELLED]


def _drain(get: Callable[[], IterationReport], empty: Callable[[], bool]) -> list[Progress]:
    news: list[Progress] = []
    while not empty():
        news += get().progress
    return news


class MovingWorker(FakeWorker):
    """Whose iterations take as long as the test likes, and which moves as long as it does."""

    def __init__(self) -> None:
        super().__init__()
        self.moves = True
        self._n_looks = 0

    @property
    def progress(self) -> int:
        self._n_looks += self.moves
        return self._n_looks


def test_a_device_that_does_not_move_in_an_iteration_is_a_failure_and_is_not_waited_for() -> None:
    worker, events = MovingWorker(), SimpleQueue[EngineEvent]()
    engine = LocalEngine(worker, DeviceExecutor("worker s0r0"), device_timeout=0.2)
    worker.moves = False
    engine.start(events.put)
    time.sleep(0.6)
    assert events.empty(), "without work nothing has to move"
    worker.moves = True
    worker.gate.clear()
    engine.submit(batch(1))
    time.sleep(0.6)
    assert events.empty(), "it is slow, and moves"
    worker.moves = False
    failure = events.get(timeout=5)
    assert isinstance(failure, EngineFailure) and failure.message.endswith("its device has begun nothing for 0.2 s")
    engine.close()
    worker.gate.set()
    time.sleep(0.1)
    assert events.empty(), "what comes late is not delivered"
