"""What settings and machine make of an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from orcaserve.config import EngineConfig, ModelConfig, ParallelConfig
from orcaserve.model.spec import ModelSpec, RopeSpec
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


@pytest.mark.parametrize(
    ("kind", "expected"), [("default", None), ("llama3", None), ("yarn", None), ("dynamic", 50), ("longrope", 50)]
)
def test_keys_of_long_texts_are_not_to_be_shared_where_they_depend_on_the_length(
    kind: str, expected: int | None
) -> None:
    rope = RopeSpec(8, 8, trained_length=50, kind=kind)
    spec = ModelSpec(16, 64, 12, 2, 4, 2, 8, 100, "rms", 1e-5, "silu", True, True, rope)
    assert facts.engine_facts(EngineConfig(ModelConfig(Path("x"), "x")), spec, 100).shareable == expected
