"""Reservations that move along the text. That they suffice is driven in tests/model/test_shared_pages.py."""

from __future__ import annotations

import pytest

from orcaserve.core import BatchEntry, IterationResult, Phase, Request, SamplingParams
from orcaserve.core.batch import Increment
from orcaserve.scheduler import Scheduler
from orcaserve.scheduler.prefix_cache import PrefixCache
from orcaserve.scheduler.windowed_ledger import WindowedLedger

PAGE, WINDOW = 4, 10
STEADY, MOST = 16, 24  # slots that 10 and 19 tokens may touch


def request(n_input: int, max_tokens: int, id: int = 1) -> Request:
    return Request(id, list(range(n_input)), SamplingParams(max_tokens=max_tokens))


def fed(n: int, position: int = 0, n_to_come: int = 0) -> list[BatchEntry]:
    params = None if n_to_come else SamplingParams()
    return [BatchEntry(1, Phase.INITIATION, [0] * n, position, params, n_to_come=n_to_come)]


@pytest.mark.parametrize(
    ("n_input", "max_tokens", "expected"),
    [
        (3, 4, 8),  # all of it
        (3, 13, 16),
        (3, 500, STEADY),
        (17, 500, 20),  # its initiation is longer than that
        (500, 0, MOST),
        (500, 500, MOST),
    ],
)
def test_what_a_request_needs(n_input: int, max_tokens: int, expected: int) -> None:
    ledger = WindowedLedger(100, PAGE, WINDOW)
    assert ledger.need(request(n_input, max_tokens), n_input + max_tokens) == expected
    assert ledger.could_ever_fit(request(n_input, max_tokens), n_input + max_tokens)


def test_a_small_region_bounds_it_too() -> None:
    assert WindowedLedger(20, PAGE, WINDOW).need(request(500, 500), 1000) == 20
    with pytest.raises(AssertionError, match="without room for a window"):
        WindowedLedger(15, PAGE, WINDOW)


def test_a_long_life() -> None:
    """An initiation of 50 tokens in pieces, then increments."""
    ledger = WindowedLedger(100, PAGE, WINDOW)
    ledger.reserve(request(50, 100), 150)
    assert (ledger.n_reserved, ledger.room(1)) == (MOST, MOST)
    ledger.fill(fed(24, 0, 26))
    assert (ledger.used_by(1), ledger.held_by(1), ledger.n_used) == (24, 12, 12)  # the next token reads 15 .. 24
    assert (ledger.n_reserved, ledger.room(1)) == (MOST, 12)
    ledger.fill(fed(12, 24, 14))
    assert (ledger.held_by(1), ledger.room(1)) == (12, 12)
    ledger.fill(fed(12, 36, 2))
    ledger.fill(fed(2, 48))
    assert (ledger.used_by(1), ledger.held_by(1), ledger.n_reserved) == (50, 10, STEADY)
    for position in range(50, 149):
        assert ledger.has_room(1)
        ledger.fill([Increment(1, 0, position)])
        ledger.check()
        assert ledger.n_reserved == ledger.reserved_by(1) == ledger.held_alone([1]) == STEADY
        assert 9 <= ledger.held_by(1) == ledger.n_used <= 12
    ledger.release(1)
    assert ledger.n_reserved == ledger.n_used == len(ledger) == 0
    ledger.check()


def test_a_text_within_the_window_keeps_all() -> None:
    ledger = WindowedLedger(100, PAGE, WINDOW)
    ledger.reserve(request(6, 6), 12)
    ledger.fill(fed(6))
    for position in range(6, 12):
        ledger.fill([Increment(1, 0, position)])
    assert ledger.held_by(1) == ledger.reserved_by(1) == 12
    assert ledger.room(1) == 0


def test_only_texts_within_the_window_share() -> None:
    ledger = WindowedLedger(100, PAGE, WINDOW, PrefixCache(PAGE))
    assert ledger.shares(request(6, 6)) and not ledger.shares(request(6, 7))


def test_pieces_count_as_iterations_of_whoever_came_earlier() -> None:
    """The later one has its first token sooner: and still nobody has run more iterations than those before it."""
    scheduler = Scheduler(200, 4, page_size=PAGE, window=WINDOW)
    scheduler.add(request(60, 5, 1), 0.0)
    scheduler.add(request(3, 5, 2), 1.0)
    first = scheduler.next_batch()
    assert first is not None and [len(entry.tokens) for entry in first.entries] == [MOST, 3]
    scheduler.complete(IterationResult(1, [0, 7]))
    scheduler.check_invariants()
    second = scheduler.next_batch()
    assert second is not None and [len(entry.tokens) for entry in second.entries] == [12, 1]
    told = scheduler.describe(1.0).requests
    assert [(each.n_reserved, each.n_used) for each in told] == [(MOST, 12), (8, 3)]
