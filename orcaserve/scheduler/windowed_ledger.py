"""WindowedLedger: the books of a model all of whose layers have a sliding window, where a text leaves its beginning."""

from __future__ import annotations

from collections.abc import Iterable

from orcaserve.core import BatchEntry, Phase, Request
from orcaserve.core.window import LEAST_WINDOW, most_slots, pages_behind, pages_spanned
from orcaserve.scheduler.prefix_cache import PrefixCache
from orcaserve.scheduler.slot_ledger import SlotLedger


class WindowedLedger(SlotLedger):
    """As SlotLedger, but the pages of tokens that nobody reads again are returned when the iteration is.

        0            gone          used            reserved         input + max_tokens
        |--returned--|-- in slots ---|-- set aside ---|-- later, in the place of what is returned --|

    What is set aside for a request moves along its text as pages are returned behind it, and that is all it ever needs:

        steady   the pages that a window touches: enough for one token more, wherever the text is
        most     those that two windows touch, or the region: what an initiation may have

    An initiation that does not fit into `most` comes in pieces, each as long as the `room` there is; so reservations do
    not grow with the text, nor when a request starts anew from a long output. Once it is over the request keeps
    `steady`.

    Prefixes are shared by requests that never return a page: those whose text cannot outgrow the window. Others neither
    take nor give any.
    """

    def __init__(self, n_slots: int, page_size: int, window: int, prefixes: PrefixCache | None = None) -> None:
        """window: tokens, LEAST_WINDOW or more. The region holds at least the pages that it touches."""
        super().__init__(n_slots, page_size, prefixes)
        self._window = window
        self._steady = pages_spanned(window, page_size) * page_size
        self._most = min(most_slots(window, page_size), self.n_slots)
        assert window >= LEAST_WINDOW and self._steady <= self.n_slots, "a region without room for a window"
        self._gone: dict[int, int] = {}  # request id -> slots of the pages that it has returned, if any

    def could_ever_fit(self, request: Request, n: int) -> bool:
        return True  # no request needs more than `most` at once

    def need(self, request: Request, n: int) -> int:
        n_fed = self._whole_pages(request.n_input + len(request.output))
        return min(self._whole_pages(n), max(min(n_fed, self._most), self._steady))

    def shares(self, request: Request) -> bool:
        return self._prefixes is not None and not pages_behind(request.max_tokens, self._window, self.page_size)

    def fill(self, entries: Iterable[BatchEntry]) -> None:
        super().fill(entries)
        for entry in entries:
            if entry.phase is Phase.INITIATION and not entry.n_to_come:
                holding = self._holdings[entry.request_id]
                n_over = max(holding.reserved - self._gone.get(entry.request_id, 0) - self._steady, 0)
                holding.reserved -= n_over
                self.n_reserved -= n_over
        self._leave_behind([entry.request_id for entry in entries])

    def advance(self, requests: Iterable[Request]) -> None:
        super().advance(requests)
        self._leave_behind([request.id for request in requests])

    def _leave_behind(self, request_ids: Iterable[int]) -> None:
        """Pages that none of their next tokens reads."""
        window, page = self._window, self.page_size
        for request_id in request_ids:
            gone, holding = self._gone.get(request_id, 0), self._holdings[request_id]
            n = pages_behind(holding.used, window, page) * page - gone
            if n > 0:
                assert not holding.path, "a request left pages that others may read"
                self._gone[request_id] = gone + n
                holding.reserved += n
                self.n_used -= n

    def release(self, request_id: int) -> None:
        gone = self._gone.pop(request_id, 0)
        self.n_reserved += gone
        self.n_used += gone
        super().release(request_id)

    def held_by(self, request_id: int) -> int:
        return super().held_by(request_id) - self._gone.get(request_id, 0)

    def reserved_by(self, request_id: int) -> int:
        return super().reserved_by(request_id) - self._gone.get(request_id, 0)

    def check(self) -> None:
        super().check()
        assert self._gone.keys() <= self._holdings.keys()
        for request_id, gone in self._gone.items():
            used = self._holdings[request_id].used
            assert gone == pages_behind(used, self._window, self.page_size) * self.page_size < used
        assert all(self.reserved_by(request_id) <= self._most for request_id in self._holdings)

    def _totals(self) -> tuple[int, int]:
        reserved, used = super()._totals()
        n_gone = sum(self._gone.values())
        return reserved - n_gone, used - n_gone
