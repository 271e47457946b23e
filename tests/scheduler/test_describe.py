"""What an operator is told of live requests, and why they wait."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from orcaserve.core import IterationResult, LiveRequest, LiveState, Request, SamplingParams, Terms
from orcaserve.core.watching import MOST_DESCRIBED
from orcaserve.scheduler import Scheduler
from orcaserve.scheduler.policies import IterationLevelFCFS, PolicySettings, Selection, make_policy
from orcaserve.scheduler.policies.base import Stop


def told(scheduler: Scheduler, now: float = 0.0) -> list[LiveRequest]:
    live = scheduler.describe(now)
    assert live.n_left_out == 0
    return list(live.requests)


def test_one_in_its_initiation_one_in_its_increment_and_those_that_wait(new_request: Any) -> None:
    scheduler = Scheduler(n_slots=64, max_bs=2)
    for i in (1, 2, 3, 4):
        scheduler.add(new_request(i, n_input=10, max_tokens=5), now=float(i))
    scheduler.next_batch()
    one, two, three, four = told(scheduler, now=10.0)
    assert one == LiveRequest(1, LiveState.INITIATION, 9.0, 10, 0, 15, 0)
    assert two == LiveRequest(2, LiveState.INITIATION, 8.0, 10, 0, 15, 0)
    assert three == LiveRequest(3, LiveState.WAITING, 7.0, 10, 0, why_waiting="the batch is full (max_bs 2)")
    assert four.why_waiting == "1 request came before it; the batch is full (max_bs 2)"
    scheduler.complete(IterationResult(1, [7, 7]))
    scheduler.next_batch()
    assert told(scheduler)[0] == LiveRequest(1, LiveState.INCREMENT, 0.0, 10, 1, 15, 10)


def test_slots_that_lack(new_request: Any) -> None:
    scheduler = Scheduler(n_slots=2048, max_bs=8, page_size=16)
    scheduler.add(new_request(1, n_input=1500, max_tokens=36), 0.0)
    for i in (2, 3, 4):
        scheduler.add(new_request(i, n_input=1000, max_tokens=30), 0.0)
    scheduler.next_batch()
    assert [each.why_waiting for each in told(scheduler)] == [
        "",
        "it needs 1,040 slots and 512 are free",
        "1 request came before it; the next one needs 1,040 slots and 512 are free",
        "2 requests came before it; the next one needs 1,040 slots and 512 are free",
    ]


def test_whose_turn_it_is_is_not_always_who_came_first() -> None:
    scheduler = Scheduler(64, 1, 1, 1, make_policy("iteration-level", PolicySettings(1, 64, fairness="tokens")))
    terms = [Terms(), Terms(background=True), Terms(priority=1), Terms(), Terms(client="new")]
    for i, own in enumerate(terms):
        scheduler.add(Request(i, [5, 6], SamplingParams(max_tokens=4), terms=own), 0.0)
    scheduler.next_batch()
    full = "the batch is full (max_bs 1)"
    assert [each.why_waiting for each in told(scheduler)] == [
        "",
        f"another one comes first; {full}",
        f"1 request came before it; {full}",
        f"2 requests came before it; {full}",
        full,
    ]


def test_one_that_has_only_just_come(new_request: Any) -> None:
    scheduler = Scheduler(n_slots=64, max_bs=8)
    scheduler.add(new_request(1), 0.0)
    scheduler.next_batch()
    scheduler.add(new_request(2), 0.0)
    assert told(scheduler)[1].why_waiting.startswith("it has only just come")


@pytest.mark.parametrize(
    ("policy", "words"),
    [("request-level", "a whole batch has to end first"), ("cellular", "others need another computation first")],
)
def test_other_policies(new_request: Any, policy: str, words: str) -> None:
    scheduler = Scheduler(256, 8, 1, 1, make_policy(policy, PolicySettings(1, 64, None, False)))
    scheduler.add(new_request(1, n_input=3), 0.0)
    scheduler.next_batch()
    scheduler.add(new_request(2, n_input=5), 0.0)
    scheduler.complete(IterationResult(1, [7]))
    scheduler.next_batch()
    assert {each.state for each in told(scheduler)} >= {LiveState.WAITING} or policy == "cellular"
    assert words in {each.why_waiting for each in told(scheduler)}


def test_one_that_is_held_back(new_request: Any) -> None:
    """It is computed on, in a batch: nothing keeps it waiting but the others."""
    scheduler = Scheduler(256, 8, 1, 1, make_policy("request-level", PolicySettings(1, 64, None, False)))
    scheduler.add(new_request(1, max_tokens=1), 0.0)
    scheduler.add(new_request(2, max_tokens=9), 0.0)
    scheduler.next_batch()
    scheduler.complete(IterationResult(1, [7, 7]))
    assert told(scheduler)[0].why_waiting == "it has ended, and is answered when all of its batch have"
    scheduler.next_batch()
    assert told(scheduler)[0].state is LiveState.INCREMENT


def test_one_that_was_preempted_says_so(new_request: Any) -> None:
    scheduler = Scheduler(8, 4, 1, 1, make_policy("overcommit", PolicySettings(1, 8, None, True)))
    for i in (1, 2):
        scheduler.add(new_request(i, n_input=2, max_tokens=6), 0.0)
    number = 0
    while "starts anew" not in (why := told(scheduler)[1].why_waiting):
        number += 1
        batch = scheduler.next_batch()
        assert batch is not None and number < 10
        if "starts anew" in (why := told(scheduler)[1].why_waiting):
            break
        scheduler.complete(IterationResult(number, [7] * len(batch.entries)))
    assert why.startswith("it lost its slots to another one and starts anew; ")
    assert told(scheduler)[1].state is LiveState.WAITING


class Later(Enum):
    """A reason that nobody has heard of."""

    QUOTA_USED_UP = "quota"


class Refusing(IterationLevelFCFS):
    stop: Any = Later.QUOTA_USED_UP

    def select(self, *args: Any) -> Selection:
        selection = super().select(*args)
        selection.stop = self.stop
        del selection.requests[1:]
        return selection


def test_a_reason_that_is_new_reads_as_its_name(new_request: Any) -> None:
    scheduler = Scheduler(64, 1, policy=Refusing())
    scheduler.add(new_request(1), 0.0)
    scheduler.add(new_request(2), 0.0)
    scheduler.next_batch()
    assert told(scheduler)[1].why_waiting == "the batch was closed: quota used up"


@pytest.mark.parametrize("stop", Stop)
def test_each_reason_there_is_has_words(stop: Stop) -> None:
    from orcaserve.scheduler.describe import _why
    from orcaserve.scheduler.slot_ledger import SlotLedger

    assert not _why(Selection([], stop), SlotLedger(64), 4).startswith("the batch was closed"), "say it in describe.py"


def test_of_very_many_those_that_run_and_the_earliest(new_request: Any) -> None:
    scheduler = Scheduler(2**20, 3)
    for i in range(MOST_DESCRIBED + 500):
        scheduler.add(new_request(i), 0.0)
    scheduler.next_batch()
    live = scheduler.describe(0.0)
    assert [each.id for each in live.requests] == list(range(MOST_DESCRIBED)) and live.n_left_out == 500
    assert [each.state for each in live.requests[:4]] == [LiveState.INITIATION] * 3 + [LiveState.WAITING]
