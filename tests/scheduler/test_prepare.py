"""Scheduler.prepare: what is done while the device works changes nothing that anybody is told."""

from __future__ import annotations

import random
from collections import deque

import pytest

from orcaserve.core import Batch, IterationResult, Progress, Request, SamplingParams, Terms
from orcaserve.scheduler import Scheduler
from orcaserve.scheduler.policies import PolicySettings, make_policy
from orcaserve.scheduler.prefix_cache import PrefixCache

PAGE = 4


def schedule(seed: int, n_workers: int, prepares: float) -> list[Batch | list[Progress]]:
    """All that is told of a run with everything on. prepares: the part of turns that have time for it."""
    rng, chance = random.Random(seed), random.Random(seed + 1)
    settings = PolicySettings(n_workers, 400, fairness="tokens", batched_tokens=40, target_itl=0.02)
    policy = make_policy("iteration-level", settings)
    scheduler = Scheduler(100 * PAGE, 8, n_workers, PAGE, policy, PrefixCache(PAGE))
    in_flight: deque[Batch] = deque()
    told: list[Batch | list[Progress]] = []
    now = 0.0
    for number in range(600):
        now += 0.01 * rng.random()
        if rng.random() < 0.2:
            prompt = [*range(rng.randint(1, 40)), *(rng.randrange(99) for _ in range(rng.randint(1, 30)))]
            terms = Terms(
                client=str(rng.randrange(3)),
                priority=rng.randrange(2),
                background=rng.random() < 0.2,
                timeout=rng.choice([None, 0.2, 2.0]),
            )
            scheduler.add(Request(number, prompt, SamplingParams(max_tokens=rng.randint(1, 40)), terms=terms), now)
        told.append(scheduler.expire(now))
        while (batch := scheduler.next_batch(now)) is not None:
            told.append(batch)
            in_flight.append(batch)
        if chance.random() < prepares:
            scheduler.prepare()
        if in_flight and rng.random() < 0.8:
            batch = in_flight.popleft()
            seconds = (0.003 + 0.0002 * batch.n_tokens) * rng.uniform(0.9, 1.1)
            tokens = [rng.randrange(99) for _ in batch.entries]
            told.append(scheduler.complete(IterationResult(batch.iteration, tokens, seconds=seconds)))
        scheduler.check_invariants()
    return told


@pytest.mark.parametrize("n_workers", [1, 3])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_changes_no_schedule(seed: int, n_workers: int) -> None:
    never = schedule(seed, n_workers, 0.0)
    assert schedule(seed, n_workers, 1.0) == schedule(seed, n_workers, 0.5) == never
    batches = [each for each in never if isinstance(each, Batch)]
    assert len(batches) > 100 and any(batch.kept for batch in batches)
    assert any(entry.n_to_come for batch in batches for entry in batch.entries)
