"""4-bit kinds as Q4_1 blocks: the same numbers, with scales rounded to float16 and no further."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from orcaserve.checkpoint.dequantise import dequantise
from orcaserve.checkpoint.four_bits import four_bits
from orcaserve.core.errors import UnsupportedModel


def q4_k(seed: int, scale: float, less: float) -> NDArray[np.uint8]:
    """Rows [3, 2 blocks] of random bits with these scales."""
    blocks = np.random.default_rng(seed).integers(0, 256, (6, 144), dtype=np.uint8)
    blocks[:, :4] = np.array([scale, less], "<f2").view(np.uint8)
    return blocks.reshape(3, -1)


def numbers(kind: str, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    out = np.empty((3, 512), np.float32)
    dequantise(kind, rows.reshape(-1), out.reshape(-1))
    return out


@given(st.integers(0, 2**32))
def test_q4_k_is_exact_where_float16_holds_its_scales(seed: int) -> None:
    rows = q4_k(seed, 0.25, -2.0)
    kind, blocks = four_bits("x", "Q4_K", rows)
    assert (kind, blocks.shape) == ("Q4_1", (3, 16 * 20))
    assert np.array_equal(numbers("Q4_1", blocks), quants.dequantize(rows, GGMLQuantizationType.Q4_K))


@given(st.integers(0, 2**32), st.floats(1e-5, 1.0), st.floats(-10.0, 10.0))
def test_q4_k_is_rounded_by_little(seed: int, scale: float, less: float) -> None:
    """By 2^-11 of scales and minima, and by half of the smallest float16 where these are subnormal."""
    rows = q4_k(seed, scale, less)
    exact = quants.dequantize(rows, GGMLQuantizationType.Q4_K)
    change = np.abs(numbers("Q4_1", four_bits("x", "Q4_K", rows)[1]) - exact)
    assert change.max() <= 15 * (63 * scale * 2.0**-11 + 2.0**-25) * 1.01 + 63 * abs(less) * 2.0**-11 * 1.01 + 2.0**-25


def test_kinds_that_are_read_as_they_are() -> None:
    rows = np.zeros((3, 320), np.uint8)
    assert four_bits("x", "Q4_1", rows) == ("Q4_1", rows)


def test_scales_that_float16_cannot_hold_are_refused() -> None:
    small = np.zeros((3, 24), np.uint8)
    small[:, :4] = np.array([1.4e-8], "<f4").view(np.uint8)
    for kind, rows in [("Q4_K", q4_k(1, 60000.0, 0.0)), ("Q4_K", q4_k(1, 1.0, 60000.0)), ("INT4", small)]:
        with pytest.raises(UnsupportedModel, match=r"some\.name.*too large or too small for float16.*int8"):
            four_bits("some.name", kind, rows)
