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
    ("windows", "longest", "n_slots", "expected"),
    [
        ((), None, 1000, None),
        ((24, 24), None, 1000, 24),
        ((24, 16), None, 1000, 24),
        ((24, 0), None, 1000, None),  # a layer sees all
        ((24, 24), 24, 1000, None),  # no text is longer
        ((24, 24), None, 47, None),  # the region does not hold a window
        ((24, 24), None, 48, 24),
        ((1, 1), None, 48, 2),
    ],
)
def test_pages_are_released_if_all_layers_have_a_window(
    windows: tuple[int, ...], longest: int | None, n_slots: int, expected: int | None
) -> None:
    spec = ModelSpec(16, 64, 12, 2, 4, 2, 8, 100, "rms", 1e-5, "silu", True, True, None, windows=windows)
    config = EngineConfig(ModelConfig(Path("x"), "x", max_model_len=longest))
    assert facts.engine_facts(config, spec, n_slots).window == expected


@pytest.mark.parametrize(("windows", "expected"), [((), 64 * 1024), ((24, 24), 64 * 64), ((2000, 2000), 64 * 1024)])
def test_the_region_is_no_larger_than_requests_can_fill(windows: tuple[int, ...], expected: int) -> None:
    spec = ModelSpec(16, 1024, 12, 2, 4, 2, 8, 100, "rms", 1e-5, "silu", True, True, None, windows=windows)
    config = EngineConfig(ModelConfig(Path("x"), "x"))
    assert facts.n_slots_for(config, spec, 100, 10**12) == expected


@pytest.mark.parametrize(
    ("kind", "expected"), [("default", None), ("llama3", None), ("yarn", None), ("dynamic", 50), ("longrope", 50)]
)
def test_keys_of_long_texts_are_not_to_be_shared_where_they_depend_on_the_length(
    kind: str, expected: int | None
) -> None:
    rope = RopeSpec(8, 8, trained_length=50, kind=kind)
    spec = ModelSpec(16, 64, 12, 2, 4, 2, 8, 100, "rms", 1e-5, "silu", True, True, rope)
    assert facts.engine_facts(EngineConfig(ModelConfig(Path("x"), "x")), spec, 100).shareable == expected


def test_the_machine_with_least_room_says_how_many_slots() -> None:
    """One without any layer that has keys and values says nothing."""
    spec = ModelSpec(16, 1024, 12, 2, 4, 2, 8, 100, "rms", 1e-5, "silu", True, True, None)
    config = EngineConfig(ModelConfig(Path("x"), "x"))
    assert facts.least_slots(config, spec, [(100, 10**12), (100, 6400 * 10), (0, 1)]) == 160
