"""What a schedule log tells a simulation: who came when, what iterations cost, and what became of everybody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orcaserve.core import ConfigError, FinishReason
from orcaserve.schedule_log.format import Arrived, Cancelled, End, Expired, HandedOut, Known, Log, Over, Returned
from orcaserve.scheduler.policies import PolicySettings, make_policy
from orcaserve.simulation.outcome import Life, Outcome
from orcaserve.simulation.profile import ProfiledCost, Sample, fit_cost
from orcaserve.simulation.shape import Shape, shape_of_sizes
from orcaserve.workload import Arrival


@dataclass(frozen=True, slots=True)
class EqualStages:
    """A CostModel of n_workers stages, each of which takes what `each` says."""

    n_workers: int
    each: ProfiledCost

    def stage_seconds(self, shape: Shape) -> Sequence[float]:
        return [self.each.seconds(shape)] * self.n_workers


@dataclass(frozen=True, slots=True)
class Recorded:
    """ids: of the requests that count, those that were given a token, in order of arrival; so are outcome.lives.

    samples: what iterations took. n_left_out: requests without a token, or that were there before the log begins.
    """

    ids: Sequence[int]
    outcome: Outcome
    samples: Sequence[Sample]
    n_left_out: int

    @property
    def arrivals(self) -> Sequence[Arrival]:
        return [life.arrival for life in self.outcome.lives]


def read_recorded(log: Log) -> Recorded:
    """Raises ConfigError if nobody in it was given a token."""
    walk = _Walk(log)
    ids = [i for i, known in walk.known.items() if walk.token_times[i] and known is not None]
    if not ids:
        raise ConfigError(log.name, "no request in it was given a token")
    lives = sorted(
        [(i, Life(_arrival(walk, i), walk.token_times[i])) for i in ids], key=lambda pair: pair[1].arrival.time
    )
    zero = lives[0][1].arrival.time
    moved = [
        Life(
            replace(life.arrival, time=life.arrival.time - zero),
            [time - zero for time in life.token_times],
        )
        for _, life in lives
    ]
    seconds = max(life.token_times[-1] for life in moved)
    outcome = Outcome(moved, walk.n_iterations, seconds, [walk.busy])
    return Recorded([i for i, _ in lives], outcome, walk.samples, len(walk.known) + len(log.live) - len(ids))


def cost_of(log: Log, recorded: Recorded) -> EqualStages:
    """Raises ConfigError if the log is too short for a fit."""
    try:
        return EqualStages(log.settings.n_workers, fit_cost(recorded.samples))
    except ValueError as error:
        raise ConfigError(log.name, str(error)) from error


class _Walk:
    """One walk over the events. known: requests in order of arrival. token_times: when they were handed over.

    samples: iterations and their seconds until the next one could begin; with several workers, until the next one
    returned, of those that followed without a gap.
    """

    def __init__(self, log: Log) -> None:
        settings = log.settings
        self.known: dict[int, Known] = {}
        self.arrived: dict[int, float] = {}
        self.ends: dict[int, End] = {}
        self.token_times: dict[int, list[float]] = {}
        self.samples: list[Sample] = []
        self.n_iterations = 0
        self.busy = 0.0
        self._n_workers = settings.n_workers
        self._holds_back = make_policy(
            settings.policy, PolicySettings(settings.n_workers, settings.longest)
        ).holds_back  # fmt: skip
        self._fed: dict[int, int] = {known.id: 0 for known, _ in log.live}
        self._n_tokens: dict[int, int] = {}
        self._in_flight: dict[int, tuple[HandedOut, Shape]] = {}
        self._due: tuple[float, Shape] | None = None  # of the iteration whose end is not known yet
        self._last_return = 0.0
        for event in log.events:
            match event:
                case Arrived(time, known):
                    self.known[known.id], self.arrived[known.id] = known, time
                    self.token_times[known.id], self._fed[known.id] = [], 0
                    self._n_tokens[known.id] = 0
                case Cancelled(time, _, ends) | Expired(time, ends) | Over(time, ends):
                    self._end(time, ends)
                case HandedOut():
                    self._hand_out(event)
                case Returned():
                    self._return(event)
                case _:
                    pass

    def _hand_out(self, event: HandedOut) -> None:
        if self._n_workers == 1 and self._due is not None:
            started, shape = self._due
            self.samples.append(Sample(shape, event.time - started))
            self._due = None
        fed = self._fed
        for request_id in event.preempted:
            fed[request_id] = 0
        for taken in event.taken:
            fed[taken.id] = taken.n_cached
        lengths = dict.fromkeys(event.ids, 1) | {piece.id: piece.n_tokens for piece in event.initiations}
        shape = shape_of_sizes((length, fed.get(request_id, 0)) for request_id, length in lengths.items())
        for request_id, length in lengths.items():
            fed[request_id] = fed.get(request_id, 0) + length
        self._in_flight[event.number] = event, shape

    def _return(self, event: Returned) -> None:
        begun = self._in_flight.pop(event.number, None)
        if begun is None:
            return
        handed, shape = begun
        self.n_iterations += 1
        self.busy += event.took
        failing, coming = set(event.failing), {piece.id for piece in handed.initiations if piece.n_to_come}
        for request_id in handed.ids:
            times = self.token_times.get(request_id)
            if times is not None and request_id not in coming and request_id not in failing:
                times.append(event.time)
        self._end(event.time, event.ends)
        if self._n_workers > 1:
            if len(self._in_flight) + 1 == self._n_workers and handed.time < self._last_return < event.time:
                self.samples.append(Sample(shape, event.time - self._last_return))
            self._last_return = event.time
        elif len(self._fed) > len(self.ends):  # somebody is live, so the next iteration begins at once
            self._due = handed.time, shape
        elif event.time > handed.time:
            self.samples.append(Sample(shape, event.time - handed.time))

    def _end(self, time: float, ends: Sequence[End]) -> None:
        for end in ends:
            self.ends[end.id] = end
            self._fed.setdefault(end.id, 0)
            times = self.token_times.get(end.id)
            if times is not None:
                n = end.n_output - self.known[end.id].carried
                self.token_times[end.id] = [time] * n if self._holds_back else times[:n]


def _arrival(walk: _Walk, request_id: int) -> Arrival:
    """Tokens that an earlier engine has put out are input here. One without an end in the log has all it asked for."""
    known, end = walk.known[request_id], walk.ends.get(request_id)
    asked = known.asked - known.carried
    n_output = asked if end is None else end.n_output - known.carried
    time = max(walk.arrived[request_id], 0.0)
    free = known.may_stop or (end is not None and end.why is not FinishReason.LENGTH)
    return Arrival(time, known.n_input + known.carried, n_output, asked if free else None, known.terms)
