"""BatchMaker's rule: one cell a batch, that of the earliest request that can run."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from policy_driver import Drive, drive

from orcaserve.core import Batch, RequestState


def ids(batch: Batch | None) -> list[int]:
    assert batch is not None
    return [entry.request_id for entry in batch.entries]


def add(drive: Drive, *sizes: tuple[int, int]) -> None:
    for n_input, n_output in sizes:
        assert drive.add(n_input, n_output, n_output)


def test_equal_inputs_share_a_batch_and_then_each_of_their_increments() -> None:
    d = drive("cellular")
    add(d, (3, 2), (5, 2), (3, 3))
    d.drain()
    assert [ids(batch) for batch in d.batches] == [[0, 2], [0, 2], [1], [1], [2]]


def test_one_at_the_same_token_index_joins() -> None:
    """An input of 3 tokens after one increment is where one of 4 is after none."""
    d = drive("cellular")
    add(d, (3, 4))
    d.next_batch()
    d.complete()
    add(d, (4, 2))
    d.next_batch()  # 0 alone, at index 3
    d.complete()
    assert ids(d.next_batch()) == [0]  # at index 4: the newcomer has no key or value yet
    d.complete()
    d.drain()
    assert [ids(batch) for batch in d.batches] == [[0], [0], [0], [0], [1], [1]]


def test_an_earlier_one_that_lacks_slots_keeps_later_ones_out() -> None:
    d = drive("cellular", n_pages=4, n_workers=2)
    add(d, (3, 1), (9, 4), (3, 5))  # 1, 4 and 2 pages
    assert ids(d.next_batch()) == [0, 2], "the same cell as the earliest, and there is room"
    d.complete()
    add(d, (3, 1))
    for _ in range(4):
        assert ids(d.next_batch()) == [2]
        assert d.next_batch() is None, "while 1 lacks slots, 3 must not take them"
        d.complete()
    assert ids(d.next_batch()) == [1]


arrivals = st.lists(  # input, output, turns that pass before it comes
    st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=14
)


@given(arrivals=arrivals, n_pages=st.integers(3, 20), max_bs=st.integers(1, 4), n_workers=st.integers(1, 3))
def test_the_promise(arrivals: Sequence[tuple[int, int, int]], n_pages: int, max_bs: int, n_workers: int) -> None:
    d = drive("cellular", n_pages, max_bs, n_workers)
    coming = [turn for *size, gap in arrivals for turn in (*[None] * gap, size)]
    while coming or d.scheduler.status().n_live:
        if coming and (size := coming.pop(0)) is not None:
            add(d, (size[0], size[1]))
        ready = [
            (f.request.id, f.request.state is RequestState.INITIATION, len(d.worker.tokens.get(f.request.id, ())), f)
            for f in d.fates
            if f.reason is None and f.request.state is not RequestState.RUNNING
        ]
        free = n_pages - d.scheduler.status().n_reserved // 4
        batch = d.next_batch()
        if batch is not None:
            assert len({(e.phase, e.position + len(e.tokens)) for e in batch.entries}) == 1
            lacking = False
            for request_id, new, _, fate in ready:
                if new and (lacking or -(-fate.request.max_tokens // 4) > free):
                    lacking = True
                    continue
                assert batch.entries[0].request_id == request_id, "not the cell of the earliest that can run"
                break
        elif d.in_flight:
            d.complete()
    d.drain()
