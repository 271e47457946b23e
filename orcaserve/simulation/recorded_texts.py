"""Texts that begin alike where those of a schedule log did, of which it tells no token."""

from __future__ import annotations

from collections.abc import Sequence

from orcaserve.core import Request
from orcaserve.schedule_log.format import Event, HandedOut, Taken
from orcaserve.scheduler.prefix_cache import Block, PrefixCache, owner_of

FIRST_TOKEN = 2  # others mean something


class RecordedTexts:
    """A page that was a block of the log's, or was equal to one, has that block's tokens; any other page has tokens of
    its own. So requests find in each other the pages that they found then.

    takers: requests that have taken something before they had output: after that, everybody may.
    """

    def __init__(self, events: Sequence[Event], page_size: int) -> None:
        self._page_size = page_size
        self._pages: dict[tuple[int, int], int] = {}  # request, page -> block
        self._same: dict[int, int] = {}  # block -> one that holds the same
        self._n_blocks: dict[int, int] = {}  # request -> pages of its table that are blocks by now
        self._first_tokens: dict[object, int] = {}  # of a block, or of a page that is none
        self._have_output: set[int] = set()
        self.takers: set[int] = set()
        for event in events:
            if isinstance(event, HandedOut):
                self._note(event)

    def text(self, request_id: int, n: int) -> list[int]:
        """The first n tokens, input and output."""
        tokens: list[int] = []
        for page in range(-(-n // self._page_size)):
            block = self._pages.get((request_id, page))
            first = self._first_token((request_id, page) if block is None else self._one_of(block))
            tokens += range(first, first + self._page_size)
        return tokens[:n]

    def token(self, request_id: int, index: int) -> int:
        page, place = divmod(index, self._page_size)
        block = self._pages.get((request_id, page))
        return self._first_token((request_id, page) if block is None else self._one_of(block)) + place

    def _note(self, event: HandedOut) -> None:
        for request_id in event.preempted:  # it starts anew
            self._n_blocks.pop(request_id, None)
        for taken in event.taken:
            if taken.id not in self._have_output:
                self.takers.add(taken.id)
            for page, block in enumerate(taken.blocks):
                self._is(taken.id, page, block)
            self._n_blocks[taken.id] = len(taken.blocks)
        self._have_output |= {piece.id for piece in event.initiations if not piece.n_to_come}
        for filled in event.filled:
            first = self._n_blocks.get(filled.id, 0)
            for i in range(filled.n):
                self._is(filled.id, first + i, filled.first + i)
            self._n_blocks[filled.id] = first + filled.n
            if filled.twin:
                self._is(filled.id, first + filled.n, filled.twin)

    def _is(self, request_id: int, page: int, block: int) -> None:
        """Of a request that started anew the page may have been another block before, with the same tokens."""
        before = self._pages.setdefault((request_id, page), block)
        one, other = self._one_of(before), self._one_of(block)
        if one != other:
            self._same[max(one, other)] = min(one, other)

    def _one_of(self, block: int) -> int:
        """The same for all blocks that hold the same."""
        while (other := self._same.get(block)) is not None:
            block = other
        return block

    def _first_token(self, page: object) -> int:
        return self._first_tokens.setdefault(page, FIRST_TOKEN + len(self._first_tokens) * self._page_size)


class RecordedPrefixes(PrefixCache):
    """A PrefixCache over RecordedTexts. They say which pages are equal, but not how many tokens two pages begin with in
    common: what was copied is told by the log. taken: by those that begin in the batch that is asked for next.
    """

    def __init__(self, page_size: int, limit: int | None) -> None:
        super().__init__(page_size, limit)
        self.taken: dict[int, Taken] = {}

    def find_part(self, request: Request, path: Sequence[Block], batch: int) -> tuple[Block, int] | None:
        taken = self.taken.get(request.id)
        n = 0 if taken is None else taken.n_cached - len(path) * self.page_size
        if taken is None or not 0 < n < self.page_size:
            return None
        above = path[-1] if path else self._roots.get(owner_of(request))
        children = () if above is None else above.children.values()
        source = next((block for block in children if block.id == taken.copied), None)
        return None if source is None else (source, n)
