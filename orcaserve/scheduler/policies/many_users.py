"""ManyUsers: the paper's Select for many users: bounded iterations, an order of its own, and work in the background."""

from __future__ import annotations

from orcaserve.core import Batch, Request, RequestState
from orcaserve.scheduler.iteration_bound import IterationBound
from orcaserve.scheduler.iteration_cost import IterationCost, Shape
from orcaserve.scheduler.order import Order
from orcaserve.scheduler.policies.base import Selection, Stop
from orcaserve.scheduler.policies.even_batches import EvenBatches
from orcaserve.scheduler.request_pool import RequestPool
from orcaserve.scheduler.slot_ledger import SlotLedger

_INITIATION, _INCREMENT = RequestState.INITIATION, RequestState.INCREMENT
_RUNNING = RequestState.RUNNING


class Lane:
    """Requests of one kind: who waits, in whose order, and who has slots, in order of admission."""

    def __init__(self, order: Order) -> None:
        self.waiting = order
        self.admitted: dict[int, Request] = {}

    def ready(self) -> list[Request]:
        """Of the admitted (no more than the batches in flight have places), those who are in none of these."""
        return [request for request in self.admitted.values() if request.state is not _RUNNING]

    def admit(self, request: Request) -> None:
        self.waiting.admit(request)
        self.admitted[request.id] = request

    def preempt(self, request: Request) -> None:
        del self.admitted[request.id]
        self.waiting.put_back(request)

    def leave(self, request: Request) -> None:
        self.admitted.pop(request.id, None)
        self.waiting.leave(request)


