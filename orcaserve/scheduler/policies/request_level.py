"""RequestLevel: what a serving layer does that hands whole batches to the engine (Triton over FasterTransformer)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from orcaserve.core import Request, RequestState
from orcaserve.scheduler.policies.base import SchedulingPolicy, Selection, Stop
from orcaserve.scheduler.request_pool import RequestPool
from orcaserve.scheduler.slot_ledger import SlotLedger


class RequestLevel(SchedulingPolicy):
    """The batch is fixed until all its requests have ended; then they are all answered, and the next one is made.

    Promise: batches are made in order of arrival; whoever is in one runs in each of its iterations, ended or not; no
    news of it is told before all have ended. K/V is reserved for the longest request that the model can run.

    Each iteration of the batch goes to the workers in microbatches, one after the other, of microbatch_size requests
    (None: all in one); the next iteration begins when all have returned.

    shortest_first, FasterTransformer's rule: the first iteration is as long as the batch's shortest input; what longer
    inputs have beside that comes one token an iteration. So all requests are at the same token index, and nothing has
    to be padded. Without it every input is fed at once.

    longest: tokens of the longest request. One that has ended is computed on until it has so many.
    """

    holds_back = True

    def __init__(self, longest: int, microbatch_size: int | None = None, shortest_first: bool = True) -> None:
        self._longest = longest
        self._microbatch_size = microbatch_size
        self._shortest_first = shortest_first
        self._batch: list[Request] = []
        self._n_first = 0  # input tokens of each request in the batch's first iteration
        self._microbatches: deque[list[Request]] = deque()  # of the iteration under way, not yet handed out

    def reservation(self, request: Request) -> int:
        return self._longest

    def select(self, pool: RequestPool, ledger: SlotLedger, max_bs: int) -> Selection:
        self._forget_finished()
        why = Stop.BATCH_FIXED
        if not self._batch:
            self._make_batch(pool, ledger, max_bs)
            why = Stop.BATCH_FULL if len(self._batch) == max_bs else Stop.SLOTS_LACK
        if not self._microbatches and not any(request.state is RequestState.RUNNING for request in self._batch):
            self._begin_iteration(ledger)
        requests = self._microbatches.popleft() if self._microbatches else []
        for request in requests:
            if request.state is RequestState.INITIATION:
                ledger.reserve(request, self._longest)
        if len(pool) == len(self._batch):
            why = Stop.NOBODY_WAITS
        n_lacking = 0
        if why is Stop.SLOTS_LACK:
            waiting = next(request for request in pool if request.state is RequestState.INITIATION)
            n_lacking = ledger.lacking(waiting, self._longest)
        return Selection(requests, why, n_lacking)

    def piece(self, request: Request, n_left: int) -> int:
        if not self._shortest_first:
            return n_left
        n_fed = request.n_input + len(request.output) - n_left
        return max(self._n_first - n_fed, 1)

    def released(self) -> Sequence[Request]:
        self._forget_finished()
        if self._microbatches or not all(map(_is_over, self._batch)):
            return ()
        batch, self._batch = self._batch, []
        return batch

    def check(self, pool: RequestPool) -> None:
        requests, live = list(pool), _live(self._batch)
        assert live == requests[: len(live)], "an earlier request waits for a batch that a later one is in"
        waiting = requests[len(live) :]
        assert not any(request.n_iterations or request.ending for request in waiting), "one outside the batch has run"

    def _forget_finished(self) -> None:
        """Those who left before their first iteration, and all after the loss of an engine."""
        if any(request.state is RequestState.FINISHED for request in self._batch):
            self._batch = _live(self._batch)
            self._microbatches = deque(filter(None, map(_live, self._microbatches)))

    def _make_batch(self, pool: RequestPool, ledger: SlotLedger, max_bs: int) -> None:
        free = ledger.n_slots - ledger.n_reserved
        self._batch = []
        for request in islice(pool, max_bs):
            free -= ledger.need(request, self._longest)
            if free < 0:
                break
            self._batch.append(request)
        self._n_first = min((request.n_input + len(request.output) for request in self._batch), default=0)

    def _begin_iteration(self, ledger: SlotLedger) -> None:
        """Cut the batch into microbatches."""
        rows = [r for r in self._batch if r.state is RequestState.INITIATION or ledger.used_by(r.id) < self._longest]
        size = self._microbatch_size or max(len(rows), 1)
        self._microbatches.extend(rows[at : at + size] for at in range(0, len(rows), size))


def _live(requests: Sequence[Request]) -> list[Request]:
    return [request for request in requests if request.state is not RequestState.FINISHED]


def _is_over(request: Request) -> bool:
    return request.ending is not None and request.state is not RequestState.RUNNING
