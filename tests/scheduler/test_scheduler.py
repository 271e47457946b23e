"""The scheduler's verbs one by one, and the paper's examples."""

from __future__ import annotations

from typing import Any

import pytest

from orcaserve.core import (
    Batch,
    CannotFit,
    EngineError,
    EngineStatus,
    FinishReason,
    IterationResult,
    Phase,
    Progress,
    Request,
    RequestState,
    SamplingParams,
)
from orcaserve.scheduler import IterationLevelFCFS, RequestPool, Scheduler, SlotLedger
from orcaserve.scheduler.prefix_cache import PrefixCache

TOKEN = 7


def ids(batch: Batch | None) -> list[int] | None:
    return None if batch is None else [entry.request_id for entry in batch.entries]


def back(batch: Batch, **changes: Any) -> IterationResult:
    return IterationResult(**{"iteration": batch.iteration, "tokens": [TOKEN] * len(batch.entries), **changes})


def run(scheduler: Scheduler, **changes: Any) -> list[Progress]:
    """One iteration of a scheduler with one worker."""
    batch = scheduler.next_batch()
    assert batch is not None
    return scheduler.complete(back(batch, **changes))


def finish_order(scheduler: Scheduler) -> list[int]:
    order = []
    while (batch := scheduler.next_batch()) is not None:
        order += [news.request_id for news in scheduler.complete(back(batch)) if news.finish_reason is not None]
    return order


def test_a_request_of_an_earlier_engine_is_initiated_with_its_output() -> None:
    scheduler = Scheduler(n_slots=20, max_bs=4)
    carried = Request(1, [5, 6], SamplingParams(max_tokens=5), seed=3, output=[7, 8, 9])
    scheduler.add(carried, now=0.0)
    scheduler.add(Request(2, [5], SamplingParams(max_tokens=3)), now=0.0)
    batch = scheduler.next_batch()
    assert batch is not None
    entry = batch.entries[0]
    assert (entry.phase, list(entry.tokens), entry.position, entry.n_output) == (
        Phase.INITIATION, [5, 6, 7, 8, 9], 0, 3,
    )  # fmt: skip
    assert entry.seed == 3 and batch.entries[1].n_output == 0
    assert scheduler.status().n_reserved == 2 + 5 + 1 + 3, "no more than when it was new"
    assert scheduler.complete(back(batch)) == [Progress(1, TOKEN), Progress(2, TOKEN)]
    scheduler.check_invariants()  # it has run no more iterations here than the later one
    batch = scheduler.next_batch()
    assert batch is not None and (batch.entries[0].position, list(batch.entries[0].tokens)) == (5, [TOKEN])
    assert scheduler.complete(back(batch))[0] == Progress(1, TOKEN, FinishReason.LENGTH)


