"""One panel of a float Linear, for every instruction set: as right as sums allow, whatever runs beside."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from orcaserve import native
from orcaserve.native import _kernels

rows = _kernels.rows
Floats = NDArray[np.float32]
PANEL = 48
MOST_ROWS = 32
KINDS = ["float32", "bfloat16"]
UNIT = 2.0**-24  # half a unit in the last place of 1


@pytest.fixture(params=native.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = native.isa()
    native.set_isa(request.param)
    yield request.param
    native.set_isa(before)


def bfloat16(x: Floats) -> Floats:
    """Cut to the numbers that a bfloat16 holds."""
    return (x.view(np.uint32) & 0xFFFF0000).view(np.float32)


def pack(weights: Floats, kind: str) -> NDArray[np.uint8]:
    """[outputs, inputs], the outputs a multiple of 48 -> panels [n_panels, bytes]."""
    n_out, n_in = weights.shape
    panels = weights.reshape(n_out // PANEL, PANEL, n_in)
    if kind == "float32":
        packed: NDArray[np.float32] | NDArray[np.uint16] = panels.transpose(0, 2, 1)
    else:
        padded = np.pad(panels, ((0, 0), (0, 0), (0, n_in % 2)))
        halves = (padded.view(np.uint32) >> 16).astype(np.uint16)
        packed = halves.reshape(len(panels), PANEL, -1, 2).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(packed).view(np.uint8).reshape(len(panels), -1)


def multiply(kind: str, packed: NDArray[np.uint8], x: Floats, panel: int = 0, row: int = 0, n_rows: int = 1) -> Floats:
    """Rows row .. row + n_rows of x times a panel; fails if more is written than that."""
    room = np.full((n_rows + 1, PANEL), 12345.0, np.float32)
    rows.multiply(kind == "bfloat16", packed, x.shape[1], panel, x, row, room[:n_rows])
    assert (room[n_rows:] == 12345.0).all(), "a row beyond the last one was written"
    return room[:n_rows]


def draw(kind: str, n_in: int, n_rows: int, seed: int = 0, n_panels: int = 2) -> tuple[Floats, Floats]:
    random = np.random.default_rng(seed)
    weights = random.standard_normal((n_panels * PANEL, n_in)).astype(np.float32)
    return weights if kind == "float32" else bfloat16(weights), random.standard_normal((n_rows, n_in)).astype(
        np.float32
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_in", [1, 2, 3, 31, 64, 577, 1536])
@pytest.mark.parametrize("n_rows", [1, 2, 5, 9, MOST_ROWS])
def test_it_is_the_product(isa: str, kind: str, n_in: int, n_rows: int) -> None:
    weights, x = draw(kind, n_in, n_rows)
    packed = pack(weights, kind)
    for panel in range(2):
        w = weights[panel * PANEL : (panel + 1) * PANEL].astype(np.float64)
        got = multiply(kind, packed, x, panel, 0, n_rows)
        error = np.abs(got - x @ w.T)
        terms = 3 * n_in if isa == "amx" and kind == "bfloat16" else n_in  # there each input is a sum of three
        assert (error <= terms * UNIT * (np.abs(x) @ np.abs(w).T)).all()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(data=st.data())
def test_small_integers_come_out_exactly(kind: str, data: st.DataObject) -> None:
    """Their sums are floats: any input, output or row taken for another shows."""
    n_in = data.draw(st.integers(1, 150))
    n_all = data.draw(st.integers(1, MOST_ROWS + 3))
    row = data.draw(st.integers(0, n_all - 1))
    n_rows = data.draw(st.integers(1, min(MOST_ROWS, n_all - row)))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    weights = random.integers(-100, 101, (PANEL, n_in)).astype(np.float32)
    x = random.integers(-100, 101, (n_all, n_in)).astype(np.float32)
    packed = pack(weights, kind)
    before = native.isa()
    try:
        for name in native.available_isas():
            native.set_isa(name)
            got = multiply(kind, packed, x, 0, row, n_rows)
            np.testing.assert_array_equal(got, x[row : row + n_rows] @ weights.T)
    finally:
        native.set_isa(before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_in", [7, 576])
def test_a_row_has_the_same_bits_alone_and_among_any_others(isa: str, kind: str, n_in: int) -> None:
    weights, x = draw(kind, n_in, MOST_ROWS, seed=1)
    packed = pack(weights, kind)
    alone = np.concatenate([multiply(kind, packed, x, 0, row, 1) for row in range(MOST_ROWS)])
    for n_rows in range(1, MOST_ROWS + 1):
        for row in range(0, MOST_ROWS + 1 - n_rows, 5):
            together = multiply(kind, packed, x, 0, row, n_rows)
            assert together.tobytes() == alone[row : row + n_rows].tobytes(), (n_rows, row)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_row_stays_alone(isa: str, kind: str, bad: float) -> None:
    """Nor is anything read behind a row's last input, which with an odd number of inputs is the next row's first."""
    weights, x = draw(kind, 33, 9, seed=2)
    packed = pack(weights, kind)
    good = multiply(kind, packed, x, 0, 0, 9)
    x[4] = bad
    got = multiply(kind, packed, x, 0, 0, 9)
    others = [row for row in range(9) if row != 4]
    assert got[others].tobytes() == good[others].tobytes()
    assert not np.isfinite(got[4]).any()


def test_sums_run_from_the_first_input_upwards(isa: str) -> None:
    """1 is lost behind a great number and kept when it follows on the number and its negative."""
    x = np.ones((5, 4), np.float32)
    for order, result in [([2e9, 1.0, -2e9, 1.0], 1.0), ([2e9, -2e9, 1.0, 1.0], 2.0), ([1.0, 1.0, 2e9, -2e9], 0.0)]:
        weights = np.tile(np.array(order, np.float32), (PANEL, 1))
        assert (multiply("float32", pack(weights, "float32"), x, 0, 0, 5) == result).all()


def test_arrays_of_wrong_sizes_are_refused() -> None:
    weights, x = draw("float32", 8, 4)
    packed = pack(weights, "float32")
    out = np.zeros((4, PANEL), np.float32)
    with pytest.raises(ValueError, match="another size"):
        rows.multiply(True, packed, 8, 0, x, 0, out)
    with pytest.raises(ValueError, match="no such panel"):
        rows.multiply(False, packed, 8, 2, x, 0, out)
    with pytest.raises(ValueError, match="outside x"):
        rows.multiply(False, packed, 8, 0, x, 1, out)
