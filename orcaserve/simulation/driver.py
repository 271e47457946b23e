"""The driver: the scheduler that serves, in virtual time. What the iteration loop does with a clock, without one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache

from orcaserve.core import Batch, CannotFit, IterationResult, Progress, Request, SamplingParams
from orcaserve.scheduler.scheduler import Scheduler
from orcaserve.simulation.outcome import Life, Outcome
from orcaserve.simulation.pipeline import Pipeline
from orcaserve.workload import Arrival

STOP = 1  # the token that ends a request which asked for more than it generates; all others are 0
_STOPS = frozenset({STOP})
PROGRESS_EVERY = 4096  # iterations


class Driver:
    """One run of a workload: arrivals in order of time, a fresh scheduler, a fresh pipeline of as many workers.

    on_progress: called now and then with the iterations and the requests that have ended so far.
    """

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        scheduler: Scheduler,
        pipeline: Pipeline,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        assert scheduler.n_workers == len(pipeline.busy)
        self._scheduler = scheduler
        self._pipeline = pipeline
        self._on_progress = on_progress
        self._arrivals = iter(enumerate(arrivals))
        self._upcoming = next(self._arrivals, None)
        self._lives: list[Life] = []
        self._last_position: dict[int, int] = {}  # of requests that stop before they have all they asked for
        self._n_ended = 0

    def run(self) -> Outcome:
        """Until every request has ended."""
        scheduler, pipeline = self._scheduler, self._pipeline
        in_flight: deque[tuple[float, float, Batch]] = deque()  # end, beginning
        now, n_iterations = 0.0, 0
        while True:
            self._hear(scheduler.expire(now), now)
            while (batch := scheduler.next_batch(now)) is not None:
                in_flight.append((pipeline.submit(batch, now), now, batch))
            upcoming = self._upcoming
            if in_flight and (
                len(in_flight) == scheduler.n_workers or upcoming is None or in_flight[0][0] < upcoming[1].time
            ):
                now, begun, batch = in_flight.popleft()
                self._arrive(now)
                self._complete(batch, now, now - begun)
                n_iterations += 1
                if self._on_progress is not None and n_iterations % PROGRESS_EVERY == 0:
                    self._on_progress(n_iterations, self._n_ended)
            elif upcoming is not None:
                now = upcoming[1].time
                self._arrive(now)
            else:
                break
        assert self._n_ended == len(self._lives), "the policy has left requests in the pool for ever"
        return Outcome(self._lives, n_iterations, now, pipeline.busy)

    def _arrive(self, now: float) -> None:
        """Hand over whoever has come until now."""
        while self._upcoming is not None and self._upcoming[1].time <= now:
            request_id, arrival = self._upcoming
            assert not self._lives or arrival.time >= self._lives[-1].arrival.time, "arrivals come in order of time"
            life = Life(arrival, [])
            self._lives.append(life)
            short = arrival.n_output < arrival.asked
            stops = _STOPS if short else frozenset()
            try:
                prompt, params = range(arrival.n_input), _params(arrival.asked)
                self._scheduler.add(Request(request_id, prompt, params, stops, terms=arrival.terms), arrival.time)
            except CannotFit as refusal:
                life.refused = refusal.message
                self._n_ended += 1
            else:
                if short:
                    self._last_position[request_id] = arrival.n_input + arrival.n_output - 2
            self._upcoming = next(self._arrivals, None)

    def _complete(self, batch: Batch, now: float, seconds: float) -> None:
        """seconds: since it was handed out; with several workers about what each of its stages took, times their
        number, and each is told its share."""
        tokens = self._tokens(batch) if self._last_position else [0] * len(batch.entries)
        result = IterationResult(batch.iteration, tokens, seconds=seconds / self._scheduler.n_workers)
        self._hear(self._scheduler.complete(result), now)

    def _hear(self, progress: Sequence[Progress], now: float) -> None:
        lives, n_ended = self._lives, 0
        for news in progress:
            if news.token is not None:
                lives[news.request_id].token_times.append(now)
            if news.finish_reason is not None:
                if news.error is not None:  # it was too late
                    lives[news.request_id].refused = news.error
                self._last_position.pop(news.request_id, None)
                n_ended += 1
        self._n_ended += n_ended

    def _tokens(self, batch: Batch) -> list[int]:
        """What the model says: STOP for a request whose last token index this iteration reaches, else 0."""
        last = self._last_position
        return [
            STOP if entry.position + len(entry.tokens) - 1 == last.get(entry.request_id) else 0
            for entry in batch.entries
        ]


def simulate(
    arrivals: Sequence[Arrival],
    scheduler: Scheduler,
    pipeline: Pipeline,
    on_progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Run a workload to its end. Requests that could never fit are refused; all others are served."""
    return Driver(arrivals, scheduler, pipeline, on_progress).run()


@lru_cache(maxsize=65536)
def _params(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)
