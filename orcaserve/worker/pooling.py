"""Pools: what becomes of the hidden states of requests that want an embedding in place of text.

Which tokens of a prompt an iteration brings depends on what runs beside it, and an embedding must not: so hidden states
are added up one after the other, in float64, however many come at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from orcaserve.core import BatchEntry, Pooling
from orcaserve.model.layout import Int32s, Layout
from orcaserve.model.parameter import Floats

MOST_FLOATS = (
    2**16
)  # of hidden states after the norm, at a time: these and what they are made of stay in a core's cache


class Pool:
    """The mean of the rows that are added. n: how many there are; who does not run the last layers has none."""

    def __init__(self) -> None:
        self.n = 0
        self._sum: np.ndarray[tuple[int], np.dtype[np.float64]] | None = None

    def add(self, rows: Floats) -> None:
        """rows: hidden states after the last norm [n, hidden], in the order of their tokens."""
        if self._sum is None:
            self._sum = np.zeros(rows.shape[1], np.float64)
        for row in rows:
            self._sum += row
        self.n += len(rows)

    def mean(self) -> bytes | None:
        """float32, little-endian; None if it holds what is no number. There is a row."""
        assert self._sum is not None
        with np.errstate(over="ignore", invalid="ignore"):
            mean = (self._sum / self.n).astype("<f4")
        return mean.tobytes() if np.isfinite(mean).all() else None


@dataclass(frozen=True, slots=True)
class PooledRows:
    """Consecutive rows of the flat batch, n from `first` on, whose hidden states are added to a pool."""

    first: int
    n: int
    pool: Pool


class Pools:
    """Of all requests that want an embedding, from their first piece to their last. Not thread-safe."""

    def __init__(self) -> None:
        self._pools: dict[int, Pool] = {}

    def drop(self, request_id: int) -> None:
        """Forget it; unknown ones are no error."""
        self._pools.pop(request_id, None)

    def rows(self, entries: Sequence[BatchEntry], layout: Layout) -> list[PooledRows]:
        """What is pooled in an iteration. entries: those of the layout, in its order."""
        rows = []
        for entry, first in zip(entries, layout.starts.tolist(), strict=False):
            n = len(entry.tokens)
            if entry.pooling is Pooling.MEAN:
                rows.append(PooledRows(first, n, self._pools.setdefault(entry.request_id, Pool())))
            elif entry.pooling is Pooling.LAST and not entry.n_to_come:
                rows.append(PooledRows(first + n - 1, 1, self._pools.setdefault(entry.request_id, Pool())))
        return rows

    def take(self, entries: Sequence[BatchEntry]) -> dict[int, bytes | None]:
        """Once the iteration has run: the embeddings of those whose last tokens it had, as Pool.mean gives them.
        Empty at workers that do not run the last layers."""
        taken = {}
        for entry in entries:
            if entry.pooling is not None and not entry.n_to_come and (pool := self._pools.pop(entry.request_id)).n:
                taken[entry.request_id] = pool.mean()
        return taken


def fill(pooled: Sequence[PooledRows], width: int, normed: Callable[[Int32s], Floats]) -> None:
    """normed: rows of the flat batch -> their hidden states after the last norm [n, width]."""
    rows = np.concatenate([np.arange(each.first, each.first + each.n, dtype=np.int32) for each in pooled])
    ends = np.cumsum([each.n for each in pooled]).tolist()
    n_most = max(MOST_FLOATS // width, 1)
    whose = 0
    for begin in range(0, len(rows), n_most):
        some = normed(rows[begin : begin + n_most])
        at = 0
        while at < len(some):
            n = min(ends[whose] - begin, len(some)) - at
            pooled[whose].pool.add(some[at : at + n])
            at += n
            whose += ends[whose] == begin + at
