"""NodeServer: where the other machines of an engine join. It runs in the engine master."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

import grpc

from orcaserve.control_plane import nodes_pb2 as wire
from orcaserve.control_plane import worker_codec as codec
from orcaserve.control_plane.auth import Door
from orcaserve.control_plane.channel import SERVER_OPTIONS, keepalive, listen, tcp_target
from orcaserve.control_plane.nodes_pb2_grpc import NodesServicer, add_NodesServicer_to_server
from orcaserve.control_plane.tls import Members, Tls
from orcaserve.core import ConfigError, EngineError, OrcaServeError

START_TIMEOUT = 60.0  # s for a node's processes to listen
LOOK_PERIOD = 0.2  # s
FAREWELL = 1.0  # s for the last messages to leave
SPARE = 8  # calls beside the nodes' own: challenges, and nodes that come for nothing

_log = logging.getLogger(__name__)
Position = tuple[int, int]  # stage, shard
Check = Callable[[wire.Hello], OrcaServeError | None]


class Node:
    """Another machine that has joined, for as long as its stream lasts.

    codes: exit codes of its workers that have ended. on_end(position) is called when one has, on_loss() when the stream
    has ended; both on a thread of the stream's.
    """

    def __init__(self, hello: wire.Hello, rank: int) -> None:
        self.name, self.address, self.rank = f"{hello.name} ({hello.address})", hello.address, rank
        self.codes: dict[Position, int] = {}
        self.gone = False
        self.on_end: Callable[[Position], None] = lambda position: None
        self.on_loss: Callable[[], None] = lambda: None
        self._outbox: SimpleQueue[wire.ToNode | None] = SimpleQueue()
        self._news: SimpleQueue[wire.Started | None] = SimpleQueue()  # of starting; None: it fails

    def assign(self, places: Sequence[Position], config: str) -> None:
        """Have it start workers; returns at once."""
        positions = [wire.Position(stage=stage, shard=shard) for stage, shard in places]
        self._outbox.put(wire.ToNode(assignment=wire.Assignment(places=positions, config=config)))

    def started(self) -> wire.Started:
        """Its workers, in the order of the assignment, once they listen. Raises EngineError."""
        try:
            news = self._news.get(timeout=START_TIMEOUT)
        except Empty as error:
            raise EngineError(f"the machine {self.name} has started no workers for {START_TIMEOUT:g} s") from error
        if news is None:
            what = "is gone" if self.gone else "could not start its workers; its log says why"
            raise EngineError(f"the machine {self.name} {what}")
        return news

    def leave(self, goodbye: bool) -> None:
        if goodbye:
            self._outbox.put(wire.ToNode(goodbye=wire.Goodbye()))
        self._outbox.put(None)

    def messages(self) -> Iterator[wire.ToNode]:
        return iter(self._outbox.get, None)

    def read(self, incoming: Iterator[wire.FromNode]) -> None:
        """What it says, until its stream ends."""
        try:
            for message in incoming:
                if message.HasField("started"):
                    self._news.put(message.started)
                elif message.HasField("ended"):
                    position = message.ended.place.stage, message.ended.place.shard
                    self.codes[position] = message.ended.code
                    self._news.put(None)
                    self.on_end(position)
        except grpc.RpcError:
            pass  # it is gone: said below
        except Exception:
            _log.exception("reading a node's messages failed")
        self.gone = True
        self._news.put(None)
        self._outbox.put(None)
        self.on_loss()


class NodeServer(NodesServicer):
    """Takes nodes until there are `n_nodes`, the engine's own machine not counted.

    check: what is wrong with a node, if anything is; it is told, and ends. timeout: seconds after which one that
    answers no ping is taken for lost.
    """

    def __init__(
        self, host: str, port: int, secret: str, timeout: float, n_nodes: int, check: Check, tls: Tls | None = None
    ) -> None:
        """port: 0 is any. Raises ConfigError if it cannot listen there."""
        self._n_nodes, self._check = n_nodes, check
        self._nodes: dict[int, Node] = {}  # by rank, from 1
        self._state = threading.Condition()
        self._complete = False
        door = Door(secret)
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=n_nodes + SPARE, thread_name_prefix="nodes"),
            interceptors=[door] if tls is None else [Members(), door],
            options=[*SERVER_OPTIONS, *keepalive(timeout), ("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=n_nodes + SPARE,
        )
        door.add_to(self._server)
        add_NodesServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        try:
            self.port = listen(self._server, tcp_target(host, port), tls)
        except RuntimeError as error:
            raise ConfigError("--listen-workers", f"cannot listen on {tcp_target(host, port)}") from error
        self._server.start()

    def gather(self, look: Callable[[], None] = lambda: None) -> list[Node]:
        """Wait for all nodes; by rank. From here on no other is taken, and one that is lost stays lost.

        look: called some times a second meanwhile; what it raises ends the wait.
        """
        while True:
            with self._state:
                if self._state.wait_for(lambda: len(self._nodes) == self._n_nodes, LOOK_PERIOD):
                    self._complete = True
                    return [self._nodes[rank] for rank in sorted(self._nodes)]
            look()

    def close(self, goodbye: bool) -> None:
        """End all streams. goodbye: the nodes are to end as well, not to join the next engine. Idempotent."""
        with self._state:
            self._complete = True
            nodes = list(self._nodes.values())
        for node in nodes:
            node.leave(goodbye)
        self._server.stop(FAREWELL).wait()

    def Join(self, request_iterator: Iterator[wire.FromNode], context: grpc.ServicerContext) -> Iterator[wire.ToNode]:
        hello = next(request_iterator).hello
        error = self._check(hello) or self._check_rank(hello.rank)
        if error is not None:
            _log.warning("a machine was refused: %s (%s): %s", hello.name, hello.address, error)
            yield wire.ToNode(refused=codec.encode_failure(error).failure)
            return
        node = self._take(hello)
        if node is None:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the engine has all its machines")
            return
        threading.Thread(target=self._read, args=(node, request_iterator), name="node", daemon=True).start()
        yield from node.messages()

    def _check_rank(self, rank: int) -> OrcaServeError | None:
        if rank <= self._n_nodes:
            return None
        return ConfigError("--node-rank", f"must be from 1 to {self._n_nodes}: the server was started with --nnodes "
                           f"{self._n_nodes + 1}")  # fmt: skip

    def _take(self, hello: wire.Hello) -> Node | None:
        with self._state:
            free = [rank for rank in range(1, self._n_nodes + 1) if rank not in self._nodes]
            if self._complete or not free or (hello.rank and hello.rank not in free):
                return None
            node = Node(hello, hello.rank or free[0])
            self._nodes[node.rank] = node
            _log.info("%s has joined: %d of %d", node.name, len(self._nodes), self._n_nodes)
            self._state.notify_all()
            return node

    def _read(self, node: Node, incoming: Iterator[wire.FromNode]) -> None:
        node.read(incoming)
        with self._state:
            if not self._complete:
                del self._nodes[node.rank]
                _log.warning("%s has left before all were there", node.name)
