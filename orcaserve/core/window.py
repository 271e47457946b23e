"""Pages under a sliding window: the same arithmetic for whoever keeps the books and for whoever has the pages.

A window of W: the token at index p reads the keys and values of the tokens p - W + 1 .. p.
"""

from __future__ import annotations

LEAST_WINDOW = 2  # for pages: so the page of the newest token is never behind


def pages_behind(position: int, window: int, page_size: int) -> int:
    """Leading pages of a text that no token from index `position` on reads."""
    return max(position - window + 1, 0) // page_size


def pages_spanned(n_tokens: int, page_size: int) -> int:
    """The most pages that so many consecutive tokens lie in, wherever they begin. n_tokens: 1 or more."""
    return -(-(n_tokens - 1) // page_size) + 1


def most_slots(window: int, page_size: int) -> int:
    """What a request is given at most, however long it is: the pages that two windows touch."""
    return pages_spanned(2 * window - 1, page_size) * page_size


def window_for(window: int | None, n_slots: int, page_size: int) -> int | None:
    """The window that pages are to go by in a region of so many slots; None: none is ever behind a text that fits."""
    if window is None or pages_spanned(max(window, LEAST_WINDOW), page_size) > n_slots // page_size:
        return None
    return max(window, LEAST_WINDOW)
