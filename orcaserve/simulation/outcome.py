"""Outcome: what became of a workload, request by request; and the figures that people compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import ceil

from orcaserve.workload import Arrival

WARM_UP = 0.1  # share of the requests, the earliest, that no figure counts: they met an empty server
SHARES = (0.5, 0.9, 0.99)


@dataclass(slots=True)
class Life:
    """One request's life. token_times: when each of its tokens was handed over, in seconds since the workload's start.

    refused: why it was turned away at the door, or ended by its deadline; None: it was served.
    """

    arrival: Arrival
    token_times: list[float]
    refused: str | None = None

    @property
    def latency(self) -> float:
        """Seconds from its arrival to its last token."""
        return self.token_times[-1] - self.arrival.time

    @property
    def normalised_latency(self) -> float:
        """Latency for each generated token, which is what the paper plots."""
        return self.latency / self.arrival.n_output

    @property
    def first_token_seconds(self) -> float:
        return self.token_times[0] - self.arrival.time


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Milliseconds that so many per cent of values do not exceed; NaN if there are none."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Quantiles:
        ordered = sorted(seconds)
        if not ordered:
            return cls(*[float("nan")] * len(SHARES))
        return cls(*[ordered[max(ceil(len(ordered) * share), 1) - 1] * 1e3 for share in SHARES])


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of an outcome, without the requests of the warm-up.

    throughput: requests a second that ended, in the middle of the run; tokens_per_second: generated tokens likewise.
    Latencies in milliseconds: normalised (per generated token), ttft (to the first token), itl (between two tokens).
    utilisation: share of the time that the workers were busy, on average.
    """

    n_requests: int
    n_refused: int
    n_iterations: int
    seconds: float
    throughput: float
    tokens_per_second: float
    normalised: Quantiles
    ttft: Quantiles
    itl: Quantiles
    utilisation: float

    def as_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Outcome:
    """lives: in order of arrival. busy: seconds of each worker. seconds: from the start to the last token."""

    lives: Sequence[Life]
    n_iterations: int
    seconds: float
    busy: Sequence[float]

    def summary(self) -> Summary:
        served = [life for life in self.lives if life.refused is None]
        counted = served[int(len(served) * WARM_UP) :]
        throughput, tokens_per_second = _rates(counted)
        span = self.seconds * len(self.busy)
        return Summary(
            n_requests=len(self.lives),
            n_refused=len(self.lives) - len(served),
            n_iterations=self.n_iterations,
            seconds=self.seconds,
            throughput=throughput,
            tokens_per_second=tokens_per_second,
            normalised=Quantiles.of([life.normalised_latency for life in counted]),
            ttft=Quantiles.of([life.first_token_seconds for life in counted]),
            itl=Quantiles.of([b - a for life in counted for a, b in pairwise(life.token_times)]),
            utilisation=sum(self.busy) / span if span else 0.0,
        )


def _rates(counted: Sequence[Life]) -> tuple[float, float]:
    """Requests and tokens a second, over the middle of their ends: neither the filling nor the emptying counts."""
    ended = sorted(counted, key=lambda life: life.token_times[-1])
    middle = ended[len(ended) // 10 : len(ended) - len(ended) // 10]
    if len(middle) < 2:
        return 0.0, 0.0
    span = middle[-1].token_times[-1] - middle[0].token_times[-1]
    if span == 0:
        return 0.0, 0.0
    return (len(middle) - 1) / span, sum(life.arrival.n_output for life in middle[1:]) / span
