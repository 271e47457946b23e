"""Batches for a pipeline: every stage gets one, and first come is still first served."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.core import Batch, IterationResult, Request, SamplingParams
from orcaserve.scheduler import Scheduler
from orcaserve.scheduler.policies import EvenBatches


def request(id: int, max_tokens: int = 4, n_input: int = 1) -> Request:
    return Request(id, [1] * n_input, SamplingParams(max_tokens=max_tokens))


def scheduler(n_slots: int, max_bs: int, n_workers: int) -> Scheduler:
    return Scheduler(n_slots, max_bs, n_workers, policy=EvenBatches(n_workers))


def ids(batch: Batch | None) -> list[int]:
    assert batch is not None
    return [entry.request_id for entry in batch.entries]


def result(batch: Batch) -> IterationResult:
    return IterationResult(batch.iteration, [5] * len(batch.entries))


@pytest.mark.parametrize(
    ("n", "n_workers", "max_bs", "batches"),
    [
        (6, 3, 2, [[0, 1], [2, 3], [4, 5]]),  # the paper's Figure 8
        (4, 2, 64, [[0, 1], [2, 3]]),
        (5, 2, 64, [[0, 1, 2], [3, 4]]),
        (2, 3, 64, [[0], [1]]),
        (9, 2, 2, [[0, 1], [2, 3]]),
        (4, 1, 64, [[0, 1, 2, 3]]),
    ],
)
def test_shares(n: int, n_workers: int, max_bs: int, batches: list[list[int]]) -> None:
    s = scheduler(1000, max_bs, n_workers)
    for i in range(n):
        s.add(request(i), 0)
    assert [ids(s.next_batch()) for _ in batches] == batches
    assert s.next_batch() is None


def test_those_without_memory_do_not_count() -> None:
    """Two fit; that three more wait must not put the two into one batch."""
    s = scheduler(10, 64, 2)
    for i in range(5):
        s.add(request(i), 0)
    assert [ids(s.next_batch()), ids(s.next_batch())] == [[0], [1]]
    assert s.next_batch() is None


@given(
    n_workers=st.integers(1, 4),
    max_bs=st.integers(1, 5),
    sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 8)), min_size=1, max_size=25),
    choices=st.lists(st.integers(0, 2), max_size=200),
)
def test_first_come_first_served_whatever_comes_when(
    n_workers: int, max_bs: int, sizes: list[tuple[int, int]], choices: list[int]
) -> None:
    s = scheduler(40, max_bs, n_workers)
    coming, in_flight = deque(request(i, new, n_input) for i, (n_input, new) in enumerate(sizes)), deque[Batch]()

    def step(choice: int) -> None:
        if choice == 0 and coming:
            s.add(coming.popleft(), 0)
        elif choice == 1 and (batch := s.next_batch()) is not None:
            in_flight.append(batch)
        elif in_flight:
            s.complete(result(in_flight.popleft()))
        s.check_invariants()

    for choice in choices:
        step(choice)
    for i in range(20_000):
        step(i % 3)
        if not coming and s.status().n_live == 0:
            return
    raise AssertionError("some never ended")
