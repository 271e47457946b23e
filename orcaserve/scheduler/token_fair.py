"""TokenFair: the client that has been given the fewest tokens comes first (the counters of Sheng et al., 2024)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from orcaserve.core import Request
from orcaserve.scheduler.order import Order

MANY = 1024  # clients who have nothing here, after which it is looked who of them can be forgotten
MEMORY = 32  # ended requests over which the usual length of an output is averaged, roughly


@dataclass(slots=True)
class _Account:
    """tokens: given to the client so far, over its weight: the virtual counter. n_live: its requests, waiting or not.

    queue: those who wait, with their places in the order of arrival. usual: output tokens of its requests, once some
    have ended.
    """

    tokens: float
    n_live: int = 0
    queue: OrderedDict[int, tuple[int, Request]] = field(default_factory=OrderedDict)
    usual: float | None = None

    def rank(self) -> tuple[float, int]:
        """The lowest is next. Somebody waits."""
        return self.tokens, next(iter(self.queue.values()))[0]


class _Level:
    """The clients of one priority.

    Its heap has an entry (counter, place of the head of the queue, client) for every queue as it is now, and maybe some
    of how queues and counters were before.
    """

    def __init__(self) -> None:
        self.accounts: dict[str, _Account] = {}
        self.n_live = self.n_waiting = 0
        self._heap: list[tuple[float, int, str]] = []
        self._reached = 0.0  # the counter of whoever was admitted last, before it was charged
        self._many = MANY

    def add(self, request: Request, place: int) -> None:
        client = request.terms.client
        account = self.accounts.get(client)
        if account is None:
            account = self.accounts[client] = _Account(self._reached)
        account.n_live += 1
        self.n_live += 1
        if not account.queue:
            account.tokens = max(account.tokens, self._reached)
        self.wait(request, place, False)

    def wait(self, request: Request, place: int, first: bool) -> None:
        account = self.accounts[request.terms.client]
        account.queue[request.id] = place, request
        self.n_waiting += 1
        if first:
            account.queue.move_to_end(request.id, last=False)
        if first or len(account.queue) == 1:
            self._enter(request.terms.client, account)

    def first(self) -> Request:
        """Somebody waits."""
        while True:
            tokens, place, client = self._heap[0]
            account = self.accounts.get(client)
            if account is not None and account.queue and account.rank() == (tokens, place):
                return next(iter(account.queue.values()))[1]
            heappop(self._heap)

    def admit(self, request: Request) -> int:
        """The output tokens that are expected of it."""
        account = self.accounts[request.terms.client]
        self._reached = max(self._reached, account.tokens)
        self._unqueue(request, account)
        n_most = request.params.max_tokens - request.n_carried
        return n_most if account.usual is None else min(n_most, round(account.usual))

    def admit_again(self, request: Request) -> None:
        account = self.accounts[request.terms.client]
        self._unqueue(request, account)
        self._enter(request.terms.client, account)

    def charge(self, request: Request, n: int) -> None:
        account = self.accounts[request.terms.client]
        account.tokens += n / request.terms.weight
        self._enter(request.terms.client, account)

    def has_ended(self, request: Request) -> None:
        """Its output is what is usual for its client, a little."""
        account = self.accounts[request.terms.client]
        n = len(request.output) - request.n_carried
        usual = n if account.usual is None else account.usual
        account.usual = usual + (n - usual) / MEMORY

    def leave(self, request: Request) -> bool:
        """Whether it waited."""
        account = self.accounts[request.terms.client]
        waited = request.id in account.queue
        if waited:
            self._unqueue(request, account)
            self._enter(request.terms.client, account)
        account.n_live -= 1
        self.n_live -= 1
        if len(self.accounts) > self._many:
            self.accounts = {client: account for client, account in self.accounts.items() if account.n_live}
            self._many = max(MANY, 2 * len(self.accounts))
        return waited

    def _unqueue(self, request: Request, account: _Account) -> None:
        """The caller enters the client anew."""
        del account.queue[request.id]
        self.n_waiting -= 1

    def _enter(self, client: str, account: _Account) -> None:
        """Its counter or the head of its queue is another."""
        if not account.queue:
            return
        if len(self._heap) > 4 * len(self.accounts) + 64:  # mostly of how things were before
            self._heap = [(*each.rank(), name) for name, each in self.accounts.items() if each.queue]
            heapify(self._heap)
        else:
            heappush(self._heap, (*account.rank(), client))


class TokenFair(Order):
    """Clients share tokens by weight; first come, first served, among the requests of one client and priority.

    A request is charged to its client when it is admitted: its input tokens, and as many output tokens as those of this
    client have had on the average (at most those it asked for). When it ends, the charge becomes what it really was:
    all of its input, and the tokens that came. So a client that starts many at once is not taken for one that has been
    given nothing. Everything is divided by the weight. A client that comes while none of its requests wait starts where
    the one is that was admitted last: nobody saves up turns. Every
    priority has counters of its own; when nobody of it is there all begin anew.

    Promise: while two clients always have something waiting, at one priority, the tokens that were given to them, over
    their weights, drift apart by at most 2 L / w in whatever span of time, and by L / w if they started together. w is
    the smaller weight, L the most tokens that those admitted at one time may have (so at most all K/V slots, as long as
    no prefixes are shared). For say f was admitted last, when its counter was the lower one. A counter is tokens given,
    plus what is charged and still to be given; so f was behind but for charges of g that run, and it gets at most what
    its own requests that run may still have. All of these hold slots at that moment.
    """

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}
        self._priorities: list[int] = []  # a heap; those at which somebody waits, and maybe others
        self._listed: set[int] = set()  # what is in it
        self._places: dict[int, int] = {}  # of live requests: in the order of arrival
        self._charged: dict[int, int] = {}  # of requests that were ever admitted: tokens
        self._n_added = self._n_waiting = 0

    def __len__(self) -> int:
        return self._n_waiting

    def __iter__(self) -> Iterator[Request]:
        for _, level in sorted(self._levels.items()):
            for account in level.accounts.values():
                for _, request in account.queue.values():
                    yield request

    def add(self, request: Request) -> None:
        self._n_added += 1
        self._n_waiting += 1
        self._places[request.id] = self._n_added
        level = self._levels.get(request.terms.priority)
        if level is None:
            level = self._levels[request.terms.priority] = _Level()
        level.add(request, self._n_added)
        self._list(request.terms.priority)

    def first(self) -> Request | None:
        while self._priorities:
            level = self._levels.get(self._priorities[0])
            if level is not None and level.n_waiting:
                return level.first()
            self._listed.discard(heappop(self._priorities))
        return None

    def admit(self, request: Request) -> None:
        level = self._levels[request.terms.priority]
        self._n_waiting -= 1
        if request.id in self._charged:  # it was put back
            level.admit_again(request)
            return
        n = request.n_input + request.n_carried + level.admit(request)
        self._charged[request.id] = n
        level.charge(request, n)

    def put_back(self, request: Request) -> None:
        self._n_waiting += 1
        self._levels[request.terms.priority].wait(request, self._places[request.id], True)
        self._list(request.terms.priority)

    def leave(self, request: Request) -> None:
        level = self._levels[request.terms.priority]
        charged = self._charged.pop(request.id, None)
        if charged is not None:
            level.has_ended(request)
            level.charge(request, request.n_input + len(request.output) - charged)
        self._n_waiting -= level.leave(request)
        del self._places[request.id]
        if not level.n_live:
            del self._levels[request.terms.priority]

    def tokens_of(self, client: str, priority: int = 0) -> float:
        """The client's counter."""
        return self._levels[priority].accounts[client].tokens

    def _list(self, priority: int) -> None:
        if priority not in self._listed:
            if len(self._listed) > 4 * len(self._levels) + 64:  # mostly of those who have left
                self._listed, self._priorities = set(self._levels), sorted(self._levels)
                return
            self._listed.add(priority)
            heappush(self._priorities, priority)
