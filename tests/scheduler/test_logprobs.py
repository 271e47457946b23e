"""Log-probabilities reach the news that they belong to, under every policy; and requests that are only read."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orcaserve.core import (
    Batch,
    BatchEntry,
    FinishReason,
    IterationResult,
    Logprobs,
    Progress,
    Request,
    SamplingParams,
    TokenLogprobs,
)
from orcaserve.scheduler import Scheduler
from orcaserve.scheduler.policies import POLICIES, PolicySettings, make_policy

LONGEST, PAGE = 48, 4


def told_of(request_id: int, token: int) -> TokenLogprobs:
    """Of a token, as no other request or token is told."""
    return TokenLogprobs(-float(request_id), token, [token], [-0.5])


class Engine:
    """A scheduler, and what a worker would tell. The token at index i of request r is 1000 r + i, prompt included."""

    def __init__(self, policy: str, n_pages: int = 1000, n_workers: int = 1, shortest_first: bool = True) -> None:
        made_of = PolicySettings(n_workers, LONGEST, None, shortest_first)
        self.scheduler = Scheduler(n_pages * PAGE, 4, n_workers, PAGE, make_policy(policy, made_of))
        self.requests: dict[int, Request] = {}
        self.news: dict[int, list[Progress]] = {}
        self.n_top: dict[int, int | None] = {}  # of requests whose initiation is complete
        self.in_flight: deque[Batch] = deque()

    def add(self, n_input: int, output: Sequence[int] = (), **params: object) -> int:
        number = len(self.requests)
        prompt = [1000 * number + i for i in range(n_input)]
        request = Request(number, prompt, SamplingParams(**params), output=list(output))  # type: ignore[arg-type]
        self.scheduler.add(request, float(number))
        self.requests[number], self.news[number] = request, []
        return number

    def run(self) -> None:
        """Until all have ended."""
        for _ in range(10_000):
            while (batch := self.scheduler.next_batch()) is not None:
                self.in_flight.append(batch)
            if not self.in_flight:
                break
            self.complete()
        assert self.scheduler.status().n_live == 0

    def complete(self) -> None:
        batch = self.in_flight.popleft()
        tokens, logprobs = [], {}
        for entry in batch.entries:
            tokens.append(1000 * entry.request_id + entry.position + len(entry.tokens))
            own = self._tell(entry, tokens[-1])
            if own is not None:
                logprobs[entry.request_id] = own
        result = IterationResult(batch.iteration, tokens, logprobs=logprobs)
        for each in self.scheduler.complete(result):
            self.news[each.request_id].append(each)
        self.scheduler.check_invariants()

    def _tell(self, entry: BatchEntry, token: int) -> Logprobs | None:
        request_id = entry.request_id
        if entry.params is not None:
            self.n_top[request_id] = entry.params.logprobs
        prompt: list[TokenLogprobs] = []
        if entry.scoring is not None:
            followers = list(entry.tokens[1:])
            assert (entry.scoring.follower is not None) == bool(entry.n_to_come)
            if entry.scoring.follower is not None:
                followers.append(entry.scoring.follower)
            prompt = [told_of(request_id, follower) for follower in followers]
        chosen = None
        if not entry.n_to_come and self.n_top[request_id] is not None:
            chosen = told_of(request_id, token)
        return Logprobs(chosen, prompt) if chosen is not None or prompt else None

    def check(self, number: int) -> None:
        """Every token is told of once, and the prompt once, with the first news."""
        request, news = self.requests[number], self.news[number]
        params = request.params
        tokens = [each.token for each in news if each.token is not None]
        assert tokens == request.output[request.n_carried :]
        for each in news:
            told = None if each.logprobs is None else each.logprobs.token
            expected = params.logprobs is not None and each.token is not None
            assert told == (told_of(number, each.token) if expected and each.token is not None else None)
        prompts = [list(each.logprobs.prompt) for each in news if each.logprobs is not None and each.logprobs.prompt]
        expected_prompt = [told_of(number, token) for token in request.input_ids[1:]]
        if params.prompt_logprobs is None or request.n_carried or not expected_prompt:
            assert prompts == []
        else:
            assert prompts == [expected_prompt]
            assert news[0].logprobs is not None and news[0].logprobs.prompt


wishes = st.sampled_from([{}, {"logprobs": 0}, {"prompt_logprobs": 2}, {"logprobs": 3, "prompt_logprobs": 3}])


@settings(max_examples=300)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    n_pages=st.integers(12, 40),
    n_workers=st.integers(1, 2),
    shortest_first=st.booleans(),
    requests=st.lists(st.tuples(st.integers(1, 16), st.integers(0, 10), wishes, st.booleans()), min_size=1, max_size=8),
)
def test_every_token_is_told_of_once(
    policy: str,
    n_pages: int,
    n_workers: int,
    shortest_first: bool,
    requests: list[tuple[int, int, dict[str, int], bool]],
) -> None:
    """Whether prompts come in pieces, tokens are held back, requests are preempted, or go on after a lost engine."""
    engine = Engine(policy, n_pages, n_workers, shortest_first)
    for n_input, max_tokens, wish, goes_on in requests:
        carried = [1000 * len(engine.requests) + n_input] if goes_on and max_tokens > 1 else []
        engine.add(n_input, carried, max_tokens=max_tokens, **wish)
    engine.run()
    for number in engine.requests:
        engine.check(number)
        assert engine.news[number][-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_request_that_is_only_read(policy: str) -> None:
    engine = Engine(policy)
    read = engine.add(5, max_tokens=0, logprobs=1, prompt_logprobs=1)
    plain = engine.add(1, max_tokens=0)
    other = engine.add(3, max_tokens=2)
    engine.run()
    told = Logprobs(None, [told_of(read, token) for token in range(1, 5)])
    assert engine.news[read] == [Progress(read, None, FinishReason.LENGTH, logprobs=told)]
    assert engine.news[plain] == [Progress(plain, None, FinishReason.LENGTH)]
    assert [each.token for each in engine.news[other]] == [2003, 2004]


def test_a_request_that_is_only_read_reserves_its_prompt() -> None:
    for policy in ("iteration-level", "cellular", "orca-pow2", "orca-oracle", "overcommit"):
        engine = Engine(policy, n_pages=2)
        engine.add(2 * PAGE, max_tokens=0)
        assert engine.scheduler.next_batch() is not None
        assert engine.scheduler.n_reserved == 2 * PAGE


def test_its_end_is_its_length_whatever_the_model_says() -> None:
    scheduler = Scheduler(64, 4)
    scheduler.add(Request(1, [1, 2], SamplingParams(max_tokens=0), frozenset({7})), 0.0)
    batch = scheduler.next_batch()
    assert batch is not None
    (end,) = scheduler.complete(IterationResult(batch.iteration, [7]))
    assert end == Progress(1, None, FinishReason.LENGTH)


def test_one_that_fails_or_leaves_is_told_nothing() -> None:
    engine = Engine("iteration-level")
    for _ in range(3):
        engine.add(3, max_tokens=4, logprobs=1, prompt_logprobs=1)
    batch = engine.scheduler.next_batch()
    assert batch is not None
    engine.scheduler.cancel(1)
    told = {number: Logprobs(told_of(number, 5), [told_of(number, 6)]) for number in range(3)}
    news = engine.scheduler.complete(IterationResult(batch.iteration, [5, 5, 5], {0: "broken"}, logprobs=told))
    assert [each.finish_reason for each in news] == [FinishReason.ERROR, FinishReason.CANCELLED, None]
    assert [each.logprobs for each in news] == [None, None, told[2]]


def test_nothing_is_kept_of_those_who_left_amid_their_pieces() -> None:
    engine = Engine("request-level")
    engine.add(2, max_tokens=3, prompt_logprobs=0)
    engine.add(9, max_tokens=3, prompt_logprobs=0)
    for _ in range(3):
        batch = engine.scheduler.next_batch()
        assert batch is not None
        engine.in_flight.append(batch)
        engine.complete()
    engine.scheduler.abort("gone")
    assert not engine.scheduler._logprobs._prompts and not engine.scheduler._logprobs._held
