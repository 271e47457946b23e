"""The Attention K/V manager: which pages hold whose keys and values, from a request's first iteration to its drop."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np

from orcaserve.core.window import LEAST_WINDOW, pages_behind
from orcaserve.model.layout import Int32s, Layout

_INT32 = "i"
_NO_PAGES = array(_INT32)
_NO_PAGE = b"\xff" * 4  # -1


class KVManager:
    """Hands out the pages of a region of n_slots slots.

    A page is in the page tables of one request, or of several once it is a block: then it is full, and nobody writes to
    it. It is free again when it is in no page table, and no block any more.

    With a window a request gives back, after each iteration, the pages of tokens that it will not read again. A token's
    place in the page table stays what it is. Places of what was given back hold the number of the first page that the
    request still has: whoever reads a masked key finds the request's own numbers there, and never beyond the region.

    A page holds page_size consecutive tokens of one request in every layer. Any page serves any request, so memory is
    never too scattered to use: a request that reserved its tokens, rounded up to whole pages, always gets them. The
    scheduler's ledger keeps the sum of reservations within n_slots; this class only hands out. Where the numbers lie is
    the K/V region's business. Not thread-safe: one worker's thread owns it.
    """

    def __init__(self, n_slots: int, page_size: int = 16, window: int | None = None) -> None:
        """window: the token at index p reads the tokens p - window + 1 .. p, in every layer; None: all up to p."""
        if page_size < 1:
            raise ValueError("page_size must be at least 1")
        if window is not None and window < LEAST_WINDOW:
            raise ValueError(f"window must be at least {LEAST_WINDOW}")
        if n_slots < page_size:
            raise ValueError(f"n_slots ({n_slots}) is less than one page of {page_size}")
        self.page_size = page_size
        self.n_pages = n_slots // page_size
        self._free = list(range(self.n_pages - 1, -1, -1))  # a stack: what was just released is still in the cache
        self._pages: dict[int, array[int]] = {}
        self._n_tokens: dict[int, int] = {}
        self._sources: dict[int, int] = {}  # of a model with an encoder: request id -> tokens that it reads
        self._window = window
        self._n_gone: dict[int, int] = {}  # request -> pages at the beginning of its table that it has given back
        self._n_holders = [0] * self.n_pages  # page tables that it is in, and 1 if it is a block
        self._blocks: dict[int, int] = {}  # block -> its page

    @property
    def n_free(self) -> int:
        """Pages that nobody owns."""
        return len(self._free)

    @property
    def n_used(self) -> int:
        """Pages that some request owns, or that are blocks."""
        return self.n_pages - len(self._free)

    def n_tokens(self, request_id: int) -> int:
        """Tokens the request has room for, all of them written once the iteration has run; 0 for an unknown request."""
        return self._n_tokens.get(request_id, 0)

    def begin_source(self, request_id: int, n_tokens: int) -> None:
        """The first n_tokens of a new request are those that an encoder reads: they lie in pages of their own, which
        no later token gets a slot of."""
        assert request_id not in self._pages, "a request begins once"
        self._sources[request_id] = n_tokens

    def extend(self, request_id: int, n_tokens: int) -> None:
        """Make room for n_tokens more tokens of the request; its first call makes it known."""
        if n_tokens < 1:
            raise ValueError("a request is extended by at least one token")
        total = self.n_tokens(request_id) + n_tokens
        pages = self._pages.get(request_id)
        n_slots = total + -self._sources[request_id] % self.page_size if self._sources else total
        n_new = -(-n_slots // self.page_size) - (len(pages) if pages else 0)
        assert n_new <= len(self._free), (
            f"request {request_id} needs {n_new} more pages and {len(self._free)} are free: "
            "it was scheduled without a reservation, or holds more than it reserved"
        )
        if pages is None:
            pages = self._pages[request_id] = array(_INT32)
        for _ in range(n_new):
            page = self._free.pop()
            pages.append(page)
            self._n_holders[page] = 1
        self._n_tokens[request_id] = total

    def leave_behind(self, request_ids: Iterable[int]) -> None:
        """Their tokens have been computed: release the pages that their next ones do not read."""
        if self._window is None:
            return
        for request_id in request_ids:
            n = pages_behind(self._n_tokens[request_id], self._window, self.page_size)
            n_before = self._n_gone.get(request_id, 0)
            if n > n_before:
                pages = self._pages[request_id]
                for page in pages[n_before:n]:
                    self._let_go(page)
                pages[:n] = pages[n : n + 1] * n
                self._n_gone[request_id] = n

    def drop(self, request_id: int) -> None:
        """Release everything the request has; of no effect for an unknown request."""
        pages = self._pages.pop(request_id, _NO_PAGES)
        for page in reversed(pages[self._n_gone.pop(request_id, 0) :]):
            self._let_go(page)
        self._n_tokens.pop(request_id, None)
        self._sources.pop(request_id, None)

    def has(self, block: int) -> bool:
        """Whether it is a block that is known."""
        return block in self._blocks

    def begin(
        self, request_id: int, blocks: Sequence[int], copied: int = 0, n_copied: int = 0
    ) -> tuple[int, int] | None:
        """The page table of a new request begins with these known blocks. n_copied: tokens that follow, copied from
        block `copied`: returns from which page to which, before anything is written to either."""
        assert request_id not in self._pages, "a request begins once"
        pages = [self._blocks[block] for block in blocks]
        if n_copied:
            source = self._blocks[copied]
        for page in pages:
            self._n_holders[page] += 1
        self._pages[request_id] = array(_INT32, pages)
        self._n_tokens[request_id] = len(pages) * self.page_size
        if not n_copied:
            return None
        assert n_copied < self.page_size
        self.extend(request_id, n_copied)
        return source, self._pages[request_id][-1]

    def keep(self, request_id: int, first_page: int, first_block: int, n: int) -> None:
        """n pages of the request, from first_page of its table on, become blocks: first_block and those that follow."""
        for i, page in enumerate(self._pages[request_id][first_page : first_page + n]):
            self._blocks[first_block + i] = page
            self._n_holders[page] += 1

    def evict(self, block: int) -> None:
        """It is no block any more; of no effect for an unknown one."""
        page = self._blocks.pop(block, None)
        if page is not None:
            self._let_go(page)

    def pages(self, request_id: int) -> tuple[int, ...]:
        """The request's pages, in the order of its tokens; without those that it has given back."""
        return tuple(self._pages.get(request_id, _NO_PAGES)[self._n_gone.get(request_id, 0) :])

    def page_tables(self, request_ids: Sequence[int]) -> Int32s:
        """[requests, most pages of any] int32, padded with -1 at the end. KeyError for an unknown request."""
        rows = [self._pages[request_id] for request_id in request_ids]
        width = max(map(len, rows), default=0)
        filled = bytearray().join([row.tobytes() + _NO_PAGE * (width - len(row)) for row in rows])
        return np.frombuffer(filled, np.int32).reshape(len(rows), width)

    def lay_out(self, entries: Sequence[tuple[int, int]], shares: bool = False) -> Layout:
        """entries: per request of an iteration (id, input tokens). Extends each and returns the iteration's layout."""
        for request_id, n_tokens in entries:
            self.extend(request_id, n_tokens)
        return self.layout_of(entries, shares)

    def layout_of(self, entries: Sequence[tuple[int, int]], shares: bool = False) -> Layout:
        """As lay_out, of requests that were extended. shares: one of them has pages that another one's tokens fill."""
        pieces = [(n_tokens, self._n_tokens[request_id] - n_tokens) for request_id, n_tokens in entries]
        tables = self.page_tables([request_id for request_id, _ in entries])
        sources = None
        if self._sources:
            sources = np.array([self._sources[request_id] for request_id, _ in entries], np.int32)
        return Layout.build(pieces, tables, self.page_size, shares, sources)

    def _let_go(self, page: int) -> None:
        self._n_holders[page] -= 1
        if self._n_holders[page] == 0:
            self._free.append(page)
