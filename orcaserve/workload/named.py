"""Workloads by name, as command lines give them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from orcaserve.core.errors import ConfigError
from orcaserve.workload.arrival import Arrival
from orcaserve.workload.arrival_times import drawn_times, mean_rate, scaled_times
from orcaserve.workload.paper import INPUT_TOKENS, OUTPUT_TOKENS
from orcaserve.workload.recorded import BUNDLED, MOST_TOKENS, read_trace
from orcaserve.workload.shape import UNCHANGED, Shape

FORMS = "paper, azure-conv, azure-code, homogeneous:IN:OUT, FILE.csv, FILE.csv.gz or log:FILE"
Reader = Callable[[Path], Sequence[Arrival]]


class Source(Protocol):
    """Where requests come from. timed: they have times of their own, else all have 0."""

    timed: bool

    def draw(self, n: int, rng: random.Random) -> Sequence[Arrival]:
        """`n` requests in order. Raises ConfigError if there are not so many."""
        ...


class Paper:
    """The sizes of the paper's trace."""

    timed = False

    def draw(self, n: int, rng: random.Random) -> Sequence[Arrival]:
        return [Arrival(0.0, rng.randint(*INPUT_TOKENS), rng.randint(*OUTPUT_TOKENS)) for _ in range(n)]


@dataclass(frozen=True, slots=True)
class Homogeneous:
    """Requests that are all alike."""

    n_input: int
    n_output: int
    timed = False

    def draw(self, n: int, rng: random.Random) -> Sequence[Arrival]:
        return [Arrival(0.0, self.n_input, self.n_output)] * n


@dataclass(frozen=True, slots=True)
class Recorded:
    """Consecutive requests of a trace, from a place in it that the seed draws."""

    name: str
    rows: Sequence[Arrival]
    timed = True

    def draw(self, n: int, rng: random.Random) -> Sequence[Arrival]:
        if n > len(self.rows):
            raise ConfigError("--n", f"{self.name} has {len(self.rows)} requests")
        start = rng.randint(0, len(self.rows) - n)
        return self.rows[start : start + n]


@dataclass(frozen=True, slots=True)
class Workload:
    """`n` requests from a source, with lengths that fit.

    burstiness: arrival times are drawn, see drawn_times; None: a trace keeps its own, and others are Poisson.
    """

    name: str
    source: Source
    n: int
    shape: Shape = UNCHANGED
    burstiness: float | None = None

    def arrivals(self, rate: float | None, seed: int) -> list[Arrival]:
        """In order of time, the first at 0. rate: requests a second; None: the trace's own, else all at once.

        The same arguments give the same list on every machine; another rate only stretches its times.
        """
        sizes, times = random.Random(f"sizes {seed}"), random.Random(f"times {seed}")
        drawn = self.source.draw(self.n, sizes)
        moments = self._moments([arrival.time for arrival in drawn], rate, times)
        return [replace(self.shape.apply(arrival), time=time) for arrival, time in zip(drawn, moments, strict=True)]

    def _moments(self, own: Sequence[float], rate: float | None, rng: random.Random) -> Sequence[float]:
        if self.source.timed and self.burstiness is None:
            return scaled_times(own, rate or mean_rate(own) or 1.0)
        wanted = rate or mean_rate(own)
        if wanted is None:
            return [0.0] * self.n
        return drawn_times(self.n, wanted, self.burstiness or 1.0, rng)


def named_source(name: str, read_log: Reader | None = None) -> Source:
    """What --workload names. read_log: reads a schedule log, of which this package knows nothing; None: there are none.

    Raises ConfigError for a name that is none, or a file that is no trace or log.
    """
    kind, _, path = name.partition(":")
    if name == "paper":
        return Paper()
    if name in BUNDLED:
        return Recorded(name, read_trace(BUNDLED[name]))
    if kind == "homogeneous":
        return _homogeneous(name)
    if kind == "log" and read_log is not None:
        return Recorded(name, read_log(Path(path)))
    if name.endswith((".csv", ".csv.gz")):
        return Recorded(name, read_trace(Path(name)))
    raise ConfigError("--workload", f"{name!r} is none of {FORMS}")


def _homogeneous(name: str) -> Homogeneous:
    parts = name.split(":")[1:]
    if len(parts) == 2 and all(part.isascii() and part.isdigit() and 1 <= int(part) <= MOST_TOKENS for part in parts):
        return Homogeneous(int(parts[0]), int(parts[1]))
    raise ConfigError(
        "--workload", f"{name!r}: write homogeneous:IN:OUT, two numbers of tokens, as homogeneous:256:256"
    )
