"""Order: in which order those who wait are admitted; FirstCome: in order of arrival."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush

from orcaserve.core import Request


class Order(ABC):
    """Those who wait. Whoever has a lower `Terms.priority` comes first, whatever else an order goes by.

    Every verb takes at most the logarithm of how many wait.
    """

    @abstractmethod
    def __len__(self) -> int:
        """How many wait."""

    @abstractmethod
    def __iter__(self) -> Iterator[Request]:
        """All who wait. For an order that depends on what comes, one of the orders in which they may be admitted."""

    @abstractmethod
    def add(self, request: Request) -> None:
        """It waits now, as the latest arrival."""

    @abstractmethod
    def first(self) -> Request | None:
        """Whose turn it is; None if nobody waits."""

    @abstractmethod
    def admit(self, request: Request) -> None:
        """`first` waits no longer: it has been given its slots."""

    @abstractmethod
    def put_back(self, request: Request) -> None:
        """It was admitted and has lost its slots: it waits again, before those of its kind who came later. Of several,
        the latest first."""

    @abstractmethod
    def leave(self, request: Request) -> None:
        """It has ended, whether it waited or had been admitted."""


class FirstCome(Order):
    """First come, first served, among those of one priority."""

    def __init__(self) -> None:
        self._levels: dict[int, OrderedDict[int, Request]] = {}
        self._priorities: list[int] = []  # a heap; those of `_levels`, and maybe some that are empty
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[Request]:
        for priority in sorted(self._levels):
            yield from self._levels[priority].values()

    def add(self, request: Request) -> None:
        priority = request.terms.priority
        level = self._levels.get(priority)
        if level is None:
            if len(self._levels) > 4 * self._n + 64:  # mostly of those who have left
                self._levels = {number: each for number, each in self._levels.items() if each}
                self._priorities = sorted(self._levels)
            level = self._levels[priority] = OrderedDict()
            heappush(self._priorities, priority)
        level[request.id] = request
        self._n += 1

    def first(self) -> Request | None:
        while self._priorities:
            level = self._levels[self._priorities[0]]
            if level:
                return next(iter(level.values()))
            del self._levels[heappop(self._priorities)]
        return None

    def admit(self, request: Request) -> None:
        del self._levels[request.terms.priority][request.id]
        self._n -= 1

    def put_back(self, request: Request) -> None:
        self.add(request)
        self._levels[request.terms.priority].move_to_end(request.id, last=False)

    def leave(self, request: Request) -> None:
        level = self._levels.get(request.terms.priority)
        if level is not None and level.pop(request.id, None) is not None:
            self._n -= 1
