"""OrcaMax: iteration-level FCFS with the reservation that vLLM's paper calls Orca (Max)."""

from __future__ import annotations

from orcaserve.core import Request
from orcaserve.scheduler.policies.even_batches import EvenBatches


class OrcaMax(EvenBatches):
    """Reserves for each request the longest that the model can run, whatever it asks for.

    Promise: iteration-level FCFS. longest: tokens of the longest request.
    """

    def __init__(self, n_workers: int, longest: int) -> None:
        super().__init__(n_workers)
        self._longest = longest

    def reservation(self, request: Request) -> int:
        return self._longest
