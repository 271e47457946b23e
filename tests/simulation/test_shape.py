"""Shapes count what a batch holds."""

from __future__ import annotations

from orcaserve.core import Batch, BatchEntry, Phase, SamplingParams
from orcaserve.simulation.shape import Shape, shape_of


def _initiation(request_id: int, n: int) -> BatchEntry:
    return BatchEntry(request_id, Phase.INITIATION, range(n), 0, SamplingParams())


def _increment(request_id: int, position: int) -> BatchEntry:
    return BatchEntry(request_id, Phase.INCREMENT, (0,), position)


def test_increments_alone() -> None:
    batch = Batch(1, (_increment(1, 10), _increment(2, 30)))
    assert shape_of(batch) == Shape(2, 2, 0, 40, 0, 1, 30)


def test_both_phases() -> None:
    """The paper's Figure 5: two increments with 3 and 1 earlier keys, prompts of 2 and 3 tokens."""
    batch = Batch(1, (_increment(1, 3), _increment(2, 1), _initiation(3, 2), _initiation(4, 3)))
    assert shape_of(batch) == Shape(4, 7, 5, 4, 3 + 6, 3, 3)


def test_a_prompt_of_one_token_has_no_context() -> None:
    assert shape_of(Batch(1, (_initiation(1, 1),))) == Shape(1, 1, 0, 0, 0, 1, 0)
