"""Packed weights stand for the weights that were given: exactly, or within the rounding of the format."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from orcaserve.checkpoint.dequantise import dequantise
from orcaserve.core.errors import CheckpointError
from orcaserve.native import _kernels
from orcaserve.native.exact_inputs import ExactInputsBuilder
from orcaserve.native.packing import (
    HADAMARD,
    INT4_BLOCK,
    PANEL,
    Format,
    PackedMatrix,
    hadamard,
    pack,
    pack_int4_blocks,
    unpack,
)

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20}
TEAM = _kernels.Team(2)


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def to_bfloat16(x: Floats) -> Floats:
    """To the nearest bfloat16, ties to even, as a float."""
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return rounded.astype(np.uint32).view(np.float32)


def random_blocks(kind: str, n_out: int, n_in: int, seed: int = 0) -> Bytes:
    """Rows of blocks with scales of all sizes and signs, subnormal ones and zeros among them."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (n_out, n_in // INT4_BLOCK, BLOCK_BYTES[kind]), np.uint8)
    n_halves = (BLOCK_BYTES[kind] - 16) // 2
    # Exponents that leave room for a product with -8.
    halves = rng.integers(0, 28 << 10, (*blocks.shape[:2], n_halves), np.uint16)
    halves |= rng.integers(0, 2, halves.shape, np.uint16) << 15
    halves[rng.random(halves.shape) < 0.1] &= 0x83FF
    blocks[..., : 2 * n_halves] = halves.view(np.uint8)
    return blocks.reshape(n_out, -1)


