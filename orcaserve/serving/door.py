"""Door: who may come in. A request that would only make a long queue longer is told at once when to come back.

    door.turn_away(caller)                          by its header alone: no room for any, or None
    with door.knock(caller): ...                    before work is spent on it, and while its tokens are counted
    door.check(requests, seconds passed, caller)    once they are
    door.enter(request), begun(id), left(id)        what becomes of it

Lines of batches do not come through here: they give way to everybody, and their queue is their own.
"""

from __future__ import annotations

import math
import random
import time
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from orcaserve.core import EngineFacts, InvalidRequest, Request
from orcaserve.serving.forecast import MOST_OPENINGS, openings
from orcaserve.serving.pace import OutputLengths, Pace
from orcaserve.serving.terms import BETWEEN_TOKENS, FIRST_TOKEN, Caller

QUEUE_PER_PLACE = 4  # requests that may wait for each place of a batch, unless a flag says otherwise
LEAST_QUEUE = 1024  # requests that may wait in any case: load tools send a thousand at once, and do not come again
QUEUE_PER_SLOT = 4  # prompt tokens that may wait for each slot of the K/V region
LEAST_QUEUE_TOKENS = 2**20  # prompt tokens that may wait in any case: as many requests of 1,024 each
FIRST_RETRY = 1.0  # s, while nothing is known of how quickly the engines work
LONGEST_RETRY = 60.0  # s; clients do not wait for longer
KEEP_SECONDS = 2.0  # for which room is kept for who was told to come back now
LOOK_SECONDS = 0.5  # for which a forecast holds
MARGIN = 1.5  # what a deadline must leave, by the estimate: others come, and the machine has other work
OVER = "too many requests wait already: come back when the header Retry-After says"


