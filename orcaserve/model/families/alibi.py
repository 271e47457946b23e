"""Slopes of ALiBi: what a head takes off a score for each token between query and key.

From: Press, Smith, Lewis, "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation".
For a number of heads that is no power of two, the two ways of filling up in use.
"""

from __future__ import annotations

import math


def slopes(n_heads: int) -> tuple[float, ...]:
    """BLOOM's and Falcon's: of the power of two below, then every other one of the power above."""
    below = 2 ** math.floor(math.log2(n_heads))
    return (*_slopes(below), *_slopes(2 * below)[::2])[:n_heads]


def mpt_slopes(n_heads: int) -> tuple[float, ...]:
    """MPT's: of the power of two above, every other one first."""
    above = _slopes(2 ** math.ceil(math.log2(n_heads)))
    return above if len(above) == n_heads else (*above[1::2], *above[::2])[:n_heads]


def _slopes(n: int) -> tuple[float, ...]:
    return tuple(2 ** (-8 * (i + 1) / n) for i in range(n))
