"""Layout: how the requests of an iteration lie in its flat [sum of L, hidden] arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int32s = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Request r owns rows starts[r] .. starts[r+1] of every flat array; its page table says where its K/V lies.

    starts: [R + 1] int32. contexts: [R] int32, tokens whose K/V the request had before this iteration.
    page_tables: [R, most pages] int32, padded with -1.
    """

    starts: Int32s
    contexts: Int32s
    page_tables: Int32s

    @classmethod
    def build(cls, pieces: Sequence[tuple[int, int]], page_tables: Int32s, page_size: int) -> Layout:
        """pieces: per request (tokens of this iteration, tokens before it). ValueError if sizes disagree."""
        n = len(pieces)
        if n == 0:
            raise ValueError("a layout holds at least one request")
        if page_tables.dtype != np.int32 or page_tables.ndim != 2 or page_tables.shape[0] != n:
            raise ValueError(
                f"page_tables must be int32 of [{n}, pages], is {page_tables.dtype} of {list(page_tables.shape)}"
            )
        both = np.array(pieces, dtype=np.int32)
        lengths, contexts = both[:, 0], both[:, 1]
        if lengths.min() < 1 or contexts.min() < 0:
            raise ValueError("every request has at least one token, and no fewer than 0 before it")
        _check_tables(page_tables, -(-(lengths + contexts) // page_size))
        starts = np.zeros(n + 1, dtype=np.int32)
        lengths.cumsum(out=starts[1:])
        return cls(starts, np.ascontiguousarray(contexts), np.ascontiguousarray(page_tables))

    @property
    def n_requests(self) -> int:
        return len(self.contexts)

    @property
    def n_tokens(self) -> int:
        return int(self.starts[-1])

    @property
    def lengths(self) -> Int32s:
        """[R] tokens of every request in this iteration."""
        return np.diff(self.starts)

    @property
    def positions(self) -> Int32s:
        """[N] token index of every row: contexts[r] + i - starts[r] for row i of request r."""
        rows = np.arange(self.n_tokens, dtype=np.int32)
        return rows + np.repeat(self.contexts - self.starts[:-1], self.lengths)

    @property
    def last_rows(self) -> Int32s:
        """[R] the row of every request's last token."""
        return self.starts[1:] - np.int32(1)


def _check_tables(tables: Int32s, needed: Int32s) -> None:
    """Every request has as many pages as its tokens fill."""
    width = tables.shape[1]
    if needed.max() > width or ((tables < 0) & (np.arange(width) < needed[:, None])).any():
        raise ValueError("a request's page table is shorter than its tokens")
