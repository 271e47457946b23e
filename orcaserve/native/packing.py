"""Packing: a matrix's weights, as a checkpoint holds them, into the panels that the kernels read (csrc/model.h).

The result is the same to the bit for any number of threads and every instruction set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from orcaserve.core.errors import CheckpointError
from orcaserve.native import _kernels
from orcaserve.native.huge_pages import allocate

PANEL = 48  # outputs of a panel
HADAMARD = 64  # inputs that one Hadamard matrix turns, for int8
MOST_GROUP = 192  # inputs that share a scale, for int8
INT4_BLOCK = 32  # inputs that share a scale and a minimum, for int4
_BLOCK_KINDS = {"Q4_0": (3, 18), "Q4_1": (4, 20)}  # number in csrc/model.h's RowFormat, bytes of a block

MOST_EXACT = 65504.0  # the largest float16

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class Format(IntEnum):
    """How a matrix is packed: csrc/model.h's Format."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    INT4 = 3


@dataclass(frozen=True, slots=True, eq=False)
class ExactInputs:
    """Inputs of an int8 matrix whose products are computed in float32 (exact_inputs.py says why).

    inputs: [k] int32. weights: [n_panels, k, 48], magnitudes up to MOST_EXACT. kept: [n_in_padded], 0 for these inputs
    and 1 for the others.
    """

    inputs: NDArray[np.int32]
    weights: NDArray[np.float16]
    kept: Floats

    @classmethod
    def of(cls, matrix: PackedMatrix, inputs: Sequence[int], columns: Sequence[Floats]) -> ExactInputs:
        """columns: of each part of the matrix, its weights of these inputs [n_out of the part, k]."""
        chosen = np.array(inputs, np.int32)
        whole = np.zeros((matrix.n_panels * PANEL, len(chosen)), np.float16)
        if matrix.interleaved:
            panels = whole.reshape(-1, 2, PANEL, len(chosen))
            for part, column in enumerate(columns):
                filled = np.zeros((matrix.n_panels // 2 * PANEL, len(chosen)), np.float16)
                filled[: len(column)] = column
                panels[:, part] = filled.reshape(-1, PANEL, len(chosen))
        else:
            whole[: matrix.n_out] = np.concatenate(list(columns))
        weights = np.ascontiguousarray(whole.reshape(-1, PANEL, len(chosen)).swapaxes(1, 2))
        return cls(chosen, weights, kept_of(chosen, matrix.n_in_padded))


def kept_of(inputs: NDArray[np.int32], n_in_padded: int) -> Floats:
    kept = np.ones(n_in_padded, np.float32)
    kept[inputs] = 0
    return kept


@dataclass(frozen=True, slots=True, eq=False)
class PackedMatrix:
    """Weights [n_out, n_in] in panels of 48 outputs.

    n_in_padded: n_in filled up as the format wants it. group: inputs that share a scale; a shard's are those of the
    whole matrix, or parts of them.
    panels: [n_panels, bytes of a panel], 64-byte aligned. bias: [n_panels * 48], or None.
    interleaved: panel 2 i + p holds outputs 48 i .. of part p, of two parts of n_out / 2 outputs.
    exact: for int8, or None.
    """

    format: Format
    n_out: int
    n_in: int
    n_in_padded: int
    group: int
    panels: Bytes
    bias: Floats | None
    interleaved: bool = False
    exact: ExactInputs | None = None

    def __post_init__(self) -> None:
        padded = _kernels.padded_inputs(self.format, self.n_in)
        if self.n_in_padded != padded or not self._has_group():
            raise ValueError(f"{self.n_in} inputs are filled up to {self.n_in_padded} in groups of {self.group}")
        n_panels = _kernels.count_panels(self.n_out, self.interleaved)
        shape = n_panels, _kernels.panel_bytes(self.format, padded, self.group)
        if self.panels.shape != shape:
            raise ValueError(f"the panels are {self.panels.shape}, must be {shape}")
        if self.bias is not None and self.bias.shape != (n_panels * PANEL,):
            raise ValueError(f"the bias is {self.bias.shape}, must be ({n_panels * PANEL},)")
        if self.exact is not None:
            k = len(self.exact.inputs)
            if self.format is not Format.INT8 or self.exact.weights.shape != (n_panels, k, PANEL):
                raise ValueError(f"exact weights are {self.exact.weights.shape}, must be ({n_panels}, {k}, {PANEL})")
            if k and not 0 <= self.exact.inputs.min() <= self.exact.inputs.max() < self.n_in:
                raise ValueError(f"an exact input lies outside 0..{self.n_in - 1}")

    @property
    def n_panels(self) -> int:
        return len(self.panels)

    def _has_group(self) -> bool:
        if self.format is not Format.INT8:
            return self.group == _kernels.group_inputs(self.format, self.n_in_padded)
        is_group = 0 < self.group <= MOST_GROUP and self.group % HADAMARD == 0
        return is_group and self.n_in_padded % self.group == 0


def pack(
    parts: Sequence[Floats],
    format: Format,
    *,
    interleaved: bool = False,
    biases: Sequence[Floats | None] | None = None,
    team: _kernels.Team,
) -> PackedMatrix:
    """Parts [n_out of the part, n_in], stacked or interleaved, -> one matrix. Weights must be finite.

    Nothing is copied but into the result. Raises ValueError if shapes or types do not fit, or n_in is no multiple of 32
    for INT4.
    """
    for part in parts:
        if part.dtype != np.float32 or part.ndim != 2 or not _rows_are_contiguous(part):
            raise ValueError(f"a part is {part.dtype} {part.shape}, strides {part.strides}: must be rows of float32")
    outputs = [len(part) for part in parts]
    packed = _make(format, outputs, parts[0].shape[1] if parts else 0, interleaved, biases)
    _kernels.pack_floats(format, list(parts), interleaved, packed.panels, team)
    return packed


def pack_int8_groups(
    part: Floats, group: int, biases: Sequence[Floats | None] | None, team: _kernels.Team
) -> PackedMatrix:
    """As `pack` for one part and INT8, its inputs in groups of another matrix's: the last one may be incomplete.

    A group of a panel is what a matrix of these inputs alone would have.
    """
    n_out, n_in = part.shape
    padded = _kernels.padded_inputs(Format.INT8, n_in)
    n_panels, n_bytes = _kernels.count_panels(n_out, False), _kernels.panel_bytes(Format.INT8, group, group)
    panels = allocate(n_panels, padded // group * n_bytes)
    for i, start in enumerate(range(0, n_in, group)):
        packed = pack([part[:, start : start + group]], Format.INT8, team=team)
        panels[:, i * n_bytes : (i + 1) * n_bytes] = packed.panels
    bias = _arrange(biases, [n_out], n_panels, False) if biases is not None else None
    return PackedMatrix(Format.INT8, n_out, n_in, padded, group, panels, bias)


def pack_int4_blocks(
    parts: Sequence[tuple[str, Bytes]],
    *,
    interleaved: bool = False,
    biases: Sequence[Floats | None] | None = None,
    team: _kernels.Team,
) -> PackedMatrix:
    """Parts (Q4_0 or Q4_1, rows of its blocks [n_out of the part, bytes of a row]) -> INT4 with the same weights.

    Raises CheckpointError if a scale is not finite or too large, ValueError if shapes or kinds do not fit.
    """
    widths = set()
    for kind, rows in parts:
        _, block_bytes = _BLOCK_KINDS.get(kind, (0, 0))
        if block_bytes == 0 or rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] % block_bytes:
            raise ValueError(f"{kind} {rows.dtype} {rows.shape}: must be rows of 4-bit blocks")
        widths.add(rows.shape[1] // block_bytes * INT4_BLOCK)
    if len(widths) != 1:
        raise ValueError(f"parts have {sorted(widths)} inputs, must have the same number of them")
    n_in = widths.pop()
    packed = _make(Format.INT4, [len(rows) for _, rows in parts], n_in, interleaved, biases)
    numbered = [(_BLOCK_KINDS[kind][0], rows) for kind, rows in parts]
    if not _kernels.pack_blocks(numbered, n_in, interleaved, packed.panels, team):
        raise CheckpointError("4-bit blocks have scales that are not finite, or too large")
    return packed


def linear(matrix: PackedMatrix, x: Floats, team: _kernels.Team) -> Floats:
    """x [n, n_in] -> x W^T + bias [n, n_out], by the kernels in use. For tests and reports."""
    assert not matrix.interleaved
    y = np.empty((len(x), matrix.n_out), np.float32)
    _kernels.linear(matrix.format, matrix.n_out, matrix.n_in, matrix.panels, matrix.bias, x, y, team, matrix.group)
    return y


def unpack(matrix: PackedMatrix) -> Floats:
    """The weights [n_out, n_in] that the panels stand for, not turned. For tests and reports: it takes much memory."""
    turns = {
        Format.FLOAT32: _unpack_float32,
        Format.BFLOAT16: _unpack_bfloat16,
        Format.INT8: _unpack_int8,
        Format.INT4: _unpack_int4,
    }
    weights = turns[matrix.format](matrix)[:, :, : matrix.n_in]
    if not matrix.interleaved:
        return weights.reshape(-1, matrix.n_in)[: matrix.n_out]
    halves = [weights[part::2].reshape(-1, matrix.n_in)[: matrix.n_out // 2] for part in (0, 1)]
    return np.concatenate(halves)


def hadamard() -> Floats:
    """The matrix by which 64 inputs are turned: H / 8, H[i, j] = (-1)^(number of ones in i & j); its own inverse."""
    i = np.arange(HADAMARD, dtype=np.uint8)
    ones = np.bitwise_count(i[:, None] & i)
    matrix: Floats = np.where(ones % 2, -0.125, 0.125).astype(np.float32)
    return matrix


def _rows_are_contiguous(part: Floats) -> bool:
    return len(part) == 0 or part.shape[1] == 1 or part.strides[1] == part.itemsize


def _make(
    format: Format, outputs: Sequence[int], n_in: int, interleaved: bool, biases: Sequence[Floats | None] | None
) -> PackedMatrix:
    """A matrix whose panels are yet to be written."""
    n_out = sum(outputs)
    if n_out < 1 or n_in < 1:
        raise ValueError(f"a matrix of {n_out} outputs and {n_in} inputs")
    if interleaved and (len(outputs) != 2 or outputs[0] != outputs[1]):
        raise ValueError(f"parts of {outputs} outputs cannot be interleaved: two of one size can")
    padded = _kernels.padded_inputs(format, n_in)
    group = _kernels.group_inputs(format, padded)
    n_panels = _kernels.count_panels(n_out, interleaved)
    panels = allocate(n_panels, _kernels.panel_bytes(format, padded, group))
    bias = _arrange(biases, outputs, n_panels, interleaved) if biases is not None else None
    return PackedMatrix(format, n_out, n_in, padded, group, panels, bias, interleaved)


def _arrange(
    biases: Sequence[Floats | None], outputs: Sequence[int], n_panels: int, interleaved: bool
) -> Floats | None:
    """Biases of parts as the panels lie, zeros for a part without: [n_panels * 48]; None if no part has one."""
    if len(biases) != len(outputs):
        raise ValueError(f"there are {len(biases)} biases for {len(outputs)} parts")
    if all(bias is None for bias in biases):
        return None
    whole = np.zeros(n_panels * PANEL, np.float32)
    start = 0
    for part, (bias, n) in enumerate(zip(biases, outputs, strict=True)):
        if bias is not None:
            if bias.shape != (n,):
                raise ValueError(f"a bias is {bias.shape}, must be ({n},)")
            if interleaved:
                padded = np.zeros(n_panels // 2 * PANEL, np.float32)
                padded[:n] = bias
                whole.reshape(-1, 2, PANEL)[:, part] = padded.reshape(-1, PANEL)
            else:
                whole[start : start + n] = bias
        start += n
    return whole


def _unpack_float32(matrix: PackedMatrix) -> Floats:
    return matrix.panels.view(np.float32).reshape(matrix.n_panels, -1, PANEL).swapaxes(1, 2)


def _unpack_bfloat16(matrix: PackedMatrix) -> Floats:
    pairs = matrix.panels.view(np.uint16).reshape(matrix.n_panels, -1, PANEL, 2).swapaxes(1, 2)
    halves = pairs.reshape(matrix.n_panels, PANEL, -1)
    return (halves.astype(np.uint32) << 16).view(np.float32)


def _unpack_int8(matrix: PackedMatrix) -> Floats:
    n_groups = matrix.n_in_padded // matrix.group
    groups = matrix.panels.reshape(matrix.n_panels, n_groups, -1)
    n_bytes = matrix.group * PANEL
    scales = np.ascontiguousarray(groups[:, :, n_bytes:]).view(np.float32)  # [panels, groups, 48]
    quads = groups[:, :, :n_bytes].reshape(matrix.n_panels, n_groups, -1, PANEL, 4)
    turned = quads.transpose(0, 3, 1, 2, 4).reshape(matrix.n_panels, PANEL, n_groups, matrix.group).astype(np.float32)
    turned -= 128
    turned *= scales.swapaxes(1, 2)[..., None]
    weights: Floats = turned.reshape(-1, HADAMARD) @ hadamard()
    return weights.reshape(matrix.n_panels, PANEL, matrix.n_in_padded)


def _unpack_int4(matrix: PackedMatrix) -> Floats:
    blocks = matrix.panels.reshape(matrix.n_panels, matrix.n_in_padded // INT4_BLOCK, -1)
    n_bytes = INT4_BLOCK // 2 * PANEL
    halves = np.ascontiguousarray(blocks[:, :, n_bytes:]).view(np.float16).astype(np.float32)
    scales, minima = halves.reshape(*blocks.shape[:2], 2, PANEL).transpose(2, 0, 3, 1)  # [panels, 48, blocks] each
    both = blocks[:, :, :n_bytes].reshape(*blocks.shape[:2], 4, PANEL, 4).transpose(0, 3, 1, 2, 4)
    nibbles = np.concatenate([both & 15, both >> 4], axis=3)  # [panels, 48, blocks, 8, 4]
    weights = nibbles.reshape(*scales.shape, INT4_BLOCK).astype(np.float32)
    weights *= scales[..., None]
    weights += minima[..., None]
    return weights.reshape(matrix.n_panels, PANEL, matrix.n_in_padded)
