"""OngoingRequests: every unfinished request with what it has been given so far, whichever engine runs it."""

from __future__ import annotations

from collections.abc import Container
from itertools import islice

from orcaserve.control_plane.client import EngineClient
from orcaserve.control_plane.token_stream import TokenStream
from orcaserve.core import FinishReason, LiveRequest, LiveState, Progress, Request
from orcaserve.core.errors import CRASHED_TWICE, ENGINE_LOST

MAX_CRASHES = 2  # a request that ran in so many is not run again: it may be their cause


class _Ongoing:
    """One request: the tokens that come are noted in request.output, then passed on.

    engine: who runs it now, None while it waits for one. n_crashes: engines that have died while they ran it.
    """

    __slots__ = ("engine", "n_crashes", "owner", "request", "stream")

    def __init__(self, request: Request, owner: OngoingRequests) -> None:
        self.request = request
        self.stream = TokenStream(request.id)
        self.engine: EngineClient | None = None
        self.n_crashes = 0
        self.owner = owner

    def take(self, news: Progress) -> None:
        """From the engine. That an engine was lost is not passed on: what comes of it is the supervisor's to say."""
        if news.finish_reason is not None:
            if news.error == ENGINE_LOST:
                return
            self.owner.forget(news.request_id)
        elif news.token is not None:
            self.request.output.append(news.token)
        self.stream.put(news)


class OngoingRequests:
    """In order of arrival. Used from one event loop.

    n_reserved: slots that they all may come to need: prompts and the most tokens they may generate.
    """

    def __init__(self) -> None:
        self._requests: dict[int, _Ongoing] = {}
        self.n_reserved = 0

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> TokenStream:
        """The news of this request until its end, from however many engines. It waits for hand_over."""
        ongoing = self._requests[request.id] = _Ongoing(request, self)
        self.n_reserved += request.max_tokens
        return ongoing.stream

    def forget(self, request_id: int) -> None:
        """It has ended, or was never begun. Idempotent."""
        ongoing = self._requests.pop(request_id, None)
        if ongoing is not None:
            self.n_reserved -= ongoing.request.max_tokens

    def move(self, request_id: int, to: OngoingRequests) -> None:
        """To others of its kind, with what it has come to; there it waits for hand_over."""
        ongoing = self._requests[request_id]
        self.forget(request_id)
        to._requests[request_id] = ongoing
        to.n_reserved += ongoing.request.max_tokens
        ongoing.owner, ongoing.engine = to, None

    @property
    def ids(self) -> list[int]:
        return list(self._requests)

    def hand_over(self, request_id: int, engine: EngineClient) -> None:
        """Have the engine run it from where it is. Raises EngineError, InvalidRequest as EngineClient.submit does."""
        ongoing = self._requests[request_id]
        news = engine.submit(ongoing.request)
        ongoing.engine = engine
        news.listen(ongoing.take)

    def hand_over_all(self, engine: EngineClient) -> None:
        """The earliest first: so they keep their places. An engine that is gone already gets nothing."""
        if engine.closed.is_set():
            return
        for request_id in self._requests:
            self.hand_over(request_id, engine)

    def cancel(self, request_id: int) -> None:
        """Nobody waits for it any more. One that no engine has ends here and now."""
        ongoing = self._requests.get(request_id)
        if ongoing is None:
            return
        ongoing.request.cancelled = True
        if ongoing.engine is None or ongoing.engine.closed.is_set():
            self._end(ongoing, FinishReason.CANCELLED, None)
        else:
            ongoing.engine.cancel(request_id)

    def crashed(self, engine: EngineClient, n_running: int) -> int:
        """The engine is gone. All it had waits for the next, but who was cancelled, and who was in too many crashes.

        Its batches in flight held the n_running earliest of its requests at most; others had no part in the crash.
        Returns how many have failed.
        """
        had = [ongoing for ongoing in self._requests.values() if ongoing.engine is engine]
        for ongoing in islice(had, n_running):
            ongoing.n_crashes += 1
        n_failed = 0
        for ongoing in had:
            ongoing.engine = None
            if ongoing.request.cancelled:
                self._end(ongoing, FinishReason.CANCELLED, None)
            elif ongoing.n_crashes >= MAX_CRASHES:
                self._end(ongoing, FinishReason.ERROR, CRASHED_TWICE)
                n_failed += 1
        return n_failed

    def waiting(self, why: str, without: Container[int]) -> list[LiveRequest]:
        """All that are not in `without`, as waiting for this reason. Their age is for others to say."""
        return [
            LiveRequest(each.id, LiveState.WAITING, 0.0, each.n_input, len(each.output), why_waiting=why)
            for each in (ongoing.request for ongoing in self._requests.values())
            if each.id not in without
        ]

    def end_all(self, message: str) -> None:
        """There will be no engine for them: all end with an error."""
        for ongoing in list(self._requests.values()):
            self._end(ongoing, FinishReason.ERROR, message)

    def _end(self, ongoing: _Ongoing, reason: FinishReason, error: str | None) -> None:
        self.forget(ongoing.request.id)
        ongoing.stream.put(Progress(ongoing.request.id, None, reason, error))