class TestThePaper:
    def test_three_workers_keep_three_batches_in_flight(self, new_request: Any) -> None:
        """Section 4.2, Figure 8: AB, CD, EF are injected, then the scheduler waits for AB."""
        scheduler = Scheduler(n_slots=1000, max_bs=2, n_workers=3)
        for i in range(7):
            scheduler.add(new_request(i), now=0.0)
        first, second, third = (scheduler.next_batch() for _ in range(3))
        assert first is not None
        assert [ids(first), ids(second), ids(third)] == [[0, 1], [2, 3], [4, 5]]
        assert scheduler.next_batch() is None and scheduler.n_scheduled == 3
        scheduler.complete(back(first))
        assert ids(scheduler.next_batch()) == [0, 1]  # AB again, ahead of the newcomer 6
        assert scheduler.next_batch() is None

    def test_a_place_that_came_free_goes_to_the_next_in_line(self, new_request: Any) -> None:
        scheduler = Scheduler(n_slots=1000, max_bs=2, n_workers=2)
        for i, n in enumerate([1, 5, 5, 5, 5]):
            scheduler.add(new_request(i, max_tokens=n), now=0.0)
        first, second = scheduler.next_batch(), scheduler.next_batch()
        assert first is not None and second is not None
        scheduler.complete(back(first))
        assert ids(scheduler.next_batch()) == [1, 4]
        scheduler.complete(back(second))
        assert ids(scheduler.next_batch()) == [2, 3]

    def test_phases_mix_and_carry_what_the_worker_needs(self, new_request: Any) -> None:
        """Figure 5's kinds of entry: increments at different token index beside initiations of different length."""
        scheduler = Scheduler(n_slots=1000, max_bs=4)
        x1, x2, x3, x4 = (new_request(i, n_input=n, stop=3) for i, n in enumerate([2, 1, 2, 3], start=1))
        scheduler.add(x1, 0.0)
        run(scheduler)
        scheduler.add(x2, 0.0)
        run(scheduler)
        scheduler.add(x3, 0.0)
        scheduler.add(x4, 0.0)
        batch = scheduler.next_batch()
        assert batch is not None and ids(batch) == [1, 2, 3, 4]
        assert [entry.position for entry in batch.entries] == [3, 1, 0, 0]
        assert [len(entry.tokens) for entry in batch.entries] == [1, 1, 2, 3]
        assert batch.n_tokens == 7
        one, _, three, _ = batch.entries
        assert (one.phase, list(one.tokens), one.params) == (Phase.INCREMENT, [TOKEN], None)
        assert (three.phase, list(three.tokens)) == (Phase.INITIATION, [0, 1])
        assert three.params is x3.params and three.stop_ids == {3}

    def test_finish_order_shows_that_every_iteration_is_scheduled_anew(self, new_request: Any) -> None:
        """A client who asks for little is behind a long request with max_bs 1, and overtakes it with max_bs 2."""
        for max_bs, expected in ((1, [1, 2]), (2, [2, 1])):
            scheduler = Scheduler(n_slots=1000, max_bs=max_bs)
            scheduler.add(new_request(1, max_tokens=8), now=0.0)
            run(scheduler)  # the long one is under way when the short one comes
            scheduler.add(new_request(2, max_tokens=2), now=1.0)
            assert finish_order(scheduler) == expected

    def test_a_request_takes_as_many_iterations_as_tokens(self, new_request: Any) -> None:
        scheduler = Scheduler(n_slots=100, max_bs=1)
        scheduler.add(new_request(1, n_input=5, max_tokens=3), now=0.0)
        news = [run(scheduler)[0] for _ in range(3)]
        assert [n.token for n in news] == [TOKEN] * 3
        assert [n.finish_reason for n in news] == [None, None, FinishReason.LENGTH]
        assert scheduler.next_batch() is None


class TestSlots:
    def test_break_never_skip(self, new_request: Any) -> None:
        """The second does not fit, so the third, which would, waits behind it; increments ahead of it go on."""
        scheduler = Scheduler(n_slots=10, max_bs=8)
        scheduler.add(new_request(1, n_input=2, max_tokens=4), 0.0)
        scheduler.add(new_request(2, n_input=2, max_tokens=4), 0.0)
        scheduler.add(new_request(3, n_input=1, max_tokens=1), 0.0)
        for _ in range(4):
            batch = scheduler.next_batch()
            assert batch is not None and ids(batch) == [1]
            scheduler.complete(back(batch))
        assert ids(scheduler.next_batch()) == [2, 3]

    def test_slots_are_free_in_the_iteration_that_follows_and_the_drop_goes_first(self, new_request: Any) -> None:
        scheduler = Scheduler(n_slots=6, max_bs=2)
        scheduler.add(new_request(1, n_input=5, max_tokens=1), 0.0)
        scheduler.add(new_request(2, n_input=5, max_tokens=1), 0.0)
        assert scheduler.status().n_reserved == 0
        run(scheduler)
        batch = scheduler.next_batch()
        assert batch is not None
        assert (ids(batch), batch.drops) == ([2], (1,))
        scheduler.complete(back(batch))
        scheduler.add(new_request(3), 0.0)
        batch = scheduler.next_batch()
        assert batch is not None and batch.drops == (2,)  # each is dropped once

    def test_what_can_never_fit_is_refused_with_the_numbers(self, new_request: Any) -> None:
        scheduler = Scheduler(n_slots=70, max_bs=2, page_size=16)
        scheduler.add(new_request(1, n_input=60, max_tokens=4), 0.0)  # 64 slots: all whole pages
        with pytest.raises(CannotFit) as refusal:
            scheduler.add(new_request(2, n_input=60, max_tokens=5), 0.0)
        assert refusal.value.field == "max_tokens"
        assert refusal.value.message == "60 input tokens + max_tokens 5 need 65 K/V slots, but there are 64"
        assert scheduler.status().n_live == 1

    def test_reservations_are_rounded_to_pages(self, new_request: Any) -> None:
        scheduler = Scheduler(n_slots=32, max_bs=4, page_size=16)
        for i in range(3):
            scheduler.add(new_request(i, n_input=1, max_tokens=1), 0.0)
        assert ids(scheduler.next_batch()) == [0, 1]
        assert scheduler.status().n_reserved == 32

    def test_a_policy_decides_how_much_is_reserved(self, new_request: Any) -> None:
        class Doubled(IterationLevelFCFS):
            def reservation(self, request: Any) -> int:
                return 2 * int(request.max_tokens)

        scheduler = Scheduler(n_slots=20, max_bs=4, policy=Doubled())
        with pytest.raises(CannotFit, match="need 22 K/V slots"):
            scheduler.add(new_request(0, n_input=10, max_tokens=1), 0.0)
        scheduler.add(new_request(1, n_input=4, max_tokens=4), 0.0)
        scheduler.add(new_request(2, n_input=4, max_tokens=4), 0.0)
        assert ids(scheduler.next_batch()) == [1]
        assert scheduler.status().n_reserved == 16


