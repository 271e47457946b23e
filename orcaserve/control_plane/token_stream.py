"""TokenStream: the news of one request, from the reader of reports to whoever serves the request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from orcaserve.core import Progress


class TokenStream:
    """Read in one of two ways, by one reader, on one event loop:

        async for news in stream: ...    lists of Progress, until the one that holds the request's finish reason
        stream.listen(take)              each Progress as it comes; no task has to be woken for it

    News that the first kind of reader has not taken yet merges into one list, so a slow one holds nobody up. The list
    is bounded by the request's own max_tokens.
    """

    def __init__(self, request_id: int) -> None:
        self.request_id = request_id
        self._news: list[Progress] = []
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._listener: Callable[[Progress], None] | None = None

    @property
    def ended(self) -> bool:
        """The request is over (its last news may still be unread)."""
        return self._ended

    def put(self, progress: Progress) -> None:
        """Add news; never blocks. For the engine client only."""
        if self._ended:
            return
        self._ended = progress.finish_reason is not None
        if self._listener is not None:
            self._listener(progress)
            return
        self._news.append(progress)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def listen(self, take: Callable[[Progress], None]) -> None:
        """Have `take` called with all news, those that wait already first. It must return at once, and never raise."""
        waiting, self._news = self._news, []
        self._listener = take
        for progress in waiting:
            take(progress)

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> list[Progress]:
        if not self._news:
            if self._ended:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        news, self._news = self._news, []
        return news
