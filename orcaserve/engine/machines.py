"""Machines: the machines of an engine that are not the master's: waited for, checked, and told what to run."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from dataclasses import replace

from orcaserve.checkpoint.fingerprint import fingerprint
from orcaserve.config import EngineConfig, NodesConfig, split_address
from orcaserve.control_plane import nodes_pb2 as wire
from orcaserve.control_plane.channel import listen_at, own_address, tcp_target
from orcaserve.control_plane.node_service import Check, Node, NodeServer
from orcaserve.control_plane.tls import Tls
from orcaserve.core import ConfigError, EngineError, OrcaServeError
from orcaserve.data_plane.protocol import Place
from orcaserve.engine.placement import deal
from orcaserve.version import __version__

_log = logging.getLogger(__name__)


class RemoteWorker:
    """A worker process of another machine, with the look of a WorkerProcess. Only the end of the engine ends it."""

    def __init__(self, node: Node, place: Place, started: wire.StartedWorker) -> None:
        self._node, self._position = node, (place.stage, place.shard)
        self.pid, self.target = started.pid, tcp_target(node.address, started.port)
        self.where = f" on {node.name}"

    @property
    def returncode(self) -> int | None:
        return self._node.codes.get(self._position)

    def wait(self, timeout: float) -> None: ...
    def kill(self) -> None: ...
    def reap(self) -> None: ...


class Machines:
    """The others, from waiting for them to goodbye. None at all is the usual case.

    tls: how they are spoken to, if it is by TLS. address: of this machine, for its workers' data plane.
    store: the socket at which that plane's workers meet, if the first of them is this machine's.
    secret: what callers of a worker on another machine must have.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Raises ConfigError for TLS files that are of no use."""
        self._config = config
        self.secret = config.nodes.secret
        self.tls = None if config.nodes.tls is None else Tls(config.nodes.tls)
        self._server: NodeServer | None = None
        self.rendezvous = ""  # HOST:PORT of the store; empty on one machine
        self.nodes: list[Node] = []
        self.address = "127.0.0.1"
        self.store: socket.socket | None = None

    def gather(self) -> None:
        """Wait until all have joined.

        Raises ConfigError if this machine cannot listen where it is to; ModelError; EngineError.
        """
        nodes = self._config.nodes
        if nodes.listen is None:
            return
        host, port = split_address("--listen-workers", nodes.listen)
        timeout, n_others = self._config.parallel.worker_timeout, nodes.n_nodes - 1
        check = checker(*fingerprint(self._config.model.path))
        self._server = NodeServer(host, port, nodes.secret, timeout, n_others, check, self.tls)
        _log.info("waiting for %d other machines: orcaserve worker --join %s", n_others, nodes.listen)
        self.nodes = self._server.gather()
        try:
            self.address = own_address(self.nodes[0].address, port)
            self.store = listen_at(self.address)
            self.rendezvous = tcp_target(*self.store.getsockname()[:2])
        except OSError as error:
            raise EngineError(f"the machine {self.nodes[0].name} cannot be reached: {error.strerror}") from error

    def shares(self, places: Sequence[Place]) -> list[list[Place]]:
        """What each machine is to run, this one first."""
        return deal(places, self._config.nodes)

    def assign(self, node: Node, places: list[Place]) -> None:
        """Returns at once. Secret and model path stay here: each machine has its own."""
        config = replace(self._config, nodes=NodesConfig(), ray=None)
        node.assign([(place.stage, place.shard) for place in places], config.to_json())

    def workers(self, node: Node, places: list[Place]) -> dict[Place, RemoteWorker]:
        """Of one machine, once they listen. Raises EngineError."""
        started = node.started()
        if started.store:
            self.rendezvous = tcp_target(node.address, started.store)
        return {place: RemoteWorker(node, place, worker) for place, worker in zip(places, started.workers, strict=True)}

    def close(self, goodbye: bool) -> None:
        """Idempotent."""
        if self._server is not None:
            self._server.close(goodbye)
        self.hand_over_store()

    def hand_over_store(self) -> None:
        """The worker that serves it has it now."""
        if self.store is not None:
            self.store.close()


def checker(model: str, digest: str) -> Check:
    """What to hold against a node that has another version or another model."""

    def check(hello: wire.Hello) -> OrcaServeError | None:
        if hello.version != __version__:
            return EngineError(f"orcaserve is {hello.version} here, {__version__} on the server: install the same")
        if hello.model != model:
            return ConfigError("--model", f"is {hello.model} here, but {model} on the server: give both the same")
        if hello.fingerprint != digest:
            return ConfigError("--model", "has the server's architecture but other weights: give both the same files")
        return None

    return check
