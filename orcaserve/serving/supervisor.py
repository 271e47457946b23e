"""Supervisor: the engine as the service sees it, which outlives its process: when one dies, another goes on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from orcaserve.config import EngineConfig, ServingConfig
from orcaserve.control_plane.client import EngineClient
from orcaserve.control_plane.token_stream import TokenStream
from orcaserve.core import (
    AdapterSource,
    EngineError,
    EngineFacts,
    EngineStatus,
    IterationReport,
    LiveRequests,
    NoRoom,
    OrcaServeError,
    Request,
)
from orcaserve.core.errors import ENGINE_LOST
from orcaserve.core.watching import MOST_DESCRIBED
from orcaserve.serving.launcher import EngineProcess
from orcaserve.serving.ongoing import MAX_CRASHES, OngoingRequests
from orcaserve.serving.stall import StallWatch

MAX_RESTARTS = 5  # in a row, of engines that lived for less than SHORT_LIFE
SHORT_LIFE = 5.0  # s after the model was loaded
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 8.0  # s before the second restart in such a row; doubled for each further one
LAST_NEWS = 2.0  # s to read what a process that has ended still said
OWN_END = 0.3  # s for a process whose stream has ended to end by itself: its exit code is for the log
START_SILENCE = 30.0  # s; an interpreter that starts on a busy machine says nothing for longer than one that runs
WAITING_PERIOD = 5.0  # s between two calls of on_waiting
DESCRIBE_SECONDS = 2.0  # that the engine has to describe its requests

_log = logging.getLogger("orcaserve")


class Supervisor:
    """Starts the engine, submits to it, and replaces it when its process or its stream ends, when it is silent, or when
    it makes no progress though it has work.

        supervisor = Supervisor(serving, engine)
        supervisor.start()                  # main thread; returns at once, the model loads meanwhile
        await supervisor.connect()          # until the model is loaded; from here on it is watched
        supervisor.submit(request)          # -> its news until its end, from however many engines
        await supervisor.close(message)     # what is unfinished ends with this error, and the process ends

    An unfinished request goes on in the next engine as one initiation over its prompt and the tokens that have come;
    what it sampled from continues, so its text is the one it would have had.

    facts, status, last_report, on_report: as EngineClient has them, of the engine there is.
    on_restart: called when an engine is ready in place of another.
    on_waiting: called when the engine is lost and every WAITING_PERIOD until another is ready.
    closed: set once there will be no further engine; `reason` then says why (for the log).
    on_given_up: called when `closed` has been set because engines died in a row; what is still here afterwards fails.
    name: of the engine, in the log.
    """

    def __init__(self, serving: ServingConfig, engine: EngineConfig, name: str = "the engine") -> None:
        self.closed = asyncio.Event()
        self.reason: str | None = None
        self.on_report: Callable[[IterationReport], None] | None = None
        self.on_restart: Callable[[], None] = lambda: None
        self.on_waiting: Callable[[], None] = lambda: None
        self.on_given_up: Callable[[], None] = lambda: None
        self._name = name
        self._for = "" if name == "the engine" else f" as {name}"  # in the log
        self._serving = serving
        self._config = engine
        self._process = EngineProcess(engine, serving.log_level)
        self._client: EngineClient | None = None  # None while there is no engine
        self._facts: EngineFacts | None = None
        self._ready_since = 0.0
        self._listener: Callable[[bytes], None] | None = None  # to the schedule
        self._leaving: set[int] = set()  # adapters
        self._unloading: set[asyncio.Task[None]] = set()
        self._ongoing = OngoingRequests()
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the first engine. Raises as EngineProcess.start: a first one is not waited for."""
        self._process.start()

    async def connect(self) -> None:
        """Wait until the first engine is ready. Raises what EngineProcess.connect does: a first one is not replaced."""
        serving = self._serving
        client = await self._process.connect(serving.start_timeout, serving.engine_timeout)
        self._facts = client.facts
        # The memory that is free decides how many slots the first engine has; the others have as many.
        self._config = self._config.for_successor(client.facts.n_slots)
        self._take_on(client)
        self._watching = asyncio.create_task(self._watch(client), name="supervisor")

    @property
    def facts(self) -> EngineFacts:
        assert self._facts is not None, "connected"
        return self._facts

    @property
    def present(self) -> bool:
        """Whether there is an engine. Without one requests are taken all the same, and wait."""
        return self._client is not None and not self._client.closed.is_set()

    @property
    def status(self) -> EngineStatus:
        n_live = len(self._ongoing)
        return EngineStatus(n_live=n_live, n_waiting=n_live) if self._client is None else self._client.status

    @property
    def last_report(self) -> float:
        return time.monotonic() if self._client is None else self._client.last_report

    @property
    def n_open(self) -> int:
        return len(self._ongoing)

    @property
    def n_reserved(self) -> int:
        """Slots that its unfinished requests may come to need, also those that still wait for them."""
        return self._ongoing.n_reserved

    @property
    def replicas(self) -> tuple[Supervisor]:
        """All there are behind this door."""
        return (self,)

    def submit(self, request: Request) -> TokenStream:
        """As EngineClient.submit, but that nothing is lost with an engine."""
        if self.closed.is_set():
            raise EngineError(f"the engine is gone: {self.reason}")
        stream = self._ongoing.add(request)
        if self._client is not None and self.present:
            try:
                self._ongoing.hand_over(request.id, self._client)
            except OrcaServeError:
                self._ongoing.forget(request.id)
                raise
        return stream

    def move_requests(self, choose: Callable[[], Supervisor]) -> None:
        """Have others go on with what is unfinished here: for each request, the earliest first, the one that `choose`
        names."""
        for request_id in self._ongoing.ids:
            to = choose()
            self._ongoing.move(request_id, to._ongoing)
            if to._client is not None and to.present:
                to._ongoing.hand_over(request_id, to._client)

    def cancel(self, request_id: int) -> None:
        """As EngineClient.cancel. A request that is not here (any more) is left alone."""
        self._ongoing.cancel(request_id)

    @property
    def n_adapters(self) -> int:
        """Loaded, those included that are not unloaded yet because requests have them."""
        return len(self._config.adapters.modules)

    async def load_adapter(self, adapter: AdapterSource) -> None:
        """As EngineClient.load_adapter; engines that follow have it too."""
        if self._client is None or not self.present:
            raise EngineError("the engine is being replaced: try again")
        await self._client.load_adapter(adapter)
        self._keep_adapters((*self._config.adapters.modules, adapter))

    def unload_adapter(self, number: int) -> None:
        """No request that is submitted after this names it; those that have it go on, if need be in other engines."""
        self._leaving.add(number)
        self._tell_leaving(number)

    def _tell_leaving(self, *numbers: int) -> None:
        if self._client is not None and self.present:
            for number in numbers:
                task = asyncio.create_task(self._unload(self._client, number))
                self._unloading.add(task)
                task.add_done_callback(self._unloading.discard)

    async def _unload(self, client: EngineClient, number: int) -> None:
        try:
            await client.unload_adapter(number)
        except EngineError:
            return  # the next engine is told
        self._leaving.discard(number)
        self._keep_adapters(tuple(each for each in self._config.adapters.modules if each.number != number))

    def _keep_adapters(self, modules: tuple[AdapterSource, ...]) -> None:
        self._config = replace(self._config, adapters=replace(self._config.adapters, modules=modules))

    def watch(self, listener: Callable[[bytes], None] | None) -> None:
        """As EngineClient.watch, of whichever engine there is: each begins with a header."""
        self._listener = listener
        if self._client is not None and self.present:
            self._client.watch(listener)

    async def describe(self) -> LiveRequests:
        """All unfinished requests, as the engine tells of them; what it does not know of waits for it."""
        told, why = LiveRequests(()), "it waits for another engine, in place of the one that was lost"
        if self._client is not None and self.present:
            try:
                async with asyncio.timeout(DESCRIBE_SECONDS):
                    told = await self._client.describe()
                why = "it is on its way to the engine"
            except TimeoutError:
                why = f"the engine has not said anything of it for {DESCRIBE_SECONDS:g} s"
            except EngineError:
                pass
        if told.n_left_out:
            return told
        others = self._ongoing.waiting(why, {each.id for each in told.requests})
        shown = others[:MOST_DESCRIBED]
        return LiveRequests([*told.requests, *shown], len(others) - len(shown))

    async def close(self, message: str = ENGINE_LOST) -> None:
        """End what is unfinished with an error of this message, and the engine's process. Idempotent."""
        self._shut("closed by the endpoint")
        self._ongoing.end_all(message)
        for task in list(self._unloading):
            task.cancel()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._process.stop()  # before its stream ends: only this order tells it that no engine follows
        if self._client is not None:
            await self._client.close()

    async def _watch(self, client: EngineClient) -> None:
        """Wait for the engine's end and put another in its place, as long as the limit of restarts allows."""
        n_short = 0  # engines that lived for a short time only, since the last that did not
        engine: EngineClient | None = client
        try:
            while True:
                if engine is not None:
                    await self._end_of(engine)
                n_short = 0 if time.monotonic() - self._ready_since >= SHORT_LIFE else n_short + 1
                if n_short > MAX_RESTARTS:
                    self._give_up(f"{n_short} in a row have lived for less than {SHORT_LIFE:g} s")
                    return
                engine = await self._replace(n_short)
        except Exception:
            _log.exception("supervising %s failed", self._name)
            self._give_up("supervising it failed")

    async def _end_of(self, client: EngineClient) -> None:
        """Return when the engine is gone for good, and what it had waits for the next one."""
        watch = StallWatch(client, self._serving.stall_timeout)
        ended, lost = asyncio.create_task(self._process.wait()), asyncio.create_task(client.closed.wait())
        stalled = asyncio.create_task(watch.wait())
        try:
            await asyncio.wait((ended, lost, stalled), return_when=asyncio.FIRST_COMPLETED)
            if stalled.done() and not ended.done() and not lost.done():
                _log.error("%s makes no progress; what its threads do follows", self._name)
                await self._process.dump_stacks()
            else:
                await asyncio.wait((lost,), timeout=LAST_NEWS)
                await asyncio.wait((ended,), timeout=OWN_END)
        finally:
            for task in (ended, lost, stalled):
                task.cancel()
        code = await self._process.kill()
        reason = watch.reason if watch.stalled else self._process.last_words or client.reason or "its process ended"
        await client.close()
        self._client = None
        n_failed = self._ongoing.crashed(client, self.facts.max_bs * self.facts.n_workers)
        what = "%s has ended (%s, exit code %d); %d requests wait for another"
        _log.warning(what, self._name, reason, code, len(self._ongoing))
        if n_failed:
            _log.error("%d requests have failed: they ran in %d engines that crashed", n_failed, MAX_CRASHES)

    async def _replace(self, n_short: int) -> EngineClient | None:
        """Start another engine, which gets all that waits. None if it did not come up."""
        started = time.monotonic()
        waiting = asyncio.create_task(self._tell_waiting())
        try:
            if n_short > 1:
                await asyncio.sleep(min(FIRST_PAUSE * 2 ** (n_short - 2), LONGEST_PAUSE))
            client = await self._start_once_there_is_room()
        except OrcaServeError as error:
            _log.error("another engine did not come up%s: %s", self._for, error)
            self._ready_since = time.monotonic()
            return None
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        self.on_restart()
        self._take_on(client)
        self._ongoing.hand_over_all(client)
        self._tell_leaving(*self._leaving)  # behind the requests that have them
        took = time.monotonic() - started
        _log.info("another engine is ready%s after %.1f s; %d requests go on", self._for, took, len(self._ongoing))
        return client

    async def _start_once_there_is_room(self) -> EngineClient:
        """Raises what _start_another does, but NoRoom: a full disk is no reason to lose what waits."""
        pause, said = FIRST_PAUSE, ""
        while True:
            try:
                return await self._start_another()
            except NoRoom as error:
                if str(error) != said:
                    _log.error("there is no room for another engine%s: %s; trying again", self._for, error)
                said = str(error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _start_another(self) -> EngineClient:
        """Raises what EngineProcess.start and connect do; then nothing is left of the process."""
        process = EngineProcess(self._config, self._serving.log_level)
        process.start()  # this loop runs on the main thread
        self._process = process
        silence = self._serving.engine_timeout
        try:
            client = await process.connect(self._serving.start_timeout, silence, max(silence, START_SILENCE))
        except OrcaServeError:
            await process.kill()
            raise
        if client.facts != self.facts:
            await process.kill()
            await client.close()
            raise EngineError("the model has changed since the server was started")
        return client

    def _take_on(self, client: EngineClient) -> None:
        self._client = client
        self._ready_since = time.monotonic()
        client.on_report = self._on_report
        if self._listener is not None and not client.closed.is_set():
            client.watch(self._listener)

    def _on_report(self, report: IterationReport) -> None:
        if self.on_report is not None:
            self.on_report(report)

    async def _tell_waiting(self) -> None:
        while True:
            with contextlib.suppress(Exception):  # of a client's connection: none of our business
                self.on_waiting()
            await asyncio.sleep(WAITING_PERIOD)

    def _give_up(self, reason: str) -> None:
        """There will be no further engine: say so to everyone who waits."""
        self._shut(reason)
        self.on_given_up()
        self._ongoing.end_all(ENGINE_LOST)

    def _shut(self, reason: str) -> None:
        if not self.closed.is_set():
            self.reason = reason
            self.closed.set()
