"""LocalEngine: one worker in this process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from orcaserve.core import Batch, EngineEvent, EngineFailure, IterationResult
from orcaserve.core.spans import COMPUTE, IterationSpans, Span
from orcaserve.engine.timeline import Timeline
from orcaserve.worker.executor import DeviceExecutor

WORKER = "s0r0"  # its name
_log = logging.getLogger(__name__)


class RunsBatches(Protocol):
    """What LocalEngine needs of a worker."""

    def run(self, batch: Batch) -> IterationResult: ...


class LocalEngine:
    """The Engine protocol over one worker, whose batches run on its device executor's thread.

    The engine owns the executor from here on: close() ends it. An iteration that raises is the last one: it is logged
    and delivered as a failure, because what it left in the K/V region is unknown.

    timeline: where iterations are recorded; written when the engine ends.
    """

    n_workers = 1

    def __init__(self, worker: RunsBatches, executor: DeviceExecutor, timeline: Path | None = None) -> None:
        self._timeline = Timeline([WORKER], timeline)
        self._worker = worker
        self._executor = executor
        self._deliver: Callable[[EngineEvent], None] | None = None
        self._over = False  # failed or closed: nothing more is run or delivered

    def start(self, deliver: Callable[[EngineEvent], None]) -> None:
        self._deliver = deliver

    def submit(self, batch: Batch) -> None:
        self._executor.post(lambda: self._run(batch))
        time.sleep(0)  # gives up the interpreter, which the executor wants now; what the caller does next can wait

    def close(self) -> None:
        self._executor.close()
        self._over = True
        self._timeline.write()

    def kill(self, for_good: bool = False) -> None:
        self._timeline.write()  # all else ends with this process

    def _run(self, batch: Batch) -> None:
        assert self._deliver is not None, "started before it is used"
        if self._over:
            return
        started = time.monotonic_ns()
        try:
            result = self._worker.run(batch)
        except Exception as error:
            _log.exception("iteration %d failed", batch.iteration)
            self._over = True
            self._deliver(EngineFailure(f"iteration {batch.iteration} failed: {type(error).__name__}"))
            return
        if self._timeline.wanted:
            span = Span(COMPUTE, started, time.monotonic_ns())
            self._timeline.add(WORKER, IterationSpans(batch.iteration, len(batch.entries), batch.n_tokens, [span]))
        self._deliver(result)
