"""Whole batches: fixed until all have ended, answered together, FasterTransformer's first iteration, microbatches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_driver import LONGEST, PAGE, Drive, drive

from orcaserve.core import Batch, FinishReason, Phase

WHOLE = LONGEST // PAGE  # pages of a reservation


def shapes(batch: Batch | None) -> list[tuple[int, str, int, int]]:
    """(request, phase, tokens, position) of each entry."""
    assert batch is not None
    return [(e.request_id, e.phase.value[:4], len(e.tokens), e.position) for e in batch.entries]


def add(drive: Drive, *sizes: tuple[int, int]) -> None:
    for n_input, n_output in sizes:
        assert drive.add(n_input, n_output, n_output)


def run(drive: Drive) -> list[list[tuple[int, str, int, int]]]:
    drive.drain()
    return [shapes(batch) for batch in drive.batches]


def test_the_shortest_input_is_the_first_iteration_and_nobody_returns_before_the_last() -> None:
    d = drive("request-level", max_bs=3)
    add(d, (2, 1), (4, 2), (3, 1), (1, 1))
    assert d.next_batch() is not None
    d.complete()
    assert d.fates[0].request.ending is not None and d.fates[0].tokens == [], "its only token is held back"
    assert run(d) == [
        [(0, "init", 2, 0), (1, "init", 2, 0), (2, "init", 2, 0)],
        [(0, "incr", 1, 2), (1, "init", 1, 2), (2, "init", 1, 2)],  # 0 has ended, and is computed on
        [(0, "incr", 1, 3), (1, "init", 1, 3), (2, "incr", 1, 3)],
        [(0, "incr", 1, 4), (1, "incr", 1, 4), (2, "incr", 1, 4)],
        [(3, "init", 1, 0)],
    ]
    assert [fate.first_told for fate in d.fates] == [4, 4, 4, 5]
    assert [len(fate.tokens) for fate in d.fates] == [1, 2, 1, 1]


def test_whole_inputs_at_once() -> None:
    d = drive("request-level", shortest_first=False)
    add(d, (2, 1), (4, 2))
    assert run(d) == [[(0, "init", 2, 0), (1, "init", 4, 0)], [(0, "incr", 1, 2), (1, "incr", 1, 4)]]


def test_pieces_tell_what_is_to_come_and_settings_travel_with_the_last() -> None:
    d = drive("request-level")
    add(d, (1, 2), (3, 1))
    run(d)
    entries = [batch.entries[1] for batch in d.batches]
    assert [entry.n_to_come for entry in entries] == [2, 1, 0]
    assert [entry.params is not None for entry in entries] == [False, False, True]
    assert [list(entry.tokens) for entry in entries] == [[100], [101], [102]]


def test_memory_is_reserved_for_the_longest_request_there_can_be() -> None:
    d = drive("request-level", n_pages=2 * WHOLE + 1)
    add(d, (1, 1), (1, 1), (1, 1))
    assert len(shapes(d.next_batch())) == 2
    assert d.scheduler.status().n_reserved == 2 * LONGEST
    assert not drive("request-level", n_pages=WHOLE - 1).add(1, 1, 1)


def test_one_that_has_ended_is_computed_until_its_reservation_is_full() -> None:
    """With whole inputs at once a long one that ends soon would outgrow the model beside a short one that goes on."""
    d = drive("request-level", shortest_first=False)
    add(d, (LONGEST - 2, 1), (1, 10))
    assert [len(batch) for batch in run(d)] == [2, 2, 2, 1, 1, 1, 1, 1, 1, 1]


def test_microbatches_go_one_after_the_other_and_the_next_iteration_waits_for_all() -> None:
    d = drive("request-level", max_bs=5, n_workers=2, microbatch=2)
    add(d, *[(1, 2)] * 5)
    assert [shapes(d.next_batch()), shapes(d.next_batch())] == [
        [(0, "init", 1, 0), (1, "init", 1, 0)],
        [(2, "init", 1, 0), (3, "init", 1, 0)],
    ]
    assert d.next_batch() is None, "as many as there are workers"
    d.complete()
    assert shapes(d.next_batch()) == [(4, "init", 1, 0)]
    d.complete()
    assert d.next_batch() is None, "the last microbatch of the first iteration is still under way"
    d.complete()
    assert shapes(d.next_batch()) == [(0, "incr", 1, 1), (1, "incr", 1, 1)]
    d.drain()
    assert {fate.first_told for fate in d.fates} == {6}


def test_one_cancelled_is_computed_on_and_told_with_the_others() -> None:
    d = drive("request-level")
    add(d, (1, 1), (1, 5))
    d.next_batch()
    d.cancel(1)
    d.complete()  # now both have ended
    assert d.fates[0].reason is FinishReason.STOP and d.fates[1].reason is FinishReason.CANCELLED


def test_the_last_one_alive_is_cancelled_between_iterations() -> None:
    d = drive("request-level")
    add(d, (1, 1), (1, 5))
    d.next_batch()
    d.complete()
    d.cancel(1)
    assert [fate.reason for fate in d.fates] == [FinishReason.STOP, FinishReason.CANCELLED]
    assert d.scheduler.status().n_reserved == 0


def test_one_that_has_ended_is_answered_though_the_engine_is_lost() -> None:
    d = drive("request-level")
    add(d, (1, 2), (1, 5))
    d.next_batch()
    d.complete()
    d.next_batch()
    d.complete()
    d.next_batch()
    d.abort()
    assert [fate.reason for fate in d.fates] == [FinishReason.STOP, FinishReason.ERROR]
    assert len(d.fates[0].tokens) == 2
    add(d, (1, 1))
    d.drain()


def test_one_that_waits_leaves_at_once() -> None:
    d = drive("request-level", max_bs=1)
    add(d, (1, 2), (1, 2))
    d.next_batch()
    d.cancel(1)
    assert d.fates[1].reason is FinishReason.CANCELLED


def test_a_failure_is_told_when_the_batch_ends() -> None:
    d = drive("request-level")
    add(d, (2, 2), (2, 3))
    d.next_batch()
    d.complete(failing=0)
    assert d.fates[0].reason is None
    d.drain()
    assert d.fates[0].reason is FinishReason.ERROR and d.fates[1].reason is FinishReason.STOP


sizes = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=12)


@given(
    sizes=sizes,
    max_bs=st.integers(1, 5),
    n_workers=st.integers(1, 3),
    microbatch=st.none() | st.integers(1, 4),
    shortest_first=st.booleans(),
    early=st.integers(0, 12),
)
def test_the_promise(
    sizes: Sequence[tuple[int, int]],
    max_bs: int,
    n_workers: int,
    microbatch: int | None,
    shortest_first: bool,
    early: int,
) -> None:
    """Batches in order of arrival; each of a batch is in all its iterations; nobody is told before all have ended."""
    d = drive("request-level", 1000, max_bs, n_workers, microbatch=microbatch, shortest_first=shortest_first)
    add(d, *sizes[:early])
    while d.next_batch() is not None:
        pass
    add(d, *sizes[early:])
    d.drain()
    groups: list[list[int]] = []
    for i, fate in enumerate(d.fates):
        if groups and d.fates[groups[-1][0]].first_told == fate.first_told:
            groups[-1].append(i)
        else:
            groups.append([i])
    told = [d.fates[group[0]].first_told for group in groups]
    assert told == sorted(told) and all(len(group) <= max_bs for group in groups)
    for group in groups:
        own = [sizes[i] for i in group]
        shortest = min(n_input for n_input, _ in own)
        alone = [(n_input - shortest if shortest_first else 0) + n_output for n_input, n_output in own]
        assert {d.fates[i].n_iterations for i in group} == {max(alone)}
        assert [len(d.fates[i].tokens) for i in group] == [n_output for _, n_output in own]
        if shortest_first:  # everyone is at the same token index
            for batch in d.batches:
                assert len({(e.position, len(e.tokens)) for e in batch.entries}) == 1


@pytest.mark.parametrize("phase", Phase)
def test_the_last_of_a_microbatch_that_waits_is_cancelled(phase: Phase) -> None:
    """Nothing comes to a stand when the last microbatch vanishes before it was handed out."""
    d = drive("request-level", max_bs=2, microbatch=1)
    add(d, (1, 1 if phase is Phase.INITIATION else 2), (1, 2))
    d.next_batch()
    if phase is Phase.INCREMENT:
        d.complete()
        d.next_batch()
    d.complete()
    d.cancel(1)
    d.drain()
    assert d.fates[1].reason is FinishReason.CANCELLED
