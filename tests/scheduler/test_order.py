"""FirstCome: in order of arrival among those of one priority."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from orcaserve.core import Request, SamplingParams, Terms
from orcaserve.scheduler.order import FirstCome


def request(number: int, priority: int = 0) -> Request:
    return Request(number, [1], SamplingParams(max_tokens=4), terms=Terms(priority=priority))


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
