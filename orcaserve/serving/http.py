"""Exchange: one HTTP request and its answer, on raw ASGI: limits on the body, OpenAI's errors, event streams."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from itertools import islice
from typing import Any, Protocol

from orcaserve.core.errors import InvalidRequest

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]
Answer = Callable[[], Awaitable[None]]  # what is left to do on the event loop once a request was read and checked

DRAIN_SECONDS = 2.0  # how long a refused body is still read, so that its sender sees the answer
MAX_IGNORED_SHOWN = 20
PIECE = 64 * 1024  # bytes of an answer that are written at once
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # anything else a client made up is not repeated to it
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


CONNECTION = "orcaserve.connection"  # the ASGI extension {"connection": Connection}


class Connection(Protocol):
    """What our HTTP server offers beyond ASGI, for the request that is being answered."""

    def abort(self) -> None:
        """Drop the connection with whatever waits to be written."""

    @property
    def may_write(self) -> bool:
        """Whether a part would be on its way at once: the client reads, and has not left."""

    def write_part(self, part: bytes) -> None:
        """Write one more part of an answer of unknown length whose beginning has been sent."""


class Disconnected(Exception):
    """The client left while its request was read."""


def error_object(status: int, message: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """OpenAI's error envelope."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def encode_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class Exchange:
    """A request and the way to answer it.

    id: names the request in headers, answers and logs.
    arrival: when the whole request was here (time.monotonic()).
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self.scope = scope
        self.id = request_id
        self.arrival = time.monotonic()
        self.started = False
        self.extra_headers: list[tuple[bytes, bytes]] = []
        self.ignored: list[str] = []
        self._reading: asyncio.Timeout | None = None
        self._receive = receive
        self._send = send
        self._sending = False
        self._streaming = False  # an event stream has begun and not ended
        self._connection: Connection | None = scope.get("extensions", {}).get(CONNECTION, {}).get("connection")
        self._unread = self.header(b"transfer-encoding") is not None or self.header(b"content-length") not in (
            None,
            "0",
        )

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def path(self) -> str:
        return str(self.scope["path"])

    def header(self, name: bytes) -> str | None:
        """The first header of this (lower-case) name."""
        for key, value in self.scope["headers"]:
            if key == name:
                return str(value.decode("latin-1"))
        return None

    def name_ignored(self, names: list[str]) -> None:
        """Say in a header which fields of the request have no effect."""
        self.ignored = names
        shown = list(islice(filter(_PLAIN_NAME.fullmatch, names), MAX_IGNORED_SHOWN))
        if shown:
            self.extra_headers.append((b"x-orcaserve-ignored-fields", ", ".join(shown).encode()))

    async def read_body(self, max_bytes: int, seconds: float) -> bytes:
        """The body, announced as JSON. Raises InvalidRequest with the right status, or Disconnected."""
        _check_content_headers(self.header(b"content-type"), self.header(b"content-encoding"))
        announced = self.header(b"content-length")
        if announced is not None and announced.isdigit() and int(announced) > max_bytes:
            raise _too_large(max_bytes)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(seconds) as self._reading:
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise Disconnected
                    part = message.get("body", b"")
                    size += len(part)
                    if size > max_bytes:
                        raise _too_large(max_bytes)
                    parts.append(part)
                    if not message.get("more_body", False):
                        break
        except TimeoutError as error:
            text = f"the body did not arrive within {seconds:g} seconds"
            raise InvalidRequest(None, text, code="request_timeout", status=408) from error
        finally:
            self._reading = None
        self._unread = False
        self.arrival = time.monotonic()
        return b"".join(parts)

    def stop_reading(self) -> None:
        """A body that is still arriving has run out of time."""
        if self._reading is not None:
            self._reading.reschedule(asyncio.get_running_loop().time())

    async def while_connected(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work`, or as much of it as gets done before the client leaves. Call after the body was read."""
        working, leaving = asyncio.create_task(work), asyncio.create_task(self._left())
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def send_json(self, status: int, value: Any, headers: Headers = ()) -> None:
        await self.send_bytes(status, encode_json(value), b"application/json", headers)

    def json_answer(self, value: Any) -> Answer:
        """The answer 200 with this value, which is written as JSON here and now."""
        body = encode_json(value)
        return lambda: self.send_bytes(200, body, b"application/json")

    async def send_bytes(self, status: int, body: bytes, content_type: bytes, headers: Headers = ()) -> None:
        """Answer. If the request's body was not read to its end, what comes of it is drained a while, then the
        connection closes."""
        unread = self._unread
        close = [(b"connection", b"close")] if unread else []
        length = (b"content-length", b"%d" % len(body))
        await self._start(status, [(b"content-type", content_type), length, *close, *headers])
        await self._body(body, more=unread)
        if unread:
            await self._drain()
            await self._body(b"", more=False)

    async def send_error(self, error: InvalidRequest, headers: Headers = ()) -> None:
        await self.send_json(error.status, error_object(error.status, error.message, error.code, error.field), headers)

    async def start_events(self, headers: Headers = ()) -> None:
        """Begin an event stream (SSE)."""
        self._streaming = True
        await self._start(
            200,
            [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),
                *headers,
            ],
        )

    async def send_events(self, frames: bytes) -> None:
        await self._body(frames, more=True)

    @property
    def may_write(self) -> bool:
        """Whether `write_events` may be called: a stream has begun, and nothing is on its way before them."""
        return self._streaming and not self._sending and self._connection is not None and self._connection.may_write

    def write_events(self, frames: bytes) -> None:
        """As send_events, for who cannot wait."""
        assert self._connection is not None
        self._connection.write_part(frames)

    async def end_events(self, frames: bytes) -> None:
        self._streaming = False
        await self._body(frames, more=False)

    def abort(self) -> None:
        """Drop the connection with whatever waits to be written."""
        if self._connection is not None:
            self._connection.abort()

    async def _left(self) -> None:
        """Return once the client has left or the answer is complete."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _drain(self) -> None:
        """Closing a socket with unread data resets it, and the sender may never see why."""
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return
        except TimeoutError:
            return

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        mark = [(b"x-request-id", self.id.encode()), *self.extra_headers]
        await self._pass_on({"type": "http.response.start", "status": status, "headers": [*headers, *mark]})

    async def _body(self, body: bytes, more: bool) -> None:
        """In pieces, so that the write timeout asks of a client to take one of them in time, not all."""
        for start in range(0, max(len(body), 1), PIECE):
            end = start + PIECE
            await self._pass_on(
                {"type": "http.response.body", "body": body[start:end], "more_body": more or end < len(body)}
            )

    async def _pass_on(self, message: Message) -> None:
        """Send, once the client has taken what is before it."""
        self._sending = True
        try:
            await self._send(message)
        finally:
            self._sending = False


def _check_content_headers(content_type: str | None, encoding: str | None) -> None:
    kind, *parameters = (content_type or "").split(";")
    charset = [p.partition("=")[2].strip().strip('"').lower() for p in parameters if "charset" in p.lower()]
    if kind.strip().lower() != "application/json" or any(c not in ("utf-8", "utf8") for c in charset):
        text = "send the header Content-Type: application/json, and the body as UTF-8"
        raise InvalidRequest(None, text, code="unsupported_media_type", status=415)
    if encoding is not None and encoding.strip().lower() not in ("", "identity"):
        text = "the body must not be compressed"
        raise InvalidRequest(None, text, code="unsupported_media_type", status=415)


def _too_large(limit: int) -> InvalidRequest:
    return InvalidRequest(None, f"the body must be at most {limit} bytes", code="body_too_large", status=413)
