"""EvenBatches: the paper's Select, with batches of which every stage of a pipeline gets one."""

from __future__ import annotations

from orcaserve.core import RequestState
from orcaserve.scheduler.policies.base import Selection
from orcaserve.scheduler.policies.iteration_level import IterationLevelFCFS
from orcaserve.scheduler.request_pool import RequestPool
from orcaserve.scheduler.slot_ledger import SlotLedger


class EvenBatches(IterationLevelFCFS):
    """As IterationLevelFCFS, with at most its even share of the requests that can run in any one batch.

    Algorithm 1 fills the first batch up to max_bs. With fewer requests than n_workers * max_bs, all of them may be in
    one batch, and all stages but one have nothing to do. With one worker this is the paper's Select itself.

    The promise holds whatever the sizes of batches: they return in order, and each is taken from the front of those
    who wait, so whenever a request is chosen its elders have been chosen as often, or are chosen with it.
    """

    def __init__(self, n_workers: int) -> None:
        self._n_workers = n_workers

    def select(self, pool: RequestPool, ledger: SlotLedger, max_bs: int) -> Selection:
        return super().select(pool, ledger, self._share(pool, ledger, max_bs))

    def _share(self, pool: RequestPool, ledger: SlotLedger, max_bs: int) -> int:
        """Most requests of the next batch."""
        if self._n_workers == 1:
            return max_bs
        n = len(ledger) + self._n_admissible(pool, ledger, self._n_workers * max_bs - len(ledger))
        return min(max_bs, max(-(-n // self._n_workers), 1))

    def _n_admissible(self, pool: RequestPool, ledger: SlotLedger, most: int) -> int:
        """Requests, at most so many, that have nothing reserved yet and could have it now, in order of arrival."""
        n, free = 0, ledger.n_slots - ledger.n_reserved
        for request in pool.ready():
            if request.state is RequestState.INITIATION:
                reservation = self.reservation(request)
                n_slots = ledger.need(request, reservation)
                free -= n_slots if n_slots <= free else ledger.growth(request, reservation)
                if n >= most or free < 0:
                    break
                n += 1
        return n
