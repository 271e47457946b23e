"""Forecast: when places in the batch become free, and so when who waits begins."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

MOST_OPENINGS = 2048  # places that are looked ahead


def openings(
    running: Sequence[float],
    waiting: Sequence[float],
    n_places: int,
    speed: float,
    n_more: int,
    horizon: float = math.inf,
) -> list[float]:
    """Seconds from now at which places become free, in order: the first for the first who waits, and so on; as many as
    there are waiting, and n_more behind them, who are taken to be as long as the others on the average. None of them
    lies beyond the horizon.

    running, waiting: tokens still to be computed for each request, the latter in the order in which they begin.
    speed: tokens a second of all places together; each place has its share.
    """
    n = min(len(waiting) + n_more, MOST_OPENINGS)
    of_place = speed / n_places
    free = [left / of_place for left in running]
    free += [0.0] * (n_places - len(free))
    heapq.heapify(free)
    known = (*waiting, *running)
    usual = sum(known) / len(known) if known else 1.0
    found = []
    for number in range(n):
        if free[0] > horizon:
            break
        length = waiting[number] if number < len(waiting) else usual
        found.append(free[0])
        heapq.heapreplace(free, free[0] + length / of_place)
    return found
