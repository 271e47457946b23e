"""IterationLevelFCFS: the paper's Select."""

from __future__ import annotations

from itertools import pairwise

from orcaserve.core import Request, RequestState
from orcaserve.scheduler.policies.base import SchedulingPolicy, Selection, Stop
from orcaserve.scheduler.request_pool import RequestPool
from orcaserve.scheduler.slot_ledger import SlotLedger


class IterationLevelFCFS(SchedulingPolicy):
    """First come, first served, one iteration at a time (Orca, Algorithm 1).

    Promise: if x arrived before y, x has run at least as many iterations as y. Memory is reserved for the whole of a
    request before its first batch, so an admitted request can always go on, and none is ever preempted.
    """

    def reservation(self, request: Request) -> int:
        """The paper's max_tokens: input tokens + the most tokens it may generate."""
        return request.max_tokens

    def select(self, pool: RequestPool, ledger: SlotLedger, max_bs: int) -> Selection:
        batch: list[Request] = []
        initiation = RequestState.INITIATION
        for request in pool.ready():
            if len(batch) == max_bs:
                return Selection(batch, Stop.BATCH_FULL)
            if request.state is initiation:
                n = self.reservation(request)
                if not ledger.fits(request, n):  # never skip: a smaller, later request would overtake this one
                    return Selection(batch, Stop.SLOTS_LACK, ledger.lacking(request, n))
                ledger.reserve(request, n)
            batch.append(request)
        return Selection(batch)

    def check(self, pool: RequestPool) -> None:
        for earlier, later in pairwise(pool):
            n_earlier, n_later = (each.n_iterations + each.n_pieces for each in (earlier, later))
            assert n_earlier >= n_later, "a later request has run more iterations"