class ManyUsers(EvenBatches):
    """As EvenBatches, whose schedule it is to the byte when there is no bound, everybody comes in order of arrival, and
    all requests have the usual terms. Beside that:

    Who holds K/V is chosen first, in order of admission; then those who wait, in the order of `foreground`, never past
    the one whose turn it is.

    bound: an iteration's input tokens. Increments are never left out for it; initiations are fed in pieces of what it
    leaves. Whoever was admitted earlier and is not in flight is fed all it lacks before anybody later is fed. With one
    batch in flight, and in order of arrival, that is: who came earlier has been fed wholly before a later one is fed
    anything, and has been given at least as many tokens.

    Requests of the background are chosen with what the others leave, and admitted when none of these waits. For a
    place in a batch, or for tokens of a bounded iteration, they pause. For slots the latest admitted lose theirs and
    start anew later, if that makes room. So what is chosen of the others is what would be chosen if there were no
    background, but for what is in flight: they wait for at most the batches that were handed out before they came.
    """

    def __init__(
        self, n_workers: int, foreground: Order, background: Order, bound: IterationBound | None, cost: IterationCost
    ) -> None:
        """bound: None: none. cost: learns here what iterations take, if somebody wants to know."""
        super().__init__(n_workers)
        self._front, self._back = Lane(foreground), Lane(background)
        self._bound, self._cost = bound, cost
        self._learns = bound is not None and bound.is_timed
        self._feeds = False  # somebody chosen last is fed a piece, or cannot be fed
        self._makes_room = False  # the background is to give way as soon as those of it who are in flight return
        self._pieces: dict[int, int] = {}  # of the requests chosen last: input tokens of an initiation
        self._settled: Selection | None = None  # the last one, if the next is the same unless somebody comes or leaves

    def added(self, request: Request) -> None:
        self._settled = None
        self._lane(request).waiting.add(request)
        if request.terms.first_token is not None or request.terms.timeout is not None:
            self._learns = True

    def left(self, request: Request) -> None:
        self._settled = None
        self._lane(request).leave(request)

    def returned(self, batch: Batch, seconds: float) -> None:
        if self._learns:
            self._cost.returned(batch.entries, seconds)

    def prepare(self) -> None:
        self._cost.catch_up()

    def seconds_to_begin(self, request: Request) -> float:
        """Its initiation with nobody beside it, in one iteration: it will not take less."""
        shape = Shape()
        shape.add(request.n_input + len(request.output), 0)
        return self._cost.predict(shape) * self._n_workers / 1e6

    def select(self, pool: RequestPool, ledger: SlotLedger, max_bs: int) -> Selection:
        settled = self._settled
        if settled is not None:
            selection = Selection(settled.requests, settled.stop)
        else:
            selection = self._select(pool, ledger, max_bs)
            self._settled = selection if self._settles(selection) else None
        if self._learns and selection.requests:
            self._cost.chosen()
        return selection

    def _select(self, pool: RequestPool, ledger: SlotLedger, max_bs: int) -> Selection:
        max_bs = self._share(pool, ledger, max_bs)
        selection = Selection([])
        self._pieces.clear()
        self._feeds = self._makes_room = False
        self._go_on(ledger, max_bs, selection)
        self._begin(self._front, ledger, max_bs, selection)
        if self._back.admitted and not self._makes_room:
            self._fill_up(ledger, max_bs, selection)
        if selection.stop is Stop.NOBODY_WAITS and not selection.preempted:
            self._begin(self._back, ledger, max_bs, selection)
        return selection

    def _settles(self, selection: Selection) -> bool:
        """Whether the same will be chosen again and again until somebody comes or leaves: most iterations are such.
        With one batch in flight, all increments by then, in which nobody can join; the background pauses by the tokens
        of the others."""
        return (
            self._n_workers == 1
            and (selection.stop is Stop.NOBODY_WAITS or selection.stop is Stop.BATCH_FULL)
            and not selection.preempted
            and not self._feeds
            and not self._back.admitted
            and bool(selection.requests)
        )

    def piece(self, request: Request, n_left: int) -> int:
        return self._pieces.get(request.id, n_left)

    def turn(self, pool: RequestPool) -> Request | None:
        return self._front.waiting.first() or self._back.waiting.first()

    def check(self, pool: RequestPool) -> None:
        """Everybody is where it belongs. (What is promised of their order is not to be seen in the pool.)"""
        for lane in (self._front, self._back):
            waiting = {request.id for request in lane.waiting}
            assert len(waiting) == len(lane.waiting) and not waiting & lane.admitted.keys()
        for request in pool:
            lane = self._lane(request)
            assert (request.id in lane.admitted) == (request.state is not _INITIATION)
        assert len(pool) == sum(len(lane.waiting) + len(lane.admitted) for lane in (self._front, self._back))

    def _lane(self, request: Request) -> Lane:
        return self._back if request.terms.background else self._front

    def _go_on(self, ledger: SlotLedger, max_bs: int, selection: Selection) -> None:
        """Those in front who have been admitted: all increments, and of initiations what the bound leaves."""
        chosen = self._front.ready()
        if len(chosen) > max_bs:
            del chosen[max_bs:]
        if self._bound is None:
            selection.requests = chosen
            return
        increments = [request for request in chosen if request.state is _INCREMENT]
        self._bound.open(len(increments), lambda: sum(ledger.used_by_each(increments)))
        if len(increments) < len(chosen):
            chosen = [each for each in chosen if each.state is _INCREMENT or self._feed(each, ledger)]
        selection.requests = chosen

    def _begin(self, lane: Lane, ledger: SlotLedger, max_bs: int, selection: Selection) -> None:
        """Those who wait, as far as there are places, tokens and slots."""
        batch, bound = selection.requests, self._bound
        while lane.waiting:
            if len(batch) >= max_bs:
                selection.stop = Stop.BATCH_FULL
                return
            if bound is not None and bound.reached:
                selection.stop = Stop.BOUND_REACHED
                return
            request = lane.waiting.first()
            assert request is not None
            n = self.reservation(request)
            if not ledger.fits(request, n) and not (lane is self._front and self._give_way(request, ledger, selection)):
                selection.stop, selection.n_lacking = Stop.SLOTS_LACK, ledger.lacking(request, n)
                return
            ledger.reserve(request, n)
            lane.admit(request)
            self._feed(request, ledger)
            batch.append(request)

    def _fill_up(self, ledger: SlotLedger, max_bs: int, selection: Selection) -> None:
        """Those in the background who have been admitted, with what is left. If they are alone, as if in front."""
        batch, bound = selection.requests, self._bound
        alone = not batch
        chosen = self._back.ready()[: max(max_bs - len(batch), 0)]
        if bound is None:
            batch += chosen
            return
        increments = [request for request in chosen if request.state is _INCREMENT]
        if alone:
            bound.open(len(increments), lambda: sum(ledger.used_by_each(increments)))
        batch += [
            each
            for each in chosen
            if (self._add_increment(each, ledger, alone) if each.state is _INCREMENT else self._feed(each, ledger))
        ]

    def _add_increment(self, request: Request, ledger: SlotLedger, counted: bool) -> bool:
        assert self._bound is not None
        return counted or (not self._bound.reached and self._bound.grant(1, ledger.used_by(request.id)) == 1)

    def _feed(self, request: Request, ledger: SlotLedger) -> bool:
        """Grant its initiation some tokens, in this iteration; False if none are left."""
        if self._bound is None:
            return True
        if self._bound.reached:
            self._feeds = True
            return False
        position = ledger.used_by(request.id)
        n_left = request.n_input + len(request.output) - position
        n = self._bound.grant(min(n_left, ledger.room(request.id)), position)
        self._pieces[request.id] = n
        self._feeds = self._feeds or n < n_left
        return n > 0

    def _give_way(self, request: Request, ledger: SlotLedger, selection: Selection) -> bool:
        """Take slots from the background, the latest admitted first, if they make room for the request. False if they
        do not, or not yet: some are in flight. Then nobody loses any, and the rest waits for those to return."""
        n, behind = self.reservation(request), self._back.admitted
        if not behind or ledger.lacking_without(request, n, behind):
            return False
        ready = {each.id: each for each in self._back.ready()}
        if len(ready) < len(behind) and ledger.lacking_without(request, n, ready):
            self._makes_room = True
            return False
        taken = list(selection.preempted)
        for latest in reversed(ready.values()):
            ledger.release(latest.id)
            self._back.preempt(latest)
            taken.append(latest)
            if ledger.fits(request, n):
                break
        selection.preempted = taken
        return True

    def _held_behind(self, ledger: SlotLedger) -> int:
        """Slots that nobody but the background holds."""
        return ledger.held_alone(self._back.admitted) if self._back.admitted else 0

    def _n_admissible(self, pool: RequestPool, ledger: SlotLedger, most: int) -> int:
        """Those in front count as if the background held nothing; it counts if they all do."""
        n, held = 0, self._held_behind(ledger)
        free = ledger.n_slots - ledger.n_reserved + held
        for lane, taken in ((self._front, 0), (self._back, held)):
            free -= taken
            for request in lane.waiting:
                reservation = self.reservation(request)
                n_slots = ledger.need(request, reservation)
                free -= n_slots if n_slots <= free else ledger.growth(request, reservation)
                if n >= most or free < 0:
                    return n
                n += 1
        return n
