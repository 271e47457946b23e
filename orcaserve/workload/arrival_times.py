"""When requests come: drawn as a Gamma process, or recorded times at another rate."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate


def drawn_times(n: int, rate: float, burstiness: float, rng: random.Random) -> list[float]:
    """`n` times in seconds, the first at 0, whose gaps are Gamma with mean 1 / rate and shape `burstiness`.

    A burstiness of 1 is a Poisson process; below 1 requests come in bunches, above 1 more evenly.
    """
    gaps = (rng.gammavariate(burstiness, 1 / (rate * burstiness)) for _ in range(n - 1))
    return list(accumulate(gaps, initial=0.0))


def mean_rate(times: Sequence[float]) -> float | None:
    """Requests a second between the first and the last; None if they came at once (within a nanosecond)."""
    seconds = times[-1] - times[0]
    return (len(times) - 1) / seconds if seconds > 1e-9 else None


def scaled_times(times: Sequence[float], rate: float) -> list[float]:
    """The same times, the first at 0, stretched to this mean rate; all that came at once still do."""
    recorded = mean_rate(times)
    factor = recorded / rate if recorded else 0.0
    return [(time - times[0]) * factor for time in times]
