"""Generator: sends a workload to a server and notes what comes back, and how late it was itself."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from orcaserve.evaluation.load.prompts import Prompts
from orcaserve.evaluation.load.record import UNFINISHED, Record
from orcaserve.evaluation.load.server import Server
from orcaserve.evaluation.load.stream import StreamFailed
from orcaserve.workload import Arrival

TICK = 0.02  # s between two looks at how late the event loop is
AHEAD = 1000  # requests whose bytes are ready before their time, for those that come in a bunch
DETAILS = 200  # characters kept of what a server says about a failure


@dataclass(slots=True)
class Load:
    """What was sent and what came of it, so far.

    records: in order of sending. seconds: since the run began, until the last answer. lags: how late the event loop
    woke from every tick. cpu_seconds: of this process since the run began.
    """

    n_wanted: int
    records: list[Record] = field(default_factory=list)
    seconds: float = 0.0
    lags: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0
    n_events: int = 0
    n_over: int = 0
    n_failed: int = 0

    @property
    def n_running(self) -> int:
        return len(self.records) - self.n_over


class Generator:
    """Runs once. load: up to date at any time, whoever looks.

    base: fields of every request. Prompts are drawn by `seed` and a request's number.
    """

    def __init__(self, server: Server, prompts: Prompts, base: Mapping[str, Any], seed: int, n_wanted: int) -> None:
        self.load = Load(n_wanted)
        self._server, self._prompts, self._base, self._seed = server, prompts, base, seed
        self._start = self._cpu_start = 0.0

    async def open_loop(self, arrivals: Sequence[Arrival]) -> None:
        """Send each at its time, however many are running. Can be cancelled: what runs then is left unfinished."""
        made = map(self._request, count(), arrivals)
        ready = deque(islice(made, AHEAD))
        async with self._watched(), asyncio.TaskGroup() as group:
            for index, arrival in enumerate(arrivals):
                ready.extend(islice(made, 1))  # while there is time
                while (wait := arrival.time - self._clock()) > 0:  # noqa: ASYNC110 - timers may wake a little early
                    await asyncio.sleep(wait)
                group.create_task(self._one(index, arrival, ready.popleft(), arrival.time))

    async def closed_loop(self, arrivals: Sequence[Arrival], concurrency: int) -> None:
        """`concurrency` clients, each of which sends the next when its last one is over. Their times do not count."""
        todo = iter(enumerate(arrivals))

        async def client() -> None:
            for index, arrival in todo:
                await self._one(index, arrival, self._request(index, arrival), None)

        async with self._watched(), asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(arrivals))):
                group.create_task(client())

    def _request(self, index: int, arrival: Arrival) -> bytes:
        rng = random.Random(f"prompt {self._seed} {index}")
        sizes = {"max_tokens": arrival.n_output}
        return self._server.request({**self._base, **self._prompts.fields(arrival.n_input, rng), **sizes})

    async def _one(self, index: int, arrival: Arrival, request: bytes, due: float | None) -> None:
        load, sent = self.load, self._clock()
        record = Record(index, arrival, sent if due is None else due, sent)
        load.records.append(record)

        def news(now: float) -> None:
            record.events.append(now)
            load.n_events += 1

        try:
            answer = await self._server.send(request, self._clock, news)
            record.input_tokens = _count(answer.usage, "prompt_tokens")
            record.output_tokens = _count(answer.usage, "completion_tokens")
            record.end = answer.last
            record.error = None
            if not answer.streamed:
                record.error = "the answer is no event stream"
            elif record.n_output < 1:
                record.error = "the answer has no token"
        except StreamFailed as failure:
            record.error, record.detail = str(failure), failure.detail[:DETAILS]
        finally:
            load.n_over += record.error != UNFINISHED
            load.n_failed += record.error not in (None, UNFINISHED)
            load.seconds = self._clock()
            load.cpu_seconds = time.process_time() - self._cpu_start

    def _clock(self) -> float:
        return time.perf_counter() - self._start

    def _watched(self) -> _Watch:
        self._start, self._cpu_start = time.perf_counter(), time.process_time()
        return _Watch(self.load.lags)


class _Watch:
    """While it is entered, the lateness of the event loop is noted."""

    def __init__(self, lags: list[float]) -> None:
        self._lags = lags
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(TICK)
            self._lags.append(max(time.perf_counter() - before - TICK, 0.0))


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) and value >= 0 else None
