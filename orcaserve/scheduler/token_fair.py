"""TokenFair: the client that has been given the fewest tokens comes first (the counters of Sheng et al., 2024)."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from orcaserve.core import Request
from orcaserve.scheduler.order import Order

MANY = 1024  # clients who have nothing here, after which it is looked who of them can be forgotten
MEMORY = 32  # ended requests over which the usual length of an output is averaged, roughly

_Queue = OrderedDict[int, Request]
_Entry = tuple[float, int, str]  # counter, number of the head of its queue, client


@dataclass(slots=True)
class _Account:
    """tokens: given to the client so far, over its weight: the virtual counter. n_live: its requests, waiting or not.

    waits: how many of its requests wait at which priority. usual: output tokens of its requests, once some have ended.
    """

    tokens: float
    n_live: int = 0
    waits: Counter[int] = field(default_factory=Counter)
    usual: float | None = None


@dataclass(slots=True)
class _Level:
    """Those of one priority who wait: a queue for each client, and a heap of clients, the next one first.

    The heap has an entry for every queue as it is now, and maybe some of how queues and counters were before.
    """

    queues: dict[str, _Queue] = field(default_factory=dict)
    heap: list[_Entry] = field(default_factory=list)


class TokenFair(Order):
    """Clients share tokens by weight; first come, first served, among the requests of one client and priority.

    A request is charged to its client when it is admitted: its input tokens, and as many output tokens as those of this
    client have had on the average (at most those it asked for). When it ends, the charge becomes what it really was:
    all of its input, and the tokens that came. So a client that starts many at once is not taken for one that has been
    given nothing. Everything is divided by the weight. A client that comes while none of its requests wait starts where
    the one is that was admitted last: nobody saves up turns. When nobody is there all begin anew.

    Promise: while two clients always have something waiting, at one priority, the tokens that were given to them, over
    their weights, drift apart by at most 2 L / w in whatever span of time, and by L / w if they started together. w is
    the smaller weight, L the most tokens that those admitted at one time may have (so at most all K/V slots, as long as
    no prefixes are shared). For say f was admitted last, when its counter was the lower one. A counter is tokens given,
    plus what is charged and still to be given; so f was behind but for charges of g that run, and it gets at most what
    its own requests that run may still have. All of these hold slots at that moment.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._levels: dict[int, _Level] = {}
        self._priorities: list[int] = []  # a heap; those of `_levels`
        self._numbers: dict[int, int] = {}  # of live requests: place in the order of arrival
        self._charged: dict[int, int] = {}  # of admitted requests: tokens
        self._n_added = self._n_waiting = 0
        self._reached = 0.0  # the counter of whoever was admitted last, before it was charged
        self._many = MANY

    def __len__(self) -> int:
        return self._n_waiting

    def __iter__(self) -> Iterator[Request]:
        for priority in sorted(self._levels):
            for queue in self._levels[priority].queues.values():
                yield from queue.values()

    def add(self, request: Request) -> None:
        self._n_added += 1
        self._numbers[request.id] = self._n_added
        account = self._account(request.terms.client)
        account.n_live += 1
        if not account.waits:
            account.tokens = max(account.tokens, self._reached)
        self._wait(request, account)

    def first(self) -> Request | None:
        while self._priorities:
            level = self._levels[self._priorities[0]]
            while level.queues:
                entry = level.heap[0]
                queue = level.queues.get(entry[2])
                if queue is not None:
                    head = next(iter(queue))
                    if entry == (self._accounts[entry[2]].tokens, self._numbers[head], entry[2]):
                        return queue[head]
                heappop(level.heap)
            del self._levels[heappop(self._priorities)]
        return None

    def admit(self, request: Request) -> None:
        account = self._accounts[request.terms.client]
        self._unqueue(request, account)
        if request.id in self._charged:  # it is put back, and was charged for
            self._renew(request.terms.client, account)
            return
        self._reached = max(self._reached, account.tokens)
        n_most = request.params.max_tokens - request.n_carried
        n_output = n_most if account.usual is None else min(n_most, round(account.usual))
        self._charged[request.id] = n = request.n_input + request.n_carried + n_output
        self._charge(request, account, n)

    def put_back(self, request: Request) -> None:
        self._wait(request, self._accounts[request.terms.client], first=True)

    def leave(self, request: Request) -> None:
        account = self._accounts[request.terms.client]
        queued = self._is_queued(request)
        if queued:
            self._unqueue(request, account)
        charged = self._charged.pop(request.id, None)
        if charged is not None:
            n_output = len(request.output) - request.n_carried
            usual = n_output if account.usual is None else account.usual
            account.usual = usual + (n_output - usual) / MEMORY
            self._charge(request, account, request.n_input + len(request.output) - charged)
        elif queued:
            self._renew(request.terms.client, account)
        del self._numbers[request.id]
        account.n_live -= 1
        self._forget()

    def tokens_of(self, client: str) -> float:
        """The client's counter."""
        return self._accounts[client].tokens

    def _account(self, client: str) -> _Account:
        account = self._accounts.get(client)
        if account is None:
            account = self._accounts[client] = _Account(self._reached)
        return account

    def _wait(self, request: Request, account: _Account, first: bool = False) -> None:
        client, priority = request.terms.client, request.terms.priority
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = _Level()
            heappush(self._priorities, priority)
        queue = level.queues.setdefault(client, OrderedDict())
        queue[request.id] = request
        account.waits[priority] += 1
        self._n_waiting += 1
        if first:
            queue.move_to_end(request.id, last=False)
        if first or len(queue) == 1:
            self._renew(client, account)

    def _is_queued(self, request: Request) -> bool:
        level = self._levels.get(request.terms.priority)
        return level is not None and request.id in level.queues.get(request.terms.client, ())

    def _unqueue(self, request: Request, account: _Account) -> None:
        """The caller renews the client's entries."""
        priority = request.terms.priority
        queues = self._levels[priority].queues
        del queues[request.terms.client][request.id]
        if not queues[request.terms.client]:
            del queues[request.terms.client]
        account.waits[priority] -= 1
        if not account.waits[priority]:
            del account.waits[priority]
        self._n_waiting -= 1

    def _charge(self, request: Request, account: _Account, n: int) -> None:
        account.tokens += n / request.terms.weight
        self._renew(request.terms.client, account)

    def _renew(self, client: str, account: _Account) -> None:
        """Its counter or the head of a queue is another: enter it anew wherever it waits."""
        for priority in account.waits:
            level = self._levels[priority]
            if len(level.heap) > 4 * len(level.queues) + 64:  # mostly of how things were before
                level.heap = [self._entry(each, queue) for each, queue in level.queues.items()]
                heapify(level.heap)
            else:
                heappush(level.heap, self._entry(client, level.queues[client]))

    def _entry(self, client: str, queue: _Queue) -> _Entry:
        return self._accounts[client].tokens, self._numbers[next(iter(queue))], client

    def _forget(self) -> None:
        if not self._numbers:
            self._accounts.clear()
            self._levels.clear()
            self._priorities.clear()
            self._reached = 0.0
        elif len(self._accounts) > self._many:
            self._accounts = {client: account for client, account in self._accounts.items() if account.n_live}
            self._many = max(MANY, 2 * len(self._accounts))
