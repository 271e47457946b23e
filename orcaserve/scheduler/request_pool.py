"""RequestPool: every live request, in arrival order, for its whole life."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from orcaserve.core import Request, RequestState


class RequestPool:
    """Live requests in arrival order; add, remove and lookup are O(1).

    An OrderedDict is a linked list. A plain dict keeps order too, but leaves a hole for every removed entry, and since
    the oldest requests end first, each walk from the head would cross the holes of thousands that are gone.
    """

    def __init__(self) -> None:
        self._requests: OrderedDict[int, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """All live requests, earliest first."""
        return iter(self._requests.values())

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._requests

    def __getitem__(self, request_id: int) -> Request:
        return self._requests[request_id]

    def get(self, request_id: int) -> Request | None:
        return self._requests.get(request_id)

    def add(self, request: Request) -> None:
        """Append as the latest arrival. Its id is not in the pool."""
        assert request.id not in self._requests
        self._requests[request.id] = request

    def remove(self, request_id: int) -> None:
        del self._requests[request_id]

    def ready(self) -> Iterator[Request]:
        """Requests that are not in a batch in flight, earliest first. Lazy: costs only what the caller looks at."""
        running = RequestState.RUNNING
        for request in self._requests.values():
            if request.state is not running:
                yield request
