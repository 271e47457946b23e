"""The scheduler against Algorithm 1, transcribed once more as plainly as it can be, and against a worker's memory.

Hypothesis looks for the shortest sequence of verbs that tells them apart; a seeded driver does 100,000 events.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orcaserve.core import (
    Batch,
    CannotFit,
    FinishReason,
    IterationResult,
    Progress,
    Request,
    SamplingParams,
)
from orcaserve.core.window import window_for
from orcaserve.scheduler import Scheduler

STOP_TOKEN = 0


@dataclass
class Item:
    """A request as the model sees it. carried: tokens of `out` that an earlier engine has put out."""

    id: int
    n_input: int
    max_new: int
    min_new: int
    state: str = "INITIATION"
    out: list[int] = field(default_factory=list)
    cancelled: bool = False
    carried: int = 0
    done: int = 0  # tokens in their slots
    held: int = 0  # pages set aside
    pieces: int = 0

    def __post_init__(self) -> None:
        self.out = [1] * self.carried

    @property
    def n_run(self) -> int:
        return len(self.out) - self.carried

    def ending(self) -> FinishReason | None:
        if self.out[-1] == STOP_TOKEN and len(self.out) - 1 >= self.min_new:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.out) == self.max_new else None


@dataclass
class AlgorithmOne:
    """The paper's Algorithm 1 on plain lists, slots in pages, plus cancellation and failures."""

    n_slots: int
    max_bs: int
    n_workers: int
    page_size: int
    window: int | None = None
    pool: list[Item] = field(default_factory=list)
    scheduled: list[list[Item]] = field(default_factory=list)
    n_rsrv: int = 0  # pages
    drops: list[int] = field(default_factory=list)  # ended, and the workers do not know yet

    def pages(self, n_tokens: int) -> int:
        pages, rest = divmod(n_tokens, self.page_size)
        return pages + (1 if rest else 0)

    def touched(self, n_tokens: int) -> int:
        """By so many tokens, the first of which is the last of its page."""
        return 1 + self.pages(n_tokens - 1)

    def need(self, item: Item) -> int:
        all_of_it = self.pages(item.n_input + item.max_new)
        if self.window is None:
            return all_of_it
        most = min(self.touched(2 * self.window - 1), self.n_slots // self.page_size)
        initiation = min(self.pages(item.n_input + len(item.out)), most)
        return min(all_of_it, max(initiation, self.touched(self.window)))

    def gone(self, item: Item) -> int:
        """Pages that the token after those that are done does not read."""
        return 0 if self.window is None else max(item.done - self.window + 1, 0) // self.page_size

    def fits_at_all(self, item: Item) -> bool:
        return self.window is not None or self.need(item) <= self.n_slots // self.page_size

    def tokens(self, item: Item) -> int:
        """Of its next iteration."""
        return min(item.n_input + len(item.out) - item.done, (self.gone(item) + item.held) * self.page_size - item.done)

    def schedule(self) -> tuple[list[Item], list[int]] | None:
        if len(self.scheduled) == self.n_workers:
            return None
        batch: list[Item] = []
        for item in [item for item in self.pool if item.state != "RUNNING"]:
            if len(batch) == self.max_bs:
                break
            if item.state == "INITIATION":
                if self.n_rsrv + self.need(item) > self.n_slots // self.page_size:
                    break
                item.held = self.need(item)
                self.n_rsrv += item.held
            batch.append(item)
        if not batch:
            return None
        for item in batch:
            item.state = "RUNNING"
        self.scheduled.append(batch)
        drops, self.drops = self.drops, []
        return batch, drops

    def returned(self, tokens: list[int], failures: dict[int, str]) -> list[Progress]:
        news = []
        for item, token in zip(self.scheduled.pop(0), tokens, strict=True):
            item.state = "INCREMENT"
            item.done += self.tokens(item)
            is_fed = item.done == item.n_input + len(item.out)
            if self.window is not None and is_fed and item.held > self.touched(self.window):
                self.n_rsrv -= item.held - self.touched(self.window)
                item.held = self.touched(self.window)
            if item.cancelled:
                news.append(self.leave(item, Progress(item.id, None, FinishReason.CANCELLED)))
            elif item.id in failures:
                news.append(self.leave(item, Progress(item.id, None, FinishReason.ERROR, failures[item.id])))
            elif not is_fed:
                item.pieces += 1
            else:
                item.out.append(token)
                if (reason := item.ending()) is None:
                    news.append(Progress(item.id, token))
                else:
                    news.append(self.leave(item, Progress(item.id, token, reason)))
        return news

    def cancel(self, item_id: int) -> Progress | None:
        for item in self.pool:
            if item.id == item_id:
                item.cancelled = True
                if item.state != "RUNNING":
                    return self.leave(item, Progress(item.id, None, FinishReason.CANCELLED))
        return None

    def abort(self, message: str) -> list[Progress]:
        news = [
            Progress(item.id, None, FinishReason.CANCELLED)
            if item.cancelled
            else Progress(item.id, None, FinishReason.ERROR, message)
            for item in self.pool
        ]
        self.pool, self.scheduled, self.drops, self.n_rsrv = [], [], [], 0
        return news

    def leave(self, item: Item, news: Progress) -> Progress:
        if item.state != "INITIATION":
            self.n_rsrv -= item.held
            self.drops.append(item.id)
        self.pool.remove(item)
        return news


@dataclass
class WorkerMemory:
    """What the K/V region of a worker goes through: it obeys, and complains."""

    n_pages: int
    page_size: int
    window: int | None
    pages: dict[int, int] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)

    def run(self, batch: Batch) -> None:
        for request_id in batch.drops:
            del self.pages[request_id], self.tokens[request_id]  # KeyError: dropped twice, or never here
        for entry in batch.entries:
            if entry.position == 0:
                assert entry.request_id not in self.pages, "a second initiation"
                self.tokens[entry.request_id] = 0
            assert entry.position == self.tokens[entry.request_id], "K/V would have a hole"
            self.tokens[entry.request_id] += len(entry.tokens)
            first = 0 if self.window is None else max(entry.position - self.window + 1, 0) // self.page_size
            self.pages[entry.request_id] = -(-self.tokens[entry.request_id] // self.page_size) - first
        assert sum(self.pages.values()) <= self.n_pages, "memory was given to a newcomer before it was free"
        for entry in batch.entries:
            if self.window is not None:
                end = self.tokens[entry.request_id]
                self.pages[entry.request_id] = -(-end // self.page_size) - (
                    max(end - self.window + 1, 0) // self.page_size
                )


class Pair:
    """The scheduler and the model, driven together and compared after every verb."""

    def __init__(self, n_slots: int, max_bs: int, n_workers: int, page_size: int, window: int | None = None) -> None:
        window = window_for(window, n_slots, page_size)
        self.scheduler = Scheduler(n_slots, max_bs, n_workers, page_size, window=window)
        self.model = AlgorithmOne(n_slots, max_bs, n_workers, page_size, window)
        self.memory = WorkerMemory(n_slots // page_size, page_size, window)
        self.in_flight: list[Batch] = []
        self.max_bs = max_bs
        self.n_added = 0
        self.ended: dict[int, FinishReason] = {}

    def add(self, n_input: int, max_new: int, min_new: int, carried: int = 0) -> None:
        item = Item(self.n_added, n_input, max_new, min(min_new, max_new), carried=min(carried, max_new - 1))
        params = SamplingParams(max_tokens=max_new, min_tokens=item.min_new)
        request = Request(item.id, [1] * n_input, params, frozenset({STOP_TOKEN}), output=[1] * item.carried)
        if self.model.fits_at_all(item):
            self.scheduler.add(request, now=float(item.id))
            self.model.pool.append(item)
            self.n_added += 1
        else:
            with pytest.raises(CannotFit):
                self.scheduler.add(request, now=float(item.id))

    def cancel(self, request_id: int) -> None:
        expected = self.model.cancel(request_id)
        news = self.scheduler.cancel(request_id)
        assert news == ([] if expected is None else [expected])
        self.note(news)

    def next_batch(self) -> None:
        batch, expected = self.scheduler.next_batch(), self.model.schedule()
        if expected is None:
            assert batch is None
            return
        assert batch is not None
        assert [entry.request_id for entry in batch.entries] == [item.id for item in expected[0]]
        assert [len(entry.tokens) for entry in batch.entries] == [self.model.tokens(item) for item in expected[0]]
        assert list(batch.drops) == expected[1]
        assert 1 <= len(batch.entries) <= self.max_bs
        self.memory.run(batch)
        self.in_flight.append(batch)

    def complete(self, tokens: list[int], failing: set[int]) -> None:
        """tokens: at least one per entry. failing: places in the batch."""
        batch = self.in_flight.pop(0)
        tokens = tokens[: len(batch.entries)]
        failures = {entry.request_id: "bad" for place, entry in enumerate(batch.entries) if place in failing}
        news = self.scheduler.complete(IterationResult(batch.iteration, tokens, failures))
        assert news == self.model.returned(tokens, failures)
        self.note(news)

    def abort(self) -> None:
        news = self.scheduler.abort("lost")
        assert news == self.model.abort("lost")
        self.note(news)
        self.in_flight.clear()
        self.memory.pages.clear()
        self.memory.tokens.clear()

    def note(self, news: list[Progress]) -> None:
        for each in news:
            assert each.request_id not in self.ended, "news of a request that has ended"
            if each.finish_reason is not None:
                self.ended[each.request_id] = each.finish_reason

    def drain(self) -> None:
        """Whatever the state, everyone gets to the end: no deadlock."""
        while self.model.pool:
            for _ in range(self.model.n_workers):
                self.next_batch()
            assert self.in_flight, "requests are live and nobody can run"
            self.complete([1] * self.max_bs, set())

    def check(self) -> None:
        self.scheduler.check_invariants()
        status, pool = self.scheduler.status(), self.model.pool
        assert status.n_live == len(pool) == self.n_added - len(self.ended)
        assert status.n_reserved == self.model.n_rsrv * self.model.page_size <= self.model.n_slots
        page = self.model.page_size
        assert status.n_reserved == sum(item.held for item in pool if item.state != "INITIATION") * page
        assert status.n_used == sum(item.done - self.model.gone(item) * page for item in pool)
        assert all(item.done == item.n_input + len(item.out) - 1 for item in pool if item.n_run)
        assert status.n_waiting == sum(item.state == "INITIATION" for item in pool)
        assert self.scheduler.n_scheduled == len(self.in_flight) <= self.model.n_workers
        ids = [entry.request_id for batch in self.in_flight for entry in batch.entries]
        assert len(ids) == len(set(ids))
        iterations = [item.n_run + item.pieces for item in pool]
        assert iterations == sorted(iterations, reverse=True), "a later request has run more iterations"


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        room=st.integers(16, 120),
        max_bs=st.integers(1, 4),
        n_workers=st.integers(1, 4),
        page=st.sampled_from([1, 4, 16]),
        window=st.none() | st.integers(1, 20),
    )
    def begin(self, room: int, max_bs: int, n_workers: int, page: int, window: int | None) -> None:
        self.pair = Pair(room, max_bs, n_workers, page, window)

    @rule(n_input=st.integers(1, 40), max_new=st.integers(1, 8), min_new=st.integers(0, 3), carried=st.integers(0, 4))
    def arrive(self, n_input: int, max_new: int, min_new: int, carried: int) -> None:
        self.pair.add(n_input, max_new, min_new, carried)

    @rule(back=st.integers(-1, 12))
    def cancel(self, back: int) -> None:
        self.pair.cancel(self.pair.n_added - 1 - back)  # live, ended, or unknown

    @rule()
    def schedule(self) -> None:
        self.pair.next_batch()

    @precondition(lambda self: self.pair.in_flight)
    @rule(tokens=st.lists(st.integers(0, 3), min_size=4, max_size=4), failing=st.sets(st.integers(0, 3), max_size=1))
    def complete(self, tokens: list[int], failing: set[int]) -> None:
        self.pair.complete(tokens, failing)

    @precondition(lambda self: len(self.pair.in_flight) > 1)
    @rule()
    def lose_the_engine(self) -> None:
        self.pair.abort()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "pair"):
            self.pair.check()

    def teardown(self) -> None:
        if hasattr(self, "pair"):
            self.pair.drain()
            self.pair.check()
            assert self.pair.scheduler.status().n_reserved == 0


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=150, stateful_step_count=50, suppress_health_check=[HealthCheck.too_slow]
)

