"""The door: who comes in, what the others are told, and whether that is true when they come back."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.core import EngineFacts, EngineStatus, Request, SamplingParams, Terms
from orcaserve.serving.door import LONGEST_RETRY, Bounds, Door, Overloaded
from orcaserve.serving.forecast import openings
from orcaserve.serving.pace import OutputLengths, Pace
from orcaserve.serving.terms import Caller

ANYBODY = Caller("10.0.0.1")
BACK, NEW = Caller("10.0.0.1", comes_back=True), Caller("10.0.0.1", comes_back=False)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Street:
    """A door, and an engine behind it that runs `places` requests at once, each at `speed` tokens a second."""

    def __init__(self, places: int = 4, n_requests: float = 8, n_tokens: float = math.inf, speed: float = 10.0) -> None:
        self.clock, self.pace = Clock(), Pace(1, 1)
        bounds = Bounds(n_requests, n_tokens)
        self.door = Door(places, 10**6, bounds, self.pace, self.clock, random.Random(0).uniform)
        self.places, self.speed = places, speed
        self.ids = count(1)
        self.waiting: list[Request] = []
        self.running: dict[int, Request] = {}
        self.left: dict[int, float] = {}  # tokens of those who run
        self.n_iterations = 0

    def request(self, n_input: int = 10, n_output: int = 100, terms: Terms = Terms()) -> Request:  # noqa: B008
        params = SamplingParams(max_tokens=n_output, ignore_eos=True)
        return Request(next(self.ids), [1] * n_input, params, terms=terms)

    def come(self, request: Request | None = None, caller: Caller = ANYBODY, n: int = 1) -> int | None:
        """None, or what the caller is told."""
        requests = [request or self.request() for _ in range(n)]
        try:
            with self.door.knock(caller):
                pass
            self.door.check(requests, 0.0, caller)
        except Overloaded as refusal:
            assert refusal.status == 429 and refusal.code == "overloaded"
            return refusal.retry_after
        for each in requests:
            self.door.enter(each)
            self.waiting.append(each)
        return None

    def run(self, seconds: float, step: float = 0.1) -> None:
        for _ in range(round(seconds / step)):
            while self.waiting and len(self.left) < self.places:
                request = self.waiting.pop(0)
                self.left[request.id] = request.n_input + request.params.max_tokens
                self.running[request.id] = request
                self.door.begun(request.id)
            self.clock.now += step
            if not self.left:
                continue
            self.n_iterations += 1
            tokens: Any = len(self.left) * self.speed * step
            for request_id in list(self.left):
                self.left[request_id] -= self.speed * step
                request = self.running[request_id]
                request.output[:] = [1] * max(0, int(request.params.max_tokens - self.left[request_id]))
                if self.left[request_id] <= 0:
                    del self.left[request_id]
                    self.door.left(request_id)
            n_live = len(self.left) + len(self.waiting)
            status = EngineStatus(self.n_iterations, len(self.left), len(self.waiting), n_live, batch_tokens=tokens,
                                  batch_initiations=1, iteration_seconds=step)  # fmt: skip
            self.pace.on_report(0, status, self.clock.now)


def test_the_bounds() -> None:
    street = Street()
    told = [street.come() for _ in range(20)]
    assert told[:12] == [None] * 12 and None not in told[12:]
    street.run(0.1)
    assert len(street.left) == 4 and len(street.waiting) == 8
    assert street.come() is not None


def test_a_load_test_of_a_thousand_passes_the_usual_bounds() -> None:
    """They come at once, with prompts of 1,024 tokens, to a small server, and do not come again."""
    facts = EngineFacts("tiny", 10, 2048, 8192, max_bs=8, n_workers=1)
    bounds = Bounds.usual(facts, 1)
    door = Door(8, facts.n_slots, bounds, Pace(1, 1))
    street = Street()
    for _ in range(1000):
        request = street.request(n_input=1024)
        with door.knock(NEW):
            door.check([request], 0.0, NEW)
        door.enter(request)
    with pytest.raises(Overloaded):
        for _ in range(1000):
            door.check([request], 0.0, NEW)
            door.enter(street.request(n_input=1))
    large = Bounds.usual(EngineFacts("big", 10, 2048, 2**20, max_bs=512, n_workers=2), 2)
    assert (large.n_requests, large.n_tokens) == (4 * 512 * 2 * 2, 4 * 2**20 * 2)


def test_prompt_tokens_are_bounded_too() -> None:
    street = Street(places=1, n_tokens=100)
    assert street.come(street.request(n_input=5000)) is None  # alone, whatever the bound
    street.run(0.1)
    assert [street.come(street.request(n_input=40)) is None for _ in range(3)] == [True, True, False]
    assert street.come(street.request(n_input=20)) is None


def test_no_bound_and_no_queue() -> None:
    street = Street(places=1, n_requests=math.inf)
    assert all(street.come() is None for _ in range(500))
    street = Street(places=2, n_requests=0)
    assert [street.come() is None for _ in range(3)] == [True, True, False]


def test_requests_of_many_choices() -> None:
    street = Street(places=4, n_requests=8)
    assert street.come(n=100) is None  # it would never come in otherwise
    assert street.come() is not None


def test_what_is_told_comes_true() -> None:
    """A burst: whoever comes back when told gets in, the first time."""
    street = Street(places=4, n_requests=8, speed=20)
    street.come()
    street.run(1)  # the pace is known
    told = [street.come() for _ in range(30)]
    back = sorted(street.clock.now + seconds for seconds in told if seconds is not None)
    assert len(back) == 30 - 11 and len(set(back)) > 3, "they do not all come at once"
    for due in back:
        street.run(max(0.0, due - street.clock.now))
        assert street.come(caller=BACK) is None


def test_newcomers_do_not_take_what_was_promised() -> None:
    street = Street(places=2, n_requests=4, speed=20)
    for _ in range(7):
        street.come()
    street.run(0.2)
    while street.come() is None:
        pass
    first = street.come()
    assert first is not None
    street.run(first + 0.1)
    assert street.come(caller=NEW) is not None or len(street.waiting) < 3
    assert street.come(caller=BACK) is None


def test_nobody_is_told_to_wait_for_ever() -> None:
    street = Street(places=1, n_requests=1, speed=1)
    street.come()
    street.run(2)
    told = [street.come() for _ in range(300)]
    assert all(seconds is None or 1 <= seconds <= 61 for seconds in told)
    assert len({seconds for seconds in told if seconds is not None and seconds > 30}) > 5


def test_a_knock_counts_while_its_body_is_read() -> None:
    street = Street(places=1, n_requests=2)
    street.come()
    street.run(0.1)
    with street.door.knock(ANYBODY), street.door.knock(ANYBODY), pytest.raises(Overloaded), street.door.knock(ANYBODY):
        pass
    with street.door.knock(ANYBODY):
        pass


def deadline(street: Street, **terms: float) -> Overloaded | None:
    try:
        street.door.check([street.request(terms=Terms(**terms))], 0.0, ANYBODY)  # type: ignore[arg-type]
    except Overloaded as refusal:
        return refusal
    return None


def test_deadlines_that_cannot_be_made() -> None:
    street = Street(places=2, n_requests=50)
    assert deadline(street, first_token=0.001) is None, "nothing is known yet"
    for _ in range(2):
        street.come()
    street.run(2)
    for _ in range(4):
        street.come()
    street.run(2)  # 2 run for 7 s more, 4 wait for 11 s each
    assert deadline(street, first_token=60.0) is None
    for name, terms in (("x-slo-ttft-ms", {"first_token": 5.0}), ("timeout", {"timeout": 25.0})):
        refusal = deadline(street, **terms)
        assert refusal is not None and refusal.code == "deadline_unreachable" and refusal.field == name
        assert 1 <= refusal.retry_after <= LONGEST_RETRY
    endless = street.request(n_output=10**6, terms=Terms(timeout=5.0))
    with pytest.raises(Overloaded) as told:
        street.door.check([endless], 0.0, ANYBODY)
    assert told.value.retry_after == LONGEST_RETRY
    assert deadline(street, timeout=120.0) is None
    assert (refusal := deadline(street, between_tokens=0.01)) is not None and refusal.field == "x-slo-tpot-ms"
    assert deadline(street, between_tokens=1.0) is None
    ahead = Terms(first_token=12.0, priority=-1)
    street.door.check([street.request(terms=ahead)], 0.0, ANYBODY)  # those who wait are not before it


def test_an_idle_engine_has_time() -> None:
    street = Street(places=2)
    street.come()
    street.run(20)
    assert deadline(street, first_token=3.0) is None
    assert deadline(street, first_token=0.01) is not None  # the prompt alone takes longer


@given(
    st.lists(st.floats(0, 500), max_size=6),
    st.lists(st.floats(1, 500), max_size=20),
    st.floats(0.1, 1000),
    st.integers(0, 30),
)
def test_openings_are_those_of_a_played_queue(
    running: list[float], waiting: list[float], speed: float, more: int
) -> None:
    n_places = 6
    found = openings(running, waiting, n_places, speed, more)
    assert len(found) == len(waiting) + more and found == sorted(found)
    free = sorted(left * n_places / speed for left in running) + [0.0] * (n_places - len(running))
    for opening, length in zip(found, waiting, strict=False):
        free.sort()
        assert opening == pytest.approx(free[0])
        free[0] += length * n_places / speed
    assert openings(running, waiting, n_places, speed, more, 10.0) == [x for x in found if x <= 10.0]


def test_lengths_of_outputs_are_learnt() -> None:
    lengths, rng = OutputLengths(), random.Random(1)
    assert lengths.expected(100, ends_by_itself=False) == 100 and lengths.expected(0) == 0
    for _ in range(2000):  # they end by themselves after 50 on the average, and are cut at 40 as often as not
        n = 1
        while rng.random() > 1 / 50:
            n += 1
        lengths.note(min(n, 40), by_itself=n <= 40)
    assert 35 < lengths.expected(1000) < 65
    assert lengths.expected(10) < 10


@pytest.fixture
def reports() -> Iterator[EngineStatus]:
    return (EngineStatus(n, 8, 0, 8, batch_tokens=8, iteration_seconds=0.05, batch_initiations=n % 2) for n in count(1))


def test_the_pace(reports: Iterator[EngineStatus]) -> None:
    pace = Pace(2, 1)
    assert pace.tokens is pace.between_tokens is pace.prompt_tokens is None
    for tick in range(200):
        pace.on_report(0, next(reports), tick * 0.1)
    assert pace.tokens == pytest.approx(2 * 80, rel=0.05)  # the other is taken to be as quick
    assert pace.between_tokens == pytest.approx(0.1, rel=0.05)
    assert pace.prompt_tokens == pytest.approx(80, rel=0.05)
    pace.on_report(0, EngineStatus(1, 8, batch_tokens=8, iteration_seconds=0.1), 100.0)  # of another engine
    assert pace.between_tokens == pytest.approx(0.1, rel=0.05)
