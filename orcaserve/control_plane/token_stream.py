"""TokenStream: the news of one request, from the reader of reports to whoever serves the request."""

from __future__ import annotations

import asyncio

from orcaserve.core import Progress


class TokenStream:
    """An async iterator over lists of Progress; ends after the list that holds the request's finish reason.

    News that the consumer has not taken yet merges into one list, so a slow consumer holds nobody up. The list is
    bounded by the request's own max_tokens. One consumer at a time; everything happens on one event loop.
    """

    def __init__(self, request_id: int) -> None:
        self.request_id = request_id
        self._news: list[Progress] = []
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """The request is over (its last news may still be unread)."""
        return self._ended

    def put(self, progress: Progress) -> None:
        """Add news; never blocks. For the engine client only."""
        if self._ended:
            return
        self._news.append(progress)
        self._ended = progress.finish_reason is not None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

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
