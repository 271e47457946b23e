"""The real engine process, scheduler and loop around a worker without a model: `python -m stand_in_engine ...`.

An iteration takes as many milliseconds as the environment variable STAND_IN says, and leaves the interpreter and the
cores to others meanwhile. Tokens are random.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

from orcaserve.config import EngineConfig
from orcaserve.core import Batch, EngineFacts, IterationReport, IterationResult
from orcaserve.engine.host import EngineHost
from orcaserve.engine.local import LocalEngine
from orcaserve.worker.executor import DeviceExecutor

VOCABULARY, CONTEXT, N_SLOTS = 49152, 8192, 2**20
TOKENS = [random.Random(0).randint(100, 40000) for _ in range(4096)]


class StandIn:
    """Does nothing for `seconds` an iteration. idle: how long it waited for the next batch after each, in seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ended = 0.0
        self._n_tokens = 0
        self.idle: list[float] = []

    def run(self, batch: Batch) -> IterationResult:
        started = time.perf_counter()
        self.idle.append(started - self._ended)
        if self._seconds:
            time.sleep(self._seconds)
        first = self._n_tokens % len(TOKENS)
        n = len(batch.entries)
        self._n_tokens += n
        tokens = (TOKENS[first:] + TOKENS)[:n]
        self._ended = time.perf_counter()
        return IterationResult(batch.iteration, tokens, {}, self._ended - started)

    def prepare(self) -> None: ...


def install() -> list[StandIn]:
    """Have EngineHost.load take stand-ins, in this process; returns a list of those it has taken."""
    taken: list[StandIn] = []

    def load(
        config: EngineConfig,
        report: Callable[[IterationReport], None],
        on_failure: Callable[[str], None] = lambda message: None,
    ) -> EngineHost:
        taken.append(StandIn(float(os.environ["STAND_IN"]) / 1e3))
        engine = LocalEngine(taken[-1], DeviceExecutor("worker s0r0"))
        facts = EngineFacts(config.model.name, VOCABULARY, CONTEXT, N_SLOTS, config.scheduler.max_bs, 1)
        return EngineHost(engine, facts, config.kv.page_size, report, on_failure)

    EngineHost.load = load  # type: ignore[method-assign, assignment]
    return taken


if __name__ == "__main__":
    from orcaserve.engine.process import main

    install()
    main()
