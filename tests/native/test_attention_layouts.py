"""How the work of attention is cut, and the layouts that are refused because they would read or write elsewhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from orcaserve import native
from orcaserve.model.spec import ModelSpec
from orcaserve.native import _kernels
from orcaserve.native.attention import BLOCK_ROWS, PART_KEYS, Layout, Rope, attend
from orcaserve.native.kv_region import KVRegion

cut_blocks = _kernels.attention.cut_blocks
TEAM = native.Team(1)


def region(n_kv_heads: int = 2, storage: str = "float32") -> KVRegion:
    """Four pages of 16 slots."""
    spec = ModelSpec(16, 64, 8, 1, n_kv_heads, n_kv_heads, 8, 8, "rms", 1e-5, "silu", True, True, None)
    return KVRegion(spec, 4, 16, storage)


def layout(starts: list[int], contexts: list[int], tables: list[list[int]] | NDArray[np.float64]) -> Layout:
    return Layout(np.array(starts, np.int32), np.array(contexts, np.int32), np.array(tables, np.int32, ndmin=2))


def qkv(n_tokens: int, heads: int = 8) -> NDArray[np.float32]:
    """Four query heads and two K/V heads of 8."""
    return np.ones((n_tokens, heads * 8), np.float32)


def test_a_sound_layout_is_taken() -> None:
    assert attend(qkv(6), region(), layout([0, 5, 6], [16, 0], [[0, 3], [1, -1]]), TEAM).shape == (6, 32)


@pytest.mark.parametrize(
    ("starts", "contexts", "tables", "message"),
    [
        ([0], [], np.empty((0, 1)), "there is none"),
        ([1, 5], [0], [[0, 1]], "begin with 0"),
        ([0, 0], [0], [[0, 1]], "starts must increase"),
        ([0, 5, 4], [0, 0], [[0, 1], [2, 3]], "starts must increase"),
        ([0, 1], [-1], [[0, 1]], "context"),
        ([0, 33], [0], [[0, 1]], "shorter than its tokens"),
        ([0, 1], [32], [[0, 1]], "shorter than its tokens"),
        ([0, 1], [2**31 - 1], [[0, 1]], "longer than the kernels can count"),
        ([0, 17], [0], [[0, -1]], "outside the region"),
        ([0, 17], [0], [[0, 4]], "outside the region"),
        ([0, 1, 2], [0], [[0, 1]], "disagree"),
        ([0, 1], [0], [[0, 1], [2, 3]], "disagree"),
    ],
)
def test_a_layout_that_reaches_outside_is_refused(
    starts: list[int], contexts: list[int], tables: list[list[int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        attend(qkv(starts[-1]), region(), layout(starts, contexts, tables), TEAM)


@pytest.mark.parametrize(
    ("rows", "heads", "options", "message"),
    [
        (2, 8, {}, "qkv must be"),
        (1, 7, {}, "multiple of n_kv_heads"),
        (1, 4, {}, "multiple of n_kv_heads"),
        (1, 8, {"first_layer": 1}, "outside the region"),
        (1, 8, {"first_layer": -1}, "outside the region"),
        (1, 8, {"n_layers": 2}, "outside the region"),
        (1, 8, {"rope": Rope(3, np.ones((1, 1), np.float32))}, "must be even"),
        (1, 8, {"rope": Rope(10, np.ones((1, 5), np.float32))}, "at most head_dim"),
        (1, 8, {"rope": Rope(4, np.ones((1, 3), np.float32))}, "frequencies"),
        (1, 8, {"rope": Rope(4, np.ones((1, 2), np.float32), 1, np.array([1], np.int32))}, "does not exist"),
        (1, 8, {"rope": Rope(4, np.ones((1, 2), np.float32), 1, np.array([0, 0], np.int32))}, "per request"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(rows: int, heads: int, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attend(qkv(rows, heads), region(), layout([0, 1], [0], [[0]]), TEAM, **options)


def test_arrays_of_another_type_are_refused() -> None:
    sound = layout([0, 1], [0], [[0]])
    for change in ({"starts": np.array([0, 1], np.int64)}, {"tables": np.array([[0]], np.int64)}):
        with pytest.raises(TypeError):
            attend(qkv(1), region(), replace(sound, **change), TEAM)
    with pytest.raises(TypeError):
        attend(qkv(1).astype(np.float64), region(), sound, TEAM)


def test_int8_without_scales_is_refused() -> None:
    kv = region(storage="int8")
    kv.key_scales = None
    with pytest.raises(ValueError, match="scales"):
        attend(qkv(1), kv, layout([0, 1], [0], [[0]]), TEAM)


@given(
    pieces=st.lists(st.tuples(st.integers(1, 200), st.integers(0, 5000)), min_size=1, max_size=8),
    group=st.sampled_from([1, 3, 8, 71, 97]),
    n_kv_heads=st.sampled_from([1, 3]),
    n_threads=st.sampled_from([1, 2, 64]),
)
def test_blocks_hold_every_token_and_key_once(
    pieces: list[tuple[int, int]], group: int, n_kv_heads: int, n_threads: int
) -> None:
    starts = np.cumsum([0, *(n for n, _ in pieces)]).astype(np.int32)
    contexts = np.array([context for _, context in pieces], np.int32)
    seen: Counter[tuple[int, int, int]] = Counter()
    rows_of: dict[int, tuple[int, int]] = {}
    for request, first, n, part, n_parts, split, partial, home in cut_blocks(
        starts, contexts, group, n_kv_heads, n_threads
    ):
        tokens, context = pieces[request]
        assert n >= 1 and (n == 1 or n * group <= BLOCK_ROWS) and 0 <= home < n_threads
        keys = context + first + n
        assert n_parts == (1 if part < 0 else -(-keys // PART_KEYS)) and part < n_parts
        for token in range(first, first + n):
            assert token < tokens
            seen.update((request, token, p) for p in (range(-(-keys // PART_KEYS)) if part < 0 else [part]))
        if part >= 0:
            assert rows_of.setdefault(split, (partial, partial + n_parts * n * group))[0] == partial
    assert set(seen.values()) == {1}
    for request, (tokens, context) in enumerate(pieces):
        for token in range(tokens):  # at least the parts that the token sees
            assert {(request, token, p) for p in range((context + token) // PART_KEYS + 1)} <= set(seen)
    # The rows of results of the runs in parts follow each other.
    assert sorted(rows_of) == list(range(len(rows_of)))
    ends = [0, *(rows_of[split][1] for split in sorted(rows_of))]
    assert ends[:-1] == [rows_of[split][0] for split in sorted(rows_of)]


def test_long_contexts_are_cut_where_threads_would_wait() -> None:
    one = cut_blocks(np.array([0, 1], np.int32), np.array([4000], np.int32), 3, 3, 2)
    assert [block[3] for block in one] == list(range(-(-4001 // PART_KEYS)))
    many = cut_blocks(np.arange(65, dtype=np.int32), np.full(64, 4000, np.int32), 3, 3, 2)
    assert all(block[3] == -1 for block in many) and len(many) == 64


def test_the_longest_work_comes_first() -> None:
    starts = np.array([0, 1, 2, 102, 103], np.int32)
    blocks = cut_blocks(starts, np.array([10, 400, 0, 200], np.int32), 3, 3, 1)
    assert [block[:3] for block in blocks] == [
        (2, 64, 32),
        (2, 32, 32),
        (2, 0, 32),
        (2, 96, 4),
        (1, 0, 1),
        (3, 0, 1),
        (0, 0, 1),
    ]
