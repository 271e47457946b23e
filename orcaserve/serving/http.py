"""Exchange: one HTTP request and its answer, on raw ASGI: limits on the body, OpenAI's errors, event streams."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping
from itertools import islice
from typing import Any, Protocol

from orcaserve.config import ApiKey
from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.observing.account import Account

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]
Answer = Callable[[], Awaitable[None]]  # what is left to do on the event loop once a request was read and checked

DRAIN_SECONDS = 2.0  # how long a refused body is still read, so that its sender sees the answer
MAX_IGNORED_SHOWN = 20
PIECE = 64 * 1024  # bytes of an answer that are written at once
MAX_CLIENT_ID = 128  # characters of a client's own x-request-id; a longer one is not used
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # anything else a client made up is not repeated to it
_CLIENT_ID = re.compile(rf"[A-Za-z0-9._~:@/+=-]{{1,{MAX_CLIENT_ID}}}")
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


def new_id(prefix: str) -> str:
    """An id as OpenAI's API has them: `cmpl-` or `chatcmpl-` and 24 hexadecimal digits."""
    return f"{prefix}-{secrets.token_hex(12)}"


def client_id_in(given: str | None) -> str | None:
    """The name that a client gave its request in the header x-request-id, if it may be repeated."""
    return given if given is not None and _CLIENT_ID.fullmatch(given) else None


def openai_form(error: InvalidRequest) -> dict[str, Any]:
    return error_object(error.status, error.message, error.code, error.field)


def plain_form(error: InvalidRequest) -> dict[str, Any]:
    """What Triton, KServe and TensorFlow Serving write."""
    return {"error": error.message}


class Cancellation:
    """Somebody's word that a request need not go on; it waits until there is something to stop."""

    def __init__(self) -> None:
        self._requested = False
        self._stop: Callable[[], None] | None = None

    def listen(self, stop: Callable[[], None]) -> None:
        """From now on `stop` is called, at once if the word has been given."""
        self._stop = stop
        if self._requested:
            stop()

    def request(self) -> None:
        """Idempotent, if what listens is."""
        self._requested = True
        if self._stop is not None:
            self._stop()


