"""Cellular: BatchMaker's rule, by which only equal computations share a batch."""

from __future__ import annotations

from orcaserve.core import Request, RequestState
from orcaserve.scheduler.policies.base import SchedulingPolicy, Selection, Stop
from orcaserve.scheduler.request_pool import RequestPool
from orcaserve.scheduler.slot_ledger import SlotLedger

_Cell = tuple[bool, int]


class Cellular(SchedulingPolicy):
    """A batch of requests with the same cell: initiations of one length, or increments at one token index.

    Promise: the cell is that of the earliest request that can run, and all who need it and are ready are in the batch,
    in order of arrival, up to max_bs. Nobody is admitted while an earlier request lacks slots, so none waits for ever.
    Memory is reserved as by iteration-level FCFS.
    """

    def reservation(self, request: Request) -> int:
        return request.max_tokens

    def select(self, pool: RequestPool, ledger: SlotLedger, max_bs: int) -> Selection:
        batch: list[Request] = []
        stop, n_lacking = Stop.NOBODY_WAITS, 0
        chosen: _Cell | None = None
        for request in pool.ready():
            new, cell = request.state is RequestState.INITIATION, _cell(request, ledger)
            if len(batch) == max_bs:
                return Selection(batch, Stop.BATCH_FULL)
            if new and stop is Stop.SLOTS_LACK:
                continue
            if chosen not in (None, cell):
                stop = Stop.OTHER_CELL if stop is Stop.NOBODY_WAITS else stop
                continue
            if new:
                n = self.reservation(request)
                if not ledger.fits(request, n):
                    stop, n_lacking = Stop.SLOTS_LACK, ledger.lacking(request, n)
                    continue
                ledger.reserve(request, n)
            chosen = cell
            batch.append(request)
        return Selection(batch, stop, n_lacking)

    def check(self, pool: RequestPool) -> None:
        """Which cells ran is not to be seen in the pool."""


def _cell(request: Request, ledger: SlotLedger) -> _Cell:
    if request.state is RequestState.INCREMENT:
        return False, ledger.used_by(request.id)
    n_fed = ledger.used_by(request.id) if request.state is RequestState.FEEDING else 0
    return True, request.n_input + len(request.output) - n_fed
