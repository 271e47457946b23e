"""WorkerGroup: the worker processes of one engine, wherever they are: started, watched and ended together."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from orcaserve.config import EngineConfig
from orcaserve.control_plane import worker_codec as codec
from orcaserve.control_plane import worker_pb2 as wire
from orcaserve.control_plane.channel import MAX_SOCKET_PATH, target_of, worker_socket
from orcaserve.control_plane.worker_client import WorkerLink
from orcaserve.core import ConfigError, EngineError, NoRoom, OrcaServeError
from orcaserve.core.beats import Standstills
from orcaserve.data_plane.memory import SharedMemory, shared_by
from orcaserve.data_plane.protocol import Place
from orcaserve.engine.machines import Machines, RemoteWorker
from orcaserve.node.worker_process import WorkerProcess
from orcaserve.version import __version__

CHECKS = 8  # for heartbeats, in the time after which a worker is taken for lost
END_GRACE = 1.0  # s that workers have to end by themselves
_SETTLE = 0.2  # s; deaths come in a row, and the first news is not always of the first death

_log = logging.getLogger(__name__)


class WorkerGroup:
    """One life of the worker processes.

        group = WorkerGroup(config, places, machines, on_message, on_loss)
        loaded = group.load()          # starts them; they load their parts
        group.start(n_slots)           # they make their K/V regions and find each other
        group.send(iteration)          # to the first stage
        group.close()

    Those of this machine die with the thread that calls `load`, and with this process, which alone holds a pipe to each
    open; the others when their node hears that the engine has ended.
    on_message: results, spans and times, on threads of the control plane's. on_loss: called once, if a worker is lost
    after `start`, with an EngineError that says which and how; the others are of no use then.
    """

    def __init__(
        self,
        config: EngineConfig,
        places: Sequence[Place],
        machines: Machines,
        on_message: Callable[[Place, wire.FromWorker], None],
        on_loss: Callable[[OrcaServeError], None],
    ) -> None:
        self._config, self._places, self._machines = config, places, machines
        self._shares = machines.shares(places)  # this machine's first
        self._on_message, self._on_loss = on_message, on_loss
        self._processes: dict[Place, WorkerProcess | RemoteWorker] = {}
        self._links: dict[Place, WorkerLink] = {}
        self._news: SimpleQueue[tuple[Place, wire.FromWorker] | None] = SimpleQueue()  # of loading; None: a loss
        self._lock = threading.Lock()
        self._said: dict[Place, OrcaServeError] = {}  # what workers said of their own failures
        self._silent: list[Place] = []  # whose streams have ended, or who sent no heartbeat
        self._standstills = Standstills.within(
            (place.name for place in places), config.parallel.device_timeout, config.parallel.worker_timeout
        )
        self._hangs: EngineError | None = None
        self._heard: dict[Place, float] = {}  # when, on time.monotonic()
        self._losing = self._closing = self._started = False
        self._lost: OrcaServeError | None = None
        self._ended = threading.Event()
        self._last_check = 0.0
        self._folder: Path | None = None

    def load(self) -> list[tuple[int, int | None]]:
        """Start the processes and wait until they have their weights.

        Returns for each machine bytes of a slot over its workers, and of its free memory (None: this machine's); for
        each worker if they run on GPUs.

        Raises what a worker raised (ModelError, ConfigError), EngineError if one is lost, NoRoom.
        """
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="orcaserve-"))  # mode 0700: the sockets in it are ours alone
        except OSError as error:
            raise NoRoom(f"no folder for the workers' sockets can be made: {error.strerror}") from error
        if len(os.fsencode(worker_socket(self._folder, "s999r999"))) > MAX_SOCKET_PATH:
            raise ConfigError("TMPDIR", f"its name is too long for a socket in it ({MAX_SOCKET_PATH} bytes in all)")
        own, *others = self._shares
        for node, share in zip(self._machines.nodes, others, strict=True):
            self._machines.assign(node, share)
        with shared_by(own) as memory:
            for place in own:
                self._launch(place, self._folder, memory)
        for node, share in zip(self._machines.nodes, others, strict=True):
            self._processes |= self._machines.workers(node, share)
            node.on_end = self._lose_at
            node.on_loss = partial(self._lose, share[0])
            if node.gone or node.codes:
                self._lose(share[0])
        for place in self._places:
            self._links[place] = self._attach(place)
        loaded: dict[Place, wire.Loaded] = {}
        for _ in self._places:
            place, message = self._await("loaded")
            loaded[place] = message.loaded
            if message.loaded.version != __version__:
                raise EngineError(f"a worker is of version {message.loaded.version}, this engine of {__version__}")
        if self._config.model.device.startswith("cuda"):  # each has memory of its own, or told its share of it
            return [(worker.slot_bytes, worker.free_bytes) for worker in loaded.values()]
        machines: dict[str | None, list[Place]] = {None: own} if own else {}
        for node, share in zip(self._machines.nodes, others, strict=True):
            machines[node.address] = machines.get(node.address, []) + share  # Ray may place several nodes on one
        return [
            (
                sum(loaded[place].slot_bytes for place in share),
                None if address is None else min(loaded[place].free_bytes for place in share),
            )
            for address, share in machines.items()
        ]

    def start(self, n_slots: int) -> None:
        """Raises as `load`."""
        for place, link in self._links.items():
            after = replace(place, stage=place.stage + 1)
            target = "" if place.last else self._target(after)
            link.start(wire.Start(n_slots=n_slots, next=target, rendezvous=self._machines.rendezvous))
        for _ in self._places:
            self._await("ready")
        self._remove_folder()  # connected for good: nothing is left to be found, or to be left behind
        with self._lock:
            if self._lost is not None:
                raise self._lost
            self._started = True
        self._last_check = time.monotonic()
        self._heard = dict.fromkeys(self._places, self._last_check)
        threading.Thread(target=self._listen, name="heartbeats", daemon=True).start()

    def send(self, iteration: wire.Iteration) -> None:
        """To every shard of the first stage; returns at once."""
        for place, link in self._links.items():
            if place.stage == 0:
                link.send(iteration)

    def tell_all(self, message: wire.ToWorker) -> None:
        """To every worker; returns at once."""
        for link in self._links.values():
            link.tell(message)

    @property
    def elsewhere(self) -> list[Place]:
        """The workers on other machines."""
        return [place for place, process in self._processes.items() if isinstance(process, RemoteWorker)]

    def ask_time(self, place: Place) -> None:
        """Returns at once; the answer comes as a message."""
        self._links[place].ask_time()

    def close(self) -> None:
        """End the processes: their streams first, then whoever has not ended after END_GRACE. Idempotent."""
        self._ended.set()
        with self._lock:
            self._closing = True
        for link in self._links.values():
            link.close()
        deadline = time.monotonic() + END_GRACE
        for process in self._processes.values():
            process.wait(max(deadline - time.monotonic(), 0))
        self.kill()

    def kill(self) -> None:
        """End the processes now. Idempotent; from any thread."""
        self._ended.set()
        with self._lock:
            self._closing = True
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.reap()
        self._remove_folder()

    def _launch(self, place: Place, folder: Path, memory: SharedMemory | None) -> None:
        machines, own = self._machines, self._shares[0]
        store = machines.store.fileno() if machines.store is not None and place.rank == 0 else None
        self._processes[place] = WorkerProcess(
            place, self._config, lambda: self._lose(place), folder, machines.address, store, memory,
            among=(own.index(place), len(own)),
        )  # fmt: skip
        if store is not None:
            machines.hand_over_store()

    def _target(self, place: Place) -> str:
        worker = self._processes[place]
        if isinstance(worker, RemoteWorker):
            return worker.target
        assert self._folder is not None
        return target_of(worker_socket(self._folder, place.name))

    def _attach(self, place: Place) -> WorkerLink:
        return WorkerLink(
            self._target(place),
            self._machines.secret,
            self._config.parallel.worker_timeout,
            lambda message: self._take(place, message),
            lambda _: self._lose(place, silent=True),
            self._machines.tls,
        )

    def _lose_at(self, position: tuple[int, int]) -> None:
        self._lose(next(place for place in self._places if (place.stage, place.shard) == position))

    def _listen(self) -> None:
        """Until a worker has been silent for too long. Time in which this process did not run itself does not count."""
        timeout = self._config.parallel.worker_timeout
        while not self._ended.wait(timeout / CHECKS):
            now = time.monotonic()
            if now - self._last_check > 2 * timeout / CHECKS:
                self._heard = dict.fromkeys(self._places, now)
            self._last_check = now
            for place, heard in self._heard.items():
                if now - heard > timeout:
                    self._lose(place, silent=True)
                    return

    def _await(self, kind: str) -> tuple[Place, wire.FromWorker]:
        news = self._news.get()
        if news is None:
            assert self._lost is not None
            raise self._lost
        place, message = news
        if not message.HasField(kind):
            raise EngineError(f"a worker said {message.WhichOneof('kind')} instead of {kind}")
        return place, message

    def _take(self, place: Place, message: wire.FromWorker) -> None:
        self._heard[place] = time.monotonic()
        if message.HasField("failure"):
            self._said.setdefault(place, codec.decode_failure(message.failure))
            self._lose(place)
        elif message.HasField("beat"):
            self._look_at(place, message.beat)
        elif message.HasField("loaded") or message.HasField("ready"):
            self._news.put((place, message))
        else:
            self._on_message(place, message)

    def _look_at(self, place: Place, beat: wire.Beat) -> None:
        if words := self._standstills.take(place.name, codec.decode_beat(beat)):
            worker, timeout = self._processes[place], self._config.parallel.device_timeout
            who = f"worker {place.name} (process {worker.pid}{worker.where})"
            self._hangs = self._hangs or EngineError(f"{who} {words} for {timeout:g} s")
            self._lose(place)

    def _lose(self, place: Place, silent: bool = False) -> None:
        with self._lock:
            if silent:
                self._silent.append(place)
            if self._losing or self._closing:
                return
            self._losing = True
        time.sleep(_SETTLE)
        with self._lock:
            if self._closing:
                return
            self._lost = error = self._reason(place)
            started = self._started
        self._news.put(None)
        if started:  # else whoever waits for the start is told
            _log.error("%s", error)
            self._on_loss(error)

    def _reason(self, place: Place) -> OrcaServeError:
        """What happened, as far as it is known; the first news may be of a worker that only followed another."""
        for killed, process in self._processes.items():
            if process.returncode is not None and process.returncode < 0:
                name = signal.Signals(-process.returncode).name
                return EngineError(f"worker {killed.name} (process {process.pid}{process.where}) was ended by {name}")
        for node, share in zip(self._machines.nodes, self._shares[1:], strict=True):
            if node.gone:
                names = ", ".join(place.name for place in share)
                return EngineError(f"the machine {node.name} is gone, which ran {names}")
        if self._hangs is not None:
            return self._hangs
        for sayer, error in self._said.items():
            return error if not isinstance(error, EngineError) else EngineError(f"worker {sayer.name}: {error}")
        for silent in self._silent:
            worker, timeout = self._processes[silent], self._config.parallel.worker_timeout
            if worker.returncode is None:
                who = f"worker {silent.name} (process {worker.pid}{worker.where})"
                if not self._started:
                    return EngineError(f"{who} does not answer")
                return EngineError(f"{who} has not answered for {timeout:g} s")
        ended = self._processes[place]
        return EngineError(f"worker {place.name}{ended.where} ended with code {ended.returncode}")

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
