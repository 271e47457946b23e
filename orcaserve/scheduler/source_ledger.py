"""SourceLedger: the books of a model with an encoder, where the slots of a request are in two runs of pages."""

from __future__ import annotations

from orcaserve.core import Request
from orcaserve.scheduler.slot_ledger import SlotLedger


class SourceLedger(SlotLedger):
    """As SlotLedger, but the input tokens that an encoder reads, all but the last (the decoder's start), are in pages
    of their own, and so are all other tokens: what is left free of a source's last page is nobody's, its gap.

        source         gap   start  output
        |------------|.....|--|---------------...|
        whole pages          whole pages

    Nothing is shared: what the encoder makes of a token depends on all of them.
    """

    def __init__(self, n_slots: int, page_size: int = 1) -> None:
        super().__init__(n_slots, page_size)
        self._gaps: dict[int, int] = {}  # request id -> slots

    def need(self, request: Request, n: int) -> int:
        return self._whole_pages(n + self._gap(request))

    def reserve(self, request: Request, n: int) -> None:
        super().reserve(request, n)
        self._gaps[request.id] = self._gap(request)

    def room(self, request_id: int) -> int:
        return super().room(request_id) - self._gaps[request_id]

    def release(self, request_id: int) -> None:
        super().release(request_id)
        del self._gaps[request_id]

    def check(self) -> None:
        super().check()
        assert self._gaps.keys() == self._holdings.keys()
        assert all(self.room(request_id) >= 0 for request_id in self._gaps)

    def _gap(self, request: Request) -> int:
        return (1 - request.n_input) % self.page_size
