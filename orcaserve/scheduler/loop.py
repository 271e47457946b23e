"""IterationLoop: Algorithm 1 in real time, between an inbox that any thread may fill and an engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from orcaserve.core import (
    AdapterAnswer,
    CannotFit,
    Engine,
    EngineError,
    EngineEvent,
    EngineFailure,
    FinishReason,
    IterationReport,
    IterationResult,
    LiveRequests,
    Progress,
    Request,
)
from orcaserve.core.errors import ENGINE_LOST
from orcaserve.scheduler.recorder import Both, NoRecord, Recorder, Watcher
from orcaserve.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class _Arrivals:
    requests: Sequence[Request]
    time: float


@dataclass(frozen=True, slots=True)
class _Cancels:
    request_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Watch:
    watcher: Watcher | None


@dataclass(frozen=True, slots=True)
class _Question:
    answer: Callable[[LiveRequests], None]


@dataclass(frozen=True, slots=True)
class _Unload:
    """Of an adapter, once no request has it."""

    number: int
    answer: AdapterAnswer


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Message = _Arrivals | _Cancels | _Watch | _Question | _Unload | _Stop | EngineEvent


class IterationLoop:
    """Owns the scheduler and the engine while `run` runs; everything else reaches them through the inbox.

    report: called on the loop's thread once a turn that has news, after the next batches are under way; while it runs
    past their end, the engine idles. If it raises, the loop ends as if the engine had failed: what was in it is lost.
    clock: seconds, never going back. record: who keeps the schedule.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        engine: Engine,
        report: Callable[[IterationReport], None],
        clock: Callable[[], float] = time.monotonic,
        record: Recorder | None = None,
    ) -> None:
        assert scheduler.n_workers <= engine.n_workers
        self._scheduler = scheduler
        self._engine = engine
        self._report = report
        self._clock = clock
        self._kept = record  # what is told whether or not anybody watches
        self._record: Recorder = record or NoRecord()
        self._inbox: SimpleQueue[_Message] = SimpleQueue()
        self._door = threading.Lock()  # orders `submit` against the end of `run`, so that no request falls between
        self._open = True
        self._news: list[Progress] = []  # of this turn
        self._questions: list[Callable[[LiveRequests], None]] = []  # of this turn
        self._leaving: list[_Unload] = []  # adapters, as soon as no request has them
        self._returned = False  # has a batch returned in this turn
        self._describes = False  # has anybody ever asked for log-probabilities or an embedding
        self._iteration_seconds = 0.0  # of the batch that returned last, as the engine measured it
        self._scheduler_seconds = 0.0  # since the last report, that the engine could have been given a batch in

    # From any thread.

    def submit(self, requests: Sequence[Request]) -> None:
        """Hand over new requests, in order of arrival. Raises EngineError once the loop has ended."""
        with self._door:
            if not self._open:
                raise EngineError("the engine has stopped")
            self._inbox.put(_Arrivals(requests, self._clock()))

    def cancel(self, request_ids: Sequence[int]) -> None:
        """End requests early; ids that are not live (any more) are ignored."""
        self._inbox.put(_Cancels(request_ids))

    def watch(self, watcher: Watcher | None) -> None:
        """From now on this one is told of the schedule too, and begins with how things stand; None: nobody any more."""
        self._inbox.put(_Watch(watcher))

    def describe(self, answer: Callable[[LiveRequests], None]) -> None:
        """Have `answer` called on the loop's thread with all live requests; never once the loop has ended."""
        self._inbox.put(_Question(answer))

    def unload_adapter(self, number: int, answer: AdapterAnswer) -> None:
        """Have the engine unload it once no request has it. Requests that come later may not name it."""
        self._inbox.put(_Unload(number, answer))

    def stop(self) -> None:
        """End the loop soon, without waiting for batches in flight; what is live ends as CANCELLED. Idempotent."""
        self._inbox.put(_Stop())

    # On the loop's own thread.

    def run(self) -> None:
        """Start the engine and serve until `stop`; then close the engine. Call once.

        Raises EngineError if the engine or `report` failed, or on a mistake of our own. Either way no live request is
        left without its end having been reported.
        """
        try:
            self._engine.start(self._inbox.put)
            while self._take_news():
                self._submit_batches()
                self._publish()
                self._answer()
                self._unload()
                self._scheduler.prepare()
                self._record.turn_over(self._clock())
            self._end_all(None)
        except EngineError:
            self._give_up()
            raise
        except Exception as error:
            self._give_up()
            raise EngineError(f"the iteration loop failed: {error!r}") from error
        finally:
            self._engine.close()

    def _take_news(self) -> bool:
        """Sleep until something is in the inbox, then take all that is. False if it is time to stop."""
        message = self._inbox.get()  # nobody can be scheduled before something happens
        started = self._clock()
        try:
            while not isinstance(message, _Stop):
                self._take(message)
                message = self._inbox.get_nowait()
            return False
        except Empty:
            return True
        finally:
            if self._has_room:  # else the news is taken in while the engine works: nothing waits for it
                self._scheduler_seconds += self._clock() - started

    def _take(self, message: _Arrivals | _Cancels | _Watch | _Question | _Unload | EngineEvent) -> None:
        match message:
            case IterationResult():
                news = self._scheduler.complete(message)
                self._record.returned(message, news, self._clock())
                self._news += news
                self._iteration_seconds = message.seconds
                self._returned = True
                self._describes = self._describes or bool(message.logprobs or message.embeddings)
            case _Arrivals(requests, arrival):
                for request in requests:
                    try:
                        self._scheduler.add(request, arrival)
                        self._record.arrived(request, arrival)
                    except (CannotFit, ValueError) as refusal:
                        self._record.refused(request, arrival, str(refusal))
                        self._news.append(Progress(request.id, None, FinishReason.ERROR, str(refusal)))
            case _Cancels(request_ids):
                for request_id in request_ids:
                    news = self._scheduler.cancel(request_id)
                    self._record.cancelled(request_id, self._clock(), news)
                    self._news += news
            case _Watch(watcher):
                self._change_watch(watcher)
            case _Question(answer):
                self._questions.append(answer)
            case _Unload():
                self._leaving.append(message)
            case EngineFailure():
                raise EngineError(message.message)

    def _submit_batches(self) -> None:
        """Keep as many batches in flight as the engine has workers and the pool has work for. First, end who is late.

        Deadlines need no clock of their own to wake this thread: as long as anybody is live, a batch is in flight.
        """
        started = self._clock()
        if late := self._scheduler.expire(started):
            self._record.expired(late, started)
            self._news += late
        while self._has_room:
            batch = self._scheduler.next_batch(started)
            self._scheduler_seconds += self._clock() - started
            if batch is None:
                return
            self._engine.submit(batch)
            scheduler = self._scheduler
            self._record.handed_out(batch, scheduler.selection, scheduler.n_reserved, scheduler.n_used, started)
            started = self._clock()

    @property
    def _has_room(self) -> bool:
        """Whether the engine can be given another batch."""
        return self._scheduler.n_scheduled < self._scheduler.n_workers

    def _change_watch(self, watcher: Watcher | None) -> None:
        if watcher is None:
            self._record = self._kept or NoRecord()
        else:
            watcher.begin(self._scheduler.standing())
            self._record = watcher if self._kept is None else Both(self._kept, watcher)

    def _answer(self) -> None:
        """Now that the next batches are under way: who is in none of them waits."""
        questions, self._questions = self._questions, []
        if questions:
            described = self._scheduler.describe(self._clock())
            for answer in questions:
                answer(described)

    def _unload(self) -> None:
        """A request has its adapter until its last batch has come back from all workers."""
        if not self._leaving:
            return
        used = {request.adapter for request in self._scheduler.live}
        leaving, self._leaving = self._leaving, [each for each in self._leaving if each.number in used]
        for each in leaving:
            if each.number not in used:
                self._engine.unload_adapter(each.number, each.answer)

    def _publish(self) -> None:
        """Report what happened in this turn, if anything did."""
        if not self._news and not self._returned:
            return
        status = self._scheduler.status(self._iteration_seconds, self._scheduler_seconds)
        describes = self._describes and any(
            news.logprobs is not None or news.embedding is not None for news in self._news
        )
        report = IterationReport(self._news, status, describes)
        self._news, self._returned, self._scheduler_seconds = [], False, 0.0
        try:
            self._report(report)
        except Exception as error:
            raise EngineError("the report of an iteration could not be delivered") from error

    def _end_all(self, message: str | None) -> None:
        """Close the door and end whatever came through it: with ERROR and the message, or CANCELLED if it is None."""
        with self._door:
            self._open = False
        ended = self._scheduler.abort(message)
        self._record.ended(ended, self._clock())
        self._news += ended
        reason = FinishReason.CANCELLED if message is None else FinishReason.ERROR
        while not self._inbox.empty():  # nothing that matters is added any more
            left_over = self._inbox.get()
            if isinstance(left_over, _Arrivals):
                self._news += [Progress(request.id, None, reason, message) for request in left_over.requests]
        self._publish()

    def _give_up(self) -> None:
        """End all requests with an error, as far as `report` still works; the cause is about to be raised."""
        with suppress(EngineError):
            self._end_all(ENGINE_LOST)
