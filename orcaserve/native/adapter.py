"""Adapters as the kernels read them (csrc/adapters.h)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orcaserve.checkpoint.lora import Floats
from orcaserve.model.adapter import LINEARS, Adapter, Gain
from orcaserve.native.huge_pages import allocate
from orcaserve.native.packing import HADAMARD, PANEL, Bytes, Format, PackedMatrix, hadamard

LANES = 16  # kAdapterLanes
LINE = 64  # bytes
STEP = 4  # inputs of a dot product of bytes


class AdapterNumbers(IntEnum):
    """How A and B are held: csrc/adapters.h's AdapterNumbers."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2

    @classmethod
    def beside(cls, matrix: PackedMatrix) -> AdapterNumbers:
        """Where a matrix's activations are integers, its adapters' numbers are too."""
        return {Format.FLOAT32: cls.FLOAT32, Format.BFLOAT16: cls.BFLOAT16}.get(matrix.format, cls.INT8)


@dataclass(frozen=True, slots=True, eq=False)
class PackedLinear:
    """Of one Linear: csrc/adapters.h's AdaptedLinear. Arrays that its kind of numbers has not are empty."""

    numbers: AdapterNumbers
    a: NDArray[Any]
    a_scales: Floats
    exact: Floats
    scales: Floats
    first: NDArray[np.int32]
    n: NDArray[np.int32]
    at: NDArray[np.int64]
    b: Bytes


def pack_adapter(adapter: Adapter, layers: Sequence[Any]) -> list[tuple[PackedLinear | None, ...]]:
    """layers: the part's, of whose Linears the adapter is. The argument of _kernels.Adapter."""
    packed = [
        [pack_linear(own.get(name, ()), getattr(layer, name)) for name in LINEARS]
        for own, layer in zip(adapter.layers, layers, strict=True)
    ]
    return _on_huge_pages(packed)


def _on_huge_pages(layers: Sequence[Sequence[PackedLinear | None]]) -> list[tuple[PackedLinear | None, ...]]:
    """The numbers of all Linears one after the other: many small places would cost as many look-ups of pages."""
    linears = [linear for layer in layers for linear in layer if linear is not None]
    room = allocate(1, sum(_room(each) for linear in linears for each in _read_all_through(linear)))[0]
    at = 0

    def moved(numbers: NDArray[Any]) -> NDArray[Any]:
        nonlocal at
        place: NDArray[Any] = room[at : at + numbers.nbytes].view(numbers.dtype).reshape(numbers.shape)
        place[...] = numbers
        at += _room(numbers)
        return place

    def all_moved(linear: PackedLinear) -> PackedLinear:
        a, a_scales, exact, b = map(moved, _read_all_through(linear))
        return replace(linear, a=a, a_scales=a_scales, exact=exact, b=b)

    return [tuple(None if each is None else all_moved(each) for each in layer) for layer in layers]


def _read_all_through(linear: PackedLinear) -> tuple[NDArray[Any], ...]:
    return linear.a, linear.a_scales, linear.exact, linear.b


