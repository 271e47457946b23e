"""OrcaPow2: iteration-level FCFS with the reservation that vLLM's paper calls Orca (Pow2)."""

from __future__ import annotations

from collections.abc import Callable

from orcaserve.core import Request
from orcaserve.scheduler.policies.even_batches import EvenBatches
from orcaserve.scheduler.policies.output_length import most_output


class OrcaPow2(EvenBatches):
    """Reserves for each request its input, and its output rounded up to a power of two: at most twice too much.

    Promise: iteration-level FCFS. longest: tokens of the longest request, which no reservation exceeds.
    n_output: how much a request generates; a server knows only the most that it may.
    """

    def __init__(self, n_workers: int, longest: int, n_output: Callable[[Request], int] = most_output) -> None:
        super().__init__(n_workers)
        self._longest = longest
        self._n_output = n_output

    def reservation(self, request: Request) -> int:
        n_output = self._n_output(request)
        rounded = 1 << (n_output - 1).bit_length() if n_output else 0
        return min(request.n_input + rounded, self._longest)
