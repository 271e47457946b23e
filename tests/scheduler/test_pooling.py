"""Requests that want an embedding: one initiation, whole or in pieces, and an end with what was pooled."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orcaserve.core import Batch, FinishReason, InvalidRequest, IterationResult, Phase, Pooling, Progress, Request
from orcaserve.core import SamplingParams as Params
from orcaserve.scheduler import Scheduler
from orcaserve.scheduler.policies import POLICIES, PolicySettings, make_policy
from orcaserve.scheduler.prefix_cache import PrefixCache

LONGEST, PAGE = 48, 4


class Engine:
    """A scheduler, and workers that pool: an embedding is the name of its request, and the tokens that made it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.requests: dict[int, Request] = {}
        self.news: dict[int, list[Progress]] = {}
        self.fed: dict[int, list[int]] = {}
        self.in_flight: deque[Batch] = deque()

    def add(self, prompt: list[int], pooling: Pooling | None, max_tokens: int = 0) -> int:
        number = len(self.requests)
        request = Request(number, prompt, Params(max_tokens=max_tokens, pooling=pooling))
        self.scheduler.add(request, float(number))
        self.requests[number], self.news[number], self.fed[number] = request, [], []
        return number

    def run(self) -> None:
        for _ in range(10_000):
            while (batch := self.scheduler.next_batch()) is not None:
                self.in_flight.append(batch)
            if not self.in_flight:
                break
            self.complete()
        assert self.scheduler.status().n_live == 0 and self.scheduler.n_reserved == 0

    def complete(self) -> None:
        batch = self.in_flight.popleft()
        for request_id in batch.drops:
            self.fed[request_id] = []
        embeddings = {}
        for entry in batch.entries:
            request = self.requests[entry.request_id]
            if entry.phase is not Phase.INITIATION:
                continue
            assert entry.pooling is request.params.pooling
            self.fed[request.id] += entry.tokens
            if entry.pooling is not None and not entry.n_to_come:
                embeddings[request.id] = bytes([request.id, *self.fed[request.id]])
        result = IterationResult(batch.iteration, [0] * len(batch.entries), embeddings=embeddings)
        for each in self.scheduler.complete(result):
            self.news[each.request_id].append(each)
        self.scheduler.check_invariants()

    def check(self, number: int) -> None:
        request, news = self.requests[number], self.news[number]
        if request.params.pooling is None:
            assert all(each.embedding is None for each in news)
            assert len([each for each in news if each.token is not None]) == request.params.max_tokens
            return
        [end] = news
        assert end == Progress(number, None, FinishReason.LENGTH, embedding=bytes([number, *request.input_ids]))
        assert request.output == []


kinds = st.none() | st.sampled_from(Pooling)


@settings(max_examples=200)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    n_pages=st.integers(12, 40),
    n_workers=st.integers(1, 2),
    shortest_first=st.booleans(),
    requests=st.lists(st.tuples(st.integers(1, 16), st.integers(1, 6), kinds), min_size=1, max_size=8),
)
def test_each_ends_with_its_own_embedding(
    policy: str,
    n_pages: int,
    n_workers: int,
    shortest_first: bool,
    requests: list[tuple[int, int, Pooling | None]],
) -> None:
    """Under every policy, beside others that generate text; in pieces, held back, preempted."""
    made_of = PolicySettings(n_workers, LONGEST, None, shortest_first)
    engine = Engine(Scheduler(n_pages * PAGE, 4, n_workers, PAGE, make_policy(policy, made_of)))
    numbers = [
        engine.add(list(range(n_input)), pooling, max_tokens=0 if pooling else n_output)
        for n_input, n_output, pooling in requests
    ]
    engine.run()
    for number in numbers:
        engine.check(number)


def test_it_ends_with_its_initiation_and_holds_its_prompt_alone() -> None:
    engine = Engine(Scheduler(16, 4, page_size=PAGE))
    number = engine.add(list(range(16)), Pooling.MEAN)  # all slots there are
    later = engine.add([1], Pooling.LAST)
    batch = engine.scheduler.next_batch()
    assert batch is not None and [entry.request_id for entry in batch.entries] == [number]
    assert engine.scheduler.n_reserved == 16
    engine.in_flight.append(batch)
    engine.complete()
    engine.check(number)
    assert engine.scheduler.n_reserved == 0
    engine.run()
    engine.check(later)


def test_who_is_cancelled_or_fails_has_none() -> None:
    engine = Engine(Scheduler(64, 4, page_size=PAGE))
    gone, failed, good = (engine.add([i, i], Pooling.MEAN) for i in range(3))
    batch = engine.scheduler.next_batch()
    assert batch is not None
    assert engine.scheduler.cancel(gone) == []
    embeddings = {gone: b"x", failed: b"x", good: b"y"}
    news = engine.scheduler.complete(IterationResult(1, [0] * 3, {failed: "why"}, embeddings=embeddings))
    assert news == [
        Progress(gone, None, FinishReason.CANCELLED),
        Progress(failed, None, FinishReason.ERROR, "why"),
        Progress(good, None, FinishReason.LENGTH, embedding=b"y"),
    ]


def test_a_mean_takes_no_prefix_and_leaves_one() -> None:
    """What others have computed has keys and values, and no hidden states."""
    scheduler = Scheduler(256, 4, page_size=PAGE, prefixes=PrefixCache(PAGE, None))
    engine = Engine(scheduler)
    text = list(range(20))
    engine.add(text, Pooling.MEAN)
    engine.run()
    engine.add(text, Pooling.MEAN)
    engine.add(text, Pooling.LAST)
    engine.add(text, None, max_tokens=1)
    batch = scheduler.next_batch()
    assert batch is not None
    assert [entry.position for entry in batch.entries] == [0, 19, 19]


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(InvalidRequest, match="max_tokens must be 0 with pooling"):
        Params(max_tokens=1, pooling=Pooling.MEAN)
    with pytest.raises(InvalidRequest, match="pooling must be a Pooling"):
        Params(max_tokens=0, pooling="mean")  # type: ignore[arg-type]
