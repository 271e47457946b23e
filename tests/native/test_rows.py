"""The operators on rows and tiles, for every instruction set, against numpy."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from orcaserve import native
from orcaserve.checkpoint.dequantise import dequantise
from orcaserve.native import _kernels

rows = _kernels.rows
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
PANEL = 48
HADAMARD = 64


@pytest.fixture(params=native.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = native.isa()
    native.set_isa(request.param)
    yield request.param
    native.set_isa(before)


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- Tables of rows ----

ROW_KINDS = [("F32", 4, 1), ("BF16", 2, 1), ("Q8_0", 34, 32), ("Q4_0", 18, 32), ("Q4_1", 20, 32)]


@pytest.mark.parametrize("number", range(len(ROW_KINDS)))
@pytest.mark.parametrize("n_blocks", [1, 3, 18])
def test_a_row_is_what_the_checkpoint_says(isa: str, number: int, n_blocks: int) -> None:
    """Random bytes: their scales are infinite or no numbers here and there."""
    kind, n_bytes, n_numbers = ROW_KINDS[number]
    width = n_blocks * n_numbers
    stored = np.random.default_rng(number).integers(0, 256, (40, n_blocks * n_bytes), np.uint8)
    with np.errstate(all="ignore"):
        expected = np.empty((40, width), np.float32)
        dequantise(kind, stored.reshape(-1), expected.reshape(-1))
        for row in range(40):
            out = np.full(width, 7.0, np.float32)
            rows.read_row(number, stored, row, out)
            np.testing.assert_array_equal(out, expected[row])
            start = normal(width)
            added = start.copy()
            rows.read_row(number, stored, row, added, add=True)
            np.testing.assert_array_equal(added, start + expected[row])


def test_every_float16_is_read(isa: str) -> None:
    halves = np.arange(65536, dtype=np.uint16)
    blocks = np.ones((65536, 34), np.uint8)
    blocks[:, :2] = halves.view(np.uint8).reshape(-1, 2)
    out = np.empty(65536 * 32, np.float32)
    rows.read_row(2, blocks.reshape(1, -1), 0, out)
    np.testing.assert_array_equal(out[::32], halves.view(np.float16).astype(np.float32))


# ---- Norms ----

RMS, LAYER = 0, 1
LENGTHS = [1, 3, 15, 16, 17, 63, 64, 100, 576, 1000, 1536, 2050]


def norm(kind: int, x: Doubles, weight: Floats, bias: Floats | None, eps: float) -> Doubles:
    centred = x - x.mean() if kind == LAYER else x
    normed: Doubles = centred / np.sqrt((centred**2).mean() + np.float32(eps)) * weight
    return normed if bias is None else normed + bias


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize(("kind", "biased"), [(RMS, False), (LAYER, False), (LAYER, True)])
def test_norms(isa: str, n: int, kind: int, biased: bool) -> None:
    x, weight, shift = normal(3, n, seed=n)
    bias = shift if biased else None
    x = x * 3 + 0.5
    room = np.full(n + 1, 7.0, np.float32)
    rows.normalise(kind, 1e-5, weight, bias, x, room[:n])
    assert room[n] == 7.0
    expected = norm(kind, x.astype(np.float64), weight, bias, 1e-5)
    np.testing.assert_allclose(room[:n], expected, rtol=2e-6, atol=4e-6)
    rows.normalise(kind, 1e-5, weight, bias, x, x)  # in place
    assert x.tobytes() == room[:n].tobytes()


@pytest.mark.parametrize("n", [64, 577])
def test_a_norm_of_numbers_far_from_zero_keeps_their_differences(isa: str, n: int) -> None:
    x = (normal(n) * np.float32(0.01) + np.float32(100)).astype(np.float32)
    out = np.empty(n, np.float32)
    rows.normalise(LAYER, 1e-12, np.ones(n, np.float32), None, x, out)
    expected = norm(LAYER, x.astype(np.float64), np.ones(n, np.float32), None, 1e-12)
    np.testing.assert_allclose(out, expected, atol=3e-3)  # the mean, 100, is known to 4e-6, and the deviation is 0.01


@pytest.mark.parametrize("kind", [RMS, LAYER])
def test_a_norm_of_zeros_is_zero_and_bad_numbers_pass_through(isa: str, kind: int) -> None:
    n = 77
    ones, out = np.ones(n, np.float32), np.empty(n, np.float32)
    rows.normalise(kind, 1e-5, ones, None, np.zeros(n, np.float32), out)
    assert (out == 0).all()
    x = normal(n)
    x[n - 1] = np.nan
    rows.normalise(kind, 1e-5, ones, None, x, out)
    assert np.isnan(out).all()


# ---- Quantisation ----


def hadamard() -> Doubles:
    i = np.arange(HADAMARD)
    ones = np.array([[bin(a & b).count("1") for b in i] for a in i])
    return np.where(ones % 2 == 0, 1.0, -1.0) / 8


def turned(x: Floats, n_padded: int) -> Floats:
    """Every 64 inputs times H, in float32 and in the kernels' order of sums, not yet divided by 8."""
    v = np.zeros(n_padded, np.float32)
    v[: len(x)] = x
    distance = 1
    with np.errstate(all="ignore"):
        while distance < HADAMARD:
            pairs = v.reshape(-1, 2, distance)
            v = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
            distance *= 2
    return v


