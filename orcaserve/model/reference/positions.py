"""Positions that are worked out: T5's, of two tokens to each other, and sinusoids."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from orcaserve.model.layout import Int32s


def buckets(distance: Tensor, n_buckets: int, max_distance: int, both_ways: bool) -> Tensor:
    """Distances key - query [...] int64 -> rows of the table of relative positions (T5).

    Half of the rows are for keys behind the query, if it sees such. Of the others the first half is for one distance
    each, and the rest for ever longer runs of them, up to max_distance and beyond.
    """
    row = torch.zeros_like(distance)
    if both_ways:
        n_buckets //= 2
        row = (distance > 0).long() * n_buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    n_exact = n_buckets // 2
    far = torch.log(distance.clamp(min=1).float() / n_exact) / math.log(max_distance / n_exact) * (n_buckets - n_exact)
    return row + torch.where(distance < n_exact, distance, (n_exact + far.long()).clamp(max=n_buckets - 1))


def sinusoids(positions: Int32s, width: int) -> Tensor:
    """[n] -> [n, width] float32: sines of a position at falling frequencies, then its cosines."""
    angles = positions[:, None] / np.power(10_000, 2 * (np.arange(width) // 2) / width)
    return torch.from_numpy(np.concatenate((np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])), 1)).float()