class Exchange:
    """A request and the way to answer it.

    id: names the request in answers and logs. client_id: the name that its client gave it, or None.
    arrival: when the whole request was here (time.monotonic()). last_write: when a part of the answer was written last.
    params: what stands in the path for the names of its route. errors: how the protocol writes an error.
    strict: a field without effect is an error. count_ignored: told how many there are, when the answer begins.
    account: what became of it.
    key: whose API key came with it, if any did. count_failure: told the code of an error that ends a stream.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str, strict: bool = False) -> None:
        self.scope = scope
        self.id = request_id
        self.strict = strict
        self.arrival = time.monotonic()
        self.account = Account(self.arrival)
        self.started = False
        self.params: Mapping[str, str] = {}
        self.errors: Callable[[InvalidRequest], dict[str, Any]] = openai_form
        self.cancellation = Cancellation()
        self.key: ApiKey | None = None
        self.count_ignored: Callable[[int], None] = lambda n: None
        self.count_failure: Callable[[str], None] = lambda code: None
        self.extra_headers: list[tuple[bytes, bytes]] = []
        self.ignored: list[str] = []
        self._reading: asyncio.Timeout | None = None
        self._read_until = 0.0
        self._receive = receive
        self._send = send
        self._sending = False
        self.last_write = self.arrival
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

    @property
    def raw_path(self) -> str | None:
        """As it was sent, percent signs and all."""
        raw = self.scope.get("raw_path")
        return None if raw is None else str(raw.decode("latin-1"))

    def header(self, name: bytes) -> str | None:
        """The first header of this (lower-case) name."""
        for key, value in self.scope["headers"]:
            if key == name:
                return str(value.decode("latin-1"))
        return None

    @property
    def client_id(self) -> str | None:
        return client_id_in(self.header(b"x-request-id"))

    def announces_more_than(self, n_bytes: int) -> bool:
        """Whether the body is larger, or may be, or its sender wants to be asked for it first."""
        announced = self.header(b"content-length")
        if announced is None:
            return self._unread
        return self.header(b"expect") is not None or not announced.isdigit() or int(announced) > n_bytes

    def name_ignored(self, names: list[str]) -> None:
        """Say in a header which fields of the request have no effect. Raises InvalidRequest in strict mode."""
        if names and self.strict:
            plain = next(filter(_PLAIN_NAME.fullmatch, names), None)
            text = f"{plain or 'a field'} is unknown here and has no effect (this server is strict)"
            raise InvalidRequest(plain, text, code="unknown_field")
        self.ignored = names
        shown = list(islice(filter(_PLAIN_NAME.fullmatch, names), MAX_IGNORED_SHOWN))
        if shown:
            self.extra_headers.append((b"x-orcaserve-ignored-fields", ", ".join(shown).encode()))

    def check_head(self, max_bytes: int, any_type: bool = False) -> None:
        """Whether what the header says of the body will do. Raises InvalidRequest as read_body."""
        _check_content_headers(self, any_type)
        self._check_length(max_bytes)

    async def read_body(self, max_bytes: int, seconds: float, any_type: bool = False) -> bytes:
        """The body, announced as JSON, or as anything by a client that is no browser.

        Raises InvalidRequest with the right status, or Disconnected.
        """
        self.check_head(max_bytes, any_type)
        return b"".join([part async for part in self.read_parts(max_bytes, seconds)])

    async def read_parts(self, max_bytes: int, seconds: float) -> AsyncIterator[bytes]:
        """The body as it comes, whatever it is. Raises as read_body."""
        self._check_length(max_bytes)
        size = 0
        self._read_until = asyncio.get_running_loop().time() + seconds
        more = True
        while more:
            try:
                async with asyncio.timeout_at(self._read_until) as self._reading:
                    message = await self._receive()
            except TimeoutError as error:
                text = f"the body did not arrive within {seconds:g} seconds"
                raise InvalidRequest(None, text, code="request_timeout", status=408) from error
            finally:
                self._reading = None
            if message["type"] == "http.disconnect":
                raise Disconnected
            part = message.get("body", b"")
            size += len(part)
            if size > max_bytes:
                raise _too_large(max_bytes)
            more = message.get("more_body", False)
            self._unread = more
            yield part
        self.arrival = time.monotonic()

    def _check_length(self, max_bytes: int) -> None:
        announced = self.header(b"content-length")
        if announced is not None and announced.isdigit() and int(announced) > max_bytes:
            raise _too_large(max_bytes)

    def stop_reading(self) -> None:
        """A body that is still arriving has run out of time."""
        self._read_until = asyncio.get_running_loop().time()
        if self._reading is not None:
            self._reading.reschedule(self._read_until)

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

    async def send_not_modified(self, headers: Headers) -> None:
        """Answer 304: the client has it already. Without a length, which would be taken for that of what it has."""
        close = [(b"connection", b"close")] if self._unread else []
        await self._start(304, [*close, *headers])
        await self._body(b"", more=False)

    async def send_pieces(self, status: int, pieces: AsyncIterator[bytes], length: int, content_type: bytes) -> None:
        """As send_bytes, for what does not lie in memory: `length` bytes in all.

        The last byte ends the answer: whoever has it may send the next request at once.
        """
        unread = self._unread
        close = [(b"connection", b"close")] if unread else []
        await self._start(status, [(b"content-type", content_type), (b"content-length", b"%d" % length), *close])
        left = length
        if not length:
            await self._body(b"", more=unread)
        async for piece in pieces:
            left -= len(piece)
            await self._body(piece, more=unread or left > 0)
        if unread:
            await self._drain()
            await self._body(b"", more=False)

    async def send_error(self, error: InvalidRequest, headers: Headers = ()) -> None:
        self.account.code = error.code or str(error.status)
        await self.send_json(error.status, self.errors(error), headers)

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
        self.last_write = time.monotonic()
        self._connection.write_part(frames)

    async def end_events(self, frames: bytes) -> None:
        self._streaming = False
        await self._body(frames, more=False)

    def abort(self) -> None:
        """Drop the connection with whatever waits to be written."""
        if self._connection is not None:
            self._connection.abort()

    async def no_more(self) -> Message:
        """A `receive` for whoever answers in place of this exchange: the body has been read."""
        return {"type": "http.disconnect"}

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
        self.account.status = status
        self.count_ignored(len(self.ignored))
        mark = [(b"x-request-id", (self.client_id or self.id).encode()), *self.extra_headers]
        if self.client_id is not None:
            mark.append((b"x-orcaserve-request-id", self.id.encode()))
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
        self.last_write = time.monotonic()
        try:
            await self._send(message)
        finally:
            self._sending = False


def _check_content_headers(exchange: Exchange, any_type: bool) -> None:
    """A browser can be made to send forms and plain text by others' pages, but not JSON; it always says its origin."""
    kind, *parameters = (exchange.header(b"content-type") or "").split(";")
    charset = [p.partition("=")[2].strip().strip('"').lower() for p in parameters if "charset" in p.lower()]
    is_json = kind.strip().lower() == "application/json" and all(c in ("utf-8", "utf8") for c in charset)
    if not is_json and not (any_type and exchange.header(b"origin") is None):
        text = "send the header Content-Type: application/json, and the body as UTF-8"
        raise InvalidRequest(None, text, code="unsupported_media_type", status=415)
    check_not_compressed(exchange)


def check_not_compressed(exchange: Exchange) -> None:
    encoding = exchange.header(b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in ("", "identity"):
        text = "the body must not be compressed"
        raise InvalidRequest(None, text, code="unsupported_media_type", status=415)


def _too_large(limit: int) -> InvalidRequest:
    return InvalidRequest(None, f"the body must be at most {limit} bytes", code="body_too_large", status=413)
