"""WorkerServer: a worker process's end of the control plane, for its master and for the stage before it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Protocol

import grpc

from orcaserve.control_plane import engine_pb2 as engine_wire
from orcaserve.control_plane import worker_pb2 as wire
from orcaserve.control_plane.auth import Door
from orcaserve.control_plane.channel import SERVER_OPTIONS, listen
from orcaserve.control_plane.health import health_handler
from orcaserve.control_plane.tls import Members, Tls
from orcaserve.control_plane.worker_pb2_grpc import WorkerServicer, add_WorkerServicer_to_server
from orcaserve.core import EngineError

_log = logging.getLogger(__name__)


class Controller(Protocol):
    """What the streams are joined to. Each of its calls comes on a thread of the control plane's."""

    def start(self, start: wire.Start) -> None: ...

    def take(self, iteration: wire.Iteration) -> None: ...

    def load_adapter(self, message: engine_wire.Adapter) -> None: ...

    def unload_adapter(self, number: int) -> None: ...

    def lose(self, who: str) -> None:
        """A stream to this worker has ended, whoever ended it."""


class WorkerServer(WorkerServicer):
    """Serves one master and one earlier stage: on a Unix socket, whose directory is closed to other users, or on TCP.

        master -> Attach -> reader thread -> controller.start, controller.take     (first stage)
        stage before -> Forward -> its own thread -> controller.take               (every later stage)
        any thread -> send() -> outbox -> Attach's thread -> master

    Health: serving from open() on.
    """

    def __init__(self, target: str, controller: Controller, secret: str | None = None, tls: Tls | None = None) -> None:
        """target: gRPC's name of where to listen; port 0 is any. secret: what callers must have, if they are asked.
        tls: for others than Unix sockets.
        """
        self._target, self._controller, self._tls = target, controller, tls
        door = None if secret is None else Door(secret)
        self._outbox: SimpleQueue[wire.FromWorker | None] = SimpleQueue()
        self._attached, self._forwarded = threading.Lock(), threading.Lock()
        self._has_master = threading.Event()
        self._open = False
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=4, thread_name_prefix="control plane"),
            interceptors=([] if tls is None else [Members()]) + ([] if door is None else [door]),
            options=SERVER_OPTIONS,
            maximum_concurrent_rpcs=4,
        )
        add_WorkerServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        if door is not None:
            door.add_to(self._server)
        self._server.add_generic_rpc_handlers((health_handler(lambda: self._open),))

    def start(self) -> int:
        """Listen. Returns the port, if it has one. Raises EngineError if the socket cannot be made."""
        try:
            port = listen(self._server, self._target, self._tls)
        except RuntimeError as error:
            raise EngineError("the worker's socket cannot be made") from error
        self._server.start()
        return port

    def open(self) -> None:
        """The worker takes iterations from now on."""
        self._open = True

    def send(self, message: wire.FromWorker) -> None:
        """To the master; returns at once. Any thread."""
        self._outbox.put(message)

    def close(self, grace: float = 1.0, attach_grace: float = 0.0) -> None:
        """End the streams after what is in the outbox, for at most `grace` seconds. Idempotent.

        attach_grace: seconds to wait for a master that has not come yet, if there is something to tell it.
        """
        self._open = False
        self._has_master.wait(attach_grace)
        self._outbox.put(None)
        self._server.stop(grace).wait()

    def Attach(
        self, request_iterator: Iterator[wire.ToWorker], context: grpc.ServicerContext
    ) -> Iterator[wire.FromWorker]:
        """gRPC calls this on the thread that sends."""
        if not self._attached.acquire(blocking=False):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the worker belongs to another master")
        self._has_master.set()
        threading.Thread(target=self._read, args=(request_iterator,), name="control plane: read", daemon=True).start()
        yield from iter(self._outbox.get, None)

    def Forward(self, request_iterator: Iterator[wire.Iteration], context: grpc.ServicerContext) -> wire.Forwarded:
        if not self._forwarded.acquire(blocking=False):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the worker has a stage before it already")
        try:
            for iteration in request_iterator:
                self._controller.take(iteration)
        except grpc.RpcError:
            pass  # it is gone: said below
        except Exception:
            _log.exception("taking an iteration failed")
        self._controller.lose("the stage before")
        return wire.Forwarded()

    def _read(self, incoming: Iterator[wire.ToWorker]) -> None:
        """What the master says, until its stream ends."""
        try:
            for message in incoming:
                if message.HasField("iteration"):
                    self._controller.take(message.iteration)
                elif message.HasField("clock"):
                    received = time.monotonic_ns()
                    answer = wire.ClockAnswer(sent=message.clock.sent, received=received, replied=time.monotonic_ns())
                    self.send(wire.FromWorker(clock=answer))
                elif message.HasField("start"):
                    self._controller.start(message.start)
                elif message.HasField("load"):
                    self._controller.load_adapter(message.load)
                elif message.HasField("unload"):
                    self._controller.unload_adapter(message.unload)
        except grpc.RpcError:
            pass  # it is gone: said below
        except Exception:
            _log.exception("taking a message failed")
        self._controller.lose("the engine master")
