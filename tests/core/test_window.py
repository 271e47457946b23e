"""Pages under a sliding window, against lists of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.core.window import most_slots, pages_behind, pages_spanned, window_for


@given(position=st.integers(0, 300), window=st.integers(2, 80), page=st.integers(1, 20))
def test_pages_behind_are_those_without_a_token_that_is_read(position: int, window: int, page: int) -> None:
    read = range(max(position - window + 1, 0), position + 1)
    assert pages_behind(position, window, page) == min(token // page for token in read)
    assert pages_behind(position, window, page) * page < max(position, 1), "the newest page stays"


@given(n=st.integers(1, 100), page=st.integers(1, 20))
def test_pages_spanned_wherever_tokens_begin(n: int, page: int) -> None:
    assert pages_spanned(n, page) == max(
        len({token // page for token in range(first, first + n)}) for first in range(page)
    )


@pytest.mark.parametrize(
    ("window", "n_slots", "expected"), [(None, 10**6, None), (24, 48, 24), (24, 47, None), (1, 32, 2), (1, 31, None)]
)
def test_a_window_counts_if_the_region_holds_it(window: int | None, n_slots: int, expected: int | None) -> None:
    assert window_for(window, n_slots, 16) == expected


def test_most() -> None:
    assert most_slots(24, 16) == 64
