from __future__ import annotations

import pytest

from orcaserve.core import Batch, BatchEntry, Phase, SamplingParams


def test_tokens_of_a_batch() -> None:
    """Figure 5 of the paper: x1 at its 4th token, x2 at its 2nd, x3 with 2 and x4 with 3 input tokens: 7 tokens."""
    params = SamplingParams()
    entries = (
        BatchEntry(1, Phase.INCREMENT, [5], 3),
        BatchEntry(2, Phase.INCREMENT, [5], 1),
        BatchEntry(3, Phase.INITIATION, [5, 6], 0, params),
        BatchEntry(4, Phase.INITIATION, [5, 6, 7], 0, params),
    )
    assert Batch(1, entries).n_tokens == 7


def test_params_travel_with_the_initiation_and_only_then() -> None:
    with pytest.raises(AssertionError):
        BatchEntry(1, Phase.INITIATION, [5], 0)
    with pytest.raises(AssertionError):
        BatchEntry(1, Phase.INCREMENT, [5], 3, SamplingParams())


def test_an_entry_has_tokens() -> None:
    with pytest.raises(AssertionError):
        BatchEntry(1, Phase.INCREMENT, [], 3)
