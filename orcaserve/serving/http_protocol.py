"""uvicorn's HTTP/1.1 protocol with what it leaves out: limits on size and time each way, errors as JSON."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from orcaserve.serving.http import CONNECTION, encode_json, error_object, new_id

MAX_HEADER_BYTES = 16 * 1024
HEADER_SECONDS = 10.0


TurnAway = Callable[[bytes, Sequence[tuple[bytes, bytes]], tuple[str, int] | None], bytes | None]
_TOO_MANY = STATUS_LINE[429]


class _Refused(Exception):
    """Raised inside the parser, so that it reads no further."""


class HttpProtocol(HttpToolsProtocol):
    """One connection, and for the application the Connection in scope["extensions"].

    One request at a time: what is sent before the answer to the last one is complete makes that answer the last, and
    is not read. What the client does not take within `write_timeout` seconds ends the connection.

    turn_away: asked for every POST; what it answers is written with the status 429, and the application is not told.
    """

    def __init__(self, *args: Any, write_timeout: float, turn_away: TurnAway, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._write_timeout = write_timeout
        self._turn_away = turn_away
        self._discards = False  # the rest of a request that was turned away
        self._overhead = 0  # bytes since the connection's start, or since the last byte of a body
        self._in_header = True  # of the current request or the next
        self._over = False  # nothing is read any more
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family != socket.AF_UNIX:
            # Header and body are written apart; without this the second waits 40 ms for the first's acknowledgement.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._arm_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm_header()
        self._disarm_write()
        super().connection_lost(exc)

    # What the client sends.

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        if self._in_header and self._header_timer is None:
            self._arm_header()
        self._overhead += len(data)
        super().data_received(data)
        # A header that does not end, trailers, the extensions of chunks.
        if self._overhead > MAX_HEADER_BYTES and not self._over:
            self._refuse(431, f"the header must be at most {MAX_HEADER_BYTES} bytes")
        if self._discards and self._header_timer is None and not self._over:
            self._arm_header()  # for the rest of the body too

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION: {"connection": self}}

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_header:  # a trailer, after a body in chunks
            self._refuse(400, "trailers are not supported")
            raise _Refused
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._disarm_header()
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEADER_BYTES:
            self._refuse(431, f"the header must be at most {MAX_HEADER_BYTES} bytes")
            raise _Refused
        if self._answering():
            self._refuse(400, "the answer to the last request is not complete")
            raise _Refused
        self._in_header = False
        self._overhead = 0
        self._discards = self._is_turned_away()
        if not self._discards:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        if not self._discards:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._overhead = 0
        self._in_header = True
        if self._discards:
            self._discards = False
            self._disarm_header()
            self.on_response_complete()
        else:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if not self._over:
            self._refuse(400, "this is not a valid HTTP request")

    def eof_received(self) -> None:
        self._arm_write()  # the transport closes itself

    # What it is sent.

    def abort(self) -> None:
        self.transport.abort()

    @property
    def may_write(self) -> bool:
        return not (self.flow.write_paused or self.transport.is_closing())

    def write_part(self, part: bytes) -> None:
        """Without ASGI's messages: there is one such part for every token."""
        self.transport.write(b"%x\r\n%b\r\n" % (len(part), part))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._arm_write()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():  # else it must take the rest as well
            self._disarm_write()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._arm_write()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def _is_turned_away(self) -> bool:
        """Whether this request has its answer already. Who does not read answers, or does not keep its connection, is
        left to those who can wait and close.
        """
        parser = self.parser
        if parser.get_method() != b"POST" or self.flow.write_paused or self.transport.is_closing():
            return False
        if not parser.should_keep_alive():
            return False
        answer = self._turn_away(self.url, self.headers, self.client)
        if answer is None:
            return False
        own = b"".join([b"%b: %b\r\n" % header for header in self.server_state.default_headers])
        self.transport.write(_TOO_MANY + own + answer)
        return True

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, status: int, message: str) -> None:
        """Answer without the application, and close; an answer under way is finished instead. Nothing more is read."""
        self._over = True
        self._disarm_header()
        if self._answering() and (self.cycle.response_started or not self.cycle.more_body):
            self.cycle.keep_alive = False
            return
        code = {408: "request_timeout", 431: "header_too_large"}.get(status, "bad_http")
        body = encode_json(error_object(status, message, code=code))
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        head += f"x-request-id: {new_id('req')}\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self._close()

    def _close(self) -> None:
        self.transport.close()
        self._arm_write()

    def _arm_write(self) -> None:
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self._write_timeout, self.transport.abort)

    def _disarm_write(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _arm_header(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self._too_slow)

    def _disarm_header(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _too_slow(self) -> None:
        if self._overhead and not self._discards:
            self._refuse(408, f"the header did not arrive within {HEADER_SECONDS:g} seconds")
        else:
            self._over = True
            self._close()
