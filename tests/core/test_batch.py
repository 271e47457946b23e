from __future__ import annotations

import pytest

from orcaserve.core import Batch, BatchEntry, Increment, Phase, SamplingParams


def test_tokens_of_a_batch() -> None:
    """Figure 5 of the paper: x1 at its 4th token, x2 at its 2nd, x3 with 2 and x4 with 3 input tokens: 7 tokens."""
    params = SamplingParams()
    entries = (
        Increment(1, 5, 3),
        Increment(2, 5, 1),
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


def test_an_increment_is_an_entry_with_nothing_to_settle() -> None:
    entry = Increment(7, 5, 3)
    assert (entry.request_id, entry.phase, list(entry.tokens), entry.position) == (7, Phase.INCREMENT, [5], 3)
    assert (entry.params, entry.stop_ids, entry.seed, entry.n_output, entry.n_to_come) == (None, frozenset(), 0, 0, 0)
    assert entry == Increment(7, 5, 3) != Increment(7, 6, 3)
    assert "position=3" in repr(entry)
