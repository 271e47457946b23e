from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.core import BatchEntry, Phase, Request, SamplingParams
from orcaserve.scheduler import SlotLedger


def request(request_id: int) -> Request:
    return Request(request_id, [0], SamplingParams())


def filling(request_id: int, n: int) -> list[BatchEntry]:
    return [BatchEntry(request_id, Phase.INITIATION, [0] * n, 0, SamplingParams())]


def test_page_size_one_is_an_exact_counter() -> None:
    ledger = SlotLedger(10)
    ledger.reserve(request(1), 7)
    assert ledger.n_reserved == 7
    assert ledger.fits(request(99), 3) and not ledger.fits(request(99), 4)
    ledger.release(1)
    assert ledger.n_reserved == 0 and ledger.fits(request(99), 10) and not ledger.could_ever_fit(request(99), 11)


def test_reservations_are_whole_pages() -> None:
    ledger = SlotLedger(64, page_size=16)
    ledger.reserve(request(1), 1)
    ledger.reserve(request(2), 17)
    assert ledger.n_reserved == 16 + 32
    assert ledger.fits(request(99), 16) and not ledger.fits(request(99), 17)
    ledger.release(2)
    assert ledger.n_reserved == 16


def test_a_partial_page_at_the_end_is_not_usable() -> None:
    ledger = SlotLedger(47, page_size=16)
    assert ledger.n_slots == 32
    assert ledger.could_ever_fit(request(99), 32) and not ledger.could_ever_fit(request(99), 33)


def test_fill_stays_within_the_reservation() -> None:
    ledger = SlotLedger(8)
    ledger.reserve(request(1), 3)
    ledger.fill(filling(1, 2))
    assert (ledger.n_used, ledger.used_by(1)) == (2, 2)
    with pytest.raises(AssertionError, match="outgrew"):
        ledger.fill(filling(1, 2))
    ledger.release(1)
    assert ledger.n_used == 0 and 1 not in ledger and len(ledger) == 0


def test_misuse_is_caught() -> None:
    ledger = SlotLedger(8)
    ledger.reserve(request(1), 3)
    with pytest.raises(AssertionError):
        ledger.reserve(request(1), 3)  # twice
    with pytest.raises(AssertionError):
        ledger.reserve(request(2), 6)  # more than is left
    with pytest.raises(KeyError):
        ledger.release(2)  # never reserved
    with pytest.raises(AssertionError):
        SlotLedger(8, page_size=16)


@given(
    st.integers(1, 300),
    st.sampled_from([1, 3, 16]),
    st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(1, 80)), max_size=60),
)
def test_totals_are_sums(n_slots: int, page_size: int, steps: list[tuple[bool, int, int]]) -> None:
    ledger = SlotLedger(max(n_slots, page_size), page_size)
    pages: dict[int, int] = {}
    for take, request_id, n in steps:
        if take and request_id not in pages:
            need = (n + page_size - 1) // page_size
            room = ledger.n_slots // page_size - sum(pages.values())
            assert ledger.fits(request(99), n) == (need <= room)
            if need <= room:
                ledger.reserve(request(request_id), n)
                ledger.fill(filling(request_id, n))
                pages[request_id] = need
        elif not take and request_id in pages:
            ledger.release(request_id)
            del pages[request_id]
        assert ledger.n_reserved == sum(pages.values()) * page_size
        ledger.check()
