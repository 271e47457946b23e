"""SchedulingPolicy: what the scheduler asks of whoever chooses the next batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from orcaserve.core import Batch, Request, RequestState
from orcaserve.scheduler.request_pool import RequestPool
from orcaserve.scheduler.slot_ledger import SlotLedger


class Stop(Enum):
    """Why nobody else is in the batch."""

    NOBODY_WAITS = "none"  # all requests are in it, or in others that are in flight
    BATCH_FULL = "full"
    SLOTS_LACK = "slots"
    OTHER_CELL = "cell"  # those who wait need another computation
    BATCH_FIXED = "fixed"  # they wait for the end of the whole batch
    BOUND_REACHED = "tokens"  # the iteration has all the input tokens that it may, or that there is time for


@dataclass(slots=True)
class Selection:
    """The requests of the next batch; none if nobody can run now.

    stop, n_lacking: why the next one in the pool was not taken, and slots that it would have needed beside those free.
    preempted: requests whose slots were taken back; they start anew, from their output so far.
    """

    requests: list[Request]
    stop: Stop = Stop.NOBODY_WAITS
    n_lacking: int = 0
    preempted: Sequence[Request] = ()


class SchedulingPolicy(ABC):
    """Chooses requests for one iteration. It may keep state of its own, but changes no request and not the pool.

    holds_back: nobody is answered before `released` says so: news waits, and who ended goes on being computed.
    """

    holds_back: ClassVar[bool] = False

    @abstractmethod
    def reservation(self, request: Request) -> int:
        """Slots to set aside before the request's first batch."""

    def most(self, request: Request) -> int:
        """The most slots that it may ever hold. The scheduler refuses what could never be reserved."""
        return self.reservation(request)

    @abstractmethod
    def select(self, pool: RequestPool, ledger: SlotLedger, max_bs: int) -> Selection:
        """Requests of the next batch, at most max_bs, out of `pool.ready()`.

        Whoever is chosen while in state INITIATION has had `reservation(request)` slots reserved in the ledger by the
        time this returns, and everybody who is chosen room for the tokens of the iteration; those preempted have
        nothing any more; nobody else has gained any.
        """

    def piece(self, request: Request, n_left: int) -> int:
        """How many of the n_left input tokens of a chosen request's initiation this iteration is to have: 1 or more."""
        return n_left

    def added(self, request: Request) -> None:  # noqa: B027 - most have nothing to do
        """It is in the pool now, as the latest arrival."""

    def left(self, request: Request) -> None:  # noqa: B027
        """It is about to leave the pool, and to lose its slots if it has any."""

    def returned(self, batch: Batch, seconds: float) -> None:  # noqa: B027
        """The batch is back; the device took so long, or 0: nobody measured. Its requests are still as they were."""

    def prepare(self) -> None:  # noqa: B027
        """The next batches are under way: what would be done when somebody asks may be done now. No answer changes."""

    def seconds_to_begin(self, request: Request) -> float:
        """What the initiation of a request that waits would take, as far as the policy can tell; 0: it cannot."""
        return 0.0

    def turn(self, pool: RequestPool) -> Request | None:
        """Who is admitted next; None if nobody waits."""
        return next((request for request in pool if request.state is RequestState.INITIATION), None)

    def released(self) -> Sequence[Request]:
        """After a batch has returned, if news is held back: whose time has come. All of them have ended."""
        return ()

    @abstractmethod
    def check(self, pool: RequestPool) -> None:
        """Assert what this policy promises about the order in which the pool's requests advance."""
