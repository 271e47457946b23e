"""Sweeps: a system under more and more load; and the most load that it carries within a median latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orcaserve.evaluation.paper.systems import System
from orcaserve.simulation.outcome import Summary
from orcaserve.workload import Arrival, homogeneous_trace, paper_trace

SHARES = (0.1, 0.3, 0.5, 0.7, 0.8, 0.87, 0.93, 0.97, 1.0, 1.04)  # loads, as shares of the most that can be carried
MUCH = 1e6  # requests/s: all at once
STEPS = 9  # of the search


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
    return task.system.run(task.model, task.load.at(MUCH)).summary().throughput


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
    """The most requests a second, as served, with the median within the target; 0 if there is none."""
    task = search.task
    low, high, best = 0.0, capacity(task) * 1.1, 0.0
    for _ in range(STEPS):
        rate = (low + high) / 2
        summary = task.system.run(task.model, task.load.at(rate, search.seed)).summary()
        if summary.normalised.p50 <= search.target_ms:
            low, best = rate, summary.throughput
        else:
            high = rate
    return best