def weights_of(kind: str, rows: Bytes) -> Floats:
    out = np.empty((len(rows), rows.shape[1] // BLOCK_BYTES[kind] * INT4_BLOCK), np.float32)
    dequantise(kind, rows.reshape(-1), out.reshape(-1))
    return out


# ---- Floats ----


@pytest.mark.parametrize("n_in", [1, 2, 3, 17, 64, 100])
@pytest.mark.parametrize("outputs", [[1], [48], [49], [7, 100, 48], [96, 0, 1]])
def test_floats_are_kept(outputs: list[int], n_in: int) -> None:
    parts = [normal(n, n_in, seed=n) for n in outputs]
    whole = np.concatenate(parts)
    np.testing.assert_array_equal(unpack(pack(parts, Format.FLOAT32, team=TEAM)), whole)
    np.testing.assert_array_equal(unpack(pack(parts, Format.BFLOAT16, team=TEAM)), to_bfloat16(whole))


def test_bfloat16_is_rounded_to_the_nearest() -> None:
    special = [0.0, -0.0, 1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 3.4e38, -3.4e38, np.inf, 1e-40, 1e-45]
    weights = np.array([special], np.float32)
    packed = unpack(pack([weights], Format.BFLOAT16, team=TEAM))
    np.testing.assert_array_equal(packed.view(np.uint32), to_bfloat16(weights).view(np.uint32))
    assert packed[0, 3] == 1
    assert packed[0, 4] == 1 + 2**-6
    assert packed[0, 5] == 1 + 2**-7
    weights[0, 0] = np.nan
    assert np.isnan(unpack(pack([weights], Format.BFLOAT16, team=TEAM))[0, 0])


def test_a_panel_lies_as_the_kernels_read_it() -> None:
    weights = normal(50, 6)
    floats = pack([weights], Format.FLOAT32, team=TEAM).panels.view(np.float32).reshape(2, 6, PANEL)
    np.testing.assert_array_equal(floats[1, :, 1], weights[49])
    assert (floats[1, :, 2:] == 0).all()
    pairs = pack([weights], Format.BFLOAT16, team=TEAM).panels.view(np.uint16).reshape(2, 3, PANEL, 2)
    np.testing.assert_array_equal(pairs[0, 1, 5], to_bfloat16(weights[5, 2:4]).view(np.uint32) >> 16)


# ---- int8 ----


def turned(weights: Floats, n_padded: int) -> NDArray[np.float64]:
    padded = np.zeros((len(weights), n_padded))
    padded[:, : weights.shape[1]] = weights
    i = np.arange(HADAMARD)
    signs = [[(-1) ** int(a & b).bit_count() for b in i] for a in i]
    return (padded.reshape(-1, HADAMARD) @ (np.array(signs) / 8)).reshape(padded.shape)


def int8_parts(matrix: PackedMatrix) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Bytes [outputs, groups, group], scales [outputs, groups]."""
    groups = matrix.panels.reshape(matrix.n_panels, -1, (matrix.group + 4) * PANEL)
    quads = groups[:, :, : matrix.group * PANEL].reshape(*groups.shape[:2], -1, PANEL, 4)
    bytes_ = quads.transpose(0, 3, 1, 2, 4).reshape(matrix.n_panels * PANEL, groups.shape[1], matrix.group)
    scales = np.ascontiguousarray(groups[:, :, matrix.group * PANEL :]).view(np.float32).swapaxes(1, 2)
    return bytes_.astype(np.int64), scales.reshape(matrix.n_panels * PANEL, -1).astype(np.float64)


GROUPS = {1: 64, 64: 64, 65: 128, 192: 192, 200: 128, 320: 64, 448: 64, 512: 128, 576: 192, 960: 192, 1536: 192}


@pytest.mark.parametrize(("n_in", "group"), GROUPS.items())
def test_int8_is_rounded_to_the_nearest_of_its_group(n_in: int, group: int) -> None:
    weights = normal(50, n_in, seed=n_in)
    weights[7] = 0
    weights[8, n_in // 2] = 1000
    weights[9] *= np.float32(1e-25)
    matrix = pack([weights], Format.INT8, team=TEAM)
    assert matrix.group == group
    assert matrix.n_in_padded == -(-n_in // 64) * 64
    real = turned(weights, matrix.n_in_padded).reshape(50, -1, group)
    bytes_, scales = int8_parts(matrix)
    assert (scales[50:] == 0).all()
    assert (bytes_[50:] == 128).all()
    bytes_, scales = bytes_[:50], scales[:50]
    np.testing.assert_allclose(scales, np.abs(real).max(2) / 127, rtol=1e-5)
    quotients = real / np.where(scales == 0, 1, scales)[..., None]
    assert (np.abs(bytes_ - 128 - quotients) <= 0.5 + 1e-3).all()
    zero = scales == 0
    assert zero[7].all()
    assert (bytes_[zero] == 128).all()
    assert (np.abs(bytes_ - 128).max(2)[~zero] == 127).all()


@given(st.integers(1, 100), st.integers(1, 300), st.integers(0, 2**32))
@settings(max_examples=50)
def test_int8_unpacks_to_about_the_weights(n_out: int, n_in: int, seed: int) -> None:
    weights = normal(n_out, n_in, seed=seed)
    matrix = pack([weights], Format.INT8, team=TEAM)
    back = unpack(matrix)
    assert back.shape == weights.shape
    # A turned weight is off by half a scale at most, and turning back keeps the length of the error.
    _, scales = int8_parts(matrix)
    squares = (scales[:n_out] / 2) ** 2 * matrix.group
    errors = np.linalg.norm(back - weights, axis=1)
    assert (errors <= 1.001 * np.sqrt(squares.sum(1)) + 1e-5).all()


def test_an_outlier_does_not_spoil_its_row() -> None:
    weights = normal(48, 192) * np.float32(0.02)
    weights[:, 17] = 1
    error = unpack(pack([weights], Format.INT8, team=TEAM)) - weights
    untreated = np.rint(weights * 127) / 127 - weights
    assert np.square(error).mean() < 0.1 * np.square(untreated).mean()


def test_the_hadamard_matrix_is_its_own_inverse() -> None:
    np.testing.assert_array_equal(hadamard() @ hadamard(), np.eye(HADAMARD))


# ---- int4 ----


@pytest.mark.parametrize("kinds", [["Q4_0"], ["Q4_1"], ["Q4_0", "Q4_1", "Q4_0"]])
@pytest.mark.parametrize("n_in", [32, 96, 576])
def test_blocks_are_kept_to_the_bit(kinds: list[str], n_in: int) -> None:
    parts = [(kind, random_blocks(kind, 37 + 20 * i, n_in, seed=i)) for i, kind in enumerate(kinds)]
    expected = np.concatenate([weights_of(kind, rows) for kind, rows in parts])
    np.testing.assert_array_equal(unpack(pack_int4_blocks(parts, team=TEAM)), expected)


def test_every_scale_of_q4_0_is_kept_or_refused() -> None:
    halves = np.arange(65536, dtype=np.uint16)
    blocks = np.random.default_rng(0).integers(0, 256, (65536, 18), np.uint8)
    blocks[:, :2] = halves[:, None].view(np.uint8)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        scales = halves.view(np.float16).astype(np.float64)
        fits = np.isfinite(scales) & (np.abs(scales) * 8 <= 65504)
    kept = blocks[fits]
    np.testing.assert_array_equal(unpack(pack_int4_blocks([("Q4_0", kept)], team=TEAM)), weights_of("Q4_0", kept))
    assert 0.8 < fits.mean() < 0.95
    for block in blocks[~fits][::97]:
        with pytest.raises(CheckpointError, match="not finite, or too large"):
            pack_int4_blocks([("Q4_0", block[None])], team=TEAM)


@pytest.mark.parametrize("place", [0, 2])
def test_scales_and_minima_that_are_no_numbers_are_refused(place: int) -> None:
    for value in (np.inf, -np.inf, np.nan):
        rows = random_blocks("Q4_1", 50, 64)
        rows[49, 20 + place : 22 + place] = np.array([value], np.float16).view(np.uint8)
        with pytest.raises(CheckpointError):
            pack_int4_blocks([("Q4_1", rows)], team=TEAM)


def min_max(weights: Floats) -> NDArray[np.float64]:
    """The plain way: the ends of a block are nibbles 0 and 15."""
    blocks = weights.astype(np.float64).reshape(len(weights), -1, INT4_BLOCK)
    low, high = blocks.min(2, keepdims=True), blocks.max(2, keepdims=True)
    scale = np.where(high > low, (high - low) / 15, 1)
    return (np.rint((blocks - low) / scale) * scale + low).reshape(weights.shape)


@pytest.mark.parametrize("heavy_tails", [False, True])
def test_floats_become_nibbles_with_less_error_than_their_range_gives(heavy_tails: bool) -> None:
    weights = normal(96, 576) * np.float32(0.05)
    if heavy_tails:
        weights **= 3
    error = np.square(unpack(pack([weights], Format.INT4, team=TEAM)) - weights).mean()
    assert error < 0.95 * np.square(min_max(weights) - weights).mean()


def test_easy_blocks_become_exact() -> None:
    rng = np.random.default_rng(1)
    weights = (rng.integers(0, 16, (50, 64)) * 0.25 - 2).astype(np.float32)
    weights[:, ::32], weights[:, 1::32] = -2, 1.75  # the whole range in every block
    weights[3] = 0
    weights[4] = 0.5
    np.testing.assert_array_equal(unpack(pack([weights], Format.INT4, team=TEAM)), weights)


@pytest.mark.parametrize("factor", [1e-30, 1e-8, 1e-3, 1e3])
def test_nibbles_of_weights_of_any_size(factor: float) -> None:
    weights = normal(48, 64) * np.float32(factor)
    error = np.abs(unpack(pack([weights], Format.INT4, team=TEAM)) - weights)
    # Half a step, of a range of at most 7 standard deviations, and what lies outside of a range that was drawn in; or a
    # unit of the smallest float16.
    assert error.max() <= max(7 / 15 * factor, 2**-24)


# ---- Parts ----


@pytest.mark.parametrize("format", list(Format))
@pytest.mark.parametrize("n_out", [1, 48, 50, 100])
def test_interleaved_parts_take_turns_panel_by_panel(format: Format, n_out: int) -> None:
    gate, up = normal(n_out, 64, seed=1), normal(n_out, 64, seed=2)
    biases = [normal(n_out, seed=3), normal(n_out, seed=4)]
    both = pack([gate, up], format, interleaved=True, biases=biases, team=TEAM)
    alone = [pack([part], format, biases=[bias], team=TEAM) for part, bias in zip((gate, up), biases, strict=True)]
    for part, single in enumerate(alone):
        np.testing.assert_array_equal(both.panels[part::2], single.panels)
        assert both.bias is not None
        assert single.bias is not None
        np.testing.assert_array_equal(both.bias.reshape(-1, PANEL)[part::2].reshape(-1), single.bias)
    np.testing.assert_array_equal(unpack(both), np.concatenate([unpack(single) for single in alone]))
    assert (both.n_out, both.n_panels) == (2 * n_out, 2 * -(-n_out // PANEL))


def test_interleaved_blocks() -> None:
    parts = [(kind, random_blocks(kind, 50, 64, seed=1)) for kind in ("Q4_0", "Q4_1")]
    both = pack_int4_blocks(parts, interleaved=True, team=TEAM)
    np.testing.assert_array_equal(unpack(both), np.concatenate([weights_of(kind, rows) for kind, rows in parts]))


@pytest.mark.parametrize("format", list(Format))
def test_stacking_parts_is_packing_their_stack(format: Format) -> None:
    whole = normal(230, 96)
    bias = normal(230, seed=5)
    cuts = [0, 1, 60, 61, 230]
    pieces = [slice(a, b) for a, b in pairwise(cuts)]
    stacked = pack([whole[p] for p in pieces], format, biases=[bias[p] for p in pieces], team=TEAM)
    single = pack([whole], format, biases=[bias], team=TEAM)
    np.testing.assert_array_equal(stacked.panels, single.panels)
    assert stacked.bias is not None
    np.testing.assert_array_equal(stacked.bias[:230], bias)
    assert (stacked.bias[230:] == 0).all()


def test_biases_of_some_parts() -> None:
    parts = [normal(10, 4), normal(5, 4)]
    some = pack(parts, Format.FLOAT32, biases=[None, np.ones(5, np.float32)], team=TEAM)
    assert some.bias is not None
    assert some.bias[:15].tolist() == [0] * 10 + [1] * 5
    assert pack(parts, Format.FLOAT32, biases=[None, None], team=TEAM).bias is None
    assert pack(parts, Format.FLOAT32, team=TEAM).bias is None


@pytest.mark.parametrize("format", list(Format))
def test_columns_of_a_larger_array_are_packed_in_place(format: Format) -> None:
    whole = normal(60, 200)
    np.testing.assert_array_equal(
        pack([whole[::2, 32:96]], format, team=TEAM).panels,
        pack([whole[::2, 32:96].copy()], format, team=TEAM).panels,
    )


@pytest.mark.parametrize("format", list(Format))
def test_threads_change_no_bit(format: Format) -> None:
    weights = normal(1000, 192)
    np.testing.assert_array_equal(
        pack([weights], format, team=_kernels.Team(1)).panels, pack([weights], format, team=TEAM).panels
    )


@pytest.mark.parametrize("format", list(Format))
def test_panels_are_aligned_and_nothing_else_is_allocated(format: Format) -> None:
    weights = normal(4096, 1024)
    tracemalloc.start()
    matrix = pack([weights], format, team=TEAM)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000  # panels lie in mapped memory, which is not traced
    assert matrix.panels.ctypes.data % 64 == 0
    assert not np.shares_memory(matrix.panels, pack([weights], format, team=TEAM).panels)


# ---- Refusals ----


def test_what_cannot_be_packed_is_refused() -> None:
    x = normal(4, 64)
    for parts in ([], [x.astype(np.float64)], [x[0]], [x.T], [x, x[:, :32]], [x[:0]], [x[:, :0]]):
        with pytest.raises(ValueError):
            pack(parts, Format.INT8, team=TEAM)
    for pair in ([x], [x, x[:3]], [x, x, x]):
        with pytest.raises(ValueError):
            pack(pair, Format.INT8, interleaved=True, team=TEAM)
    with pytest.raises(ValueError, match="blocks of 32"):
        pack([normal(4, 60)], Format.INT4, team=TEAM)
    for biases in ([], [np.zeros(3, np.float32)]):
        with pytest.raises(ValueError):
            pack([x], Format.INT8, biases=biases, team=TEAM)


def test_blocks_that_cannot_be_packed_are_refused() -> None:
    rows = random_blocks("Q4_0", 4, 64)
    for parts in (
        [],
        [("Q8_0", rows)],
        [("Q4_1", rows)],
        [("Q4_0", rows[:, :-1])],
        [("Q4_0", rows), ("Q4_0", rows[:, :18])],
        [("Q4_0", rows.view(np.int8))],
    ):
        with pytest.raises(ValueError):
            pack_int4_blocks(parts, team=TEAM)


def test_a_matrix_whose_sizes_disagree_is_refused() -> None:
    fine = pack([normal(50, 64)], Format.INT8, team=TEAM)
    sizes = {
        name: getattr(fine, name) for name in ("format", "n_out", "n_in", "n_in_padded", "group", "panels", "bias")
    }
    PackedMatrix(**sizes)
    for name, value in {
        "format": Format.INT4,
        "n_out": 100,
        "n_in": 65,
        "n_in_padded": 128,
        "group": 128,
        "panels": fine.panels[:1],
        "bias": np.zeros(50, np.float32),
    }.items():
        with pytest.raises(ValueError):
            PackedMatrix(**{**sizes, name: value})


def test_inputs_whose_weights_float16_cannot_hold_are_not_exact() -> None:
    weight = np.random.default_rng(1).standard_normal((50, 64)).astype(np.float32)
    weight[7, 3] = 1e6
    matrix = pack([weight], Format.INT8, team=TEAM)
    part = SimpleNamespace(name="w", inputs=range(64), columns=lambda inputs: weight[:, inputs])
    built = SimpleNamespace(matrices={"w": matrix})

    def exact(*inputs: int) -> list[int] | None:
        made = ExactInputsBuilder(cast(Any, built), {"w": inputs}).matrix([cast(Any, part)], None)
        return None if made.exact is None else made.exact.inputs.tolist()

    assert exact(2, 3, 5) == [2, 5]
    assert exact(3) is None
