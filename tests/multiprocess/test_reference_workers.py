"""A model in PyTorch, cut over real processes, gives what one gives; on the CPU, with the code that GPUs run too."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from engine_runs import Running, settings, some_requests
from server_process import workers

from orcaserve.config import EngineConfig

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def reference(model: Path, p: int = 1, t: int = 1, device: str = "reference", **parallel: object) -> EngineConfig:
    config = settings(model, p, t, **parallel)
    return replace(config, model=replace(config.model, device=device))


@pytest.fixture(scope="module")
def expected(odd_model: Path) -> dict[int, list[int]]:
    with Running(reference(odd_model)) as one:
        return one.run(some_requests())


@pytest.mark.parametrize(("p", "t"), [(2, 1), (1, 3), (3, 2)])
def test_cut_into_parts_it_gives_the_tokens_of_one_process(
    p: int, t: int, odd_model: Path, expected: dict[int, list[int]], alive: Callable[[int], bool]
) -> None:
    with Running(reference(odd_model, p, t)) as engine:
        pids = workers(os.getpid())
        assert set(pids) == {f"s{stage}r{shard}" for stage in range(p) for shard in range(t)}
        assert engine.run(some_requests()) == expected
    assert not any(alive(pid) for pid in pids.values())
