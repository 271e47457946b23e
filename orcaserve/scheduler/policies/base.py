"""SchedulingPolicy: what the scheduler asks of whoever chooses the next batch."""

from __future__ import annotations

from typing import Protocol

from orcaserve.core import Request
from orcaserve.scheduler.request_pool import RequestPool
from orcaserve.scheduler.slot_ledger import SlotLedger


class SchedulingPolicy(Protocol):
    """Chooses requests for one iteration. It may keep state of its own, but changes no request and not the pool."""

    def reservation(self, request: Request) -> int:
        """Slots to set aside before the request's first batch. The scheduler refuses what could never be reserved."""

    def select(self, pool: RequestPool, ledger: SlotLedger, max_bs: int) -> list[Request]:
        """Requests of the next batch, at most max_bs, out of `pool.ready()`; empty if none can run now.

        Whoever is chosen while in state INITIATION has had `reservation(request)` slots reserved in the ledger by the
        time this returns, and nobody else has gained any.
        """

    def check(self, pool: RequestPool) -> None:
        """Assert what this policy promises about the order in which the pool's requests advance."""
