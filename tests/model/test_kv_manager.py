"""The K/V manager: pages have one owner, data survives everything others do, a reservation is a guarantee."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from orcaserve.core import BatchEntry, Phase, Request, SamplingParams
from orcaserve.core.window import window_for
from orcaserve.model.kv_manager import KVManager
from orcaserve.model.layout import Int32s
from orcaserve.model.reference.kv_region import KVRegion
from orcaserve.model.spec import ModelSpec
from orcaserve.scheduler.slot_ledger import SlotLedger
from orcaserve.scheduler.windowed_ledger import WindowedLedger

LAYERS, KV_HEADS, DIM = 2, 2, 3
NOBODY = Request(10**6, [0], SamplingParams())
SPEC = ModelSpec(16, 64, 12, LAYERS, 4, KV_HEADS, DIM, 8, "rms", 1e-5, "silu", True, True, None)


def table(kv: KVManager, request_id: int) -> Int32s:
    return kv.page_tables([request_id])[0]


class Managed(RuleBasedStateMachine):
    """Scheduler's ledger and manager side by side, as the engine drives them: reserve, extend within it, drop."""

    @initialize(
        n_slots=st.integers(8, 64),
        page_size=st.sampled_from([1, 3, 4, 8]),
        bf16=st.booleans(),
        window=st.none() | st.integers(1, 20),
    )
    def start(self, n_slots: int, page_size: int, bf16: bool, window: int | None) -> None:
        self.window = window_for(window, n_slots, page_size)
        self.ledger = (
            SlotLedger(n_slots, page_size) if self.window is None else WindowedLedger(n_slots, page_size, self.window)
        )
        self.kv = KVManager(n_slots, page_size, self.window)
        self.region = KVRegion(SPEC, self.kv.n_pages, page_size, "bfloat16" if bf16 else "float32")
        self.reserved: dict[int, int] = {}
        self.expected: dict[int, Tensor] = {}  # request -> [tokens, layers, K and V, kv heads, dim]
        self.next_id = 0

    @rule(max_tokens=st.integers(1, 40))
    def admit(self, max_tokens: int) -> None:
        request = Request(self.next_id, [0] * -(-max_tokens // 2), SamplingParams())  # half of it is input
        if self.ledger.fits(request, max_tokens):
            self.ledger.reserve(request, max_tokens)
            self.reserved[self.next_id] = max_tokens
            self.expected[self.next_id] = torch.empty(0, LAYERS, 2, KV_HEADS, DIM)
            self.next_id += 1

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), n_tokens=st.integers(1, 20))
    def append(self, data: st.DataObject, n_tokens: int) -> None:
        request = data.draw(st.sampled_from(sorted(self.reserved)))
        done = len(self.expected[request])
        n_input = -(-self.reserved[request] // 2)
        n_tokens = min(n_tokens, max(n_input - done, 1), self.ledger.room(request), self.reserved[request] - done)
        if n_tokens == 0:
            assert done == self.reserved[request], "nothing is set aside for its next token"
            return
        self.kv.extend(request, n_tokens)  # whatever others hold, this never lacks memory
        new = torch.randn(n_tokens, LAYERS, 2, KV_HEADS, DIM).to(self.region.dtype)
        for layer in range(LAYERS):
            self.region.write(layer, table(self.kv, request), done, new[:, layer, 0], new[:, layer, 1])
        self.expected[request] = torch.cat([self.expected[request], new])
        phase = Phase.INITIATION if done < n_input else Phase.INCREMENT
        n_to_come = max(n_input - done - n_tokens, 0)
        params = SamplingParams() if phase is Phase.INITIATION and not n_to_come else None
        self.ledger.fill([BatchEntry(request, phase, [0] * n_tokens, done, params, n_to_come=n_to_come)])
        self.kv.leave_behind([request])
        assert len(self.kv.pages(request)) * self.kv.page_size <= self.ledger.reserved_by(request)

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), twice=st.booleans())
    def drop(self, data: st.DataObject, twice: bool) -> None:
        request = data.draw(st.sampled_from(sorted(self.reserved)))
        self.ledger.release(request)
        for _ in range(1 + twice):
            self.kv.drop(request)
        del self.reserved[request], self.expected[request]
        assert self.kv.n_tokens(request) == 0

    @invariant()
    def every_page_has_one_owner(self) -> None:
        if not hasattr(self, "kv"):
            return
        owned = [page for request in self.reserved for page in self.kv.pages(request)]
        assert len(owned) == len(set(owned)) == self.kv.n_used
        assert all(0 <= page < self.kv.n_pages for page in owned)
        assert self.kv.n_free + self.kv.n_used == self.kv.n_pages
        assert self.kv.n_used * self.kv.page_size <= self.ledger.n_reserved

    @invariant()
    def data_survives(self) -> None:
        for request, expected in getattr(self, "expected", {}).items():
            assert self.kv.n_tokens(request) == len(expected)
            if len(expected) == 0:
                continue
            first = 0 if self.window is None else max(len(expected) - self.window + 1, 0)  # that the next token reads
            for layer in range(LAYERS):
                keys, values = self.region.read(layer, table(self.kv, request), len(expected), first)
                assert torch.equal(keys, expected[first:, layer, 0].to(self.region.dtype))
                assert torch.equal(values, expected[first:, layer, 1].to(self.region.dtype))

    def teardown(self) -> None:
        if hasattr(self, "kv"):
            for request in list(self.reserved):
                self.kv.drop(request)
            assert self.kv.n_used == 0


