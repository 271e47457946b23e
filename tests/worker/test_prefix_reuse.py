"""Prefix reuse down to the model: a request's output is the same to the bit with it and without, and nobody else's.

Scheduler and worker as the engine drives them, one batch after another, so that a test says who is there when.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from orcaserve.config import EngineConfig, KVConfig, ModelConfig, SchedulerConfig
from orcaserve.core import Batch, BatchEntry, FinishReason, Kept, Phase, Prefix, Request, SamplingParams, Terms
from orcaserve.scheduler import RequestPool, Scheduler
from orcaserve.scheduler.policies import SchedulingPolicy
from orcaserve.scheduler.policies.even_batches import EvenBatches
from orcaserve.scheduler.policies.overcommit import Overcommit
from orcaserve.scheduler.prefix_cache import PrefixCache
from orcaserve.worker.worker import Worker

PAGE = 16
FORMS = {
    "float32": ("cpu", "float32", "none"),
    "bfloat16": ("cpu", "bfloat16", "none"),
    "int8": ("cpu", "int8", "int8"),
    "reference": ("reference", "float32", "none"),
}
rng = random.Random(3)
SYSTEM = [rng.randrange(3, 250) for _ in range(100)]
LONG = [rng.randrange(3, 250) for _ in range(1200)]  # goes through the layers in two pieces


class Pieces(EvenBatches):
    def piece(self, request: Request, n_left: int) -> int:
        return min(n_left, 45)

    def check(self, pool: RequestPool) -> None:
        """Who has a shorter prompt is through sooner."""


@dataclass
class Told:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt: list[float] = field(default_factory=list)
    n_cached: int = -1
    end: FinishReason | None = None


class Rig:
    def __init__(
        self, model: Path, form: str, shares: bool, n_slots: int = 8192, policy: SchedulingPolicy | None = None
    ) -> None:
        device, kv, quantization = FORMS[form]
        config = EngineConfig(
            ModelConfig(model, "tiny", device=device, quantization=quantization, threads=2),  # type: ignore[arg-type]
            KVConfig(n_slots=n_slots, dtype=kv),  # type: ignore[arg-type]
            SchedulerConfig(16),
        )
        self.worker = Worker.load(config)
        self.scheduler = Scheduler(
            n_slots, 16, 1, PAGE, policy or EvenBatches(1), PrefixCache(PAGE) if shares else None
        )
        self.told: dict[int, Told] = {}

    def add(
        self, id: int, prompt: Sequence[int], n: int = 8, salt: str = "", output: Sequence[int] = (), **params: object
    ) -> None:
        settings = SamplingParams(max_tokens=n, logprobs=1, **{"temperature": 0.8, **params})  # type: ignore[arg-type]
        request = Request(id, list(prompt), settings, seed=id, terms=Terms(cache_salt=salt), output=list(output))
        self.scheduler.add(request, 0.0)
        self.told[id] = Told()

    def step(self) -> Batch | None:
        batch = self.scheduler.next_batch()
        if batch is None:
            return None
        for news in self.scheduler.complete(self.worker.run(batch)):
            told = self.told[news.request_id]
            assert news.error is None, news.error
            if news.token is not None:
                told.tokens.append(news.token)
            if news.began is not None:
                told.n_cached = news.began.n_cached
            if news.logprobs is not None:
                if news.logprobs.token is not None:
                    told.logprobs.append(news.logprobs.token.logprob)
                if news.logprobs.prompt:
                    told.prompt += [each.logprob for each in news.logprobs.prompt]
            told.end = news.finish_reason
        self.scheduler.check_invariants()
        return batch

    def run(self) -> None:
        while self.step() is not None:
            pass

    def outputs(self) -> dict[int, tuple[list[int], list[float], list[float]]]:
        return {id: (told.tokens, told.logprobs, told.prompt) for id, told in self.told.items()}


def conversations(rig: Rig) -> None:
    """Together, one after the other, with turns that begin with the answers before, inside of pages and at ends."""
    for i in range(5):
        rig.add(i, SYSTEM + [10 + i] * (1 + 7 * i))
    rig.add(5, SYSTEM[:48])  # ends where a page ends
    rig.add(6, SYSTEM[:48])
    rig.add(7, SYSTEM[:90], salt="other")
    rig.run()
    for i in range(5):
        rig.add(10 + i, SYSTEM + [10 + i] * (1 + 7 * i) + rig.told[i].tokens + [40 + i] * 9, n=20)
    rig.add(17, [*SYSTEM[:55], 9, 9, 9], repetition_penalty=1.7)
    rig.add(18, [*SYSTEM[:90], 8], prompt_logprobs=0)
    rig.step()
    rig.add(19, SYSTEM[:99], salt="other", presence_penalty=0.9)
    rig.run()
    rig.add(20, LONG)
    rig.add(21, LONG[:1100] + [5] * 60)
    rig.add(22, LONG[:700])
    rig.add(23, LONG[:1199], n=1)
    rig.run()


@pytest.mark.parametrize("form", FORMS)
def test_outputs_are_those_without_reuse(tiny_model: Path, form: str) -> None:
    alone, sharing = Rig(tiny_model, form, False), Rig(tiny_model, form, True)
    conversations(alone)
    conversations(sharing)
    if form == "reference":  # PyTorch rounds a row by how many there are beside it
        for id, (tokens, logprobs, prompt) in alone.outputs().items():
            other = sharing.outputs()[id]
            assert other[0] == tokens and np.allclose(other[1], logprobs, atol=1e-4)
            assert np.allclose(other[2], prompt, atol=1e-4)
    else:
        assert sharing.outputs() == alone.outputs()
    assert {told.n_cached for told in alone.told.values()} == {0}
    cached = {id: told.n_cached for id, told in sharing.told.items()}
    assert cached[0] == 0 and cached[1] == cached[2] == 96, "who comes with the first one shares what it makes"
    assert cached[5] == cached[6] == 32, "the last token of a prompt is computed"
    assert cached[7] == 0 and cached[18] == 0
    for i in range(5):  # full pages of prompt and answer, but for its last token; or what is alike in somebody else's
        assert cached[10 + i] == max((len(SYSTEM) + (1 + 7 * i) + 7) // PAGE * PAGE, len(SYSTEM))
    assert cached[17] == 55
    assert 80 <= cached[19] < 99
    assert cached[21] == 1088 and cached[22] == 688 and cached[23] == 1184


@pytest.mark.parametrize("form", ["float32", "int8"])
@pytest.mark.parametrize("policy", ["pieces", "overcommit"])
def test_in_pieces_and_after_preemption(tiny_model: Path, form: str, policy: str) -> None:
    def make() -> SchedulingPolicy:
        return Pieces(1) if policy == "pieces" else Overcommit(1)

    n_slots = 2048 if policy == "pieces" else 512
    alone, sharing = (Rig(tiny_model, form, shares, n_slots, make()) for shares in (False, True))
    for rig in (alone, sharing):
        for i in range(6):
            rig.add(i, SYSTEM[: 60 + 8 * i] + [20 + i] * 5, n=60)
        for _ in range(4):
            rig.step()
        for i in range(6, 9):
            rig.add(i, SYSTEM + [20 + i] * 5, n=60)
        rig.run()
    assert sharing.outputs() == alone.outputs()
    assert sharing.scheduler.status().n_cached > 0
    if policy == "overcommit":
        assert alone.scheduler.status().n_recomputed > sharing.scheduler.status().n_recomputed > 0


def test_with_few_slots_prefixes_go_and_requests_do_not_wait_longer(tiny_model: Path) -> None:
    alone, sharing = (Rig(tiny_model, "float32", shares, 256) for shares in (False, True))
    for rig in (alone, sharing):
        for i in range(30):
            rig.add(i, SYSTEM[: 20 + 5 * (i % 7)] + [i] * 20, n=5 + i % 9)
        rig.run()
    assert sharing.outputs() == alone.outputs()
    status = sharing.scheduler.status()
    assert status.n_cached > 400 and status.n_kept <= 256 and status.iteration < alone.scheduler.status().iteration


def test_goes_on_in_a_new_engine(tiny_model: Path) -> None:
    whole = Rig(tiny_model, "int8", True)
    whole.add(1, SYSTEM, n=20)
    whole.run()
    new = Rig(tiny_model, "int8", True)
    new.add(0, SYSTEM)  # is there before
    new.run()
    new.add(1, SYSTEM, n=20, output=whole.told[1].tokens[:9])
    new.run()
    assert whole.told[1].tokens[:9] + new.told[1].tokens == whole.told[1].tokens
    assert new.told[1].n_cached >= 96


def test_a_block_that_the_worker_does_not_know_fails_that_request_alone(tiny_model: Path) -> None:
    rig = Rig(tiny_model, "float32", True)
    greedy = SamplingParams(max_tokens=5, temperature=0)
    lost = BatchEntry(1, Phase.INITIATION, [5, 6], 16, greedy, prefix=Prefix([77], SYSTEM[:16]))
    copied = BatchEntry(2, Phase.INITIATION, [5, 6], 3, greedy, prefix=Prefix([], SYSTEM[:3], 78, 3))
    good = BatchEntry(3, Phase.INITIATION, SYSTEM[:20], 0, greedy)
    shares = BatchEntry(4, Phase.INITIATION, [5, 6], 16, greedy, prefix=Prefix([1], SYSTEM[:16]))
    kept = (Kept(3, 0, 1, 1), Kept(1, 1, 9, 1))
    result = rig.worker.run(Batch(1, (lost, copied, good, shares), kept=kept))
    assert result.failures == dict.fromkeys((1, 2), "the tokens of this request were lost")
    # Block 9 was to be a page of the request that failed: it is unknown, and evicting it is of no effect.
    late = BatchEntry(5, Phase.INITIATION, [5, 6], 16, greedy, prefix=Prefix([9], SYSTEM[:16]))
    again = BatchEntry(6, Phase.INITIATION, [5, 6], 16, greedy, prefix=Prefix([1], SYSTEM[:16]))
    result = rig.worker.run(Batch(2, (late, again), drops=(1, 2, 3, 4), evicted=(9,)))
    assert list(result.failures) == [5]
    last = BatchEntry(7, Phase.INITIATION, [5, 6], 16, greedy, prefix=Prefix([1], SYSTEM[:16]))
    result = rig.worker.run(Batch(3, (last,), drops=(5, 6), evicted=(1,)))
    assert list(result.failures) == [7]


def test_texts_whose_keys_depend_on_their_length() -> None:
    """From `limit` tokens on they neither take nor give."""
    scheduler = Scheduler(1024, 8, 1, PAGE, EvenBatches(1), PrefixCache(PAGE, limit=40))
    params = SamplingParams(max_tokens=2)
    for id, prompt in enumerate([SYSTEM[:40], SYSTEM[:40], SYSTEM[:41], SYSTEM[:60]]):
        scheduler.add(Request(id, prompt, params), 0.0)
    batch = scheduler.next_batch()
    assert batch is not None
    assert [entry.position for entry in batch.entries] == [0, 32, 0, 0]
    assert [(kept.request_id, kept.n) for kept in batch.kept] == [(0, 2)]