N_EVENTS = 100_000
EVENTS_PER_SETTING = 5_000


def test_a_hundred_thousand_events() -> None:
    """Twenty random settings, some short of slots and some of places, with all verbs mixed."""
    rng = random.Random(2022)
    n_events = n_ended = 0
    reasons: set[FinishReason] = set()
    in_flight_peak = 0
    while n_events < N_EVENTS:
        page = rng.choice([1, 16])
        window = rng.choice([None, rng.randint(2, 40)])
        pair = Pair(rng.randint(48, 900), rng.randint(1, 8), rng.randint(1, 4), page, window)
        for _ in range(EVENTS_PER_SETTING):
            dice = rng.random()
            if dice < 0.16 and len(pair.model.pool) < 60:
                pair.add(rng.randint(1, 64), rng.randint(1, 12), rng.randint(0, 2))
            elif dice < 0.20:
                pair.cancel(pair.n_added - rng.randint(0, 60))
            elif dice < 0.2005:
                pair.abort()
            elif dice < 0.6 and pair.in_flight:
                failing = {rng.randrange(8)} if rng.random() < 0.02 else set()
                pair.complete([rng.randint(0, 9) for _ in range(8)], failing)
            else:
                pair.next_batch()
                in_flight_peak = max(in_flight_peak, len(pair.in_flight))
            pair.check()
            n_events += 1
        pair.drain()
        pair.check()
        assert pair.scheduler.status().n_reserved == 0 and pair.scheduler.status().n_live == 0
        n_ended += len(pair.ended)
        reasons |= set(pair.ended.values())
    assert n_ended > N_EVENTS // 20 and reasons == set(FinishReason) and in_flight_peak == 4
