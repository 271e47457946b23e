"""Workloads played on the engine in real time: what became of each request, and what every iteration took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from orcaserve.core import EngineError, IterationReport, Request
from orcaserve.evaluation.measured_engine import MeasuredEngine
from orcaserve.simulation.outcome import Life, Outcome
from orcaserve.simulation.shape import Shape, shape_of_sizes
from orcaserve.workload import Arrival


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration as it was. seconds: from the end of the one before to its own, which is what it costs; None if the
    engine had nothing to do between them. worker_seconds: what the worker says."""

    shape: Shape
    seconds: float | None
    worker_seconds: float


@dataclass(frozen=True, slots=True)
class Played:
    """outcome: as a simulation gives it. iterations: in order. lateness: of each request, how much later than it should
    it was handed over, in seconds; its latencies count from when it should."""

    outcome: Outcome
    iterations: Sequence[Iteration]
    lateness: Sequence[float]


def play(engine: MeasuredEngine, arrivals: Sequence[Arrival]) -> Played:
    """Hand every request over at its time, whatever is running then, and wait for the last. Prompts are random.

    Raises InvalidRequest if one cannot be served, EngineError if one of them or the engine fails.
    """
    requests = list(_requests(engine, arrivals))
    log = _Log()
    todo = 0
    while todo < len(requests):
        wait = arrivals[todo].time - log.clock()
        if wait > 0:
            time.sleep(wait)  # news wait as well: reading them would take time of the cores that the engine uses
        now, due = log.clock(), todo
        while todo < len(requests) and arrivals[todo].time <= now:
            log.add(requests[todo].id, arrivals[todo], now)
            todo += 1
        engine.submit(requests[due:todo])
    return log.follow(engine)


def keep_running(
    engine: MeasuredEngine, sizes: Iterator[tuple[int, int]], concurrency: int, step: int, seconds: float
) -> Played:
    """The same with `concurrency` requests at all times, the next whenever one is done, for so many seconds and until
    all have ended. sizes: input and output tokens of one after the other. It starts with `step` requests, and as many
    join with every iteration until all run: prompts of all in one iteration are not what one meets.
    """
    log, most = _Log(), 0
    while log.clock() < seconds:
        most = min(most + step, concurrency)
        new = [Arrival(log.clock(), *next(sizes)) for _ in range(most - log.n_live)]
        requests = list(_requests(engine, new))
        for request, arrival in zip(requests, new, strict=True):
            log.add(request.id, arrival, arrival.time)
        if requests:
            engine.submit(requests)
        log.take(*engine.news())
    return log.follow(engine)


def _requests(engine: MeasuredEngine, arrivals: Iterable[Arrival]) -> Iterator[Request]:
    for arrival in arrivals:
        assert arrival.asked == arrival.n_output, "the engine generates as much as it is asked for"
        (prompt,) = engine.random_prompts(1, arrival.n_input)
        yield engine.request(prompt, arrival.n_output)


class _Log:
    """Follows requests through the engine's reports. Its clock starts when it is made."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._start = clock, clock()
        self._lives: dict[int, Life] = {}
        self._iterations: list[Iteration] = []
        self._lateness: list[float] = []
        self._busy_since: float | None = None  # when the iteration before has ended, if there was work left
        self.n_live = 0

    def clock(self) -> float:
        return self._clock() - self._start

    def add(self, request_id: int, arrival: Arrival, now: float) -> None:
        self._lives[request_id] = Life(arrival, [])
        self._lateness.append(now - arrival.time)
        self.n_live += 1

    def take(self, now: float, report: IterationReport) -> None:
        """Raises EngineError if a request has failed."""
        now -= self._start
        sizes: list[tuple[int, int]] = []
        for news in report.progress:
            if news.error is not None:
                raise EngineError(news.error)
            if news.token is not None:
                life = self._lives[news.request_id]
                n_earlier, n_input = len(life.token_times), life.arrival.n_input
                sizes.append((1, n_input + n_earlier - 1) if n_earlier else (n_input, 0))
                life.token_times.append(now)
            self.n_live -= news.finish_reason is not None
        if sizes:
            seconds = None if self._busy_since is None else now - self._busy_since
            self._iterations.append(Iteration(shape_of_sizes(sizes), seconds, report.status.iteration_seconds))
        self._busy_since = now if report.status.n_live else None

    def follow(self, engine: MeasuredEngine) -> Played:
        """Until all have ended."""
        while self.n_live:
            self.take(*engine.news())
        lives = list(self._lives.values())
        seconds = max((life.token_times[-1] for life in lives), default=0.0)
        busy = [sum(iteration.seconds or iteration.worker_seconds for iteration in self._iterations)]
        return Played(Outcome(lives, len(self._iterations), seconds, busy), self._iterations, self._lateness)
