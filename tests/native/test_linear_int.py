"""int8 and 4-bit Linears on every instruction set: exact sums of integers, and the same bits whatever runs beside."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from orcaserve import native
from orcaserve.native import _kernels
from orcaserve.native.packing import PANEL, Format, PackedMatrix, linear, pack, pack_int4_blocks

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
SIZES = {
    Format.INT8: [(1, 1), (48, 64), (50, 83), (97, 200), (130, 576), (96, 1000), (49, 1536)],
    Format.INT4: [(1, 32), (48, 64), (50, 96), (97, 224), (130, 576), (49, 1536)],
}
MATRICES = [(format, *size) for format, sizes in SIZES.items() for size in sizes]
MANY_ROWS = 70


@pytest.fixture(params=native.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = native.isa()
    native.set_isa(request.param)
    yield request.param
    native.set_isa(before)


@pytest.fixture(scope="module")
def team() -> _kernels.Team:
    return _kernels.Team(1)


def random_matrix(format: Format, n_out: int, n_in: int, team: _kernels.Team) -> PackedMatrix:
    rng = np.random.default_rng(n_in)
    weights = rng.standard_normal((n_out, n_in)).astype(np.float32)
    bias = rng.standard_normal(n_out).astype(np.float32)
    return pack([weights], format, biases=[bias], team=team)


def random_rows(n: int, n_in: int) -> Floats:
    """Among ordinary rows some of zeros, some with a huge outlier, some tiny."""
    rng = np.random.default_rng(n)
    x = rng.standard_normal((n, n_in)).astype(np.float32)
    x[3::7] = 0
    x[5::7, rng.integers(n_in)] = 3e4
    x[6::7] *= np.float32(1e-20)
    return x


def quantised(matrix: PackedMatrix, x: Floats) -> tuple[NDArray[np.int64], Doubles]:
    """Rows as the kernels hold them: q [n, groups, group], scales [n, groups]."""
    n_groups = matrix.n_in_padded // matrix.group
    q = np.empty((len(x), matrix.n_in_padded), np.int8)
    scales = np.empty((len(x), n_groups), np.float32)
    sums = np.empty((len(x), n_groups), np.int32)
    for row in range(len(x)):
        _kernels.rows.quantise(matrix.format is Format.INT4, x[row], q, scales, sums, row)
    return q.reshape(len(x), n_groups, matrix.group).astype(np.int64), scales.astype(np.float64)


def int8_operands(matrix: PackedMatrix) -> tuple[NDArray[np.int64], Doubles]:
    """Integers [outputs, groups, group] and scales [outputs, groups], found byte by byte as csrc/model.h says."""
    n_groups = matrix.n_in_padded // matrix.group
    group_bytes = matrix.group * PANEL + 4 * PANEL
    output, g, i = np.ogrid[: matrix.n_out, :n_groups, : matrix.group]
    start = g * group_bytes
    integers = matrix.panels[output // PANEL, start + (i // 4 * PANEL + output % PANEL) * 4 + i % 4].astype(np.int64)
    output, g, byte = np.ogrid[: matrix.n_out, :n_groups, :4]
    at = g * group_bytes + matrix.group * PANEL + output % PANEL * 4 + byte
    scales = matrix.panels[output // PANEL, at].view(np.float32)[..., 0]
    return integers - 128, scales.astype(np.float64)


def int4_operands(matrix: PackedMatrix) -> tuple[NDArray[np.int64], Doubles, Doubles]:
    """Nibbles [outputs, blocks, 32], scales and minima [outputs, blocks], likewise."""
    n_blocks = matrix.n_in // 32
    n_nibbles, block_bytes = 16 * PANEL, 20 * PANEL
    output, b, i = np.ogrid[: matrix.n_out, :n_blocks, :32]
    within = i % 16
    at = b * block_bytes + (within // 4 * PANEL + output % PANEL) * 4 + within % 4
    nibbles = matrix.panels[output // PANEL, at] >> (i // 16 * 4) & 15
    output, b, byte = np.ogrid[: matrix.n_out, :n_blocks, :2]
    at = b * block_bytes + n_nibbles + output % PANEL * 2 + byte
    scales, minima = (
        matrix.panels[output // PANEL, at + part * 2 * PANEL].view(np.float16)[..., 0].astype(np.float64)
        for part in (0, 1)
    )
    return nibbles.astype(np.int64), scales, minima


def expected(matrix: PackedMatrix, x: Floats) -> tuple[Doubles, Doubles]:
    """x W^T + bias on the quantised operands, and the sum of the magnitudes of what is added up in floats."""
    q, scales = quantised(matrix, x)
    if matrix.format is Format.INT8:
        w, w_scales = int8_operands(matrix)
        terms = np.einsum("rgi,ogi->rog", q, w) * (scales[:, None] * w_scales)
        magnitudes = np.abs(terms)
    else:
        w, w_scales, minima = int4_operands(matrix)
        products = np.einsum("rgi,ogi->rog", q, w) * (scales[:, None] * w_scales)
        lifts = (q.sum(2) * scales)[:, None] * minima
        terms, magnitudes = products + lifts, np.abs(products) + np.abs(lifts)
    bias = np.zeros(matrix.n_out) if matrix.bias is None else matrix.bias[: matrix.n_out].astype(np.float64)
    return terms.sum(2) + bias, magnitudes.sum(2) + np.abs(bias)


def check(matrix: PackedMatrix, x: Floats, team: _kernels.Team) -> None:
    y, magnitudes = expected(matrix, x)
    error = np.abs(linear(matrix, x, team) - y)
    assert (error <= 1e-6 * magnitudes).all(), (error / np.maximum(magnitudes, 1e-300)).max()


@pytest.mark.parametrize(("format", "n_out", "n_in"), MATRICES)
def test_sums_are_exact(isa: str, team: _kernels.Team, format: Format, n_out: int, n_in: int) -> None:
    check(random_matrix(format, n_out, n_in, team), random_rows(MANY_ROWS, n_in), team)


@pytest.mark.parametrize(("format", "n_out", "n_in"), MATRICES)
def test_a_row_has_the_same_bits_beside_any_number_of_others(
    isa: str, team: _kernels.Team, format: Format, n_out: int, n_in: int
) -> None:
    matrix, x = random_matrix(format, n_out, n_in, team), random_rows(MANY_ROWS, n_in)
    y = linear(matrix, x, team)
    for n in range(1, 34):
        first = n % 7
        np.testing.assert_array_equal(linear(matrix, x[first : first + n], team), y[first : first + n])


@pytest.mark.parametrize("format", list(SIZES))
@pytest.mark.parametrize("n_rows", [1, 9, 32, MANY_ROWS])
def test_threads_change_no_bit(isa: str, team: _kernels.Team, format: Format, n_rows: int) -> None:
    matrix, x = random_matrix(format, 500, 576, team), random_rows(n_rows, 576)
    np.testing.assert_array_equal(linear(matrix, x, _kernels.Team(2)), linear(matrix, x, team))


# ---- Extremes ----


def full_int8(n_in: int, byte: int, team: _kernels.Team) -> PackedMatrix:
    """All integers of the matrix are `byte` - 128, all scales 1."""
    matrix = pack([np.zeros((PANEL, n_in), np.float32)], Format.INT8, team=team)
    matrix.panels[:] = byte
    n_bytes = matrix.group * PANEL
    groups = matrix.panels.reshape(-1, n_bytes + 4 * PANEL)
    groups[:, n_bytes:] = np.ones(PANEL, np.float32).view(np.uint8)
    return matrix


@pytest.mark.parametrize("byte", [1, 255])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_products_do_not_saturate(isa: str, team: _kernels.Team, byte: int, sign: int) -> None:
    n_in = 1536
    x = np.zeros((9, n_in), np.float32)
    x[:, ::64] = 8 * 127 * sign  # a Hadamard matrix spreads them evenly: all activations are +-127, their scale 1
    q, scales = quantised(full_int8(n_in, byte, team), x)
    assert (q == 127 * sign).all()
    assert (scales == 1).all()
    np.testing.assert_array_equal(linear(full_int8(n_in, byte, team), x, team), sign * 127 * (byte - 128) * n_in)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_products_of_nibbles_do_not_saturate(isa: str, team: _kernels.Team, sign: int) -> None:
    n_in = 256
    blocks = np.full((PANEL, n_in // 32, 20), 0xFF, np.uint8)
    blocks[..., :4] = np.array([1, 0], np.float16).view(np.uint8)  # scale 1, minimum 0, all nibbles 15
    matrix = pack_int4_blocks([("Q4_1", blocks.reshape(PANEL, -1))], team=team)
    x = np.full((5, n_in), 127 * sign, np.float32)
    np.testing.assert_array_equal(linear(matrix, x, team), sign * 127 * 15 * n_in)


@pytest.mark.parametrize("format", list(SIZES))
def test_zeros_give_the_bias(isa: str, team: _kernels.Team, format: Format) -> None:
    matrix = random_matrix(format, 50, 192, team)
    assert matrix.bias is not None
    y = linear(matrix, np.zeros((3, 192), np.float32), team)
    np.testing.assert_array_equal(y, np.tile(matrix.bias[:50], (3, 1)))


def test_every_float16_is_a_scale_and_a_minimum(isa: str, team: _kernels.Team) -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    n = len(halves) // 2 * 2  # the minima run through them from the other end
    blocks = np.zeros((n, 1, 20), np.uint8)
    blocks[:, 0, :2] = halves[:n, None].view(np.uint8)
    blocks[:, 0, 2:4] = halves[:n][::-1, None].view(np.uint8)
    blocks[..., 4] = 3  # the first weight is 3 scales + a minimum, all others are minima
    matrix = pack_int4_blocks([("Q4_1", blocks.reshape(n, -1))], team=team)
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 127
    y = linear(matrix, x, team)
    scales, minima = halves[:n].astype(np.float64), halves[:n][::-1].astype(np.float64)
    error = np.abs(y[0] - 127 * (3 * scales + minima))
    assert (error <= 127e-6 * (3 * np.abs(scales) + np.abs(minima))).all()


@pytest.mark.parametrize("format", list(SIZES))
def test_what_is_no_number_stays_in_its_row(isa: str, team: _kernels.Team, format: Format) -> None:
    matrix, x = random_matrix(format, 50, 192, team), random_rows(9, 192)
    y = linear(matrix, x, team)
    x[4, 100] = np.nan
    with_nan = linear(matrix, x, team)
    assert np.isnan(with_nan[4]).all()
    others = np.arange(9) != 4
    np.testing.assert_array_equal(with_nan[others], y[others])


# ---- Refusals ----


def test_arrays_of_wrong_sizes_are_refused(team: _kernels.Team) -> None:
    matrix = random_matrix(Format.INT8, 50, 64, team)
    x, y = np.zeros((2, 64), np.float32), np.zeros((2, 50), np.float32)
    fine = (2, 50, 64, matrix.panels, matrix.bias, x, y, team)
    _kernels.linear(*fine)
    wrong = {
        0: 7,
        1: 200,
        2: 128,
        3: matrix.panels[:, 4:].copy(),
        4: np.zeros(50, np.float32),
        5: x[:, 1:].copy(),
        6: y[1:],
    }
    for place, value in wrong.items():
        arguments = list(fine)
        arguments[place] = value
        with pytest.raises(ValueError):
            _kernels.linear(*arguments)
