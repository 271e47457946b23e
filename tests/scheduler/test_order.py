"""FirstCome: in order of arrival among those of one priority; and what holds for any order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.core import Request, SamplingParams, Terms
from orcaserve.scheduler.order import FirstCome
from orcaserve.scheduler.token_fair import TokenFair


def request(number: int, priority: int = 0) -> Request:
    return Request(number, [1], SamplingParams(max_tokens=4), terms=Terms(priority=priority))


@pytest.mark.parametrize("order", [FirstCome(), TokenFair()])
def test_priorities_of_those_who_have_left_are_forgotten(order: FirstCome | TokenFair) -> None:
    """Also while somebody waits at a lower one, so that nobody ever looks at them."""
    first, last = request(0), request(1, 10**6)
    order.add(first)
    order.add(last)
    for number in range(2, 2000):
        order.add(gone := request(number, number))
        order.leave(gone)
    assert len(order._priorities) < 100
    assert order.first() is first
    order.admit(first)
    assert order.first() is last and list(order) == [last]


@given(verbs=st.lists(st.tuples(st.sampled_from(["add", "admit", "back", "leave"]), st.integers(-2, 2)), max_size=60))
def test_against_a_sorted_list(verbs: Sequence[tuple[str, int]]) -> None:
    order, waiting, admitted = FirstCome(), list[Request](), list[Request]()
    for number, (verb, n) in enumerate(verbs):
        waiting.sort(key=lambda r: (r.terms.priority, r.id))
        first = order.first()
        assert first is (waiting[0] if waiting else None)
        assert list(order) == waiting and len(order) == len(waiting)
        if verb == "add":
            waiting.append(request(number, n))
            order.add(waiting[-1])
        elif verb == "admit" and first is not None:
            order.admit(first)
            admitted.append(waiting.pop(0))
        elif verb == "back" and admitted:  # the latest first
            waiting.append(admitted.pop())
            order.put_back(waiting[-1])
        elif verb == "leave" and (everybody := waiting + admitted):
            gone = everybody[n % len(everybody)]
            order.leave(gone)
            (waiting if gone in waiting else admitted).remove(gone)