class TestAdd:
    def test_nothing_to_do_is_none_and_not_an_empty_batch(self, new_request: Any) -> None:
        scheduler = Scheduler(n_slots=10, max_bs=2, n_workers=2)
        assert scheduler.next_batch() is None
        scheduler.add(new_request(1), 0.0)
        batch = scheduler.next_batch()
        assert batch is not None
        assert scheduler.next_batch() is None  # its only request is in flight
        scheduler.complete(back(batch))
        assert ids(scheduler.next_batch()) == [1]

    def test_a_live_id_cannot_be_used_again_until_it_ended(self, new_request: Any) -> None:
        scheduler = Scheduler(n_slots=10, max_bs=2)
        scheduler.add(new_request(1, max_tokens=1), 0.0)
        with pytest.raises(ValueError, match="already"):
            scheduler.add(new_request(1), 0.0)
        run(scheduler)
        scheduler.add(new_request(1), 0.0)
        batch = scheduler.next_batch()
        assert batch is not None and batch.drops == (1,) and ids(batch) == [1]

    def test_arrival_is_noted(self, new_request: Any) -> None:
        scheduler, request = Scheduler(n_slots=10, max_bs=2), new_request(1)
        scheduler.add(request, now=12.5)
        assert request.arrival == 12.5


class TestEnds:
    def test_stop_id_ends_a_request_and_is_reported(self, new_request: Any) -> None:
        scheduler = Scheduler(n_slots=10, max_bs=2)
        scheduler.add(new_request(1, stop=TOKEN), 0.0)
        assert run(scheduler) == [Progress(1, TOKEN, FinishReason.STOP)]

    def test_failure_ends_that_request_alone(self, new_request: Any) -> None:
        scheduler = Scheduler(n_slots=100, max_bs=2)
        one, two = new_request(1), new_request(2)
        scheduler.add(one, 0.0)
        scheduler.add(two, 0.0)
        news = run(scheduler, failures={1: "its logits are not finite"})
        assert news == [Progress(1, None, FinishReason.ERROR, "its logits are not finite"), Progress(2, TOKEN)]
        assert one.output == [] and one.state is RequestState.FINISHED
        batch = scheduler.next_batch()
        assert batch is not None and batch.drops == (1,) and ids(batch) == [2]
        assert scheduler.status().n_reserved == two.max_tokens

    def test_cancel_before_the_first_batch_needs_no_drop(self, new_request: Any) -> None:
        scheduler = Scheduler(n_slots=100, max_bs=2)
        scheduler.add(new_request(1), 0.0)
        scheduler.add(new_request(2), 0.0)
        assert scheduler.cancel(1) == [Progress(1, None, FinishReason.CANCELLED)]
        batch = scheduler.next_batch()
        assert batch is not None and ids(batch) == [2] and batch.drops == ()

    def test_cancel_between_iterations_is_at_once(self, new_request: Any) -> None:
        scheduler = Scheduler(n_slots=100, max_bs=2)
        scheduler.add(new_request(1), 0.0)
        run(scheduler)
        assert scheduler.cancel(1) == [Progress(1, None, FinishReason.CANCELLED)]
        assert scheduler.status() == EngineStatus(iteration=1, n_running=1, batch_tokens=2, batch_initiations=1)
        scheduler.add(new_request(2), 0.0)
        batch = scheduler.next_batch()
        assert batch is not None and batch.drops == (1,)

    def test_cancel_while_running_ends_when_the_batch_returns(self, new_request: Any) -> None:
        scheduler = Scheduler(n_slots=100, max_bs=2)
        scheduler.add(new_request(1), 0.0)
        scheduler.add(new_request(2), 0.0)
        batch = scheduler.next_batch()
        assert batch is not None
        assert scheduler.cancel(1) == []
        assert scheduler.cancel(1) == []  # again: nothing changes
        assert scheduler.status().n_reserved == 12  # the worker still writes there
        news = scheduler.complete(back(batch, failures={1: "too late to matter"}))
        assert news == [Progress(1, None, FinishReason.CANCELLED), Progress(2, TOKEN)]
        assert scheduler.status().n_reserved == 6

    @pytest.mark.parametrize("leaves", [True, False])
    def test_what_one_that_failed_has_computed_is_shared_with_nobody(self, leaves: bool) -> None:
        """Also if its client has left meanwhile, and it ends as cancelled."""
        scheduler = Scheduler(100, 2, 1, 4, prefixes=PrefixCache(4))
        scheduler.add(Request(1, range(9), SamplingParams(max_tokens=5)), 0.0)
        batch = scheduler.next_batch()
        assert batch is not None and batch.kept[0].n == 2
        if leaves:
            scheduler.cancel(1)
        scheduler.complete(back(batch, failures={1: "its logits are not finite"}))
        assert scheduler.status().n_kept == 0
        scheduler.add(Request(2, range(9), SamplingParams(max_tokens=5)), 0.0)
        batch = scheduler.next_batch()
        assert batch is not None and batch.entries[0].position == 0 and sorted(batch.evicted) == [1, 2]
        scheduler.check_invariants()

    def test_no_more_of_a_prompt_is_told_as_cached_than_it_has(self) -> None:
        """Of one that goes on after another engine, its output so far may be there too."""
        scheduler = Scheduler(100, 2, 1, 4, prefixes=PrefixCache(4))
        for i in (1, 2):
            scheduler.add(Request(i, range(6), SamplingParams(max_tokens=9), output=[7] * 6), 0.0)
        one, two = run(scheduler)
        assert one.began is not None and one.began.n_cached == 0
        assert two.began is not None and two.began.n_cached == 6

    def test_cancel_of_what_is_not_live_is_nothing(self, new_request: Any) -> None:
        scheduler = Scheduler(n_slots=100, max_bs=2)
        assert scheduler.cancel(1) == []
        scheduler.add(new_request(1, max_tokens=1), 0.0)
        run(scheduler)
        assert scheduler.cancel(1) == []

    @pytest.mark.parametrize(("message", "reason"), [("gone", FinishReason.ERROR), (None, FinishReason.CANCELLED)])
    def test_abort_ends_everything(self, new_request: Any, message: str | None, reason: FinishReason) -> None:
        scheduler = Scheduler(n_slots=100, max_bs=1, n_workers=2)
        for i in range(4):
            scheduler.add(new_request(i), 0.0)
        first = scheduler.next_batch()
        assert first is not None
        scheduler.complete(back(first))
        lost = scheduler.next_batch(), scheduler.next_batch()
        assert (ids(lost[0]), ids(lost[1])) == ([0], [1])
        scheduler.cancel(1)
        assert scheduler.abort(message) == [
            Progress(0, None, reason, message),
            Progress(1, None, FinishReason.CANCELLED),
            Progress(2, None, reason, message),
            Progress(3, None, reason, message),
        ]
        scheduler.check_invariants()
        status = scheduler.status()
        assert (status.n_live, status.n_reserved, status.n_used, scheduler.n_scheduled) == (0, 0, 0, 0)
        assert lost[0] is not None
        with pytest.raises(EngineError):
            scheduler.complete(back(lost[0]))  # a straggler
        scheduler.add(new_request(9), 0.0)
        batch = scheduler.next_batch()
        assert batch is not None and batch.drops == () and batch.iteration > lost[0].iteration + 1


