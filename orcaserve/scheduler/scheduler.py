"""Scheduler: decides, each iteration anew, which requests run. No I/O, no clock, no threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from orcaserve.core import (
    Batch,
    BatchEntry,
    Began,
    CannotFit,
    EngineError,
    EngineStatus,
    FinishReason,
    Increment,
    IterationResult,
    Kept,
    LiveRequests,
    Phase,
    Progress,
    Request,
    RequestState,
    Scoring,
)
from orcaserve.core.errors import TIMED_OUT, TOO_LATE
from orcaserve.scheduler.deadlines import Deadlines
from orcaserve.scheduler.describe import describe_live
from orcaserve.scheduler.kept_logprobs import KeptLogprobs, describe
from orcaserve.scheduler.policies import IterationLevelFCFS, SchedulingPolicy, Selection
from orcaserve.scheduler.prefix_cache import PrefixCache
from orcaserve.scheduler.recorder import Standing, increments_first
from orcaserve.scheduler.request_pool import RequestPool
from orcaserve.scheduler.slot_ledger import SlotLedger
from orcaserve.scheduler.source_ledger import SourceLedger
from orcaserve.scheduler.windowed_ledger import WindowedLedger

# Looking a member up in its class takes Python 3.11 as long as a call, and this is done for every request of a batch.
_INITIATION, _INCREMENT = RequestState.INITIATION, RequestState.INCREMENT
_FEEDING, _RUNNING = RequestState.FEEDING, RequestState.RUNNING

_Doom = tuple[FinishReason, str | None]  # how a request ends when its batch is back, whatever its token; error: why


class Scheduler:
    """The request pool, the slot ledger, and the batches in flight (Orca, Algorithm 1).

                  next_batch                 complete
      INITIATION ------------> RUNNING ---------------------> FINISHED
          ^                      ^  | complete                   ^
          |           next_batch |  v                            | cancel (INITIATION too)
          +-------------------- INCREMENT -----------------------+
            preempted           (FEEDING)

    FEEDING: as INCREMENT, but the policy has fed a part of the initiation's input only. A policy may hold back all news
    until a whole batch has ended: then who ended stays where it was, with its `ending` set, until it is released.

    n_slots: size of the K/V region in tokens; max_bs: most requests of a batch; n_workers: most batches in flight;
    page_size: slots that the K/V manager hands out together, to which reservations are rounded up.
    prefixes: what requests may share; None: nothing. window: how many tokens back anybody looks, if the region has room
    for that; None: all. sources: the model has an encoder (see SourceLedger): the policy has to feed initiations whole.
    """

    def __init__(
        self,
        n_slots: int,
        max_bs: int,
        n_workers: int = 1,
        page_size: int = 1,
        policy: SchedulingPolicy | None = None,
        prefixes: PrefixCache | None = None,
        window: int | None = None,
        sources: bool = False,
    ) -> None:
        assert max_bs >= 1 and n_workers >= 1
        self.max_bs = max_bs
        self.n_workers = n_workers
        self._policy: SchedulingPolicy = policy or IterationLevelFCFS()
        self._pool = RequestPool()
        assert prefixes is None or not self._policy.holds_back, "who is held back has no tokens to share"
        assert not sources or (window is None and prefixes is None), "an encoder reads all of a text, and whole"
        self._ledger: SlotLedger
        if sources:
            self._ledger = SourceLedger(n_slots, page_size)
        elif window is None:
            self._ledger = SlotLedger(n_slots, page_size, prefixes)
        else:
            self._ledger = WindowedLedger(n_slots, page_size, window, prefixes)
        self._shared_page = 0 if prefixes is None else page_size
        self._kept: list[Kept] = []  # of the batch that is being made
        self._n_cached = 0
        # Oldest first, with the requests of its entries, and whether all of these are increments.
        self._in_flight: deque[tuple[Batch, list[Request], bool]] = deque()
        self._drops: list[int] = []  # ended since the last batch, K/V still at the workers
        self._n_initiations = 0  # entries that were made of some, ever
        self._n_batches = 0  # handed out since the start; batches are numbered from 1
        self._last_returned: Batch | None = None
        self._spent: Batch | None = None  # the one before it: there is time to free so many objects in `prepare`
        self._n_preempted = self._n_recomputed = self._n_late = 0
        self._n_waiting_tokens = 0  # input tokens of those who hold no slots
        self._deadlines = Deadlines(self._policy.seconds_to_begin)
        self._fed: set[int] = set()  # in flight, with a piece of their initiation that is not its last
        self._doomed: dict[int, _Doom] = {}  # in flight, by request id: cancelled, or past their timeout
        self._logprobs = KeptLogprobs()
        self._describes = False  # has anybody ever asked for log-probabilities
        self._beginnings: dict[int, Began] = {}  # of requests that have begun, and of whom there was no news yet
        self._untold: list[Request] = []  # preempted since the batch that was handed out last, for nobody who could run
        self.selection = Selection([])  # of the batch that was handed out last

    @property
    def n_scheduled(self) -> int:
        """Batches in flight."""
        return len(self._in_flight)

    @property
    def n_reserved(self) -> int:
        """Slots set aside."""
        return self._ledger.n_reserved

    @property
    def n_used(self) -> int:
        """Slots that hold a token."""
        return self._ledger.n_used

    def could_ever_fit(self, request: Request) -> bool:
        """Whether it could run if nobody else were there."""
        return self._ledger.could_ever_fit(request, self._policy.most(request))

    def add(self, request: Request, now: float) -> None:
        """Take a new request into the pool as the latest arrival. `now`: seconds, on any clock that does not go back.

        Raises CannotFit if it needs more slots than there are at all (it would block the pool for ever), and ValueError
        if its id is that of a live request.
        """
        assert request.state is RequestState.INITIATION and not request.cancelled
        if request.id in self._pool:
            raise ValueError(f"request {request.id} is already in the pool")
        if not self.could_ever_fit(request):
            raise CannotFit(
                "max_tokens",
                f"{request.n_input} input tokens + max_tokens {request.params.max_tokens} need "
                f"{self._policy.most(request)} K/V slots, but there are {self._ledger.n_slots}",
            )
        request.arrival = now
        self._pool.add(request)
        self._n_waiting_tokens += request.n_input
        self._policy.added(request)
        self._deadlines.add(request)

    def cancel(self, request_id: int) -> list[Progress]:
        """End a request early: at once if it is not running, else when its batch returns (reported by complete).

        Nothing for an id that is not live: a cancel may cross the request's own end on its way.
        """
        request = self._pool.get(request_id)
        if request is None or request.ending is not None:
            return []
        request.cancelled = True
        if request.state is RequestState.RUNNING:
            self._doomed[request_id] = FinishReason.CANCELLED, None
            return []
        news = self._end(request, FinishReason.CANCELLED)
        return [news] if request.ending is None else self._release()

    def expire(self, now: float) -> list[Progress]:
        """End who is too late: at once if it is not running, else when its batch returns (reported by complete).

        That is whoever has not begun and cannot have its first token, or its end, in time any more; and whoever has
        begun and should have ended. now: seconds, on the clock of `add`. Nothing to do if nobody has deadlines.
        """
        if self._deadlines.next > now:
            return []
        news = []
        for request in self._deadlines.passed(now, self._has_begun):
            if request.ending is not None or request.cancelled:
                continue
            if request.state is _RUNNING:
                self._doomed[request.id] = FinishReason.ERROR, TIMED_OUT
                continue
            late = not self._has_begun(request)
            self._n_late += late
            ended = self._end(request, FinishReason.ERROR, error=TOO_LATE if late else TIMED_OUT)
            if request.ending is None:
                news.append(ended)
        return news + self._release() if self._policy.holds_back else news

    def next_batch(self, now: float = 0.0) -> Batch | None:
        """The next iteration's batch; its requests are now RUNNING. None: n_workers in flight, or nobody can run.

        now: seconds, on the clock of `add`.
        """
        if self.n_scheduled == self.n_workers:
            return None
        selection = self._policy.select(self._pool, self._ledger, self.max_bs)
        for request in selection.preempted:
            self._preempt(request)
        if not selection.requests:
            self._untold += selection.preempted
            return None
        if self._untold:
            live = [request for request in self._untold if request.state is not RequestState.FINISHED]
            selection.preempted, self._untold = [*live, *selection.preempted], []
        self.selection = selection
        self._n_batches += 1
        n_initiations = self._n_initiations
        batch = Batch(
            self._n_batches,
            self._entries(selection.requests, now),
            tuple(self._drops),
            tuple(self._kept),
            self._ledger.take_evicted(),
        )
        self._drops.clear()
        self._kept.clear()
        self._in_flight.append((batch, selection.requests, self._n_initiations == n_initiations))
        return batch

    def complete(self, result: IterationResult) -> list[Progress]:
        """Take back the oldest batch: the news of its requests, in the batch's order.

        Slots of those that end are free when this returns; their ids travel at the head of the next batch, so that
        workers drop old K/V before its new owner writes. Raises EngineError if the result is not the oldest batch's.
        """
        batch, requests, only_increments = self._take_oldest(result)
        if only_increments:
            self._ledger.advance(requests)
        else:
            self._ledger.fill(batch.entries)
        self._policy.returned(batch, result.seconds)
        doomed = self._doomed
        news: list[Progress] = []
        if result.failures:
            doomed = self._failed(result.failures) | doomed
        told = None
        self._describes = self._describes or bool(result.logprobs)
        if self._describes and (result.logprobs or self._logprobs.waits):
            told = self._logprobs.take_in(batch, result.logprobs)
        fed, holds_back = self._fed, self._policy.holds_back
        tell = news.append
        for request, token in zip(requests, result.tokens, strict=True):
            request.state = _INCREMENT
            was_fed = fed and request.id in fed
            if was_fed:
                fed.remove(request.id)
                request.state = _FEEDING
                request.n_pieces += 1
            if holds_back and request.ending is not None:
                continue
            if doomed and request.id in doomed:
                reason, error = doomed[request.id]
                tell(self._end(request, reason, error=error))
            elif not was_fed:
                output = request.output
                output.append(token)
                if len(output) < request.most_output and token not in request.stop_ids:
                    tell(Progress(request.id, token))  # as nearly always
                else:
                    ends = request.finish_reason_after(token)
                    tell(Progress(request.id, token) if ends is None else self._end(request, ends, token))
        if self._beginnings:
            beginnings = self._beginnings
            for each in news:
                if each.request_id in beginnings:
                    each.began = beginnings.pop(each.request_id)
        if told:
            describe(news, told)
        if result.embeddings:
            for each in news:
                if each.finish_reason is FinishReason.LENGTH:
                    each.embedding = result.embeddings.get(each.request_id)
        if not holds_back:
            return news
        if told:
            for each in news:
                if each.finish_reason is None:
                    self._logprobs.hold(each.request_id, each.logprobs)
        return self._release()

    def prepare(self) -> None:
        """The next batches are under way: do what the next turn would have to do else. Changes nothing that anybody is
        told, whether it is called or not."""
        self._spent = None
        self._policy.prepare()
        if self._shared_page and (turn := self._policy.turn(self._pool)) is not None:
            self._ledger.look(turn)

    def abort(self, message: str | None) -> list[Progress]:
        """The engine and all K/V in it are gone: every live request ends, nothing stays reserved or in flight.

        message: why, fit to show to a client: they end with ERROR. None: nothing went wrong, they end CANCELLED.
        Results that arrive later are refused by `complete`.
        """
        news = []
        for request in list(self._pool):
            if request.ending is not None:
                news += self._dismiss(request)
                continue
            error = None if request.cancelled else message
            reason = FinishReason.CANCELLED if error is None else FinishReason.ERROR
            self._leave(request)
            news.append(Progress(request.id, None, reason, error))
        self._in_flight.clear()
        self._fed.clear()
        self._drops.clear()
        self._ledger.clear()
        return news

    def status(self, iteration_seconds: float = 0.0, scheduler_seconds: float = 0.0) -> EngineStatus:
        """Counters as of now; `iteration` and what follows from it describe the last batch that returned.

        Times are for who has a clock to say.
        """
        last = self._last_returned
        entries = last.entries if last else ()
        return EngineStatus(
            iteration=last.iteration if last else 0,
            n_running=len(entries),
            n_waiting=len(self._pool) - len(self._ledger),
            n_live=len(self._pool),
            n_reserved=self._ledger.n_reserved,
            n_used=self._ledger.n_used,
            batch_tokens=last.n_tokens if last else 0,
            batch_initiations=[entry.phase for entry in entries].count(Phase.INITIATION),
            iteration_seconds=iteration_seconds,
            scheduler_seconds=scheduler_seconds,
            n_preempted=self._n_preempted,
            n_recomputed=self._n_recomputed,
            n_waiting_tokens=self._n_waiting_tokens,
            n_late=self._n_late,
            n_cached=self._n_cached,
            n_kept=self._ledger.n_kept,
        )

    @property
    def live(self) -> Iterable[Request]:
        """All requests that have not left, those in batches in flight included."""
        return self._pool

    def standing(self) -> Standing:
        """How things stand, for who is told of what comes next."""
        last = increments_first(self._last_returned) if self._last_returned else ()
        return Standing(
            list(self._pool),
            [batch for batch, *_ in self._in_flight],
            [request_id for request_id in last if request_id in self._pool],
        )

    def describe(self, now: float) -> LiveRequests:
        """All live requests, and why each waits. Between `next_batch` and `complete`, for else nobody is in a batch."""
        in_flight = [batch for batch, *_ in self._in_flight]
        turn = self._policy.turn(self._pool)
        return describe_live(self._pool, self._ledger, self.selection, turn, in_flight, self.max_bs, now)

    def check_invariants(self) -> None:
        """Assert what must hold between any two verbs. Walks the pool: for tests, and for when it is idle."""
        running = [entry.request_id for batch, *_ in self._in_flight for entry in batch.entries]
        assert self.n_scheduled <= self.n_workers
        assert len(running) == len(set(running)), "a request is in two batches in flight"
        assert set(running) == {request.id for request in self._pool if request.state is RequestState.RUNNING}
        admitted = 0
        for request in self._pool:
            assert request.state is not RequestState.FINISHED
            assert (request.id in self._ledger) == (request.state is not RequestState.INITIATION)
            assert request.state is RequestState.RUNNING or request.ending or not request.cancelled
            assert request.ending is None or self._policy.holds_back
            admitted += request.id in self._ledger
        waiting = [request.n_input for request in self._pool if request.state is RequestState.INITIATION]
        assert self._n_waiting_tokens == sum(waiting)
        assert admitted == len(self._ledger), "slots are reserved for a request that is gone"
        assert not any(request_id in self._ledger for request_id in self._drops)
        self._ledger.check()
        self._policy.check(self._pool)

    def _entries(self, requests: Sequence[Request], now: float) -> tuple[BatchEntry, ...]:
        """Their parts of the next iteration: their states tell the phases. They are RUNNING when this returns."""
        entries: list[BatchEntry] = []
        page = self._shared_page
        for request, position in zip(requests, self._ledger.used_by_each(requests), strict=True):
            if request.state is _INCREMENT:
                output = request.output
                newest = output[-1] if output else request.input_ids[-1]  # none: it is only computed on
                entries.append(Increment(request.id, newest, position))
                if page and not (position + 1) % page:
                    self._keep(request, position + 1)
            else:
                entries.append(self._initiation(request))
                if request.state is _INITIATION:
                    self._begins(request, entries[-1].position, now)
            request.state = _RUNNING
        return tuple(entries)

    def _begins(self, request: Request, n_cached: int, now: float) -> None:
        """It waits no longer: it has its slots, and so many tokens of others."""
        self._n_cached += n_cached
        self._n_waiting_tokens -= request.n_input
        if not self._has_begun(request):
            self._beginnings[request.id] = Began(now - request.arrival, min(n_cached, request.n_input))

    def _initiation(self, request: Request) -> BatchEntry:
        """Of its initiation what this iteration is to have."""
        self._n_initiations += 1
        tokens = [*request.input_ids, *request.output] if request.output else request.input_ids
        prefix = self._ledger.begin(request, self._n_batches) if request.state is _INITIATION else None
        position = self._ledger.used_by(request.id)
        n_left = len(tokens) - position
        # More may be there than when the policy looked, and a windowed model's initiation may not fit at once.
        n = min(self._policy.piece(request, n_left), n_left, self._ledger.room(request.id))
        if self._shared_page:
            self._keep(request, position + n)
        if n < len(tokens):
            tokens = tokens[position : position + n]
        scoring = None
        if request.params.prompt_logprobs is not None and not request.output:  # else they were told with the output
            follower = request.input_ids[position + n] if n < n_left else None
            scoring = Scoring(request.params.prompt_logprobs, follower)
        if n < n_left:
            self._fed.add(request.id)
            self._n_recomputed += n if request.n_iterations else 0
            return BatchEntry(
                request.id,
                Phase.INITIATION,
                tokens,
                position,
                n_to_come=n_left - n,
                scoring=scoring,
                prefix=prefix,
                pooling=request.params.pooling,
                adapter=request.adapter,
            )
        if request.n_iterations:  # preempted
            self._n_recomputed += n - 1
        settings = request.params, request.stop_ids, request.seed
        n_output = len(request.output)
        return BatchEntry(
            request.id,
            Phase.INITIATION,
            tokens,
            position,
            *settings,
            n_output,
            scoring=scoring,
            prefix=prefix,
            pooling=request.params.pooling,
            adapter=request.adapter,
        )

    def _keep(self, request: Request, end: int) -> None:
        """Its tokens up to this index are there once the batch that is being made has run."""
        kept = self._ledger.keep(request, end, self._n_batches)
        if kept is not None:
            self._kept.append(kept)

    def _failed(self, failures: Mapping[int, str]) -> dict[int, _Doom]:
        """These requests could not go on, for these reasons."""
        for request_id in failures:
            if request_id in self._ledger:
                self._ledger.withdraw(request_id)
        return {request_id: (FinishReason.ERROR, why) for request_id, why in failures.items()}

    def _preempt(self, request: Request) -> None:
        """The policy has taken its slots back: its K/V is dropped, and it starts anew."""
        self._drops.append(request.id)
        self._logprobs.forget(request.id)
        request.state = RequestState.INITIATION
        self._n_preempted += 1
        self._n_waiting_tokens += request.n_input

    def _has_begun(self, request: Request) -> bool:
        """Whether it has ever been in a batch here."""
        return request.state is not _INITIATION or request.n_iterations > 0 or request.id in self._beginnings

    def _take_oldest(self, result: IterationResult) -> tuple[Batch, list[Request], bool]:
        batch = self._in_flight[0][0] if self._in_flight else None
        if batch is None or result.iteration != batch.iteration:
            expected = f"iteration {batch.iteration}" if batch else "none"
            raise EngineError(f"the engine returned iteration {result.iteration}; due was {expected}")
        if len(result.tokens) != len(batch.entries):
            raise EngineError(f"the engine returned {len(result.tokens)} tokens for {len(batch.entries)} requests")
        self._spent, self._last_returned = self._last_returned, batch
        return self._in_flight.popleft()

    def _end(
        self, request: Request, reason: FinishReason, token: int | None = None, error: str | None = None
    ) -> Progress:
        """The request has ended: it leaves, unless the policy has it stay with others until all have."""
        if token is not None and request.params.max_tokens == 0:  # its prompt was to be read, and nothing else
            request.output.clear()
            token, reason = None, FinishReason.LENGTH
        self._doomed.pop(request.id, None)
        news = Progress(request.id, token, reason, error, began=self._beginnings.pop(request.id, None))
        if self._policy.holds_back and request.id in self._ledger:
            request.ending = news
        else:
            self._leave(request)
        return news

    def _release(self) -> list[Progress]:
        """All news, held back so far, of those whose time has come."""
        return [news for request in self._policy.released() for news in self._dismiss(request)]

    def _dismiss(self, request: Request) -> list[Progress]:
        """What was held back of a request that has ended; it leaves."""
        assert request.ending is not None
        tokens = request.output[request.n_carried :]
        if request.ending.token is not None:
            tokens.pop()
        told = self._logprobs.held(request.id)
        self._leave(request)
        news = [Progress(request.id, token) for token in tokens]
        if news:
            news[0].began, request.ending.began = request.ending.began, None
        for each, own in zip(news, told, strict=False):
            each.logprobs = own
        return [*news, request.ending]

    def _leave(self, request: Request) -> None:
        """The one place where a request leaves: slots returned, K/V to be dropped, out of the pool."""
        self._policy.left(request)
        if request.id in self._ledger:  # else no worker has heard of it, or it was told to drop it
            self._ledger.release(request.id)
            self._drops.append(request.id)
        else:
            self._n_waiting_tokens -= request.n_input
        self._ledger.forget(request.id)
        self._deadlines.forget(request.id)
        self._doomed.pop(request.id, None)
        self._logprobs.forget(request.id)
        self._beginnings.pop(request.id, None)
        self._pool.remove(request.id)
        request.state = RequestState.FINISHED
