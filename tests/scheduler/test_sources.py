"""A model with an encoder: what is reserved for the two sides of a request is never exceeded, and all of it comes back.

Every policy that such a model can have is driven beside a K/V manager, which hands out the pages of both sides.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.core import Batch, CannotFit, IterationResult, Phase, Request, SamplingParams
from orcaserve.model.kv_manager import KVManager
from orcaserve.scheduler import Scheduler
from orcaserve.scheduler.policies import POLICIES, PolicySettings, make_policy

STOP = 1
LONGEST = 40, 24  # tokens of a source and of an output

SETTINGS = {
    "iteration-level": {},
    "iteration-level, bounded": {"batched_tokens": 20},
    "iteration-level, timed": {"target_itl": 0.01},
    "iteration-level, fair": {"fairness": "tokens"},
    **{name: {} for name in POLICIES if name not in ("iteration-level", "request-level")},
}


class Memory:
    """The worker's K/V manager, and what it must never see."""

    def __init__(self, n_slots: int, page_size: int) -> None:
        self.kv = KVManager(n_slots, page_size)

    def run(self, batch: Batch, n_reserved: int) -> None:
        for request_id in batch.drops:
            self.kv.drop(request_id)
        entries = []
        for entry in batch.entries:
            assert entry.n_to_come == 0, "an encoder was given a piece of its text"
            assert entry.position == self.kv.n_tokens(entry.request_id)
            if entry.phase is Phase.INITIATION:
                self.kv.begin_source(entry.request_id, len(entry.tokens) - entry.n_output - 1)
            entries.append((entry.request_id, len(entry.tokens)))
        layout = self.kv.lay_out(entries)
        assert layout.sources is not None
        assert self.kv.n_used * self.kv.page_size <= n_reserved, "more slots are used than anybody has reserved"


requests = st.lists(
    st.tuples(st.integers(1, LONGEST[0]), st.integers(1, LONGEST[1]), st.integers(1, 30), st.integers(0, 3)),
    min_size=1, max_size=12,
)  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
@given(sizes=requests, page=st.sampled_from([1, 4, 16]), n_pages=st.integers(1, 40), max_bs=st.integers(1, 5))
def test_nobody_outgrows_the_reservation(
    name: str, sizes: list[tuple[int, int, int, int]], page: int, n_pages: int, max_bs: int
) -> None:
    n_slots = n_pages * page
    policy = make_policy(
        name.partition(",")[0],
        PolicySettings(1, sum(LONGEST), whole=True, **SETTINGS[name]),  # type: ignore[arg-type]
    )
    scheduler = Scheduler(n_slots, max_bs, 1, page, policy, sources=True)
    memory = Memory(n_slots, page)
    ends = {}  # request id -> after how many tokens it stops by itself
    for number, (n_source, n_output, end, carried) in enumerate(sizes):
        output = [7] * min(carried, n_output - 1)
        request = Request(
            number, [5] * n_source + [0], SamplingParams(max_tokens=n_output), frozenset({STOP}), output=output
        )
        fits = (-(-n_source // page) - (-(1 + n_output) // page)) * page <= n_slots
        try:
            scheduler.add(request, float(number))
            ends[number] = end
            assert fits or "orca" in name, "it was taken, and can never run"
        except CannotFit:
            assert not fits or "orca" in name, "it would fit"
    n_given = dict.fromkeys(ends, 0)
    while ends:
        batch = scheduler.next_batch(0.0)
        assert batch is not None, "requests are live and nobody can run"
        memory.run(batch, scheduler.n_reserved)
        tokens = []
        for entry in batch.entries:
            n_given[entry.request_id] += 1
            tokens.append(STOP if n_given[entry.request_id] >= ends[entry.request_id] else 7)
        for news in scheduler.complete(IterationResult(batch.iteration, tokens, seconds=0.004)):
            if news.finish_reason is not None:
                del ends[news.request_id]
        scheduler.check_invariants()
        assert scheduler.n_used <= scheduler.n_reserved <= n_slots
    assert scheduler.n_reserved == 0 == scheduler.n_used


def test_a_bound_is_gone_past_by_one_initiation_at_most() -> None:
    policy = make_policy("iteration-level", PolicySettings(1, 200, batched_tokens=10, whole=True))
    scheduler = Scheduler(1000, 8, 1, 4, policy, sources=True)
    for number in range(4):
        scheduler.add(Request(number, [5] * 8, SamplingParams(max_tokens=3)), 0.0)
    sizes = []
    for _ in range(3):
        batch = scheduler.next_batch(0.0)
        assert batch is not None
        sizes.append([len(entry.tokens) for entry in batch.entries])
        scheduler.complete(IterationResult(batch.iteration, [7] * len(batch.entries)))
    assert sizes == [[8, 8], [1, 1, 8], [1, 1, 1, 8]]
