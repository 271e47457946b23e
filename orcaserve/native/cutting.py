"""Cutting: a shard of a packed matrix, from panels to panels. Exact: numbers change their places, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from orcaserve.native import _kernels
from orcaserve.native.huge_pages import allocate
from orcaserve.native.packing import HADAMARD, INT4_BLOCK, PANEL, Bytes, ExactInputs, Format, PackedMatrix, kept_of

# Inputs that stay together: a pair of bfloat16, what one Hadamard matrix turns, a block.
INPUT_UNITS = {Format.FLOAT32: 1, Format.BFLOAT16: 2, Format.INT8: HADAMARD, Format.INT4: INT4_BLOCK}
_LANES = PANEL * 4  # bytes: 4 of each output


def can_cut(format: Format, n_in: int, inputs: range) -> bool:
    """Whether a matrix of n_in inputs can be cut to these."""
    unit = INPUT_UNITS[format]
    return inputs.start % unit == 0 and (inputs.stop % unit == 0 or inputs.stop == n_in)


def input_bytes(matrix: PackedMatrix, inputs: range) -> range:
    """The bytes of a panel in which these inputs are: whole groups of them, or whole units."""
    unit = matrix.group if matrix.format is Format.INT8 else INPUT_UNITS[matrix.format]
    n_bytes = matrix.panels.shape[1] * unit // matrix.n_in_padded
    return range(inputs.start // unit * n_bytes, -(-inputs.stop // unit) * n_bytes)


def cut_outputs(matrix: PackedMatrix, runs: Sequence[range]) -> PackedMatrix:
    """These outputs; of an interleaved matrix, these of each of its parts."""
    n_parts = 2 if matrix.interleaved else 1
    n_out = n_parts * sum(map(len, runs))
    n_panels = _kernels.count_panels(n_out, matrix.interleaved)
    places = list(_places(runs, n_parts))
    panels = allocate(n_panels, matrix.panels.shape[1])
    for source, target in zip(_by_output(matrix, matrix.panels), _by_output(matrix, panels), strict=True):
        _move(source, target, places)
    bias = exact = None
    if matrix.bias is not None:
        bias = np.zeros(n_panels * PANEL, np.float32)
        _move(matrix.bias.reshape(-1, PANEL), bias.reshape(-1, PANEL), places)
    if matrix.exact is not None:
        weights = np.zeros((n_panels, *matrix.exact.weights.shape[1:]), np.float16)
        _move(matrix.exact.weights, weights, places)
        exact = ExactInputs(matrix.exact.inputs, weights, matrix.exact.kept)
    return PackedMatrix(matrix.format, n_out, matrix.n_in, matrix.n_in_padded, matrix.group, panels, bias,
                        matrix.interleaved, exact)  # fmt: skip


def cut_inputs(matrix: PackedMatrix, inputs: range) -> PackedMatrix:
    """These inputs, which must be such that `can_cut`. The bias goes with input 0.

    If the cut goes through a group of inputs with one scale, all groups become smaller, each with its scale.
    """
    assert can_cut(matrix.format, matrix.n_in, inputs)
    padded = _kernels.padded_inputs(matrix.format, len(inputs))
    group = INT4_BLOCK if matrix.format is Format.INT4 else padded
    if matrix.format is Format.INT8:
        group = math.gcd(matrix.group, inputs.start, padded)
        own = _groups_of(group, matrix, inputs.start, padded)
    else:
        unit = INPUT_UNITS[matrix.format]
        units = matrix.panels.reshape(matrix.n_panels, matrix.n_in_padded // unit, -1)
        own = units[:, inputs.start // unit : (inputs.start + padded) // unit]
    panels = allocate(matrix.n_panels, own.shape[1] * own.shape[2])
    panels.reshape(own.shape)[:] = own
    bias = matrix.bias if inputs.start == 0 else None
    exact = None if matrix.exact is None else _cut_exact(matrix.exact, inputs, padded)
    return PackedMatrix(matrix.format, matrix.n_out, len(inputs), padded, group, panels, bias, False, exact)


def _groups_of(group: int, matrix: PackedMatrix, start: int, n: int) -> Bytes:
    """n inputs of int8 as groups [n_panels, n / group, bytes]: the matrix's, or equal parts of them."""
    first, end = start // matrix.group, -(-(start + n) // matrix.group)
    whole = matrix.panels.reshape(matrix.n_panels, matrix.n_in_padded // matrix.group, -1)[:, first:end]
    if group == matrix.group:
        return whole
    n_bytes, n_parts = matrix.group * PANEL, matrix.group // group
    numbers = whole[:, :, :n_bytes].reshape(matrix.n_panels, -1, group * PANEL)
    scales = np.repeat(whole[:, :, n_bytes:], n_parts, axis=1)
    begin = (start - first * matrix.group) // group
    return np.concatenate([numbers, scales], axis=2)[:, begin : begin + n // group]


def _cut_exact(exact: ExactInputs, inputs: range, n_in_padded: int) -> ExactInputs | None:
    own = (exact.inputs >= inputs.start) & (exact.inputs < inputs.stop)
    if not own.any():
        return None
    chosen = (exact.inputs[own] - inputs.start).astype(np.int32)
    return ExactInputs(chosen, np.ascontiguousarray(exact.weights[:, own]), kept_of(chosen, n_in_padded))


def _by_output(matrix: PackedMatrix, panels: Bytes) -> list[NDArray[np.generic]]:
    """The panels as arrays [n_panels, ..., 48] of what the 48 outputs have."""
    n_panels = len(panels)
    if matrix.format is not Format.INT4:
        return [panels.view(np.uint32).reshape(n_panels, -1, PANEL)]
    blocks = panels.reshape(n_panels, matrix.n_in_padded // INT4_BLOCK, -1)
    return [
        blocks[:, :, :-_LANES].view(np.uint32).reshape(*blocks.shape[:2], -1, PANEL),
        blocks[:, :, -_LANES:].view(np.uint16).reshape(*blocks.shape[:2], 2, PANEL),
    ]


Place = tuple[int, int, int, int, int]  # panel and output in it, there and here, and how many outputs


def _places(runs: Sequence[range], n_parts: int) -> Iterator[Place]:
    """Where the outputs of the runs come from and go to, a stretch of a panel at a time."""
    for part in range(n_parts):
        to = 0
        for run in runs:
            at = run.start
            while at < run.stop:
                n = min(PANEL - at % PANEL, PANEL - to % PANEL, run.stop - at)
                yield at // PANEL * n_parts + part, at % PANEL, to // PANEL * n_parts + part, to % PANEL, n
                at, to = at + n, to + n


def _move(source: NDArray[np.generic], target: NDArray[np.generic], places: Sequence[Place]) -> None:
    for panel, first, to_panel, to, n in places:
        target[to_panel, ..., to : to + n] = source[panel, ..., first : first + n]
