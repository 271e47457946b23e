"""uvicorn's HTTP/1.1 protocol with what it leaves out: limits on the header's size and time, errors as JSON."""

from __future__ import annotations

import asyncio
import json
import socket
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from orcaserve.serving.http import error_object

MAX_HEADER_BYTES = 16 * 1024
HEADER_SECONDS = 10.0


class HttpProtocol(HttpToolsProtocol):
    """One connection. The application may drop it: scope["extensions"]["orcaserve.transport"]["abort"]()."""

    _header_bytes = 0
    _reading_header = True
    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family != socket.AF_UNIX:
            # Header and body are written apart; without this the second waits 40 ms for the first's acknowledgement.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._reading_header:
            self._header_bytes += len(data)
        super().data_received(data)
        # Past the limit and the header has still not ended; what belongs to a body is not counted.
        if self._reading_header and self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self._refuse(431, f"the header must be at most {MAX_HEADER_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reading_header = True
        self.scope["extensions"] = {"orcaserve.transport": {"abort": self.transport.abort}}
        if self._header_timer is None:
            self._arm()

    def on_headers_complete(self) -> None:
        self._reading_header = False
        self._header_bytes = 0
        self._disarm()
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEADER_BYTES:
            self._refuse(431, f"the header must be at most {MAX_HEADER_BYTES} bytes")
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None and not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._reading_header = True  # of the next request on this connection
        if self.cycle is not None and not self.transport.is_closing():
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            self._refuse(400, "this is not a valid HTTP request")

    def _refuse(self, status: int, message: str) -> None:
        """Answer without the application, and close. In the middle of another answer only the latter is possible."""
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()
            return
        body = json.dumps(error_object(status, message, code="bad_http")).encode()
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def _arm(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self._too_slow)

    def _disarm(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _too_slow(self) -> None:
        self._header_timer = None
        if self.transport.is_closing():
            return
        if self._header_bytes:
            self._refuse(408, f"the header did not arrive within {HEADER_SECONDS:g} seconds")
        else:
            self.transport.close()
