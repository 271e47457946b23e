"""Exchange: one HTTP request and its answer, on raw ASGI: limits on the body, OpenAI's errors, event streams."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.json_body import parse_object

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

DRAIN_SECONDS = 2.0  # how long a refused body is still read, so that its sender sees the answer
MAX_IGNORED_SHOWN = 20
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # anything else a client made up is not repeated to it
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class Disconnected(Exception):
    """The client left while its request was read."""


def error_object(status: int, message: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """OpenAI's error envelope."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class Exchange:
    """A request and the way to answer it.

    id: names the request in headers, answers and logs.
    sending_since: when a write began that has not come back yet (time.monotonic()), or None; for the write timeout.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self.scope = scope
        self.id = request_id
        self.started = False
        self.disconnected = False
        self.sending_since: float | None = None
        self.extra_headers: list[tuple[bytes, bytes]] = []
        self.ignored: list[str] = []
        self._receive = receive
        self._send = send

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
        shown = [name for name in names if _PLAIN_NAME.fullmatch(name)][:MAX_IGNORED_SHOWN]
        if shown:
            self.extra_headers.append((b"x-orcaserve-ignored-fields", ", ".join(shown).encode()))

    async def json_body(self, max_bytes: int, seconds: float) -> dict[str, Any]:
        """The body as a JSON object. Raises InvalidRequest with the right status, or Disconnected."""
        _check_content_headers(self.header(b"content-type"), self.header(b"content-encoding"))
        announced = self.header(b"content-length")
        if announced is not None and announced.isdigit() and int(announced) > max_bytes:
            raise _too_large(max_bytes)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(seconds):
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
        return parse_object(b"".join(parts))

    async def wait_disconnect(self) -> None:
        """Return once the client has left or the answer is complete. Call after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.disconnected = True

    async def send_json(self, status: int, value: Any, headers: Headers = ()) -> None:
        await self.send_bytes(status, json.dumps(value).encode(), b"application/json", headers)

    async def send_bytes(self, status: int, body: bytes, content_type: bytes, headers: Headers = ()) -> None:
        await self._start(status, [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers])
        await self._body(body, more=False)

    async def send_error(self, error: InvalidRequest, headers: Headers = ()) -> None:
        """Answer with an error. A body that was not read to its end is drained a while, then the connection closes."""
        value = json.dumps(error_object(error.status, error.message, error.code, error.field)).encode()
        unread = error.status in (408, 413)
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(value)), *headers]
        await self._start(error.status, [*head, (b"connection", b"close")] if unread else head)
        await self._body(value, more=unread)
        if unread:
            if error.status == 413:
                await self._drain()
            await self._body(b"", more=False)

    async def start_events(self, headers: Headers = ()) -> None:
        """Begin an event stream (SSE)."""
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

    async def end_events(self, frames: bytes) -> None:
        await self._body(frames, more=False)

    def abort(self) -> None:
        """Drop the connection with whatever waits to be written."""
        extension: Mapping[str, Any] = self.scope.get("extensions", {}).get("orcaserve.transport", {})
        if "abort" in extension:
            extension["abort"]()

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
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *mark]})

    async def _body(self, body: bytes, more: bool) -> None:
        self.sending_since = time.monotonic()
        try:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
        finally:
            self.sending_since = None


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
