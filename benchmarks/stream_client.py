"""A client that reads many event streams at once and takes little of the machine for it.

A client library takes more CPU for a token than the server it measures, and on the same machine that is a cost of the
measurement. Here the answers are read from sockets that one selector watches; they are looked into once all are over.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

READ = 64 * 1024
PAUSE = 0.0005  # s from the first news to reading: what an iteration brings is read in one go, not in 32
CHUNKED_END = b"0\r\n\r\n"


@dataclass(slots=True)
class Answer:
    """One stream: the bytes as they came."""

    parts: list[bytes] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Nothing more comes: its last bytes are here (in however many parts), or the server has closed."""
        last = self.parts[-1]
        if len(last) < len(CHUNKED_END):
            last = b"".join(self.parts[-len(CHUNKED_END) :]) if last else CHUNKED_END
        return last.endswith(CHUNKED_END)

    def usage(self) -> int:
        """completion_tokens as the server counts them. Raises ValueError if the answer is not a whole stream."""
        head, _, body = b"".join(self.parts).partition(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise ValueError(f"refused: {head.decode()} {body.decode()}")
        events = _joined(body).decode().split("\n\n")
        if events[-2:] != ["data: [DONE]", ""]:
            raise ValueError(f"not a whole stream: it ends with {events[-1] or events[-2]!r}")
        return int(json.loads(events[-3].removeprefix("data: "))["usage"]["completion_tokens"])


def _joined(chunks: bytes) -> bytes:
    """What was sent in these chunks of HTTP. Raises ValueError if their end is missing."""
    body, rest = b"", chunks
    while True:
        size, _, rest = rest.partition(b"\r\n")
        n = int(size, 16)
        if n == 0:
            return body
        body, rest = body + rest[:n], rest[n + 2 :]


class StreamClient:
    """`n` connections to a server (base: http://HOST:PORT), kept open from one run to the next."""

    def __init__(self, base: str, n: int) -> None:
        self._host = base.removeprefix("http://")
        host, _, port = self._host.rpartition(":")
        self._connections = [socket.create_connection((host, int(port))) for _ in range(n)]
        for connection in self._connections:
            connection.setblocking(False)

    def run(self, path: str, bodies: Sequence[dict[str, object]]) -> tuple[float, list[Answer]]:
        """One stream a body, n at most, all at once: the seconds from the first request to the last byte, and answers.

        Raises OSError if a connection breaks.
        """
        assert len(bodies) <= len(self._connections)
        requests = [self._request(path, body) for body in bodies]
        answers = [Answer() for _ in bodies]
        start = time.perf_counter()
        with selectors.DefaultSelector() as selector:
            for connection, request, answer in zip(self._connections, requests, answers, strict=False):
                connection.sendall(request)
                selector.register(connection, selectors.EVENT_READ, answer)
            n_open = len(answers)
            while n_open:
                selector.select()
                time.sleep(PAUSE)
                for key, _ in selector.select(0):
                    key.data.parts.append(key.fileobj.recv(READ))  # type: ignore[union-attr]
                    if key.data.ended:
                        selector.unregister(key.fileobj)
                        n_open -= 1
        return time.perf_counter() - start, answers

    def __enter__(self) -> StreamClient:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.close()

    def _request(self, path: str, body: dict[str, object]) -> bytes:
        raw = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw
