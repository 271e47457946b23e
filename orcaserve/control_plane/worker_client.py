"""The callers of a worker: its master, and the stage before it. Threads and queues, no event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

import grpc

from orcaserve.control_plane import worker_pb2 as wire
from orcaserve.control_plane.auth import Metadata, authenticate
from orcaserve.control_plane.channel import channel_to, is_local, split_target
from orcaserve.control_plane.tls import Tls, meet
from orcaserve.control_plane.worker_pb2_grpc import WorkerStub
from orcaserve.core import EngineError

START_PATIENCE = 30.0  # s for a worker to listen, at least; an interpreter may start slowly on a busy machine
_SERVICE = "/orcaserve.v1.Worker/"
CALL_TIMEOUT = 10.0  # s for a worker of another machine, which listens already, to answer the first call


def _metadata(channel: grpc.Channel, target: str, secret: str, method: str) -> Metadata:
    return () if is_local(target) else authenticate(channel, target, secret, _SERVICE + method, CALL_TIMEOUT)


def _meet(target: str, tls: Tls | None) -> None:
    if tls is not None and not is_local(target):
        meet(*split_target(target), tls, CALL_TIMEOUT)


class WorkerLink:
    """The master's stream to one worker.

    on_message: called with what the worker says, on a thread of this link's. on_end: called once, last, on that thread,
    with why the stream has ended: whoever ended it.
    """

    def __init__(
        self,
        target: str,
        secret: str,
        timeout: float,
        on_message: Callable[[wire.FromWorker], None],
        on_end: Callable[[str], None],
        tls: Tls | None = None,
    ) -> None:
        """target: gRPC's name of the worker. A Unix socket may not be there yet: it has START_PATIENCE to come, or
        `timeout` if that is longer. secret: asked for elsewhere. timeout: seconds that a ping may stay without an
        answer, once there is somebody to ask. tls: for elsewhere. Raises as `meet` and `authenticate`.
        """
        _meet(target, tls)
        self._outbox: SimpleQueue[wire.ToWorker | None] = SimpleQueue()
        self._on_message, self._on_end = on_message, on_end
        self._channel = channel_to(target, timeout, tls)
        self._connected = grpc.channel_ready_future(self._channel)
        self._patience = max(timeout, START_PATIENCE)
        metadata = _metadata(self._channel, target, secret, "Attach")
        stub = WorkerStub(self._channel)  # type: ignore[no-untyped-call]
        self._call = stub.Attach(iter(self._outbox.get, None), wait_for_ready=True, metadata=metadata)
        self._reader = threading.Thread(target=self._read, name="control plane: read", daemon=True)
        self._reader.start()

    def start(self, start: wire.Start) -> None:
        self._outbox.put(wire.ToWorker(start=start))

    def send(self, iteration: wire.Iteration) -> None:
        """Returns at once."""
        self._outbox.put(wire.ToWorker(iteration=iteration))

    def tell(self, message: wire.ToWorker) -> None:
        """Returns at once."""
        self._outbox.put(message)

    def ask_time(self) -> None:
        """Returns at once; the answer is a message."""
        self._outbox.put(wire.ToWorker(clock=wire.ClockQuestion(sent=time.monotonic_ns())))

    def close(self) -> None:
        """End the stream, and with it the worker. Idempotent; not from `on_message` or `on_end`."""
        self._outbox.put(None)
        self._connected.cancel()
        self._call.cancel()
        self._reader.join()
        self._channel.close()

    def _read(self) -> None:
        reason = "its stream ended"
        try:
            self._connected.result(self._patience)
            for message in self._call:
                self._on_message(message)
        except grpc.RpcError as error:
            reason = f"its stream broke: {error.code().name}" if isinstance(error, grpc.Call) else "its stream broke"
        except (grpc.FutureTimeoutError, grpc.FutureCancelledError):
            reason = "it could not be reached"
            self._call.cancel()
        self._outbox.put(None)  # gRPC's own thread waits for it
        self._on_end(reason)


class NextStage:
    """A worker's stream to the same shard of the next stage. on_end: called once when it has ended."""

    def __init__(
        self, target: str, secret: str, timeout: float, on_end: Callable[[], None], tls: Tls | None = None
    ) -> None:
        """As WorkerLink's."""
        _meet(target, tls)
        self._outbox: SimpleQueue[wire.Iteration | None] = SimpleQueue()
        self._channel = channel_to(target, timeout, tls)
        try:  # the next worker listens before it loads, so nothing is waited for but its interpreter
            grpc.channel_ready_future(self._channel).result(timeout)
        except grpc.FutureTimeoutError as error:
            self._channel.close()
            raise EngineError("the next stage cannot be reached") from error
        metadata = _metadata(self._channel, target, secret, "Forward")
        stub = WorkerStub(self._channel)  # type: ignore[no-untyped-call]
        self._call = stub.Forward.future(iter(self._outbox.get, None), metadata=metadata)
        self._call.add_done_callback(lambda _: self._ended(on_end))

    def forward(self, iteration: wire.Iteration) -> None:
        """Returns at once."""
        self._outbox.put(iteration)

    def close(self) -> None:
        self._outbox.put(None)
        self._call.cancel()
        self._channel.close()

    def _ended(self, on_end: Callable[[], None]) -> None:
        self._outbox.put(None)
        on_end()
