"""RecordedTexts: texts that begin alike where those of a schedule log did, of which it tells no token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from orcaserve.schedule_log.format import Event, HandedOut

FIRST_TOKEN = 2  # others mean something


class RecordedTexts:
    """A page of a text that was a block of the log's, or was equal to one, is that block's; all other tokens are unlike
    any others, but for what was copied from a block. So requests find in each other what they found then.
    """

    def __init__(self, events: Sequence[Event], page_size: int) -> None:
        self._page_size = page_size
        self._new = count(FIRST_TOKEN)
        self._blocks: dict[int, list[int]] = {}  # of a request, the blocks that its pages were, from the first on
        self._copied: dict[
            tuple[int, int], tuple[int, int]
        ] = {}  # request, page -> the block it was copied from, tokens
        self._owner: dict[int, tuple[int, int]] = {}  # block -> the request and the page that it was made of
        self._tokens: dict[int, list[int]] = {}  # of blocks
        self._own: dict[tuple[int, int], list[int]] = {}  # of pages that were no block
        self.takers: set[int] = set()  # requests that have taken something
        for event in events:
            if isinstance(event, HandedOut):
                self._note(event)

    def text(self, request_id: int, n: int) -> list[int]:
        """The first n tokens, input and output."""
        tokens: list[int] = []
        for page in range(-(-n // self._page_size)):
            tokens += self._page(request_id, page)
        return tokens[:n]

    def _note(self, event: HandedOut) -> None:
        for request_id in event.preempted:
            self._blocks.pop(request_id, None)  # it starts anew, and finds what it has made itself
        for taken in event.taken:
            self.takers.add(taken.id)
            self._blocks[taken.id] = list(taken.blocks)
            n_copied = taken.n_cached - len(taken.blocks) * self._page_size
            if n_copied:
                self._copied.setdefault((taken.id, len(taken.blocks)), (taken.copied, n_copied))
        for filled in event.filled:
            blocks = self._blocks.setdefault(filled.id, [])
            for block in range(filled.first, filled.first + filled.n):
                self._owner[block] = filled.id, len(blocks)
                blocks.append(block)
            if filled.twin:
                blocks.append(filled.twin)

    def _page(self, request_id: int, page: int) -> list[int]:
        blocks = self._blocks.get(request_id, ())
        return self._block(blocks[page]) if page < len(blocks) else self._unlike(request_id, page)

    def _block(self, block: int) -> list[int]:
        tokens = self._tokens.get(block)
        if tokens is None:
            owner = self._owner.get(block, (-1, block))  # made before the log begins
            tokens = self._tokens[block] = self._unlike(*owner)
        return tokens

    def _unlike(self, request_id: int, page: int) -> list[int]:
        """The tokens of a page that nobody had made before."""
        tokens = self._own.get((request_id, page))
        if tokens is None:
            block, n = self._copied.get((request_id, page), (0, 0))
            tokens = self._block(block)[:n] if n else []
            tokens = self._own[request_id, page] = tokens + [next(self._new) for _ in range(self._page_size - n)]
        return tokens
