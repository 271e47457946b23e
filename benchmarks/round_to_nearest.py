"""Round to nearest: float32 weights to the integers of a format, each to the one next to it, and nothing clever.

What formats that GGUF's own library cannot write need, and what checkpoint folders hold (quantised_files.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

SUPER_BLOCK = 256  # numbers of a block of the K kinds


@dataclass(frozen=True, slots=True)
class Rounded:
    """numbers [n_out, n_in], zeros and scales [n_out, n_groups]: a weight is (number - zero) * scale.

    Numbers and zeros count from 0 on. group_size: inputs that share a scale; the last group may have fewer.
    """

    numbers: Ints
    zeros: Ints
    scales: Floats
    group_size: int

    def weights(self) -> Floats:
        group = np.arange(self.numbers.shape[1]) // self.group_size
        return ((self.numbers - self.zeros[:, group]) * self.scales[:, group]).astype(np.float32)


def round_groups(weights: Floats, bits: int, group_size: int, symmetric: bool, scale_kind: str = "F16") -> Rounded:
    """Weights [n_out, n_in]; scales are rounded to F16 or BF16 before numbers are."""
    n_out, n_in = weights.shape
    most = (1 << bits) - 1
    n_groups = -(-n_in // group_size)
    filled = np.zeros((n_out, n_groups * group_size), np.float32)
    filled[:, :n_in] = weights  # zeros change no group's range, for all of them hold 0
    groups = filled.reshape(n_out, n_groups, group_size)
    low, high = np.minimum(groups.min(axis=2), 0), np.maximum(groups.max(axis=2), 0)
    if symmetric:
        high = np.maximum(high, -low)
        low = -high
    scales = _as_stored((high - low) / most, scale_kind)
    scales[scales == 0] = 1
    zeros = np.full(scales.shape, 1 << (bits - 1)) if symmetric else np.clip(np.rint(-low / scales), 0, most)
    numbers = np.clip(np.rint(groups / scales[:, :, None]) + zeros[:, :, None], 0, most)
    return Rounded(numbers.reshape(n_out, -1)[:, :n_in].astype(np.int64), zeros.astype(np.int64), scales, group_size)


def k_blocks(weights: Floats, kind: str) -> Bytes:
    """Weights [n_out, n_in], n_in a multiple of 256, as rows of blocks of Q4_K, Q5_K or Q6_K."""
    blocks = weights.reshape(-1, SUPER_BLOCK)
    turned = _q6_k(blocks) if kind == "Q6_K" else _q4_or_q5_k(blocks, {"Q4_K": 4, "Q5_K": 5}[kind])
    return np.concatenate(turned, axis=1).reshape(len(weights), -1)


def _as_stored(scales: Floats, kind: str) -> Floats:
    if kind == "F16":
        return scales.astype(np.float16).astype(np.float32)
    bits = np.ascontiguousarray(scales, np.float32).view(np.uint32)
    return ((bits + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)


def _half(numbers: Floats) -> tuple[Floats, Bytes]:
    """[n, 1] rounded to float16, and its bytes."""
    half = numbers.astype("<f2")
    return half.astype(np.float32), half.view(np.uint8).reshape(len(numbers), 2)


def _over(x: Floats, scale: Floats) -> Floats:
    """x / scale, 0 where the scale is 0."""
    return np.divide(x, scale, out=np.zeros_like(x), where=scale != 0)


def _q4_or_q5_k(blocks: Floats, bits: int) -> list[Bytes]:
    """Eight runs of 32 with a scale and a minimum of 6 bits each, of which there are 63 in a float16."""
    runs, most = blocks.reshape(-1, 8, 32), (1 << bits) - 1
    less = -np.minimum(runs.min(axis=2), 0)
    span = (np.maximum(runs.max(axis=2), 0) + less) / most
    unit, unit_bytes = _half(span.max(axis=1, keepdims=True) / 63)
    less_unit, less_bytes = _half(less.max(axis=1, keepdims=True) / 63)
    scales, minima = (
        np.clip(np.rint(_over(x, np.broadcast_to(u, x.shape))), 0, 63).astype(np.uint8)
        for x, u in ((span, unit), (less, less_unit))
    )
    step = np.broadcast_to((unit * scales)[:, :, None], runs.shape)
    numbers = np.clip(np.rint(_over(runs + (less_unit * minima)[:, :, None], step)), 0, most).astype(np.uint8)
    upper = (scales[:, 4:] & 15) | (minima[:, 4:] & 15) << 4
    sixes = [x[:, :4] | x[:, 4:] >> 4 << 6 for x in (scales, minima)]
    low = (numbers & 15).reshape(-1, 4, 2, 32)
    halves = (low[:, :, 0] | low[:, :, 1] << 4).reshape(len(blocks), -1)
    fifth = [] if bits == 4 else [np.packbits(numbers >> 4, axis=1, bitorder="little").reshape(len(blocks), -1)]
    return [unit_bytes, less_bytes, *sixes, upper, *fifth, halves]


def _q6_k(blocks: Floats) -> list[Bytes]:
    """Sixteen runs of 16 with a scale of 8 bits each, numbers from -32 to 31."""
    runs = blocks.reshape(-1, 16, 16)
    span = np.abs(runs).max(axis=2) / 31
    unit, unit_bytes = _half(span.max(axis=1, keepdims=True) / 127)
    scales = np.clip(np.rint(_over(span, np.broadcast_to(unit, span.shape))), 0, 127).astype(np.int8)
    step = np.broadcast_to((unit * scales)[:, :, None], runs.shape)
    numbers = (np.clip(np.rint(_over(runs, step)), -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = (numbers & 15).reshape(-1, 2, 2, 64)
    high = numbers >> 4
    halves = (low[:, :, 0] | low[:, :, 1] << 4).reshape(len(blocks), -1)
    pairs = (high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6).reshape(len(blocks), -1)
    return [halves, pairs, scales.view(np.uint8), unit_bytes]
