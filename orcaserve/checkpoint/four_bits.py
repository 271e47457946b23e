"""Kinds with 4-bit numbers as Q4_1 blocks, which the CPU's 4-bit kernels and tables read: numbers stay as they are.

A Q4_1 block holds 32 numbers with a float16 scale and a float16 minimum. Q4_0 is read as it is, too. INT4 and Q4_K have
the same numbers with scales of more bits, which are rounded here; docs/formats.md says what that costs. INT4 loses
nothing where its scales are float16 and its zeros 8, as in symmetric quantisation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orcaserve.checkpoint.dequantise import BLOCK_BYTES, scales_of_q4_k
from orcaserve.core.errors import UnsupportedModel

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

EXACT = frozenset({"Q4_0", "Q4_1"})
KINDS = EXACT | {"Q4_K", "INT4"}
MOST_LOSS = 2.0**-9  # that rounding may change the largest scale of a tensor by, as a share of it


def four_bits(name: str, kind: str, stored: Bytes) -> tuple[str, Bytes]:
    """Rows [rows, bytes of a row] of one of KINDS as rows of one of EXACT, and which.

    name: for the error. Raises UnsupportedModel if the scales are too large or too small for float16.
    """
    if kind in EXACT:
        return kind, stored
    blocks = stored.reshape(-1, BLOCK_BYTES[kind])
    scales, minima, halves = _q4_k(blocks) if kind == "Q4_K" else _int4(blocks)
    with np.errstate(over="ignore"):
        rounded = np.stack([scales, minima], axis=1).astype("<f2")
    change = np.abs(rounded[:, 0] - scales).max(initial=0)
    if not np.isfinite(rounded).all() or change > MOST_LOSS * np.abs(scales).max(initial=0):
        raise UnsupportedModel(
            f"tensor {name}: its scales are too large or too small for float16, which --quantization int4 has; "
            "int8 and none can hold them"
        )
    return "Q4_1", np.concatenate([rounded.view(np.uint8), halves], axis=1).reshape(len(stored), -1)


def _q4_k(blocks: Bytes) -> tuple[Floats, Floats, Bytes]:
    """Scales, minima [8 times the blocks], halves [8 times the blocks, 16] as Q4_1 has them."""
    scales, less = scales_of_q4_k(blocks)
    pairs = blocks[:, 16:].reshape(-1, 4, 2, 16)  # low halves are one run, high halves the next
    low = pairs[:, :, 0] & 15 | pairs[:, :, 1] << 4
    high = pairs[:, :, 0] >> 4 | pairs[:, :, 1] & 240
    return scales.reshape(-1), -less.reshape(-1), np.stack([low, high], axis=2).reshape(-1, 16)


def _int4(blocks: Bytes) -> tuple[Floats, Floats, Bytes]:
    scales, zeros = blocks[:, :8].copy().view("<f4").T
    return scales, -zeros * scales, blocks[:, 8:]
