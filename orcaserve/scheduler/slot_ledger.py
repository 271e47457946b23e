"""SlotLedger: who has set aside how many K/V slots, and how many of them hold a token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from orcaserve.core import BatchEntry, Kept, Prefix, Request
from orcaserve.scheduler.prefix_cache import Block, PrefixCache


@dataclass(slots=True, eq=False)
class Holding:
    """What one request holds: all that the books have of it, in one place, since it is looked at in every iteration.

    reserved: tokens that its page table has place for, whole pages. used: tokens. path: the blocks that its page table
    begins with; n_shared: how many of those others had made. n_ahead: tokens that an iteration under way brings, which
    are counted already, for they fill blocks. closed: no further page of it becomes a block.
    """

    reserved: int
    used: int = 0
    n_ahead: int = 0
    path: list[Block] = field(default_factory=list)
    n_shared: int = 0
    closed: bool = False


class SlotLedger:
    """Books of the K/V region, in slots (one slot = one token's key and value over all layers).

    The K/V manager hands slots out in pages, so a reservation is rounded up to whole pages: what is booked here is what
    the manager can really need. page_size 1 gives the paper's exact counter. Every total is O(1).

    With a PrefixCache a page is either a request's own or a block, which any number of requests may have in their page
    tables. A page that a request fills becomes a block where it lies. At any time

        own pages of all requests + blocks in use  = n_reserved / page_size
        n_reserved + blocks that nobody uses       <= n_slots               (those are n_kept, evicted when this lacks)

    and a request's own pages are all that it can still need: so whoever was admitted can always go on.

    n_slots: usable size of the region, a multiple of page_size (a last, partial page cannot be handed out).
    n_reserved: slots set aside for admitted requests, shared ones once; never more than n_slots.
    n_used: slots that hold a token now, and full pages that an iteration under way fills; never more than n_reserved.
    """

    def __init__(self, n_slots: int, page_size: int = 1, prefixes: PrefixCache | None = None) -> None:
        assert 1 <= page_size <= n_slots, "the K/V region holds at least one page"
        assert prefixes is None or prefixes.page_size == page_size
        self.n_slots = n_slots - n_slots % page_size
        self.page_size = page_size
        self.n_reserved = 0
        self.n_used = 0
        self._holdings: dict[int, Holding] = {}  # by request id, in the order of reservation
        self._prefixes = prefixes
        self._found: dict[int, list[Block]] = {}  # of requests that were looked at and had to wait

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._holdings

    def __len__(self) -> int:
        """Requests that hold a reservation."""
        return len(self._holdings)

    @property
    def n_kept(self) -> int:
        """Slots of blocks that nobody uses: not reserved, and not free before they are evicted."""
        return self._prefixes.n_idle * self.page_size if self._prefixes else 0

    def could_ever_fit(self, request: Request, n: int) -> bool:
        """Whether the request, of n tokens, could be reserved for if nobody else held any slots."""
        return self.need(request, n) <= self.n_slots

    def need(self, request: Request, n: int) -> int:
        """What is set aside for the request if it is to have n tokens: n slots, rounded up to pages."""
        return -(-n // self.page_size) * self.page_size

    def shares(self, request: Request) -> bool:
        """Whether it takes prefixes of others, and gives."""
        return self._prefixes is not None

    def fits(self, request: Request, n: int) -> bool:
        """Whether the request, of n tokens, can be reserved for now."""
        return not self.lacking(request, n)

    def lacking(self, request: Request, n: int) -> int:
        """Slots that are missing to reserve for the request, of n tokens, now; 0 if none are."""
        free = self.n_slots - self.n_reserved
        if self.need(request, n) <= free:
            return 0
        return max(self.growth(request, n) - free, 0)

    def growth(self, request: Request, n: int) -> int:
        """What is reserved beside what is reserved now, if the request is to have n tokens: not the blocks in use."""
        return self.need(request, n) - self.page_size * sum([block.n_users > 0 for block in self.look(request)])

    def look(self, request: Request) -> Sequence[Block]:
        """What others have made of its tokens. What is found is kept, so that it takes less time the next time."""
        if not self._prefixes or not self.shares(request):
            return ()
        found = self._found[request.id] = self._prefixes.find(request, self._found.get(request.id, ()))
        return found

    def reserve(self, request: Request, n: int) -> None:
        """Set slots aside for a request that has none, for n tokens. The caller has asked `fits` first."""
        assert request.id not in self._holdings
        assert self._prefixes or self.fits(request, n)  # with prefixes the answer takes long: it is looked at below
        n = self.need(request, n)
        holding = self._holdings[request.id] = Holding(n)
        self.n_reserved += n
        if self._prefixes:
            if self.shares(request):
                self._take(holding, self._prefixes.find(request, self._found.pop(request.id, ())))
            else:
                holding.closed = True
            self._evict()
        assert self.n_reserved <= self.n_slots, "reserved more than fits"

    def begin(self, request: Request, batch: int) -> Prefix | None:
        """What a request that was reserved for has before its first iteration, in this batch: what `reserve` has found,
        pages that earlier entries of the batch will have filled, and a copy of what is equal in the next page."""
        if not self._prefixes or not self.shares(request):
            return None
        holding = self._holdings[request.id]
        path = holding.path
        found = self._prefixes.find(request, path)
        self._take(holding, found[len(path) :])
        blocks, part = [block.id for block in path], self._prefixes.find_part(request, path, batch)
        n = len(path) * self.page_size
        if part is not None:
            source, n_copied = part
            self._use(holding, n_copied)
            return Prefix(blocks, _tokens(request, n + n_copied), source.id, n_copied)
        return Prefix(blocks, _tokens(request, n)) if n else None

    def keep(self, request: Request, end: int, batch: int) -> Kept | None:
        """The request's tokens up to index `end` are in their slots once the batch has run: full pages of them become
        blocks, which whoever is looked at from now on may find."""
        holding = self._holdings[request.id]
        if not self._prefixes or holding.closed:
            return None
        path = holding.path
        before = len(path)
        twin = self._prefixes.add(request, path, end, batch)
        if twin is not None:
            holding.closed = True
        n = len(path) - before
        if n:
            holding.n_ahead = len(path) * self.page_size - holding.used
            self.n_used += holding.n_ahead
        elif twin is None or twin.gone:
            return None
        return Kept(request.id, before, path[before].id if n else 0, n, 0 if twin is None or twin.gone else twin.id)

    def fill(self, entries: Iterable[BatchEntry]) -> None:
        """Their tokens lie in slots now. These were reserved: this is why no iteration can lack memory."""
        holdings, n_used = self._holdings, self.n_used
        for entry in entries:
            holding = holdings[entry.request_id]
            n = len(entry.tokens)
            used = holding.used + n
            assert used <= holding.reserved, "a request outgrew its reservation"
            holding.used = used
            n_used += n
            if holding.n_ahead:
                n_used -= holding.n_ahead
                holding.n_ahead = 0
        self.n_used = n_used

    def advance(self, requests: Iterable[Request]) -> None:
        """As `fill`, for requests of which each brought one token. Nearly all iterations are such."""
        holdings, n_used = self._holdings, self.n_used
        for request in requests:
            holding = holdings[request.id]
            used = holding.used + 1
            assert used <= holding.reserved, "a request outgrew its reservation"
            holding.used = used
            n_used += 1
            if holding.n_ahead:
                n_used -= 1
                holding.n_ahead = 0
        self.n_used = n_used

    def has_room(self, request_id: int) -> bool:
        """Whether one more token of the request finds a slot that is set aside for it."""
        return self.room(request_id) > 0

    def room(self, request_id: int) -> int:
        """Tokens that the request can be given now."""
        holding = self._holdings[request_id]
        return holding.reserved - holding.used

    def can_grow(self, n: int) -> bool:
        """Whether n more slots can be set aside for somebody who holds some."""
        return self.n_reserved + self._whole_pages(n) <= self.n_slots

    def grow(self, request_id: int, n: int) -> None:
        """Set n more slots aside for a request that has used all of its own. The caller has asked `can_grow` first."""
        assert not self.has_room(request_id) and self.can_grow(n)
        self._holdings[request_id].reserved += self._whole_pages(n)
        self.n_reserved += self._whole_pages(n)
        self._evict()

    def latest(self) -> int:
        """Whose reservation was made last."""
        return next(reversed(self._holdings))

    def used_by(self, request_id: int) -> int:
        """Tokens of the request that have been computed: the index of its next input token. Of one that was only just
        reserved for: the tokens that others have computed."""
        return self._holdings[request_id].used

    def held_by(self, request_id: int) -> int:
        """Slots that hold a token of the request."""
        return self._holdings[request_id].used

    def used_by_each(self, requests: Iterable[Request]) -> list[int]:
        """`used_by` of all these, in no time."""
        holdings = self._holdings
        return [holdings[request.id].used for request in requests]

    def reserved_by(self, request_id: int) -> int:
        """Slots set aside for the request."""
        return self._holdings[request_id].reserved

    def release(self, request_id: int) -> None:
        """Return everything the request holds. What became blocks is kept, until slots lack."""
        holding = self._holdings.pop(request_id)
        path = holding.path
        in_blocks = len(path) * self.page_size
        n_left = self._prefixes.leave(path) * self.page_size if self._prefixes else 0
        self.n_reserved -= holding.reserved - in_blocks + n_left
        self.n_used -= max(holding.used - in_blocks, 0) + n_left

    def held_alone(self, request_ids: Collection[int]) -> int:
        """Slots that nobody would have reserved any more if all these were released."""
        users = self._users(request_ids)
        n = sum([self.reserved_by(each) - len(self._holdings[each].path) * self.page_size for each in request_ids])
        return n + self.page_size * sum([block.n_users == mine for block, mine in users.items()])

    def lacking_without(self, request: Request, n: int, request_ids: Collection[int]) -> int:
        """As `lacking`, if all these were released first. What the request would share with none but them makes no
        room for it: it has to be reserved anew."""
        free = self.n_slots - self.n_reserved + self.held_alone(request_ids)
        growth = self.growth(request, n)
        if self._prefixes:
            users = self._users(request_ids)
            found = self._found.get(request.id, ())
            growth += self.page_size * sum([block.n_users == users[block] > 0 for block in found])
        return max(growth - free, 0)

    def withdraw(self, request_id: int) -> None:
        """The request has failed: nobody is to find what it has made, which may not be what it should."""
        if not self._prefixes:
            return
        holding = self._holdings[request_id]
        if len(holding.path) > holding.n_shared:
            self._prefixes.withdraw(holding.path[holding.n_shared])
        holding.closed = True

    def forget(self, request_id: int) -> None:
        """A request that was never reserved for has left."""
        self._found.pop(request_id, None)

    def take_evicted(self) -> tuple[int, ...]:
        """Ids of blocks that the workers are to forget: they go before anything of the next batch is run."""
        return self._prefixes.take_evicted() if self._prefixes else ()

    def clear(self) -> None:
        """The engine is gone, and nobody holds anything any more: nothing is kept."""
        assert not self._holdings
        if self._prefixes:
            self._prefixes.clear()

    def check(self) -> None:
        """Assert that the running totals are the sums over requests."""
        holdings = self._holdings.values()
        assert all(holding.used <= holding.reserved for holding in holdings)
        reserved, used = self._totals()
        if self._prefixes:
            self._prefixes.check(holding.path for holding in holdings)
            shared = self.page_size * (self._prefixes.n_blocks - self._prefixes.n_idle)
            reserved += shared - sum(len(holding.path) * self.page_size for holding in holdings)
            used += shared - sum(holding.used - self._own_used(holding) for holding in holdings)
        else:
            assert not any(holding.path for holding in holdings)
        assert self.n_reserved == reserved <= self.n_slots
        assert self.n_used == used <= self.n_reserved
        assert self.n_reserved + self.n_kept <= self.n_slots

    def _totals(self) -> tuple[int, int]:
        """Slots set aside and slots that hold a token, summed up over requests as if nobody shared any."""
        holdings = self._holdings.values()
        return sum(holding.reserved for holding in holdings), sum(holding.used for holding in holdings)

    def _whole_pages(self, n: int) -> int:
        return -(-n // self.page_size) * self.page_size

    def _take(self, holding: Holding, blocks: Sequence[Block]) -> None:
        """These follow in its page table, in the place of pages of its own."""
        if not blocks:
            return
        assert self._prefixes is not None
        n = len(blocks) * self.page_size
        n_new = self._prefixes.use(blocks) * self.page_size
        holding.path += blocks
        holding.n_shared += len(blocks)
        holding.used += n
        self.n_reserved -= n - n_new
        self.n_used += n_new

    def _use(self, holding: Holding, n: int) -> None:
        """n more of its tokens lie in slots, in pages of its own."""
        holding.used += n
        assert holding.used <= holding.reserved, "a request outgrew its reservation"
        self.n_used += n

    def _users(self, request_ids: Iterable[int]) -> Counter[Block]:
        """Blocks that these requests use, and how many of them use each."""
        return Counter(block for each in request_ids for block in self._holdings[each].path)

    def _own_used(self, holding: Holding) -> int:
        """Its tokens that lie in pages of its own."""
        return max(holding.used - len(holding.path) * self.page_size, 0)

    def _evict(self) -> None:
        """Until own pages and blocks fit."""
        if self._prefixes:
            n_over = self.n_reserved + self.n_kept - self.n_slots
            if n_over > 0:
                self._prefixes.evict(n_over // self.page_size)


def _tokens(request: Request, end: int) -> Sequence[int]:
    """The first tokens of its (next) initiation."""
    if end <= request.n_input:
        return request.input_ids[:end]
    return [*request.input_ids, *request.output[: end - request.n_input]]
