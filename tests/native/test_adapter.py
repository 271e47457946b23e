"""Adapters in eight bits: what is packed stands for the numbers of the files, as exactly as their scales allow."""

from __future__ import annotations

import numpy as np
import pytest

from orcaserve.checkpoint.lora import LowRank
from orcaserve.model.adapter import Gain
from orcaserve.native._kernels import Team
from orcaserve.native.adapter import LANES, AdapterNumbers, PackedLinear, pack_linear
from orcaserve.native.packing import PANEL, ExactInputs, Floats, Format, PackedMatrix, hadamard, pack

RANDOM = np.random.default_rng(0)


def matrix(
    n_out: int, n_in: int, format: Format, exact: tuple[int, ...] = (), interleaved: bool = False
) -> PackedMatrix:
    parts = [RANDOM.standard_normal((n_out // (1 + interleaved), n_in), np.float32)] * (1 + interleaved)
    packed = pack(parts, format, interleaved=interleaved, team=Team(1))
    if not exact:
        return packed
    columns = [part[:, list(exact)] for part in parts]
    fields = {name: getattr(packed, name) for name in packed.__slots__}
    return PackedMatrix(**{**fields, "exact": ExactInputs.of(packed, exact, columns)})


def gain(first: int, n_out: int, n_in: int, rank: int) -> Gain:
    a = RANDOM.standard_normal((rank, n_in), np.float32)
    return Gain(first, LowRank(a, RANDOM.standard_normal((n_out, rank), np.float32), 0.5))


def unpacked_a(packed: PackedLinear, matrix: PackedMatrix) -> tuple[Floats, Floats]:
    """A [width, n_in] without the exact inputs, and how far each number may be off."""
    width = len(packed.scales)
    rows = packed.a.swapaxes(0, 1).reshape(width, -1, matrix.group).astype(np.float32) - 128
    rows *= packed.a_scales.T[..., None]
    rows = rows.reshape(width, -1)
    off = np.repeat(packed.a_scales.T, matrix.group, axis=1) / 2
    if matrix.format is Format.INT8:
        rows = (rows.reshape(-1, 64) @ hadamard()).reshape(width, -1)
        off *= 8  # sums of 64 numbers, each off by so much at most, times 1 / 8
    return rows[:, : matrix.n_in], off[:, : matrix.n_in]


def unpacked_b(packed: PackedLinear, panel: int) -> tuple[Floats, Floats]:
    """B [columns, 48] of a panel, and how far each number may be off."""
    start, n = int(packed.at[panel]), int(packed.n[panel]) // LANES
    groups = packed.b[start : start + n * (LANES * PANEL + 2 * PANEL)].reshape(n, -1)
    numbers = groups[:, : LANES * PANEL].reshape(n, LANES // 4, PANEL, 4).swapaxes(2, 3).reshape(n, LANES, PANEL)
    bits = np.ascontiguousarray(groups[:, LANES * PANEL :]).view(np.uint16).astype(np.uint32) << 16
    scales = bits.view(np.float32)[:, None]
    whole = (numbers.astype(np.float32) - 128) * scales
    return whole.reshape(-1, PANEL), np.repeat(scales[:, 0] / 2, LANES, axis=0)


@pytest.mark.parametrize(
    ("format", "n_in", "exact"),
    [(Format.INT8, 100, ()), (Format.INT8, 192, (0, 7, 191)), (Format.INT4, 96, ())],
)
def test_a_stands_for_its_numbers(format: Format, n_in: int, exact: tuple[int, ...]) -> None:
    base = matrix(50, n_in, format, exact)
    gains = [gain(0, 30, n_in, 5), gain(30, 20, n_in, 19)]
    packed = pack_linear(gains, base)
    assert packed is not None and packed.numbers is AdapterNumbers.INT8
    assert len(packed.scales) == 16 + 32
    numbers, off = unpacked_a(packed, base)
    expected = np.zeros((48, n_in), np.float32)
    expected[:5], expected[16:35] = gains[0].low_rank.a, gains[1].low_rank.a
    assert np.array_equal(packed.exact, expected[:, list(exact)].T)
    expected[:, list(exact)] = 0
    assert (np.abs(numbers - expected) <= off + 1e-5).all()
    assert off.max() < 0.2
    assert packed.scales[:5].tolist() == [0.5] * 5 and not packed.scales[5:16].any()


@pytest.mark.parametrize("interleaved", [False, True])
def test_b_stands_for_its_numbers(interleaved: bool) -> None:
    base = matrix(140, 64, Format.INT8, interleaved=interleaved)
    gains = [gain(0, 70, 64, 5), gain(70, 70, 64, 19)]
    packed = pack_linear(gains, base)
    assert packed is not None
    expected = np.zeros((48, 140), np.float32)
    expected[:5, :70], expected[16:35, 70:] = gains[0].low_rank.b.T, gains[1].low_rank.b.T
    for panel in range(base.n_panels):
        first = panel // 2 * PANEL + panel % 2 * 70 if interleaved else panel * PANEL
        last = min(first + PANEL, (panel % 2 + 1) * 70 if interleaved else 140)
        numbers, off = unpacked_b(packed, panel)
        columns = slice(int(packed.first[panel]), int(packed.first[panel] + packed.n[panel]))
        assert packed.first[panel] % LANES == packed.n[panel] % LANES == 0
        wanted = expected[columns, first:last]
        assert (np.abs(numbers[:, : last - first] - wanted) <= off[:, : last - first] * 1.0001).all()
        assert np.count_nonzero(expected[:, first:last]) == np.count_nonzero(wanted)


def test_zeros_stay_zeros() -> None:
    base = matrix(48, 64, Format.INT8)
    nothing = Gain(0, LowRank(np.zeros((4, 64), np.float32), np.zeros((48, 4), np.float32), 1.0))
    packed = pack_linear([nothing], base)
    assert packed is not None
    assert not unpacked_a(packed, base)[0].any() and not unpacked_b(packed, 0)[0].any()
