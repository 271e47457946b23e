"""WorkerController: what a worker process does with what the control plane brings."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orcaserve.config import EngineConfig, split_address
from orcaserve.control_plane import engine_pb2 as engine_wire
from orcaserve.control_plane import worker_codec as codec
from orcaserve.control_plane import worker_pb2 as wire
from orcaserve.control_plane.adapter_codec import decode_adapter, encode_adapter_news
from orcaserve.control_plane.channel import target_of, tcp_target, worker_socket
from orcaserve.control_plane.tls import Tls
from orcaserve.control_plane.worker_client import NextStage
from orcaserve.control_plane.worker_service import WorkerServer
from orcaserve.core import Batch, EngineError, OrcaServeError
from orcaserve.core.beats import Beat, period
from orcaserve.core.spans import FORWARD, IterationSpans, Span
from orcaserve.data_plane.memory import SharedMemory
from orcaserve.data_plane.mixed import MixedPlane
from orcaserve.data_plane.protocol import DataPlane, NeighbourLost, Place
from orcaserve.version import __version__
from orcaserve.worker.adapters import load_beside
from orcaserve.worker.among import ALONE, Among
from orcaserve.worker.executor import DeviceExecutor
from orcaserve.worker.facts import n_threads_for
from orcaserve.worker.parts import RunsPart, free_memory, load_part, meet_on_device
from orcaserve.worker.plan import read_plan
from orcaserve.worker.watched_plane import WatchedPlane
from orcaserve.worker.worker import Worker

if TYPE_CHECKING:
    from orcaserve.data_plane.device_tensors import TensorPlane
    from orcaserve.data_plane.torch_distributed import StoreAddress

JOIN_TIMEOUT = 60.0  # s for all workers to meet once their weights are loaded
ORDER_GRACE = 0.5  # s; an engine that ends does not reach all workers at once
RENDEZVOUS = "rendezvous"  # file in the workers' folder

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Site:
    """Where a worker is to be found.

    folder: of the sockets of all workers of the master's machine; None elsewhere: there it listens at `address`.
    address: of this machine, for the data plane.
    store: the socket at which this worker is to serve the data plane's meeting of several machines, if it is to.
    memory: what it shares with the others of this machine, if there are others.
    among: which one it is of this machine's.
    """

    folder: Path | None
    address: str = "127.0.0.1"
    store: int | None = None
    memory: SharedMemory | None = None
    among: Among = ALONE


class WorkerController:
    """Takes control messages, passes each on before anything else, and has its device executor run it.

        master or stage before --take--> next stage              at once
                                    \\--> device executor --> data plane, model --> (last stage) --> master

    exit_code: how it went, when `run` has returned.
    """

    def __init__(self, config: EngineConfig, place: Place, site: Site) -> None:
        self._config, self._place, self._site = config, place, site
        self._tls = None if config.nodes.tls is None else Tls(config.nodes.tls)
        if site.folder is None:
            self._server = WorkerServer(tcp_target(site.address, 0), self, config.nodes.secret, self._tls)
        else:
            self._server = WorkerServer(target_of(worker_socket(site.folder, place.name)), self)
        self._executor = DeviceExecutor(f"worker {place.name}")
        self._next: NextStage | None = None
        self._answers = place.last and place.shard == 0
        self._records = config.parallel.timeline is not None
        self._n_taken = self._n_run = 0  # iterations
        self._joined, self._over = threading.Event(), threading.Event()
        self.exit_code = 0

    def run(self, on_listening: Callable[[int], None], on_joined: Callable[[], None]) -> None:
        """Listen, load, and serve until it is over. on_joined: called here when all workers have found each other.

        on_listening: called first, with the port, if it is one.
        """
        try:
            on_listening(self._server.start())
            self._backend = self._executor.call(self._load)
            free = free_memory(self._config, self._site.among)
            loaded = wire.Loaded(version=__version__, slot_bytes=self._backend.slot_bytes, free_bytes=free)
            self._server.send(wire.FromWorker(loaded=loaded))
        except Exception as error:
            self._fail(error, "loading failed")
        self._joined.wait()
        on_joined()
        parallel = self._config.parallel
        while not self._over.wait(period(parallel.device_timeout, parallel.worker_timeout)):
            self._server.send(codec.encode_beat(self._beat()))
        self._server.close(attach_grace=JOIN_TIMEOUT if self.exit_code else 0.0)

    def start(self, start: wire.Start) -> None:
        """Make the K/V region, join the other workers. On a thread of the control plane."""
        try:
            self._executor.call(lambda: self._join(start))
            if not self._place.last:
                timeout = 2 * self._config.parallel.worker_timeout  # the master is to find out first
                secret = self._config.nodes.secret
                self._next = NextStage(start.next, secret, timeout, lambda: self.lose("the stage after it"), self._tls)
        except Exception as error:
            self._fail(error, "joining the other workers failed")
            return
        self._joined.set()
        self._server.open()
        self._server.send(wire.FromWorker(ready=wire.Ready()))

    def take(self, iteration: wire.Iteration) -> None:
        """On one thread of the control plane, in order."""
        started = time.monotonic_ns()
        if self._next is not None:
            self._next.forward(iteration)
        span = Span(FORWARD, started, time.monotonic_ns())
        try:
            batch = codec.decode_iteration(iteration)
            self._backend.expect(batch.n_tokens)
        except Exception as error:
            self._fail(error, f"iteration {iteration.number} could not be taken")
        else:
            self._n_taken += 1
            self._executor.post(lambda: self._run(batch, span))

    def load_adapter(self, message: engine_wire.Adapter) -> None:
        """Answered when it is there, or cannot be."""
        adapter = decode_adapter(message)

        def answer(error: str | None) -> None:
            self._server.send(wire.FromWorker(adapter=encode_adapter_news(adapter.number, error)))

        load = partial(load_beside, self._worker, self._executor, adapter, answer)
        threading.Thread(target=load, name="adapter", daemon=True).start()

    def unload_adapter(self, number: int) -> None:
        """Answered when it is gone; no iteration that comes later names it."""

        def unload() -> None:
            self._worker.remove_adapter(number)
            self._server.send(wire.FromWorker(adapter=encode_adapter_news(number, None, unloaded=True)))

        self._executor.post(unload)

    def lose(self, who: str) -> None:
        """The end of the master's stream is the order to end. That of any other is a failure, unless the order follows;
        the master knows better what it was."""
        if who != "the engine master" and not self._over.wait(ORDER_GRACE):
            _log.warning("%s is gone", who)
            self.exit_code = 1
        self._end()

    def _load(self) -> RunsPart:
        config = self._config
        return load_part(config, read_plan(config), self._place, n_threads_for(config), self._site.among)

    def _join(self, start: wire.Start) -> None:
        self._plane = WatchedPlane(self._meet(start), self._place)
        self._backend.join(self._plane)
        self._worker = Worker.over(self._backend, self._config, start.n_slots)  # when memory of loading is free again

    def _meet(self, start: wire.Start) -> Any:
        """A data plane of what the backend passes on: numpy's arrays between CPUs, else tensors."""
        if self._config.model.device != "cpu":
            return self._meet_on_device(start)
        # The near road to the workers of this machine, the far one to others: torch comes where there are some.
        place, memory = self._place, self._site.memory
        if memory is None:
            return self._far(start)
        from orcaserve.data_plane.shared_memory import SharedMemoryPlane

        near = SharedMemoryPlane(place, memory)
        return near if len(memory.ranks) == place.n_ranks else MixedPlane(place, memory.ranks, near, self._far(start))

    def _far(self, start: wire.Start) -> DataPlane:
        from orcaserve.data_plane.torch_distributed import TorchDataPlane

        return TorchDataPlane(self._place, self._rendezvous(start), JOIN_TIMEOUT, self._site.address)

    def _meet_on_device(self, start: wire.Start) -> TensorPlane:
        from orcaserve.data_plane.device_tensors import Meeting

        meeting = Meeting(self._place, self._rendezvous(start), JOIN_TIMEOUT, self._site.address)
        return meet_on_device(self._config, self._site.among, meeting)

    def _rendezvous(self, start: wire.Start) -> Path | StoreAddress:
        from orcaserve.data_plane.torch_distributed import StoreAddress

        site = self._site
        if start.rendezvous:
            host, port = split_address("rendezvous", start.rendezvous)
            return StoreAddress(host, port, site.store)
        assert site.folder is not None, "elsewhere there is a store"
        return site.folder / RENDEZVOUS

    def _beat(self) -> Beat:
        """Once it has joined."""
        n_run = self._n_run  # first: an iteration that ends meanwhile leaves it busy for a beat, not idle
        return Beat(n_run < self._n_taken, n_run, self._backend.progress, self._plane.waits_for)

    def _run(self, batch: Batch, forwarded: Span) -> None:
        """On the device executor's thread."""
        if self._over.is_set():
            return
        try:
            result = self._worker.run(batch)
            self._backend.settle()
        except Exception as error:
            self._fail(error, f"iteration {batch.iteration} failed")
            return
        if self._records:
            spans = [forwarded, *self._backend.spans]
            self._server.send(
                codec.encode_spans(IterationSpans(batch.iteration, len(batch.entries), batch.n_tokens, spans))
            )
        if self._answers:
            for message in codec.encode_results(result):
                self._server.send(message)
        self._backend.spans.clear()
        self._n_run += 1
        try:
            self._worker.prepare()
        except Exception as error:
            self._fail(error, f"what follows iteration {batch.iteration} failed")

    def _fail(self, error: Exception, what: str) -> None:
        """Tell the master, and end. What an iteration has left behind is unknown."""
        if self._over.is_set():
            return
        if isinstance(error, NeighbourLost):  # the first sign of another worker's end: the master finds out whose
            error = EngineError(f"{what}: another worker is gone from the data plane")
        elif not isinstance(error, OrcaServeError):
            _log.error("%s", what, exc_info=error)
            error = EngineError(f"{what}: {type(error).__name__}")
        self.exit_code = 1
        self._server.send(codec.encode_failure(error))
        self._end()

    def _end(self) -> None:
        self._over.set()
        self._joined.set()
