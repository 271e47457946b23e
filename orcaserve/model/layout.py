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
    page_tables: [R, most pages] int32, contiguous, padded with -1.
    shares: some request's pages are filled by another one of this iteration, that comes before it.
    adapters: [R] the number of every request's adapter, 0 where it has none; None: nobody has one.
    sources: [R] int32, of a model with an encoder: how many of each request's first tokens it reads; None: no encoder.
    These lie in pages of their own, with which the page table begins.
    """

    starts: Int32s
    contexts: Int32s
    page_tables: Int32s
    shares: bool = False
    sources: Int32s | None = None
    adapters: Sequence[int] | None = None

    @classmethod
    def build(
        cls,
        pieces: Sequence[tuple[int, int]],
        page_tables: Int32s,
        page_size: int,
        shares: bool = False,
        sources: Int32s | None = None,
    ) -> Layout:
        """pieces: per request (tokens of this iteration, tokens before it). ValueError if sizes disagree.

        Made anew for every iteration while the device waits, with the interpreter's memory gone from the caches: so
        there are few calls into numpy here.
        """
        if not pieces:
            raise ValueError("a layout holds at least one request")
        n, tables = len(pieces), page_tables
        if tables.dtype != np.int32 or tables.ndim != 2 or len(tables) != n or not tables.flags.c_contiguous:
            raise ValueError(f"page_tables must be contiguous int32 [{n}, pages], is {tables.dtype} {tables.shape}")
        starts, contexts, most = [0], [], 0
        for n_tokens, context in pieces:
            if n_tokens < 1 or context < 0:
                raise ValueError("every request has at least one token, and no fewer than 0 before it")
            starts.append(starts[-1] + n_tokens)
            contexts.append(context)
            most = max(most, n_tokens + context)
        if most > tables.shape[1] * page_size:
            raise ValueError("a request's page table is shorter than its tokens")
        return cls(np.array(starts, np.int32), np.array(contexts, np.int32), tables, shares, sources)

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
