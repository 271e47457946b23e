"""What passes in the accuracy report, and what does not."""

from __future__ import annotations

from math import log

import pytest
from accuracy import greedy_row, perplexity_row
from accuracy_measures import Divergence, Tally


@pytest.mark.parametrize(
    ("form", "change", "passes"),
    [
        ("int8/int8", 0.0049, True),
        ("int8/int8", 0.0051, False),
        ("int8/int8", -0.0051, False),
        ("int4/int8", 0.0099, True),
        ("int4/int8", 0.0101, False),
    ],
)
def test_perplexity_stays_within_the_bound_of_the_weights(form: str, change: float, passes: bool) -> None:
    reference = Tally(n=10, nll=10 * log(20), same_best=10)
    tally = Tally(n=10, nll=10 * log(20 * (1 + change)), kl=0.1, same_best=9)
    assert perplexity_row(form, tally, reference)[1] is passes


@pytest.mark.parametrize(("close", "far", "passes"), [(0, 0, True), (10, 0, True), (5, 5, True), (4, 6, False)])
def test_texts_are_equal_or_leave_at_a_close_step(close: int, far: int, passes: bool) -> None:
    found = [Divergence(3, 0.05)] * close + [Divergence(3, 0.4)] * far
    equal = [None] * (50 - len(found))
    assert greedy_row("int8/int8", [*found, *equal])[1] is passes
