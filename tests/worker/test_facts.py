"""What settings and machine make of an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from orcaserve.config import EngineConfig, ModelConfig, ParallelConfig
from orcaserve.worker import facts


@pytest.mark.parametrize(
    ("p", "t", "d", "threads", "expected"),
    [
        (1, 1, 1, None, 8),
        (2, 2, 1, None, 2),
        (1, 1, 2, None, 4),
        (2, 1, 2, None, 2),
        (4, 3, 2, None, 1),
        (2, 2, 2, 5, 5),
    ],
)
def test_workers_of_all_replicas_divide_the_cores(
    p: int, t: int, d: int, threads: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "available_cores", lambda: 8)
    parallel = ParallelConfig(p, t, data_parallel_size=d)
    assert (
        facts.n_threads_for(EngineConfig(ModelConfig(Path("x"), "x", threads=threads), parallel=parallel)) == expected
    )
