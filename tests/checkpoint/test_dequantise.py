"""Every kind gives the numbers that the gguf library gives, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from gguf.constants import GGML_QUANT_SIZES

from orcaserve.checkpoint.dequantise import dequantise, is_finite
from orcaserve.core.errors import UnsupportedModel

OURS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
THEIRS = ["Q4_K", "Q2_K", "Q3_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "IQ2_XXS", "IQ3_S", "TQ1_0", "MXFP4"]


@pytest.mark.parametrize("kind", OURS)
def test_our_kinds(kind: str) -> None:
    """Quantised by the library, more blocks than one chunk holds."""
    numbers = np.random.default_rng(1).standard_normal((300, 2048)).astype(np.float32)
    number = GGMLQuantizationType[kind]
    stored = quants.quantize(numbers, number)
    out = np.empty(numbers.size, np.float32)
    dequantise(kind, np.ascontiguousarray(stored).view(np.uint8).reshape(-1), out)
    assert np.array_equal(out.reshape(numbers.shape), quants.dequantize(stored, number))


@pytest.mark.parametrize("kind", OURS[3:] + THEIRS)
def test_random_bytes_with_sane_scales(kind: str) -> None:
    """Every bit pattern of the small integers, for kinds that the library cannot write too."""
    number = GGMLQuantizationType[kind]
    block, n_bytes = GGML_QUANT_SIZES[number]
    n_blocks = 3 * (1 << 18) // n_bytes
    stored = np.random.default_rng(2).integers(0, 256, (n_blocks, n_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = quants.dequantize(stored, number)
        out = np.empty(n_blocks * block, np.float32)
        dequantise(kind, stored.reshape(-1), out)
    assert np.array_equal(out.view(np.uint32), expected.reshape(-1).view(np.uint32)) or np.array_equal(
        out, expected.reshape(-1), equal_nan=True
    )


def test_double_precision_and_unknown_kinds() -> None:
    out = np.empty(2, np.float32)
    dequantise("F64", np.array([1.5, -2.0]).view(np.uint8), out)
    assert out.tolist() == [1.5, -2.0]
    for kind in ("I32", "F8_E4M3", "Q9_9"):
        with pytest.raises(UnsupportedModel, match=f"{kind}.*Q4_1"):
            dequantise(kind, np.zeros(8, np.uint8), out)


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_is_finite_says_what_the_numbers_say(kind: str) -> None:
    """Over single bytes changed to what makes exponents of scales (or numbers) all ones, and to others."""
    random = np.random.default_rng(3)
    numbers = random.standard_normal((4, 256)).astype(np.float32)
    stored = np.ascontiguousarray(quants.quantize(numbers, GGMLQuantizationType[kind])).view(np.uint8).reshape(-1)
    assert is_finite(kind, stored)
    outcomes = set()
    for at in random.integers(0, 4 * 40, 300):
        damaged = stored.copy()
        damaged[at : at + 2] = random.choice([0x7C, 0xFC, 0x80, 0x7F, 0xFF, 0x00, 0x21], 2)
        out = np.empty(numbers.size, np.float32)
        with np.errstate(all="ignore"):
            dequantise(kind, damaged, out)
        assert is_finite(kind, damaged) == np.isfinite(out).all()
        outcomes.add(bool(np.isfinite(out).all()))
    assert outcomes == {True, False}
