"""EngineClient: the endpoint's hold on the engine process. Everything here runs on one asyncio event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc

from orcaserve.control_plane import codec
from orcaserve.control_plane import engine_pb2 as wire
from orcaserve.control_plane.channel import OPTIONS, target_of
from orcaserve.control_plane.engine_pb2_grpc import EngineStub
from orcaserve.control_plane.token_stream import TokenStream
from orcaserve.core import (
    AdapterSource,
    EngineError,
    EngineFacts,
    EngineStatus,
    FinishReason,
    IterationReport,
    LiveRequests,
    ModelError,
    Progress,
    Request,
)
from orcaserve.core.errors import ENGINE_LOST

CLOSE_GRACE = 1.0  # s for the engine to end the stream when asked
N_TICKS = 8  # parts of the time an engine may be silent

_log = logging.getLogger(__name__)
_Call = grpc.aio.StreamStreamCall[wire.ToEngine, wire.FromEngine]


class EngineClient:
    """Submits requests and cancels to the engine, and hands its reports to the streams they concern.

    facts: what the loaded model is.
    status: the engine after its latest report; last_report: when that came, on time.monotonic().
    closed: set when the engine is gone or close() was called; `reason` then says why (for the log).
    on_report: called with each report, before its streams see it; it must not block. May be set at any time.

    An engine that has said nothing for `silence` seconds, not even that it lives, is taken for gone: it hangs.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        call: _Call,
        incoming: AsyncIterator[wire.FromEngine],
        facts: EngineFacts,
        silence: float | None,
    ) -> None:
        """Use EngineClient.connect."""
        self.facts = facts
        self.status = EngineStatus()
        self.last_report = time.monotonic()
        self.closed = asyncio.Event()
        self.reason: str | None = None
        self.on_report: Callable[[IterationReport], None] | None = None
        self._channel = channel
        self._call = call
        self._incoming = incoming
        self._streams: dict[int, TokenStream] = {}
        self._submits: list[wire.Submit] = []
        self._cancels: list[int] = []
        self._listener: Callable[[bytes], None] | None = None  # to the schedule
        self._to_watch: bool | None = None  # what is still to be said of it
        self._n_questions = 0
        self._asks = False
        self._loads: list[AdapterSource] = []
        self._unloads: list[int] = []
        self._adapters: dict[int, asyncio.Future[str | None]] = {}  # by number: what is still to be heard of them
        self._answer: asyncio.Future[LiveRequests] | None = None  # to the question under way
        self._something_to_say = asyncio.Event()
        self._reader = asyncio.create_task(self._read(), name="engine client: read")
        self._writer = asyncio.create_task(self._write(), name="engine client: write")
        self._n_silent_ticks = 0
        self._silence = None if silence is None else asyncio.create_task(self._watch_silence(silence))

    @classmethod
    async def connect(
        cls, socket: Path, silence: float | None = None, start_silence: float | None = None
    ) -> EngineClient:
        """Attach to the engine and wait until its model is loaded; put asyncio.timeout around it to bound the wait.

        The socket may not be there yet. silence, start_silence: seconds without a word after which an engine is taken
        for gone, once its model is loaded and until then; None: no limit. Raises EngineError if the engine gives up.
        """
        channel = grpc.aio.insecure_channel(target_of(socket), options=OPTIONS)
        try:
            call: _Call = EngineStub(channel).Attach(wait_for_ready=True)  # type: ignore[no-untyped-call]
            incoming = aiter(call)  # read() would leave unread what was said just before the end
            while True:
                async with asyncio.timeout(start_silence):
                    first = await anext(incoming, None)
                if not (isinstance(first, wire.FromEngine) and first.HasField("heartbeat")):
                    break
            if isinstance(first, wire.FromEngine) and first.HasField("facts"):
                return cls(channel, call, incoming, codec.decode_facts(first.facts), silence)
            if isinstance(first, wire.FromEngine) and first.HasField("failure"):
                raise EngineError(first.failure.message)
            raise EngineError("the engine closed its stream before it was ready")
        except BaseException as error:
            await channel.close()
            if isinstance(error, grpc.aio.AioRpcError):
                raise EngineError(f"the engine's stream broke: {error.code().name}") from error
            if isinstance(error, TimeoutError):
                raise EngineError(f"the engine said nothing for {start_silence:g} s while it loaded") from error
            raise

    @property
    def n_open(self) -> int:
        """Requests that have not ended yet."""
        return len(self._streams)

    def submit(self, request: Request) -> TokenStream:
        """Hand a request over; its id must never have been used on this client.

        Whatever is submitted or cancelled in one turn of the event loop travels as one message. Raises EngineError
        once the client is closed, InvalidRequest for ids that do not fit the wire.
        """
        self._check_open()
        assert request.id not in self._streams, "a request id is used once"
        self._submits.append(codec.encode_submit(request))
        stream = self._streams[request.id] = TokenStream(request.id)
        self._something_to_say.set()
        return stream

    def cancel(self, request_id: int) -> None:
        """Nobody waits for this request any more: its stream ends with CANCELLED, or as it was about to.

        A request that has ended is left alone. Raises EngineError once the client is closed.
        """
        self._check_open()
        if request_id in self._streams:
            self._cancels.append(request_id)
            self._something_to_say.set()

    def watch(self, listener: Callable[[bytes], None] | None) -> None:
        """Have the listener called with whole lines of the schedule.

        A header comes first, by itself: how things stand. It comes anew when lines had to be left out, and whenever
        this is called again. The listener must return at once, and never raise. None: nobody listens any more. Raises
        EngineError once the client is closed.
        """
        self._check_open()
        self._listener, self._to_watch = listener, listener is not None
        self._something_to_say.set()

    async def describe(self) -> LiveRequests:
        """All live requests, and why each waits. Those who ask while an answer is due share it.

        Raises EngineError once the client is closed.
        """
        self._check_open()
        if self._answer is None:
            self._answer = asyncio.get_running_loop().create_future()
            self._n_questions += 1
            self._asks = True
            self._something_to_say.set()
        return await asyncio.shield(self._answer)

    async def load_adapter(self, adapter: AdapterSource) -> None:
        """Requests may name it when this returns. Raises ModelError if it cannot be loaded, EngineError if the engine
        is gone before that is known."""
        self._check_open()
        self._loads.append(adapter)
        if (error := await self._news_of(adapter.number)) is not None:
            raise ModelError(error)

    async def unload_adapter(self, number: int) -> None:
        """No request names it any more that is submitted after this call; this returns when those that do have ended,
        and its memory is free. Raises EngineError if the engine is gone first."""
        self._check_open()
        self._unloads.append(number)
        await self._news_of(number)

    async def _news_of(self, number: int) -> str | None:
        """Of an adapter that is to be loaded or unloaded."""
        self._something_to_say.set()
        awaited: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._adapters[number] = awaited
        return await awaited

    async def close(self, message: str = ENGINE_LOST) -> None:
        """Let go of the engine; open streams end with an error of this message. Idempotent.

        The engine is asked to end the stream, so that nothing of it is under way when this returns; it has CLOSE_GRACE.
        """
        self._lose("closed by the endpoint", message)
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)
        if self._silence is not None:
            self._silence.cancel()
            await asyncio.gather(self._silence, return_exceptions=True)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.done_writing()
        await asyncio.wait({self._reader}, timeout=CLOSE_GRACE)
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        self._call.cancel()
        await self._channel.close()

    def _check_open(self) -> None:
        if self.closed.is_set():
            raise EngineError(f"the engine is gone: {self.reason}")

    async def _write(self) -> None:
        """One message at a time; what comes meanwhile goes with the next."""
        try:
            while True:
                await self._something_to_say.wait()
                self._something_to_say.clear()
                while self._has_something_to_say():
                    await self._call.write(self._next_message())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the stream is over: the reader says why

    def _has_something_to_say(self) -> bool:
        turn = self._submits or self._cancels or self._asks or self._loads or self._unloads
        return bool(turn) or self._to_watch is not None

    def _next_message(self) -> wire.ToEngine:
        """All that waits, up to a bound on the message. All else waits for the submits before it."""
        n, size = 0, 0
        for submit in self._submits:
            size += submit.ByteSize()
            if n > 0 and size > codec.MAX_TURN_BYTES:
                break
            n += 1
        submits, self._submits = self._submits[:n], self._submits[n:]
        cancels: list[int] = []
        question = 0
        loads: list[AdapterSource] = []
        unloads: list[int] = []
        if not self._submits:
            loads, self._loads = self._loads, []
            unloads, self._unloads = self._unloads, []
            cancels, self._cancels = self._cancels, []
            question, self._asks = self._n_questions if self._asks else 0, False
        watch, self._to_watch = self._to_watch, None
        return codec.encode_turn(submits, cancels, watch, question, loads, unloads)

    async def _read(self) -> None:
        reason = "its stream ended"
        try:
            async for message in self._incoming:
                self._n_silent_ticks = 0
                if message.HasField("report"):
                    self._dispatch(message.report)
                elif message.HasField("schedule_lines"):
                    if self._listener is not None:
                        self._listener(message.schedule_lines)
                elif message.HasField("live"):
                    self._take_answer(message.live)
                elif message.HasField("adapter"):
                    news = message.adapter
                    if (awaited := self._adapters.pop(news.number, None)) is not None and not awaited.done():
                        awaited.set_result(news.error or None)
                elif message.HasField("failure"):
                    reason = message.failure.message
                    break
        except grpc.aio.AioRpcError as error:
            reason = f"its stream broke: {error.code().name}"
        except Exception as error:
            _log.exception("reading the engine's reports failed")
            reason = f"its report could not be read: {type(error).__name__}"
        self._lose(reason)

    async def _watch_silence(self, silence: float) -> None:
        """Counts ticks of this loop: when this process itself was stopped a while, the engine is not to blame."""
        while self._n_silent_ticks < N_TICKS:
            await asyncio.sleep(silence / N_TICKS)
            self._n_silent_ticks += 1
        self._lose(f"it has said nothing for {silence:g} s")

    def _dispatch(self, message: wire.IterationReport) -> None:
        progress = codec.decode_progress(message)
        self.status = codec.decode_status(message.status)
        self.last_report = time.monotonic()
        if self.on_report is not None:
            self.on_report(IterationReport(progress, self.status))
        for news in progress:
            stream = self._streams.get(news.request_id)
            if stream is None:
                continue
            stream.put(news)
            if news.finish_reason is not None:
                del self._streams[news.request_id]

    def _take_answer(self, live: wire.LiveRequests) -> None:
        if self._answer is not None and not self._answer.done() and live.question == self._n_questions:
            self._answer.set_result(codec.decode_live(live))
            self._answer = None

    def _lose(self, reason: str, message: str = ENGINE_LOST) -> None:
        """The engine is gone: say so to everyone who waits. Idempotent."""
        if self.closed.is_set():
            return
        self.reason = reason
        self.closed.set()
        if self._answer is not None:
            self._answer.set_exception(EngineError(f"the engine is gone: {reason}"))
            self._answer.exception()  # nobody may be waiting any more
        adapters, self._adapters = self._adapters, {}
        for awaited in adapters.values():
            if not awaited.done():
                awaited.set_exception(EngineError(f"the engine is gone: {reason}"))
                awaited.exception()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.put(Progress(stream.request_id, None, FinishReason.ERROR, message))
