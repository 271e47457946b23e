"""Pipeline: the workers of an engine in virtual time."""

from __future__ import annotations

from dataclasses import dataclass

from orcaserve.core import Batch
from orcaserve.simulation.cost import CostModel
from orcaserve.simulation.shape import shape_of


@dataclass(frozen=True, slots=True)
class Block:
    """Work of one worker on one batch, for pictures."""

    worker: int
    batch: Batch
    start: float
    end: float


class Pipeline:
    """Workers in a row. Each takes batches in order, one at a time, as soon as the worker before it has done its part.

    busy: seconds that each worker has worked. blocks: all work so far, if `record` was asked for.
    """

    def __init__(self, cost: CostModel, record: bool = False) -> None:
        self._cost = cost
        self._free = [0.0] * cost.n_workers  # when each worker has done all that it was given
        self.busy = [0.0] * cost.n_workers
        self.blocks: list[Block] | None = [] if record else None

    def submit(self, batch: Batch, now: float) -> float:
        """Give the first worker a batch at `now`; when it comes out of the last one. `now` never goes back."""
        free, busy = self._free, self.busy
        for worker, seconds in enumerate(self._cost.stage_seconds(shape_of(batch))):
            start = free[worker] if free[worker] > now else now
            now = free[worker] = start + seconds
            busy[worker] += seconds
            if self.blocks is not None:
                self.blocks.append(Block(worker, batch, start, now))
        return now
