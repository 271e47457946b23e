"""What vLLM's paper has Orca reserve: orca-max, orca-pow2, orca-oracle. All else is iteration-level FCFS."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_driver import LONGEST, PAGE, drive

from orcaserve.core import Request, SamplingParams
from orcaserve.scheduler import Scheduler
from orcaserve.scheduler.policies import EvenBatches, OrcaOracle, OrcaPow2, PolicySettings, make_policy

ORCAS = ("orca-max", "orca-pow2", "orca-oracle")


def request(n_input: int, max_tokens: int) -> Request:
    return Request(1, [0] * n_input, SamplingParams(max_tokens=max_tokens))


@pytest.mark.parametrize(
    ("n_output", "pow2"), [(0, 0), (1, 1), (2, 2), (3, 4), (25, 32), (32, 32), (33, 64), (128, 128), (129, 256)]
)
def test_the_three(n_output: int, pow2: int) -> None:
    settings = PolicySettings(1, 2048)
    of = {name: make_policy(name, settings).reservation(request(10, n_output)) for name in ORCAS}
    assert of == {"orca-max": 2048, "orca-pow2": 10 + pow2, "orca-oracle": 10 + n_output}


def test_rounded_up_it_exceeds_no_request() -> None:
    assert OrcaPow2(1, 100).reservation(request(50, 40)) == 100


def test_who_knows_the_true_lengths_says_so() -> None:
    assert OrcaOracle(1, lambda r: 3).reservation(request(10, 40)) == 13
    assert OrcaPow2(1, 2048, lambda r: 3).reservation(request(10, 40)) == 14


def test_how_many_run_at_once_follows_from_the_reservation() -> None:
    n_running = {}
    for name in (*ORCAS, "iteration-level"):
        d = drive(name, n_pages=LONGEST // PAGE * 2, max_bs=100)
        for _ in range(50):
            assert d.add(3, 5, 5)
        batch = d.next_batch()
        assert batch is not None
        n_running[name] = len(batch.entries)
    assert n_running == {"orca-max": 2, "orca-pow2": 8, "orca-oracle": 12, "iteration-level": 12}


@given(
    name=st.sampled_from(ORCAS),
    sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=14),
    max_bs=st.integers(1, 4),
    n_workers=st.integers(1, 3),
    n_pages=st.integers(12, 40),
    choices=st.lists(st.booleans(), max_size=60),
)
def test_first_come_first_served(
    name: str, sizes: Sequence[tuple[int, int]], max_bs: int, n_workers: int, n_pages: int, choices: Sequence[bool]
) -> None:
    d = drive(name, n_pages, max_bs, n_workers)
    for size in sizes:
        assert d.add(*size, size[1])
    for choice in choices:
        if choice:
            d.next_batch()
        elif d.in_flight:
            d.complete()
        iterations = [fate.request.n_iterations for fate in d.fates if fate.reason is None]
        assert iterations == sorted(iterations, reverse=True)
    d.drain()


@pytest.mark.parametrize("n_workers", [1, 3])
def test_with_slots_to_spare_all_schedules_are_the_same(n_workers: int) -> None:
    schedules = []
    for name in (*ORCAS, "iteration-level"):
        d = drive(name, 1000, 3, n_workers)
        for size in [(3, 5), (9, 2), (1, 12), (4, 4), (20, 1), (2, 2)]:
            d.add(*size, size[1])
        d.drain()
        schedules.append(d.batches)
    assert all(schedule == schedules[0] for schedule in schedules)


def test_iteration_level_is_made_for_the_workers_there_are() -> None:
    policy = make_policy("iteration-level", PolicySettings(2, 100))
    assert isinstance(policy, EvenBatches)
    scheduler = Scheduler(1000, 64, 2, policy=policy)
    for i in range(4):
        scheduler.add(Request(i, [1], SamplingParams()), 0)
    batch = scheduler.next_batch()
    assert batch is not None and len(batch.entries) == 2
