"""NativeBuilder: weights as the kernels read them: matrices packed in panels, tables as the checkpoint stores them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum

import numpy as np

from orcaserve.checkpoint.dequantise import block_numbers
from orcaserve.checkpoint.four_bits import KINDS as INT4_KINDS
from orcaserve.checkpoint.four_bits import four_bits
from orcaserve.model.parameter import Bytes, Floats, Parameter
from orcaserve.model.weights import PartWeights, Weights
from orcaserve.native import _kernels
from orcaserve.native.cutting import can_cut, cut_inputs
from orcaserve.native.packing import INT4_BLOCK, Format, PackedMatrix, pack, pack_int4_blocks, pack_int8_groups
from orcaserve.native.precision import Precision


class RowFormat(IntEnum):
    """csrc/model.h's RowFormat, under the names of kinds."""

    F32 = 0
    BF16 = 1
    Q8_0 = 2
    Q4_0 = 3
    Q4_1 = 4


_BLOCK_BYTES = {RowFormat.Q8_0: 34, RowFormat.Q4_0: 18, RowFormat.Q4_1: 20}  # of 32 numbers


def row_bytes(format: RowFormat, width: int) -> int:
    """Bytes of a row of `width` numbers."""
    if format in _BLOCK_BYTES:
        return width // 32 * _BLOCK_BYTES[format]
    return width * (4 if format is RowFormat.F32 else 2)


Norm = tuple[Floats, Floats | None]
Table = tuple[RowFormat, Bytes]
NativeWeights = Weights[PackedMatrix, Norm, Table]
NativePartWeights = PartWeights[PackedMatrix, Norm, Table]


class NativeBuilder:
    """A WeightsBuilder. The team's threads share the packing of each matrix.

    A shard's matrices have the numbers that the whole ones have, to the bit, unless it is cut between inputs that are
    turned together, or share a block.

    matrices, tables: what was made, by the name of its first parameter.
    """

    def __init__(self, precision: Precision, team: _kernels.Team) -> None:
        self._precision, self._team = precision, team
        self.matrices: dict[str, PackedMatrix] = {}
        self.tables: dict[str, Table] = {}

    def norm(self, weight: Floats, bias: Floats | None) -> Norm:
        return weight, bias

    def matrix(self, parts: Sequence[Parameter], biases: Sequence[Floats] | None, gated: bool = False) -> PackedMatrix:
        matrix = self.matrices[parts[0].name] = self._pack(parts, biases, gated)
        return matrix

    def router(self, rows: Parameter) -> PackedMatrix:
        format = Format.BFLOAT16 if rows.kind == "BF16" else Format.FLOAT32
        matrix = self.matrices[rows.name] = pack([rows.floats()], format, team=self._team)
        return matrix

    def _pack(self, parts: Sequence[Parameter], biases: Sequence[Floats] | None, gated: bool) -> PackedMatrix:
        kinds = {part.kind for part in parts}
        n_in, inputs = parts[0].n_inputs, parts[0].inputs
        format = self._precision.format(kinds, n_in)
        if format is Format.INT4 and not can_cut(format, n_in, inputs):
            format = Format.INT8
        if format is Format.INT4 and kinds <= INT4_KINDS:
            blocks = [_four_bits(part) for part in parts]
            return pack_int4_blocks(blocks, interleaved=gated, biases=biases, team=self._team)
        if format is Format.INT8 and len(inputs) < n_in and can_cut(format, n_in, inputs):
            return self._pack_int8_shard(parts[0], biases)
        floats = [part.floats() for part in parts]
        return pack(floats, format, interleaved=gated, biases=biases, team=self._team)

    def _pack_int8_shard(self, part: Parameter, biases: Sequence[Floats] | None) -> PackedMatrix:
        """Some inputs of a matrix, with the scales of the whole one: read are all inputs of the groups they are in."""
        group = _kernels.group_inputs(Format.INT8, _kernels.padded_inputs(Format.INT8, part.n_inputs))
        own = part.inputs
        read = _whole(own, math.lcm(group, block_numbers(part.kind)), part.n_inputs)
        matrix = pack_int8_groups(part.with_inputs(read).floats(), group, biases, self._team)
        if read == own:
            return matrix
        return replace(cut_inputs(matrix, range(own.start - read.start, own.stop - read.start)), bias=matrix.bias)

    def table(self, rows: Parameter) -> Table:
        if rows.kind in RowFormat.__members__:
            table = RowFormat[rows.kind], rows.stored()
        elif self._precision.quantization == "int4" and rows.kind in INT4_KINDS:
            kind, blocks = _four_bits(rows)
            table = RowFormat[kind], blocks
        else:
            table = RowFormat.F32, rows.floats().view(np.uint8)
        self.tables[rows.name] = table
        return table

    def tied(self, table: Parameter) -> tuple[Table, PackedMatrix]:
        return self.table(table), self.matrix([table], None)

    def tied_head(self, rows: Parameter) -> tuple[PackedMatrix, Table | None]:
        matrix = self.matrix([rows], None)
        return matrix, self.table(rows) if matrix.format is Format.INT8 else None


def _whole(inputs: range, unit: int, n_inputs: int) -> range:
    """These inputs of n_inputs, and those that are in the same units."""
    return range(inputs.start // unit * unit, min(-(-inputs.stop // unit) * unit, n_inputs))


def _four_bits(part: Parameter) -> tuple[str, Bytes]:
    """As blocks of 32 inputs; the file's may be larger than the cut."""
    own, read = part.inputs, _whole(part.inputs, block_numbers(part.kind), part.n_inputs)
    kind, rows = four_bits(part.name, part.kind, (part if read == own else part.with_inputs(read)).stored())
    n_bytes = rows.shape[1] * INT4_BLOCK // len(read)
    begin, end = ((at - read.start) // INT4_BLOCK * n_bytes for at in (own.start, own.stop))
    return kind, rows[:, begin:end]