class TestComplete:
    def test_results_come_in_the_order_of_batches(self, new_request: Any) -> None:
        scheduler = Scheduler(n_slots=100, max_bs=1, n_workers=2)
        scheduler.add(new_request(1), 0.0)
        scheduler.add(new_request(2), 0.0)
        first, second = scheduler.next_batch(), scheduler.next_batch()
        assert first is not None and second is not None
        with pytest.raises(EngineError, match="returned iteration 2; due was iteration 1"):
            scheduler.complete(back(second))
        assert [n.request_id for n in scheduler.complete(back(first))] == [1]
        assert [n.request_id for n in scheduler.complete(back(second))] == [2]
        with pytest.raises(EngineError, match="due was none"):
            scheduler.complete(back(second))

    @pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3]])
    def test_one_token_for_each_request(self, new_request: Any, tokens: list[int]) -> None:
        scheduler = Scheduler(n_slots=100, max_bs=2)
        scheduler.add(new_request(1), 0.0)
        scheduler.add(new_request(2), 0.0)
        with pytest.raises(EngineError, match=f"{len(tokens)} tokens for 2 requests"):
            run(scheduler, tokens=tokens)


class TestStatus:
    def test_counts(self, new_request: Any) -> None:
        scheduler = Scheduler(n_slots=100, max_bs=2, page_size=16)
        assert scheduler.status() == EngineStatus()
        for i, n_input in enumerate([3, 20, 4]):
            scheduler.add(new_request(i, n_input=n_input, max_tokens=2), 0.0)
        assert scheduler.status() == EngineStatus(n_waiting=3, n_live=3, n_waiting_tokens=27)
        batch = scheduler.next_batch()
        assert batch is not None
        assert scheduler.status() == EngineStatus(n_waiting=1, n_live=3, n_reserved=48, n_waiting_tokens=4)
        scheduler.complete(back(batch))
        assert scheduler.status() == EngineStatus(
            iteration=1, n_running=2, n_waiting=1, n_live=3, n_reserved=48, n_used=23, batch_tokens=23,
            batch_initiations=2, n_waiting_tokens=4,
        )  # fmt: skip
        run(scheduler)
        assert scheduler.status() == EngineStatus(
            iteration=2, n_running=2, n_waiting=1, n_live=1, batch_tokens=2, n_waiting_tokens=4
        )  # fmt: skip

    def test_invariants_are_really_checked(self, new_request: Any) -> None:
        def fresh() -> Scheduler:
            scheduler = Scheduler(n_slots=100, max_bs=1)
            for i in (1, 2):
                scheduler.add(new_request(i), 0.0)
            run(scheduler)
            scheduler.check_invariants()
            return scheduler

        for spoil in (
            lambda s: s._ledger.reserve(Request(99, [0], SamplingParams()), 1),
            lambda s: setattr(s._ledger, "n_used", 1),
            lambda s: setattr(s._pool[1], "state", RequestState.RUNNING),
            lambda s: setattr(s._pool[2], "cancelled", True),
            lambda s: s._pool[2].output.extend([1, 2]),
            lambda s: s._drops.append(1),
        ):
            scheduler = fresh()
            spoil(scheduler)
            with pytest.raises(AssertionError):
                scheduler.check_invariants()


def test_a_choice_looks_at_no_more_of_the_queue_than_it_takes(new_request: Any) -> None:
    """Cost per call must not grow with the number that wait, for want of a place or for want of slots."""

    class CountingPool(RequestPool):
        looked_at = 0

        def ready(self) -> Any:
            for request in super().ready():
                self.looked_at += 1
                yield request

    for n_slots, taken in ((10**6, 4), (15, 2)):
        pool, ledger = CountingPool(), SlotLedger(n_slots)
        for i in range(1000):
            pool.add(new_request(i))
        assert len(IterationLevelFCFS().select(pool, ledger, max_bs=4).requests) == taken
        assert pool.looked_at == taken + 1
