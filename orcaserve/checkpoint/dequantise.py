"""Stored numbers to float32: the plain kinds and the common block kinds of GGUF, in vectorised numpy.

A block kind stores 32 (or 256) neighbours of a row together: a scale, perhaps a minimum, and small integers. The kinds
below are ours; other K-quants and rarer ones go through the `gguf` library, imported only when such a tensor is read.

INT4 and INT8 are no file's: quantised checkpoint folders (quantised.py) are seen as tensors of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orcaserve.core.errors import CheckpointError, UnsupportedModel

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
_LIBRARY_BLOCK = 256  # of the kinds that the library turns, but for
_LIBRARY_BLOCKS = {"IQ4_NL": 32, "MXFP4": 32}
CHUNK_BYTES = 1 << 18  # of stored data turned at a time: its temporaries stay in the cache, and out of the peak memory


def dequantise(kind: str, stored: Bytes, out: Floats) -> None:
    """Write the numbers stored in `stored` (bytes, one dimension) to `out` (one dimension, contiguous).

    Raises UnsupportedModel for a kind that cannot be turned into float32 here.
    """
    if kind in _PLAIN:
        _PLAIN[kind](stored, out)
    elif kind in _BLOCKS:
        block = _BLOCKS[kind]
        rows, numbers = stored.reshape(-1, block.n_bytes), out.reshape(-1, block.n_numbers)
        step = CHUNK_BYTES // block.n_bytes
        for start in range(0, len(rows), step):
            block.turn(rows[start : start + step], numbers[start : start + step])
    else:
        _by_library(kind, stored, out)


def block_numbers(kind: str) -> int:
    """How many neighbours of a row are stored together; 1 for plain kinds."""
    return 1 if kind in _PLAIN else (BLOCK_NUMBERS | _LIBRARY_BLOCKS).get(kind, _LIBRARY_BLOCK)


def columns(kind: str, stored: Bytes, inputs: Sequence[int]) -> Floats:
    """Some columns [rows, inputs] of rows of blocks [rows, bytes of a row], of a kind in BLOCK_NUMBERS."""
    block = _BLOCKS[kind]
    blocks = stored.reshape(len(stored), -1, block.n_bytes)
    out = np.empty((len(stored), len(inputs)), np.float32)
    numbers = np.empty((len(stored), block.n_numbers), np.float32)
    for i, column in enumerate(inputs):
        block.turn(np.ascontiguousarray(blocks[:, column // block.n_numbers]), numbers)
        out[:, i] = numbers[:, column % block.n_numbers]
    return out


def is_finite(kind: str, stored: Bytes) -> bool:
    """Whether all numbers stored in `stored` are finite: F32, BF16, and the block kinds below. KeyError for others.

    Of INT4 and INT8: whether their scales are.
    """
    if kind == "F32":
        return bool(np.isfinite(stored.view("<f4")).all())
    if kind == "BF16":
        return bool(((stored.view("<u2") & 0x7F80) != 0x7F80).all())
    block = _BLOCKS[kind]
    n_bytes = block.n_scales * np.dtype(block.scale).itemsize
    scales = stored.reshape(-1, block.n_bytes)[:, :n_bytes].copy().view(block.scale)
    return bool(np.isfinite(scales).all())


def _float64(stored: Bytes, out: Floats) -> None:
    out[:] = stored.view("<f8")


def _float32(stored: Bytes, out: Floats) -> None:
    out[:] = stored.view("<f4")


def _float16(stored: Bytes, out: Floats) -> None:
    out[:] = stored.view("<f2")


def _bfloat16(stored: Bytes, out: Floats) -> None:
    """A bfloat16 is the upper half of a float32."""
    bits = out.view(np.uint32)
    bits[:] = stored.view("<u2")
    bits <<= 16


def _floats(blocks: Bytes, start: int) -> Floats:
    """The float32 at byte `start` of each block, as a column [blocks, 1]."""
    column: Floats = blocks[:, start : start + 4].copy().view("<f4")
    return column


def _halves(blocks: Bytes, start: int) -> Floats:
    """The float16 at byte `start` of each block, as a column [blocks, 1]."""
    column: Floats = blocks[:, start : start + 2].copy().view("<f2").astype(np.float32)
    return column


def _q8_0(blocks: Bytes, out: Floats) -> None:
    """scale, 32 int8."""
    out[:] = blocks[:, 2:].view(np.int8)
    out *= _halves(blocks, 0)


def _nibbles(packed: Bytes, out: NDArray[Any]) -> None:
    """16 bytes hold 32 numbers: the low halves are the first 16, the high halves the rest."""
    out[:, :16] = packed & 15
    out[:, 16:] = packed >> 4


def _q4_0(blocks: Bytes, out: Floats) -> None:
    """scale, 16 bytes; a number is (nibble - 8) * scale."""
    _nibbles(blocks[:, 2:], out)
    out -= 8
    out *= _halves(blocks, 0)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    """scale, minimum, 16 bytes; a number is nibble * scale + minimum."""
    _nibbles(blocks[:, 4:], out)
    out *= _halves(blocks, 0)
    out += _halves(blocks, 2)


def _five_bits(high: Bytes, low: Bytes) -> Bytes:
    """The fifth bit of number i is bit i of the four bytes `high` (little-endian)."""
    numbers = np.unpackbits(high, axis=1, bitorder="little")
    numbers <<= 4
    numbers[:, :16] |= low & 15
    numbers[:, 16:] |= low >> 4
    return numbers


def _q5_0(blocks: Bytes, out: Floats) -> None:
    """scale, 32 high bits, 16 bytes; a number is (five bits - 16) * scale."""
    out[:] = _five_bits(blocks[:, 2:6], blocks[:, 6:])
    out -= 16
    out *= _halves(blocks, 0)


def _q5_1(blocks: Bytes, out: Floats) -> None:
    """scale, minimum, 32 high bits, 16 bytes; a number is five bits * scale + minimum."""
    out[:] = _five_bits(blocks[:, 4:8], blocks[:, 8:])
    out *= _halves(blocks, 0)
    out += _halves(blocks, 2)


def scales_of_q4_k(blocks: Bytes) -> tuple[Floats, Floats]:
    """The scale and what is taken off, of every 32 numbers of blocks [blocks, 144]: [blocks, 8] each.

    A block: a float16 for all scales and one for all minima, 12 bytes with 6 bits of each of the 8 scales and 8 minima,
    128 bytes of halves. The first four of both are in the low bits of 4 bytes each; of the others the low halves are in
    the last 4 bytes, and the two upper bits where the first ones leave room.
    """
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return _halves(blocks, 0) * scales.astype(np.float32), _halves(blocks, 2) * minima.astype(np.float32)


def _q4_k(blocks: Bytes, out: Floats) -> None:
    """256 numbers in runs of 32: of 32 bytes the low halves are a run, the high halves the next one."""
    scales, minima = scales_of_q4_k(blocks)
    pairs, runs = blocks[:, 16:].reshape(-1, 4, 32), out.reshape(-1, 8, 32)
    runs[:, 0::2] = pairs & 15
    runs[:, 1::2] = pairs >> 4
    runs *= scales[..., None]
    runs -= minima[..., None]


def _int4(blocks: Bytes, out: Floats) -> None:
    """scale, zero, 16 bytes; a number is (nibble - zero) * scale."""
    _nibbles(blocks[:, 8:], out)
    out -= _floats(blocks, 4)
    out *= _floats(blocks, 0)


def _int8(blocks: Bytes, out: Floats) -> None:
    """scale, zero, 32 int8; a number is (int8 - zero) * scale."""
    out[:] = blocks[:, 8:].view(np.int8)
    out -= _floats(blocks, 4)
    out *= _floats(blocks, 0)


@dataclass(frozen=True, slots=True)
class _Block:
    """n_scales: numbers of type `scale` at its start: the scale, and perhaps a minimum or a zero."""

    n_numbers: int
    n_bytes: int
    n_scales: int
    turn: Callable[[Bytes, Floats], None]
    scale: str = "<f2"


_PLAIN: dict[str, Callable[[Bytes, Floats], None]] = {
    "F64": _float64,
    "F32": _float32,
    "F16": _float16,
    "BF16": _bfloat16,
}
_BLOCKS = {
    "Q8_0": _Block(32, 34, 1, _q8_0),
    "Q4_0": _Block(32, 18, 1, _q4_0),
    "Q4_1": _Block(32, 20, 2, _q4_1),
    "Q5_0": _Block(32, 22, 1, _q5_0),
    "Q5_1": _Block(32, 24, 2, _q5_1),
    "Q4_K": _Block(256, 144, 2, _q4_k),
    "INT4": _Block(32, 24, 2, _int4, "<f4"),
    "INT8": _Block(32, 40, 2, _int8, "<f4"),
}
BLOCK_NUMBERS = {kind: block.n_numbers for kind, block in _BLOCKS.items()}
BLOCK_BYTES = {kind: block.n_bytes for kind, block in _BLOCKS.items()}


def _by_library(kind: str, stored: Bytes, out: Floats) -> None:
    from gguf import GGMLQuantizationType
    from gguf.constants import GGML_QUANT_SIZES
    from gguf.quants import dequantize

    supported = ", ".join([*_PLAIN, *_BLOCKS, "and the K, IQ, TQ and MXFP4 kinds of GGUF"])
    try:
        number = GGMLQuantizationType[kind]
    except KeyError:
        raise UnsupportedModel(f"tensors of kind {kind} are not supported; supported are {supported}") from None
    block_numbers, block_bytes = GGML_QUANT_SIZES[number]
    step = max(CHUNK_BYTES // block_bytes, 1)
    blocks, numbers = stored.reshape(-1, block_bytes), out.reshape(-1, block_numbers)
    for start in range(0, len(blocks), step):
        try:
            # Scales of hostile files may be infinite or not numbers: what they give is checked as weights are.
            with np.errstate(all="ignore"):
                numbers[start : start + step] = dequantize(blocks[start : start + step], number)
        except NotImplementedError:
            raise UnsupportedModel(f"tensors of kind {kind} are not supported; supported are {supported}") from None
        except (ValueError, IndexError) as error:
            raise CheckpointError(f"data of kind {kind} is damaged: {error}") from error
