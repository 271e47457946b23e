"""OrcaOracle: iteration-level FCFS with the reservation that vLLM's paper calls Orca (Oracle)."""

from __future__ import annotations

from collections.abc import Callable

from orcaserve.core import Request
from orcaserve.scheduler.policies.even_batches import EvenBatches
from orcaserve.scheduler.policies.output_length import most_output


class OrcaOracle(EvenBatches):
    """Reserves for each request exactly what it will fill.

    Promise: iteration-level FCFS. n_output: how much a request generates. Who replays a workload knows; a server knows
    only of requests that cannot end early, for which it is max_tokens, and takes max_tokens for the others too.
    """

    def __init__(self, n_workers: int, n_output: Callable[[Request], int] = most_output) -> None:
        super().__init__(n_workers)
        self._n_output = n_output

    def reservation(self, request: Request) -> int:
        return request.n_input + self._n_output(request)
