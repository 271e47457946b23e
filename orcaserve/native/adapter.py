"""Adapters as the kernels read them (csrc/adapters.h)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orcaserve.checkpoint.lora import Floats
from orcaserve.model.adapter import LINEARS, Adapter, Gain
from orcaserve.native.huge_pages import allocate
from orcaserve.native.packing import PANEL, Format, PackedMatrix

LANES = 16  # kAdapterLanes
LINE = 64  # bytes

Packed = tuple[NDArray[Any], Floats, NDArray[np.int32], NDArray[np.int32], NDArray[np.int64], NDArray[Any]]


def pack_adapter(adapter: Adapter, layers: Sequence[Any], bfloat16: bool) -> list[tuple[Packed | None, ...]]:
    """layers: the part's, of whose Linears the adapter is. The arguments of _kernels.Adapter."""
    packed = [
        [pack_linear(own.get(name, ()), getattr(layer, name), bfloat16) for name in LINEARS]
        for own, layer in zip(adapter.layers, layers, strict=True)
    ]
    return _on_huge_pages(packed)


def _on_huge_pages(layers: Sequence[Sequence[Packed | None]]) -> list[tuple[Packed | None, ...]]:
    """The numbers of all Linears one after the other: many small places would cost as many look-ups of pages."""
    linears = [linear for layer in layers for linear in layer if linear is not None]
    room = allocate(1, sum(_room(numbers) for linear in linears for numbers in (linear[0], linear[5])))[0]
    at = 0

    def moved(numbers: NDArray[Any]) -> NDArray[Any]:
        nonlocal at
        place: NDArray[Any] = room[at : at + numbers.nbytes].view(numbers.dtype).reshape(numbers.shape)
        place[...] = numbers
        at += _room(numbers)
        return place

    return [
        tuple(None if each is None else (moved(each[0]), *each[1:5], moved(each[5])) for each in layer)
        for layer in layers
    ]


def _room(numbers: NDArray[Any]) -> int:
    return -(-numbers.nbytes // LINE) * LINE


def holds_bfloat16(matrix: PackedMatrix) -> bool:
    """Adapters of a model whose matrices are not exact themselves take half the memory."""
    return matrix.format is not Format.FLOAT32


def pack_linear(gains: Sequence[Gain], matrix: PackedMatrix, bfloat16: bool) -> Packed | None:
    """The ranks of the gains stand side by side, each filled up to whole lanes. None if there are none."""
    if not gains:
        return None
    starts = np.cumsum([0, *(-(-gain.low_rank.rank // LANES) * LANES for gain in gains)]).tolist()
    a = np.zeros((matrix.n_in, starts[-1]), np.float32)
    scales = np.zeros(starts[-1], np.float32)
    for start, gain in zip(starts, gains, strict=False):
        a[:, start : start + gain.low_rank.rank] = gain.low_rank.a.T
        scales[start : start + gain.low_rank.rank] = gain.low_rank.scale
    firsts, counts, places, panels, n_rows = [], [], [], [], 0
    for panel in range(matrix.n_panels):
        outputs = _outputs(matrix, panel)
        own = [(start, gain) for start, gain in zip(starts, gains, strict=False) if _common(gain, outputs)]
        first = own[0][0] if own else 0
        count = own[-1][0] + own[-1][1].low_rank.rank - first if own else 0
        count += count % 2  # whole pairs; the column that may be added is filled up, or its numbers here are 0
        numbers = np.zeros((count, PANEL), np.float32)
        for start, gain in own:
            common = _common(gain, outputs)
            rows = gain.low_rank.b[common.start - gain.first : common.stop - gain.first]
            at, place = start - first, common.start - outputs.start
            numbers[at : at + gain.low_rank.rank, place : place + len(common)] = rows.T
        firsts.append(first)
        counts.append(count)
        places.append(n_rows * PANEL)
        panels.append(numbers)
        n_rows += count
    b = np.concatenate(panels)
    as_held = _to_bfloat16_pairs if bfloat16 else np.ascontiguousarray
    return as_held(a), scales, np.array(firsts, np.int32), np.array(counts, np.int32), np.array(places), as_held(b)


def _outputs(matrix: PackedMatrix, panel: int) -> range:
    """Which outputs of the parts on top of each other a panel holds."""
    if not matrix.interleaved:
        return range(panel * PANEL, min((panel + 1) * PANEL, matrix.n_out))
    half = matrix.n_out // 2
    first = panel // 2 * PANEL
    return range(panel % 2 * half + first, panel % 2 * half + min(first + PANEL, half))


def _common(gain: Gain, outputs: range) -> range:
    return range(max(gain.first, outputs.start), min(gain.first + len(gain.low_rank.b), outputs.stop))


def _to_bfloat16_pairs(numbers: Floats) -> NDArray[np.uint16]:
    """[n, width] -> [n / 2, width, 2], to the nearest, ties to even."""
    bits = np.pad(numbers, ((0, len(numbers) % 2), (0, 0))).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.ascontiguousarray(rounded.reshape(-1, 2, rounded.shape[1]).swapaxes(1, 2))
