"""Layout: the paper's worked example, and split and merge as inverses."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.model.layout import Layout


def tables(n_requests: int, width: int) -> torch.Tensor:
    return torch.arange(n_requests * width, dtype=torch.int32).reshape(n_requests, width)


def test_worked_example() -> None:
    """x1 at its 4th token, x2 at its 2nd, x3 with 2 and x4 with 3 input tokens: seven rows, split 1/1/2/3."""
    layout = Layout.build([(1, 3), (1, 1), (2, 0), (3, 0)], tables(4, 1), page_size=4)
    assert layout.n_tokens == 7
    assert layout.n_requests == 4
    assert layout.starts.tolist() == [0, 1, 2, 4, 7]
    assert layout.contexts.tolist() == [3, 1, 0, 0]
    assert layout.positions.tolist() == [3, 1, 0, 1, 0, 1, 2]
    assert layout.last_rows.tolist() == [0, 1, 3, 6]
    x = torch.arange(7 * 2).reshape(7, 2)
    parts = layout.split(x)
    assert [part.shape[0] for part in parts] == [1, 1, 2, 3]
    assert torch.equal(layout.merge(parts), x)


def test_types() -> None:
    layout = Layout.build([(2, 0)], tables(1, 1), page_size=16)
    assert layout.starts.dtype == layout.contexts.dtype == layout.page_tables.dtype == torch.int32
    assert layout.positions.dtype == layout.last_rows.dtype == torch.int64


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=8))
def test_split_and_merge_are_inverses(pieces: list[tuple[int, int]]) -> None:
    layout = Layout.build(pieces, tables(len(pieces), 20), page_size=4)
    x = torch.randn(layout.n_tokens, 2, 3)
    parts = layout.split(x)
    assert [part.shape[0] for part in parts] == [n for n, _ in pieces]
    assert torch.equal(layout.merge(parts), x)
    assert torch.equal(layout.positions[layout.last_rows], torch.tensor([n + context - 1 for n, context in pieces]))
    assert [p.tolist() for p in layout.split(layout.positions)] == [list(range(c, c + n)) for n, c in pieces]


@pytest.mark.parametrize(
    ("pieces", "page_tables", "message"),
    [
        ([], tables(0, 1), "at least one request"),
        ([(0, 3)], tables(1, 1), "at least one token"),
        ([(1, -1)], tables(1, 1), "no fewer than 0"),
        ([(1, 0)], tables(2, 1), "page_tables must be"),
        ([(1, 0)], tables(1, 1).long(), "page_tables must be"),
        ([(1, 0)], tables(1, 1)[0], "page_tables must be"),
        ([(5, 0)], tables(1, 1), "shorter than its tokens"),
        ([(1, 4), (1, 0)], torch.tensor([[0, -1], [1, 2]], dtype=torch.int32), "shorter than its tokens"),
    ],
)
def test_sizes_that_disagree_are_refused(
    pieces: list[tuple[int, int]], page_tables: torch.Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Layout.build(pieces, page_tables, page_size=4)


def test_tensors_of_another_length_are_refused() -> None:
    layout = Layout.build([(2, 0), (1, 0)], tables(2, 1), page_size=4)
    with pytest.raises(ValueError, match="3 rows, the tensor 4"):
        layout.split(torch.zeros(4, 2))
    with pytest.raises(ValueError, match="rows, the parts"):
        layout.merge([torch.zeros(1, 2), torch.zeros(2, 2)])
