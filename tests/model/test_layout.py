"""Layout: the paper's worked example, positions, and sizes that disagree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.model.layout import Int32s, Layout


def tables(n_requests: int, width: int) -> Int32s:
    return np.arange(n_requests * width, dtype=np.int32).reshape(n_requests, width)


def test_worked_example() -> None:
    """x1 at its 4th token, x2 at its 2nd, x3 with 2 and x4 with 3 input tokens: seven rows, split 1/1/2/3."""
    layout = Layout.build([(1, 3), (1, 1), (2, 0), (3, 0)], tables(4, 1), page_size=4)
    assert layout.n_tokens == 7
    assert layout.n_requests == 4
    assert layout.starts.tolist() == [0, 1, 2, 4, 7]
    assert layout.contexts.tolist() == [3, 1, 0, 0]
    assert layout.positions.tolist() == [3, 1, 0, 1, 0, 1, 2]
    assert layout.last_rows.tolist() == [0, 1, 3, 6]
    assert layout.lengths.tolist() == [1, 1, 2, 3]


def test_types() -> None:
    layout = Layout.build([(2, 0)], tables(1, 2), page_size=16)
    for array in (layout.starts, layout.contexts, layout.page_tables, layout.positions, layout.last_rows):
        assert array.dtype == np.int32 and array.flags.c_contiguous


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=8))
def test_positions_go_on_where_the_request_stood(pieces: list[tuple[int, int]]) -> None:
    layout = Layout.build(pieces, tables(len(pieces), 20), page_size=4)
    assert layout.positions.tolist() == [p for n, context in pieces for p in range(context, context + n)]
    assert layout.positions[layout.last_rows].tolist() == [n + context - 1 for n, context in pieces]


@pytest.mark.parametrize(
    ("pieces", "page_tables", "message"),
    [
        ([], tables(0, 1), "at least one request"),
        ([(0, 3)], tables(1, 1), "at least one token"),
        ([(1, -1)], tables(1, 1), "no fewer than 0"),
        ([(1, 0)], tables(2, 1), "page_tables must be"),
        ([(1, 0)], tables(1, 1).astype(np.int64), "page_tables must be"),
        ([(1, 0)], tables(1, 1)[0], "page_tables must be"),
        ([(5, 0)], tables(1, 1), "shorter than its tokens"),
        ([(2, 0)], tables(2, 3)[:1, ::2], "page_tables must be"),
    ],
)
def test_sizes_that_disagree_are_refused(pieces: list[tuple[int, int]], page_tables: Int32s, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout.build(pieces, page_tables, page_size=4)