class Overloaded(InvalidRequest):
    """Not now (429). retry_after: whole seconds, from 1 to LONGEST_RETRY, after which there will be room."""

    def __init__(self, message: str, code: str, retry_after: float, field: str | None = None) -> None:
        super().__init__(field, message, code=code, status=429)
        self.retry_after = max(1, math.ceil(min(retry_after, LONGEST_RETRY)))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of what waits for its first batch beside a full one: requests, and their prompt tokens. math.inf: none."""

    n_requests: float
    n_tokens: float

    @classmethod
    def usual(cls, facts: EngineFacts, n_replicas: int) -> Bounds:
        """What keeps memory and the queue bounded, and lets a load test pass. How long it takes to get through depends
        on the machine: whoever wants short waits sets them.
        """
        places, slots = facts.max_bs * facts.n_workers * n_replicas, facts.n_slots * n_replicas
        return cls(max(QUEUE_PER_PLACE * places, LEAST_QUEUE), max(QUEUE_PER_SLOT * slots, LEAST_QUEUE_TOKENS))


class Door:
    """Used on the event loop. One request here is one choice.

    places: how many requests all engines run at once at most.

    Whoever is refused is told the time at which the next place becomes free that was not promised to another; at that
    time, and a little longer, room is kept for who comes back, for newcomers would always be there first.
    """

    def __init__(
        self,
        places: int,
        n_slots: int,
        bounds: Bounds,
        pace: Pace,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.bounds = bounds
        self.lengths = OutputLengths()
        self._places = places
        self._n_slots = n_slots
        self._pace = pace
        self._clock = clock
        self._draw = draw
        self._waiting: dict[int, Request] = {}  # submitted, without any news
        self._running: dict[int, Request] = {}
        self._n_knocked = 0  # requests whose bodies are looked at now
        self.waiting_tokens = 0
        self._n_reserved = 0  # slots
        self._promises: list[tuple[float, str]] = []  # when who was told to come back, the earliest first
        self._forecast: list[float] | None = None
        self._forecast_at = -math.inf

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    def turn_away(self, caller: Caller) -> Overloaded | None:
        """What a request is told whose header alone is known, if there is no room for any. Cheap: it is asked for every
        request, and under overload most of them are sent away.
        """
        return self._refusal(caller) if self._is_full(1, 0, 0, self._n_knocked, caller) else None

    @contextmanager
    def knock(self, caller: Caller) -> Iterator[None]:
        """While a request is read and its tokens are counted. Raises Overloaded if there is no room for any."""
        refusal = self.turn_away(caller)
        if refusal is not None:
            raise refusal
        self._n_knocked += 1
        try:
            yield
        finally:
            self._n_knocked -= 1

    def check(self, requests: Sequence[Request], passed: float, caller: Caller) -> None:
        """Whether the choices of a request may come in now; passed: seconds since it arrived.

        Raises Overloaded if there is no room, or if they could not make their deadlines by the estimate.
        """
        n_tokens = sum(request.n_input for request in requests)
        n_slots = sum(request.max_tokens for request in requests)
        if self._is_full(len(requests), n_tokens, n_slots, 0, caller):
            raise self._refusal(caller, n_tokens)
        self._check_deadlines(requests, passed)
        self._redeem(caller)

    def enter(self, request: Request) -> None:
        self._waiting[request.id] = request
        self.waiting_tokens += request.n_input
        self._n_reserved += request.max_tokens

    def begun(self, request_id: int) -> None:
        """There is news of it. Idempotent."""
        request = self._waiting.pop(request_id, None)
        if request is not None:
            self.waiting_tokens -= request.n_input
            self._running[request_id] = request

    def left(self, request_id: int) -> None:
        """It is over. Idempotent."""
        self.begun(request_id)
        request = self._running.pop(request_id, None)
        if request is not None:
            self._n_reserved -= request.max_tokens

    # Room

    def _is_full(self, n: int, n_tokens: int, n_slots: int, n_knocked: int, caller: Caller) -> bool:
        """Whether so many more have no room. What alone is more than a bound comes in when nobody waits."""
        n_before = len(self._waiting) + n_knocked
        n_free = max(self._places - len(self._running), 0) if self._fits(n_slots) else 0
        if n_before + n <= n_free:
            return False
        if not n_before:
            n, n_tokens = 1, 0
        most = self.bounds.n_requests
        if n_before + n - n_free > most or self.waiting_tokens + n_tokens > self.bounds.n_tokens:
            return True
        kept = 0 if self._due(caller) is not None else min(self._n_due(), most // 2)
        return n_before + kept + n - n_free > most

    def _fits(self, n_slots: int) -> bool:
        return self._n_reserved + n_slots <= self._n_slots

    def _due(self, caller: Caller) -> int | None:
        """Which promise that is due a caller may take, if any."""
        now = self._clock()
        self._forget_promises(now)
        if caller.comes_back is False:
            return None
        for index, (due, who) in enumerate(self._promises):
            if due > now and not caller.comes_back:
                break
            if who == caller.who:
                return index
        return None

    def _n_due(self) -> int:
        return bisect_right(self._promises, self._clock(), key=_due_at)

    def _forget_promises(self, now: float) -> None:
        """Those that were due too long ago."""
        n_over = bisect_right(self._promises, now - KEEP_SECONDS, key=_due_at)
        if n_over:
            del self._promises[:n_over]

    def _redeem(self, caller: Caller) -> None:
        if self._promises and (index := self._due(caller)) is not None:
            del self._promises[index]

    def _refusal(self, caller: Caller, n_tokens: int = 0) -> Overloaded:
        """What to tell: the first time that was not promised to another."""
        now, found = self._clock(), self._look_ahead()
        self._forget_promises(now)
        number = len(self._promises) + self._n_before_tokens_fit(n_tokens)
        if found is None:
            seconds = FIRST_RETRY * (1 + number / self._places)
        elif number < len(found):
            seconds = found[number] - (now - self._forecast_at)
        else:
            seconds = math.inf
        if seconds > LONGEST_RETRY:  # nobody waits for so long, and they should not all come at once
            return Overloaded(OVER, "overloaded", self._draw(LONGEST_RETRY / 2, LONGEST_RETRY))
        refusal = Overloaded(OVER, "overloaded", seconds)
        insort(self._promises, (now + refusal.retry_after, caller.who))
        return refusal

    def _n_before_tokens_fit(self, n_tokens: int) -> int:
        """How many of those who wait have to begin until so many prompt tokens have room (the first is not counted)."""
        over = self.waiting_tokens + n_tokens - self.bounds.n_tokens
        for number, request in enumerate(self._waiting.values()):
            over -= request.n_input
            if over <= 0:
                return number
        return 0

    # What the engines will do

    def _look_ahead(self) -> list[float] | None:
        """Times of openings, seconds from `_forecast_at`; None while no rate is known."""
        now = self._clock()
        if self._forecast is None or now - self._forecast_at >= LOOK_SECONDS:
            speed, self._forecast_at = self._pace.tokens, now
            more = MOST_OPENINGS
            self._forecast = (
                None if speed is None else self._openings(self._waiting.values(), speed, more, LONGEST_RETRY + 1)
            )
        return self._forecast

    def _openings(
        self, waiting: Iterable[Request], speed: float, n_more: int, horizon: float = math.inf
    ) -> list[float]:
        running = [self._left(request) for request in self._running.values()]
        # If requests wait though there are places, the K/V region is full: then so many run as do now.
        n_places = len(running) if self._waiting and running else self._places
        lengths = [request.n_input + self._left(request) for request in waiting]
        return openings(running, lengths, n_places, speed, n_more, horizon)

    def _left(self, request: Request) -> float:
        """Tokens that are still to come of it."""
        params = request.params
        return self.lengths.expected(params.max_tokens - len(request.output), not params.ignore_eos)

    def _check_deadlines(self, requests: Sequence[Request], passed: float) -> None:
        """Raises Overloaded if one of them is sure, by the estimate, to be missed."""
        first = requests[0]
        terms, speed = first.terms, self._pace.tokens
        if (terms.timeout is None and terms.first_token is None and terms.between_tokens is None) or speed is None:
            return
        between = self._pace.between_tokens or 0.0
        ahead = [request for request in self._waiting.values() if request.terms.priority <= terms.priority]
        n = len(requests)
        if len(ahead) + len(self._running) + n <= self._places and self._fits(sum(r.max_tokens for r in requests)):
            wait = between if self._running else 0.0  # for the iteration under way
        else:
            wait = self._openings(ahead, speed, n)[-1]
        prompt = sum(request.n_input for request in requests) / (self._pace.prompt_tokens or speed)
        begun = wait + prompt
        ended = begun + max(self._left(request) - 1 for request in requests) * between
        for limit, takes, name in (
            (terms.first_token, begun, FIRST_TOKEN),
            (terms.timeout, ended, "timeout"),
        ):
            if limit is not None and passed + MARGIN * takes > limit:
                message = f"by the estimate the request would miss what {name} asks for, and is not begun"
                raise Overloaded(message, "deadline_unreachable", MARGIN * takes - limit, name)
        if terms.between_tokens is not None and self._running and between > terms.between_tokens:
            message = f"tokens are further apart now than {BETWEEN_TOKENS} asks for, and the request is not begun"
            raise Overloaded(message, "deadline_unreachable", between, BETWEEN_TOKENS)


def _due_at(promise: tuple[float, str]) -> float:
    return promise[0]
