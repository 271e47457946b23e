from __future__ import annotations

import time

import pytest

from orcaserve.core import Request, RequestState, SamplingParams
from orcaserve.scheduler import RequestPool


def fill(n: int) -> RequestPool:
    pool = RequestPool()
    params = SamplingParams()
    for i in range(n):
        pool.add(Request(i, [1], params))
    return pool


def test_order_is_that_of_arrival_whatever_the_ids() -> None:
    pool = RequestPool()
    for i in (5, 2, 9):
        pool.add(Request(i, [1], SamplingParams()))
    pool.remove(2)
    pool.add(Request(2, [1], SamplingParams()))
    assert [request.id for request in pool] == [5, 9, 2]
    assert len(pool) == 3 and 9 in pool and pool[9].id == 9 and pool.get(7) is None


def test_ready_leaves_out_what_is_running_and_nothing_else() -> None:
    pool = fill(3)
    pool[0].state = RequestState.INCREMENT
    pool[1].state = RequestState.RUNNING
    assert [request.id for request in pool.ready()] == [0, 2]


def test_an_id_is_live_once() -> None:
    pool = fill(1)
    with pytest.raises(AssertionError):
        pool.add(Request(0, [1], SamplingParams()))
    with pytest.raises(KeyError):
        pool.remove(1)


def test_the_head_is_found_at_once_after_many_removals() -> None:
    """With a plain dict this would cross 100,000 holes: hundreds of microseconds."""
    pool = fill(100_001)
    for i in range(100_000):
        pool.remove(i)

    def seconds() -> float:
        started = time.perf_counter()
        assert next(pool.ready()).id == 100_000
        return time.perf_counter() - started

    assert min(seconds() for _ in range(50)) < 20e-6