def test_the_rounds_of_sums_are_the_hadamard_matrix() -> None:
    x = normal(3 * HADAMARD)
    expected = (x.astype(np.float64).reshape(3, HADAMARD) @ hadamard()).reshape(-1)
    np.testing.assert_allclose(turned(x, 3 * HADAMARD) / 8, expected, atol=2e-6)


def expected_group(x: Floats, factor: float) -> tuple[NDArray[np.int8], np.float32, int]:
    largest = np.abs(x).max()
    if not largest >= np.float32(2.0**-100) or not np.isfinite(largest):
        bad = not np.isfinite(x).all()
        scale = np.float32(np.nan if np.isnan(x).any() else np.inf if bad else 0)
        return np.zeros(len(x), np.int8), scale, 0
    q = np.rint(x * (np.float32(127) / largest)).astype(np.int8)
    return q, np.float32(largest * np.float32(factor) / np.float32(127)), int(q.sum(dtype=np.int32))


def quantise(x: Floats, n_padded: int, group: int, int4: bool) -> tuple[NDArray[np.int8], Floats, NDArray[np.int32]]:
    """x as row 1 of three; fails if another row is touched."""
    n_groups = n_padded // group
    q = np.full((3, n_padded), 99, np.int8)
    scales = np.full((3, n_groups), 99, np.float32)
    sums = np.full((3, n_groups), 99, np.int32)
    rows.quantise(int4, x, q, scales, sums, 1)
    assert all((array[::2] == 99).all() for array in (q, scales, sums))
    return q[1], scales[1], sums[1]


def check_quantised(x: Floats, n_padded: int, group: int, int4: bool) -> None:
    numbers, factor = (x, 1.0) if int4 else (turned(x, n_padded), 0.125)
    q, scales, sums = quantise(x, n_padded, group, int4)
    for i, start in enumerate(range(0, n_padded, group)):
        expected_q, expected_scale, expected_sum = expected_group(numbers[start : start + group], factor)
        np.testing.assert_array_equal(q[start : start + group], expected_q)
        np.testing.assert_array_equal(scales[i], expected_scale)
        assert sums[i] == expected_sum


INT8_SHAPES = [(64, 64, 64), (576, 576, 576), (576, 576, 64), (570, 576, 192), (1536, 1536, 1536), (1, 192, 192),
               (65, 384, 128), (4800, 4800, 4800), (4100, 4224, 2112), (10, 2112, 2112)]  # fmt: skip


@pytest.mark.parametrize(("n_in", "n_padded", "group"), INT8_SHAPES)
def test_int8_rows(isa: str, n_in: int, n_padded: int, group: int) -> None:
    """The same bits from every set: the order of the sums is fixed."""
    x = normal(n_in, seed=n_in)
    x[:: max(n_in // 5, 1)] *= 50
    check_quantised(x, n_padded, group, int4=False)


@pytest.mark.parametrize("n_in", [32, 64, 576, 1536])
def test_int4_rows(isa: str, n_in: int) -> None:
    check_quantised(normal(n_in, seed=n_in) * 20, n_in, 32, int4=True)


@pytest.mark.parametrize("int4", [False, True])
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 1e-38, 1e-30, 1e-29, 1e30, 3e38, -3e38, np.inf, -np.inf, np.nan])
def test_extreme_numbers(isa: str, int4: bool, value: float) -> None:
    """In the first group; the second one is not harmed. Magnitudes whose scale could not be inverted count as 0."""
    group = 32 if int4 else 64
    x = normal(2 * group)
    x[:group] = 0
    x[5] = value
    check_quantised(x, 2 * group, group, int4)
    x[:group] = value
    check_quantised(x, 2 * group, group, int4)


@settings(max_examples=100)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=200), st.booleans())
def test_rounding_loses_half_a_step_at_most(values: list[float], int4: bool) -> None:
    group = 32 if int4 else 64
    x = np.array(values, np.float32)
    n_padded = -(-len(x) // group) * group
    full = np.zeros(n_padded, np.float32)
    full[: len(x)] = x
    before = native.isa()
    try:
        for name in native.available_isas():
            native.set_isa(name)
            q, scales, sums = quantise(full if int4 else x, n_padded, group, int4)
            exact = full.astype(np.float64).reshape(-1, group)
            if not int4:
                exact = exact @ hadamard()
            steps = np.abs(exact - q.reshape(-1, group) * scales[:, None].astype(np.float64))
            largest = np.abs(exact).max(axis=1, keepdims=True)
            assert (steps <= 0.5 * scales[:, None] + 1e-5 * largest + 1e-30).all()
            assert np.abs(q.astype(int)).max() <= 127
            assert (sums == q.reshape(-1, group).sum(axis=1, dtype=np.int32)).all()
    finally:
        native.set_isa(before)


# ---- Tiles ----

SILU, GELU, GELU_TANH, RELU = range(4)
COLUMNS = [1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 47, 48]


def activated(kind: int, x: Doubles) -> Doubles:
    with np.errstate(all="ignore"):
        if kind == SILU:
            factor: Doubles = 1 / (1 + np.exp(-x))
        elif kind == GELU:
            factor = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x.reshape(-1)]).reshape(x.shape)
        elif kind == GELU_TANH:
            factor = 1 / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        else:
            factor = (x > 0).astype(np.float64)
        return x * factor


