"""NodeLink: a node's stream to the engine master."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

import grpc

from orcaserve.control_plane import nodes_pb2 as wire
from orcaserve.control_plane.auth import authenticate
from orcaserve.control_plane.channel import channel_to, split_target
from orcaserve.control_plane.nodes_pb2_grpc import NodesStub
from orcaserve.control_plane.tls import Tls, meet

LEAST = 2.0  # s for an answer of somebody who has just answered
_JOIN = "/orcaserve.v1.Nodes/Join"


class NodeLink:
    """Joins a master. What it says is put into `news`; last, the words for why the stream has ended."""

    def __init__(
        self,
        target: str,
        secret: str,
        hello: wire.Hello,
        timeout: float,
        patience: float,
        news: SimpleQueue[wire.ToNode | str],
        tls: Tls | None = None,
    ) -> None:
        """timeout: seconds that a ping may stay without an answer; patience: that the master may take to answer at all.

        Raises as `meet` and `authenticate`.
        """
        deadline = time.monotonic() + patience
        meet(*split_target(target), tls, patience)
        self._outbox: SimpleQueue[wire.FromNode | None] = SimpleQueue()
        self._news = news
        self._channel = channel_to(target, timeout, tls)
        try:
            metadata = authenticate(self._channel, target, secret, _JOIN, max(deadline - time.monotonic(), LEAST))
        except BaseException:
            self._channel.close()
            raise
        self.send(wire.FromNode(hello=hello))
        stub = NodesStub(self._channel)  # type: ignore[no-untyped-call]
        self._call = stub.Join(iter(self._outbox.get, None), metadata=metadata)
        self._reader = threading.Thread(target=self._read, name="control plane: read", daemon=True)
        self._reader.start()

    def send(self, message: wire.FromNode) -> None:
        """Returns at once."""
        self._outbox.put(message)

    def close(self) -> None:
        """Idempotent."""
        self._outbox.put(None)
        self._call.cancel()
        self._reader.join()
        self._channel.close()

    def _read(self) -> None:
        reason = "the engine has ended"
        try:
            for message in self._call:
                self._news.put(message)
        except grpc.RpcError as error:
            code = error.code() if isinstance(error, grpc.Call) else None
            if code is grpc.StatusCode.RESOURCE_EXHAUSTED and isinstance(error, grpc.Call):
                reason = error.details() or reason
        self._outbox.put(None)  # gRPC's own thread waits for it
        self._news.put(reason)
