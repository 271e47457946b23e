"""NodeAgent: `orcaserve worker`. Joins an engine, runs the workers it is told to, and then joins the next engine."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from orcaserve.checkpoint.fingerprint import fingerprint
from orcaserve.config import EngineConfig, NodesConfig, check_open, split_address
from orcaserve.control_plane import nodes_pb2 as wire
from orcaserve.control_plane import worker_codec as codec
from orcaserve.control_plane.channel import listen_at, own_address, tcp_target
from orcaserve.control_plane.node_client import NodeLink
from orcaserve.control_plane.tls import Tls
from orcaserve.core import EngineError
from orcaserve.core.tls import TlsFiles
from orcaserve.data_plane.memory import shared_by
from orcaserve.data_plane.protocol import Place
from orcaserve.node.worker_process import WorkerProcess
from orcaserve.version import __version__

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0  # s before joining again; doubled while nobody answers
PATIENCE = 5.0  # s for an answer, once it has joined before
END_GRACE = 0.5  # s that workers have to say why they end, and to end by themselves

_log = logging.getLogger("orcaserve")


class _Apart(Exception):
    """This node is with no engine (any more); another try may help. Its text says why."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What a node needs to know by itself; the rest comes from the master.

    join: the master's HOST:PORT. rank: from 1; 0 is any. name: for people; empty: this machine's.
    join_timeout: seconds to find the master at first.
    worker_timeout: seconds after which a master that answers no ping is taken for lost.
    """

    join: str
    model: Path
    secret: str = ""
    tls: TlsFiles | None = None
    threads: int | None = None
    rank: int = 0
    name: str = ""
    join_timeout: float = 30.0
    worker_timeout: float = 30.0


class NodeAgent:
    """Run it on the main thread: its workers die with the thread that starts them."""

    def __init__(self, settings: NodeSettings) -> None:
        """Reads the model's headers. Raises ModelError or ConfigError."""
        self._settings = settings
        self._tls()
        self._host, self._port = split_address("--join", settings.join)
        self._model, self._fingerprint = fingerprint(settings.model)
        self._joined = False
        self._news: SimpleQueue[wire.ToNode | str] = SimpleQueue()
        self._processes: dict[Place, WorkerProcess] = {}

    def run(self) -> None:
        """Until the master says goodbye. Raises what it has against this node, EngineError if it is not found."""
        deadline, pause = time.monotonic() + self._settings.join_timeout, FIRST_PAUSE
        said = ""
        while True:
            try:
                self._be_part(deadline)
                return
            except _Apart as apart:
                if not self._joined and time.monotonic() + pause > deadline:
                    raise EngineError(f"{apart} (tried for {self._settings.join_timeout:g} s; see --join)") from apart
                if str(apart) != said:
                    _log.warning("%s; trying again", apart)
                pause = min(2 * pause, LONGEST_PAUSE) if str(apart) == said else FIRST_PAUSE
                said = str(apart)
            time.sleep(pause)

    def run_once(self) -> None:
        """As `run`, but with one engine only, however it ends."""
        try:
            self._be_part(time.monotonic() + self._settings.join_timeout)
        except _Apart as apart:
            if not self._joined:
                raise EngineError(str(apart)) from apart

    def _tls(self) -> Tls | None:
        """From its files as they are now: they may have been renewed since the last engine."""
        return None if self._settings.tls is None else Tls(self._settings.tls)

    def _be_part(self, deadline: float) -> None:
        """Of one engine, from joining to goodbye. Raises _Apart if it ends otherwise."""
        settings, target = self._settings, tcp_target(self._host, self._port)
        self._news = SimpleQueue()
        patience = PATIENCE if self._joined else max(deadline - time.monotonic(), 0.5)
        try:
            address = own_address(self._host, self._port)
            check_open("--join", address, settings.secret, settings.tls)
            hello = wire.Hello(
                version=__version__, name=settings.name or socket.gethostname(), address=address, rank=settings.rank,
                model=self._model, fingerprint=self._fingerprint,
            )  # fmt: skip
            link = NodeLink(target, settings.secret, hello, settings.worker_timeout, patience, self._news, self._tls())
        except (EngineError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else "nobody answers"
            raise _Apart(f"no engine at {target}: {reason}") from error
        try:
            self._follow(link, address)
        finally:
            self._end_workers()
            link.close()

    def _follow(self, link: NodeLink, address: str) -> None:
        """Do what the master says until goodbye. Raises _Apart, or the error for which the master refuses this node."""
        while not isinstance(message := self._news.get(), str):
            if message.HasField("refused"):
                raise codec.decode_failure(message.refused)
            if message.HasField("goodbye"):
                return
            self._start(link, message.assignment, address)
        raise _Apart(f"{self._settings.join}: {message}")

    def _start(self, link: NodeLink, assignment: wire.Assignment, address: str) -> None:
        config, settings = EngineConfig.from_json(assignment.config), self._settings
        config = replace(
            config,
            model=replace(config.model, path=settings.model, threads=settings.threads),
            nodes=NodesConfig(secret=settings.secret, tls=settings.tls),
        )
        sizes = config.parallel.pipeline_parallel_size, config.parallel.tensor_parallel_size
        places = [Place(position.stage, position.shard, *sizes) for position in assignment.places]
        store = 0
        with shared_by(places) as memory:
            for index, place in enumerate(places):
                with contextlib.ExitStack() as ours:  # the worker that serves the store has it, once it has started
                    listener = ours.enter_context(listen_at(address)) if place.rank == 0 else None
                    store = store if listener is None else listener.getsockname()[1]
                    self._processes[place] = WorkerProcess(
                        place, config, partial(self._tell_end, link, place), address=address,
                        store=None if listener is None else listener.fileno(), memory=memory,
                        among=(index, len(places)),
                    )  # fmt: skip
        names = ", ".join(place.name for place in self._processes)
        _log.info("part of the engine at %s: runs %s", settings.join, names)
        workers = [wire.StartedWorker(port=process.port(), pid=process.pid) for process in self._processes.values()]
        self._joined = True
        if all(worker.port for worker in workers):
            link.send(wire.FromNode(started=wire.Started(workers=workers, store=store)))

    def _tell_end(self, link: NodeLink, place: Place) -> None:
        process = self._processes.get(place)
        if process is not None:
            position, code = wire.Position(stage=place.stage, shard=place.shard), process.returncode
            link.send(wire.FromNode(ended=wire.Ended(place=position, code=code)))

    def _end_workers(self) -> None:
        processes, self._processes = list(self._processes.values()), {}
        deadline = time.monotonic() + END_GRACE
        for process in processes:
            process.wait(max(deadline - time.monotonic(), 0))
            process.kill()
        for process in processes:
            process.reap()
