"""What a cluster has room for, in numbers and in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.ray.room import Need, NodeRoom, cpus_each, lack


@pytest.mark.parametrize(
    ("nodes", "n_workers", "cpus"),
    [([8], 1, 8), ([8], 2, 4), ([8], 3, 2), ([8, 8], 2, 8), ([8, 4], 2, 4), ([8, 4], 3, 4), ([0, 2, 2], 4, 1)],
)
def test_workers_get_equal_shares_of_whole_nodes(nodes: list[float], n_workers: int, cpus: int) -> None:
    assert cpus_each(nodes, n_workers) == cpus


@given(st.lists(st.floats(0, 64), max_size=6), st.integers(1, 12))
def test_there_is_room_for_what_each_gets_and_for_no_more(nodes: list[float], n_workers: int) -> None:
    def room(cpus: int) -> int:
        return sum(int(node // cpus) for node in nodes)

    cpus = cpus_each(nodes, n_workers)
    assert cpus >= 1
    if room(1) >= n_workers:
        assert room(cpus) >= n_workers > room(cpus + 1)
    else:
        assert cpus == 1


def test_the_numbers_are_said() -> None:
    nodes = [NodeRoom("a", 8, 0.5), NodeRoom("b", 4, 4)]
    assert lack("h:1", nodes, 3, Need(2)) == (
        "Ray's cluster at h:1 has no room for 3 workers with 2 CPUs each: free are 0.5 of 8 CPUs on a; 4 of 4 CPUs on b"
    )
    gpu = [NodeRoom("a", 8, 8, 1, 0)]
    assert lack("h:1", gpu, 1, Need(1, 1)).endswith(
        "for a worker with 1 CPU and 1 GPU: free are 8 of 8 CPUs and 0 of 1 GPUs on a"
    )
    assert lack("h:1", [], 1, Need(1)).endswith("free are no nodes at all")
