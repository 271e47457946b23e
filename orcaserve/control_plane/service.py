"""EngineServer: the engine process's end of the control plane, for the one endpoint it belongs to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

import grpc

from orcaserve.control_plane import codec
from orcaserve.control_plane import engine_pb2 as wire
from orcaserve.control_plane.adapter_codec import decode_adapter, encode_adapter_news
from orcaserve.control_plane.channel import HEARTBEAT_SECONDS, OPTIONS, target_of
from orcaserve.control_plane.engine_pb2_grpc import EngineServicer, add_EngineServicer_to_server
from orcaserve.control_plane.schedule_sink import ScheduleSink
from orcaserve.core import (
    AdapterAnswer,
    AdapterSource,
    EngineError,
    EngineFacts,
    InvalidRequest,
    IterationReport,
    LiveRequests,
    NoRoom,
    Request,
    Sink,
)

_log = logging.getLogger(__name__)


class _Nothing:
    """There has been nothing to say for a while."""


@dataclass(frozen=True, slots=True)
class _Answer:
    question: int
    live: LiveRequests


_Item = (
    EngineFacts | IterationReport | bytes | _Answer | wire.AdapterNews | str | _Nothing
)  # bytes: lines; str: why the engine gives up


class Host(Protocol):
    """What a stream is joined to. Called from one thread of the server's."""

    def submit(self, requests: Sequence[Request]) -> None: ...

    def cancel(self, request_ids: Sequence[int]) -> None: ...

    def refuse(self, request_id: int, why: str) -> None: ...

    def watch(self, sink: Sink | None) -> None: ...

    def describe(self, answer: Callable[[LiveRequests], None]) -> None: ...

    def load_adapter(self, adapter: AdapterSource, answer: AdapterAnswer) -> None: ...

    def unload_adapter(self, number: int, answer: AdapterAnswer) -> None: ...


class EngineServer(EngineServicer):
    """Serves one stream on a Unix socket, whose directory must be closed to other users.

    The socket is there from start(), before the model is loaded; open() lets the endpoint in.

        endpoint -> Attach -> reader thread -> host.submit, host.cancel, host.watch, host.describe
        loop thread -> report(), lines, answers -> outbox -> sender thread -> endpoint

    The sender waits for nobody but the outbox, so heartbeats go out however long an iteration or the loading takes.

    attached: set once the endpoint has been let in, and in any case once its stream has ended.
    on_end: called when the endpoint's stream has ended, whoever ended it; on a thread of gRPC's.
    """

    def __init__(self, socket: Path, on_end: Callable[[], None]) -> None:
        self.attached = threading.Event()
        self._on_end = on_end
        self._socket = socket
        self._host: Host | None = None
        self._outbox: SimpleQueue[_Item | None] = SimpleQueue()
        self._lines = ScheduleSink(self._outbox.put)
        self._watched = False
        self._watch_lock = threading.Lock()  # the reader is asked to watch, the sender has lost lines
        self._taken = threading.Lock()
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=2, thread_name_prefix="control plane"),
            options=OPTIONS,
            maximum_concurrent_rpcs=2,
        )
        add_EngineServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]

    def start(self) -> None:
        """Listen. Raises NoRoom if the socket cannot be made."""
        try:
            self._server.add_insecure_port(target_of(self._socket))
        except RuntimeError as error:
            raise NoRoom("the engine's socket cannot be made") from error
        self._server.start()

    def open(self, facts: EngineFacts, host: Host) -> None:
        """The model is loaded: tell the endpoint, and take requests from it. Called once."""
        assert self._host is None
        self._host = host
        self._outbox.put(facts)

    def report(self, report: IterationReport) -> None:
        """Send one turn's news; returns at once. Any thread."""
        self._outbox.put(report)

    def fail(self, message: str) -> None:
        """Tell the endpoint why there will be no more, and end the stream."""
        self._outbox.put(message)
        self._outbox.put(None)

    def close(self, grace: float = 1.0) -> None:
        """End the stream after what is in the outbox, for at most `grace` seconds. Idempotent."""
        self._outbox.put(None)
        self._server.stop(grace).wait()

    def Attach(
        self, request_iterator: Iterator[wire.ToEngine], context: grpc.ServicerContext
    ) -> Iterator[wire.FromEngine]:
        """The one stream; gRPC calls this on the sender thread."""
        if not self._taken.acquire(blocking=False):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the engine belongs to another endpoint")
        if not context.add_callback(self._ended):
            self._ended()
        while (item := self._next()) is not None:
            if isinstance(item, _Nothing):
                yield codec.encode_heartbeat()
            elif isinstance(item, IterationReport):
                yield from codec.encode_reports(item)
            elif isinstance(item, EngineFacts):
                threading.Thread(
                    target=self._read, args=(request_iterator, self._host), name="control plane: read", daemon=True
                ).start()
                self.attached.set()  # before the yield: gRPC never returns from it if the endpoint leaves right then
                yield codec.encode_facts(item)
            elif isinstance(item, bytes):
                yield codec.encode_lines(item)
                if self._lines.sent(len(item)):
                    self._watch_anew()
            elif isinstance(item, wire.AdapterNews):
                yield wire.FromEngine(adapter=item)
            elif isinstance(item, _Answer):
                yield codec.encode_live(item.question, item.live)
            else:
                yield codec.encode_failure(item)

    def _next(self) -> _Item | None:
        """What to say next; None: the stream is to end."""
        try:
            return self._outbox.get(timeout=HEARTBEAT_SECONDS)
        except Empty:
            return _Nothing()

    def _ended(self) -> None:
        self._outbox.put(None)
        self.attached.set()
        self._on_end()

    def _read(self, incoming: Iterator[wire.ToEngine], host: Host) -> None:
        """Hand over what the endpoint says, until its stream ends."""
        try:
            for message in incoming:
                decoded = [self._decode(submit, host) for submit in message.submits]
                if requests := [request for request in decoded if request is not None]:
                    host.submit(requests)
                if message.cancels:
                    host.cancel(list(message.cancels))
                for adapter in message.loads:
                    host.load_adapter(decode_adapter(adapter), partial(self._tell, adapter.number, False))
                for number in message.unloads:
                    host.unload_adapter(number, partial(self._tell, number, True))
                if message.HasField("watch"):
                    self._watch(host, message.watch)
                if message.question:
                    host.describe(partial(self._answer, message.question))
        except (grpc.RpcError, EngineError):
            pass  # the stream or the host is over; both are told of elsewhere
        except Exception:
            _log.exception("reading from the endpoint failed")
            self.fail("reading from the endpoint failed")
        finally:
            self._outbox.put(None)

    def _watch(self, host: Host, on: bool) -> None:
        with self._watch_lock:
            self._watched = on
            self._lines.rest()
            host.watch(self._lines if on else None)

    def _watch_anew(self) -> None:
        """What was lost had no room; now there is some."""
        with self._watch_lock:
            if self._watched and self._host is not None:
                self._host.watch(self._lines)

    def _tell(self, number: int, unloaded: bool, error: str | None) -> None:
        self._outbox.put(encode_adapter_news(number, error, unloaded))

    def _answer(self, question: int, live: LiveRequests) -> None:
        self._outbox.put(_Answer(question, live))

    def _decode(self, submit: wire.Submit, host: Host) -> Request | None:
        """The request, or None after refusing it."""
        try:
            return codec.decode_submit(submit)
        except InvalidRequest as error:
            host.refuse(submit.request_id, error.message)
            return None
