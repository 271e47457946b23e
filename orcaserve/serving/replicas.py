"""Replicas: several engines with the same model behind the door of one; each request goes to the least loaded."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from orcaserve.config import EngineConfig, ServingConfig
from orcaserve.control_plane.token_stream import TokenStream
from orcaserve.core import AdapterSource, EngineError, EngineFacts, Request
from orcaserve.core.errors import ENGINE_LOST
from orcaserve.serving.supervisor import Supervisor

_log = logging.getLogger("orcaserve")


@dataclass(frozen=True, slots=True)
class Load:
    """What the choice looks at. n_reserved: slots that the unfinished requests of a replica may come to need."""

    n_reserved: int
    present: bool = True
    given_up: bool = False


def least_loaded(loads: Sequence[Load]) -> int:
    """Which replica a new request goes to: of those that are present, or else of those that will be again, the one with
    the least reserved slots; of equals the first. Not all of them may have been given up."""
    living = [number for number, load in enumerate(loads) if not load.given_up]
    return min(living, key=lambda number: (not loads[number].present, loads[number].n_reserved, number))


class Replicas:
    """As a Supervisor towards service and endpoint, with one for each replica behind it.

        submit --least_loaded--> supervisor 0 --> engine, or the master of a group
                             \\-> supervisor 1 --> another

    A request stays where it is: if its replica dies, it waits for that one's next engine. So a request that makes
    engines crash takes down one replica, not one after the other, and order within a replica holds. Only the requests
    of a replica that is given up (its engines died in a row) go on elsewhere.
    """

    def __init__(self, serving: ServingConfig, engine: EngineConfig) -> None:
        self.closed = asyncio.Event()
        self.reason: str | None = None
        self.on_waiting: Callable[[], None] = lambda: None
        self._serving, self._engine = serving, engine
        self._replicas: list[Supervisor] = []
        self._busy_since: list[float] = []  # when each was last given a request that it had no other beside

    def start(self) -> None:
        """As Supervisor.start, of the first replica."""
        self._start_another(self._engine)

    async def connect(self) -> None:
        """Wait until all are ready. Raises as Supervisor.connect.

        The first is loaded alone: how much memory it finds decides the size of K/V region that all have, so that any
        request that fits one fits each.
        """
        (first,) = self._replicas
        await first.connect()
        engine = replace(self._engine, kv=replace(self._engine.kv, n_slots=first.facts.n_slots, memory_bytes=None))
        others = [self._start_another(engine) for _ in range(1, self._engine.parallel.data_parallel_size)]
        await asyncio.gather(*(other.connect() for other in others))
        if any(other.facts != first.facts for other in others):
            raise EngineError("the model has changed while the replicas were started")

    @property
    def replicas(self) -> Sequence[Supervisor]:
        return self._replicas

    @property
    def facts(self) -> EngineFacts:
        """Of each of them."""
        return self._replicas[0].facts

    @property
    def present(self) -> bool:
        """Whether there is any engine now."""
        return any(replica.present for replica in self._replicas)

    @property
    def last_report(self) -> float:
        """When the replica with work that has been silent for longest said something last, or got that work."""
        news = [
            max(replica.last_report, since)
            for replica, since in zip(self._replicas, self._busy_since, strict=True)
            if replica.n_open
        ]
        return min(news, default=time.monotonic())

    @property
    def n_open(self) -> int:
        return sum(replica.n_open for replica in self._replicas)

    def submit(self, request: Request) -> TokenStream:
        """As Supervisor.submit."""
        if self.closed.is_set():
            raise EngineError(f"the engines are gone: {self.reason}")
        number = self._choose()
        replica = self._replicas[number]
        if not replica.n_open:
            self._busy_since[number] = time.monotonic()
        return replica.submit(request)

    def cancel(self, request_id: int) -> None:
        """As Supervisor.cancel. Who has it is not noted: the others leave it alone."""
        for replica in self._replicas:
            if not replica.closed.is_set():
                replica.cancel(request_id)

    @property
    def n_adapters(self) -> int:
        """As Supervisor.n_adapters, of the replica that has most."""
        return max(replica.n_adapters for replica in self._replicas)

    async def load_adapter(self, adapter: AdapterSource) -> None:
        """As Supervisor.load_adapter: in all of them, or, if one cannot, in none."""
        living = [replica for replica in self._replicas if not replica.closed.is_set()]
        results = await asyncio.gather(*(each.load_adapter(adapter) for each in living), return_exceptions=True)
        errors = [result for result in results if result is not None]
        if errors:
            for replica, result in zip(living, results, strict=True):
                if result is None:
                    replica.unload_adapter(adapter.number)
            raise errors[0]

    def unload_adapter(self, number: int) -> None:
        """As Supervisor.unload_adapter."""
        for replica in self._replicas:
            if not replica.closed.is_set():
                replica.unload_adapter(number)

    async def close(self, message: str = ENGINE_LOST) -> None:
        """As Supervisor.close, of all."""
        self._shut("closed by the endpoint")
        await asyncio.gather(*(replica.close(message) for replica in self._replicas))

    def _start_another(self, engine: EngineConfig) -> Supervisor:
        number = len(self._replicas)
        timeline, log = engine.parallel.timeline, engine.schedule_log
        if timeline is not None:
            own = timeline.with_stem(f"{timeline.stem}-{number}")
            engine = replace(engine, parallel=replace(engine.parallel, timeline=own))
        if log.path is not None:
            engine = replace(engine, schedule_log=replace(log, path=log.path.with_stem(f"{log.path.stem}-{number}")))
        replica = Supervisor(self._serving, engine, f"replica {number}")
        replica.start()
        replica.on_waiting = lambda: self.on_waiting()
        replica.on_given_up = lambda: self._give_up(number)
        self._replicas.append(replica)
        self._busy_since.append(time.monotonic())
        return replica

    def _choose(self) -> int:
        return least_loaded(
            [Load(replica.n_reserved, replica.present, replica.closed.is_set()) for replica in self._replicas]
        )

    def _give_up(self, number: int) -> None:
        """A replica will have no further engine. The last of them ends it all."""
        lost = self._replicas[number]
        n_left = sum(not replica.closed.is_set() for replica in self._replicas)
        if not n_left:
            self._shut(f"of replica {number}, the last one, {lost.reason}")
            return
        what = "replica %d is given up (%s); its %d requests go to the %d that are left"
        _log.error(what, number, lost.reason, lost.n_open, n_left)
        now = time.monotonic()
        self._busy_since = [
            since if r.n_open else now for r, since in zip(self._replicas, self._busy_since, strict=True)
        ]
        lost.move_requests(lambda: self._replicas[self._choose()])

    def _shut(self, reason: str) -> None:
        if not self.closed.is_set():
            self.reason = reason
            self.closed.set()


Engines = Supervisor | Replicas


def engines_for(serving: ServingConfig, engine: EngineConfig) -> Engines:
    """One engine is behind its supervisor alone."""
    return Supervisor(serving, engine) if engine.parallel.data_parallel_size == 1 else Replicas(serving, engine)
