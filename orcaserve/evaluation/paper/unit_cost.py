"""UnitCost: every iteration takes every worker one unit of time, as in the paper's drawings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orcaserve.simulation.shape import Shape


@dataclass(frozen=True, slots=True)
class UnitCost:
    n_workers: int = 1

    def stage_seconds(self, shape: Shape) -> Sequence[float]:
        return (1.0,) * self.n_workers
