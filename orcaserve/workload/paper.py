"""The traces of the Orca paper's evaluation, drawn from a seed. Poisson arrivals; nothing ends early."""

from __future__ import annotations

import random

from orcaserve.workload.arrival import Arrival

INPUT_TOKENS = (32, 512)  # both ends inclusive, as for the output
OUTPUT_TOKENS = (1, 128)


def paper_trace(rate: float, n_requests: int, seed: int = 0) -> list[Arrival]:
    """Input tokens U(32, 512), generated tokens U(1, 128), `rate` requests a second.

    With the same seed another rate gives the same requests, closer together or further apart.
    """
    rng = random.Random(seed)
    sizes = [(rng.randint(*INPUT_TOKENS), rng.randint(*OUTPUT_TOKENS)) for _ in range(n_requests)]
    return [Arrival(time, *size) for time, size in zip(_poisson(rng, rate, n_requests), sizes, strict=True)]


def homogeneous_trace(n_input: int, n_output: int, rate: float, n_requests: int, seed: int = 0) -> list[Arrival]:
    """Requests that are all alike."""
    rng = random.Random(seed)
    return [Arrival(time, n_input, n_output) for time in _poisson(rng, rate, n_requests)]


def _poisson(rng: random.Random, rate: float, n: int) -> list[float]:
    """n times at which something happens `rate` times a second on average, at random. The first gap counts."""
    assert rate > 0
    times, now = [], 0.0
    for _ in range(n):
        now += rng.expovariate(1.0) / rate
        times.append(now)
    return times
