"""Scheduler and K/V manager side by side, with requests that share prefixes, down to what lies in every slot.

What is written to a slot is the whole text up to its token. So whoever reads a page that was given to somebody else,
that is not filled yet, that was written over or that belongs to another salt finds another text than its own. With a
window requests return pages on their way, and texts are longer than the region.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orcaserve.core import Batch, CannotFit, FinishReason, IterationResult, Request, SamplingParams, Terms
from orcaserve.core.window import window_for
from orcaserve.model.kv_manager import KVManager
from orcaserve.scheduler import Scheduler
from orcaserve.scheduler.policies import IterationLevelFCFS, PolicySettings, SchedulingPolicy, make_policy
from orcaserve.scheduler.policies.even_batches import EvenBatches
from orcaserve.scheduler.policies.overcommit import Overcommit
from orcaserve.scheduler.prefix_cache import PrefixCache

STOP = 0
LOST = "the tokens of this request were lost"


class Pieces(EvenBatches):
    """Feeds prompts in pieces of five tokens."""

    def piece(self, request: Request, n_left: int) -> int:
        return min(n_left, 5)


POLICIES = {
    "plain": lambda n: IterationLevelFCFS(),
    "even": EvenBatches,
    "pieces": Pieces,
    "overcommit": Overcommit,  # preempts
    "many users": lambda n: make_policy(
        "iteration-level", PolicySettings(n, 2**20, fairness="tokens", batched_tokens=11)
    ),
}


@dataclass
class Pages:
    """What a worker does with a batch, on texts in the place of keys and values."""

    n_slots: int
    page_size: int
    window: int | None = None
    slots: dict[tuple[int, int], tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kv = KVManager(self.n_slots, self.page_size, self.window)

    def run(self, batch: Batch, requests: dict[int, Request], refused: set[int]) -> dict[int, str]:
        """refused: entries that the worker does not run, by their place. Returns why some could not be run."""
        kv, failures = self.kv, {}
        for request_id in batch.drops:
            kv.drop(request_id)
        for block in batch.evicted:
            kv.evict(block)
        kept = {each.request_id: each for each in batch.kept}
        assert len(kept) == len(batch.kept), "a request has its pages kept once in a batch"
        ran = []
        for place, entry in enumerate(batch.entries):
            prefix, known = entry.prefix, True
            if prefix is not None:
                assert entry.position == len(prefix.tokens) < entry.position + len(entry.tokens)
                known = all(map(kv.has, prefix.blocks)) and (not prefix.n_copied or kv.has(prefix.copied))
            if place in refused or not known:
                failures[entry.request_id] = "bad" if place in refused else LOST
                continue
            if prefix is not None:
                copied = kv.begin(entry.request_id, prefix.blocks, prefix.copied, prefix.n_copied)
                if copied is not None:
                    for slot in range(self.page_size):
                        self.slots[copied[1], slot] = self.slots[copied[0], slot]
            assert entry.position == kv.n_tokens(entry.request_id), "keys and values would have a hole"
            kv.extend(entry.request_id, len(entry.tokens))
            ran.append(entry)
            if (full := kept.get(entry.request_id)) is not None:
                kv.keep(full.request_id, full.first_page, full.first_block, full.n)
        texts = {}
        written = set()
        for entry in ran:  # all is written before anybody reads
            request = requests[entry.request_id]
            text = texts[entry.request_id] = [*request.input_ids, *request.output][: entry.position + len(entry.tokens)]
            assert text[entry.position :] == list(entry.tokens)
            pages = kv.page_tables([entry.request_id])[0].tolist()
            for at in range(entry.position, len(text)):
                page, slot = pages[at // self.page_size], at % self.page_size
                assert (page, slot) not in written, "two requests write to one slot"
                written.add((page, slot))
                self.slots[page, slot] = request.terms.cache_salt, tuple(text[: at + 1])
        for entry in ran:
            salt, text, pages = (
                requests[entry.request_id].terms.cache_salt,
                texts[entry.request_id],
                kv.page_tables([entry.request_id])[0].tolist(),
            )
            assert all(0 <= page < kv.n_pages for page in pages), "a kernel would read beyond the region"
            first = 0 if self.window is None else max(entry.position - self.window + 1, 0)
            for at in range(first, len(text)):
                assert self.slots[pages[at // self.page_size], at % self.page_size] == (salt, tuple(text[: at + 1]))
        kv.leave_behind([entry.request_id for entry in ran])
        return failures


class Pair:
    def __init__(
        self, n_slots: int, max_bs: int, n_workers: int, page_size: int, policy: str, window: int | None = None
    ) -> None:
        made: SchedulingPolicy = POLICIES[policy](n_workers)
        window = window_for(window, n_slots, page_size)
        prefixes = PrefixCache(page_size)
        self.scheduler = Scheduler(n_slots, max_bs, n_workers, page_size, made, prefixes, window)
        self.n_slots, self.page_size, self.window = n_slots, page_size, window
        self.pages = Pages(n_slots, page_size, window)
        self.requests: dict[int, Request] = {}
        self.live: set[int] = set()
        self.in_flight: list[tuple[Batch, dict[int, str]]] = []
        self.n_shared = self.n_copied = self.n_together = self.n_longer = 0

    def add(self, request: Request) -> None:
        try:
            self.scheduler.add(request, float(request.id))
        except CannotFit:
            assert self.window is None
            return
        self.n_longer += request.max_tokens > self.n_slots
        self.requests[request.id] = request
        self.live.add(request.id)

    def hand_out(self, refused: set[int]) -> None:
        batch = self.scheduler.next_batch()
        if batch is None:
            return
        fresh = {block for kept in batch.kept for block in range(kept.first_block, kept.first_block + kept.n)}
        for entry in batch.entries:
            if entry.prefix is not None:
                self.n_shared += len(entry.prefix.blocks)
                self.n_copied += entry.prefix.n_copied
                self.n_together += len(fresh.intersection(entry.prefix.blocks))
        self.in_flight.append((batch, self.pages.run(batch, self.requests, refused)))
        status, kv = self.scheduler.status(), self.pages.kv
        assert kv.n_used * self.page_size <= status.n_reserved + status.n_kept <= self.n_slots

    def complete(self, token: int, failing: bool) -> None:
        batch, failures = self.in_flight.pop(0)
        tokens = [(token + entry.request_id) % 4 for entry in batch.entries]
        if failing:
            failures = {**failures, batch.entries[0].request_id: "its output is no number"}
        self.note(self.scheduler.complete(IterationResult(batch.iteration, tokens, failures)))

    def note(self, news: object) -> None:
        for each in news:  # type: ignore[attr-defined]
            if each.finish_reason is not None:
                self.live.remove(each.request_id)

    def abort(self) -> None:
        self.note(self.scheduler.abort("lost"))
        assert not self.live
        self.in_flight.clear()
        self.pages = Pages(self.n_slots, self.page_size, self.window)

    def drain(self) -> None:
        """Whatever the state, everyone who was admitted gets to the end."""
        while self.live:
            while len(self.in_flight) < self.scheduler.n_workers:
                before = len(self.in_flight)
                self.hand_out(set())
                if len(self.in_flight) == before:
                    break
            assert self.in_flight, "requests are live and nobody can run"
            self.complete(1, False)

    def check(self) -> None:
        self.scheduler.check_invariants()
        status = self.scheduler.status()
        assert 0 <= status.n_used <= status.n_reserved
        assert status.n_reserved + status.n_kept <= self.n_slots


def text_like(rng: random.Random, earlier: dict[int, Request], longest: int) -> list[int]:
    """Most often the beginning of a text that there was, and something else."""
    text: list[int] = []
    if earlier and rng.random() < 0.8:
        one = earlier[rng.choice(list(earlier))]
        text = [*one.input_ids, *one.output]
        text = text[: rng.randint(0, len(text))]
    text += [rng.randint(1, 3) for _ in range(rng.randint(1, 9))]
    return text[:longest]


class SharedPages(RuleBasedStateMachine):
    @initialize(
        room=st.integers(24, 120),
        max_bs=st.integers(1, 5),
        n_workers=st.integers(1, 3),
        page=st.sampled_from([1, 4, 8]),
        policy=st.sampled_from(sorted(POLICIES)),
        seed=st.integers(0, 2**32),
        window=st.none() | st.integers(1, 30),
    )
    def begin(
        self, room: int, max_bs: int, n_workers: int, page: int, policy: str, seed: int, window: int | None
    ) -> None:
        self.pair = Pair(room, max_bs, n_workers, page, policy, window)
        self.rng = random.Random(seed)
        self.n = 0

    @rule(
        n_new=st.integers(1, 12),
        salt=st.sampled_from(["", "", "a"]),
        scored=st.booleans(),
        carried=st.booleans(),
        client=st.sampled_from(["", "x", "y"]),
        background=st.booleans(),
    )
    def arrive(self, n_new: int, salt: str, scored: bool, carried: bool, client: str, background: bool) -> None:
        params = SamplingParams(max_tokens=n_new, prompt_logprobs=1 if scored and n_new == 3 else None)
        text = text_like(self.rng, self.pair.requests, 40)
        output = [2] if carried and n_new > 4 else []
        terms = Terms(client, background=background, cache_salt=salt)
        self.pair.add(Request(self.n, text, params, frozenset({STOP}), terms=terms, output=output))
        self.n += 1

    @rule(back=st.integers(1, 8))
    def cancel(self, back: int) -> None:
        self.pair.note(self.pair.scheduler.cancel(self.n - back))

    @rule(refused=st.sets(st.integers(0, 4), max_size=1), refuses=st.integers(0, 9))
    def schedule(self, refused: set[int], refuses: int) -> None:
        self.pair.hand_out(refused if refuses == 0 else set())

    @precondition(lambda self: self.pair.in_flight)
    @rule(token=st.integers(0, 3), failing=st.integers(0, 12))
    def complete(self, token: int, failing: int) -> None:
        self.pair.complete(token, failing == 0)

    @precondition(lambda self: len(self.pair.in_flight) > 1)
    @rule(really=st.integers(0, 5))
    def lose_the_engine(self, really: int) -> None:
        if really == 0:
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


TestSharedPages = SharedPages.TestCase
TestSharedPages.settings = settings(
    max_examples=150, stateful_step_count=50, suppress_health_check=[HealthCheck.too_slow]
)


def test_twenty_thousand_events() -> None:
    """Random settings, all verbs mixed: prefixes are shared in every way there is, and slots lack most of the time."""
    rng = random.Random(7)
    totals = dict.fromkeys(("shared", "copied", "together"), 0)
    for _ in range(20):
        page = rng.choice([1, 4, 8])
        pair = Pair(rng.randint(40, 300), rng.randint(1, 6), rng.randint(1, 3), page, rng.choice(sorted(POLICIES)))
        n = 0
        for _ in range(1000):
            dice = rng.random()
            if dice < 0.2 and len(pair.live) < 30:
                text = text_like(rng, {i: pair.requests[i] for i in range(max(n - 8, 0), n) if i in pair.requests}, 60)
                salt, client, background = rng.choice(["", "", "b"]), rng.choice("xyz"), rng.random() < 0.4
                terms = Terms(client, background=background, cache_salt=salt)
                params = SamplingParams(max_tokens=rng.randint(1, 12))
                pair.add(Request(n, text, params, frozenset({STOP}), terms=terms))
                n += 1
            elif dice < 0.23:
                pair.note(pair.scheduler.cancel(n - rng.randint(1, 20)))
            elif dice < 0.232:
                pair.abort()
            elif dice < 0.6 and pair.in_flight:
                pair.complete(rng.randint(0, 9), rng.random() < 0.01)
            else:
                pair.hand_out({rng.randrange(6)} if rng.random() < 0.01 else set())
            pair.check()
        pair.drain()
        pair.check()
        totals["shared"] += pair.n_shared
        totals["copied"] += pair.n_copied
        totals["together"] += pair.n_together
    assert min(totals["shared"], totals["copied"], totals["together"]) > 50, totals


def test_texts_longer_than_the_region() -> None:
    """Windows of all sizes, under every policy: who was admitted gets to the end, though its text never fits."""
    rng = random.Random(11)
    n_longer = n_shared = 0
    for case in range(40):
        page, window = rng.choice([1, 4, 8]), rng.randint(1, 24)
        room = rng.randint(window + 2 * page, 3 * window + 4 * page)
        policy = sorted(POLICIES)[case % len(POLICIES)]
        pair = Pair(room, rng.randint(1, 6), rng.randint(1, 3), page, policy, window)
        assert pair.window is not None
        n = 0
        for _ in range(400):
            dice = rng.random()
            if dice < 0.15 and len(pair.live) < 12:
                longest = rng.choice([8, 8, 100])
                text = text_like(rng, {i: pair.requests[i] for i in range(max(n - 8, 0), n)}, longest)
                text *= rng.choice([1, 1, longest // 8])
                terms = Terms(rng.choice("xyz"), background=rng.random() < 0.4)
                params = SamplingParams(max_tokens=rng.choice([3, 100]))
                pair.add(Request(n, text, params, frozenset({STOP} if rng.random() < 0.5 else ()), terms=terms))
                n += 1
            elif dice < 0.17:
                pair.note(pair.scheduler.cancel(n - rng.randint(1, 20)))
            elif dice < 0.172:
                pair.abort()
            elif dice < 0.6 and pair.in_flight:
                pair.complete(rng.randint(0, 9), rng.random() < 0.01)
            else:
                pair.hand_out({rng.randrange(6)} if rng.random() < 0.01 else set())
            pair.check()
        pair.drain()
        pair.check()
        assert pair.scheduler.status().n_reserved == pair.scheduler.status().n_used == 0
        n_longer += pair.n_longer
        n_shared += pair.n_shared
    assert n_longer > 500 and n_shared > 100, (n_longer, n_shared)


def test_reasons_are_told_apart() -> None:
    """One request that the worker refuses takes those with it that share what it would have made, and nobody else."""
    pair = Pair(200, 4, 2, 4, "plain")
    for i, salt in enumerate(["", "", "x"]):
        pair.add(Request(i, [1] * 9, SamplingParams(max_tokens=8), terms=Terms(cache_salt=salt)))
    pair.hand_out({0})
    batch, failures = pair.in_flight[0]
    assert failures == {0: "bad", 1: LOST}
    news = pair.scheduler.complete(IterationResult(batch.iteration, [1, 1, 1], failures))
    assert [each.finish_reason for each in news] == [FinishReason.ERROR, FinishReason.ERROR, None]
    pair.live -= {0, 1}
    pair.in_flight.clear()
    assert pair.scheduler.status().n_kept == 0, "nothing of it is found again"
    pair.add(Request(4, [1] * 9, SamplingParams(max_tokens=8)))
    pair.drain()
    assert pair.requests[4].output and pair.scheduler.status().n_cached == 8
