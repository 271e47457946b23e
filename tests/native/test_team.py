"""The team's threads, seen from outside: each on a core of its own."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orcaserve.native import _kernels

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def threads() -> set[int]:
    return {int(name.name) for name in Path("/proc/self/task").iterdir()}


def cores_of_a_team(n_threads: int, first: int, total: int) -> list[set[int]]:
    """Where its members may run: the caller's first, then those it started."""

    def take() -> list[set[int]]:
        before = threads()
        team = _kernels.Team(n_threads)
        team.take_cores(first, total)
        started = sorted(threads() - before)
        return [os.sched_getaffinity(0), *[os.sched_getaffinity(thread) for thread in started]]

    with ThreadPoolExecutor(1) as caller:  # this thread stays as it is
        return caller.submit(take).result()


def test_members_have_cores_of_their_own() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    for total in range(1, len(allowed) + 1):
        for n_threads in range(1, total + 1):
            for first in range(total - n_threads + 1):
                nobodys = set(allowed[total:])
                own = [{core} for core in allowed[first : first + n_threads]]
                assert cores_of_a_team(n_threads, first, total) == [core | nobodys for core in own]
    assert sorted(os.sched_getaffinity(0)) == allowed


def test_with_fewer_cores_than_threads_nobody_takes_one() -> None:
    allowed = os.sched_getaffinity(0)
    assert cores_of_a_team(2, 0, len(allowed) + 1) == [allowed, allowed]


@pytest.mark.parametrize(("first", "total"), [(-1, 2), (1, 2), (0, 1)])
def test_a_team_is_no_more_than_all(first: int, total: int) -> None:
    with pytest.raises(ValueError, match="fewer threads"):
        _kernels.Team(2).take_cores(first, total)
