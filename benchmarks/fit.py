"""The straight line that fits measured points best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Fit:
    """y = intercept + slope x. r_squared: share of the variance of y that the line explains."""

    slope: float
    intercept: float
    r_squared: float

    def at(self, x: float) -> float:
        return self.intercept + self.slope * x


def fit_line(x: Sequence[float], y: Sequence[float]) -> Fit:
    """Least squares over relative errors, so that small values count as much as large ones; R² is weighted the same."""
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    weights = 1 / ys**2
    slope, intercept = np.polyfit(xs, ys, 1, w=1 / ys)
    mean = np.average(ys, weights=weights)
    left = float((weights * (ys - intercept - slope * xs) ** 2).sum())
    whole = float((weights * (ys - mean) ** 2).sum())
    return Fit(float(slope), float(intercept), 1 - left / whole if whole else 1.0)
