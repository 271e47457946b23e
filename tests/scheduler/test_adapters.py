"""Adapters and the schedule: nobody shares across them, and one goes only when no request has it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from orcaserve.core import (
    AdapterAnswer,
    AdapterSource,
    Batch,
    EngineEvent,
    IterationResult,
    Request,
    SamplingParams,
    Terms,
)
from orcaserve.scheduler.loop import IterationLoop
from orcaserve.scheduler.prefix_cache import PrefixCache, owner_of
from orcaserve.scheduler.scheduler import Scheduler

PARAMS = SamplingParams(max_tokens=4)


def test_owners_are_told_apart() -> None:
    salts = ("", "1", ":", "1:", "0:", "11:")
    owners = {
        owner_of(Request(1, [5], PARAMS, adapter=adapter, terms=Terms(cache_salt=salt)))
        for adapter in (0, 1, 10, 11)
        for salt in salts
    }
    assert len(owners) == 4 * len(salts)


def test_blocks_of_one_adapter_are_not_found_with_another() -> None:
    prefixes = PrefixCache(2)
    first = Request(1, [1, 2, 3, 4, 5], PARAMS, adapter=1)
    assert prefixes.add(first, path := [], 4, 1) is None and len(path) == 2
    assert len(prefixes.find(Request(2, [1, 2, 3, 4, 9], PARAMS, adapter=1), ())) == 2
    for other in (0, 2):
        assert prefixes.find(Request(3, [1, 2, 3, 4, 9], PARAMS, adapter=other), ()) == []


class HeldEngine:
    """Gives a batch back when it is told to, and remembers what it was asked in between."""

    n_workers = 1

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.came, self.unloaded = threading.Semaphore(0), threading.Event()
        self.deliver: Callable[[EngineEvent], None]

    def start(self, deliver: Callable[[EngineEvent], None]) -> None:
        self.deliver = deliver

    def submit(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.came.release()

    def give_back(self) -> None:
        assert self.came.acquire(timeout=10)
        batch = self.batches[-1]
        self.deliver(IterationResult(batch.iteration, [7] * len(batch.entries)))

    def load_adapter(self, adapter: AdapterSource, answer: AdapterAnswer) -> None:
        raise AssertionError

    def unload_adapter(self, number: int, answer: AdapterAnswer) -> None:
        self.unloaded.set()
        answer(None)

    def close(self) -> None: ...
    def kill(self, for_good: bool = False) -> None: ...


def test_an_adapter_is_unloaded_when_its_last_request_has_left() -> None:
    engine = HeldEngine()
    loop = IterationLoop(Scheduler(64, 4), engine, lambda report: None)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        loop.submit([Request(1, [3], PARAMS, adapter=5), Request(2, [3], SamplingParams(max_tokens=9), adapter=6)])
        told = threading.Event()
        loop.unload_adapter(5, lambda error: told.set())
        for _ in range(3):
            engine.give_back()
        assert not engine.unloaded.is_set()  # the fourth batch is under way, or about to be
        engine.give_back()
        assert told.wait(10)
        assert [entry.adapter for entry in engine.batches[0].entries] == [5, 6]
    finally:
        loop.stop()
        thread.join()
