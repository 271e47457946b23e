"""The standard library's HTTP client over a Unix socket."""

from __future__ import annotations

import http.client
import socket


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float = 300) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except OSError:
            self.sock.close()
            raise