def wide(n_rows: int) -> Floats:
    return normal(n_rows, 100, seed=5)


@pytest.mark.parametrize("n_cols", COLUMNS)
@pytest.mark.parametrize("biased", [False, True])
def test_tiles_are_stored_and_added(isa: str, n_cols: int, biased: bool) -> None:
    n_rows = 5
    tile, bias = normal(n_rows, PANEL), normal(PANEL, seed=1) if biased else None
    value = tile[:, :n_cols] + (bias[:n_cols] if bias is not None else np.float32(0))
    for add in (False, True):
        y = wide(n_rows + 1)
        expected = y.copy()
        expected[:n_rows, 20 : 20 + n_cols] = value + (y[:n_rows, 20 : 20 + n_cols] if add else 0)
        rows.store_tile(tile, n_cols, bias, y, 20, add=add)
        assert y.tobytes() == expected.tobytes()


@pytest.mark.parametrize("n_cols", COLUMNS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", [SILU, GELU, GELU_TANH, RELU])
def test_tiles_are_activated_and_gated(isa: str, n_cols: int, biased: bool, kind: int) -> None:
    n_rows = 3
    gate, up = normal(2, n_rows, PANEL) * np.float32(3)
    gate_bias, up_bias = normal(2, PANEL, seed=1) if biased else (None, None)
    inner: Doubles = activated(kind, (gate + gate_bias if biased else gate).astype(np.float64))
    for gated in (False, True):
        y = wide(n_rows + 1)
        expected = y.astype(np.float64)
        value = inner * (up + up_bias if biased else up) if gated else inner
        expected[:n_rows, 9 : 9 + n_cols] = value[:, :n_cols]
        if gated:
            rows.gate_tile(kind, gate, up, n_cols, gate_bias, up_bias, y, 9)
        else:
            rows.activate_tile(kind, gate, n_cols, gate_bias, y, 9)
        np.testing.assert_allclose(y, expected, rtol=3e-6, atol=1e-12)


@pytest.mark.parametrize("kind", [SILU, GELU, GELU_TANH, RELU])
def test_activations_are_accurate_far_out(isa: str, kind: int) -> None:
    """Relative to the result, which for GELU is the product of x and a tail of the normal distribution."""
    x = np.concatenate([np.linspace(-30, 30, 47999), [0.0]]).astype(np.float32).reshape(-1, PANEL)
    y = np.empty_like(x)
    rows.activate_tile(kind, x, PANEL, None, y, 0)
    exact = activated(kind, x.astype(np.float64))
    # GELU's exponent is rounded first, to 2^-24 of up to 87.
    tolerance = np.where(np.abs(x) < 3, 1.5e-6, 2e-5)
    assert (np.abs(y - exact) <= tolerance * np.abs(exact) + 1e-35).all()


@pytest.mark.parametrize("kind", [SILU, GELU, GELU_TANH, RELU])
def test_activations_of_extreme_numbers(isa: str, kind: int) -> None:
    x = np.zeros((1, PANEL), np.float32)
    x[0, :9] = [1e38, -1e38, 200, -200, np.inf, np.nan, 1e-40, -1e-40, -0.0]
    y = np.empty_like(x)
    rows.activate_tile(kind, x, PANEL, None, y, 0)
    assert y[0, 0] == np.float32(1e38) and y[0, 2] == 200 and y[0, 4] == np.inf and np.isnan(y[0, 5])
    assert (y[0, [1, 3, 8]] == 0).all() and (np.abs(y[0, 6:8]) <= 1e-40).all()
    assert (y[0, 9:] == 0).all()


def test_arrays_of_wrong_sizes_are_refused() -> None:
    tile, y = np.zeros((2, PANEL), np.float32), np.zeros((2, 50), np.float32)
    with pytest.raises(ValueError, match="columns outside y"):
        rows.store_tile(tile, 48, None, y, 3)
    with pytest.raises(ValueError, match="more rows"):
        rows.store_tile(tile, 48, None, y[:1], 0)
    with pytest.raises(ValueError, match="group"):
        rows.quantise(True, y[0, :48], np.zeros((1, 48), np.int8), y[:1, :1], np.zeros((1, 1), np.int32), 0)
    with pytest.raises(ValueError, match="no such row"):
        rows.read_row(0, np.zeros((2, 8), np.uint8), 2, y[0, :2])
