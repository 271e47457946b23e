"""Deadlines: who can no longer make it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from math import inf

from orcaserve.core import Request

_Entry = tuple[float, int, int, bool]  # when to look at it, a number, request id, whether it must have begun by then


class Deadlines:
    """Of live requests that have any, a heap by the time at which each is to be looked at. Costs nothing without them.

    seconds_to_begin: what a request's initiation takes, as far as anybody can tell.
    """

    def __init__(self, seconds_to_begin: Callable[[Request], float]) -> None:
        self._seconds_to_begin = seconds_to_begin
        self._requests: dict[int, Request] = {}
        self._heap: list[_Entry] = []
        self._n_pushed = 0

    def add(self, request: Request) -> None:
        """Its arrival is set."""
        terms = request.terms
        if terms.timeout is None and terms.first_token is None:
            return
        if len(self._heap) > 4 * len(self._requests) + 64:  # mostly of those who have left
            self._heap = [entry for entry in self._heap if entry[2] in self._requests]
            heapify(self._heap)
        self._requests[request.id] = request
        self._push(self._begin_by(request), request, True)
        if terms.timeout is not None:
            self._push(request.arrival + terms.timeout, request, False)

    def forget(self, request_id: int) -> None:
        """It has left. Idempotent."""
        self._requests.pop(request_id, None)

    @property
    def next(self) -> float:
        """When somebody is to be looked at again; infinity: never."""
        return self._heap[0][0] if self._heap else inf

    def passed(self, now: float, has_begun: Callable[[Request], bool]) -> Iterator[Request]:
        """Those who cannot begin in time any more, and those who should have ended, each once or twice."""
        later = []
        while self._heap and self._heap[0][0] <= now:
            _, _, request_id, is_to_begin = heappop(self._heap)
            request = self._requests.get(request_id)
            if request is None or (is_to_begin and has_begun(request)):
                continue
            if is_to_begin and self._begin_by(request) > now:  # initiations take less time than it seemed
                later.append(request)
            else:
                yield request
        for request in later:
            self._push(self._begin_by(request), request, True)

    def _begin_by(self, request: Request) -> float:
        """From then on it is late, if it has not begun before."""
        terms = request.terms
        seconds = min(terms.timeout or terms.first_token or 0.0, terms.first_token or terms.timeout or 0.0)
        return request.arrival + seconds - self._seconds_to_begin(request)

    def _push(self, time: float, request: Request, is_to_begin: bool) -> None:
        self._n_pushed += 1
        heappush(self._heap, (time, self._n_pushed, request.id, is_to_begin))
