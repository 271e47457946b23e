"""One request on a connection of its own: sent, and its answer read as it comes.

Everything happens in the callbacks of a protocol, once for every piece that arrives: a client library would take more
of a core for a token than a quick server does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

import httptools

MOST_BODY_BYTES = 2**20  # of an answer that is no stream
MOST_LINE_BYTES = 2**20


class StreamFailed(Exception):
    """The request failed. Its text is the same for all that fail alike; detail is what the server said."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class Answer(asyncio.Protocol):
    """The client's end of one connection.

    over: set to None when the answer is whole, or to StreamFailed. news: called with the time of every event that
    brings text. usage: what the server counted. body: an answer that is no stream. streamed: whether it was one.
    last: when the last piece came.
    """

    def __init__(self, request: bytes, clock: Callable[[], float], news: Callable[[float], None]) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.usage: dict[str, Any] = {}
        self.body = bytearray()
        self._request = request
        self._clock = clock
        self._news = news
        self.last = 0.0
        self.streamed = False
        self._headed = False  # its head is here
        self._framed = False  # and says where the answer ends
        self._done = False  # its last event was here
        self._line = b""  # the beginning of a line whose end is still to come
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)

    # From the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.last = self._clock()
        try:
            self._parser.feed_data(data)
        except StreamFailed as failure:
            self._end(failure)
        except httptools.HttpParserError as error:
            cause = error.__context__  # what a callback raised is wrapped
            self._end(cause if isinstance(cause, StreamFailed) else StreamFailed("the answer is not HTTP", str(error)))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.streamed:
            self._end(
                None if self._done else StreamFailed("the stream broke", str(exc or "closed before data: [DONE]"))
            )
        elif self._headed and not self._framed and exc is None:
            self.on_message_complete()
        else:
            self._end(StreamFailed("the connection was closed without an answer", str(exc or "")))

    # From the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            self.streamed = value.lower().startswith(b"text/event-stream")
        elif name in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        self._headed = True

    def on_body(self, data: bytes) -> None:
        if not self.streamed or self._parser.get_status_code() != 200:
            self.body += data[: MOST_BODY_BYTES - len(self.body)]
            return
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > MOST_LINE_BYTES:
            raise StreamFailed("an event of the stream is too long")
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip())

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != 200:
            self._end(StreamFailed(f"HTTP {status}", error_text(bytes(self.body))))
        elif self.streamed and not self._done:
            self._end(StreamFailed("the stream broke", "it ended without data: [DONE]"))
        else:
            self._end(None)

    def _take(self, data: bytes) -> None:
        """One event."""
        if data == b"[DONE]":
            self._done = True
            return
        try:
            event = json.loads(data)
            if "error" in event:
                raise StreamFailed("the stream ended with an error", error_text(data))
            usage = event.get("usage")
            if usage:
                self.usage = usage
            choices = event["choices"]
            if choices and _has_text(choices[0]):
                self._news(self.last)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise StreamFailed("an event of the stream is no answer", repr(data[:200])) from error

    def _end(self, failure: StreamFailed | None) -> None:
        if not self.over.done():
            if failure is None:
                self.over.set_result(None)
            else:
                self.over.set_exception(failure)
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Leave, whatever is still to come."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()


def _has_text(choice: dict[str, Any]) -> bool:
    if "text" in choice:
        return bool(choice["text"])
    delta = choice["delta"]
    return bool(delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"))


def error_text(body: bytes) -> str:
    """What an answer says is wrong, in one line."""
    text = body.decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, LookupError, TypeError):
        pass
    return " ".join(text.split())[:200]
