"""A request maker and an engine without a model, for the tests of the scheduler."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

import pytest

from orcaserve.core import Batch, EngineEvent, EngineFailure, IterationResult, Request, SamplingParams


class NewRequest(Protocol):
    def __call__(
        self, id: int, n_input: int = 2, max_tokens: int = 4, min_tokens: int = 0, stop: int | None = None
    ) -> Request: ...


def _new_request(
    id: int, n_input: int = 2, max_tokens: int = 4, min_tokens: int = 0, stop: int | None = None
) -> Request:
    params = SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens)
    return Request(id, list(range(n_input)), params, frozenset() if stop is None else frozenset({stop}))


@pytest.fixture
def new_request() -> NewRequest:
    return _new_request


class FakeEngine:
    """Runs batches on a thread of its own, in order. A request's token is the token index at which it was made.

    gated: each batch waits for `step`. fail_at: the iteration instead of whose result a failure is delivered.
    batches: all that were submitted. in_flight_peak: most batches that were in flight at once.
    """

    def __init__(self, n_workers: int = 1, gated: bool = False, fail_at: int | None = None) -> None:
        self.n_workers = n_workers
        self.batches: list[Batch] = []
        self.in_flight_peak = 0
        self.closed = False
        self._fail_at = fail_at
        self._gate = threading.Semaphore(0) if gated else None
        self._queue: SimpleQueue[Batch | None] = SimpleQueue()
        self._submitted = threading.Semaphore(0)
        self._n_returned = 0

    def start(self, deliver: Callable[[EngineEvent], None]) -> None:
        self._thread = threading.Thread(target=self._serve, args=(deliver,), daemon=True)
        self._thread.start()

    def submit(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.in_flight_peak = max(self.in_flight_peak, len(self.batches) - self._n_returned)
        self._queue.put(batch)
        self._submitted.release()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._queue.put(None)
            if self._gate is not None:
                self._gate.release(1000)
            self._thread.join(10)
            assert not self._thread.is_alive()

    def step(self) -> None:
        """Let one batch through."""
        assert self._gate is not None
        self._gate.release()

    def wait_submitted(self, n: int = 1) -> None:
        """Wait for n more batches to have been submitted."""
        for _ in range(n):
            assert self._submitted.acquire(timeout=10)

    def _serve(self, deliver: Callable[[EngineEvent], None]) -> None:
        while (batch := self._queue.get()) is not None:
            if self._gate is not None:
                self._gate.acquire()
            if self.closed:
                return
            self._n_returned += 1
            if batch.iteration == self._fail_at:
                deliver(EngineFailure("a secret of the log"))
                return
            tokens = [entry.position + len(entry.tokens) for entry in batch.entries]
            deliver(IterationResult(batch.iteration, tokens))


@pytest.fixture
def fake_engine() -> type[FakeEngine]:
    return FakeEngine
