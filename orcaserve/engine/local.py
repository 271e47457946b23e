"""LocalEngine: one worker in this process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from orcaserve.core import AdapterAnswer, AdapterSource, Batch, EngineEvent, EngineFailure, IterationResult
from orcaserve.core.beats import Beat, Standstills, period
from orcaserve.core.spans import COMPUTE, IterationSpans, Span
from orcaserve.engine.timeline import Timeline
from orcaserve.worker.adapters import load_beside
from orcaserve.worker.executor import DeviceExecutor

WORKER = "s0r0"  # its name
_log = logging.getLogger(__name__)


class RunsBatches(Protocol):
    """What LocalEngine needs of a worker."""

    def run(self, batch: Batch) -> IterationResult: ...
    def prepare(self) -> None:
        """After a result was passed on: do what the next iteration need not wait for then."""

    def read_adapter(self, adapter: AdapterSource) -> Any:
        """For `add_adapter`; from any thread. Raises ModelError."""

    def add_adapter(self, number: int, made: Any) -> None: ...
    def remove_adapter(self, number: int) -> None: ...
    @property
    def progress(self) -> int:
        """Changes whenever a piece of an iteration is begun; for any thread."""


class LocalEngine:
    """The Engine protocol over one worker, whose batches run on its device executor's thread.

    The engine owns the executor from here on: close() ends it. An iteration that raises is the last one: it is logged
    and delivered as a failure, because what it left in the K/V region is unknown.

    timeline: where iterations are recorded; written when the engine ends.
    device_timeout: seconds without any progress in the midst of an iteration after which the device is taken for hung,
    which is delivered as a failure too; None: nobody looks.
    """

    n_workers = 1

    def __init__(
        self,
        worker: RunsBatches,
        executor: DeviceExecutor,
        timeline: Path | None = None,
        device_timeout: float | None = None,
    ) -> None:
        self._timeline = Timeline([WORKER], timeline)
        self._worker = worker
        self._executor = executor
        self._deliver: Callable[[EngineEvent], None] | None = None
        self._over = False  # failed or closed: nothing more is run or delivered
        self._n_submitted = self._n_run = 0
        self._device_timeout = device_timeout
        self._ended = threading.Event()
        self._hangs = False

    def start(self, deliver: Callable[[EngineEvent], None]) -> None:
        self._deliver = deliver
        if self._device_timeout is not None:
            threading.Thread(target=self._watch, args=(self._device_timeout,), name="device watch", daemon=True).start()

    def submit(self, batch: Batch) -> None:
        self._n_submitted += 1
        self._executor.post(lambda: self._run(batch))
        time.sleep(0)  # gives up the interpreter, which the executor wants now; what the caller does next can wait

    def load_adapter(self, adapter: AdapterSource, answer: AdapterAnswer) -> None:
        load = partial(load_beside, self._worker, self._executor, adapter, answer)
        threading.Thread(target=load, name="adapter", daemon=True).start()

    def unload_adapter(self, number: int, answer: AdapterAnswer) -> None:
        def unload() -> None:
            self._worker.remove_adapter(number)
            answer(None)

        self._executor.post(unload)

    def close(self) -> None:
        self._ended.set()
        if not self._hangs:  # else its thread would be waited for, and may never come back
            self._executor.close()
        self._over = True
        self._timeline.write()

    def kill(self, for_good: bool = False) -> None:
        self._ended.set()
        self._timeline.write()  # all else ends with this process

    def _run(self, batch: Batch) -> None:
        assert self._deliver is not None, "started before it is used"
        if self._over:
            return
        started = time.monotonic_ns()
        try:
            self._pass_on(batch, self._worker.run(batch), started)
            self._worker.prepare()
        except Exception as error:
            _log.exception("iteration %d failed", batch.iteration)
            self._over = True
            self._deliver(EngineFailure(f"iteration {batch.iteration} failed: {type(error).__name__}"))

    def _pass_on(self, batch: Batch, result: IterationResult, started: int) -> None:
        assert self._deliver is not None
        if self._timeline.wanted:
            span = Span(COMPUTE, started, time.monotonic_ns())
            self._timeline.add(WORKER, IterationSpans(batch.iteration, len(batch.entries), batch.n_tokens, [span]))
        self._n_run += 1
        if not self._hangs:
            self._deliver(result)

    def _watch(self, timeout: float) -> None:
        """Until the engine ends, or its device hangs."""
        assert self._deliver is not None
        standstills = Standstills.within((WORKER,), timeout)
        while not self._ended.wait(period(timeout)):
            beat = Beat(self._n_run < self._n_submitted, self._n_run, self._worker.progress)
            if words := standstills.take(WORKER, beat):
                self._over = self._hangs = True
                self._deliver(EngineFailure(f"worker {WORKER} {words} for {timeout:g} s"))
                return
