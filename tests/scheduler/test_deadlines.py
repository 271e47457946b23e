"""Who is too late ends: before its first batch, or when its time is over; and nobody else does."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orcaserve.core import FinishReason, IterationResult, Progress, Request, SamplingParams, Terms
from orcaserve.core.errors import TIMED_OUT, TOO_LATE
from orcaserve.scheduler import IterationLoop, Scheduler
from orcaserve.scheduler.deadlines import Deadlines
from orcaserve.scheduler.policies import PolicySettings, make_policy


def request(number: int, n_input: int = 4, max_tokens: int = 4, **terms: float) -> Request:
    return Request(number, [0] * n_input, SamplingParams(max_tokens=max_tokens), terms=Terms(**terms))  # type: ignore[arg-type]


def scheduler(max_bs: int = 1, n_workers: int = 1, policy: str = "iteration-level", n_slots: int = 400) -> Scheduler:
    return Scheduler(n_slots, max_bs, n_workers, 1, make_policy(policy, PolicySettings(n_workers, 100)))


def run(it: Scheduler, now: float, seconds: float = 0.0) -> list[Progress]:
    batch = it.next_batch(now)
    assert batch is not None
    return it.complete(IterationResult(batch.iteration, [9] * len(batch.entries), seconds=seconds))


def late(number: int, error: str = TOO_LATE) -> Progress:
    return Progress(number, None, FinishReason.ERROR, error)


def test_one_that_waits_past_its_deadline() -> None:
    it = scheduler()
    it.add(request(1, max_tokens=9), 0.0)
    it.add(request(2, first_token=0.5), 0.0)
    it.add(request(3, timeout=0.7), 0.0)
    it.add(request(4), 0.0)
    run(it, 0.0)
    assert it.expire(0.4) == []
    assert it.expire(0.5) == [late(2)]
    assert it.expire(0.9) == [late(3)]
    assert it.expire(9.0) == [] and it.status().n_late == 2
    it.check_invariants()


def test_the_first_token_was_in_time_and_the_end_was_not() -> None:
    it = scheduler()
    it.add(request(1, max_tokens=9, first_token=0.5, timeout=2.0), 0.0)
    run(it, 0.1)
    assert it.expire(1.0) == []
    assert it.expire(2.0) == [late(1, TIMED_OUT)]
    assert it.status().n_late == 0 and it.status().n_reserved == 0


def test_one_in_flight_ends_when_its_batch_returns() -> None:
    it = scheduler(n_workers=2)
    it.add(request(1, max_tokens=9, timeout=1.0), 0.0)
    batch = it.next_batch(0.0)
    assert batch is not None and it.expire(1.5) == []
    assert it.complete(IterationResult(1, [9])) == [late(1, TIMED_OUT)]
    it.check_invariants()


def test_whole_batches_end_as_when_one_is_cancelled() -> None:
    it = scheduler(2, policy="request-level")
    it.add(request(1, max_tokens=5, timeout=1.0), 0.0)
    it.add(request(2, max_tokens=3), 0.0)
    run(it, 0.0)
    assert it.expire(1.5) == [], "told when all have ended"
    news = [each for _ in range(2) for each in run(it, 2.0)]
    assert [each.finish_reason for each in news if each.finish_reason] == [FinishReason.ERROR, FinishReason.LENGTH]


def test_what_it_takes_to_begin_is_learnt() -> None:
    """A token takes 0.1 s, so 40 will take about 4 s, and are not begun if they have but 1 s."""
    it = scheduler(2)
    for number in range(40):
        n = 4 + 4 * (number % 3)
        it.add(request(number, n_input=n, max_tokens=1, timeout=100.0), 0.0)
        run(it, 0.0, seconds=0.1 * n)
    it.add(request(20, n_input=40, first_token=1.0), 0.0)
    it.add(request(21, n_input=4, first_token=1.0), 0.0)
    assert it.expire(0.0) == [late(20)]


def test_in_the_loop(fake_engine: Any) -> None:
    reports: list[Progress] = []
    engine = fake_engine(gated=True)
    now = [0.0]
    loop = IterationLoop(scheduler(), engine, lambda r: reports.extend(r.progress), clock=lambda: now[0])
    loop.submit([request(1, max_tokens=2), request(2, first_token=1.0), request(3)])
    thread = threading.Thread(target=loop.run)
    thread.start()
    engine.wait_submitted()
    now[0] = 5.0
    engine.step()
    engine.wait_submitted()
    for _ in range(6):
        engine.step()
    while not any(each.request_id == 3 and each.finish_reason for each in reports):
        threading.Event().wait(0.005)
    loop.stop()
    thread.join(10)
    assert late(2) in reports and {e.request_id for batch in engine.batches for e in batch.entries} == {1, 3}


@given(
    arrivals=st.lists(
        st.tuples(st.floats(0, 3), st.none() | st.floats(0.1, 3), st.none() | st.floats(0.1, 3)),
        min_size=1, max_size=30,
    )
)  # fmt: skip
def test_nobody_is_begun_who_is_late(arrivals: Sequence[tuple[float, float | None, float | None]]) -> None:
    it = scheduler(2, n_slots=30)
    coming = sorted(enumerate(arrivals), key=lambda pair: pair[1][0])
    now, ended = 0.0, dict[int, Progress]()
    due = {n: min(t + d for d in (first, whole, 1e9) if d is not None) for n, (t, first, whole) in coming}
    ends = {n: t + whole if whole is not None else 1e9 for n, (t, _, whole) in coming}
    while len(ended) < len(arrivals):
        while coming and coming[0][1][0] <= now:
            number, (time, first, whole) = coming.pop(0)
            it.add(
                Request(number, [0] * 4, SamplingParams(max_tokens=3), terms=Terms(first_token=first, timeout=whole)),
                time,
            )
        news = it.expire(now)
        begun = it.next_batch(now)
        if begun is not None:
            for entry in begun.entries:
                assert ends[entry.request_id] > now
                assert entry.position or due[entry.request_id] > now
        now += 0.2
        if begun is not None:
            news += it.complete(IterationResult(begun.iteration, [9] * len(begun.entries)))
        for each in news:
            if each.finish_reason is not None:
                ended[each.request_id] = each
                if each.error is not None:
                    assert now + 1e-9 >= (due if each.error == TOO_LATE else ends)[each.request_id]
        it.check_invariants()
    assert it.status().n_late == sum(each.error == TOO_LATE for each in ended.values())


def test_those_who_have_left_are_forgotten() -> None:
    deadlines = Deadlines(lambda request: 0.0)
    for number in range(10_000):
        each = request(number, timeout=86400.0)
        deadlines.add(each)
        deadlines.forget(number)
    assert len(deadlines._heap) < 200
