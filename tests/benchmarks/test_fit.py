"""Straight lines through points."""

from __future__ import annotations

import pytest
from fit import fit_line


def test_points_on_a_line_give_the_line() -> None:
    fit = fit_line([1, 2, 4, 8], [3, 5, 9, 17])
    assert (fit.slope, fit.intercept) == (pytest.approx(2), pytest.approx(1))
    assert fit.r_squared == pytest.approx(1) and fit.at(16) == pytest.approx(33)


def test_a_parabola_is_not_taken_for_a_line() -> None:
    x = [512.0 * i for i in range(1, 9)]
    assert fit_line(x, [v * v for v in x]).r_squared < 0.9