def _room(numbers: NDArray[Any]) -> int:
    return -(-numbers.nbytes // LINE) * LINE


def pack_linear(gains: Sequence[Gain], matrix: PackedMatrix) -> PackedLinear | None:
    """The ranks of the gains stand side by side, each filled up to whole lanes. None if there are none."""
    if not gains:
        return None
    numbers = AdapterNumbers.beside(matrix)
    starts = np.cumsum([0, *(-(-gain.low_rank.rank // LANES) * LANES for gain in gains)]).tolist()
    a = np.zeros((matrix.n_in, starts[-1]), np.float32)
    scales = np.zeros(starts[-1], np.float32)
    for start, gain in zip(starts, gains, strict=False):
        a[:, start : start + gain.low_rank.rank] = gain.low_rank.a.T
        scales[start : start + gain.low_rank.rank] = gain.low_rank.scale
    # Whole pairs or lanes; the columns that may be added are filled up, or their numbers here are 0.
    whole = {AdapterNumbers.FLOAT32: 1, AdapterNumbers.BFLOAT16: 2, AdapterNumbers.INT8: LANES}[numbers]
    firsts, counts, panels = [], [], []
    for panel in range(matrix.n_panels):
        outputs = _outputs(matrix, panel)
        own = [(start, gain) for start, gain in zip(starts, gains, strict=False) if _common(gain, outputs)]
        first = own[0][0] if own else 0
        count = -(-(own[-1][0] + own[-1][1].low_rank.rank - first) // whole) * whole if own else 0
        rows = np.zeros((count, PANEL), np.float32)
        for start, gain in own:
            common = _common(gain, outputs)
            part = gain.low_rank.b[common.start - gain.first : common.stop - gain.first]
            at, place = start - first, common.start - outputs.start
            rows[at : at + gain.low_rank.rank, place : place + len(common)] = part.T
        firsts.append(first)
        counts.append(count)
        panels.append(rows)
    b, n_bytes = _pack_b(np.concatenate(panels), numbers)
    places = np.cumsum([0, *counts])[:-1] * n_bytes
    empty = np.zeros((0, starts[-1]), np.float32)
    packed_a: NDArray[Any] = a
    a_scales = exact = empty
    if numbers is AdapterNumbers.BFLOAT16:
        packed_a = _to_bfloat16_pairs(a)
    elif numbers is AdapterNumbers.INT8:
        packed_a, a_scales, exact = _pack_a_int8(a, matrix)
    ints = np.array(firsts, np.int32), np.array(counts, np.int32), places.astype(np.int64)
    return PackedLinear(numbers, packed_a, a_scales, exact, scales, *ints, b)


def _outputs(matrix: PackedMatrix, panel: int) -> range:
    """Which outputs of the parts on top of each other a panel holds."""
    if not matrix.interleaved:
        return range(panel * PANEL, min((panel + 1) * PANEL, matrix.n_out))
    half = matrix.n_out // 2
    first = panel // 2 * PANEL
    return range(panel % 2 * half + first, panel % 2 * half + min(first + PANEL, half))


def _common(gain: Gain, outputs: range) -> range:
    return range(max(gain.first, outputs.start), min(gain.first + len(gain.low_rank.b), outputs.stop))


def _pack_a_int8(a: Floats, matrix: PackedMatrix) -> tuple[Bytes, Floats, Floats]:
    """A [n_in, width] as the matrix's integer activations want it, the scales of its groups, and the exact inputs'."""
    width = a.shape[1]
    inputs = np.zeros(0, np.int32) if matrix.exact is None else matrix.exact.inputs
    exact = np.ascontiguousarray(a[inputs])
    filled = np.zeros((matrix.n_in_padded, width), np.float32)
    filled[: matrix.n_in] = a
    filled[inputs] = 0
    columns = np.ascontiguousarray(filled.T)
    if matrix.format is Format.INT8:
        columns = (columns.reshape(-1, HADAMARD) @ hadamard()).reshape(width, -1)
    groups = columns.reshape(width, -1, matrix.group)
    scales = np.abs(groups).max(axis=2) / np.float32(127)
    rounded = _to_bytes(groups, scales[..., None]).reshape(width, -1, STEP)
    return np.ascontiguousarray(rounded.swapaxes(0, 1)), np.ascontiguousarray(scales.T), exact


def _pack_b(b: Floats, numbers: AdapterNumbers) -> tuple[Bytes, int]:
    """B of all panels [columns, 48] one after the other, and the bytes of a column."""
    if numbers is AdapterNumbers.FLOAT32:
        return np.ascontiguousarray(b).view(np.uint8).ravel(), PANEL * 4
    if numbers is AdapterNumbers.BFLOAT16:
        return _to_bfloat16_pairs(b).view(np.uint8).ravel(), PANEL * 2
    groups = b.reshape(-1, LANES, PANEL)
    # Scales are rounded up to bfloat16: so no number exceeds 127 of them.
    bits = (np.abs(groups).max(axis=1) / np.float32(127)).view(np.uint32)
    halves = ((bits + 0xFFFF) >> 16).astype(np.uint16)
    scales = (halves.astype(np.uint32) << 16).view(np.float32)
    rounded = _to_bytes(groups, scales[:, None])
    quads = rounded.reshape(-1, LANES // STEP, STEP, PANEL).swapaxes(2, 3).reshape(len(groups), -1)
    packed = np.concatenate([quads, halves.view(np.uint8)], axis=1).ravel()
    return packed, PANEL + PANEL * 2 // LANES


def _to_bytes(numbers: Floats, scales: Floats) -> Bytes:
    """numbers / scales to the nearest integer, 128 larger; those of a scale of 0 are 0."""
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales > np.float32(1e-35))
    return (np.clip(np.rint(numbers * inverse), -127, 127) + 128).astype(np.uint8)


def _to_bfloat16_pairs(numbers: Floats) -> NDArray[np.uint16]:
    """[n, width] -> [n / 2, width, 2], to the nearest, ties to even."""
    bits = np.pad(numbers, ((0, len(numbers) % 2), (0, 0))).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.ascontiguousarray(rounded.reshape(-1, 2, rounded.shape[1]).swapaxes(1, 2))
