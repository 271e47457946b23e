"""SlotLedger: who has set aside how many K/V slots, and how many of them hold a token."""

from __future__ import annotations

from collections.abc import Iterable

from orcaserve.core import BatchEntry, Request


class SlotLedger:
    """Books of the K/V region, in slots (one slot = one token's key and value over all layers).

    The K/V manager hands slots out in pages, so a reservation is rounded up to whole pages: what is booked here is what
    the manager can really need. page_size 1 gives the paper's exact counter. Every total is O(1).

    n_slots: usable size of the region, a multiple of page_size (a last, partial page cannot be handed out).
    n_reserved: slots set aside for admitted requests, never more than n_slots.
    n_used: slots that hold a token now, never more than n_reserved.
    """

    def __init__(self, n_slots: int, page_size: int = 1) -> None:
        assert 1 <= page_size <= n_slots, "the K/V region holds at least one page"
        self.n_slots = n_slots - n_slots % page_size
        self.page_size = page_size
        self.n_reserved = 0
        self.n_used = 0
        self._reserved: dict[int, int] = {}  # request id -> slots, rounded up to pages
        self._used: dict[int, int] = {}  # request id -> slots

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._reserved

    def __len__(self) -> int:
        """Requests that hold a reservation."""
        return len(self._reserved)

    def could_ever_fit(self, n: int) -> bool:
        """Whether n slots could be reserved if nobody else held any."""
        return self.whole_pages(n) <= self.n_slots

    def fits(self, request: Request, n: int) -> bool:
        """Whether n slots can be reserved for the request now."""
        return not self.lacking(request, n)

    def lacking(self, request: Request, n: int) -> int:
        """Slots that are missing to reserve n for the request now; 0 if they fit."""
        return max(self.n_reserved + self.whole_pages(n) - self.n_slots, 0)

    def reserve(self, request: Request, n: int) -> None:
        """Set n slots aside for a request that has none. The caller has asked `fits` first."""
        assert request.id not in self._reserved and self.fits(request, n)
        self._reserved[request.id] = self.whole_pages(n)
        self._used[request.id] = 0
        self.n_reserved += self._reserved[request.id]

    def fill(self, entries: Iterable[BatchEntry]) -> None:
        """Their tokens lie in slots now. These were reserved: this is why no iteration can lack memory."""
        all_used, reserved = self._used, self._reserved
        for entry in entries:
            request_id, n = entry.request_id, len(entry.tokens)
            used = all_used[request_id] + n
            assert used <= reserved[request_id], "a request outgrew its reservation"
            all_used[request_id] = used
            self.n_used += n

    def has_room(self, request_id: int) -> bool:
        """Whether one more token of the request finds a slot that is set aside for it."""
        return self._used[request_id] < self._reserved[request_id]

    def can_grow(self, n: int) -> bool:
        """Whether n more slots can be set aside for somebody who holds some."""
        return self.n_reserved + self.whole_pages(n) <= self.n_slots

    def grow(self, request_id: int, n: int) -> None:
        """Set n more slots aside for a request that has used all of its own. The caller has asked `can_grow` first."""
        assert not self.has_room(request_id) and self.can_grow(n)
        self._reserved[request_id] += self.whole_pages(n)
        self.n_reserved += self.whole_pages(n)

    def latest(self) -> int:
        """Whose reservation was made last."""
        return next(reversed(self._reserved))

    def used_by(self, request_id: int) -> int:
        """Slots of the request that hold a token: the token index of its next input token."""
        return self._used[request_id]

    def reserved_by(self, request_id: int) -> int:
        """Slots set aside for the request."""
        return self._reserved[request_id]

    def release(self, request_id: int) -> None:
        """Return everything the request holds."""
        self.n_reserved -= self._reserved.pop(request_id)
        self.n_used -= self._used.pop(request_id)

    def check(self) -> None:
        """Assert that the running totals are the sums over requests."""
        assert self.n_reserved == sum(self._reserved.values()) <= self.n_slots
        assert self.n_used == sum(self._used.values()) <= self.n_reserved
        assert self._reserved.keys() == self._used.keys()
        assert all(used <= self._reserved[request_id] for request_id, used in self._used.items())

    def whole_pages(self, n: int) -> int:
        """What a reservation of n slots is rounded up to."""
        return -(-n // self.page_size) * self.page_size
