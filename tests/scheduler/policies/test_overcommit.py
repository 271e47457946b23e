"""No reservation for output: pages one by one, preemption of the latest, and progress whatever the memory."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from policy_driver import PAGE, Drive, drive

from orcaserve.core import Batch, IterationResult, Phase, Request, SamplingParams
from orcaserve.scheduler import Scheduler
from orcaserve.scheduler.policies import PolicySettings, make_policy


def ids(batch: Batch | None) -> list[int]:
    assert batch is not None
    return [entry.request_id for entry in batch.entries]


def add(drive: Drive, *sizes: tuple[int, int]) -> None:
    for n_input, n_output in sizes:
        assert drive.add(n_input, n_output, n_output)


def test_admitted_by_their_input_alone() -> None:
    d = drive("overcommit", n_pages=2)
    add(d, (4, 4), (4, 4))
    assert ids(d.next_batch()) == [0, 1]
    assert d.scheduler.status().n_reserved == 2 * PAGE


def test_the_latest_gives_way_and_starts_anew_with_its_output() -> None:
    d = drive("overcommit", n_pages=4)
    add(d, (6, 8), (6, 3))
    d.next_batch()
    d.complete()
    d.next_batch()
    d.complete()  # both have 7 of 8 slots used
    d.next_batch()
    d.complete()
    assert d.fates[1].reason is not None, "3 tokens: it fitted"
    add(d, (6, 8))
    first = d.next_batch()
    assert first is not None and ids(first) == [0], "0 takes a third page; the input of 2 has 1 left"
    d.drain()
    status = d.scheduler.status()
    assert (status.n_preempted, status.n_recomputed) == (0, 0)

    d = drive("overcommit", n_pages=4)
    add(d, (6, 8), (6, 8))
    while ids(d.next_batch()) == [0, 1]:
        d.complete()
    d.complete()
    assert d.batches[-1].drops == (1,), "its pages are free before 0 writes"
    d.drain()
    again = next(e for b in d.batches[1:] for e in b.entries if e.request_id == 1 and e.phase is Phase.INITIATION)
    assert (len(again.tokens), again.n_output) == (6 + 3, 3)
    status = d.scheduler.status()
    assert (status.n_preempted, status.n_recomputed) == (1, 8)
    assert status.n_preempted and len(d.fates[1].tokens) == 8


def test_one_that_runs_is_not_preempted_but_waited_for() -> None:
    d = drive("overcommit", n_pages=2, max_bs=1, n_workers=2)
    add(d, (4, 2), (4, 2))
    assert [ids(d.next_batch()), ids(d.next_batch())] == [[0], [1]]
    d.complete()
    assert d.next_batch() is None, "0 needs a page, and 1 is in flight"
    d.complete()
    assert ids(d.next_batch()) == [0]
    assert d.batches[-1].drops == (1,)


def test_one_that_leaves_before_anybody_is_told_that_it_was_preempted() -> None:
    """The log would name one that is not there any more."""
    scheduler = Scheduler(3 * PAGE, 1, 2, PAGE, make_policy("overcommit", PolicySettings(2, 64)))
    for i in range(2):
        scheduler.add(Request(i, [1] * PAGE, SamplingParams(max_tokens=4)), 0.0)
    assert [ids(scheduler.next_batch()), ids(scheduler.next_batch())] == [[0], [1]]
    scheduler.complete(IterationResult(1, [7]))
    assert ids(scheduler.next_batch()) == [0], "it has the last page now"
    scheduler.complete(IterationResult(2, [7]))
    assert scheduler.next_batch() is None and scheduler.status().n_preempted == 1, "1 has lost its own"
    assert len(scheduler.cancel(1)) == 1
    scheduler.complete(IterationResult(3, [7]))
    assert ids(scheduler.next_batch()) == [0] and list(scheduler.selection.preempted) == []


def test_what_a_preempted_one_would_have_made_anew_is_not_counted_if_it_is_cancelled() -> None:
    d = drive("overcommit", n_pages=2)
    add(d, (4, 4), (4, 4))
    d.next_batch()
    d.complete()
    assert ids(d.next_batch()) == [0]
    d.cancel(1)
    d.drain()
    status = d.scheduler.status()
    assert (status.n_preempted, status.n_recomputed) == (1, 0)


arrivals = st.lists(  # input, output, turns that pass before it comes
    st.tuples(st.integers(1, 20), st.integers(1, 12), st.integers(0, 3)), min_size=1, max_size=12
)


@given(arrivals=arrivals, n_pages=st.integers(8, 30), max_bs=st.integers(1, 6), n_workers=st.integers(1, 3))
def test_the_promise(arrivals: Sequence[tuple[int, int, int]], n_pages: int, max_bs: int, n_workers: int) -> None:
    """No earlier one has fewer tokens than a later one; the earliest advances in every iteration it can be in; what is
    computed anew is counted to the token."""
    d = drive("overcommit", n_pages, max_bs, n_workers)
    coming = [turn for *size, gap in arrivals for turn in (*[None] * gap, size)]
    while coming or d.scheduler.status().n_live:
        if coming and (size := coming.pop(0)) is not None:
            add(d, (size[0], size[1]))
        live = [fate for fate in d.fates if fate.reason is None]
        running = {entry.request_id for batch in d.in_flight for entry in batch.entries}
        batch = d.next_batch()
        if batch is not None:
            if live[0].request.id not in running:
                assert batch.entries[0].request_id == live[0].request.id
        elif d.in_flight:
            if len(d.in_flight) < n_workers:
                assert running, "nothing is in flight, and nobody runs"
            d.complete()
        iterations = [fate.request.n_iterations for fate in d.fates if fate.reason is None]
        assert iterations == sorted(iterations, reverse=True)
    d.drain()
    computed = sum(batch.n_tokens for batch in d.batches)
    needed = sum(n_input + n_output - 1 for n_input, n_output, _ in arrivals)
    assert d.scheduler.status().n_recomputed == computed - needed


def test_with_memory_for_all_it_is_iteration_level() -> None:
    sizes = [(3, 5), (9, 2), (1, 12), (4, 4), (20, 1)]
    schedules = []
    for policy in ("overcommit", "iteration-level"):
        d = drive(policy, 1000, max_bs=3)
        add(d, *sizes)
        d.drain()
        schedules.append(d.batches)
    assert schedules[0] == schedules[1]