TestManaged = Managed.TestCase
TestManaged.settings = settings(max_examples=40, stateful_step_count=40)


@given(
    page_size=st.integers(1, 9),
    n_slots=st.integers(9, 200),
    wishes=st.lists(st.integers(1, 60), max_size=40),
)
def test_all_reservations_can_be_filled_at_once(page_size: int, n_slots: int, wishes: list[int]) -> None:
    """The worst moment: every admitted request has grown to all it reserved, token by token, interleaved."""
    ledger, kv = SlotLedger(n_slots, page_size), KVManager(n_slots, page_size)
    admitted = {}
    for request, wish in enumerate(wishes):
        if ledger.fits(NOBODY, wish):
            ledger.reserve(Request(request, [0], SamplingParams()), wish)
            admitted[request] = wish
    for step in range(max(admitted.values(), default=0)):
        for request, wish in admitted.items():
            if step < wish:
                kv.extend(request, 1)
    assert {request: kv.n_tokens(request) for request in admitted} == admitted


def test_lay_out_places_new_tokens_after_earlier_ones() -> None:
    kv = KVManager(32, 4)
    first = kv.lay_out([(7, 5), (8, 2)])
    assert first.contexts.tolist() == [0, 0]
    second = kv.lay_out([(8, 1), (9, 3), (7, 1)])
    assert second.contexts.tolist() == [2, 0, 5]
    assert second.positions.tolist() == [2, 0, 1, 2, 5]
    assert second.page_tables.tolist() == [[kv.pages(8)[0], -1], [kv.pages(9)[0], -1], list(kv.pages(7))]
    assert [kv.n_tokens(request) for request in (7, 8, 9)] == [6, 3, 3]


def test_places_of_pages_that_were_left_name_the_first_that_is_there() -> None:
    """So a kernel that reads a masked key stays within the region, and within the request."""
    kv = KVManager(32, 4, window=6)
    kv.extend(1, 9)
    kv.leave_behind([1])
    first = kv.page_tables([1])[0].tolist()
    assert first[0] == first[1] and kv.n_used == 2  # the next token reads 4 .. 9
    kv.extend(2, 3)
    assert kv.pages(2)[0] not in kv.pages(1)
    kv.extend(1, 5)
    assert kv.page_tables([1])[0].tolist() == [*first, kv.pages(1)[-1]]
    kv.leave_behind([1, 2])
    second = kv.page_tables([1])[0].tolist()
    assert second == [first[2], first[2], first[2], kv.pages(1)[-1]] and len(kv.pages(1)) == 2
    assert kv.n_tokens(1) == 14
    kv.drop(1)
    kv.drop(2)
    assert kv.n_used == 0


def test_growth_without_a_reservation_is_our_own_mistake() -> None:
    kv = KVManager(8, 4)
    kv.extend(1, 5)
    with pytest.raises(AssertionError, match="without a reservation"):
        kv.extend(2, 1)
    assert (kv.n_used, kv.n_tokens(2)) == (2, 0)


def test_a_window_of_one_token_would_leave_the_newest_page() -> None:
    with pytest.raises(ValueError, match="window must be at least 2"):
        KVManager(8, 4, window=1)


def test_unknown_requests() -> None:
    kv = KVManager(8, 4)
    kv.drop(5)
    assert kv.n_tokens(5) == 0
    with pytest.raises(KeyError):
        kv.page_tables([5])


@pytest.mark.parametrize(
    ("n_slots", "page_size", "message"), [(3, 4, "less than one page"), (8, 0, "at least 1"), (0, 1, "less than one")]
)
def test_wrong_sizes_are_refused(n_slots: int, page_size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KVManager(n_slots, page_size)


def test_a_source_has_pages_of_its_own() -> None:
    """What is left of its last page is nobody's; the layout tells how much of each request it is."""
    kv = KVManager(40, 4)
    kv.begin_source(1, 5)
    kv.extend(1, 6)
    assert len(kv.pages(1)) == 3
    kv.extend(1, 3)
    assert (len(kv.pages(1)), kv.n_tokens(1)) == (3, 9)
    kv.begin_source(2, 4)
    layout = kv.lay_out([(1, 1), (2, 5)])
    assert (len(kv.pages(1)), len(kv.pages(2))) == (4, 2)
    assert layout.sources is not None and layout.sources.tolist() == [5, 4]
    assert layout.contexts.tolist() == [9, 0] and layout.starts.tolist() == [0, 1, 6]
    kv.drop(1)
    kv.drop(2)
    assert kv.n_used == 0
    kv.extend(1, 4)  # the same number again, without a source
    assert len(kv.pages(1)) == 1
