"""A shard that is cut out of packed panels is the one that is packed from the weights, and stands for the same ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from orcaserve.native import _kernels
from orcaserve.native.cutting import INPUT_UNITS, can_cut, cut_inputs, cut_outputs, input_bytes
from orcaserve.native.packing import (
    ExactInputs,
    Format,
    PackedMatrix,
    linear,
    pack,
    pack_int8_groups,
    unpack,
)

Floats = NDArray[np.float32]
TEAM = _kernels.Team(2)
FORMATS = list(Format)


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def same(one: PackedMatrix, other: PackedMatrix) -> None:
    """Every number of two matrices; what fills up the last panel counts, for packing leaves no bit to chance."""
    sizes = ("format", "n_out", "n_in", "n_in_padded", "group", "interleaved")
    assert [getattr(one, size) for size in sizes] == [getattr(other, size) for size in sizes]
    assert np.array_equal(unpack(one), unpack(other))
    assert (one.bias is None) == (other.bias is None)
    assert one.bias is None or np.array_equal(one.bias, other.bias)  # type: ignore[arg-type]
    assert (one.exact is None) == (other.exact is None)
    if one.exact is not None and other.exact is not None:
        for field in ("inputs", "weights", "kept"):
            assert np.array_equal(getattr(one.exact, field), getattr(other.exact, field))


@given(
    format=st.sampled_from(FORMATS),
    gated=st.booleans(),
    n_out=st.integers(1, 150),
    edges=st.lists(st.integers(0, 150), min_size=2, max_size=6),
    biased=st.booleans(),
)
def test_outputs(format: Format, gated: bool, n_out: int, edges: list[int], biased: bool) -> None:
    edges = sorted(min(edge, n_out) for edge in edges)
    runs = [range(a, b) for a, b in zip(edges[::2], edges[1::2], strict=False) if a < b]
    if not runs:
        runs = [range(n_out - 1, n_out)]
    n_parts = 2 if gated else 1
    parts = [normal(n_out, 96, seed=i) for i in range(n_parts)]
    biases = [normal(n_out, seed=5 + i) for i in range(n_parts)] if biased else None
    rows = np.concatenate([np.arange(run.start, run.stop) for run in runs])
    whole = pack(parts, format, interleaved=gated, biases=biases, team=TEAM)
    shard = pack([part[rows] for part in parts], format, interleaved=gated, team=TEAM,
                 biases=None if biases is None else [bias[rows] for bias in biases])  # fmt: skip
    if format is Format.INT8:
        inputs = [3, 50, 95]
        whole = replace(whole, exact=ExactInputs.of(whole, inputs, [part[:, inputs] for part in parts]))
        shard = replace(shard, exact=ExactInputs.of(shard, inputs, [part[rows][:, inputs] for part in parts]))
    same(cut_outputs(whole, runs), shard)


@given(
    format=st.sampled_from([Format.FLOAT32, Format.BFLOAT16, Format.INT4]), first=st.integers(0, 9), n=st.integers(1, 9)
)
def test_inputs(format: Format, first: int, n: int) -> None:
    unit = INPUT_UNITS[format]
    weights, bias = normal(50, 20 * unit), normal(50, seed=1)
    own = range(first * unit, (first + n) * unit)
    shard = pack([weights[:, own.start : own.stop]], format, biases=[bias] if first == 0 else None, team=TEAM)
    same(cut_inputs(pack([weights], format, biases=[bias], team=TEAM), own), shard)


@given(n_in=st.integers(1, 1300), first=st.integers(0, 20), n=st.integers(1, 20))
def test_inputs_of_int8_keep_their_scales(n_in: int, first: int, n: int) -> None:
    """Not packed anew: a cut through a group takes its scale to both sides."""
    weights = normal(50, n_in)
    whole = pack([weights], Format.INT8, team=TEAM)
    first = min(first, (n_in - 1) // 64)
    own = range(64 * first, min(64 * (first + n), n_in))
    exact = sorted({0, n_in // 2, n_in - 1})
    whole = replace(whole, exact=ExactInputs.of(whole, exact, [weights[:, exact]]))
    shard = cut_inputs(whole, own)
    assert np.array_equal(unpack(shard), unpack(whole)[:, own.start : own.stop])
    mine = [i - own.start for i in exact if i in own]
    assert (shard.exact.inputs.tolist() if shard.exact else []) == mine
    group = _kernels.group_inputs(Format.INT8, whole.n_in_padded)
    assert whole.group == group and group % shard.group == 0
    if own.start % group == 0 and (own.stop % group == 0 or own.stop == n_in):
        assert shard.group == group
        same(replace(shard, exact=None), pack_int8_groups(weights[:, own.start : own.stop], group, None, TEAM))


@pytest.mark.parametrize("isa", _kernels.available_isas())
def test_shards_of_int8_add_up(isa: str) -> None:
    """The kernels take groups that are smaller than a matrix of that width would have."""
    weights, x = normal(100, 576), normal(9, 576, seed=1)
    whole = pack([weights], Format.INT8, team=TEAM)
    before = _kernels.isa()
    try:
        _kernels.set_isa(isa)
        for edge in (64, 192, 320):
            shards = [cut_inputs(whole, range(edge)), cut_inputs(whole, range(edge, 576))]
            total = linear(shards[0], x[:, :edge].copy(), TEAM) + linear(shards[1], x[:, edge:].copy(), TEAM)
            assert np.abs(total - x @ unpack(whole).T).max() < 0.02 * np.abs(total).max()
    finally:
        _kernels.set_isa(before)


def test_what_can_be_cut_and_where_it_lies() -> None:
    assert can_cut(Format.INT8, 200, range(64, 200)) and not can_cut(Format.INT8, 200, range(64, 199))
    assert can_cut(Format.INT4, 128, range(96, 128)) and not can_cut(Format.INT4, 128, range(16, 128))
    assert can_cut(Format.FLOAT32, 7, range(3, 5)) and not can_cut(Format.BFLOAT16, 8, range(3, 8))
    whole = pack([normal(48, 576)], Format.INT8, team=TEAM)
    n = 192 * 48 + 48 * 4
    assert input_bytes(whole, range(64, 200)) == range(2 * n)
    assert input_bytes(whole, range(384, 576)) == range(2 * n, 3 * n)
