"""CostModel: how long the workers of an engine take for an iteration of a given shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from orcaserve.simulation.shape import Shape


class CostModel(Protocol):
    """An engine by its times alone."""

    @property
    def n_workers(self) -> int:
        """Stages of the pipeline = most batches in flight."""

    def stage_seconds(self, shape: Shape) -> Sequence[float]:
        """Seconds that each worker is busy with the iteration, first stage first; n_workers of them, all above 0."""
