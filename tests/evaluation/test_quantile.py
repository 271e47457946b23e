"""Quantiles as the latency report means them."""

from __future__ import annotations

from math import isnan

import pytest

from orcaserve.evaluation.latency import quantile


@pytest.mark.parametrize(("share", "value"), [(0.5, 5), (0.9, 9), (0.99, 10), (1.0, 10), (0.0, 1), (0.05, 1)])
def test_of_one_to_ten(share: float, value: float) -> None:
    assert quantile([3, 1, 2, 10, 9, 8, 7, 6, 5, 4], share) == value


def test_of_few_values() -> None:
    assert quantile([7.0], 0.99) == 7.0
    assert isnan(quantile([], 0.5))
