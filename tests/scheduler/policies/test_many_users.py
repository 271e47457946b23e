"""ManyUsers: plain Algorithm 1 when nothing is asked of it; pieces, fairness and background when something is."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.core import (
    USUAL,
    Batch,
    BatchEntry,
    IterationResult,
    Phase,
    Request,
    RequestState,
    SamplingParams,
    Terms,
)
from orcaserve.scheduler import Scheduler
from orcaserve.scheduler.iteration_bound import LEAST
from orcaserve.scheduler.policies import EvenBatches, PolicySettings, SchedulingPolicy, Stop, make_policy
from orcaserve.scheduler.prefix_cache import PrefixCache

PAGE = 4
LONGEST = 400
STOP = 1


def many_users(n_workers: int = 1, **settings: object) -> SchedulingPolicy:
    return make_policy("iteration-level", PolicySettings(n_workers, LONGEST, **settings))  # type: ignore[arg-type]


@dataclass
class Size:
    n_input: int
    n_output: int
    more: int = 0
    terms: Terms = USUAL


class Run:
    """A scheduler, and requests that end after n_output tokens. seconds: what an iteration takes, of its batch."""

    def __init__(
        self,
        policy: SchedulingPolicy,
        n_pages: int = 1000,
        max_bs: int = 4,
        n_workers: int = 1,
        seconds: Callable[[Batch], float] = lambda batch: 0.0,
    ) -> None:
        self.scheduler = Scheduler(n_pages * PAGE, max_bs, n_workers, PAGE, policy)
        self.seconds = seconds
        self.requests: dict[int, Request] = {}
        self.ends_after: dict[int, int] = {}
        self.in_flight: deque[Batch] = deque()
        self.batches: list[Batch] = []
        self.ended: dict[int, int] = {}  # request -> iteration

    def add(self, size: Size, number: int | None = None) -> Request:
        number = len(self.requests) if number is None else number
        params = SamplingParams(max_tokens=size.n_output + size.more)
        request = Request(number, [0] * size.n_input, params, frozenset({STOP}), terms=size.terms)
        self.scheduler.add(request, float(number))
        self.requests[number], self.ends_after[number] = request, size.n_output
        return request

    def next_batch(self) -> Batch | None:
        batch = self.scheduler.next_batch()
        if batch is not None:
            self.in_flight.append(batch)
            self.batches.append(batch)
        self.scheduler.check_invariants()
        return batch

    def complete(self) -> None:
        batch = self.in_flight.popleft()
        tokens = [
            STOP if len(self.requests[e.request_id].output) + 1 >= self.ends_after[e.request_id] else 0
            for e in batch.entries
        ]
        for news in self.scheduler.complete(IterationResult(batch.iteration, tokens, seconds=self.seconds(batch))):
            if news.finish_reason is not None:
                self.ended[news.request_id] = batch.iteration
        self.scheduler.check_invariants()

    def fill(self) -> None:
        while self.next_batch() is not None:
            pass

    def turn(self) -> None:
        self.fill()
        if self.in_flight:
            self.complete()

    def drain(self) -> None:
        for _ in range(20_000):
            self.fill()
            if not self.in_flight:
                break
            self.complete()
        assert len(self.ended) == len(self.requests), "some never ended"


def pieces(batch: Batch) -> dict[int, BatchEntry]:
    return {entry.request_id: entry for entry in batch.entries if entry.phase is Phase.INITIATION}


sizes = st.builds(Size, st.integers(1, 40), st.integers(1, 12), st.integers(0, 8))
arrivals = st.lists(st.tuples(sizes, st.integers(0, 3)), min_size=1, max_size=14)  # with turns before each


@given(
    arrivals=arrivals,
    n_pages=st.integers(15, 60),
    max_bs=st.integers(1, 5),
    n_workers=st.integers(1, 3),
    fairness=st.sampled_from(["none", "tokens"]),
    loose=st.booleans(),
    cancels=st.lists(st.integers(0, 40), max_size=4),
)
def test_with_nothing_asked_of_it_it_is_algorithm_one(
    arrivals: Sequence[tuple[Size, int]],
    n_pages: int,
    max_bs: int,
    n_workers: int,
    fairness: str,
    loose: bool,
    cancels: Sequence[int],
) -> None:
    """Batch for batch, and why nobody else is in them. One client is no reason to change the order, nor is a bound that
    no iteration comes to."""
    bound = {"batched_tokens": 10_000} if loose else {}
    policies = (EvenBatches(n_workers), many_users(n_workers, fairness=fairness, **bound))
    runs = [Run(policy, n_pages, max_bs, n_workers) for policy in policies]
    reasons: list[list[object]] = [[], []]
    for run, why in zip(runs, reasons, strict=True):
        rng = random.Random(1)
        for turn, (size, gap) in enumerate(arrivals):
            for _ in range(gap):
                if run.next_batch() is not None:
                    selection = run.scheduler.selection
                    why.append((selection.stop, selection.n_lacking, run.scheduler.n_reserved))
                elif run.in_flight:
                    run.complete()
            run.add(size)
            if turn in cancels:
                victim = rng.randrange(len(run.requests))
                run.scheduler.cancel(victim)
                run.ended.setdefault(victim, -1)
        run.drain()
    assert runs[0].batches == runs[1].batches
    assert reasons[0] == reasons[1] and runs[0].ended == runs[1].ended


class TestBound:
    def test_a_long_prompt_comes_in_pieces_beside_increments(self) -> None:
        run = Run(many_users(batched_tokens=10))
        run.add(Size(3, 20))
        run.turn()
        run.add(Size(20, 2))
        run.add(Size(5, 2))
        found = []
        for _ in range(4):
            batch = run.next_batch()
            assert batch is not None
            found.append([(e.request_id, len(e.tokens), e.n_to_come) for e in batch.entries])
            run.complete()
        assert found[:2] == [[(0, 1, 0), (1, 9, 11)], [(0, 1, 0), (1, 9, 2)]]
        assert found[2] == [(0, 1, 0), (1, 2, 0), (2, 5, 0)]
        assert found[3] == [(0, 1, 0), (1, 1, 0), (2, 1, 0)]

    def test_why_nobody_else(self) -> None:
        run = Run(many_users(batched_tokens=8))
        for _ in range(2):
            run.add(Size(8, 2))
        run.next_batch()
        assert run.scheduler.selection.stop is Stop.BOUND_REACHED
        assert run.scheduler.status().n_waiting_tokens == 8

    @given(
        arrivals=arrivals,
        n_pages=st.integers(15, 60),
        max_bs=st.integers(1, 5),
        n_workers=st.integers(1, 3),
        n_tokens=st.integers(0, 20),
    )
    def test_the_promise(
        self, arrivals: Sequence[tuple[Size, int]], n_pages: int, max_bs: int, n_workers: int, n_tokens: int
    ) -> None:
        """No iteration has more tokens; increments are never left out for it; nobody is fed while an earlier one that
        is not in flight lacks some; and with one worker the earlier one has been fed wholly, and has more tokens."""
        most = max_bs + n_tokens
        run = Run(many_users(n_workers, batched_tokens=most), n_pages, max_bs, n_workers)
        coming = deque(arrivals)
        fed: dict[int, int] = {}
        gap = 0
        for _ in range(20_000):
            if coming and gap >= coming[0][1]:
                run.add(coming.popleft()[0])
                gap = 0
            elif not coming and not run.in_flight and not run.scheduler.status().n_live:
                break
            gap += 1
            states = {i: request.state for i, request in run.requests.items()}
            batch = run.next_batch()
            if batch is None:
                if run.in_flight:
                    run.complete()
                continue
            assert batch.n_tokens <= most
            chosen = {entry.request_id for entry in batch.entries}
            if n_workers == 1:
                ready = [i for i, state in states.items() if state is RequestState.INCREMENT]
                assert set(ready) <= chosen, "an increment was left out"
            for number, piece in pieces(batch).items():
                fed[number] = fed.get(number, 0) + len(piece.tokens)
                for earlier in range(number):
                    if earlier in run.ended or states[earlier] is RequestState.RUNNING:
                        continue
                    assert fed.get(earlier, 0) == run.requests[earlier].n_input, "a later one was fed before"
            assert sum(bool(piece.n_to_come) for piece in pieces(batch).values()) <= 1
            if n_workers == 1:
                live = [r for i, r in run.requests.items() if i not in run.ended]
                outputs = [request.n_iterations for request in live]
                assert outputs == sorted(outputs, reverse=True)
        assert len(run.ended) == len(run.requests) == len(arrivals)
        assert fed == {i: request.n_input for i, request in run.requests.items()}


def machine(each: float, base: float = 0.005, fed: float = 0.0005) -> Callable[[Batch], float]:
    """Seconds of an iteration."""

    def seconds(batch: Batch) -> float:
        n_fed = sum(len(piece.tokens) for piece in pieces(batch).values())
        return base + fed * n_fed + each * (batch.n_tokens - n_fed)

    return seconds


class TestTarget:
    def test_pieces_are_as_large_as_the_target_allows(self) -> None:
        seconds = machine(0.0005)
        run = Run(many_users(target_itl=0.05), max_bs=16, n_pages=4000, seconds=seconds)
        for _ in range(8):
            run.add(Size(6, 300))
        for _ in range(60):
            run.turn()
            if len(run.batches) % 5 == 0 and len(run.requests) < 16:
                run.add(Size(350, 5))
        fed = [batch for batch in run.batches[20:] if pieces(batch)]
        took = [seconds(batch) for batch in fed]
        assert max(took) < 0.05 * 1.1
        whole = [t for batch, t in zip(fed, took, strict=True) if any(p.n_to_come for p in pieces(batch).values())]
        assert whole and min(whole[3:]) > 0.05 * 0.8, "a piece was smaller than it had to be"

    def test_a_target_that_cannot_be_met_stops_nobody(self) -> None:
        run = Run(many_users(target_itl=0.001), n_pages=4000, seconds=machine(0.0005))
        for _ in range(6):
            run.add(Size(100, 20))
        run.drain()
        assert all(sum(len(p.tokens) for p in pieces(batch).values()) <= 64 for batch in run.batches)
        later = [batch for batch in run.batches[10:] if pieces(batch)]
        assert all(next(iter(pieces(b).values())).n_to_come == 0 or len(next(iter(pieces(b).values())).tokens) >= LEAST
                   for b in later)  # fmt: skip

    def test_both_bounds_hold(self) -> None:
        seconds = machine(0.0005)
        run = Run(many_users(target_itl=10.0, batched_tokens=24), n_pages=4000, seconds=seconds)
        for _ in range(6):
            run.add(Size(100, 20))
        run.drain()
        assert max(batch.n_tokens for batch in run.batches) == 24

    def test_with_stages_each_has_its_share_of_the_time(self) -> None:
        seconds = machine(0.0005)
        run = Run(many_users(2, target_itl=0.1), n_pages=4000, n_workers=2, seconds=seconds)
        for _ in range(30):
            run.add(Size(300, 5))
        run.drain()
        assert max(seconds(batch) for batch in run.batches[20:]) < 0.05 * 1.1


BEHIND = Terms(background=True)


class TestBackground:
    @given(
        arrivals=st.lists(st.tuples(sizes, st.integers(0, 3), st.booleans()), min_size=1, max_size=16),
        n_pages=st.integers(15, 60),
        max_bs=st.integers(1, 5),
        n_tokens=st.none() | st.integers(0, 20),
        fairness=st.sampled_from(["none", "tokens"]),
    )
    def test_what_is_in_front_is_scheduled_as_if_nothing_were_behind(
        self,
        arrivals: Sequence[tuple[Size, int, bool]],
        n_pages: int,
        max_bs: int,
        n_tokens: int | None,
        fairness: str,
    ) -> None:
        """Two runs in step, with and without the background: in every turn the same entries of the others."""
        bound = None if n_tokens is None else max_bs + n_tokens

        def new() -> Run:
            return Run(many_users(batched_tokens=bound, fairness=fairness), n_pages, max_bs)

        both, front = new(), new()
        coming = deque(enumerate(arrivals))
        gap = 0
        for _ in range(20_000):
            if coming and gap >= coming[0][1][1]:
                number, (size, _, behind) = coming.popleft()
                both.add(Size(size.n_input, size.n_output, size.more, BEHIND if behind else Terms()), number)
                if not behind:
                    front.add(size, number)
                gap = 0
            elif not coming and not both.scheduler.status().n_live:
                break
            gap += 1
            with_it, without = both.next_batch(), front.next_batch()
            entries = [] if with_it is None else with_it.entries
            own = [entry for entry in entries if not both.requests[entry.request_id].terms.background]
            assert own == list(() if without is None else without.entries)
            waits = [r for r in both.requests.values() if r.state is RequestState.INITIATION and r.terms == Terms()]
            begun = {i for i in (pieces(with_it) if with_it else {}) if both.requests[i].terms.background}
            if waits:
                assert all(pieces(with_it)[i].position for i in begun), "one of the background was begun"  # type: ignore[arg-type]
            for run in (both, front):
                if run.in_flight:
                    run.complete()
        assert len(both.ended) == len(arrivals), "the background ends too"
        for number, request in both.requests.items():
            assert len(request.output) == both.ends_after[number]

    def test_for_slots_the_latest_starts_anew(self) -> None:
        run = Run(many_users(), n_pages=10)
        for _ in range(2):
            run.add(Size(8, 8, terms=BEHIND))  # 4 pages each
        run.turn()
        run.turn()
        run.add(Size(20, 4))  # 6 pages; 2 are free
        batch = run.next_batch()
        assert batch is not None and {e.request_id for e in batch.entries} == {0, 2} and batch.drops == (1,)
        assert [r.id for r in run.scheduler.selection.preempted] == [1]
        run.drain()
        again = next(e for b in run.batches[2:] for e in b.entries if e.request_id == 1 and e.phase is Phase.INITIATION)
        assert (len(again.tokens), again.n_output) == (10, 2)
        assert run.scheduler.status().n_preempted == 1

    def test_nobody_loses_slots_for_one_that_would_not_fit_all_the_same(self) -> None:
        run = Run(many_users(), n_pages=10)
        run.add(Size(16, 12))  # 7 pages, in front
        run.add(Size(4, 4, terms=BEHIND))
        run.turn()
        run.add(Size(20, 4))
        batch = run.next_batch()
        assert batch is not None and {e.request_id for e in batch.entries} == {0, 1}
        assert run.scheduler.selection.stop is Stop.SLOTS_LACK
        run.drain()
        assert run.scheduler.status().n_preempted == 0

    def test_none_is_begun_past_one_in_front_that_lacks_slots(self) -> None:
        run = Run(many_users(), n_pages=10)
        run.add(Size(16, 12))  # 7 pages
        run.turn()
        run.add(Size(20, 4))  # 6 pages
        run.add(Size(3, 1, terms=BEHIND))  # 1 page, and 3 are free
        batch = run.next_batch()
        assert batch is not None and [e.request_id for e in batch.entries] == [0]
        selection = run.scheduler.selection
        assert (selection.stop, selection.n_lacking) == (Stop.SLOTS_LACK, 3 * PAGE)
        run.drain()
        assert run.ended[1] < run.ended[2] or run.batches[run.ended[2] - 1].entries[0].request_id == 1

    def test_for_a_place_it_pauses_and_keeps_what_it_has(self) -> None:
        run = Run(many_users(), max_bs=2)
        for _ in range(2):
            run.add(Size(4, 6, terms=BEHIND))
        run.turn()
        run.add(Size(4, 2))
        run.add(Size(4, 2))
        for _ in range(2):
            batch = run.next_batch()
            assert batch is not None and {e.request_id for e in batch.entries} == {2, 3}
            run.complete()
        batch = run.next_batch()
        assert batch is not None and [(e.request_id, e.position) for e in batch.entries] == [(0, 4), (1, 4)]
        run.complete()
        run.drain()

    def test_nobody_loses_slots_for_one_that_shares_what_they_hold(self) -> None:
        """Blocks that only the background uses make no room for who would use them too."""
        scheduler = Scheduler(10 * PAGE, 4, 1, PAGE, many_users(), PrefixCache(PAGE))
        shared = list(range(100, 100 + 4 * PAGE))

        def add(number: int, prompt: Sequence[int], n_output: int, terms: Terms = USUAL) -> Request:
            request = Request(number, prompt, SamplingParams(max_tokens=n_output), terms=terms)
            scheduler.add(request, float(number))
            return request

        def turn() -> list[int]:
            batch = scheduler.next_batch()
            assert batch is not None
            scheduler.complete(IterationResult(batch.iteration, [7] * len(batch.entries)))
            scheduler.check_invariants()
            return [entry.request_id for entry in batch.entries]

        add(0, range(PAGE), 3 * PAGE)  # 4 pages, in front
        behind = add(1, [*shared, 1], 2 * PAGE - 1, BEHIND)  # 6 pages
        assert turn() == [0, 1]
        front = add(2, [*shared, 2], 4 * PAGE - 1)  # 8 pages, of which 4 would be shared: 10 with those of 0 and not 12
        assert turn() == [0, 1]
        assert scheduler.selection.stop is Stop.SLOTS_LACK and scheduler.status().n_preempted == 0
        while front.state is RequestState.INITIATION:
            turn()
        assert scheduler.status().n_preempted == 0 and behind.state is RequestState.FINISHED

    def test_nobody_loses_slots_before_all_whose_slots_it_takes_are_back(self) -> None:
        run = Run(many_users(2), n_pages=8, n_workers=2)
        for _ in range(2):
            run.add(Size(4, 12, terms=BEHIND))  # 4 pages each
        run.fill()
        run.complete()
        run.add(Size(20, 12))  # all slots there are
        assert run.next_batch() is None and run.scheduler.status().n_preempted == 0
        run.complete()
        batch = run.next_batch()
        assert batch is not None and [entry.request_id for entry in batch.entries] == [2]
        assert [r.id for r in run.scheduler.selection.preempted] == [1, 0]
        run.drain()

    @pytest.mark.parametrize("n_workers", [2, 3])
    def test_with_several_batches_in_flight_it_waits_for_no_more_than_those(self, n_workers: int) -> None:
        run = Run(many_users(n_workers), n_pages=8, n_workers=n_workers)
        for _ in range(4):
            run.add(Size(4, 4, terms=BEHIND))
        run.fill()
        front = run.add(Size(20, 12))  # all slots there are
        n = len(run.batches)
        while front.state is RequestState.INITIATION:
            assert run.in_flight
            run.complete()
            run.fill()
        began = next(i for i, batch in enumerate(run.batches) if front.id in pieces(batch))
        assert began == n, "another batch was handed out before"
        run.drain()

    def test_alone_all_of_it_runs_whatever_the_workers(self) -> None:
        run = Run(many_users(2), n_workers=2)
        for _ in range(6):
            run.add(Size(4, 30, terms=BEHIND))
        for _ in range(10):
            run.turn()
        assert sum(len(batch.entries) for batch in run.in_flight) + 3 >= 6
        run.drain()


class TestPriority:
    def test_lower_is_admitted_first_whatever_the_clients(self) -> None:
        for fairness in ("none", "tokens"):
            run = Run(many_users(fairness=fairness), max_bs=1)
            run.add(Size(4, 3))
            run.turn()
            for priority in (5, 0, -1, 0):
                run.add(Size(4, 1, terms=Terms(client=f"c{priority}", priority=priority)))
            run.drain()
            assert sorted(run.ended, key=run.ended.__getitem__) == [0, 3, 2, 4, 1]
