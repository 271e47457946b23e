"""Overcommit: iteration-level FCFS without reservation for output, and preemption when memory runs out (vLLM)."""

from __future__ import annotations

from orcaserve.core import Request, RequestState
from orcaserve.scheduler.policies.base import Selection, Stop
from orcaserve.scheduler.policies.even_batches import EvenBatches
from orcaserve.scheduler.request_pool import RequestPool
from orcaserve.scheduler.slot_ledger import SlotLedger


class Overcommit(EvenBatches):
    """Admits a request when its input fits; it gets a further page when it needs one. If there is none, the latest that
    was admitted loses all it has, and starts anew, from its input and its output so far, when there is room again.

    Promise: if x arrived before y, x has been given at least as many tokens as y, and is never preempted for y's sake.
    So whatever the memory, the earliest request advances in every iteration it can be in. Nobody is admitted in an
    iteration that preempts.
    """

    def reservation(self, request: Request) -> int:
        """The tokens of its (next) initiation."""
        return request.n_input + len(request.output)

    def most(self, request: Request) -> int:
        return request.max_tokens

    def select(self, pool: RequestPool, ledger: SlotLedger, max_bs: int) -> Selection:
        max_bs = self._share(pool, ledger, max_bs)
        batch: list[Request] = []
        preempted: list[Request] = []
        for request in pool.ready():
            if preempted and request is preempted[-1]:  # and nobody after it has anything
                return Selection(batch, Stop.SLOTS_LACK, 0, preempted)
            if len(batch) == max_bs:
                return Selection(batch, Stop.BATCH_FULL, 0, preempted)
            if request.state is RequestState.INITIATION:
                n = self.reservation(request)
                if not ledger.fits(request, n):
                    return Selection(batch, Stop.SLOTS_LACK, ledger.lacking(request, n), preempted)
                ledger.reserve(request, n)
            elif not self._make_room(request, pool, ledger, preempted):
                return Selection(batch, Stop.SLOTS_LACK, ledger.page_size, preempted)
            batch.append(request)
        return Selection(batch, Stop.NOBODY_WAITS, 0, preempted)

    def _make_room(self, request: Request, pool: RequestPool, ledger: SlotLedger, preempted: list[Request]) -> bool:
        """A slot for the request's next token, from the latest if need be. False: it lost its own, or must wait."""
        while not ledger.has_room(request.id):
            if ledger.can_grow(1):
                ledger.grow(request.id, 1)
                break
            latest = pool[ledger.latest()]
            if latest.state is RequestState.RUNNING:
                return False
            ledger.release(latest.id)
            preempted.append(latest)
            if latest is request:
                return False
        return True
