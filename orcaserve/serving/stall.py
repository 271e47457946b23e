"""StallWatch: whether an engine that gives signs of life gets on with its work."""

from __future__ import annotations

import asyncio
from typing import Protocol

N_TICKS = 16  # looks within the time that makes a stall


class Worked(Protocol):
    """What is looked at; an EngineClient."""

    @property
    def n_open(self) -> int: ...
    @property
    def last_report(self) -> float: ...


class StallWatch:
    """Heartbeats say that a process lives, and a device that hangs is found by its worker. What is left is an engine
    whose loop itself stands still: it has requests, and no iteration ends.

    Looks are counted, not seconds: when this process itself was stopped a while, the engine is not to blame. And one
    that has just been given its only request has had no time yet.
    """

    def __init__(self, engine: Worked, timeout: float) -> None:
        self._engine = engine
        self._timeout = timeout
        self.stalled = False

    @property
    def reason(self) -> str:
        return f"it has ended no iteration for {self._timeout:g} s though it has work"

    async def wait(self) -> None:
        """Returns when it is stalled."""
        n_same, last = 0, 0.0
        while n_same < N_TICKS:
            await asyncio.sleep(self._timeout / N_TICKS)
            report = self._engine.last_report
            n_same = n_same + 1 if self._engine.n_open and report == last else 0
            last = report
        self.stalled = True
