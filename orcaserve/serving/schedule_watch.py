"""The schedule while it happens: one watch of a replica's engine, for any number of listeners over event streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from orcaserve.core.errors import SERVER_STOPPING, InvalidRequest
from orcaserve.serving.fields import Field
from orcaserve.serving.http import Exchange
from orcaserve.serving.query import read_query

if TYPE_CHECKING:
    from orcaserve.serving.app import App

MAX_LISTENERS = 256  # of a replica
MOST_UNREAD = 2**18  # bytes that wait for a listener who does not read, beside a header
BETWEEN_HEADERS = 0.25  # s; those who come meanwhile share the next one
REPLICA = {
    "replica": Field({"type": "integer", "minimum": 0}, "Whose schedule, counted from 0, where there are several.")
}


class Watched(Protocol):
    """A replica's engine, whichever it is."""

    def watch(self, listener: Callable[[bytes], None] | None) -> None: ...


class Listener:
    """What waits for one event stream: events from a header on. behind: nothing is taken before the next header."""

    def __init__(self) -> None:
        self.behind = True
        self.over = False
        self._events: list[bytes] = []
        self._n_bytes = 0
        self._something = asyncio.Event()

    def put(self, events: bytes, begins: bool) -> None:
        """begins: they are a header, from which on all can be understood without what came before."""
        if self.behind and not begins:
            return
        if self._n_bytes + len(events) > MOST_UNREAD:
            self._events.clear()
            self._n_bytes = 0
            if not begins:
                self.behind = True
                self._something.set()  # whoever takes has to ask for a header
                return
        self.behind = False
        self._events.append(events)
        self._n_bytes += len(events)
        self._something.set()

    def end(self) -> None:
        self.over = True
        self._something.set()

    async def take(self) -> bytes:
        """All that waits, once there is something; nothing, if it is over or has just fallen behind."""
        await self._something.wait()
        self._something.clear()
        events = b"".join(self._events)
        self._events.clear()
        self._n_bytes = 0
        return events


class ScheduleWatch:
    """Watches as long as anybody listens. The engine is asked for a header for whoever comes; all get it."""

    def __init__(self, replica: Watched) -> None:
        self._replica = replica
        self._listeners: set[Listener] = set()
        self._due: asyncio.TimerHandle | None = None  # when the next header is to be asked for
        self._asked = -BETWEEN_HEADERS  # when the last one was

    @property
    def n_listeners(self) -> int:
        return len(self._listeners)

    def join(self) -> Listener:
        listener = Listener()
        self._listeners.add(listener)
        self.ask()
        return listener

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        if not self._listeners:
            if self._due is not None:
                self._due.cancel()
                self._due = None
            self._replica.watch(None)

    def ask(self) -> None:
        """Somebody can go on only from a header: it comes soon, but not too often."""
        if self._due is None:
            loop = asyncio.get_running_loop()
            wait = self._asked + BETWEEN_HEADERS - time.monotonic()
            self._due = loop.call_later(max(wait, 0.0), self._ask_now)

    def end(self) -> None:
        """All streams end. Idempotent."""
        for listener in self._listeners:
            listener.end()

    def _ask_now(self) -> None:
        self._due = None
        self._asked = time.monotonic()
        self._replica.watch(self._take)

    def _take(self, lines: bytes) -> None:
        events = b"data: " + lines[:-1].replace(b"\n", b"\n\ndata: ") + b"\n\n"
        begins = lines.startswith(b"{")
        for listener in self._listeners:
            listener.put(events, begins)


async def schedule(app: App, exchange: Exchange) -> None:
    """An event for each line, until the client or the server leaves."""
    watch = _of_replica(app, exchange)
    if app.draining:
        raise InvalidRequest(None, SERVER_STOPPING, code="stopping", status=503)
    if watch.n_listeners >= MAX_LISTENERS:
        message = f"at most {MAX_LISTENERS} may watch the schedule of a replica at once"
        raise InvalidRequest(None, message, code="too_many_listeners", status=503)
    if exchange.method == "HEAD":
        await exchange.start_events()
        await exchange.end_events(b"")
        return
    listener = watch.join()  # before anything is waited for: whoever comes is counted, and told of the end
    try:
        with app.not_waited_for(exchange):
            await exchange.while_connected(_tell(exchange, watch, listener))
    finally:
        watch.leave(listener)


async def _tell(exchange: Exchange, watch: ScheduleWatch, listener: Listener) -> None:
    await exchange.start_events()
    while not listener.over:
        if events := await listener.take():
            await exchange.send_events(events)  # waits for a client that does not read
        if listener.behind:
            watch.ask()
    await exchange.end_events(b"")


def _of_replica(app: App, exchange: Exchange) -> ScheduleWatch:
    watches = app.require_service().schedules
    text = read_query(exchange, REPLICA).get("replica", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) < len(watches)):
        there = "there is only replica 0" if len(watches) == 1 else f"the replicas are 0 to {len(watches) - 1}"
        raise InvalidRequest("replica", f"replica must be the number of one: {there}")
    return watches[int(text)]
