"""How far another clock is ahead, and how sure that is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orcaserve.core.spans import COMPUTE, RECEIVE, IterationSpans, Span
from orcaserve.engine.remote_clock import DRIFT, KEPT, Exchange, RemoteClock

MS = 1_000_000
SECOND = 1000 * MS


def test_equal_ways_give_the_exact_offset() -> None:
    exchange = Exchange(sent=100, received=1_000_110, replied=1_000_150, returned=160)
    assert exchange.offset == 1_000_000 and exchange.error == 10


@given(
    ahead=st.integers(-(10**15), 10**15),
    drift=st.floats(-DRIFT / 2, DRIFT / 2),
    exchanges=st.lists(
        st.tuples(*(st.integers(0, most) for most in (5 * SECOND, 200 * MS, 5 * MS, 200 * MS))),
        min_size=1, max_size=KEPT + 5,
    ),
    later=st.integers(-SECOND, 20 * SECOND),
)  # fmt: skip
def test_the_truth_lies_within_the_error(
    ahead: int, drift: float, exchanges: list[tuple[int, int, int, int]], later: int
) -> None:
    """Whatever each way takes: the other clock reads t + ahead + drift * t when ours reads t."""

    def other(t: int) -> int:
        return t + ahead + round(drift * t)

    clock, now = RemoteClock(), 100 * SECOND
    for pause, there, thinking, back in exchanges:
        now += pause
        clock.add(Exchange(now, other(now + there), other(now + there + thinking), now + there + thinking + back))
        now += there + thinking + back
    at = now + later
    offset, error = clock.offset(other(at))
    assert abs(other(at) - at - offset) <= error + 2, "but for rounding"
    assert clock.worst == error


def test_a_short_exchange_is_better_than_a_newer_long_one_until_it_is_too_old() -> None:
    clock = RemoteClock()
    clock.add(Exchange(0, 1000 * MS, 1000 * MS, MS))  # half a millisecond of doubt
    clock.add(Exchange(300 * SECOND, 301_100 * MS, 301_100 * MS, 300_040 * MS))  # 20 ms
    assert clock.offset(10 * SECOND) == (round(999.5 * MS), round(1.4 * MS))
    assert clock.offset(301 * SECOND)[0] == 1080 * MS


def test_what_was_done_is_moved_and_not_stretched() -> None:
    clock = RemoteClock()
    clock.add(Exchange(0, 1000 * MS, 1000 * MS, 0))
    spans = IterationSpans(3, 2, 9, [Span(RECEIVE, 1001 * MS, 1004 * MS), Span(COMPUTE, 1004 * MS, 1009 * MS)])
    moved = clock.to_ours(spans)
    assert moved.spans == [Span(RECEIVE, MS, 4 * MS), Span(COMPUTE, 4 * MS, 9 * MS)]
    assert (moved.iteration, moved.n_requests, moved.n_tokens) == (3, 2, 9)
    assert clock.to_ours(IterationSpans(1, 1, 1, [])).spans == []
