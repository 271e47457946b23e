"""EngineMaster: the Engine protocol over worker processes, as many batches in flight as there are stages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from orcaserve.config import EngineConfig
from orcaserve.control_plane import engine_pb2 as engine_wire
from orcaserve.control_plane import worker_codec as codec
from orcaserve.control_plane import worker_pb2 as wire
from orcaserve.control_plane.adapter_codec import encode_adapter
from orcaserve.core import (
    AdapterAnswer,
    AdapterSource,
    Batch,
    EngineEvent,
    EngineFacts,
    EngineFailure,
    OrcaServeError,
)
from orcaserve.core.spans import IterationSpans
from orcaserve.data_plane.protocol import Place
from orcaserve.engine.machines import Machines
from orcaserve.engine.placed_machines import PlacedMachines
from orcaserve.engine.remote_clock import Exchange, RemoteClock
from orcaserve.engine.timeline import Timeline
from orcaserve.engine.worker_group import WorkerGroup
from orcaserve.worker.facts import check_deterministic, context_length, engine_facts, least_slots
from orcaserve.worker.plan import EncoderDecoderPlan, Plan, read_plan

CLOSE_PATIENCE = 5.0  # s that batches in flight have to return
FIRST_EXCHANGES = 8  # of times with each worker elsewhere, before the first iteration
CLOCK_PERIOD = 2.0  # s between later ones
CLOCK_PATIENCE = 10.0  # s for the first ones; without any, what is done elsewhere is not recorded


@dataclass(slots=True)
class _Awaited:
    """Answers of workers. error: the first that one of them gave."""

    n_left: int
    answer: AdapterAnswer
    error: str | None = None


class EngineMaster:
    """Sends every batch to the first stage and takes its tokens from the last. Use EngineMaster.load.

    facts: what the loaded model is.
    """

    def __init__(self, config: EngineConfig, plan: Plan | EncoderDecoderPlan, machines: Machines) -> None:
        self.n_workers = config.parallel.pipeline_parallel_size
        self.facts: EngineFacts
        self._machines = machines
        self._group = WorkerGroup(config, plan.places, machines, self._take, self._fail)
        self._timeline = Timeline([place.name for place in plan.places], config.parallel.timeline)
        self._deliver: Callable[[EngineEvent], None] | None = None
        self._state = threading.Condition()
        self._n_in_flight = 0
        self._n_places = len(plan.places)
        self._adapters: dict[int, _Awaited] = {}  # by number: what the workers have still to say of them
        self._parts: list[wire.ResultPart] = []  # of the next result
        self._failure: EngineFailure | None = None
        self._over = False
        self._clocks: dict[Place, RemoteClock] = {}  # of other machines' workers, if there is a timeline
        self._clocks_known, self._ended = threading.Event(), threading.Event()

    @classmethod
    def load(cls, config: EngineConfig) -> EngineMaster:
        """Wait for the other machines, start the workers and have them load their parts.

        The workers of this machine end with the thread that calls this: the main one. Raises ModelError; ConfigError if
        the model cannot be cut as asked for, before anything is started; EngineError if a worker is lost.
        """
        plan = read_plan(config)
        context_length(config, plan.spec)
        check_deterministic(config, plan.spec)
        machines = Machines(config) if config.ray is None else PlacedMachines(config)
        master = cls(config, plan, machines)
        try:
            machines.gather()
            loaded = master._group.load()
            n_slots = least_slots(config, plan.spec, loaded)
            master._group.start(n_slots)
            master._compare_clocks()
        except BaseException as error:
            master.kill(for_good=not isinstance(error, Exception))
            raise
        master.facts = engine_facts(config, plan.spec, n_slots)
        return master

    def start(self, deliver: Callable[[EngineEvent], None]) -> None:
        with self._state:
            self._deliver = deliver
            if self._failure is not None:
                deliver(self._failure)

    def submit(self, batch: Batch) -> None:
        with self._state:
            self._n_in_flight += 1
        self._group.send(codec.encode_iteration(batch))

    def load_adapter(self, adapter: AdapterSource, answer: AdapterAnswer) -> None:
        """Whoever cannot says why, and then those who can let it go again."""

        def settle(error: str | None) -> None:
            if error is None:
                answer(None)
            else:
                self.unload_adapter(adapter.number, lambda _: answer(error))

        self._wait_for_all(adapter.number, settle)
        self._group.tell_all(wire.ToWorker(load=encode_adapter(adapter)))

    def unload_adapter(self, number: int, answer: AdapterAnswer) -> None:
        self._wait_for_all(number, answer)
        self._group.tell_all(wire.ToWorker(unload=number))

    def _wait_for_all(self, number: int, answer: AdapterAnswer) -> None:
        with self._state:
            self._adapters[number] = _Awaited(self._n_places, answer)

    def _take_adapter(self, news: engine_wire.AdapterNews) -> None:
        with self._state:
            awaited = self._adapters[news.number]
            awaited.n_left -= 1
            awaited.error = awaited.error or news.error or None
            if awaited.n_left:
                return
            del self._adapters[news.number]
        awaited.answer(awaited.error)

    def close(self) -> None:
        with self._state:
            self._state.wait_for(lambda: self._n_in_flight == 0 or self._failure is not None, CLOSE_PATIENCE)
            self._over = True
        self._ended.set()
        self._group.close()
        self._machines.close(goodbye=self._failure is None)  # after a failure another engine follows
        self._timeline.write()

    def kill(self, for_good: bool = False) -> None:
        with self._state:
            self._over = True
        self._ended.set()
        self._group.kill()
        self._machines.close(goodbye=for_good)
        self._timeline.write()

    def _take(self, place: Place, message: wire.FromWorker) -> None:
        """On a thread of the control plane."""
        if message.HasField("spans"):
            self._note(place, codec.decode_spans(message.spans))
        elif message.HasField("clock"):
            self._hear_time(place, message.clock)
        elif message.HasField("part"):
            self._parts.append(message.part)
        elif message.HasField("adapter"):
            self._take_adapter(message.adapter)
        elif message.HasField("result"):
            parts, self._parts = self._parts, []
            result = codec.decode_result(message.result, parts)
            with self._state:
                self._n_in_flight -= 1
                self._state.notify_all()
                if self._deliver is not None and not self._over and self._failure is None:
                    self._deliver(result)

    def _compare_clocks(self) -> None:
        """With those of other machines, if there is a timeline: now, and again and again until the engine ends."""
        if not self._timeline.wanted or not self._group.elsewhere:
            return
        self._clocks = {place: RemoteClock() for place in self._group.elsewhere}
        for place in self._clocks:
            self._group.ask_time(place)
        self._clocks_known.wait(CLOCK_PATIENCE)
        threading.Thread(target=self._ask_times, name="clocks", daemon=True).start()

    def _ask_times(self) -> None:
        while not self._ended.wait(CLOCK_PERIOD):
            for place in self._clocks:
                self._group.ask_time(place)

    def _hear_time(self, place: Place, answer: wire.ClockAnswer) -> None:
        clock = self._clocks[place]
        clock.add(Exchange(answer.sent, answer.received, answer.replied, time.monotonic_ns()))
        if clock.n_exchanges < FIRST_EXCHANGES:
            self._group.ask_time(place)
        elif all(other.n_exchanges >= FIRST_EXCHANGES for other in self._clocks.values()):
            self._clocks_known.set()

    def _note(self, place: Place, spans: IterationSpans) -> None:
        clock = self._clocks.get(place)
        if clock is None:
            self._timeline.add(place.name, spans)
        elif clock.n_exchanges:
            self._timeline.add(place.name, clock.to_ours(spans))
            self._timeline.clock_errors[place.name] = clock.worst

    def _fail(self, error: OrcaServeError) -> None:
        with self._state:
            if self._over or self._failure is not None:
                return
            self._failure = EngineFailure(str(error))
            self._state.notify_all()
            if self._deliver is not None:
                self._deliver(self._failure)
