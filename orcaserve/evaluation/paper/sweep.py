"""Sweeps: a system under more and more load; and the most load that it carries within a median latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from orcaserve.evaluation.paper.systems import System
from orcaserve.simulation.outcome import Summary
from orcaserve.workload import Arrival, homogeneous_trace, paper_trace

SHARES = (
    0.1,
    0.3,
    0.5,
    0.7,
    0.8,
    0.87,
    0.93,
    0.97,
    1.0,
    1.06,
    1.15,
)  # loads, as shares of the most that can be carried
MUCH = 1e6  # requests/s: all at once
LOWEST_SHARE, HIGHEST_SHARE, STEPS = 0.1, 1.1, 6  # of the search; the first two of what can be carried


@dataclass(frozen=True, slots=True)
class Load:
    """Which requests come. sizes: (input, output) tokens of every request, or None: the paper's trace."""

    n_requests: int
    sizes: tuple[int, int] | None = None

    def at(self, rate: float, seed: int = 0) -> Sequence[Arrival]:
        if self.sizes is None:
            return paper_trace(rate, self.n_requests, seed)
        return homogeneous_trace(*self.sizes, rate, self.n_requests, seed)


@dataclass(frozen=True, slots=True)
class Task:
    """A system that serves a model under a load: one curve."""

    model: str
    system: System
    load: Load


@dataclass(frozen=True, slots=True)
class Curve:
    """capacity: requests a second when all of them wait. points: (offered rate, what came of it)."""

    task: Task
    capacity: float
    points: Sequence[tuple[float, Summary]]

    def rows(self) -> list[dict[str, object]]:
        """For JSON."""
        return [
            {
                "model": self.task.model,
                "system": self.task.system.label,
                "offered_req_s": rate,
                "req_s": summary.throughput,
                "p50_normalized_ms": summary.normalised.p50,
                "p99_normalized_ms": summary.normalised.p99,
                "utilisation": summary.utilisation,
            }
            for rate, summary in self.points
        ]


def capacity(task: Task) -> float:
    """Requests a second when all of them wait. Of a few whole batches that end at once: over the whole run."""
    outcome = task.system.run(task.model, task.load.at(MUCH))
    return outcome.summary().throughput or len(outcome.lives) / outcome.seconds


def curve(task: Task) -> Curve:
    most = capacity(task)
    rates = [share * most for share in SHARES]
    points = [(rate, task.system.run(task.model, task.load.at(rate)).summary()) for rate in rates]
    return Curve(task, most, points)


@dataclass(frozen=True, slots=True)
class Search:
    """What `most_within` looks for: a task under one seed, and a median normalised latency in ms."""

    task: Task
    seed: int
    target_ms: float


def most_within(search: Search) -> float:
    """The most requests a second, as served, with the median within the target; 0 if there is none.

    The median rises with the load, so the load is halved in, and the last two are joined by a line.
    """
    task = search.task
    most = capacity(task)
    low, high = _at(search, most * LOWEST_SHARE), _at(search, most * HIGHEST_SHARE)
    if low.ms > search.target_ms:
        return 0.0
    if high.ms <= search.target_ms:
        return high.served
    for _ in range(STEPS):
        middle = _at(search, (low.rate + high.rate) / 2)
        low, high = (middle, high) if middle.ms <= search.target_ms else (low, middle)
    share = log(search.target_ms / low.ms) / log(high.ms / low.ms)
    return low.served + share * (high.served - low.served)


@dataclass(frozen=True, slots=True)
class _Try:
    rate: float
    served: float
    ms: float


def _at(search: Search, rate: float) -> _Try:
    summary = search.task.system.run(search.task.model, search.task.load.at(rate, search.seed)).summary()
    return _Try(rate, summary.throughput, summary.normalised.p50)
