"""The accuracy report's figures against sums written out."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
from accuracy_measures import Tally, blocks, first_difference, lead, log_softmax, windows


def test_windows_cover_the_text_and_leave_out_a_lone_token() -> None:
    assert list(windows([1, 2, 3, 4, 5, 6, 7], 3)) == [[1, 2, 3], [4, 5, 6]]
    assert list(windows([1, 2, 3, 4, 5], 3)) == [[1, 2, 3], [4, 5]]


@pytest.mark.parametrize("length", [2, 32, 33, 34, 100])
def test_blocks_pair_every_place_with_the_token_after_it(length: int) -> None:
    window = list(range(1000, 1000 + length))
    pairs = [
        (place, target)
        for rows, targets in blocks(window)
        for place, target in zip(range(rows.start, rows.stop), targets, strict=True)
    ]
    assert pairs == [(i, 1001 + i) for i in range(length - 1)]


def test_log_softmax_stays_finite_for_large_logits() -> None:
    got = log_softmax(np.array([[1000.0, 1000.0], [-1000.0, 0.0]], np.float32))
    assert got[0] == pytest.approx([log(0.5)] * 2)
    assert got[1] == pytest.approx([-1000.0, 0.0])


def test_a_tally_is_perplexity_divergence_and_agreement() -> None:
    reference = np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]])
    form = np.array([[0.25, 0.5, 0.25], [0.2, 0.6, 0.2]])
    targets = [0, 1]
    tally = Tally()
    for row in range(2):  # in two pieces, as blocks give them
        rows = slice(row, row + 1)
        tally.add(np.log(form[rows]).astype(np.float32), np.log(reference[rows]).astype(np.float32), targets[rows])
    kl = sum(p * log(p / q) for p, q in zip(reference.ravel(), form.ravel(), strict=True))
    assert (tally.n, tally.same_best) == (2, 1)
    assert tally.perplexity == pytest.approx(exp(-(log(0.25) + log(0.6)) / 2))
    assert tally.kl == pytest.approx(kl, abs=1e-6)


def test_a_form_does_not_diverge_from_itself() -> None:
    logits = log_softmax(np.random.default_rng(0).standard_normal((4, 50), np.float32))
    tally = Tally()
    tally.add(logits, logits, [0, 1, 2, 3])
    assert tally.kl == 0 and tally.same_best == 4


def test_first_difference_and_lead() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert lead(np.array([0.5, 3.0, -1.0, 2.75], np.float32)) == pytest.approx(0.25)
